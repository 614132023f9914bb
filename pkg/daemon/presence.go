package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/outputmail"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/daemon/hostfacts"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// announceEvery is the interval at which a node announces its load and its clock. The clock guard of other nodes
// depends on it.
const announceEvery = 5 * time.Second

// announceDraining is the same for a draining node. It is shorter, because people and other nodes wait for the end of
// the drain.
const announceDraining = time.Second

// attemptRunner is the part of the executor that the presence uses.
type attemptRunner interface {
	// Joined passes on a new session.
	Joined(executor.Session)
	// Running returns the number of running attempts.
	Running() int
	// Froze returns the mod revision of the freezes that the executor obeys.
	Froze() int64
	// StuckStarts returns the number of starts that hang.
	StuckStarts() int
}

// entryReader is the part of the scheduler that the presence uses.
type entryReader interface {
	// Unreadable returns the number of entries that have no ticks because they cannot be read.
	Unreadable() int
	// NotEvaluated returns the number of tasks whose alerts have not been evaluated for some time.
	NotEvaluated() int
}

// presence maintains the node's leased key: it joins the cluster, announces the node's record, and joins again
// when the session is lost.
//
//	joining ──registered──► present ──session lost──► joining (after a jitter that grows)
//	   └── another process holds the name, for longer than a lease: error
type presence struct {
	store  *store.Store
	state  *datadir.State
	former datadir.Record
	proven bool          // the former process is dead
	node   task.Node     // the constant fields; nodeRecord fills in the others
	ttl    time.Duration // of the session's lease
	env    Environment
	log    *zap.Logger

	// What decides whether the node may join:
	history *etcdhistory.Monitor
	record  *clusterRecord

	// The sources of the record's fields, and what may end the session:
	attempts    attemptRunner
	entries     entryReader
	member      *memberMonitor
	listeners   *apiListeners
	expiry      *certExpiryMonitor
	facts       *hostfacts.Monitor
	hostFiles   hostFiles
	mail        outputmail.Policy
	eligibility *eligibility
	watchdog    *watchdog
	stall       *stallMonitor // called after each announcement that succeeded

	announce wake.Signal // received when the record must be announced at once

	access atomic.Int64 // the mod revision that the fence of the access records had before the last join

	mu       sync.Mutex
	session  *kv.Session   // nil: none
	joined   store.Session // that session as others know it: the node's key under it, and the gap that its join found
	draining bool          // the process stops
	told     task.Node     // the last record that was written to etcd
	failed   error         // the error of the last write of the node's record, or of the last try to join
	watchers []wake.Signal // sent when the session changes
}

// Session returns the current session, and false while there is none. The session may end at any time, so writes compare its fence.
func (p *presence) Session() (store.Session, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.session == nil {
		return store.Session{}, false
	}

	select {
	case <-p.session.Done():
		return store.Session{}, false
	default:
		return p.joined, true
	}
}

// notifyOnChange registers a signal that is sent when the session changes.
func (p *presence) notifyOnChange(signal wake.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers = append(p.watchers, signal)
}

// setSession changes the session and sends the signals. A nil session means that there is none.
func (p *presence) setSession(s *kv.Session, joined store.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.session, p.joined = s, joined
	for _, signal := range p.watchers {
		signal.Send()
	}
}

// noteWrite notes how the last write of the node's record ended.
func (p *presence) noteWrite(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
}

// writeError returns the error of the last write of the node's record, or of the last try to join; nil if it has succeeded.
func (p *presence) writeError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// isDraining reports whether startDrain was called.
func (p *presence) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

// startDrain announces that the node accepts no more shards and runs. It cannot be undone.
func (p *presence) startDrain() {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()

	p.announce.Send()
}

// nodeRecord returns the node's record with its current values.
func (p *presence) nodeRecord() task.Node {
	n := p.node
	n.Unreadable, n.Member, n.Expires = p.entries.Unreadable(), p.member.currentMember(), p.expiry.expiringSoon()
	n.NotEvaluated = new(p.entries.NotEvaluated())
	n.State, n.Running, n.Ineligible, n.Leases = p.state.Wanted(), p.attempts.Running(), p.eligibility.gravestReason(), p.state.Leases()
	n.Epoch, n.Froze = p.state.Epoch(), p.attempts.Froze()
	n.OldNodes = p.history.OldNodes(time.Now())

	facts, exceeded := p.facts.Known()

	n.Facts, n.Blocked = facts, p.hostFiles.exceededLimits(exceeded)
	if n.Stuck = p.attempts.StuckStarts(); n.Stuck >= process.ManyStuck {
		n.Blocked = append(slices.Clip(n.Blocked), task.BlockedByStarts)
	}

	n.SecretKeys, n.StateBy = p.hostFiles.keyIDs(), p.state.WantedBy()
	n.SendsMail = n.Has(task.RoleExecutor) && p.mail.HasSendmail()
	n.Address = p.listeners.announcedAddress()
	if err := p.listeners.listenError(); err != nil {
		n.APIError = err.Error()
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.draining {
		if n.State != task.NodeDraining {
			n.StateBy = nil // the process stops; no operator requested the state
		}
		n.State = task.NodeDraining
	}

	n.Clock = task.At(p.env.Now()) // last, because other nodes compare it with their clocks

	return n
}

// run keeps the node present until ctx ends, and then leaves the cluster. It returns an error if the node cannot join
// because its name is taken or its version is too old.
func (p *presence) run(ctx context.Context) error {
	var lost rejoinBackoff

	for first := true; ; first = false {
		s, joined, err := p.joinCluster(ctx)
		if err != nil {
			return err
		}

		f := joined.Fence

		p.log.Info("joined the cluster", zap.String("node", p.node.Name), zap.Int64("rev", f.CreateRevision),
			zap.String("instance", p.node.Instance), zap.Bool("again", !first))
		p.attempts.Joined(executor.Session{Fence: f, Gap: joined.Gap, LastRenewal: s.LastRenewal, TTL: s.TTL()})
		p.setSession(s, joined)
		since := time.Now()
		err = p.holdSession(ctx, s, f)
		p.setSession(nil, store.Session{})

		if ctx.Err() != nil {
			return p.leaveCluster(context.WithoutCancel(ctx), s, f)
		}

		p.log.Warn("lost the session; rejoining", zap.String("node", p.node.Name), zap.Error(err))
		// The lease counts as expired here before it expires in etcd, so the key may still exist. Revoke the
		// lease, so that the next join does not find the key of an earlier session.
		p.revokeLease(ctx, s)

		if !clock.Sleep(ctx, lost.nextDelay(time.Since(since))) {
			return ctx.Err()
		}
	}
}

// holdSession announces the node until its session or ctx ends, and returns the reason.
func (p *presence) holdSession(ctx context.Context, s *kv.Session, f kv.Fence) error {
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()

	told, steady := p.lastTold(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Done():
			return s.Err()
		case <-tick.C:
		case <-p.announce:
		}

		// news is a change for which others wait or on which they act. Load and clock are not: they change all the time.
		n := p.nodeRecord()
		err := p.store.Announce(ctx, f, n, s.Lease())
		p.noteWrite(err)
		news := n.State != told.State || n.Ineligible != told.Ineligible || n.Froze != told.Froze || !slices.Equal(n.Blocked, told.Blocked)

		switch {
		case errors.Is(err, task.ErrFenced):
			return err
		case err == nil:
			if news {
				p.log.Info("announced", zap.String("node", n.Name), zap.String("state", n.State), zap.String("ineligible", n.Ineligible), zap.Int64("froze", n.Froze), zap.Strings("blocked", n.Blocked))
			}

			told = n
			p.logAnnounced(n)

			if n.State == task.NodeDraining {
				tick.Reset(announceDraining)
			} else {
				tick.Reset(announceEvery)
			}

			// A worker counts as stalled only if etcd accepts writes, which this announcement has shown.
			p.stall.checkStalls(time.Now(), time.Since(steady))
		default:
			// Other errors do not end the session. The lease decides: if etcd stays unavailable, s ends.
			steady = time.Now()
		}

		if err != nil && news {
			p.announce.Send() // repeat soon, because others may act on what has changed
			if !clock.Sleep(ctx, 200*time.Millisecond) {
				return ctx.Err()
			}
		}
	}
}

// lastTold returns the last record that was written to etcd.
func (p *presence) lastTold() task.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

// logAnnounced stores the record that was just written to etcd, for lastTold.
func (p *presence) logAnnounced(n task.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = n
}

// joinCluster opens a session and registers the node under it. It retries until that succeeds. It returns an error if
// another process holds the name for longer than a lease, if the cluster's record format is too new, if the cluster has
// a new epoch (etcdhistory.ErrNewHistory), or if ctx ends.
func (p *presence) joinCluster(ctx context.Context) (*kv.Session, store.Session, error) {
	logged, revoked := false, false
	var taken time.Time // when another process was first found to hold the name; zero: none
	for {
		s, joined, holder, err := p.tryJoin(ctx)
		p.noteWrite(err)
		switch {
		case err == nil:
			return s, joined, nil
		case ctx.Err() != nil:
			return nil, store.Session{}, ctx.Err()
		case errors.Is(err, store.ErrFormat), errors.Is(err, etcdhistory.ErrNewHistory):
			return nil, store.Session{}, err
		case holder != nil && p.isOurs(holder):
			// A former process of this data directory holds the name. It is dead, so do not wait for its lease.
			p.revokeLeases(ctx, holder.Leases)
			if !revoked {
				revoked = true
				continue
			}

			// The key has another lease, or none.
			if !logged {
				logged = true
				p.log.Warn("cannot join: the record of a former instance stays, although its leases were revoked; retrying until somebody deletes it",
					zap.String("node", p.node.Name), zap.String("instance", holder.Instance))
			}
		case holder != nil && taken.IsZero():
			// The holder may be dead without a peer that detects it. Then its key disappears with its lease.
			taken = p.env.Now()
			p.log.Warn("the name is taken, waiting for one lease", zap.String("node", p.node.Name), zap.String("by", holder.Instance), zap.String("at", holder.Address))
		case holder != nil && p.env.Now().Sub(taken) > p.ttl+2*time.Second:
			return nil, store.Session{}, fmt.Errorf("the name %q is taken by instance %s at %s, started %s: choose another name with --name, or stop that instance",
				p.node.Name, holder.Instance, holder.Address, holder.StartedAt.Format(time.RFC3339))
		case holder == nil:
			// The name is free or etcd is unavailable, so an earlier holder does not count any more.
			taken = time.Time{}
			if !logged {
				logged = true
				p.log.Warn("cannot join; retrying", zap.String("node", p.node.Name), zap.Error(err))
			}
		}

		// A random pause, so that nodes that lost their sessions together do not join at the same moment.
		if !clock.Sleep(ctx, 300*time.Millisecond+rand.N(400*time.Millisecond)) {
			return nil, store.Session{}, ctx.Err()
		}
	}
}

// awaitFormerGone returns when no former instance of the data directory is present any more. Usually it returns at once,
// because the lock of the directory proves that they are dead. After a restart of the machine, it waits until the key of
// the former instance expires with its lease. If the instance announces itself, it is alive, so this directory is a copy, and
// awaitFormerGone returns an error.
//
// Time alone would not tell: a lease lasts longer if etcd has no leader for a while. A single announcement may have been on its
// way when the instance died.
func (p *presence) awaitFormerGone(ctx context.Context) error {
	if p.proven {
		return nil
	}

	var announced task.Time // by the clock of the former instance
	for found := 0; ; {
		holder, err := p.store.Node(ctx, p.node.Name)
		switch {
		case errors.Is(err, task.ErrNotFound), err == nil && !p.isFormer(&holder):
			return nil
		case err != nil || found > 0 && holder.Clock.Equal(announced.Time): // look again
		case found == maxFormerAnnouncements:
			return fmt.Errorf("node %s already runs as instance %s at %s, and this is a copy of its data directory: a copy cannot run beside the original; "+
				"give this node an empty data directory and another name, or stop the original", p.node.Name, holder.Instance, holder.Address)
		default:
			if found++; found == 1 {
				p.log.Warn("a former instance of this data directory is present; waiting for the end of its lease", zap.String("instance", holder.Instance), zap.String("at", holder.Address))
			}
			announced = holder.Clock
		}

		if !clock.Sleep(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// maxFormerAnnouncements is how many different records of a former instance may be read if the instance is dead: the first one,
// and one that was on its way when it died.
const maxFormerAnnouncements = 2

// tryJoin opens a session and tries once to register. If another instance holds the name, holder is its record. After an
// error no session is left.
func (p *presence) tryJoin(ctx context.Context) (_ *kv.Session, joined store.Session, holder *task.Node, err error) {
	// A node with a stuck component must not become present.
	if err := p.watchdog.checkAlive(); err != nil {
		return nil, joined, nil, err
	}

	// The join compares the record that is read here. If etcd is restored in between, the comparison fails, and the next
	// try finds the new epoch.
	there, err := p.store.Present(ctx)
	if err != nil {
		return nil, joined, nil, err
	}
	if !there.Found {
		return nil, joined, nil, fmt.Errorf("the cluster's record: %w", task.ErrNotFound)
	}
	if err := p.history.CheckRecord(there.Cluster); err != nil {
		return nil, joined, nil, err
	}
	p.history.AskFirst(ctx)

	// Under the new session, the node decides by access records that are at least as new as these (see knownNamespaces).
	access, err := p.store.FenceRevision(ctx)
	if err != nil {
		return nil, joined, nil, err
	}

	// The session must not end with ctx: writes under it follow until the node has left.
	s, err := kv.OpenSession(context.WithoutCancel(ctx), p.store.Client(), kv.SessionConfig{
		TTL: p.ttl, Saved: p.state.SetSession, Alive: p.watchdog.checkAlive, Logger: p.log})
	if err != nil {
		return nil, joined, nil, err
	}

	// The leader recognizes by JoinedAt that a node has come back since it lost its session.
	p.node.JoinedAt = task.At(p.env.Now())
	n := p.nodeRecord()

	f, holder, err := p.store.Register(ctx, n, s.Lease(), there.Record())
	if err != nil {
		p.revokeLease(ctx, s)
		return nil, joined, holder, err
	}

	if err := p.state.TrustLock(); err != nil {
		p.log.Warn("could not store that the node has joined; the next start may wait for a lease", zap.Error(err))
	}

	p.record.joinedWith(there.Record())
	p.logAnnounced(n)
	p.access.Store(access)

	// The gap is that of the record which the join has compared.
	return s, store.Session{Fence: f, Gap: there.Cluster.Gap()}, nil, nil
}

// isOurs reports whether the holder of the name is this process or a dead one of this data directory.
func (p *presence) isOurs(holder *task.Node) bool {
	return holder.Instance == p.node.Instance || p.proven && p.isFormer(holder)
}

// isFormer reports whether the holder of the name has written its instance or its lease to this data directory, or to the
// one of which it is a copy.
func (p *presence) isFormer(holder *task.Node) bool {
	return slices.Contains(p.former.Instances, holder.Instance) ||
		p.former.Session != "" && slices.Contains(holder.Leases, p.former.Session)
}

// revokeLeases revokes leases by the names in a record. It logs errors; a lease that cannot be revoked expires.
func (p *presence) revokeLeases(ctx context.Context, leases []string) {
	for _, l := range leases {
		if id := datadir.ParseLease(l); id != clientv3.NoLease {
			_, err := p.store.Client().Revoke(ctx, id)
			if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				p.log.Warn("could not revoke an earlier lease", zap.String("lease", l), zap.Error(err))
				clock.Sleep(ctx, 200*time.Millisecond)
			}
		}
	}
}

// revokeLease ends a session and revokes its lease, within two seconds and also if ctx has ended.
func (p *presence) revokeLease(ctx context.Context, s *kv.Session) {
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.Close(rctx); err != nil {
		p.log.Debug("could not revoke the session's lease; it will expire", zap.Error(err))
	}
}

// leaveCluster deletes the node's key if its inbox is empty, and revokes the lease in
// any case. Attempts that are left in the inbox are cleared by the next instance, or are lost.
func (p *presence) leaveCluster(ctx context.Context, s *kv.Session, f kv.Fence) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	if err := p.store.Leave(ctx, f, p.node.Name); err != nil {
		p.log.Info("left the cluster with attempts in the inbox", zap.String("node", p.node.Name), zap.Error(err))
	}

	p.revokeLease(ctx, s)

	return p.state.SetSession(0)
}

const (
	// firstRejoinDelay is the maximum delay before a node joins again. Each further loss soon after the last
	// doubles it, up to maxRejoinDelay.
	firstRejoinDelay, maxRejoinDelay = time.Second, 16 * time.Second
	// rejoinResetAfter is how long a session has to last so that earlier losses no longer count.
	rejoinResetAfter = 2 * time.Minute
)

// rejoinBackoff counts sessions that were lost soon after each other. An etcd leader
// that stalls can end the sessions of all nodes at once. Random delays keep them from joining again at the same time,
// and longer delays reduce the load if the sessions are lost again.
type rejoinBackoff struct{ n int }

// nextDelay returns a random delay before the next join, after a session that lasted for the given time.
func (r *rejoinBackoff) nextDelay(lasted time.Duration) time.Duration {
	if lasted > rejoinResetAfter {
		r.n = 0
	}

	most := min(firstRejoinDelay<<min(r.n, 10), maxRejoinDelay)
	r.n++

	return rand.N(most)
}
