package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/daemon/peerprobe"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// nodeHealth computes the node's health for the readiness check of
// the API and for the service manager.
type nodeHealth struct {
	cfg         Config
	env         Environment
	record      *clusterRecord
	owners      func() []record.Owner // of all shards, from the mirror
	state       *datadir.State
	presence    *presence
	eligibility *eligibility
	listeners   *apiListeners
	access      *authority.Keeper
	keeper      *shard.Keeper
	engine      *scheduler.Engine
	executor    *executor.Executor
	watchdog    *watchdog

	heard atomic.Int64 // the number of the watchdog's checks at the last CheckAlive
}

// checkReady returns why the node is not ready, or nil. It is ready if it decides its ticks, its API
// listens at all its addresses, and it knows who may do what.
func (h *nodeHealth) checkReady() error {
	return errors.Join(h.checkDeciding(), h.listeners.listenError(), h.checkAccess())
}

// checkAccess returns an error if the node needs the access records and has not loaded them yet.
func (h *nodeHealth) checkAccess() error {
	if h.cfg.knowsAccess() && h.access.View().Fence == 0 {
		return errors.New("the access records are not loaded; if this does not change, see the log")
	}
	return nil
}

// checkDeciding returns why the node does not decide its ticks, or nil. It does if it has a session, is eligible, and
// every shard that it owns has a worker and no undecided tick that is older than five seconds.
func (h *nodeHealth) checkDeciding() error {
	if _, ok := h.presence.Session(); !ok {
		return errors.New("the node has no session with etcd")
	}
	if err := h.eligibility.firstError(); err != nil {
		return err
	}
	if owned, served := len(h.ownShards()), h.keeper.Running(); served < owned {
		return fmt.Errorf("%d of the %d shards of this node are served", served, owned)
	}

	return h.engine.Overdue(h.env.Now(), 5*time.Second)
}

// ownShards returns the shards that are assigned to this node, from the mirror.
func (h *nodeHealth) ownShards() []record.Owner {
	return slices.DeleteFunc(h.owners(), func(o record.Owner) bool { return o.Node != h.cfg.Name })
}

// CheckFiring returns why the node does not fire, or nil. It fires if it decides its ticks and all
// shards of the cluster have owners. In a new cluster they have none, and no node fires. A node whose API
// cannot listen fires nevertheless: the status shows the problem, and the service manager
// has no reason to wait or to restart the node.
func (h *nodeHealth) CheckFiring() error {
	if err := h.checkDeciding(); err != nil {
		return err
	}
	if !slices.Contains(h.cfg.Roles, task.RoleScheduler) || h.state.Wanted() == task.NodeDraining || h.presence.isDraining() {
		// A node that owns no shards, by its roles or its state, has nothing to fire.
		return nil
	}
	if owned := len(h.owners()); owned < h.record.atStart.Shards {
		return fmt.Errorf("%d of the %d shards of the cluster have an owner", owned, h.record.atStart.Shards)
	}

	return nil
}

// CheckAlive returns nil if all components make progress and the watchdog has
// checked them since the previous call.
func (h *nodeHealth) CheckAlive() error {
	looks := h.watchdog.looks.Load()
	if looks == h.heard.Swap(looks) {
		return errors.New("the node's watchdog does not respond")
	}
	return h.watchdog.checkAlive()
}

// Status describes in one line what the node does.
func (h *nodeHealth) Status() string {
	s := fmt.Sprintf("%d running", h.executor.Running())
	if slices.Contains(h.cfg.Roles, task.RoleScheduler) {
		s = wording.Plural(int64(h.keeper.Running()), "shard") + ", " + s
	}

	if err := h.listeners.listenError(); err != nil {
		s += "; " + err.Error()
	}

	switch {
	case h.presence.isDraining():
		return "Draining: " + s
	case h.state.Wanted() != task.NodeReady:
		return "Set to " + h.state.Wanted() + ": " + s
	}

	return "Ready: " + s
}

// LostAfter returns the lost_after of attempts that are assigned to the node now.
func (h *nodeHealth) LostAfter() time.Duration {
	return h.record.currentRecord().LostAfterWithLease(h.cfg.LeaseTTL).Std()
}

// wireMonitors creates the monitors of the node, of etcd and of other nodes.
func (n *Node) wireMonitors() {
	n.watchdog.watchPart("keeper", n.keeper)
	n.watchdog.watchPart("engine", n.engine)
	n.watchdog.watchPart("executor", n.executor)

	n.etcd = newEtcdMonitor(n.store, n.registry, n.log)
	n.peers = peerprobe.New(peerprobe.Config{
		Node: n.cfg.Name, Host: n.env.Host, Dial: n.env.Dial, TLS: n.tls.serverConfig,
		Cluster: peerCluster{n.store}, Logger: n.log.Named("peers"), Registerer: n.registry,
	})
	n.eligibility.setReason(task.IneligibleRestored, n.restored)
}

// newHistoryMonitor returns the monitor that detects a restored etcd.
func (n *Node) newHistoryMonitor() *etcdhistory.Monitor {
	return etcdhistory.NewMonitor(etcdhistory.MonitorConfig{
		Node: n.cfg.Name, Cluster: n.store, Revisions: n.revisions, State: n.state,
		Restored:    func() error { return n.eligibility.errorFor(task.IneligibleRestored) },
		SetRestored: func(err error) { n.eligibility.setReason(task.IneligibleRestored, err) },
		Asker:       peerhistory.NewAsker(n.env.Dial, n.tls.dialTLS()),
		Logger:      n.log.Named("history"),
	})
}

// startupHeader returns the header of /healthz until the node has reached etcd: the history that the data directory knows. So whoever
// restores the cluster sees that a node waits for the other members of its etcd.
func (n *Node) startupHeader() http.Header {
	header := http.Header{}
	cluster, epoch, _ := n.state.History()
	peerhistory.Status{History: peerhistory.History{Cluster: cluster, Epoch: epoch}}.WriteTo(header)

	return header
}

// currentHistory returns which history of the cluster the node follows.
func (n *Node) currentHistory() peerhistory.Status {
	_, session := n.presence.Session()
	return peerhistory.Status{History: peerhistory.Of(n.record.currentRecord()), Session: session}
}

// presentNodes returns the records of the present nodes, from the mirror.
func (n *Node) presentNodes() []task.Node { return n.known.Decode(n.nodes.Snapshot().KVs) }

// shardOwners returns the owners of all shards, as etcd last reported them.
func (n *Node) shardOwners() []record.Owner { return n.knownOwners.Decode(n.owners.Snapshot().KVs) }

// eligibilityChanged wakes all components that depend on whether the node may own shards.
func (n *Node) eligibilityChanged() {
	n.announce.Send()
	n.keep.Send()
	n.states.applyRequest()
}

// mayCommit returns why a shard must not commit now, or nil. Workers call it before each commit.
func (n *Node) mayCommit() error {
	if err := n.clock.checkClock(); err != nil {
		return fmt.Errorf("%w: %w", errIneligible, err)
	}
	return n.eligibility.ineligibleErr()
}

// sessionOfOwner returns the session under which the node owns shards, and false while it
// has none or must not decide anything.
func (n *Node) sessionOfOwner() (store.Session, bool) {
	if n.eligibility.ineligibleErr() != nil {
		return store.Session{}, false
	}
	return n.presence.Session()
}

// peerCluster implements peerprobe.Cluster.
type peerCluster struct{ *store.Store }

// RevokeLeases revokes the leases of another node. A lease that no longer exists is not an error.
func (c peerCluster) RevokeLeases(ctx context.Context, leases []string) error {
	var errs []error
	for _, l := range leases {
		id := datadir.ParseLease(l)
		if id == clientv3.NoLease {
			continue
		}

		if _, err := c.Client().Revoke(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			errs = append(errs, fmt.Errorf("revoke lease %s: %w", l, err))
		}
	}

	return errors.Join(errs...)
}

const (
	// stallAge is how long a node with overdue ticks may be without a commit before it counts as stalled.
	stallAge = 10 * time.Second
	// stallFirst and stallMost limit how long a stalled node owns no shards. The time doubles each
	// time the node stalls again soon.
	stallFirst, stallMost = 30 * time.Second, 10 * time.Minute
)

// shardWorkers is the part of the scheduler that the stall monitor uses.
type shardWorkers interface {
	// Stalled returns the shards whose workers have decided nothing for an age, and an
	// error if that is so for all that the workers do.
	Stalled(now time.Time, age time.Duration) (shards []int, all error)
	// Restart makes the worker of a shard start over.
	Restart(shard int)
}

// stallMonitor restarts stalled workers, and releases the node's shards if all
// of them stall. It checks only after announcements that etcd has accepted for
// some time, because an unavailable etcd is not a reason to move shards. One goroutine owns it.
type stallMonitor struct {
	workers     shardWorkers
	env         Environment
	eligibility *eligibility
	log         *zap.Logger

	strikes int           // number of checks in a row that found a stall
	rest    time.Duration // how long the node owns no shards after the latest stall
	until   time.Time     // the end of that time; zero: the node may own shards
	back    time.Time     // when that time last ended
}

// checkStalls checks the workers. steady is how long etcd has accepted every announcement.
func (s *stallMonitor) checkStalls(now time.Time, steady time.Duration) {
	if !s.until.IsZero() && !now.Before(s.until) {
		s.until, s.back = time.Time{}, now
		s.eligibility.setReason(task.IneligibleStalled, nil)
	}

	if steady < stallAge {
		s.strikes = 0
		return
	}

	shards, all := s.workers.Stalled(s.env.Now(), stallAge)
	if len(shards) == 0 && all == nil {
		s.strikes = 0
		return
	}

	// A single finding may be the end of a pause of the whole process, after which all workers are late.
	if s.strikes++; s.strikes < 2 {
		return
	}

	s.strikes = 0

	for _, id := range shards {
		s.log.Warn("a worker made no progress and is restarted", zap.Int("shard", id))
		s.workers.Restart(id)
	}

	if all == nil || !s.until.IsZero() {
		return
	}

	if s.rest = min(max(2*s.rest, stallFirst), stallMost); now.Sub(s.back) > 2*stallMost {
		s.rest = stallFirst
	}

	s.until = now.Add(s.rest)
	s.eligibility.setReason(task.IneligibleStalled, all)
}

// watchdogLimit is the number of seconds without a beat after which a component counts as stuck. Components beat
// at least every two seconds. The seconds are counted by the watchdog's own ticks, so time in which the
// whole process was stopped does not count; the lease covers that case.
const watchdogLimit = 15

// watchdog makes sure that the node does not keep its lease while it does no work: while one of
// the node's components is stuck, sessions are not renewed and none is opened.
type watchdog struct {
	log    *zap.Logger
	parts  []*watchedPart        // set before run
	wedged atomic.Pointer[error] // which component is stuck; nil or a nil error: none
	looks  atomic.Int64          // number of checks; the service manager's watchdog compares it
}

// beater is a component with a counter that grows while it makes progress. Before the first beat it is 0.
type beater interface {
	Beats() int64
}

// watchedPart is a component and its counter at the previous check.
type watchedPart struct {
	name  string
	part  beater
	last  int64 // its counter at the previous check
	still int   // number of checks in a row without a change
}

// newWatchdog returns a watchdog without components.
func newWatchdog(log *zap.Logger) *watchdog { return &watchdog{log: log.Named("watchdog")} }

// watchPart adds a component, which is checked from its first beat on. It must be called before run.
func (w *watchdog) watchPart(name string, part beater) {
	w.parts = append(w.parts, &watchedPart{name: name, part: part})
}

// run checks the components every second until ctx ends.
func (w *watchdog) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			w.checkParts()
		}
	}
}

// checkParts checks all components once and records whether one is stuck.
func (w *watchdog) checkParts() {
	var err error
	for _, p := range w.parts {
		if now := p.part.Beats(); now != p.last || now == 0 {
			p.last, p.still = now, 0
		} else {
			p.still++
		}

		if p.still >= watchdogLimit {
			err = fmt.Errorf("the node's %s does not respond", p.name)
		}
	}

	switch was := w.checkAlive(); {
	case err != nil && was == nil:
		w.log.Error("a component of this node does not respond: ending its session", zap.Error(err))
	case err == nil && was != nil:
		w.log.Info("all components of this node respond again")
	}

	w.wedged.Store(&err)
	w.looks.Add(1)
}

// checkAlive returns an error that names a stuck component, or nil if there is none.
func (w *watchdog) checkAlive() error {
	if err := w.wedged.Load(); err != nil {
		return *err
	}
	return nil
}
