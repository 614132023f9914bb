package peerprobe

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// The end of a connection that carries no information must not cause another dial at once: that of a failed probe,
// or of a connection that the peer or a proxy closes after each answer.
func TestPeers_DoNotDialInALoop(t *testing.T) {
	t.Parallel() // mostly waits
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		https bool
	}{
		"closed after each answer": {serve: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }},
		"closed without an answer": {serve: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"another protocol":         {serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "?") }, https: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newProbeFixture(t)
			inner := s.server.Config.Handler
			s.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner.ServeHTTP(w, r)
				c.serve(w, r)
			})
			if c.https {
				_, port, err := net.SplitHostPort(s.server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				s.record.Address = "https://127.0.0.1:" + port
			}
			began := time.Now()
			s.watched()
			s.wait("two dials", func() bool { return s.dials.Load() >= 2 })
			time.Sleep(700 * time.Millisecond)
			// Six dials in less than a second. There may be more if the machine stopped for a while.
			n, took := s.dials.Load(), time.Since(began)
			if most := 6 + 8*int64(took/time.Second); n > most {
				t.Errorf("dialled %d times in %s", n, took)
			}
		})
	}
}
