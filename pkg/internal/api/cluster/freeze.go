package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const clusterFreeze = "/v1/cluster/freeze"

// ConfirmTimeout is how long a freeze waits for all nodes to confirm it. It is longer than the usual lease, so a
// node that has died is no longer present by then.
const ConfirmTimeout = 12 * time.Second

// frozenScope returns the namespace in the path, or "" for the whole cluster.
func frozenScope(c *httpapi.Call) (string, error) {
	if c.Request.PathValue("ns") == "" {
		return "", nil
	}
	return c.Namespace()
}

// getFreeze serves the freeze of a namespace or of the cluster.
func (h *Handlers) getFreeze(c *httpapi.Call) (httpapi.Answer, error) {
	ns, err := frozenScope(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	r, err := h.Store.Freezes(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerFreeze(c, ns, r, false)
}

// answerFreeze answers with the freeze in force, the number of tasks that it covers, and the nodes that have
// not confirmed it.
func (h *Handlers) answerFreeze(c *httpapi.Call, ns string, r store.FreezeRecord, changed bool) (httpapi.Answer, error) {
	st := client.FreezeStatus{Namespace: ns, Freeze: r.Of(ns), Revision: r.Mod, Changed: changed}
	var err error
	if st.Tasks, err = h.Store.CountTasks(c.Context(), ns); err != nil {
		return httpapi.Answer{}, err
	}

	st.Unconfirmed, err = h.unconfirmedNodes(c.Context(), r.Mod)

	return httpapi.Answer{Status: http.StatusOK, Body: st}, err
}

// unconfirmedNodes returns the nodes that are present and have not confirmed the record of freezes at revision rev.
// Such a node may still start runs that the record freezes.
func (h *Handlers) unconfirmedNodes(ctx context.Context, rev int64) ([]string, error) {
	nodes, err := h.Store.Nodes(ctx)
	return unconfirmedBy(nodes, rev), err
}

// unconfirmedBy returns the names of those nodes that have not confirmed the record of freezes at revision rev.
func unconfirmedBy(nodes []task.Node, rev int64) []string {
	names := []string{}
	for _, n := range nodes {
		if n.Has(task.RoleExecutor) && n.Froze < rev {
			names = append(names, n.Name)
		}
	}

	return names
}

// putFreeze serves a freeze. It answers when the freeze is effective (G21). An existing freeze stays unchanged,
// and the request waits again for its confirmation.
func (h *Handlers) putFreeze(c *httpapi.Call) (httpapi.Answer, error) {
	ns, err := frozenScope(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.FreezeRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}
	if err := task.CheckReason("reason", ask.Reason); err != nil {
		return httpapi.Answer{}, err
	}
	if err := requireFreeze(c, ns); err != nil {
		return httpapi.Answer{}, err
	}

	// All freezes are in one record, which must not grow with namespaces that do not exist.
	if ns != "" {
		if err := c.Rights().RequireNamespace(ns); err != nil {
			return httpapi.Answer{}, err
		}
	}
	c.Rights().Because(ask.Reason)

	var r store.FreezeRecord
	var changed bool
	// If the record changes at the same time, the attempt is repeated with the new record, which may already
	// contain this freeze.
	err = httpapi.RetryConflict(c.Context(), func() error {
		if r, err = h.Store.Freezes(c.Context()); err != nil {
			return err
		}

		var next task.Freezes
		if next, changed = r.Freeze(task.Freeze{Namespace: ns, Since: h.Now.Stamp(), By: c.Actor(), Reason: ask.Reason}); !changed {
			return nil
		}

		c.Rights().Describe(freezeObject(ns))
		mod, err := h.Store.As(c.Rights()).SetFreezes(c.Context(), r, next)
		r.Freezes, r.Mod = next, mod

		return httpapi.About("freeze of "+scopeName(ns), err)
	})

	if err != nil {
		return httpapi.Answer{}, err
	}
	// Nodes confirm the revision of the record. If one does not confirm it in time, the freeze stays in force.
	if err := h.untilObeyed(c.Context(), ns, r.Mod); err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerFreeze(c, ns, r, changed)
}

// freezeObject returns what the audit record of a freeze, or of its end, says of it: all freezes are in one record.
func freezeObject(ns string) task.AuditObject {
	o := task.AuditObject{Kind: "freeze"}
	if ns != "" {
		o.Namespaces = []string{ns}
	}

	return o
}

// requireFreeze refuses a freeze, or its end, that the caller may not make. A freeze of a namespace stops all of its tasks,
// so a right that depends on labels is not enough.
func requireFreeze(c *httpapi.Call, ns string) error {
	if ns == "" {
		return c.Rights().Require(access.Need{Verb: access.Operate, Kind: access.Cluster})
	}
	return c.Rights().Require(access.Need{Verb: access.Pause, Kind: access.Tasks, Namespace: ns})
}

// untilObeyed waits until no present node starts anything that is frozen.
func (h *Handlers) untilObeyed(ctx context.Context, ns string, rev int64) error {
	deadline := time.NewTimer(h.FreezeTimeout)
	defer deadline.Stop()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		names, err := h.unconfirmedNodes(ctx, rev)
		if err == nil && len(names) == 0 {
			return nil
		}

		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
			continue
		case <-deadline.C:
		case <-ctx.Done():
		}

		pause.Stop()
		who := strings.Join(names[:min(len(names), 10)], ", ")
		if err != nil {
			who = "unknown, because the nodes could not be read"
		}

		return httpapi.Fail(http.StatusGatewayTimeout, client.CodeNotConfirmed, "%s is frozen and no new runs are decided, "+
			"but runs dispatched earlier may still start on nodes that have not confirmed the freeze: %s", scopeName(ns), who).
			WithHint("repeat the freeze to continue to wait; dead nodes no longer count when their leases have expired").Because(err)
	}
}

// scopeName returns the name of a scope for messages.
func scopeName(ns string) string {
	if ns == "" {
		return "the cluster"
	}
	return "namespace " + ns
}

// deleteFreeze serves the end of a freeze.
func (h *Handlers) deleteFreeze(c *httpapi.Call) (httpapi.Answer, error) {
	ns, err := frozenScope(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if err := requireFreeze(c, ns); err != nil {
		return httpapi.Answer{}, err
	}

	var r store.FreezeRecord
	err = httpapi.RetryConflict(c.Context(), func() error {
		if r, err = h.Store.Freezes(c.Context()); err != nil {
			return err
		}

		next, _, ok := r.Unfreeze(ns, h.Now.Stamp(), c.Actor())
		if !ok {
			return notFrozen(ns, r)
		}

		c.Rights().Describe(freezeObject(ns))
		mod, err := h.Store.As(c.Rights()).SetFreezes(c.Context(), r, next)
		r.Freezes, r.Mod = next, mod

		return httpapi.About("end of the freeze of "+scopeName(ns), err)
	})

	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerFreeze(c, ns, r, true)
}

// notFrozen is the failure for a scope that is not frozen. Its hint names another scope that is.
func notFrozen(ns string, r store.FreezeRecord) error {
	f := httpapi.Fail(http.StatusNotFound, client.CodeNotFound, "%s is not frozen", scopeName(ns))

	switch {
	case r.Of(ns) != nil:
		f.Hint = "the whole cluster is frozen: carillon cluster unfreeze"
	case ns == "" && len(r.Holding) > 0:
		f.Hint = fmt.Sprintf("namespace %s is frozen: carillon cluster unfreeze --namespace %s", r.Holding[0].Namespace, r.Holding[0].Namespace)
	}

	return f
}
