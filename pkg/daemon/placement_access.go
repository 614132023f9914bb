package daemon

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// knowsAccess reports whether the node keeps a copy of the access records: to serve the API, or to check tasks by the
// records of their namespaces when it starts their runs.
func (c *Config) knowsAccess() bool { return c.servesAPI() || c.hasSchedulerRole() }

// knownNamespaces returns the records of the namespaces as the watch last reported them. It returns nil before they are
// loaded, and while they are older than the node's last join: a node that was cut off may get its shards back before its
// watch is resumed, and must not decide by what held before (G29).
//
// They are never newer than the limits of nodes that the fleet was set by: a namespace that is restricted to nodes with
// a label, after others were forbidden to have it, has no run on those.
func (n *Node) knownNamespaces() scheduler.Namespaces {
	v := n.placedBy.Load()
	if v == nil || v.Fence == 0 || v.Fence < n.presence.access.Load() {
		return nil
	}

	return v
}

// followAccess wakes followFleet when the access records have changed: nodes may lose or get labels, and waiting runs may
// start now, or may not start any more.
func (n *Node) followAccess(ctx context.Context) error {
	for {
		v := n.access.View()
		n.fleetChanged.Send()

		// Every write of a namespace or of a node's limit also writes the fence.
		if _, err := n.access.AwaitChange(ctx, store.Proof{Fence: v.Fence}); err != nil {
			return ctx.Err()
		}
	}
}

// knownLimits returns the table by which the labels of nodes are judged. A node that does not keep the access records
// follows the limits of nodes alone, to warn about its own labels.
func (n *Node) knownLimits(v *authority.View) *access.Table {
	if n.limits == nil {
		return v.Table
	}
	return authority.CompileNodeLimits(n.store.Keys(), n.limits.Snapshot().KVs)
}

// namespaceRevisions returns the revisions of the records of namespaces.
func namespaceRevisions(v *authority.View) map[string]int64 {
	revisions := map[string]int64{}
	for _, name := range v.Namespaces() {
		revisions[name] = v.Namespace(name).Revision
	}

	return revisions
}

// ignoredLabels warns when this node's limit begins to forbid labels that the node announces.
type ignoredLabels struct {
	warned map[string]string
}

// reportChange looks for this node among nodes, whose labels have been judged by their limits.
func (i *ignoredLabels) reportChange(nodes []task.Node, self string, log *zap.Logger) {
	for _, n := range nodes {
		if n.Name != self || maps.Equal(n.IgnoredLabels, i.warned) {
			continue
		}

		if i.warned = n.IgnoredLabels; len(i.warned) > 0 {
			log.Warn("labels of this node do not count, because the limit of its labels does not allow them", zap.Any("ignored", i.warned))
		}
	}
}

// freezes holds the freezes as the watch last reported them.
type freezes struct {
	is atomic.Pointer[store.FreezeRecord] // nil: not read yet
}

// knownFreezes returns the freezes and the mod revision of their record, which commits compare (G21).
func (f *freezes) knownFreezes() (*task.Freezes, int64) {
	if r := f.is.Load(); r != nil {
		return &r.Freezes, r.Mod
	}
	return nil, 0 // if there is a record, the commit fails and reads it
}

// alertRules holds the rules of alerts as the mirror last had them.
type alertRules struct {
	keys   record.Keys
	mirror *kv.Mirror

	mu       sync.Mutex
	snapshot kv.Snapshot
	compiled *alert.Rules // nil: not read yet
}

// known returns the rules, or nil while they are not known.
func (a *alertRules) known() *alert.Rules {
	s := a.mirror.Snapshot()
	if s.Revision == 0 {
		return nil
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if a.compiled != nil && s.Revision == a.snapshot.Revision {
		return a.compiled
	}

	var list []task.AlertRule
	for _, e := range s.KVs {
		if rule, ok := record.DecodeAlertRule(a.keys, e); ok {
			list = append(list, rule)
		}
	}
	a.snapshot, a.compiled = s, alert.CompileRules(list, s.Revision, a.compiled)

	return a.compiled
}

// followFreezes updates the scheduler's view of the freezes and wakes the workers
// when they change, because waiting runs may continue. The executor follows them separately,
// again with each session.
func (n *Node) followFreezes(ctx context.Context) error {
	return n.store.FollowFreezes(ctx, time.Minute, func(r store.FreezeRecord) error {
		before := n.freezes.is.Swap(&r)
		if before != nil && before.Mod == r.Mod || before == nil && r.Mod == 0 {
			return nil
		}

		n.log.Info("freezes have changed", zap.Int("holding", len(r.Holding)), zap.Int64("rev", r.Mod))
		n.engine.WakeWorkers()

		return nil
	})
}
