package daemon

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// nodeHealth computes the node's health for the readiness check of
// the API and for the service manager.
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
	access      *authority.Keeper
	keeper      *shard.Keeper
	engine      *scheduler.Engine
	executor    *executor.Executor
	watchdog    *watchdog

	heard atomic.Int64 // the number of the watchdog's checks at the last CheckAlive
}

// checkReady returns why the node is not ready, or nil. It is ready if it decides its ticks, its API
// listens at all its addresses, and it knows who may do what.
func (h *nodeHealth) checkReady() error {
	return errors.Join(h.checkDeciding(), h.listeners.listenError(), h.checkAccess())
}

// checkAccess returns an error if the node needs the access records and has not loaded them yet.
func (h *nodeHealth) checkAccess() error {
	if h.cfg.knowsAccess() && h.access.View().Fence == 0 {
		return errors.New("the access records are not loaded; if this does not change, see the log")
	}
	return nil
}

// checkDeciding returns why the node does not decide its ticks, or nil. It does if it has a session, is eligible, and
// every shard that it owns has a worker and no undecided tick that is older than five seconds.
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

// ownShards returns the shards that are assigned to this node, from the mirror.
func (h *nodeHealth) ownShards() []record.Owner {
	return slices.DeleteFunc(record.DecodeOwners(h.keys, h.owners.Snapshot().KVs), func(o record.Owner) bool { return o.Node != h.cfg.Name })
}

// CheckFiring returns why the node does not fire, or nil. It fires if it decides its ticks and all
// shards of the cluster have owners. In a new cluster they have none, and no node fires. A node whose API
// cannot listen fires nevertheless: the status shows the problem, and the service manager
// has no reason to wait or to restart the node.
func (h *nodeHealth) CheckFiring() error {
	if err := h.checkDeciding(); err != nil {
		return err
	}
	if !slices.Contains(h.cfg.Roles, task.RoleScheduler) || h.state.Wanted() == task.NodeDraining || h.presence.isDraining() {
		// A node that owns no shards, by its roles or its state, has nothing to fire.
		return nil
	}
	if owned := len(record.DecodeOwners(h.keys, h.owners.Snapshot().KVs)); owned < h.record.atStart.Shards {
		return fmt.Errorf("%d of the %d shards of the cluster have an owner", owned, h.record.atStart.Shards)
	}

	return nil
}

// CheckAlive returns nil if all components make progress and the watchdog has
// checked them since the previous call.
func (h *nodeHealth) CheckAlive() error {
	looks := h.watchdog.looks.Load()
	if looks == h.heard.Swap(looks) {
		return errors.New("the node's watchdog does not respond")
	}
	return h.watchdog.checkAlive()
}

// Status describes in one line what the node does.
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

// LostAfter returns the lost_after of attempts that are assigned to the node now.
func (h *nodeHealth) LostAfter() time.Duration {
	return h.record.currentRecord().LostAfterWithLease(h.cfg.LeaseTTL).Std()
}
