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
	"github.com/carillonhq/carillon/pkg/wake"
)

// probe holds a connection to one peer.
type probe struct {
	dial    certs.Dialer
	peer    task.Node
	http    http.Transport
	closed  wake.Signal // receives a value when a connection was closed; one slot
	reached string      // the address at which the peer has identified itself; "": none

	mu     sync.Mutex
	remote string // the address of the latest connection
}

// newProbe returns a probe that has no connection yet.
func newProbe(dial certs.Dialer, tls func() *tls.Config, n task.Node) *probe {
	g := &probe{dial: dial, peer: n, closed: wake.NewSignal()}
	g.http = http.Transport{
		DialContext: g.dialAndWatch, DialTLSContext: certs.DialTLS(g.dialAndWatch, tls),
		MaxIdleConnsPerHost: 1, DisableCompression: true, ResponseHeaderTimeout: probeTimeout,
	}
	return g
}

// dialAndWatch dials and reports the end of the connection through g.closed. The transport closes
// an idle connection as soon as the peer does.
func (g *probe) dialAndWatch(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := g.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	g.remote = address
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		g.remote = a.String() // a name may have several addresses, and only this one belongs to the peer
	}

	return &closeNotifyConn{Conn: c, closed: g.closed}, nil
}

// closeNotifyConn is a connection that reports when it is closed.
type closeNotifyConn struct {
	net.Conn
	closed wake.Signal
}

// Close reports and closes the connection.
func (c *closeNotifyConn) Close() error {
	c.closed.Send()
	return c.Conn.Close()
}

// identifyPeer sends a request to the peer and checks that the answer comes from the expected instance. If so, it
// stores the address at which the peer was reached. If another instance answers, the stored address is dropped.
func (g *probe) identifyPeer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
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

	for err == nil { // read to the end, so that the transport keeps the connection
		_, err = res.Body.Read(b[:])
	}

	if who := res.Header.Get(api.InstanceHeader); who != g.peer.Instance {
		g.reached = "" // a refusal at this address no longer proves anything about the peer
		return fmt.Errorf("%s is instance %s of somebody else", g.peer.Address, task.Quote(who))
	}

	g.mu.Lock()
	g.reached = g.remote
	g.mu.Unlock()

	return nil
}

// connectionRefused reports whether no process listens at the address where the peer was reached. It only opens a
// connection and does not begin a TLS handshake, so a failure of TLS cannot count as a refusal.
func (g *probe) connectionRefused(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	c, err := g.dial(ctx, "tcp", g.reached)
	if err == nil {
		c.Close()
	}

	return errors.Is(err, syscall.ECONNREFUSED)
}

// close closes the connection.
func (g *probe) close() { g.http.CloseIdleConnections() }

// isOwnAddress reports whether an address always refers to the host that uses it, such as a loopback address.
func isOwnAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (isLoopback(host) || ip != nil && ip.IsUnspecified())
}

// ThisHost identifies this boot of the machine together with the network namespace of this process. Containers on one
// machine share the boot but have different network namespaces.
func ThisHost() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	network, err2 := os.Readlink("/proc/self/ns/net")
	if errors.Join(err, err2) != nil {
		return task.NewUID() // unique, so that no loopback address counts as reachable
	}

	return strings.TrimSpace(string(boot)) + "/" + strings.Trim(strings.TrimPrefix(network, "net:"), "[]")
}

// isLoopback reports whether a host is localhost or a loopback address.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
