package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/auditlog"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Run runs the node until ctx ends and the node has drained, or until a component fails.
// When it returns, everything that it started has ended. etcdhistory.ErrNewHistory means that the caller should start the node
// again as another instance.
func (n *Node) Run(ctx context.Context) error {
	// A node that is draining, or whose etcd went back, starts nothing; see stateController.applyRequest.
	if n.state.Wanted() == task.NodeDraining || n.restored != nil {
		n.executor.HandBack()
	}

	failed := make(chan struct{}, 1)

	// The keeper checks which shards it has to serve when owners, handovers or the session change.
	defer n.owners.Subscribe(n.keep)()
	defer n.moves.Subscribe(n.keep)()

	n.presence.notifyOnChange(n.keep)

	// The stages stop in the reverse order, because each depends on those before it.
	//
	// infra stops last: results are recorded through the batcher, and the guardian receives the end of
	// each attempt.
	infra := newStage(ctx, failed)
	infra.startPart(n.batcher.Run)
	infra.startPart(n.events.Run)

	if n.guardian != nil {
		infra.startPart(n.guardian.Run)
	}

	infra.startPart(n.watchEmbedded)

	// The API listens until the node has left the cluster.
	http := newStage(ctx, failed)
	http.startPart(n.http.run)
	if n.metrics != nil {
		http.startPart(n.metrics.run)
	}

	// It stops serving before it forgets who may do what.
	if n.cfg.knowsAccess() {
		http.startPart(n.access.Run)
	}

	http.startPart(n.late.Run)

	for _, sink := range n.sinks {
		http.startPart(sink.Run)
	}

	// The node stays present until the workers have stopped, because their writes compare its key.
	presence := newStage(ctx, failed)
	presence.startPart(n.nodes.Run)
	presence.startPart(n.owners.Run)
	presence.startPart(n.member.run)
	presence.startPart(n.record.run)
	presence.startPart(n.followFreezes)
	presence.startPart(n.moves.Run)
	if n.limits != nil {
		presence.startPart(n.limits.Run)
	}
	if n.rules != nil {
		presence.startPart(n.rules.mirror.Run)
	}
	presence.startPart(n.facts.Run)
	presence.startPart(n.bePresent)
	presence.startPart(n.states.run)
	presence.startPart(n.history.Run)
	presence.startPart(n.history.AskOthers)
	presence.startPart(n.expiry.run)
	presence.startPart(func(ctx context.Context) error { return n.hostFiles.watchFiles(ctx, n.announce.Send) })

	// The workers decide ticks and run attempts.
	workers := newStage(ctx, failed)
	workers.startPart(n.followFleet)
	workers.startPart(n.executor.Run)
	workers.startPart(n.clock.run)
	workers.startPart(n.watchdog.run)
	workers.startPart(n.watchPeers)

	if n.cfg.hasSchedulerRole() {
		workers.startPart(n.engine.Run)
		workers.startPart(n.followAccess)
		workers.startPart(n.etcd.run)
		workers.startPart(n.keepShards)
		workers.startPart(func(ctx context.Context) error { return n.election.Run(ctx, n.leader.runTerm) })
	}

	select {
	case <-ctx.Done():
		n.drainNode(context.WithoutCancel(ctx))
	case <-failed:
		// Do not drain: a component that is needed for that may have failed.
	}

	return errors.Join(workers.stopParts(), presence.stopParts(), http.stopParts(), infra.stopParts())
}

// newAuditSinks returns the sinks that the settings name.
func (n *Node) newAuditSinks() (sinks []*auditlog.Sink) {
	cfg := auditlog.SinkConfig{Dir: n.cfg.DataDir, Client: n.client, Keys: n.store.Keys(), Epoch: n.state.Epoch(), Logger: n.log, Registerer: n.registry}
	if n.cfg.AuditFile != "" {
		sinks = append(sinks, auditlog.NewFileSink(cfg, n.cfg.AuditFile))
	}
	if n.cfg.AuditSyslog {
		sinks = append(sinks, auditlog.NewSyslogSink(cfg))
	}

	return sinks
}

// recordRefusedLogin copies the record of a refused login to this node's sinks. It never waits.
func (n *Node) recordRefusedLogin(r task.AuditRecord) {
	for _, sink := range n.sinks {
		sink.Offer(r)
	}
}

// watchEmbedded returns an error when the embedded etcd stops by itself. Without one, it waits until ctx ends.
func (n *Node) watchEmbedded(ctx context.Context) error {
	if n.server == nil {
		<-ctx.Done()
		return ctx.Err()
	}

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-n.server.Done():
		return fmt.Errorf("embedded etcd: %w", n.server.Err())
	}
}

// bePresent clears what former processes of this node left, and then keeps the node present.
func (n *Node) bePresent(ctx context.Context) error {
	// What a living process runs must not be reported as cleared.
	if err := n.presence.awaitFormerGone(ctx); err != nil {
		return err
	}

	if err := n.clearFormer(ctx); err != nil {
		return err
	}

	// Wait for the first facts of the host. Runs whose selector compares facts would otherwise wait for the second
	// announcement.
	select {
	case <-n.facts.Measured():
	case <-ctx.Done():
	}

	return n.presence.run(ctx)
}

// keepShards runs the keeper, once all mirrors are loaded and the clock was compared
// with those of other nodes. Before that, the keeper would find no owners, and the placement no nodes.
func (n *Node) keepShards(ctx context.Context) error {
	for _, ready := range []<-chan struct{}{n.nodes.Ready(), n.owners.Ready(), n.moves.Ready(), n.clock.looked} {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ready:
		}
	}

	return n.keeper.Run(ctx)
}

// followFleet passes the records of all nodes to the scheduler and to the monitors that compare them. The scheduler gets
// nodes with only those labels that their limits allow. followFleet wakes the workers when nodes have joined, left, or
// changed which runs they accept, and when records of namespaces have changed.
func (n *Node) followFleet(ctx context.Context) error {
	// Without this, a change of access records would have the monitors see a cluster without nodes.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-n.nodes.Ready():
	}

	defer n.nodes.Subscribe(n.fleetChanged)()
	if n.limits != nil {
		defer n.limits.Subscribe(n.fleetChanged)()
	}

	var (
		placement  string
		namespaces map[string]int64
		own        ignoredLabels
	)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.fleetChanged:
		}

		v := n.access.View()
		nodes := n.knownLimits(v).LimitNodes(n.presentNodes())
		n.fleet.Set(nodes)
		n.clock.observeNodes(nodes)
		n.history.ObserveNodes(nodes)
		own.reportChange(nodes, n.cfg.Name, n.log)

		if before := n.placedBy.Swap(v); before != v {
			if now := namespaceRevisions(v); !maps.Equal(now, namespaces) {
				namespaces = now
				n.engine.WakeWorkers()
			}
		}

		if now := placementOf(nodes); now != placement {
			placement = now
			n.engine.WakeWorkers()
		}

		// A thousand nodes announce themselves 200 times a second in total. Process several announcements together.
		if !clock.Sleep(ctx, time.Duration(len(nodes))*fleetPace) {
			return ctx.Err()
		}
	}
}

// fleetPace is the minimum pause between two updates of the fleet, for each node. With a thousand nodes, it is 0.1 s.
const fleetPace = 100 * time.Microsecond

// watchPeers probes a few other nodes, to detect early that one has crashed.
func (n *Node) watchPeers(ctx context.Context) error {
	changed := wake.NewSignal()
	defer n.nodes.Subscribe(changed)()

	return n.peers.Run(ctx, changed, n.presentNodes)
}

// placementOf returns a string of the properties of all nodes that determine where runs may go. Facts are not among
// them, because they change all the time; runs that wait for facts are checked at intervals.
func placementOf(nodes []task.Node) string {
	s := ""
	for _, n := range nodes {
		s += fmt.Sprintln(n.Name, n.Revision, n.State, n.Blocked, n.HoldsKey(), n.Roles, n.Slots, n.Labels)
	}
	return s
}

// saveElection stores the lease of the election on disk and announces it, so that others can revoke it after a crash.
func (n *Node) saveElection(id clientv3.LeaseID) error {
	err := n.state.SetElection(id)
	n.announce.Send()
	return err
}

// clearFormer kills what former processes of this data directory left running, records
// their instances as cleared, and revokes their leases. The lock on the directory, or awaitFormerGone, has shown that
// they are dead.
func (n *Node) clearFormer(ctx context.Context) error {
	killed := map[string]int{} // number of killed processes by instance, over all tries
	err := n.etcdWaiter.untilReached(ctx, func() error {
		// First the control groups, which contain processes that carry no mark.
		if err := n.groups.ClearFormer(); err != nil {
			return fmt.Errorf("clean up after an earlier instance: %w", err)
		}

		left := map[string][]proctree.Mark{}
		active, err := n.store.Inbox(ctx, n.cfg.Name)
		if err != nil {
			return err
		}

		for _, h := range active {
			if slices.Contains(n.former.Instances, h.Instance) {
				left[h.Instance] = append(left[h.Instance], proctree.Mark{Namespace: h.Namespace, Task: h.Task, RunID: h.ID, Token: h.Create})
			}
		}

		// An instance is recorded as cleared only after all its processes have been killed. From then on,
		// owners may replace its attempts (G17).
		for instance, attempts := range left {
			some, err := proctree.KillMarked(ctx, attempts)
			killed[instance] += some
			if err != nil {
				return fmt.Errorf("kill what instance %s left running: %w", instance, err)
			}
			if err := n.store.PutCleared(ctx, instance, task.At(n.env.Now())); err != nil {
				return err
			}

			n.log.Info("cleared an earlier instance of this node", zap.String("instance", instance), zap.Int("attempts", len(attempts)), zap.Int("killed", killed[instance]))
		}

		return nil
	})

	if err != nil {
		return err
	}

	n.presence.revokeLeases(ctx, slices.DeleteFunc([]string{n.former.Session, n.former.Election}, func(l string) bool { return l == "" }))

	return nil
}

// drainNode hands over the node's work within the drain timeout: its shards to
// other owners, and attempts that have not started to the queue. It waits for running attempts, and kills them when
// the time is up.
func (n *Node) drainNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DrainTimeout.Std())
	defer cancel()

	n.log.Info("draining", zap.String("node", n.cfg.Name), zap.Int("running", n.executor.Running()))
	n.states.drainAll()

	for n.handsOver() && clock.Sleep(ctx, 20*time.Millisecond) {
	}

	if err := n.executor.Drain(ctx); err != nil {
		n.log.Warn("drained, but some work remains", zap.String("node", n.cfg.Name), zap.Error(err))
	}
}

// handsOver reports whether shards still have to move to other nodes, and there are nodes that can take them.
func (n *Node) handsOver() bool {
	if _, present := n.presence.Session(); !present {
		return false
	}
	others := slices.ContainsFunc(n.presentNodes(), func(o task.Node) bool { return o.Name != n.cfg.Name && o.Owns() })
	return others && (len(n.health.ownShards()) > 0 || n.keeper.Running() > 0)
}

// stage is a group of components that stop together. A node's stages stop in the
// reverse order of their start, whichever component failed, so no
// component outlives those on which it depends.
type stage struct {
	ctx    context.Context // passed to the components; ends with stopParts and not with the caller's context
	stop   context.CancelFunc
	parts  errgroup.Group
	failed wake.Signal // receives a value when a component ends before stopParts
}

// newStage returns a stage without components.
func newStage(ctx context.Context, failed wake.Signal) *stage {
	s := &stage{failed: failed}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// startPart runs a component on a goroutine.
func (s *stage) startPart(part func(context.Context) error) {
	s.parts.Go(func() error {
		err := part(s.ctx)

		if s.ctx.Err() == nil {
			s.failed.Send()
		}

		return err
	})
}

// stopParts stops the components, waits for them, and returns the first error that is not a cancellation.
func (s *stage) stopParts() error {
	s.stop()
	if err := s.parts.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
