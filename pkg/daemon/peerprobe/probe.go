package peerprobe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

// probe reaches one peer over a connection that it keeps.
type probe struct {
	dial    certs.Dialer
	peer    task.Node
	http    http.Transport
	closed  chan struct{} // one slot: a connection was closed
	reached string        // where the peer has answered as itself; "" if it never has

	mu     sync.Mutex
	remote string // of the connection made last
}

func newProbe(dial certs.Dialer, tls func() *tls.Config, n task.Node) *probe {
	g := &probe{dial: dial, peer: n, closed: make(chan struct{}, 1)}
	g.http = http.Transport{
		DialContext: g.dialAndWatch, DialTLSContext: certs.DialTLS(g.dialAndWatch, tls),
		MaxIdleConnsPerHost: 1, DisableCompression: true, ResponseHeaderTimeout: greetLimit,
	}
	return g
}

// dialAndWatch dials, and has the end of the connection noticed: the transport closes
// an idle one as soon as the peer does.
func (g *probe) dialAndWatch(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := g.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	g.remote = address
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		g.remote = a.String() // one of several, if it is a name: the others prove nothing
	}

	return &closeNotifyConn{Conn: c, closed: g.closed}, nil
}

// closeNotifyConn is a connection whose end is noticed.
type closeNotifyConn struct {
	net.Conn
	closed chan<- struct{}
}

// Close closes the connection.
func (c *closeNotifyConn) Close() error {
	select {
	case c.closed <- struct{}{}:
	default:
	}
	return c.Conn.Close()
}

// identifyPeer asks the peer who it is, and notes where it was reached.
func (g *probe) identifyPeer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetLimit)
	defer cancel()

	u, err := url.Parse(g.peer.Address)
	if err != nil {
		return err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("healthz").String(), http.NoBody)
	if err != nil {
		return err
	}

	res, err := g.http.RoundTrip(req)
	if err != nil {
		return err
	}

	defer res.Body.Close()

	var b [64]byte

	for err == nil { // to its end, so that the connection is kept
		_, err = res.Body.Read(b[:])
	}

	if who := res.Header.Get(api.InstanceHeader); who != g.peer.Instance {
		g.reached = "" // it has to be reached anew
		return fmt.Errorf("%s is instance %s of somebody else", g.peer.Address, task.Quote(who))
	}

	g.mu.Lock()
	g.reached = g.remote
	g.mu.Unlock()

	return nil
}

// connectionRefused reports whether nothing listens where the peer was reached. It only
// dials, whatever is spoken there: TLS has no part in what this proves.
func (g *probe) connectionRefused(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, greetLimit)
	defer cancel()

	c, err := g.dial(ctx, "tcp", g.reached)
	if err == nil {
		c.Close()
	}

	return errors.Is(err, syscall.ECONNREFUSED)
}

func (g *probe) close() { g.http.CloseIdleConnections() }

// isOwnAddress reports whether an address means the host that uses it, whichever that is.
func isOwnAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (isLoopback(host) || ip != nil && ip.IsUnspecified())
}

// ThisHost tells this machine's boot, and this process's network, from all
// others: containers share the one and not the other.
func ThisHost() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	network, err2 := os.Readlink("/proc/self/ns/net")
	if errors.Join(err, err2) != nil {
		return task.NewUID() // like no other: nobody takes its loopback for theirs
	}

	return strings.TrimSpace(string(boot)) + "/" + strings.Trim(strings.TrimPrefix(network, "net:"), "[]")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
