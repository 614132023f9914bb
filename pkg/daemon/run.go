package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Run runs the node until ctx ends and it has drained, or a part of it cannot
// go on. All that it started has ended when it returns.
func (n *Node) Run(ctx context.Context) error {
	if n.state.Wanted() == task.NodeDraining || n.restored != nil {
		n.executor.HandBack()
	}

	failed := make(chan struct{}, 1)

	// The keeper looks what it is to serve when owners, handovers or the session change.
	defer n.owners.Subscribe(n.keep)()
	defer n.moves.Subscribe(n.keep)()

	n.presence.notifyOnChange(n.keep)

	// Without these no part could end as it should: results are recorded
	// through the batcher, and the guardian is told of every attempt's end.
	infra := newStage(ctx, failed)
	infra.startPart(n.batcher.Run)

	if n.guardian != nil {
		infra.startPart(n.guardian.Run)
	}

	infra.startPart(n.watchEmbedded)

	// It listens until the node has left.
	http := newStage(ctx, failed)
	http.startPart(n.http.run)

	// The node leaves when nothing acts in its name any more.
	presence := newStage(ctx, failed)
	presence.startPart(n.nodes.Run)
	presence.startPart(n.owners.Run)
	presence.startPart(n.member.run)
	presence.startPart(n.record.run)
	presence.startPart(n.followFreezes)
	presence.startPart(n.moves.Run)
	presence.startPart(n.facts.Run)
	presence.startPart(n.bePresent)
	presence.startPart(n.states.run)
	presence.startPart(n.history.run)
	presence.startPart(n.expiry.run)
	presence.startPart(func(ctx context.Context) error { return n.trust.watchFiles(ctx, n.announce.Send) })

	workers := newStage(ctx, failed)
	workers.startPart(n.followFleet)
	workers.startPart(n.executor.Run)
	workers.startPart(n.clock.run)
	workers.startPart(n.watchdog.run)
	workers.startPart(n.watchPeers)

	if slices.Contains(n.cfg.Roles, task.RoleScheduler) {
		workers.startPart(n.engine.Run)
		workers.startPart(n.etcd.run)
		workers.startPart(n.keepShards)
		workers.startPart(func(ctx context.Context) error { return n.election.Run(ctx, n.leader.runTerm) })
	}

	select {
	case <-ctx.Done():
		n.drainNode(context.WithoutCancel(ctx))
	case <-failed:
	}

	return errors.Join(workers.stopParts(), presence.stopParts(), http.stopParts(), infra.stopParts())
}

// watchEmbedded fails when the embedded etcd stops by itself.
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

// bePresent keeps the node present, once what its former processes left is cleared.
func (n *Node) bePresent(ctx context.Context) error {
	if err := n.clearFormer(ctx); err != nil {
		return err
	}

	select { // its first record has facts: else what compares them would wait for the second
	case <-n.facts.Measured():
	case <-ctx.Done():
	}

	return n.presence.run(ctx)
}

// keepShards runs the keeper once all mirrors are known, and the clock was compared
// with the others': before, it would see no owners and placement no nodes.
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

// followFleet keeps the scheduler's view of the nodes, and has the workers look
// again when nodes have come, gone or changed what they take.
func (n *Node) followFleet(ctx context.Context) error {
	changed := wake.NewSignal()
	defer n.nodes.Subscribe(changed)()

	before := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}

		nodes := n.presentNodes()
		n.fleet.Set(nodes)
		n.clock.observeNodes(nodes)
		n.history.observeNodes(nodes)

		if now := placementOf(nodes); now != before {
			before = now
			n.engine.Look()
		}

		// A thousand nodes announce themselves 200 times a second: several at a time will do.
		if !clock.Sleep(ctx, time.Duration(len(nodes))*fleetPace) {
			return ctx.Err()
		}
	}
}

// fleetPace is how long the view of the nodes may be old, for each of them.
const fleetPace = 100 * time.Microsecond

// watchPeers keeps an eye on some other nodes.
func (n *Node) watchPeers(ctx context.Context) error {
	changed := wake.NewSignal()
	defer n.nodes.Subscribe(changed)()

	return n.peers.Run(ctx, changed, n.presentNodes)
}

// placementOf is what of the nodes matters for where runs may go. Facts are not in
// it, as they never stay: what waits for them is looked at now and then.
func placementOf(nodes []task.Node) string {
	s := ""
	for _, n := range nodes {
		s += fmt.Sprintln(n.Name, n.Revision, n.State, n.Pressed, n.HoldsKey(), n.Roles, n.Slots, n.Labels)
	}
	return s
}

func (n *Node) saveElection(id clientv3.LeaseID) error {
	err := n.state.SetElection(id)
	n.announce.Send()
	return err
}

// clearFormer kills what former processes on this data directory left running,
// says so, and gives their leases up. The lock proves that they are dead.
func (n *Node) clearFormer(ctx context.Context) error {
	killed := map[string]int{} // of an instance, over all tries
	err := n.etcdWaiter.untilReached(ctx, func() error {
		if err := n.groups.ClearFormer(); err != nil {
			return fmt.Errorf("clear what a former instance left: %w", err)
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

// drainNode hands over what the node does, as far as time allows: its shards to
// other owners, its unstarted attempts to the queue; it waits for the others.
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

// handsOver reports whether shards are still to move to other nodes.
func (n *Node) handsOver() bool {
	if _, present := n.presence.Session(); !present {
		return false
	}
	others := slices.ContainsFunc(n.presentNodes(), func(o task.Node) bool { return o.Name != n.cfg.Name && o.Owns() })
	return others && (len(n.health.ownShards()) > 0 || n.keeper.Running() > 0)
}
