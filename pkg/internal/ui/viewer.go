package ui

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// viewer is one stream. The goroutine of its request sends what the watch of its page hands over. At most one message
// waits for it: if another one comes meanwhile, both are replaced by the whole state.
type viewer struct {
	at     string
	screen *Screen
	page   *http.Request // a request for the page, with the values of its path
	who    session
	remote string
	tls    *tls.ConnectionState
	have   map[string]string // the hashes of the parts that the page contains, until the first message
	wake   chan struct{}     // one slot
	feed   chan FeedEvent    // what the screen sends only to this viewer; nil: nothing

	mu           sync.Mutex
	message      []byte     // the changes that wait, as an event of the stream; nil if whole is set
	whole        *pageState // the state that waits
	seen         time.Time  // the time of the state that the viewer sees, or will see with what waits
	fault        *Problem   // why there is no newer state; nil: there is
	faultChanged bool       // fault was not sent yet
	anew         bool       // its rights have changed
	signedOut    bool       // its credential is no longer accepted
}

// request returns the request by which the page is rendered.
func (v *viewer) request(s *Server) (*Request, error) {
	r := v.page.WithContext(v.page.Context())
	r.RemoteAddr, r.TLS = v.remote, v.tls

	q, err := s.newRequest(r, v.who)
	if q != nil {
		q.watched = true
	}

	return q, err
}

// signal wakes the goroutine of the stream. The caller holds mu.
func (v *viewer) signal() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// begin makes the viewer get the whole state, if there is one, and learn of a fault or of its end.
func (v *viewer) begin(state *pageState, fault *Problem) {
	v.mu.Lock()
	defer v.mu.Unlock()

	if state != nil {
		v.message, v.whole, v.seen = nil, state, state.at
	}
	if fault != nil || v.fault != nil {
		v.faultChanged = v.faultChanged || (fault == nil) != (v.fault == nil) || fault != nil && fault.Message != v.fault.Message
	}
	v.fault = fault

	if v.whole != nil || v.faultChanged {
		v.signal()
	}
}

// give hands over changes, as an event of the stream. state is that after the changes.
func (v *viewer) give(changes []byte, state *pageState) {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.seen = state.at
	switch {
	case v.whole != nil:
		v.whole = state
	case len(changes) == 0:
		return // only the age has changed
	case v.message != nil:
		v.message, v.whole = nil, state
	default:
		v.message = changes
	}
	v.signal()
}

// restart notifies the stream that the rights of its viewer have changed.
func (v *viewer) restart() {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.anew = true
	v.signal()
}

// signOut notifies the stream that the API has refused its credential.
func (v *viewer) signOut() {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.signedOut = true
	v.signal()
}

// pending is what a stream has to send.
type pending struct {
	message      []byte
	whole        *pageState
	fault        *Problem
	faultChanged bool
	seen         time.Time
	anew         bool
	signedOut    bool
}

// take returns what waits.
func (v *viewer) take() pending {
	v.mu.Lock()
	defer v.mu.Unlock()

	p := pending{v.message, v.whole, v.fault, v.faultChanged, v.seen, v.anew, v.signedOut}
	v.message, v.whole, v.faultChanged, v.anew = nil, nil, false, false

	return p
}

// encodeMessage returns HTML that htmx swaps into the page as an event of a stream, with the time after which the browser
// connects again if the stream is cut. Without HTML, it sets only this time.
func encodeMessage(html []byte, retry time.Duration) []byte {
	var b bytes.Buffer
	b.Grow(len(html) + len(html)/8)
	b.WriteString("retry: " + strconv.FormatInt(retry.Milliseconds(), 10) + "\n")
	appendData(&b, html)
	b.WriteString("\n")

	return b.Bytes()
}

// message returns the whole state as an event, for pages that have no part of it. It is encoded once for all viewers.
func (s *pageState) message() []byte {
	s.encode.Do(func() { s.encoded = encodeMessage(encodeWhole(s, nil), retryAfter) })
	return s.encoded
}

// encodeWhole returns the parts of a page as htmx swaps them in, without those that the page already has.
func encodeWhole(state *pageState, have map[string]string) []byte {
	var b bytes.Buffer
	for _, p := range state.parts {
		if have[p.name] != p.hash {
			appendPart(&b, p)
		}
	}
	return b.Bytes()
}

// encodeChanges returns what turns one rendering of a page into another: the parts that differ, and of a part of which only
// rows differ, these rows. It returns nothing if the renderings are equal.
func encodeChanges(old, now *pageState) []byte {
	var b bytes.Buffer
	for i, p := range now.parts {
		before := old.parts[i]
		if bytes.Equal(before.content, p.content) {
			continue
		}

		if changed, ok := changedRows(before.content, p.content); ok {
			b.Grow(len(p.content))
			for _, r := range changed {
				appendPartial(&b, r.id, "outerMorph", r.content)
			}
			continue
		}
		appendPart(&b, p)
	}

	return b.Bytes()
}

func appendPart(b *bytes.Buffer, p part) { appendPartial(b, p.name, "innerMorph", p.content) }

// appendPartial writes what htmx swaps into the element with an id.
func appendPartial(b *bytes.Buffer, id, swap string, content []byte) {
	b.WriteString(`<hx-partial hx-target="#` + id + `" hx-swap="` + swap + `">`)
	b.Write(content)
	b.WriteString("</hx-partial>\n")
}

// row is an element <tr id="…"> of a part.
type row struct {
	id      string
	content []byte
}

// changedRows returns the rows that differ, if nothing else does: the same rows in the same order, and nothing between them
// that has changed.
func changedRows(old, now []byte) (changed []row, ok bool) {
	rowsBefore, restBefore := splitRows(old)
	rows, rest := splitRows(now)
	if len(rows) == 0 || !bytes.Equal(restBefore, rest) || !slices.EqualFunc(rowsBefore, rows, func(a, b row) bool { return a.id == b.id }) {
		return nil, false
	}

	for i, r := range rows {
		if !bytes.Equal(r.content, rowsBefore[i].content) {
			changed = append(changed, r)
		}
	}

	return changed, true
}

// The beginning and the end of a row. Texts cannot contain them, because templates escape angle brackets. Tables are not
// nested.
var (
	rowBegin = []byte(`<tr id="`)
	rowEnd   = []byte(`</tr>`)
)

// splitRows returns the rows of a part, and everything else.
func splitRows(content []byte) (rows []row, rest []byte) {
	for {
		begin := bytes.Index(content, rowBegin)
		if begin < 0 {
			break
		}
		end := bytes.Index(content[begin:], rowEnd)
		if end < 0 {
			break
		}
		end += begin + len(rowEnd)

		id, _, _ := bytes.Cut(content[begin+len(rowBegin):end], []byte(`"`))
		rows = append(rows, row{string(id), content[begin:end]})
		rest = append(append(rest, content[:begin]...), 0)
		content = content[end:]
	}

	return rows, append(rest, content...)
}
