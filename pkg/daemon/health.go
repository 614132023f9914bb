package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// watch prepares what watches over the node, and over others.
func (n *Node) watch() {
	n.watchdog.over("keeper", n.keeper.Beats)
	n.watchdog.over("engine", n.engine.Beats)
	n.watchdog.over("executor", n.executor.Beats)
	n.stall = &stallCare{
		stalled: func(age time.Duration) ([]int, error) { return n.engine.Stalled(n.outside.Now(), age) },
		restart: n.engine.Restart, fitness: n.fitness, log: n.log.Named("stall"),
	}
	n.history = &history{
		node: n.cfg.Name, present: n.store.Present, revisions: n.revisions, state: n.state, fitness: n.fitness, log: n.log.Named("history"),
	}
	n.peers = newPeers(&peers{
		node: n.cfg.Name, host: n.outside.Host, dial: n.outside.Dial, tls: n.links.config, read: n.store.Node, revoke: n.revoke, log: n.log.Named("peers"),
	}, n.registry)
	n.fitness.set(task.UnfitRestored, n.restored)
}

// present are the nodes that are present, as far as this one knows.
func (n *Node) present() []task.Node { return n.known.Decode(n.nodes.Snapshot().KVs) }

// unfitChanged has everybody look again who asks whether the node may own shards.
func (n *Node) unfitChanged() {
	n.presence.announceSoon()
	select {
	case n.keep <- struct{}{}:
	default:
	}
	n.obeyState()
}

// mayCommit is asked before each commit of a shard.
func (n *Node) mayCommit() error {
	if err := n.clock.check(); err != nil {
		return fmt.Errorf("%w: %w", errUnfit, err)
	}
	return n.fitness.forbids()
}

// sessionOfOwner is the session under which the node owns shards; false while it
// has none, or must decide nothing.
func (n *Node) sessionOfOwner() (kv.Fence, bool) {
	if n.fitness.forbids() != nil {
		return kv.Fence{}, false
	}
	return n.presence.Session()
}

// revoke ends leases of another node.
func (n *Node) revoke(ctx context.Context, leases []string) error {
	var errs []error
	for _, l := range leases {
		id := parseLease(l)
		if id == clientv3.NoLease {
			continue
		}
		if _, err := n.client.Revoke(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			errs = append(errs, fmt.Errorf("revoke lease %s: %w", l, err))
		}
	}
	return errors.Join(errs...)
}

// setState has the node take a state that an operator wants, kept over restarts,
// and returns once etcd has it.
func (n *Node) setState(ctx context.Context, state string) error {
	if err := n.state.setWanted(state); err != nil {
		return fmt.Errorf("keep the state of node %s: %w", n.cfg.Name, err)
	}
	n.obeyState()
	n.presence.announceSoon()
	for n.presence.lastTold().State != state {
		if !pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("node %s keeps the state %s, but cannot announce it: %w", n.cfg.Name, state, task.ErrUnavailable)
		}
	}
	return nil
}

// obeyState has the executor do what the node's state says. What is in the inbox
// of an etcd that went back may have run before.
func (n *Node) obeyState() {
	n.obeying.Lock()
	defer n.obeying.Unlock()
	if n.state.wanted() == task.NodeDraining || n.fitness.why(task.UnfitRestored) != nil {
		n.executor.HandBack()
	} else if !n.presence.isDraining() {
		n.executor.Resume()
	}
}
