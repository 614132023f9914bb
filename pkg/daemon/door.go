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
)

const (
	// listenRetry is how long after a failure to listen it is tried again: a port may be
	// free only for a moment, until the program that holds it starts again.
	listenRetry = time.Second
	// listenLogInterval is how often such failures are logged.
	listenLogInterval = time.Minute
)

// endpoint is an address at which the API listens, or tries to.
type endpoint struct {
	address string // for logs
	open    func() (net.Listener, error)
	wrap    func(net.Listener) net.Listener // adds limits, and TLS
	log     *zap.Logger
	changed chan<- struct{} // has one slot; told when listening has begun

	mu     sync.Mutex
	addr   net.Addr // where it listens; nil while it does not
	err    error    // why it does not
	logged time.Time
}

// listen opens the listener once, and notes the result.
func (e *endpoint) listen() (net.Listener, error) {
	l, err := e.open()

	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.err = err
		if time.Since(e.logged) >= listenLogInterval {
			e.logged = time.Now()
			e.log.Error("the API cannot listen; trying again", zap.String("address", e.address), zap.Error(err))
		}
		return nil, err
	}

	if e.err != nil {
		e.log.Info("the API listens after all", zap.String("address", e.address))
	}
	e.addr, e.err = l.Addr(), nil
	select {
	case e.changed <- struct{}{}:
	default:
	}
	return l, nil
}

// listening is the address where the endpoint listens; nil, and why, if it does not.
func (e *endpoint) listening() (net.Addr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addr, e.err
}

// door answers on the API's listeners from the moment that they are open: before the
// node is wired, only that it lives and what it waits for. If it cannot listen, because
// the port is taken, it tries again; the rest of the node goes on meanwhile.
type door struct {
	http    *http.Server
	handler atomic.Pointer[http.Handler]
	waits   atomic.Pointer[string]
	told    func(waits string) // the same
	closing chan struct{}      // closed when nobody is let in any more: who stays long is to go

	stop    func() // ends attempts to listen
	stopped chan struct{}
	serving sync.WaitGroup
	failed  chan error // has one slot: why requests on an open listener are not served any more
}

func openDoor(server *http.Server, told func(waits string), endpoints ...*endpoint) *door {
	d := &door{http: server, told: told, closing: make(chan struct{}), stopped: make(chan struct{}), failed: make(chan error, 1)}
	d.stop = sync.OnceFunc(func() { close(d.stopped) })
	server.Handler = d
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(d.closing) }))

	for _, e := range endpoints {
		l, err := e.listen() // before anybody asks whether it listens
		d.serving.Go(func() { d.keepServing(e, l, err) })
	}
	return d
}

// keepServing serves an endpoint until the server is closed.
func (d *door) keepServing(e *endpoint, l net.Listener, err error) {
	for err != nil {
		select {
		case <-d.stopped:
			return
		case <-time.After(listenRetry):
		}
		l, err = e.listen()
	}

	if err := d.http.Serve(e.wrap(l)); !errors.Is(err, http.ErrServerClosed) {
		select {
		case d.failed <- fmt.Errorf("serve the API: %w", err):
		default:
		}
	}
}

// ServeHTTP answers as the API, once it is there.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := d.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	if r.URL.Path == "/healthz" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
		return
	}
	why := "the node is starting"
	if v := d.waits.Load(); v != nil {
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

// waitsFor is told which members of etcd are missed; nil: none any more.
func (d *door) waitsFor(missing []string) {
	why := "the node is starting"
	switch {
	case len(missing) > 0:
		why = "etcd waits for its other members: " + strings.Join(missing, ", ")
	case missing != nil:
		why = "etcd waits until its members agree"
	}
	d.says(why)
}

// says what the node waits for, as long as it is not wired.
func (d *door) says(why string) {
	d.waits.Store(&why)
	d.told(why)
}

// lets answers by h from now on.
func (d *door) lets(h http.Handler) { d.handler.Store(&h) }

// serve lasts until ctx ends, or nobody is answered any more: it stops listening last.
func (d *door) serve(ctx context.Context) (err error) {
	select {
	case err = <-d.failed:
		return err
	case <-ctx.Done():
	}

	d.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if d.http.Shutdown(ctx) != nil { // who is in may end what it does
		d.http.Close()
	}
	d.serving.Wait()
	return nil
}

// close ends it at once.
func (d *door) close() {
	d.stop()
	d.http.Close()
	d.serving.Wait()
}
