package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/daemon/hostfacts"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// announceEvery is how often a node tells its load and its clock.
const announceEvery = 5 * time.Second

// announceDraining is how often one does that is draining.
const announceDraining = time.Second

// attemptRunner runs the node's attempts, under each new session.
type attemptRunner interface {
	// Joined says that the node has a new session.
	Joined(executor.Session)
	Running() int
	// Froze is the record of freezes that the attempts obey.
	Froze() int64
	// StuckStarts is how many starts hang.
	StuckStarts() int
}

// entryReader reads the entries of the node's shards.
type entryReader interface {
	// Unreadable is how many entries do not fire because they cannot be read.
	Unreadable() int
}

// presence keeps the node's leased key: it joins, announces, and joins again
// when the session is lost, for as long as the process lives.
//
//	joining ──registered──► present ──session lost──► joining (after a jitter that grows)
//	   └── another process holds the name, for longer than a lease: error
type presence struct {
	store  *store.Store
	state  *datadir.State
	former datadir.Record
	node   task.Node // as configured; the rest is filled in at each announcement
	ttl    time.Duration
	env    Environment
	log    *zap.Logger

	// What the record says, and what may keep the node from being present:
	attempts    attemptRunner
	entries     entryReader
	member      *memberMonitor
	listeners   *apiListeners
	expiry      *certExpiryMonitor
	facts       *hostfacts.Monitor
	trust       trust
	eligibility *eligibility
	watchdog    *watchdog
	stall       *stallMonitor // looks at each announcement that etcd took

	announce wake.Signal // sent when the record is to be announced at once

	mu       sync.Mutex
	session  *kv.Session
	fence    kv.Fence
	draining bool
	told     task.Node // the last record that etcd took
	watchers []wake.Signal
}

// Session is the fence of the present session; false while there is none.
func (p *presence) Session() (kv.Fence, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.session == nil {
		return kv.Fence{}, false
	}

	select {
	case <-p.session.Done():
		return kv.Fence{}, false
	default:
		return p.fence, true
	}
}

// notifyOnChange has a signal sent when the session changes.
func (p *presence) notifyOnChange(signal wake.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers = append(p.watchers, signal)
}

func (p *presence) setSession(s *kv.Session, f kv.Fence) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.session, p.fence = s, f
	for _, signal := range p.watchers {
		signal.Send()
	}
}

func (p *presence) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

// startDrain announces that the node takes no more shards and runs.
func (p *presence) startDrain() {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()

	p.announce.Send()
}

// nodeRecord is the node's record as it is to be announced now.
func (p *presence) nodeRecord() task.Node {
	n := p.node
	n.Unreadable, n.Member, n.Expires = p.entries.Unreadable(), p.member.currentMember(), p.expiry.expiringSoon()
	n.State, n.Running, n.Unfit, n.Leases = p.state.Wanted(), p.attempts.Running(), p.eligibility.gravestReason(), p.state.Leases()
	n.Epoch, n.Froze = p.state.Epoch(), p.attempts.Froze()

	facts, pressed := p.facts.Known()

	n.Facts, n.Pressed = facts, p.trust.exceededLimits(pressed)
	if n.Stuck = p.attempts.StuckStarts(); n.Stuck >= process.ManyStuck {
		n.Pressed = append(slices.Clip(n.Pressed), task.PressedStarts)
	}

	n.SecretKeys, n.StateBy = p.trust.keyIDs(), p.state.WantedBy()
	n.Address = p.listeners.announcedAddress()
	if err := p.listeners.listenError(); err != nil {
		n.APIError = err.Error()
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.draining {
		if n.State != task.NodeDraining {
			n.StateBy = "" // the process stops: that is the node's own doing
		}
		n.State = task.NodeDraining
	}

	n.Clock = task.At(p.env.Now()) // last: it is compared with other nodes'

	return n
}

// run keeps the node present until ctx ends. Then it leaves.
func (p *presence) run(ctx context.Context) error {
	var lost losses

	for first := true; ; first = false {
		s, f, err := p.joinCluster(ctx)
		if err != nil {
			return err
		}

		p.log.Info("joined the cluster", zap.String("node", p.node.Name), zap.Int64("rev", f.CreateRevision),
			zap.String("instance", p.node.Instance), zap.Bool("again", !first))
		p.attempts.Joined(executor.Session{Fence: f, LastRenewal: s.LastRenewal, TTL: s.TTL()})
		p.setSession(s, f)
		joined := time.Now()
		err = p.holdSession(ctx, s, f)
		p.setSession(nil, kv.Fence{})

		if ctx.Err() != nil {
			return p.leaveCluster(context.WithoutCancel(ctx), s, f)
		}

		p.log.Warn("lost the session; rejoining", zap.String("node", p.node.Name), zap.Error(err))
		// The key may be there still (the lease ended here first); nobody else
		// may be told that it is a stranger's.
		p.revokeLease(ctx, s)

		if !clock.Sleep(ctx, lost.nextDelay(time.Since(joined))) {
			return ctx.Err()
		}
	}
}

// holdSession announces the node until its session ends.
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

		n := p.nodeRecord()
		err := p.store.Announce(ctx, f, n, s.Lease())
		news := n.State != told.State || n.Unfit != told.Unfit || n.Froze != told.Froze || !slices.Equal(n.Pressed, told.Pressed)

		switch {
		case errors.Is(err, task.ErrFenced):
			return err
		case err == nil:
			if news {
				p.log.Info("announced", zap.String("node", n.Name), zap.String("state", n.State), zap.String("unfit", n.Unfit), zap.Int64("froze", n.Froze), zap.Strings("pressed", n.Pressed))
			}

			told = n
			p.logAnnounced(n)

			if n.State == task.NodeDraining { // somebody waits for the end of it
				tick.Reset(announceDraining)
			} else {
				tick.Reset(announceEvery)
			}

			p.stall.checkStalls(time.Now(), time.Since(steady))
		default:
			steady = time.Now()
		}

		if err != nil && news {
			p.announce.Send() // the state has to arrive
			if !clock.Sleep(ctx, 200*time.Millisecond) {
				return ctx.Err()
			}
		}
	}
}

func (p *presence) lastTold() task.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

// logAnnounced keeps the record that etcd took last, for those who wait for it.
func (p *presence) logAnnounced(n task.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = n
}

// joinCluster opens a session and registers the node under it. Only a name that stays
// taken ends it with an error, or ctx.
func (p *presence) joinCluster(ctx context.Context) (*kv.Session, kv.Fence, error) {
	told := false
	var taken time.Time // since when another holds the name
	for {
		s, f, holder, err := p.tryJoin(ctx)
		switch {
		case err == nil:
			return s, f, nil
		case ctx.Err() != nil:
			return nil, kv.Fence{}, ctx.Err()
		case errors.Is(err, store.ErrFormat):
			return nil, kv.Fence{}, err
		case holder != nil && p.isOurs(holder):
			p.revokeLeases(ctx, holder.Leases)
			continue
		case holder != nil && taken.IsZero():
			taken = p.env.Now()
			p.log.Warn("the name is taken, waiting for one lease", zap.String("node", p.node.Name), zap.String("by", holder.Instance), zap.String("at", holder.Address))
		case holder != nil && p.env.Now().Sub(taken) > p.ttl+2*time.Second:
			return nil, kv.Fence{}, fmt.Errorf("the name %q is taken by instance %s at %s, started %s: choose another with --name, or stop that one",
				p.node.Name, holder.Instance, holder.Address, holder.StartedAt.Format(time.RFC3339))
		case holder == nil:
			taken = time.Time{}
			if !told {
				told = true
				p.log.Warn("cannot join; retrying", zap.String("node", p.node.Name), zap.Error(err))
			}
		}

		if !clock.Sleep(ctx, 300*time.Millisecond+rand.N(400*time.Millisecond)) {
			return nil, kv.Fence{}, ctx.Err()
		}
	}
}

// tryJoin opens a session and registers once. holder is who has the name.
func (p *presence) tryJoin(ctx context.Context) (_ *kv.Session, f kv.Fence, holder *task.Node, err error) {
	if err := p.watchdog.checkAlive(); err != nil {
		return nil, f, nil, err
	}

	// The session outlives everything that is done under it.
	s, err := kv.OpenSession(context.WithoutCancel(ctx), p.store.Client(), kv.SessionConfig{
		TTL: p.ttl, Saved: p.state.SetSession, Alive: p.watchdog.checkAlive, Logger: p.log})
	if err != nil {
		return nil, f, nil, err
	}

	p.node.JoinedAt = task.At(p.env.Now())
	n := p.nodeRecord()

	f, holder, err = p.store.Register(ctx, n, s.Lease())
	if err != nil {
		p.revokeLease(ctx, s)
		return nil, f, holder, err
	}

	p.logAnnounced(n)

	return s, f, nil, nil
}

// isOurs reports whether the holder of the name is this process, or one that is
// dead: its lease was saved in the directory that this process has locked.
func (p *presence) isOurs(holder *task.Node) bool {
	if holder.Instance == p.node.Instance {
		return true
	}
	return slices.Contains(p.former.Instances, holder.Instance) ||
		p.former.Session != "" && slices.Contains(holder.Leases, p.former.Session)
}

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

func (p *presence) revokeLease(ctx context.Context, s *kv.Session) {
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.Close(rctx); err != nil {
		p.log.Debug("could not revoke the session's lease; it will expire", zap.Error(err))
	}
}

// leaveCluster deletes the node's key if its inbox is empty, and gives the lease up in
// any case: what is left in the inbox is for the next instance, or is lost.
func (p *presence) leaveCluster(ctx context.Context, s *kv.Session, f kv.Fence) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	if err := p.store.Leave(ctx, f, p.node.Name); err != nil {
		p.log.Info("left the cluster with attempts in the inbox", zap.String("node", p.node.Name), zap.Error(err))
	}

	p.revokeLease(ctx, s)

	return p.state.SetSession(0)
}
