package daemon

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/daemon/peerprobe"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

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
		Logger:      n.log.Named("history"),
	})
}

// presentNodes returns the records of the present nodes, from the mirror.
func (n *Node) presentNodes() []task.Node { return n.known.Decode(n.nodes.Snapshot().KVs) }

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
func (n *Node) sessionOfOwner() (kv.Fence, bool) {
	if n.eligibility.ineligibleErr() != nil {
		return kv.Fence{}, false
	}
	return n.presence.Session()
}

// peerCluster implements peerprobe.Cluster.
type peerCluster struct{ *store.Store }

// RevokeLeases revokes the leases of another node. A lease that does not exist any more is no error.
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
