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
	// historyLook is how often etcd is asked how far it has come.
	historyLook = 5 * time.Second
	// historyKeep is how often that is written to disk: a snapshot that is restored
	// while the node is down, and is younger than that, is not noticed.
	historyKeep = 10 * time.Second
)

// errNewHistory ends a node that has to begin anew: an operator has accepted what
// etcd holds, and nothing that the node remembers may be true.
var errNewHistory = errors.New("the cluster has a new epoch: this node begins anew")

// clusterReader reads the cluster's record, and the revision of etcd.
type clusterReader interface {
	Present(context.Context) (store.Present, error)
}

// etcdHistory keeps how far etcd has come, and notices, by revisions, that it was
// restored from an older snapshot than this process, or a former one, has seen. From
// then on the node decides nothing and changes nothing, since what it knows may
// not have happened, until an operator accepts the restored state: that is a
// higher epoch in the cluster's record.
//
//	following ──lower revision──▶ restored ──higher epoch──▶ (begins anew)
//
// One node that has seen it stops all: a node that came later cannot know.
type etcdHistory struct {
	node        string
	cluster     clusterReader
	revisions   *revisions
	state       *datadir.State
	eligibility *eligibility
	log         *zap.Logger

	kept time.Time
}

// compareHistory holds what etcd has now against what was kept, before anything of etcd is
// believed. An error is final, and task.ErrInvalid: the data directory belongs to
// another cluster, or to one that etcd has lost altogether.
func compareHistory(s *datadir.State, p store.Present, wentBack error) (restored error, err error) {
	cluster, epoch, _ := s.History()
	switch {
	case cluster == "":
		return nil, nil
	case !p.Found:
		return nil, fmt.Errorf("%w: etcd holds no cluster, but this node's data directory belongs to cluster %s: etcd has lost its data, or is another one; "+
			"restore it, or give the node an empty data directory", task.ErrInvalid, cluster)
	case p.Cluster.ID != cluster:
		return nil, fmt.Errorf("%w: etcd holds cluster %s, but this node's data directory belongs to cluster %s: give it an empty one, or the right endpoints and prefix",
			task.ErrInvalid, p.Cluster.ID, cluster)
	case p.Cluster.Epoch > epoch:
		return nil, s.SetHistory(cluster, p.Cluster.Epoch, p.Revision, false) // all is forgotten already
	case wentBack != nil:
		return wentBack, nil
	case p.Cluster.Epoch < epoch:
		return olderEpoch(p.Cluster.Epoch, epoch), nil
	case s.Restored():
		return errors.New("etcd was restored from an older snapshot"), nil
	}

	return nil, nil
}

// olderEpoch proves the same as a lower revision, and does so still when etcd has
// grown beyond what was seen.
func olderEpoch(is, was int) error {
	return fmt.Errorf("etcd holds epoch %d of the cluster, and this node is of epoch %d: it was restored from an older snapshot", is, was)
}

// run looks until ctx ends, or until the cluster has a new epoch.
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
			found = nil // it is told once
			h.eligibility.setReason(task.IneligibleRestored, h.revisions.wentBack())
			h.writeToDisk()
		case <-tick.C:
		}
	}
}

// checkEtcd reads once. Only errNewHistory ends the node.
func (h *etcdHistory) checkEtcd(ctx context.Context) error {
	p, err := h.cluster.Present(ctx)
	if err != nil {
		return nil // etcd is away, or the record is damaged: it says nothing
	}

	cluster, epoch, _ := h.state.History()
	switch {
	case p.Found && p.Cluster.ID == cluster && p.Cluster.Epoch > epoch:
		// It is kept when the node begins: until then it is one of the epoch before.
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

// observeNodes takes the records of all nodes: one that has seen etcd go back stops those
// of its epoch that cannot know.
func (h *etcdHistory) observeNodes(nodes []task.Node) {
	epoch := h.state.Epoch()
	i := slices.IndexFunc(nodes, func(n task.Node) bool {
		return n.Name != h.node && n.Ineligible == task.IneligibleRestored && n.Epoch == epoch
	})

	if i >= 0 && h.eligibility.errorFor(task.IneligibleRestored) == nil {
		h.eligibility.setReason(task.IneligibleRestored, fmt.Errorf("node %s says that etcd was restored from an older snapshot", nodes[i].Name))
	}
}

// writeToDisk writes to disk how far etcd has come.
func (h *etcdHistory) writeToDisk() {
	h.kept = time.Now()
	cluster, epoch, _ := h.state.History()
	if err := h.state.SetHistory(cluster, epoch, h.revisions.seen.Load(), h.state.Restored() || h.revisions.wentBack() != nil); err != nil {
		h.log.Error("cannot store the last seen state of etcd", zap.Error(err))
	}
}
