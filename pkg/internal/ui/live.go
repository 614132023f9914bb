package ui

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/access"
)

const (
	// beatEvery is how often a stream says at least how old its page is. The page notices by its silence that the node is
	// gone, and proxies do not close it.
	beatEvery = 5 * time.Second
	// sessionBeats is after how many beats a stream checks its session.
	sessionBeats = 3
	// writeTimeout is how long a browser may take to read a message.
	writeTimeout = 30 * time.Second
	// retryAfter is how long a browser waits before it connects again, and busyRetryAfter for pages beyond maxViewers.
	retryAfter     = time.Second
	busyRetryAfter = 5 * time.Second
)

// The events of a stream, beside messages without a name, which htmx swaps into the page.
const (
	eventAge   = "age"   // data: how old the page is, in milliseconds; it also shows that the stream is alive
	eventFault = "fault" // data: a faultMessage; the page is no longer current
	eventBack  = "back"  // the page is current again
	eventBusy  = "busy"  // the node has too many streams: this one ends, and the page asks again
	eventLogin = "login" // the session has ended: the stream ends
)

// faultMessage says why a page is no longer current.
type faultMessage struct {
	Message string `json:"message"`
	Away    bool   `json:"away"` // it will be current again; otherwise what it shows is gone
}

// serveLive serves the stream of a page. The answer is always a stream, because htmx would show the answer of a failed
// request inside the page, and follow redirects for ever. Only who does not come from a page gets a status.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	who, ok := s.sessionOf(r) // not useSession: a stream does not show that somebody is there
	fromPage := r.Header.Get("HX-Request") == "true"
	if !ok && !fromPage {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte("sign in at /ui/login\n"))
		return
	}

	at := localTarget(r.URL.Query().Get("at"))
	screen, page := s.screenAt(r.Context(), at)

	out := &stream{w: w, control: http.NewResponseController(w)}
	out.begin()
	if !ok {
		_ = out.event(eventLogin, "")
		return
	}
	if screen == nil { // a page of a node of another version
		_ = out.write(encodeMessage(nil, time.Minute))
		_ = out.fault(&Problem{Status: http.StatusNotFound, Message: "this node has no such page"})
		return
	}

	v := &viewer{
		at: canonical(at), screen: screen, page: page, who: who, remote: r.RemoteAddr, tls: r.TLS,
		have: parseHave(r.URL.Query().Get("have")), wake: make(chan struct{}, 1),
	}
	page.Host = r.Host

	// The API checks what this node's copy of the access records does not: the address, and the clock.
	if !s.checkSession(r, v) {
		_ = out.event(eventLogin, "")
		return
	}

	polls := !s.hub.admit(who.caller)
	if !polls {
		defer s.hub.release(who.caller)
	}

	s.serveViewer(r, out, v, polls)
}

// canonical returns an address with its parameters in order, so that equal pages have equal addresses.
func canonical(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return at
	}

	u.RawQuery = u.Query().Encode()

	return u.RequestURI()
}

// checkSession reports whether the API still accepts the credential of a viewer. If the API cannot answer, it does.
func (s *Server) checkSession(r *http.Request, v *viewer) bool {
	// A call needs a deep stack. It has a goroutine of its own, because the goroutine of a stream lives long, and its stack
	// would stay large until garbage collections shrink it.
	accepted := make(chan bool, 1)
	callgroup.Start(func() {
		defer close(accepted)

		api, err := s.clientFor(r, v.who.secret)
		if err != nil {
			return
		}
		_, err = api.Version(r.Context())
		accepted <- !isUnauthorized(err)
	}, func(p *callgroup.Panic) { _ = s.panicked(v.at, p) }) // it is logged, and the stream ends

	return <-accepted
}

// serveViewer sends what changes until the browser goes, the session or the node ends. polls ends the stream after the
// first message.
func (s *Server) serveViewer(r *http.Request, out *stream, v *viewer, polls bool) {
	if v.screen.Feed != nil && !polls {
		defer s.startFeed(r, v)()
	}

	beat := time.NewTicker(beatEvery)
	defer beat.Stop()

	for {
		rights := s.rightsOf(s.Access.View(), v.who.caller)
		if rights == (access.Digest{}) {
			_ = out.event(eventLogin, "")
			return
		}

		watch := s.hub.attach(v, rights)
		anew := s.follow(r, out, v, beat.C, polls)
		s.hub.detach(watch, v)
		if !anew {
			return
		}

		v.take() // what waits was rendered for the former rights
		v.have = nil
	}
}

// follow sends what changes while the rights of the viewer do not. It reports whether the stream starts over with other
// rights.
func (s *Server) follow(r *http.Request, out *stream, v *viewer, beat <-chan time.Time, polls bool) (anew bool) {
	beats := 0
	for {
		select {
		case <-r.Context().Done():
			return false
		case <-s.Ends:
			return false
		case <-beat:
			if beats++; beats%sessionBeats == 0 {
				// The browser may have a newer cookie, of another page. It connects again, and shows it.
				if s.isIdle(v.who) {
					return false
				}
				if !s.checkSession(r, v) {
					_ = out.event(eventLogin, "")
					return false
				}
			}
			if out.age(s.Now(), v.seenAt()) != nil {
				return false
			}
		case e := <-v.feed:
			if out.feedEvent(e) != nil {
				return false
			}
		case <-v.wake:
			p := v.take()
			if p.anew {
				return true
			}
			if p.signedOut {
				_ = out.event(eventLogin, "")
				return false
			}

			sent, err := s.send(out, v, p, polls)
			if err != nil {
				return false
			}
			if polls && sent {
				_ = out.event(eventBusy, "")
				return false
			}
		}
	}
}

// send sends what waited for a viewer. It reports whether that was a state or a fault.
func (s *Server) send(out *stream, v *viewer, p pending, polls bool) (sent bool, err error) {
	message := p.message
	if p.whole != nil {
		message = wholeFor(v, p.whole, polls)
		v.have = nil
	}

	if message != nil {
		if err := out.write(message); err != nil {
			return false, err
		}
		sent = true
	}

	if p.faultChanged {
		if p.fault == nil {
			err = out.event(eventBack, "")
		} else {
			err = out.fault(p.fault)
		}
		if err != nil {
			return false, err
		}
		sent = true
	}

	return sent, out.age(s.Now(), p.seen)
}

// wholeFor returns the whole state for a viewer as an event, without the parts that its page contains already.
func wholeFor(v *viewer, state *pageState, polls bool) []byte {
	switch {
	case polls:
		return encodeMessage(encodeWhole(state, v.have), busyRetryAfter)
	case len(v.have) > 0:
		return encodeMessage(encodeWhole(state, v.have), retryAfter)
	}

	return state.message()
}

// seenAt returns the time of the state that the viewer sees.
func (v *viewer) seenAt() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen
}

// parseHave reads which parts a page contains, as View.Stream writes them.
func parseHave(text string) map[string]string {
	have := map[string]string{}
	for _, word := range strings.Fields(text) {
		if name, hash, ok := strings.Cut(word, "."); ok && len(have) < 32 {
			have[name] = hash
		}
	}
	return have
}

// stream writes server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// begin sends the header. Streams are not compressed: each compressor would hold most of a megabyte.
func (s *stream) begin() {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	_ = s.control.SetReadDeadline(time.Time{}) // errors are ignored: not every http.ResponseWriter supports deadlines
	s.extend()
	s.w.WriteHeader(http.StatusOK)
	_ = s.control.Flush()
}

func (s *stream) extend() {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // errors are ignored: not every http.ResponseWriter supports deadlines
}

func (s *stream) write(b []byte) error {
	s.extend()
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return s.control.Flush()
}

// event sends an event that the script of the page handles.
func (s *stream) event(name, data string) error {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\n")
	appendData(&b, []byte(data))
	b.WriteString("\n")

	return s.write(b.Bytes())
}

// age says how old the page is. Its own clock decides, because that of the browser may differ.
func (s *stream) age(now, seen time.Time) error {
	if seen.IsZero() {
		return s.event(eventAge, "")
	}
	return s.event(eventAge, strconv.FormatInt(max(now.Sub(seen).Milliseconds(), 0), 10))
}

func (s *stream) fault(p *Problem) error {
	b, err := json.Marshal(faultMessage{Message: p.Message, Away: p.away()})
	if err != nil {
		return err
	}
	return s.event(eventFault, string(b))
}

// appendData writes the lines of a field data. Texts of users may contain carriage returns, which end a line of a stream,
// too: they are written as character references.
func appendData(b *bytes.Buffer, text []byte) {
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		b.WriteString("data: ")
		b.Write(bytes.ReplaceAll(line, []byte("\r"), []byte("&#13;")))
		b.WriteString("\n")
	}
}
