package ui

import (
	"crypto/tls"
	"net/http"
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

// restart tells the stream that the rights of its viewer have changed.
func (v *viewer) restart() {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.anew = true
	v.signal()
}

// signOut tells the stream that the API has refused its credential.
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
