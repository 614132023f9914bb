package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/peerprobe"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
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
	n.peers = peerprobe.New(peerprobe.Config{
		Node: n.cfg.Name, Host: n.outside.Host, Dial: n.outside.Dial, TLS: n.tls.config,
		Cluster: peerCluster{n.store}, Logger: n.log.Named("peers"), Registerer: n.registry,
	})
	n.fitness.set(task.UnfitRestored, n.restored)
}

// present are the nodes that are present, as far as this one knows.
func (n *Node) present() []task.Node { return n.known.Decode(n.nodes.Snapshot().KVs) }

// unfitChanged has everybody look again who asks whether the node may own shards.
func (n *Node) unfitChanged() {
	n.announce.Send()
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

// peerCluster is what the probe of other nodes needs of etcd.
type peerCluster struct{ *store.Store }

// RevokeLeases ends leases of another node.
func (c peerCluster) RevokeLeases(ctx context.Context, leases []string) error {
	var errs []error
	for _, l := range leases {
		id := parseLease(l)
		if id == clientv3.NoLease {
			continue
		}
		if _, err := c.Client().Revoke(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			errs = append(errs, fmt.Errorf("revoke lease %s: %w", l, err))
		}
	}
	return errors.Join(errs...)
}

// setState has the node take a state that an operator wants, kept over restarts,
// and returns once etcd has it.
func (n *Node) setState(ctx context.Context, state, by string) error {
	if err := n.state.setWanted(state, by); err != nil {
		return fmt.Errorf("keep the state of node %s: %w", n.cfg.Name, err)
	}
	n.obeyState()
	n.announce.Send()
	for n.presence.lastTold().State != state {
		if !clock.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("node %s keeps the state %s, but cannot announce it: %w", n.cfg.Name, state, task.ErrUnavailable)
		}
	}
	return nil
}

// obeyRequests has the node take the states that other nodes ask for in an operator's
// name.
func (n *Node) obeyRequests(ctx context.Context) error {
	var obeyed int64 // mod revision of the last one
	return n.store.FollowNodeRequests(ctx, n.cfg.Name, time.Minute, func(r store.NodeRequest) error {
		ctx, cancel := context.WithTimeout(ctx, obeyWithin)
		defer cancel()

		// What is meant for a former process, or was obeyed before, is only deleted.
		known := slices.Contains([]string{task.NodeReady, task.NodeCordoned, task.NodeDraining}, r.State)
		if r.Instance == n.instance && r.Mod > obeyed && known {
			n.log.Info("asked to take a state", zap.String("node", n.cfg.Name), zap.String("state", r.State), zap.String("by", r.By))
			if err := n.setState(ctx, r.State, r.By); err != nil {
				n.log.Warn("could not take the state that was asked for", zap.String("node", n.cfg.Name), zap.String("state", r.State), zap.Error(err))
				return nil // who asked withdraws the request, or it is told again
			}
			obeyed = r.Mod
		}
		if _, err := n.store.DeleteNodeRequest(ctx, n.cfg.Name, r.Mod); err != nil {
			n.log.Warn("could not delete a request that is obeyed", zap.String("node", n.cfg.Name), zap.Error(err))
		}
		return nil
	})
}

// obeyWithin is how long a request to this node may take.
const obeyWithin = 10 * time.Second

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
