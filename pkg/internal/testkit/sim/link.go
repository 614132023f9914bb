package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/testkit/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
)

// mode is how a node's link to etcd is.
type mode int

const (
	modeOpen mode = iota // it works, as well as the weather lets it
	cut                  // nothing gets through either way
	deaf                 // requests arrive, answers do not
	held                 // all waits, and arrives when the link is open again, though the caller may have given up
	dead                 // the node's process is gone: nothing it sends arrives, for ever
)

// weather is how often, of a thousand writes, something goes wrong with one.
type weather struct {
	requestLost, answerLost, late, twice int
	slow                                 int // and of all calls, those that take up to 2 s
}

// link is one instance's way to etcd: what stands between its client and the store.
type link struct {
	world *world
	name  string

	mu      sync.Mutex
	rng     *rand.Rand
	mode    mode
	weather weather
	stalled bool          // watches say nothing
	moved   chan struct{} // closed when mode, stalled or life change
	broken  chan struct{} // closed to break the present watches
}

func newLink(w *world, name string, seed uint64) *link {
	return &link{
		world: w, name: name, rng: rand.New(rand.NewPCG(seed, 2)), weather: w.weather,
		moved: make(chan struct{}), broken: make(chan struct{}),
	}
}

func (l *link) changeState(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.mode == dead {
		return
	}

	f()
	close(l.moved)
	l.moved = make(chan struct{})
}

func (l *link) setMode(m mode)      { l.changeState(func() { l.mode = m }) }
func (l *link) setStalled(yes bool) { l.changeState(func() { l.stalled = yes }) }

// removeFaults makes it a link without faults.
func (l *link) removeFaults() {
	l.changeState(func() { l.mode, l.stalled, l.weather = modeOpen, false, weather{} })
}

// breakWatches closes all watches, as a lost connection does.
func (l *link) breakWatches() {
	l.mu.Lock()
	defer l.mu.Unlock()

	close(l.broken)
	l.broken = make(chan struct{})
}

func (l *link) modeAndChange() (mode, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.moved
}

// fate is what becomes of one call.
type fate int

const (
	fateArrives fate = iota
	requestLost
	answerLost
	late  // it is applied after its caller was told that it failed
	twice // a second copy is applied later
)

// plan is a call's fate, drawn before it is made.
type plan struct {
	fate          fate
	before, after time.Duration // on the way there, and back
	again         time.Duration // until the late or the second copy arrives
	silent        bool          // the caller is told nothing: its deadline passes
}

func (l *link) planCall(write bool) plan {
	l.mu.Lock()
	defer l.mu.Unlock()

	p := plan{
		before: time.Duration(50+l.rng.IntN(1500)) * time.Microsecond, after: time.Duration(50+l.rng.IntN(1500)) * time.Microsecond,
		again: time.Duration(l.rng.IntN(8000)) * time.Millisecond, silent: l.rng.IntN(2) == 0,
	}
	if l.rng.IntN(1000) < l.weather.slow {
		p.before += time.Duration(l.rng.IntN(2000)) * time.Millisecond
	}

	n := l.rng.IntN(1000)

	if !write {
		if n < l.weather.requestLost {
			p.fate = requestLost
		}
		return p
	}

	for _, c := range []struct {
		of   int
		fate fate
	}{{l.weather.requestLost, requestLost}, {l.weather.answerLost, answerLost}, {l.weather.late, late}, {l.weather.twice, twice}} {
		if n -= c.of; n < 0 {
			p.fate = c.fate
			break
		}
	}

	return p
}

var errLost = status.Error(codes.Unavailable, "sim: the connection is lost")

// lostError is what the caller is told of a call that got lost.
func (p plan) lostError(ctx context.Context) error {
	if p.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	return errLost
}

// callThroughLink makes a call through the link. make is called from any goroutine, and after call has returned, too; again is make
// for a second copy.
func callThroughLink[T any](ctx context.Context, l *link, write bool, make, again func(context.Context) (T, error)) (T, error) {
	var zero T
	p := l.planCall(write)
	if !clock.Sleep(ctx, p.before) {
		return zero, ctx.Err()
	}

	later := func(make func(context.Context) (T, error), when func() bool) {
		l.world.background.Go(func() {
			if when() {
				_, _ = make(l.world.outlivingContext(ctx))
			}
		})
	}

	switch m, _ := l.modeAndChange(); m {
	case cut, dead:
		<-ctx.Done()
		return zero, ctx.Err()
	case deaf:
		if write {
			l.world.countReached("answer lost")
			later(make, func() bool { return true })
		}

		<-ctx.Done()

		return zero, ctx.Err()

	case held:
		if !l.waitUntilOpen(ctx) {
			if write {
				l.world.countReached("write delivered after a hold")
				later(make, func() bool { return l.waitUntilOpen(l.world.life) })
			}
			return zero, ctx.Err()
		}
	}

	switch p.fate {
	case requestLost:
		return zero, p.lostError(ctx)
	case late:
		l.world.countReached("write delivered late")
		later(make, func() bool { return clock.Sleep(l.world.life, p.again) })
		return zero, p.lostError(ctx)

	case twice:
		l.world.countReached("write delivered twice")
		later(again, func() bool { return clock.Sleep(l.world.life, p.again) })
	}

	r, err := make(ctx)

	if p.fate == answerLost {
		l.world.countReached("answer lost")
		return zero, p.lostError(ctx)
	}

	if !clock.Sleep(ctx, p.after) {
		return zero, ctx.Err()
	}
	if m, _ := l.modeAndChange(); m != modeOpen && !l.waitUntilOpen(ctx) {
		return zero, ctx.Err()
	}

	return r, err
}

// waitUntilOpen waits until a held link is open again. One that is cut or dead never releases what is under way.
func (l *link) waitUntilOpen(ctx context.Context) bool {
	for {
		m, moved := l.modeAndChange()
		switch m {
		case modeOpen:
			return true
		case cut, deaf, dead:
			<-ctx.Done()
			return false
		}

		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}

// wrapClient puts the link between a client and its store.
func (l *link) wrapClient(c *clientv3.Client) {
	c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		applied := atomic.Bool{}
		r, err := callThroughLink(ctx, l, etcdhook.Writes(op),
			func(ctx context.Context) (clientv3.OpResponse, error) {
				r, err := next(ctx, op)
				if err == nil {
					applied.Store(true)
				}
				return r, err
			},
			func(ctx context.Context) (clientv3.OpResponse, error) {
				if op, ok := repeatableOp(op); ok {
					return next(ctx, op)
				}
				return clientv3.OpResponse{}, nil
			})

		if err != nil && kv.Unknown(err) && hasCommits(op) {
			l.world.countReached(fmt.Sprintf("commit unknown, applied by then: %t", applied.Load()))
		}

		return r, err
	})

	c.Lease = linkedLease{Lease: c.Lease, link: l}
	c.Watcher = linkedWatcher{Watcher: c.Watcher, link: l}
}

// hasCommits says whether a write has commits of shards in it.
func hasCommits(op clientv3.Op) bool {
	_, then, _ := op.Txn()
	return op.IsPut() && bytes.HasSuffix(op.KeyBytes(), []byte("/watermark")) || slices.ContainsFunc(then, hasCommits)
}

// repeatableOp is a write of which etcd may get a second copy. Left out is what only creates: a task, or a person's run in
// the queue. Nothing but absence guards that, so that a copy that comes when all is over makes it anew. Neither etcd's
// client nor a node ever sends it twice.
func repeatableOp(op clientv3.Op) (clientv3.Op, bool) {
	if !op.IsTxn() {
		return op, true
	}

	cmps, then, els := op.Txn()
	var rest []clientv3.Op
	queues := false
	for _, o := range then {
		if o.IsTxn() {
			inner, ok := repeatableOp(o)
			if !ok {
				continue
			}
			o = inner
		} else if o.IsPut() {
			queues = queues || len(then) == 1 && bytes.Contains(o.KeyBytes(), []byte("/queue/"))
			if queues || !slices.ContainsFunc(cmps, requiresRevision) {
				return op, false
			}
		}

		rest = append(rest, o)
	}

	return clientv3.OpTxn(cmps, rest, els), len(rest) > 0
}

// requiresRevision says whether a comparison asks for a revision at which something is, not for its absence.
func requiresRevision(c clientv3.Cmp) bool {
	return c.GetCompare().GetModRevision() > 0 || c.GetCompare().GetCreateRevision() > 0
}

// linkedLease passes what a node calls through the link.
type linkedLease struct {
	clientv3.Lease
	link *link
}

func (l linkedLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	grant := func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) { return l.Lease.Grant(ctx, ttl) }
	return callThroughLink(ctx, l.link, true, grant, grant)
}

func (l linkedLease) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	revoke := func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) { return l.Lease.Revoke(ctx, id) }
	return callThroughLink(ctx, l.link, true, revoke, revoke)
}

func (l linkedLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	renew := func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
		return l.Lease.KeepAliveOnce(ctx, id)
	}
	return callThroughLink(ctx, l.link, true, renew, renew)
}
