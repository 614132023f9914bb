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
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
)

// mode is the state of a node's link to etcd.
type mode int

const (
	modeOpen mode = iota // works, with the faults of the weather
	cut                  // nothing gets through in either direction
	deaf                 // requests arrive, answers do not
	held                 // everything waits until the link is open again, even if the caller has given up
	dead                 // the node's process is gone: nothing that it sends arrives any more
)

// weather gives the probability of faults of single writes, in thousandths.
type weather struct {
	requestLost, answerLost, late, twice int // of writes
	slow                                 int // of all calls: those that take up to 2 s
}

// link connects one instance's client to the store. It applies faults to calls and watches.
type link struct {
	world *world
	name  string
	trap  atomic.Pointer[trap] // nil: none is set

	// mu guards the fields below.
	mu      sync.Mutex
	rng     *rand.Rand // determines the fates of this link's calls
	mode    mode
	weather weather
	stalled bool          // watches deliver nothing
	moved   chan struct{} // closed and replaced when mode or stalled changes
	broken  chan struct{} // closed and replaced to break the current watches
}

// newLink returns an open link. seed determines the fates of its calls.
func newLink(w *world, name string, seed uint64) *link {
	return &link{
		world: w, name: name, rng: rand.New(rand.NewPCG(seed, 2)), weather: w.weather,
		moved: make(chan struct{}), broken: make(chan struct{}),
	}
}

// changeState changes the link with f and wakes everything that waits for a change. A dead link never changes.
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

// removeFaults removes all faults from the link. A dead link stays dead.
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

// modeAndChange returns the mode, and a channel that is closed at the next change.
func (l *link) modeAndChange() (mode, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.moved
}

// fate is what happens to one call.
type fate int

const (
	fateArrives fate = iota
	requestLost
	answerLost
	appliedLate  // applied after the caller received an error
	appliedTwice // applied, and a second copy is applied later
)

// plan is the fate of a call, drawn before the call is made.
type plan struct {
	fate          fate
	before, after time.Duration // delays of the request and of the answer
	again         time.Duration // until the late request or the second copy arrives
	silent        bool          // the caller receives no error: its deadline passes
}

// planCall draws a call's fate. A lost read has no other effect than an error, so reads have only one fault.
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

	// The fates share one draw, so that at most one of them applies.
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
	}{{l.weather.requestLost, requestLost}, {l.weather.answerLost, answerLost}, {l.weather.late, appliedLate}, {l.weather.twice, appliedTwice}} {
		if n -= c.of; n < 0 {
			p.fate = c.fate
			break
		}
	}

	return p
}

var errLost = status.Error(codes.Unavailable, "sim: the connection is lost")

// lostError returns the error of a lost call: at once, or when the caller's deadline passes.
func (p plan) lostError(ctx context.Context) error {
	if p.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	return errLost
}

// callThroughLink makes a call through the link. It can call make from any goroutine, also after it has returned.
// again makes the second copy of a write that is delivered twice.
func callThroughLink[T any](ctx context.Context, l *link, write bool, make, again func(context.Context) (T, error)) (T, error) {
	var zero T
	p := l.planCall(write)
	if !clock.Sleep(ctx, p.before) {
		return zero, ctx.Err()
	}

	// later makes a call in the background, for requests that arrive after their caller has given up.
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
	// The request arrives and is applied. The answer does not arrive.
	case deaf:
		if write {
			l.world.countReached("answer lost")
			later(make, func() bool { return true })
		}

		<-ctx.Done()

		return zero, ctx.Err()

	// The request waits. If the caller gives up first, a write still arrives when the link opens.
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
	case appliedLate:
		l.world.countReached("write delivered late")
		later(make, func() bool { return clock.Sleep(l.world.life, p.again) })
		return zero, p.lostError(ctx)

	case appliedTwice:
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

	// The link may have been cut while the call was under way. Then the answer is lost.
	if m, _ := l.modeAndChange(); m != modeOpen && !l.waitUntilOpen(ctx) {
		return zero, ctx.Err()
	}

	return r, err
}

// waitUntilOpen waits until a held link is open. It returns false if ctx ends first. A link that is cut, deaf or
// dead never releases a call that is under way.
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
		// applied records whether a commit of unknown outcome had taken effect when its caller got the error. Both
		// cases must occur, see Hard.
		applied := atomic.Bool{}
		l.springTrap(op, false)
		r, err := callThroughLink(ctx, l, etcdhook.Writes(op),
			func(ctx context.Context) (clientv3.OpResponse, error) {
				r, err := next(ctx, op)
				if err == nil {
					applied.Store(true)
					l.world.edits.noteAnswer(l.world.admin.Keys(), op, r)
					l.springTrap(op, true)
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

// hasCommits reports whether a write contains commits of shards.
func hasCommits(op clientv3.Op) bool {
	_, then, _ := op.Txn()
	return op.IsPut() && bytes.HasSuffix(op.KeyBytes(), []byte("/watermark")) || slices.ContainsFunc(then, hasCommits)
}

// repeatableOp returns the part of a write that etcd may receive twice, and false if nothing is left.
// Every write of the API is repeatable, because its audit record makes a second copy fail. It removes other writes
// that only create. Their only comparison is that the key is absent, so that a copy that arrives after the key was
// deleted would create it again. Neither etcd's client nor a node sends such a write twice.
func repeatableOp(op clientv3.Op) (clientv3.Op, bool) {
	if !op.IsTxn() {
		return op, true
	}

	cmps, then, els := op.Txn()
	if slices.ContainsFunc(then, isAuditRecord) {
		return op, true
	}

	var rest []clientv3.Op
	for _, o := range then {
		if o.IsTxn() {
			inner, ok := repeatableOp(o)
			if !ok {
				continue
			}
			o = inner
		} else if o.IsPut() && !slices.ContainsFunc(cmps, requiresRevision) {
			return op, false
		}

		rest = append(rest, o)
	}

	return clientv3.OpTxn(cmps, rest, els), len(rest) > 0
}

// isAuditRecord reports whether an operation puts an audit record.
func isAuditRecord(op clientv3.Op) bool {
	return op.IsPut() && bytes.Contains(op.KeyBytes(), []byte("/audit/"))
}

// requiresRevision reports whether a comparison requires that a key exists at a revision, and not that it is
// absent.
func requiresRevision(c clientv3.Cmp) bool {
	return c.GetCompare().GetModRevision() > 0 || c.GetCompare().GetCreateRevision() > 0
}

// linkedLease passes the lease calls that a node makes through the link.
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
