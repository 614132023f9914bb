// Package etcdhistory detects that the etcd of a cluster was restored from a snapshot that is older than what the node
// has seen. A revision of etcd never goes back otherwise. [Revisions] compares the revision of each answer with the
// highest one that was seen before. [Compare] compares etcd with the data directory when a node starts, and [Monitor]
// while it runs.
//
// Guaranteed: the first answer with a lower revision is detected before the node writes to a history that it does not
// know, and a node that has detected it still knows that after a restart. Not guaranteed: the revision is written to disk
// every ten seconds. If etcd is restored while the node is down, from a snapshot that is younger than that, the node does
// not detect it.
//
// A [Monitor] also asks other nodes whether they follow another history of the cluster; see [Monitor.AskOthers].
//
// The package reads the cluster's record. It stores the highest revision, and addresses of other nodes, in the state of the data directory.
package etcdhistory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
	cfg   MonitorConfig
	kept  time.Time // when the revision was last written to disk
	peers peers
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
	Asker       Asker // asks other nodes; nil: none are asked
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
func (m *Monitor) Run(ctx context.Context) error {
	defer m.writeToDisk()

	found := m.cfg.Revisions.found
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()

	for {
		if err := m.checkEtcd(ctx); err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-found:
			found = nil // the channel stays closed; handle it once
			m.cfg.SetRestored(m.cfg.Revisions.WentBack())
			m.writeToDisk()
		case <-tick.C:
		}
	}
}

// checkEtcd reads the cluster's record and the revision once. It returns no error but ErrNewHistory.
func (m *Monitor) checkEtcd(ctx context.Context) error {
	p, err := m.cfg.Cluster.Present(ctx)
	if err != nil {
		return nil // etcd is unavailable or the record is damaged, which proves nothing
	}

	if p.Found {
		if err := m.CheckRecord(p.Cluster); errors.Is(err, ErrNewHistory) {
			return err
		}
	}

	if time.Since(m.kept) >= keepEvery {
		m.writeToDisk()
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
// An epoch that is lower proves that etcd was restored. That is not an error: the node becomes ineligible, and it has to
// join to announce this to the others.
func (m *Monitor) CheckRecord(c task.Cluster) error {
	m.peers.observeRecord(c)
	cluster, epoch, _ := m.cfg.State.History()
	switch {
	case c.ID != cluster:
		err := fmt.Errorf("etcd now contains cluster %s, but this node belongs to cluster %s", c.ID, cluster)
		m.cfg.SetRestored(err)

		return err
	case c.Epoch > epoch:
		m.cfg.Logger.Warn("the cluster has a new epoch; reloading", zap.Int("epoch", c.Epoch), zap.Int("before", epoch))
		return ErrNewHistory
	case c.Epoch < epoch:
		m.cfg.SetRestored(olderEpoch(c.Epoch, epoch))
	}

	return nil
}

// ObserveNodes checks the records of all nodes. A node that announces that etcd went back stops the other nodes
// of its epoch, which may not be able to detect it.
func (m *Monitor) ObserveNodes(nodes []task.Node) {
	m.rememberPeers(nodes)

	epoch := m.cfg.State.Epoch()
	i := slices.IndexFunc(nodes, func(n task.Node) bool {
		return n.Name != m.cfg.Node && n.Ineligible == task.IneligibleRestored && n.Epoch == epoch
	})

	if i >= 0 && m.cfg.Restored() == nil {
		m.cfg.SetRestored(fmt.Errorf("node %s reports that etcd was restored from an older snapshot", nodes[i].Name))
	}
}

// writeToDisk stores the highest revision that was seen. It logs an error and continues.
func (m *Monitor) writeToDisk() {
	m.kept = time.Now()
	cluster, epoch, _ := m.cfg.State.History()
	if err := m.cfg.State.SetHistory(cluster, epoch, m.cfg.Revisions.Seen(), m.cfg.State.Restored() || m.cfg.Revisions.WentBack() != nil); err != nil {
		m.cfg.Logger.Error("cannot store the last seen state of etcd", zap.Error(err))
	}
}

// Revisions compares the revision of each answer from etcd with the highest revision that was seen
// before the request. A lower one proves that etcd was restored from an older
// snapshot, because revisions never go back otherwise. So the first answer detects it,
// before the node writes to a history that it does not know. The methods may be called from any goroutine.
type Revisions struct {
	seen  atomic.Int64          // the highest revision that was seen
	lower atomic.Pointer[error] // the first lower revision, as an error; nil: none
	found chan struct{}         // closed when lower is set
}

// NewRevisions returns Revisions that begin with the highest one that former processes have seen.
func NewRevisions(seen int64) *Revisions {
	r := &Revisions{found: make(chan struct{})}
	r.seen.Store(seen)
	return r
}

// observeAnswer compares the revision of an answer with asked, the highest one that had been seen when the
// request was sent. Concurrent requests may be answered in any order, so later observations do not count.
func (r *Revisions) observeAnswer(asked, revision int64) {
	if revision < asked {
		err := fmt.Errorf("etcd is at revision %d, but this node has seen revision %d: etcd was restored from an older snapshot", revision, asked)
		if r.lower.CompareAndSwap(nil, &err) {
			close(r.found)
		}
		return
	}

	for seen := r.seen.Load(); revision > seen && !r.seen.CompareAndSwap(seen, revision); seen = r.seen.Load() {
	}
}

// Seen returns the highest revision that was seen.
func (r *Revisions) Seen() int64 { return r.seen.Load() }

// ObserveKV returns kv with an observation of the revision of each answer.
func (r *Revisions) ObserveKV(kv clientv3.KV) clientv3.KV { return seenKV{kv, r} }

// WentBack returns an error if etcd was found to have gone back.
func (r *Revisions) WentBack() error {
	if err := r.lower.Load(); err != nil {
		return *err
	}
	return nil
}

// seenKV observes the revision of each answer.
type seenKV struct {
	clientv3.KV
	*Revisions
}

// Get reads. The answer to a serializable read may come from a member that lags behind, so its revision proves nothing.
func (s seenKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	asked := s.seen.Load()
	res, err := s.KV.Get(ctx, key, opts...)
	if err == nil && !clientv3.OpGet(key, opts...).IsSerializable() {
		s.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}

// Put writes.
func (s seenKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	asked := s.seen.Load()
	res, err := s.KV.Put(ctx, key, val, opts...)
	if err == nil {
		s.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}

// Delete deletes.
func (s seenKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	asked := s.seen.Load()
	res, err := s.KV.Delete(ctx, key, opts...)
	if err == nil {
		s.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}

// Txn begins a transaction.
func (s seenKV) Txn(ctx context.Context) clientv3.Txn { return seenTxn{s.KV.Txn(ctx), s.Revisions} }

// seenTxn is a transaction of a seenKV.
type seenTxn struct {
	clientv3.Txn
	*Revisions
}

func (t seenTxn) If(cs ...clientv3.Cmp) clientv3.Txn  { return seenTxn{t.Txn.If(cs...), t.Revisions} }
func (t seenTxn) Then(op ...clientv3.Op) clientv3.Txn { return seenTxn{t.Txn.Then(op...), t.Revisions} }
func (t seenTxn) Else(op ...clientv3.Op) clientv3.Txn { return seenTxn{t.Txn.Else(op...), t.Revisions} }

// Commit sends the transaction.
func (t seenTxn) Commit() (*clientv3.TxnResponse, error) {
	asked := t.seen.Load()
	res, err := t.Txn.Commit()
	if err == nil {
		t.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}
