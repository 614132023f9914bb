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
)

// door answers on the API's listener from the moment that it is open: before the
// node is wired, only that it lives and what it waits for.
type door struct {
	http    *http.Server
	handler atomic.Pointer[http.Handler]
	waits   atomic.Pointer[string]
	told    func(waits string) // the same
	closing chan struct{}      // closed when nobody is let in any more: who stays long is to go
	done    chan struct{}
	err     error // once done is closed
}

func openDoor(l net.Listener, server *http.Server, told func(waits string)) *door {
	d := &door{http: server, told: told, closing: make(chan struct{}), done: make(chan struct{})}
	server.Handler = d
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(d.closing) }))
	go func() {
		defer close(d.done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.err = fmt.Errorf("serve the API: %w", err)
		}
	}()
	return d
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
func (d *door) serve(ctx context.Context) error {
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if d.http.Shutdown(ctx) != nil { // who is in may end what it does
		d.http.Close()
	}
	<-d.done
	return d.err
}

// close ends it at once.
func (d *door) close() {
	d.http.Close()
	<-d.done
}
