package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// historyLook is the interval at which the cluster's record and etcd's revision are read.
	historyLook = 5 * time.Second
	// historyKeep is the interval at which the revision is written to disk. If etcd is restored
	// while the node is down, from a snapshot that is younger than that, the node does not detect it.
	historyKeep = 10 * time.Second
)

// errNewHistory ends Run when the node has to start over: an operator has accepted a restored
// etcd, so anything that the node has in memory may be wrong.
var errNewHistory = errors.New("the cluster has a new epoch: this node begins anew")

// clusterReader reads the cluster's record together with etcd's revision.
type clusterReader interface {
	Present(context.Context) (store.Present, error)
}

// etcdHistory stores the highest revision of etcd that was seen, and detects by revisions that etcd was
// restored from a snapshot that is older than what this process or a former one has seen. From
// then on the node decides nothing and changes nothing, because what it knows may
// not have happened. An operator accepts the restored state by a
// higher epoch in the cluster's record.
//
//	following ──lower revision──▶ restored ──higher epoch──▶ (starts over)
//
// One node that has detected it stops all nodes of the epoch, because a node that started later cannot detect it.
type etcdHistory struct {
	node        string
	cluster     clusterReader
	revisions   *revisions
	state       *datadir.State
	eligibility *eligibility
	log         *zap.Logger

	kept time.Time // when the revision was last written to disk
}

// compareHistory compares the state of etcd with what the data directory has recorded. It is called before the node
// uses anything from etcd. restored is not nil if etcd was restored from an older snapshot. err is final and wraps
// task.ErrInvalid if the data directory belongs to another cluster, or to one that etcd no longer has.
func compareHistory(s *datadir.State, p store.Present, wentBack error) (restored error, err error) {
	cluster, epoch, _ := s.History()
	switch {
	case cluster == "":
		return nil, nil // the first start on this data directory
	case !p.Found:
		return nil, fmt.Errorf("%w: etcd holds no cluster, but this node's data directory belongs to cluster %s: etcd has lost its data, or is another one; "+
			"restore it, or give the node an empty data directory", task.ErrInvalid, cluster)
	case p.Cluster.ID != cluster:
		return nil, fmt.Errorf("%w: etcd holds cluster %s, but this node's data directory belongs to cluster %s: give it an empty one, or the right endpoints and prefix",
			task.ErrInvalid, p.Cluster.ID, cluster)
	case p.Cluster.Epoch > epoch:
		return nil, s.SetHistory(cluster, p.Cluster.Epoch, p.Revision, false) // this instance has just started and remembers nothing
	case wentBack != nil:
		return wentBack, nil
	case p.Cluster.Epoch < epoch:
		return olderEpoch(p.Cluster.Epoch, epoch), nil
	case s.Restored():
		return errors.New("etcd was restored from an older snapshot"), nil
	}

	return nil, nil
}

// olderEpoch returns the error for an epoch that went back. It proves the same as a lower revision, also when etcd has
// already passed the highest revision that was seen.
func olderEpoch(is, was int) error {
	return fmt.Errorf("etcd holds epoch %d of the cluster, and this node is of epoch %d: it was restored from an older snapshot", is, was)
}

// run checks etcd until ctx ends, or until the cluster has a new epoch.
func (h *etcdHistory) run(ctx context.Context) error {
	defer h.writeToDisk()

	found := h.revisions.found
	tick := time.NewTicker(historyLook)
	defer tick.Stop()

	for {
		if err := h.checkEtcd(ctx); err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-found:
			found = nil // the channel stays closed; handle it once
			h.eligibility.setReason(task.IneligibleRestored, h.revisions.wentBack())
			h.writeToDisk()
		case <-tick.C:
		}
	}
}

// checkEtcd reads the cluster's record and the revision once. It returns no error but errNewHistory.
func (h *etcdHistory) checkEtcd(ctx context.Context) error {
	p, err := h.cluster.Present(ctx)
	if err != nil {
		return nil // etcd is unavailable or the record is damaged, which proves nothing
	}

	cluster, epoch, _ := h.state.History()
	switch {
	case p.Found && p.Cluster.ID == cluster && p.Cluster.Epoch > epoch:
		// The new epoch is stored when the node starts over. Until then the node belongs to the previous one.
		h.log.Warn("the cluster has a new epoch; reloading", zap.Int("epoch", p.Cluster.Epoch), zap.Int64("rev", p.Revision))
		return errNewHistory
	case p.Found && p.Cluster.ID != cluster:
		h.eligibility.setReason(task.IneligibleRestored, fmt.Errorf("etcd holds cluster %s now, this node is of cluster %s", p.Cluster.ID, cluster))
	case p.Found && p.Cluster.Epoch < epoch:
		h.eligibility.setReason(task.IneligibleRestored, olderEpoch(p.Cluster.Epoch, epoch))
	case time.Since(h.kept) >= historyKeep:
		h.writeToDisk()
	}

	return nil
}

// observeNodes checks the records of all nodes. A node that announces that etcd went back stops the other nodes
// of its epoch, which may not be able to detect it.
func (h *etcdHistory) observeNodes(nodes []task.Node) {
	epoch := h.state.Epoch()
	i := slices.IndexFunc(nodes, func(n task.Node) bool {
		return n.Name != h.node && n.Ineligible == task.IneligibleRestored && n.Epoch == epoch
	})

	if i >= 0 && h.eligibility.errorFor(task.IneligibleRestored) == nil {
		h.eligibility.setReason(task.IneligibleRestored, fmt.Errorf("node %s says that etcd was restored from an older snapshot", nodes[i].Name))
	}
}

// writeToDisk stores the highest revision that was seen. It logs an error and continues.
func (h *etcdHistory) writeToDisk() {
	h.kept = time.Now()
	cluster, epoch, _ := h.state.History()
	if err := h.state.SetHistory(cluster, epoch, h.revisions.seen.Load(), h.state.Restored() || h.revisions.wentBack() != nil); err != nil {
		h.log.Error("cannot store the last seen state of etcd", zap.Error(err))
	}
}
