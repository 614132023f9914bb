package kvtest

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// Proxy forwards connections between clients and a server, and can break or delay them.
type Proxy struct {
	t    testing.TB
	l    net.Listener
	path string
	wg   sync.WaitGroup

	mu     sync.Mutex
	target string                // the socket of the server
	cut    bool                  // connections are refused
	frozen chan struct{}         // closed by Mend; nil if not frozen
	conns  map[net.Conn]struct{} // the open connections, both sides
	closed bool
}

// Proxy starts a proxy to the server. It forwards everything until Cut or Freeze is called.
func (s *Server) Proxy() *Proxy {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		s.t.Fatal(err)
	}

	s.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &Proxy{
		t: s.t, target: socketPath(s), path: filepath.Join(dir, "sock"),
		conns: map[net.Conn]struct{}{},
	}
	if p.l, err = net.Listen("unix", p.path); err != nil {
		s.t.Fatal(err)
	}

	s.t.Cleanup(p.closeAll)
	p.wg.Go(p.acceptConns)

	return p
}

// Client returns a client that connects through the proxy.
func (p *Proxy) Client(cfg kv.Config) *kv.Client {
	p.t.Helper()
	cfg.Endpoints = []string{"unix://" + p.path}

	c, err := kv.Dial(p.t.Context(), cfg)
	if err != nil {
		p.t.Fatalf("dial through the proxy: %v", err)
	}

	p.t.Cleanup(func() { _ = c.Close() })

	return c
}

// socketPath returns the path of the server's socket.
func socketPath(s *Server) string { return strings.TrimPrefix(s.Endpoint(), "unix://") }

// Redirect closes all connections, and forwards new ones to another server.
func (p *Proxy) Redirect(to *Server) {
	p.mu.Lock()
	p.target = socketPath(to)
	p.mu.Unlock()

	p.Cut()
	p.Mend()
}

// Cut closes all connections, and refuses new ones until Mend is called.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

// Freeze delays all data in both directions until Mend is called.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// Mend ends Cut and Freeze. Data that Freeze delayed are delivered.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.cut = false
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// closeAll ends the proxy: it releases frozen data, closes all connections and waits for the goroutines.
func (p *Proxy) closeAll() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()

	_ = p.l.Close()
	p.Mend()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) acceptConns() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serveConn(c) })
	}
}

// serveConn connects a client with the server until one of them closes its connection.
func (p *Proxy) serveConn(client net.Conn) {
	defer client.Close()

	p.mu.Lock()
	target := p.target
	p.mu.Unlock()

	server, err := net.Dial("unix", target)
	if err != nil {
		return
	}

	defer server.Close()

	if !p.addConns(client, server) {
		return
	}

	var pipes sync.WaitGroup
	pipe := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, thawed{src, p})
		_ = dst.Close()
		_ = src.Close()
	}

	pipes.Go(func() { pipe(server, client) })
	pipes.Go(func() { pipe(client, server) })
	pipes.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.conns, client)
	delete(p.conns, server)
}

// addConns registers connections so that Cut can close them. It returns false while the proxy is cut or closed.
func (p *Proxy) addConns(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.cut || p.closed {
		return false
	}

	for _, c := range conns {
		p.conns[c] = struct{}{}
	}

	return true
}

// thawed is a connection whose reads wait while the proxy is frozen.
type thawed struct {
	net.Conn
	p *Proxy
}

// Read delays what it has read until the proxy is not frozen.
func (t thawed) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.p.mu.Lock()
	frozen := t.p.frozen
	t.p.mu.Unlock()

	if frozen != nil {
		<-frozen
	}

	return n, err
}

// Deaf is a Watcher that drops events silently. etcd should never do that, and only a later list can detect it (see
// kv.RepairsMetric).
type Deaf struct {
	clientv3.Watcher
	mu      sync.Mutex
	drop    func(key string) bool // selects the keys whose events are dropped; nil: none
	dropped atomic.Int64
}

// Deafen replaces the Watcher of c, so that the events of watches which are opened from now on can be dropped.
func Deafen(c *kv.Client) *Deaf {
	d := &Deaf{Watcher: c.Watcher}
	c.Watcher = d
	return d
}

// Drop drops the events of the selected keys from now on, on all watches. With nil, it drops none.
func (d *Deaf) Drop(which func(key string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop = which
}

// Dropped returns how many events were dropped.
func (d *Deaf) Dropped() int64 { return d.dropped.Load() }

// Watch implements clientv3.Watcher.
func (d *Deaf) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := d.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for r := range in {
			if some := len(r.Events); some > 0 {
				if r.Events = d.filterEvents(r.Events); len(r.Events) == 0 {
					continue // an empty response would look like a progress notification
				}
			}

			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out
}

// filterEvents returns the events that are not dropped, and counts the others.
func (d *Deaf) filterEvents(events []*clientv3.Event) []*clientv3.Event {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.drop == nil {
		return events
	}

	var rest []*clientv3.Event
	for _, e := range events {
		if d.drop(string(e.Kv.Key)) {
			d.dropped.Add(1)
		} else {
			rest = append(rest, e)
		}
	}

	return rest
}
