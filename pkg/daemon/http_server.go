package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// listenRetry is how long after a failure to listen it is tried again: a port may be
	// free only for a moment, until the program that holds it starts again.
	listenRetry = time.Second
	// listenLogInterval is how often such failures are logged.
	listenLogInterval = time.Minute
)

// listenerOpener opens the listener of an address. The listener limits the connections
// and speaks TLS, if its address does.
type listenerOpener interface {
	openListener() (net.Listener, error)
}

// endpoint is an address at which the API listens, or tries to.
type endpoint struct {
	address  string // for logs
	listener listenerOpener
	log      *zap.Logger
	announce wake.Signal // sent when listening has begun

	mu     sync.Mutex
	addr   net.Addr // where it listens; nil while it does not
	err    error    // why it does not
	logged time.Time
}

// listenOnce opens the listener once, and notes the result.
func (e *endpoint) listenOnce() (net.Listener, error) {
	l, err := e.listener.openListener()

	e.mu.Lock()
	defer e.mu.Unlock()

	if err != nil {
		e.err = err
		if time.Since(e.logged) >= listenLogInterval {
			e.logged = time.Now()
			e.log.Error("the API cannot listen; retrying", zap.String("address", e.address), zap.Error(err))
		}

		return nil, err
	}

	if e.err != nil {
		e.log.Info("the API is listening", zap.String("address", e.address))
	}

	e.addr, e.err = l.Addr(), nil
	e.announce.Send()

	return l, nil
}

// listeningAddr is the address where the endpoint listens; nil, and why, if it does not.
func (e *endpoint) listeningAddr() (net.Addr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addr, e.err
}

// startupReporter is told what the node waits for before it is wired.
type startupReporter interface {
	SetStartupStatus(why string)
}

// httpServer answers on the API's listeners from the moment that they are open. Before
// the node is wired, it only says that the process lives, and what the node waits for. If
// it cannot listen, because the port is taken, it tries again; the rest of the node goes
// on meanwhile.
type httpServer struct {
	http     *http.Server
	handler  atomic.Pointer[http.Handler]
	startup  atomic.Pointer[string] // what the node waits for, as long as there is no handler
	reporter startupReporter
	closing  chan struct{} // closed when no request is accepted any more: long requests end then

	stopOnce sync.Once
	stopped  chan struct{} // closed to end attempts to listen
	serving  sync.WaitGroup
	failed   chan error // has one slot: why requests on an open listener are not served any more
}

// startHTTP listens at the endpoints and begins to answer.
func startHTTP(server *http.Server, reporter startupReporter, endpoints ...*endpoint) *httpServer {
	s := &httpServer{
		http: server, reporter: reporter,
		closing: make(chan struct{}), stopped: make(chan struct{}), failed: make(chan error, 1),
	}
	server.Handler = s
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(s.closing) }))

	for _, e := range endpoints {
		l, err := e.listenOnce() // before anybody asks whether it listens
		s.serving.Go(func() { s.keepServing(e, l, err) })
	}

	return s
}

// stopListening ends attempts to listen.
func (s *httpServer) stopListening() {
	s.stopOnce.Do(func() { close(s.stopped) })
}

// keepServing serves an endpoint until the server is closed.
func (s *httpServer) keepServing(e *endpoint, l net.Listener, err error) {
	for err != nil {
		select {
		case <-s.stopped:
			return
		case <-time.After(listenRetry):
		}

		l, err = e.listenOnce()
	}

	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		select {
		case s.failed <- fmt.Errorf("serve the API: %w", err):
		default:
		}
	}
}

// ServeHTTP answers as the API, once it is there.
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := s.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}

	if r.URL.Path == "/healthz" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
		return
	}

	why := "the node is starting"
	if v := s.startup.Load(); v != nil {
		why = *v
	}

	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the caller is gone
		"type": "about:blank", "title": http.StatusText(http.StatusServiceUnavailable), "status": http.StatusServiceUnavailable,
		"code": "not_ready", "detail": "not ready: " + why,
	})
}

// waitForMembers is told which members of etcd are missing; nil: none any more.
func (s *httpServer) waitForMembers(missing []string) {
	why := "the node is starting"

	switch {
	case len(missing) > 0:
		why = "etcd is waiting for its other members: " + strings.Join(missing, ", ")
	case missing != nil:
		why = "etcd waits until its members agree"
	}

	s.setStartupStatus(why)
}

// setStartupStatus says what the node waits for, as long as it is not wired.
func (s *httpServer) setStartupStatus(why string) {
	s.startup.Store(&why)
	s.reporter.SetStartupStatus(why)
}

// setHandler has h answer from now on.
func (s *httpServer) setHandler(h http.Handler) { s.handler.Store(&h) }

// run serves until ctx ends, or a listener fails. It stops listening last.
func (s *httpServer) run(ctx context.Context) error {
	select {
	case err := <-s.failed:
		return err
	case <-ctx.Done():
	}

	s.stopListening()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()

	if s.http.Shutdown(ctx) != nil { // requests under way may finish until then
		s.http.Close()
	}

	s.serving.Wait()

	return nil
}

// close ends it at once.
func (s *httpServer) close() {
	s.stopListening()
	s.http.Close()
	s.serving.Wait()
}
