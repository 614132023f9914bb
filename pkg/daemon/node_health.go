package daemon

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// nodeHealth says whether the node does what it is there for: to the readiness check of
// the API, and to the service manager.
type nodeHealth struct {
	cfg         Config
	env         Environment
	keys        record.Keys
	record      *clusterRecord
	owners      *kv.Mirror
	state       *datadir.State
	presence    *presence
	eligibility *eligibility
	listeners   *apiListeners
	keeper      *shard.Keeper
	engine      *scheduler.Engine
	executor    *executor.Executor
	watchdog    *watchdog

	heard atomic.Int64 // looks of the watchdog that the service manager was told of
}

// checkReady says why the node is not ready: it is, when it decides its ticks, and its API
// listens everywhere.
func (h *nodeHealth) checkReady() error {
	return errors.Join(h.checkDeciding(), h.listeners.listenError())
}

// checkDeciding says why the node does not decide its ticks: it does, when every shard
// that it owns is served and has no undecided tick older than five seconds.
func (h *nodeHealth) checkDeciding() error {
	if _, ok := h.presence.Session(); !ok {
		return errors.New("the node has no session with etcd")
	}
	if err := h.eligibility.firstError(); err != nil {
		return err
	}
	if owned, served := len(h.ownShards()), h.keeper.Running(); served < owned {
		return fmt.Errorf("%d of the %d shards of this node are served", served, owned)
	}

	return h.engine.Overdue(h.env.Now(), 5*time.Second)
}

// ownShards are those that the assignment gives this node, as far as it knows.
func (h *nodeHealth) ownShards() []record.Owner {
	return slices.DeleteFunc(record.DecodeOwners(h.keys, h.owners.Snapshot().KVs), func(o record.Owner) bool { return o.Node != h.cfg.Name })
}

// CheckFiring says why the node does not fire: it does when it decides its ticks, unless
// the shards of the cluster have never had owners: nobody fires then. A node whose API
// cannot listen fires all the same: the service manager reads that in the status, and has
// no reason to wait, or to start the node again.
func (h *nodeHealth) CheckFiring() error {
	if err := h.checkDeciding(); err != nil {
		return err
	}
	if !slices.Contains(h.cfg.Roles, task.RoleScheduler) || h.state.Wanted() == task.NodeDraining || h.presence.isDraining() {
		return nil
	}
	if owned := len(record.DecodeOwners(h.keys, h.owners.Snapshot().KVs)); owned < h.record.atStart.Shards {
		return fmt.Errorf("%d of the %d shards of the cluster have an owner", owned, h.record.atStart.Shards)
	}

	return nil
}

// CheckAlive is nil if all parts of the node go on, and the watchdog that sees to it has
// looked since it was asked last.
func (h *nodeHealth) CheckAlive() error {
	looks := h.watchdog.looks.Load()
	if looks == h.heard.Swap(looks) {
		return errors.New("the node's watchdog does not respond")
	}
	return h.watchdog.checkAlive()
}

// Status is what the node does, in a line.
func (h *nodeHealth) Status() string {
	s := fmt.Sprintf("%d running", h.executor.Running())
	if slices.Contains(h.cfg.Roles, task.RoleScheduler) {
		s = fmt.Sprintf("%d shards, %s", h.keeper.Running(), s)
	}

	if err := h.listeners.listenError(); err != nil {
		s += "; " + err.Error()
	}

	switch {
	case h.presence.isDraining():
		return "Draining: " + s
	case h.state.Wanted() != task.NodeReady:
		return "Set to " + h.state.Wanted() + ": " + s
	}

	return "Ready: " + s
}

// LostAfter is how long the attempts that the node gets now are waited for when it is silent.
func (h *nodeHealth) LostAfter() time.Duration {
	return h.record.currentRecord().LostAfterWithLease(h.cfg.LeaseTTL).Std()
}
