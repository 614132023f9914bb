// Package peerprobe detects that the process of another node has died, long before
// its lease expires, and revokes its leases.
//
// A node keeps a connection to a few other nodes. If a connection ends and the address then
// refuses two connections in a row, no process listens there. A refusal proves no more than
// that, and correctness does not depend on it: the fences stop a node whose lease was revoked by mistake. A timeout
// or a failure of TLS proves nothing.
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
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// peersWatched is the number of nodes that each node probes: those that follow it
	// in the order of names. So the number of connections does not grow with the square of
	// the number of nodes. Each node is probed by several others, because some of them may die with it.
	peersWatched = 3
	// probeInterval is the interval at which an open connection is used. This detects
	// a connection that is broken but was not closed.
	probeInterval = 5 * time.Second
	// probeTimeout is the time limit for an answer of a peer.
	probeTimeout = 3 * time.Second
	// peerFirst is the first pause before a peer is probed again that gave no
	// answer, or that closed the connection directly after its answer. The pause doubles with each failure.
	peerFirst = 250 * time.Millisecond
	// refusedPause is the pause between the two refusals that are required. A process that only reopens its listener
	// needs less time.
	refusedPause = 100 * time.Millisecond
	// firstRevokePause and maxRevokePause limit how long a node revokes no further leases after it has revoked some.
	// The pause doubles each time. A node that all others refuse is probably cut off itself, while they are alive.
	firstRevokePause, maxRevokePause = time.Second, time.Minute
)

// Prober detects that a daemon was killed, long before its lease expires. It keeps a
// connection to a few other nodes. When a connection is closed, it dials again. If a peer
// had identified itself as the same instance at this address and the address now refuses two connections,
// no process listens there. The Prober then revokes the leases of the peer, so that shards and
// leadership move at once.
//
//	unknown ──answers as its instance──▶ reached ──closed, refused, refused──▶ accused
//	                                        ▲  │ anything else: timeout, another process
//	                                        └──┘
//
// A refusal proves no more than that. Safety comes from the fences: a node whose lease was revoked
// by mistake cannot write, and joins again. Timeouts, failures of TLS, and loopback addresses of other hosts prove
// nothing. No instance is accused twice, because one that was alive has joined again.
type Prober struct {
	cfg     Config
	notices *prometheus.CounterVec
	reached prometheus.Gauge

	mu            sync.Mutex
	lastRevokedAt map[string]time.Time // when the leases of an instance were revoked, by instance
	revokePause   time.Duration        // the pause after the last accusation
	lastRevoked   time.Time            // the time of the last accusation
}

// Config configures a Prober.
type Config struct {
	Node string // the name of the node that probes
	Host string // see ThisHost; loopback addresses of nodes with another Host are not theirs here
	Dial certs.Dialer
	TLS  func() *tls.Config // returns the configuration for the next connection to an https:// address

	Cluster    Cluster
	Logger     *zap.Logger
	Registerer prometheus.Registerer
}

// Cluster provides the operations of etcd that a Prober needs.
type Cluster interface {
	// Node reads the current record of a node.
	Node(ctx context.Context, name string) (task.Node, error)
	// RevokeLeases revokes the leases of a dead node.
	RevokeLeases(ctx context.Context, leases []string) error
}

// New returns a Prober. It opens no connections before Run.
func New(cfg Config) *Prober {
	p, r := &Prober{cfg: cfg, lastRevokedAt: map[string]time.Time{}}, cfg.Registerer
	p.notices = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_crash_notices_total",
		Help: "Peers whose port refused connections, by result: revoked (their lease), or withheld because another peer was reported a moment ago."}, []string{"result"})
	p.reached = prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_peers_reached",
		Help: "Peers whose crash this node would detect immediately, because it is connected to them."})
	r.MustRegister(p.notices, p.reached)

	for _, result := range []string{"revoked", "withheld"} {
		p.notices.WithLabelValues(result)
	}

	return p
}

// Run probes the nodes that follow this one until ctx ends. It calls nodes for the current nodes at the start and
// whenever changed receives a value.
func (p *Prober) Run(ctx context.Context, changed <-chan struct{}, nodes func() []task.Node) error {
	var all sync.WaitGroup
	defer all.Wait()

	watched := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range watched {
			stop()
		}
	}()

	for {
		// Compare the peers that should be probed with those that are, and stop or start watchPeer for the difference.
		wanted := map[string]task.Node{}
		for _, n := range nodesAfter(nodes(), p.cfg.Node, peersWatched) {
			wanted[sessionName(n)] = n
		}

		for key, stop := range watched {
			if _, ok := wanted[key]; !ok {
				stop()
				delete(watched, key)
			}
		}

		for key, n := range wanted {
			if watched[key] == nil {
				wctx, stop := context.WithCancel(ctx)
				watched[key] = stop
				all.Go(func() { p.watchPeer(wctx, n) })
			}
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// sessionName identifies one session of an instance at one address.
func sessionName(n task.Node) string { return fmt.Sprint(n.Instance, n.Revision, n.Address) }

// nodesAfter returns up to most nodes that follow name in the order of names. The order is a ring: the first name
// follows the last.
func nodesAfter(nodes []task.Node, name string, most int) []task.Node {
	others := slices.DeleteFunc(slices.Clone(nodes), func(n task.Node) bool { return n.Name == name })
	slices.SortFunc(others, func(a, b task.Node) int {
		if after := a.Name > name; after != (b.Name > name) {
			if after {
				return -1
			}
			return 1
		}

		return strings.Compare(a.Name, b.Name)
	})

	return others[:min(most, len(others))]
}

// watchPeer probes a peer every probeInterval, and at once when a connection to it is closed, until ctx
// ends, which happens when its session ends.
func (p *Prober) watchPeer(ctx context.Context, n task.Node) {
	g := newProbe(p.cfg.Dial, p.cfg.TLS, n)
	defer g.close()

	was := 0.0
	defer func() { p.reached.Sub(was) }()

	for fails := 0; ; {
		select {
		case <-g.closed: // this probe finds out the reason
		default:
		}

		wait, closed, began := probeInterval, g.closed, time.Now()
		later := min(peerFirst<<fails, 2*probeInterval)
		err := g.identifyPeer(ctx)

		is := 0.0
		if g.reached != "" {
			is = 1
		}

		p.reached.Add(is - was)
		was = is

		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
		case g.reached != "" && g.connectionRefused(ctx) && clock.Sleep(ctx, refusedPause) && g.connectionRefused(ctx):
			closed = nil
			if isOwnAddress(g.reached) && n.Host != p.cfg.Host {
				break // the address is the end of a tunnel on this host, and not the node
			}
			wait = p.revokeDeadPeer(ctx, n)
		default: // slow, unreachable, or another process: this proves nothing
			wait, closed = later, nil // the end of this connection carries no information
			fails = min(fails+1, 10)
		}

		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-closed:
			if time.Since(began) >= peerFirst {
				fails = 0
				break
			}

			// The peer closed the connection directly after its answer. A proxy in front of it may keep no connections.
			fails = min(fails+1, 10)
			clock.Sleep(ctx, later)
		case <-t.C:
			if err == nil {
				fails = 0
			}
		}

		t.Stop()
	}
}

// revokeDeadPeer revokes the leases of a peer, if its current session is still the one that
// was probed. It returns the time until the peer should be probed again.
func (p *Prober) revokeDeadPeer(ctx context.Context, n task.Node) (again time.Duration) {
	now, err := p.cfg.Cluster.Node(ctx, n.Name)
	switch {
	case errors.Is(err, task.ErrNotFound):
		return probeInterval // it has left, or another node has revoked its lease
	case err != nil:
		p.cfg.Logger.Warn("a peer is refused, but etcd does not answer", zap.String("node", n.Name), zap.Error(err))
		return time.Second
	case sessionName(now) != sessionName(n):
		return probeInterval // it has another session now
	}

	if rest, may := p.mayRevoke(n.Instance, time.Now()); !may {
		p.notices.WithLabelValues("withheld").Inc()
		return rest
	}

	p.cfg.Logger.Warn("a peer's process is gone: revoking its leases", zap.String("node", n.Name), zap.String("instance", n.Instance), zap.Strings("leases", now.Leases))
	p.notices.WithLabelValues("revoked").Inc()
	// Revoke all leases, even though ctx ends as soon as the first revocation removes the node's key.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()

	if err := p.cfg.Cluster.RevokeLeases(ctx, now.Leases); err != nil {
		p.cfg.Logger.Warn("could not revoke a peer's leases; they end by themselves", zap.String("node", n.Name), zap.Error(err))
	}

	return probeInterval
}

// mayRevoke reports whether the leases of an instance may be revoked now, and if so, records that they were.
// Otherwise it returns the time until the next try.
func (p *Prober) mayRevoke(instance string, now time.Time) (again time.Duration, may bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for i, at := range p.lastRevokedAt {
		if now.Sub(at) > time.Hour { // its leases have expired long ago
			delete(p.lastRevokedAt, i)
		}
	}

	if _, done := p.lastRevokedAt[instance]; done {
		return maxRevokePause, false
	}
	if left := p.revokePause - now.Sub(p.lastRevoked); left > 0 {
		return left, false
	}

	if p.revokePause = min(max(2*p.revokePause, firstRevokePause), maxRevokePause); now.Sub(p.lastRevoked) > 10*maxRevokePause {
		p.revokePause = firstRevokePause
	}

	p.lastRevokedAt[instance], p.lastRevoked = now, now

	return 0, true
}

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

// dialAndWatch dials and reports the end of the connection through p.closed. The transport closes
// an idle connection as soon as the peer does.
func (p *probe) dialAndWatch(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := p.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.remote = address
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		p.remote = a.String() // a name may have several addresses, and only this one belongs to the peer
	}

	return &closeNotifyConn{Conn: c, closed: p.closed}, nil
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
func (p *probe) identifyPeer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	u, err := url.Parse(p.peer.Address)
	if err != nil {
		return err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("healthz").String(), http.NoBody)
	if err != nil {
		return err
	}

	res, err := p.http.RoundTrip(req)
	if err != nil {
		return err
	}

	defer res.Body.Close()

	var b [64]byte

	for err == nil { // read to the end, so that the transport keeps the connection
		_, err = res.Body.Read(b[:])
	}

	if who := res.Header.Get(api.InstanceHeader); who != p.peer.Instance {
		p.reached = "" // a refusal at this address no longer proves anything about the peer
		return fmt.Errorf("%s is instance %s of somebody else", p.peer.Address, task.Quote(who))
	}

	p.mu.Lock()
	p.reached = p.remote
	p.mu.Unlock()

	return nil
}

// connectionRefused reports whether no process listens at the address where the peer was reached. It only opens a
// connection and does not begin a TLS handshake, so a failure of TLS cannot count as a refusal.
func (p *probe) connectionRefused(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	c, err := p.dial(ctx, "tcp", p.reached)
	if err == nil {
		c.Close()
	}

	return errors.Is(err, syscall.ECONNREFUSED)
}

// close closes the connection.
func (p *probe) close() { p.http.CloseIdleConnections() }

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
