package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

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

// history notices that etcd was restored from an older snapshot: a revision that
// was read is lower than one seen before, in this process or a former one. From
// then on the node decides nothing and changes nothing, since what it knows may
// not have happened, until an operator accepts the restored state: that is a
// higher epoch in the cluster's record.
//
//	following ──lower revision──▶ restored ──higher epoch──▶ (begins anew)
//
// One node that has seen it stops all: a node that came later cannot know.
type history struct {
	node    string
	present func(context.Context) (store.Present, error)
	nodes   func() []task.Node
	state   *state
	fitness *fitness
	log     *zap.Logger

	seen int64 // the highest revision
	kept time.Time
}

// begins holds what etcd has now against what was kept, before anything of etcd is
// believed. An error is final, and task.ErrInvalid: the data directory belongs to
// another cluster, or to one that etcd has lost altogether.
func (s *state) begins(p store.Present) (restored error, err error) {
	cluster, epoch, revision := s.history()
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
		return nil, s.setHistory(cluster, p.Cluster.Epoch, p.Revision, false)
	case p.Revision < revision:
		return wentBack(revision, p.Revision), nil
	case s.restored():
		return errors.New("etcd was restored from an older snapshot"), nil
	}
	return nil, nil
}

func wentBack(seen, now int64) error {
	return fmt.Errorf("etcd is at revision %d, and this node has seen %d: it was restored from an older snapshot", now, seen)
}

// run looks until ctx ends, or until the cluster has a new epoch.
func (h *history) run(ctx context.Context) error {
	_, _, h.seen = h.state.history()
	defer h.keep(false)
	tick := time.NewTicker(historyLook)
	defer tick.Stop()
	for {
		if err := h.look(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// look reads once. Only errNewHistory ends the node.
func (h *history) look(ctx context.Context) error {
	before := h.seen // what is read from now on must not be older
	p, err := h.present(ctx)
	if err != nil {
		return nil // etcd is away, or the record is damaged: it says nothing
	}
	cluster, epoch, _ := h.state.history()
	if cluster == "" {
		cluster = p.Cluster.ID
	}
	switch {
	case p.Found && p.Cluster.ID == cluster && p.Cluster.Epoch > epoch && epoch > 0:
		if err := h.state.setHistory(cluster, p.Cluster.Epoch, p.Revision, false); err != nil {
			h.log.Error("cannot keep the cluster's epoch", zap.Error(err))
			return nil
		}
		h.seen = p.Revision
		h.log.Warn("the cluster has a new epoch, beginning anew", zap.Int("epoch", p.Cluster.Epoch), zap.Int64("rev", p.Revision))
		return errNewHistory
	case p.Revision < before:
		h.stop(wentBack(before, p.Revision))
	case p.Found && p.Cluster.ID != cluster:
		h.stop(fmt.Errorf("etcd holds cluster %s now, this node is of cluster %s", p.Cluster.ID, cluster))
	case h.state.restored(): // until an operator has said that this is to be gone on with
	default:
		h.seen = max(h.seen, p.Revision)
		if epoch == 0 && p.Found {
			if err := h.state.setHistory(cluster, p.Cluster.Epoch, h.seen, false); err != nil {
				h.log.Error("cannot keep what was seen of etcd", zap.Error(err))
			}
		}
		h.fitness.set(task.UnfitRestored, h.told(epoch))
		if time.Since(h.kept) >= historyKeep {
			h.keep(false)
		}
	}
	return nil
}

// stop notes, on disk too, that etcd went back.
func (h *history) stop(why error) {
	h.fitness.set(task.UnfitRestored, why)
	h.keep(true)
}

// told is an error if another node of this epoch knows that etcd was restored.
func (h *history) told(epoch int) error {
	for _, n := range h.nodes() {
		if n.Name != h.node && n.Unfit == task.UnfitRestored && n.Epoch == epoch {
			return fmt.Errorf("node %s says that etcd was restored from an older snapshot", n.Name)
		}
	}
	return nil
}

// keep writes to disk how far etcd has come.
func (h *history) keep(restored bool) {
	h.kept = time.Now()
	cluster, epoch, _ := h.state.history()
	if err := h.state.setHistory(cluster, epoch, h.seen, restored || h.state.restored()); err != nil {
		h.log.Error("cannot keep what was seen of etcd", zap.Error(err))
	}
}
