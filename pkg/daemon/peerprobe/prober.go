package peerprobe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// peersWatched is how many nodes each node keeps an eye on: those that come
	// next in the order of names. So the cost does not grow with the square of
	// their number, and who watches a node may die with it.
	peersWatched = 3
	// greetEvery is how often a connection that nobody has closed is used, so that
	// one that is dead without a word is found out.
	greetEvery = 5 * time.Second
	// greetLimit is for how long a peer may think about its answer.
	greetLimit = 3 * time.Second
	// peerFirst is after how long a peer is greeted again, at first, that gave no
	// answer, or that closed the connection as soon as it had.
	peerFirst = 250 * time.Millisecond
	// refusedPause is between two refusals: nobody is listening by accident only
	// for as long.
	refusedPause = 100 * time.Millisecond
	// accuseFirst and accuseMost are how long a node accuses nobody after it has:
	// who is refused by everybody stands behind a wall, and all others live.
	accuseFirst, accuseMost = time.Second, time.Minute
)

// Prober notices that a daemon was killed long before its lease ends. It keeps a
// connection to some other nodes. When one is closed it dials again; a peer that
// had answered as this very instance, at this address, and is now refused twice
// has no process that listens: what it holds is revoked, so that shards and
// leadership move at once.
//
//	unknown ──answers as its instance──▶ reached ──closed, refused, refused──▶ accused
//	                                        ▲  │ anything else: timeout, another process
//	                                        └──┘
//
// That is all that a refusal proves: the fences, not this, make it safe. A
// timeout proves nothing, nor does TLS that fails: dialling alone is refused. Nor does a loopback address that is another host's.
// No instance is accused twice: one that was alive all the same has joined again.
type Prober struct {
	cfg     Config
	notices *prometheus.CounterVec
	reached prometheus.Gauge

	mu      sync.Mutex
	accused map[string]time.Time // by instance
	rest    time.Duration        // after the last accusation
	last    time.Time
}

// Config says for which node to watch others, and how to reach them.
type Config struct {
	Node string // its name
	Host string // its machine and network: a loopback address of another one is nobody's here
	Dial certs.Dialer
	TLS  func() *tls.Config // of the next connection to an https:// address

	Cluster    Cluster
	Logger     *zap.Logger
	Registerer prometheus.Registerer
}

// Cluster is what is asked of a node that does not answer, and done to it.
type Cluster interface {
	// Node reads a node's record as it is now.
	Node(ctx context.Context, name string) (task.Node, error)
	// RevokeLeases ends the leases of a node that is dead.
	RevokeLeases(ctx context.Context, leases []string) error
}

// New prepares the watching; Run watches.
func New(cfg Config) *Prober {
	p, r := &Prober{cfg: cfg, accused: map[string]time.Time{}}, cfg.Registerer
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

// Run watches the nodes that come after this one, as changed tells that they have
// changed, until ctx ends.
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

// sessionName names one session of an instance at one address.
func sessionName(n task.Node) string { return fmt.Sprint(n.Instance, n.Revision, n.Address) }

// nodesAfter are the nodes after name, in the order of names, which is a ring.
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

// watchPeer greets a peer for as long as its session lasts, and at once when a
// connection to it is closed.
func (p *Prober) watchPeer(ctx context.Context, n task.Node) {
	g := newProbe(p.cfg.Dial, p.cfg.TLS, n)
	defer g.close()

	was := 0.0
	defer func() { p.reached.Sub(was) }()

	for fails := 0; ; {
		select {
		case <-g.closed: // whatever that was about, this greeting finds out
		default:
		}

		wait, closed, began := greetEvery, g.closed, time.Now()
		later := min(peerFirst<<fails, 2*greetEvery)
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
				break // a tunnel's end, not the node
			}
			wait = p.revokeDeadPeer(ctx, n)
		default: // it may be slow, or unreachable, or another process: nothing is proved
			wait, closed = later, nil // the end of this connection is no news
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

			// Or what stands before it keeps no connections.
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

// revokeDeadPeer revokes what the session of a peer holds, if it is still the one that
// was reached. It returns when to look at the peer again.
func (p *Prober) revokeDeadPeer(ctx context.Context, n task.Node) (again time.Duration) {
	now, err := p.cfg.Cluster.Node(ctx, n.Name)
	switch {
	case errors.Is(err, task.ErrNotFound):
		return greetEvery // it has left, or somebody else was faster
	case err != nil:
		p.cfg.Logger.Warn("a peer is refused, but etcd does not answer", zap.String("node", n.Name), zap.Error(err))
		return time.Second
	case sessionName(now) != sessionName(n):
		return greetEvery // it is another session by now
	}

	if rest, may := p.mayAccuse(n.Instance, time.Now()); !may {
		p.notices.WithLabelValues("withheld").Inc()
		return rest
	}

	p.cfg.Logger.Warn("a peer's process is gone: revoking its leases", zap.String("node", n.Name), zap.String("instance", n.Instance), zap.Strings("leases", now.Leases))
	p.notices.WithLabelValues("revoked").Inc()
	// All of them, though nobody watches the node any more once the first is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()

	if err := p.cfg.Cluster.RevokeLeases(ctx, now.Leases); err != nil {
		p.cfg.Logger.Warn("could not revoke a peer's leases; they end by themselves", zap.String("node", n.Name), zap.Error(err))
	}

	return greetEvery
}

// mayAccuse reports whether an instance may be accused, and notes that it was;
// if it may not, when to ask again.
func (p *Prober) mayAccuse(instance string, now time.Time) (again time.Duration, may bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for i, at := range p.accused {
		if now.Sub(at) > time.Hour { // its leases are long gone
			delete(p.accused, i)
		}
	}

	if _, done := p.accused[instance]; done {
		return accuseMost, false
	}
	if left := p.rest - now.Sub(p.last); left > 0 {
		return left, false
	}

	if p.rest = min(max(2*p.rest, accuseFirst), accuseMost); now.Sub(p.last) > 10*accuseMost {
		p.rest = accuseFirst
	}

	p.accused[instance], p.last = now, now

	return 0, true
}
