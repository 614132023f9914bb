package daemon

import (
	"context"
	"maps"

	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/store"
)

// knowsAccess reports whether the node keeps a copy of the access records: to serve the API, or to check tasks by the
// records of their namespaces when it starts their runs.
func (c *Config) knowsAccess() bool { return c.servesAPI() || c.schedules() }

// knownNamespaces returns the records of the namespaces as the watch last reported them, or nil before they are loaded.
func (n *Node) knownNamespaces() scheduler.Namespaces {
	v := n.access.View()
	if v.Fence == 0 {
		return nil
	}

	return v
}

// followNamespaces wakes the scheduler's workers when the records of namespaces have changed, because waiting runs may
// start now, or may not start any more.
func (n *Node) followNamespaces(ctx context.Context) error {
	var before map[string]int64

	for {
		v := n.access.View()
		if now := namespaceRevisions(v); v.Fence != 0 && (before == nil || !maps.Equal(now, before)) {
			before = now
			n.engine.Look()
		}

		// Every write of such a record also writes the fence.
		if _, err := n.access.AwaitChange(ctx, store.Proof{Fence: v.Fence}); err != nil {
			return ctx.Err()
		}
	}
}

// namespaceRevisions returns the revisions of the records of namespaces.
func namespaceRevisions(v *authority.View) map[string]int64 {
	revisions := map[string]int64{}
	for _, name := range v.Namespaces() {
		revisions[name] = v.Namespace(name).Revision
	}

	return revisions
}
