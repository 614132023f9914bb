package sim

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// network connects the nodes' APIs and their clients, in memory.
type network struct {
	over      <-chan struct{} // closed when the simulation ends
	mu        sync.Mutex
	listeners map[string]*listener // by address
}

func newNetwork(life context.Context) *network {
	return &network{over: life.Done(), listeners: map[string]*listener{}}
}

// listener is a listener. A shut one refuses connections. A silent one does not answer them.
type listener struct {
	net    *network
	at     address
	calls  chan net.Conn         // connections that wait for Accept
	shut   chan struct{}         // closed by Close
	silent bool                  // guarded by network.mu, as is conns
	conns  map[net.Conn]struct{} // the server's ends of open connections
}

// address is a network address of the simulation.
type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// listenAt opens a listener at an address. It fails if the address is in use.
func (n *network) listenAt(at string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.listeners[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: address(at), Err: syscall.EADDRINUSE}
	}

	d := &listener{net: n, at: address(at), calls: make(chan net.Conn), shut: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	n.listeners[at] = d

	return d, nil
}

// Accept returns the next connection, or an error after Close.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.calls:
		return c, nil
	case <-l.shut:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.at, Err: net.ErrClosed}
	}
}

// Close frees the address. Connections stay open.
func (l *listener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()

	if l.net.listeners[string(l.at)] == l {
		delete(l.net.listeners, string(l.at))
		close(l.shut)
	}

	return nil
}

func (l *listener) Addr() net.Addr { return l.at }

// closeAddress closes a listener and its connections, as the death of its process does.
func (n *network) closeAddress(at string) {
	n.mu.Lock()
	d := n.listeners[at]
	var conns []net.Conn
	if d != nil {
		for c := range d.conns {
			conns = append(conns, c)
		}
	}
	n.mu.Unlock()

	if d == nil {
		return
	}

	d.Close()

	for _, c := range conns {
		c.Close()
	}
}

// setSilent makes an address ignore new connections, or accept them again.
func (n *network) setSilent(at string, yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.listeners[at]; d != nil {
		d.silent = yes
	}
}

// dialLimit is how long a dial waits if nobody answers. The HTTP client sets no limit of its own.
const dialLimit = 5 * time.Second

// dialAddress connects to an address.
func (n *network) dialAddress(ctx context.Context, _, at string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()

	n.mu.Lock()
	d := n.listeners[at]
	silent := d != nil && d.silent
	n.mu.Unlock()

	failed := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: address(at), Err: err}
	}

	if d == nil {
		return failed(syscall.ECONNREFUSED)
	}

	if silent {
		select {
		case <-ctx.Done():
		case <-n.over:
		}
		return failed(syscall.ETIMEDOUT)
	}

	// The connection exists when the server accepts it.
	here, there := net.Pipe()
	select {
	case d.calls <- there:
		n.mu.Lock()
		d.conns[there] = struct{}{}
		n.mu.Unlock()

		return &conn{Conn: here, gone: func() {
			n.mu.Lock()
			delete(d.conns, there)
			n.mu.Unlock()
		}}, nil

	case <-d.shut:
		return failed(syscall.ECONNREFUSED)
	case <-n.over: // an HTTP client goes on to dial when its request has ended
		return failed(syscall.ECONNREFUSED)
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// conn is the client's end of a connection.
type conn struct {
	net.Conn
	gone func() // called when the client closes the connection
}

func (c *conn) Close() error {
	c.gone()
	return c.Conn.Close()
}
