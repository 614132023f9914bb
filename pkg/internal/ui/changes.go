package ui

import (
	"bytes"
	"slices"
	"strconv"
	"time"
)

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
