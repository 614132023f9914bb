package etcdhistory

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
	// lookEvery is the interval at which the cluster's record and etcd's revision are read.
	lookEvery = 5 * time.Second
	// keepEvery is the interval at which the revision is written to disk. If etcd is restored
	// while the node is down, from a snapshot that is younger than that, the node does not detect it.
	keepEvery = 10 * time.Second
)

// ErrNewHistory ends Monitor.Run when the node has to start over: an operator has accepted a restored
// etcd, so anything that the node has in memory may be wrong.
var ErrNewHistory = errors.New("the cluster has a new epoch: this node restarts")

// ClusterReader reads the cluster's record together with etcd's revision.
type ClusterReader interface {
	Present(context.Context) (store.Present, error)
}

// Monitor stores the highest revision of etcd that was seen, and detects by revisions that etcd was restored from a
// snapshot that is older than what this process or a former one has seen. From then on the node decides nothing and
// changes nothing, because what it knows may not have happened. An operator accepts the restored state by a higher
// epoch in the cluster's record.
//
//	following ──lower revision──▶ restored ──higher epoch──▶ (starts over)
//
// One node that has detected it stops all nodes of the epoch, because a node that started later cannot detect it.
type Monitor struct {
	cfg  MonitorConfig
	kept time.Time // when the revision was last written to disk
}

// MonitorConfig configures a Monitor.
type MonitorConfig struct {
	Node      string
	Cluster   ClusterReader
	Revisions *Revisions
	State     *datadir.State
	// Restored returns why etcd counts as restored, or nil. SetRestored sets that error.
	Restored    func() error
	SetRestored func(err error)
	Logger      *zap.Logger
}

// NewMonitor returns a monitor that has checked nothing yet.
func NewMonitor(cfg MonitorConfig) *Monitor { return &Monitor{cfg: cfg} }

// Compare compares the state of etcd with what the data directory has recorded. It is called before the node
// uses anything from etcd. restored is not nil if etcd was restored from an older snapshot. err is final and wraps
// task.ErrInvalid if the data directory belongs to another cluster, or to one that etcd no longer has.
func Compare(s *datadir.State, p store.Present, wentBack error) (restored error, err error) {
	cluster, epoch, _ := s.History()
	switch {
	case cluster == "":
		return nil, nil // the first start on this data directory
	case !p.Found:
		return nil, fmt.Errorf("%w: etcd contains no cluster, but this node's data directory belongs to cluster %s: etcd has lost its data, or it is a different etcd; "+
			"restore it, or give the node an empty data directory", task.ErrInvalid, cluster)
	case p.Cluster.ID != cluster:
		return nil, fmt.Errorf("%w: etcd contains cluster %s, but this node's data directory belongs to cluster %s: set an empty data directory, or the right endpoints and prefix",
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
	return fmt.Errorf("etcd contains epoch %d of the cluster, but this node has epoch %d: etcd was restored from an older snapshot", is, was)
}

// Run checks etcd until ctx ends, or until the cluster has a new epoch.
func (h *Monitor) Run(ctx context.Context) error {
	defer h.writeToDisk()

	found := h.cfg.Revisions.found
	tick := time.NewTicker(lookEvery)
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
			h.cfg.SetRestored(h.cfg.Revisions.WentBack())
			h.writeToDisk()
		case <-tick.C:
		}
	}
}

// checkEtcd reads the cluster's record and the revision once. It returns no error but ErrNewHistory.
func (h *Monitor) checkEtcd(ctx context.Context) error {
	p, err := h.cfg.Cluster.Present(ctx)
	if err != nil {
		return nil // etcd is unavailable or the record is damaged, which proves nothing
	}

	if p.Found {
		if err := h.CheckRecord(p.Cluster); errors.Is(err, ErrNewHistory) {
			return err
		}
	}

	if time.Since(h.kept) >= keepEvery {
		h.writeToDisk()
	}

	return nil
}

// CheckRecord compares a record of the cluster that was just read with the history of this node. A node joins only
// after CheckRecord has returned nil for the very record that the join compares, so no node has a session under an
// older epoch than that of etcd. It returns one of these errors:
//
//   - ErrNewHistory, if the epoch is higher than that of the node. The new epoch is stored when the node starts over.
//   - An error that says which cluster etcd contains, if that is another one.
//
// An epoch that is lower proves that etcd was restored. That is no error: the node becomes ineligible, and it has to
// join to announce this to the others.
func (h *Monitor) CheckRecord(c task.Cluster) error {
	cluster, epoch, _ := h.cfg.State.History()
	switch {
	case c.ID != cluster:
		err := fmt.Errorf("etcd now contains cluster %s, but this node belongs to cluster %s", c.ID, cluster)
		h.cfg.SetRestored(err)

		return err
	case c.Epoch > epoch:
		h.cfg.Logger.Warn("the cluster has a new epoch; reloading", zap.Int("epoch", c.Epoch), zap.Int("before", epoch))
		return ErrNewHistory
	case c.Epoch < epoch:
		h.cfg.SetRestored(olderEpoch(c.Epoch, epoch))
	}

	return nil
}

// ObserveNodes checks the records of all nodes. A node that announces that etcd went back stops the other nodes
// of its epoch, which may not be able to detect it.
func (h *Monitor) ObserveNodes(nodes []task.Node) {
	epoch := h.cfg.State.Epoch()
	i := slices.IndexFunc(nodes, func(n task.Node) bool {
		return n.Name != h.cfg.Node && n.Ineligible == task.IneligibleRestored && n.Epoch == epoch
	})

	if i >= 0 && h.cfg.Restored() == nil {
		h.cfg.SetRestored(fmt.Errorf("node %s reports that etcd was restored from an older snapshot", nodes[i].Name))
	}
}

// writeToDisk stores the highest revision that was seen. It logs an error and continues.
func (h *Monitor) writeToDisk() {
	h.kept = time.Now()
	cluster, epoch, _ := h.cfg.State.History()
	if err := h.cfg.State.SetHistory(cluster, epoch, h.cfg.Revisions.Seen(), h.cfg.State.Restored() || h.cfg.Revisions.WentBack() != nil); err != nil {
		h.cfg.Logger.Error("cannot store the last seen state of etcd", zap.Error(err))
	}
}
