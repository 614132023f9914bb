package cluster

import (
	"cmp"
	"context"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/task"
)

// getCluster serves the status of the cluster.
func (h *Handlers) getCluster(c *httpapi.Call) (httpapi.Answer, error) {
	// The status waits for etcd, and the number of tasks for other nodes.
	var counted, active int64
	g := callgroup.New()
	g.Go(func() (err error) {
		counted, err = h.countTasks(c.Context())
		return err
	})
	g.Go(func() (err error) {
		active, err = h.Store.CountActiveRuns(c.Context())
		return err
	})

	st, err := h.Status(c.Context())
	if err := cmp.Or(err, g.Wait()); err != nil {
		return httpapi.Answer{}, err
	}

	st.Tasks, st.ActiveRuns = counted, active
	st.Room = h.estimateRoom(c.Context(), st)

	return httpapi.Answer{Status: http.StatusOK, Body: st}, nil
}

// countTasks returns the number of tasks, as the owners of the shards know it.
func (h *Handlers) countTasks(ctx context.Context) (sum int64, err error) {
	tasks, err := h.Store.TasksOfShards(ctx, h.Cluster.Shards, h.Asker.ShardSizes(ctx))
	for _, n := range tasks {
		sum += int64(n)
	}

	return sum, err
}

// Status returns the status of the cluster, with warnings, but without what depends on the number of tasks or of runs. It
// fails only if the nodes or the leader cannot be read. Everything else is left out if it cannot be determined.
func (h *Handlers) Status(ctx context.Context) (client.ClusterStatus, error) {
	nodes, owners, err := views.PresentNodes(ctx, h.Store)
	if err != nil {
		return client.ClusterStatus{}, err
	}

	leader, err := h.Store.CurrentLeader(ctx)
	if err != nil {
		return client.ClusterStatus{}, err
	}

	st := client.ClusterStatus{
		ID: h.Cluster.ID, Shards: h.Cluster.Shards, Epoch: h.Cluster.Epoch, Schema: h.Cluster.Schema, CreatedAt: h.Cluster.CreatedAt,
		CatchUpRate: h.Cluster.CatchUp(), LostAfter: h.Cluster.EffectiveLostAfter(), Ledger: h.Cluster.LedgerSetting(),
		Leader: leader, Nodes: len(nodes),
		Etcd: []client.EtcdMember{}, MakeSpace: []string{},
	}
	if p, err := h.Store.Present(ctx); err == nil && p.Found {
		st.Epoch, st.CatchUpRate, st.LostAfter = p.Cluster.Epoch, p.Cluster.CatchUp(), p.Cluster.EffectiveLostAfter() // newer than what this node has loaded
		st.Ledger, st.LedgerLimit, st.LedgerLimitSince = p.Cluster.LedgerSetting(), p.Cluster.LedgerLimit, p.Cluster.LedgerLimitSince
		st.ChangedBy, st.ChangedAt, st.Change = p.Cluster.ChangedBy, p.Cluster.ChangedAt, p.Cluster.Change
	}

	for _, n := range nodes {
		st.Unreadable += n.Unreadable
		if n.State == task.NodeReady && n.Ineligible == "" {
			st.NodesReady++
			if len(n.Blocked) > 0 {
				st.Blocked++
			}
		}
	}

	for _, o := range owners {
		if slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Name == o.Node }) {
			st.ShardsOwned++
		}
	}

	// etcd takes longer than the rest, because its leader confirms the alarms. Both set fields of their own.
	callgroup.Run(
		func() { h.lookAtEtcd(ctx, &st) },
		func() {
			h.lookAtFormat(ctx, &st)
			h.lookAtFreezes(ctx, &st)
		},
	)

	list := slices.Concat(ineligibleWarnings(nodes), st.WarningDetails, clusterWarnings(st))
	if st.NodesReady > 0 && !slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Takes() }) {
		list = append(list, newWarning(task.WarnNoNodeTakesRuns, "no node accepts runs: due runs wait"))
	}

	if token, is := h.BootstrapToken(); is {
		list = append(list, newWarning(task.WarnBootstrapToken, "the token %s of %s was created on %s and never expires, although the cluster has another administrator: delete it with carillon token delete %s",
			token.ID, token.Subject, token.CreatedAt.UTC().Format(time.DateOnly), token.ID))
	}

	list = slices.Concat(list, listenWarnings(nodes), expiryWarnings(nodes, h.Now()))
	st.WarningDetails, st.Warnings = append([]task.Warning{}, list...), task.WarningTexts(list)
	st.MakeSpace = append(st.MakeSpace, makeSpace(st, h.Etcd)...)

	return st, nil
}

// serveVersion serves the versions of this node.
func (h *Handlers) serveVersion(*httpapi.Call) (httpapi.Answer, error) {
	return httpapi.Answer{Status: http.StatusOK, Body: client.Version{Version: h.Version, Node: h.Node, Cluster: h.Cluster.ID, Go: runtime.Version()}}, nil
}
