package chaos_test

import (
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// target is the server that HTTP tasks call. Independently of what the scheduler believes, it writes to the probe log
// when a request has arrived and when its handling has ended, in the lines of a process. A handler ends like a
// process: by itself, or because the connection is gone; then it writes no END.
type target struct {
	address string
	log     *os.File

	mu     sync.Mutex
	server *http.Server // nil: the target is down
}

// openTarget starts the server. Its address stays the same while it is down.
func openTarget(address, probes string) (*target, error) {
	log, err := os.OpenFile(probes, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}

	t := &target{address: address, log: log}

	return t, t.start()
}

// start accepts connections, again if it was stopped.
func (t *target) start() error {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.server != nil {
		return nil
	}

	l, err := net.Listen("tcp", t.address)
	if err != nil {
		return err
	}

	// Some clients find the connection that they use again closed, because it was idle for about this long.
	t.server = &http.Server{Handler: http.HandlerFunc(t.serve), IdleTimeout: time.Second}
	go func(s *http.Server) { _ = s.Serve(l) }(t.server)

	return nil
}

// stop closes the port and all connections.
func (t *target) stop() error {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.server == nil {
		return nil
	}

	err := t.server.Close()
	t.server = nil

	return err
}

func (t *target) close() {
	_ = t.stop()
	_ = t.log.Close()
}

// serve handles a request. Its path is the kind of behaviour: what the target does and for how many milliseconds.
func (t *target) serve(w http.ResponseWriter, r *http.Request) {
	// A request whose body does not arrive completely is not handled, as in a server that reads before it acts.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}

	t.write("START", r)
	behaviour, ms, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	n, _ := strconv.Atoi(ms)

	select {
	case <-time.After(time.Duration(n) * time.Millisecond):
	case <-r.Context().Done():
		return
	}

	t.write("END", r)

	switch {
	case behaviour == "closes":
		panic(http.ErrAbortHandler) // the connection ends without a response
	case behaviour == "fails" && attemptOf(r) == "1", behaviour == "flaky" && crc32.ChecksumIEEE([]byte(r.Header.Get(headerRun)))%2 == 0:
		w.WriteHeader(http.StatusInternalServerError)
	case behaviour == "busy" && attemptOf(r) == "1":
		t.write("ASK", r)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	case behaviour == "once":
		w.Header().Set("Connection", "close")
	}
}

// write appends a line to the probe log.
func (t *target) write(what string, r *http.Request) {
	var now syscall.Sysinfo_t
	_ = syscall.Sysinfo(&now)
	_, _ = fmt.Fprintf(t.log, "%s %s %s %s %d.00 http\n", what, r.Header.Get(headerRun), attemptOf(r), r.Header.Get(headerToken), now.Uptime)
}

const (
	headerRun     = "Idempotency-Key"
	headerToken   = "Carillon-Fencing-Token"
	headerAttempt = "X-Attempt" // from the tasks
)

func attemptOf(r *http.Request) string { return r.Header.Get(headerAttempt) }

// The target is down for the duration of the fault: connections are refused and those that exist are closed.
func stopTarget(w *world, _ *injection) (func() error, error) {
	return w.target.start, w.target.stop()
}

var targetFaults = []*fault{
	{name: "target-down", group: "target", quick: true, what: "the server that HTTP tasks call refuses connections, and closes those that exist", hold: lasting(3, 12), inject: stopTarget},
}
