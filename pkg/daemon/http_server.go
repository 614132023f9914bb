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
	// listenRetry is the pause after a failure to listen. It is short, because a port may be
	// free only for a moment, while the program that holds it restarts.
	listenRetry = time.Second
	// listenLogInterval is the minimum time between two log lines about such failures.
	listenLogInterval = time.Minute
)

// listenerOpener opens the listener of one address. The listener limits the number of connections
// and uses TLS if that is configured.
type listenerOpener interface {
	openListener() (net.Listener, error)
}

// endpoint is an address at which the node listens or tries to listen.
type endpoint struct {
	address  string // for logs
	serves   string // what it serves, for logs: the API or metrics
	listener listenerOpener
	log      *zap.Logger
	announce wake.Signal // sent when the endpoint begins to listen

	mu     sync.Mutex
	addr   net.Addr  // the address at which it listens; nil: it does not listen
	err    error     // why it does not listen
	logged time.Time // when a failure was last logged
}

// listenOnce tries once to open the listener, and stores the result.
func (e *endpoint) listenOnce() (net.Listener, error) {
	l, err := e.listener.openListener()

	e.mu.Lock()
	defer e.mu.Unlock()

	if err != nil {
		e.err = err
		if time.Since(e.logged) >= listenLogInterval {
			e.logged = time.Now()
			e.log.Error("cannot listen; retrying", zap.String("serves", e.serves), zap.String("address", e.address), zap.Error(err))
		}

		return nil, err
	}

	if e.err != nil {
		e.log.Info("listening again", zap.String("serves", e.serves), zap.String("address", e.address))
	}

	e.addr, e.err = l.Addr(), nil
	e.announce.Send()

	return l, nil
}

// listeningAddr returns the address at which the endpoint listens, or nil and the reason if it does not.
func (e *endpoint) listeningAddr() (net.Addr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addr, e.err
}

// startupReporter receives what a starting node waits for.
type startupReporter interface {
	SetStartupStatus(why string)
}

// httpServer serves the listeners of the API, or those of the metrics, from the moment that they are open. Until
// its handler exists, it only answers that the process is alive and what the node waits for. If
// it cannot listen, for example because the port is taken, it tries again, and the rest of the node continues
// meanwhile.
type httpServer struct {
	http     *http.Server
	handler  atomic.Pointer[http.Handler] // the API or the metrics; nil: it does not exist yet
	startup  atomic.Pointer[string]       // what the node waits for while there is no handler
	reporter startupReporter
	closing  chan struct{} // closed when no request is accepted any more, so that streams end

	stopOnce sync.Once
	stopped  chan struct{} // closed to stop further tries to listen
	serving  sync.WaitGroup
	failed   chan error // one slot: the error of a listener that has failed
}

// startHTTP listens at the endpoints and begins to serve. It tries each endpoint once before it returns; endpoints that
// fail are retried in the background.
func startHTTP(server *http.Server, reporter startupReporter, endpoints ...*endpoint) *httpServer {
	s := &httpServer{
		http: server, reporter: reporter,
		closing: make(chan struct{}), stopped: make(chan struct{}), failed: make(chan error, 1),
	}
	server.Handler = s
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(s.closing) }))

	for _, e := range endpoints {
		l, err := e.listenOnce() // now, so that callers find the result
		s.serving.Go(func() { s.keepServing(e, l, err) })
	}

	return s
}

// stopListening stops further tries to listen.
func (s *httpServer) stopListening() {
	s.stopOnce.Do(func() { close(s.stopped) })
}

// keepServing listens at an endpoint until that succeeds, and then serves it until the server is closed. l and err are
// the result of the first try.
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

// ServeHTTP passes requests to the handler. While there is none, it answers /healthz with 200 and all other
// requests with 503 and the startup status.
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
	_ = json.NewEncoder(w).Encode(map[string]any{ // an error means that the client has gone
		"type": "about:blank", "title": http.StatusText(http.StatusServiceUnavailable), "status": http.StatusServiceUnavailable,
		"code": "not_ready", "detail": "not ready: " + why,
	})
}

// waitForMembers sets the startup status while the embedded etcd starts. missing lists the members that it waits for. An
// empty list means that they do not agree yet, and nil that the wait is over.
func (s *httpServer) waitForMembers(missing []string) {
	why := "the node is starting"

	switch {
	case len(missing) > 0:
		// Everybody can read the status over HTTP, before anybody can be authenticated. The names are in the log.
		status := fmt.Sprintf("etcd is waiting for its other members, %d of which are missing; see the node's log", len(missing))
		s.startup.Store(&status)
		s.reporter.SetStartupStatus("etcd is waiting for its other members: " + strings.Join(missing, ", "))

		return
	case missing != nil:
		why = "etcd waits until its members agree"
	}

	s.setStartupStatus(why)
}

// setStartupStatus sets what a starting node waits for, for clients and for the service manager.
func (s *httpServer) setStartupStatus(why string) {
	s.startup.Store(&why)
	s.reporter.SetStartupStatus(why)
}

// setHandler makes h answer all further requests.
func (s *httpServer) setHandler(h http.Handler) { s.handler.Store(&h) }

// run waits until ctx ends or a listener fails. When ctx ends, it lets requests finish for up to three seconds and then
// closes their connections.
func (s *httpServer) run(ctx context.Context) error {
	select {
	case err := <-s.failed:
		return err
	case <-ctx.Done():
	}

	s.stopListening()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()

	if s.http.Shutdown(ctx) != nil { // some requests did not finish in time
		s.http.Close()
	}

	s.serving.Wait()

	return nil
}

// close closes all listeners and connections at once.
func (s *httpServer) close() {
	s.stopListening()
	s.http.Close()
	s.serving.Wait()
}
