package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
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
		st.PublicURL, st.AlertReceivers = p.Cluster.PublicURL, p.Cluster.AlertReceivers
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
			h.lookAtAlerts(ctx, &st)
		},
	)

	list := slices.Concat(ineligibleWarnings(nodes), st.WarningDetails, clusterWarnings(st))
	if st.NodesReady > 0 && !slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Takes() }) {
		list = append(list, newWarning(task.WarnNoNodeTakesRuns, "no node accepts runs: due runs wait"))
	}

	if token, ok := h.BootstrapToken(); ok {
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

// newWarning returns a warning with a code and a formatted text.
func newWarning(code, format string, args ...any) task.Warning {
	return task.Warning{Code: code, Text: fmt.Sprintf(format, args...)}
}

// lookAtAlerts adds a warning for each open alert about the cluster. The leader opens them.
func (h *Handlers) lookAtAlerts(ctx context.Context, st *client.ClusterStatus) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()

	alerts, err := h.Store.ClusterAlerts(ctx)
	if err != nil {
		return
	}

	for _, a := range alerts {
		if a.IsOpen() {
			st.WarningDetails = append(st.WarningDetails, newWarning(a.Code, "%s (since %s)", a.Text, a.Since.UTC().Format(time.RFC3339)))
		}
	}
}

// restoredAt returns the names of the nodes that have detected that etcd was restored from an older snapshot.
func restoredAt(nodes []task.Node) string {
	var names []string
	for _, n := range nodes {
		if n.Ineligible == task.IneligibleRestored {
			names = append(names, n.Name)
		}
	}

	return strings.Join(names, ", ")
}

// ineligibleWarnings returns warnings about nodes that have given up their shards, or that take no runs.
func ineligibleWarnings(nodes []task.Node) (list []task.Warning) {
	if names := restoredAt(nodes); names != "" {
		list = append(list, newWarning(task.WarnEtcdRestored, "etcd was restored from an older snapshot, as detected by %s: nothing fires and nothing can be changed "+
			"until an operator accepts its current contents with carillon cluster recover", names))
	}

	for _, n := range nodes {
		if len(n.Blocked) > 0 {
			list = append(list, newWarning(task.WarnNodeBlocked, "node %s accepts no runs: %s", n.Name, task.DescribeBlocked(n.Blocked)))
		}

		if n.Stuck > 0 {
			list = append(list, newWarning(task.WarnStartsHang, "node %s has %d runs whose start hangs: a program, a directory or a file system on it does not respond", n.Name, n.Stuck))
		}

		switch n.Ineligible {
		case "", task.IneligibleRestored:
		case task.IneligibleClock:
			list = append(list, newWarning(task.WarnNodeIneligible, "node %s owns no shards: its clock jumped, or differs from that of other nodes", n.Name))
		case task.IneligibleStalled:
			list = append(list, newWarning(task.WarnNodeIneligible, "node %s temporarily owns no shards, because it did not decide ticks that were due; see its log", n.Name))
		default:
			list = append(list, newWarning(task.WarnNodeIneligible, "node %s owns no shards: %s", n.Name, n.Ineligible))
		}
	}

	return list
}

// listenWarnings returns warnings about nodes whose API other hosts cannot reach.
func listenWarnings(nodes []task.Node) []task.Warning {
	var list []task.Warning
	for _, n := range nodes {
		if n.APIError != "" {
			list = append(list, newWarning(task.WarnNodeUnreachable, "node %s fires, but %s", n.Name, n.APIError))
		}
	}

	return list
}

// clusterWarnings returns the general warnings about a cluster with this status.
func clusterWarnings(st client.ClusterStatus) []task.Warning {
	var list []task.Warning
	warn := func(code, format string, args ...any) { list = append(list, newWarning(code, format, args...)) }

	if st.Leader == "" {
		warn(task.WarnNoLeader, "there is no leader: shards are not assigned until one is elected")
	}

	if st.NodesReady == 0 {
		warn(task.WarnNoNodeReady, "no node is ready: nothing runs")
	}

	if n := st.Shards - st.ShardsOwned; n > 0 {
		warn(task.WarnShardsUnowned, "%d of %d shards have no owner that is present: their tasks do not run", n, st.Shards)
	}

	if st.Unreadable > 0 {
		warn(task.WarnUnreadable, "%d tasks do not run because their entries cannot be read: the logs of the nodes name them; apply the tasks again", st.Unreadable)
	}

	list = append(list, etcdWarnings(st)...)
	if st.LedgerLimit != nil {
		list = append(list, ledgerWarning(st))
	}

	return list
}

// ledgerWarning returns the warning that the leader has limited for how long ledgers remember ticks.
func ledgerWarning(st client.ClusterStatus) task.Warning {
	what := fmt.Sprintf("for %s at most", st.LedgerLimit.Approximate())
	if *st.LedgerLimit == 0 {
		what = "nothing"
	}

	return newWarning(task.WarnLedgerLimited, "ledgers remember %s, because etcd is filling up (since %s): increase its quota, or keep less with history.keep and "+
		"carillon cluster set --ledger. The limit ends when enough of the quota is free", what, st.LedgerLimitSince.Format(time.RFC3339))
}

// expiryWarnings returns warnings about certificates that nodes have announced as expired or about to expire.
func expiryWarnings(nodes []task.Node, now time.Time) (list []task.Warning) {
	for _, n := range nodes {
		for _, e := range n.Expires {
			day := e.At.UTC().Format(time.DateOnly)

			switch left := e.At.Sub(now); {
			case left <= 0:
				list = append(list, newWarning(task.WarnCertificateExpired, "node %s: its %s expired on %s and is rejected: replace the file; the node reloads it by itself", n.Name, e.Setting, day))
			default:
				list = append(list, newWarning(task.WarnCertificateExpires, "node %s: its %s expires on %s, in %d days: replace the file; the node reloads it by itself", n.Name, e.Setting, day, int(left.Hours()/24)))
			}
		}
	}

	return list
}

const (
	// fewTasks is the number of tasks below which the size of the database does not show how much space a task
	// needs.
	fewTasks = 100
	// sampleShards is the number of shards whose history is sampled at most, and sampleTasks about how many tasks are in
	// all samples together. The samples of small shards are the whole shards.
	sampleShards = 8
	sampleTasks  = 1000
)

// estimateRoom estimates the space that one task needs, with a sample of the history. It returns nil if there is too little
// data.
func (h *Handlers) estimateRoom(ctx context.Context, st client.ClusterStatus) *client.Room {
	if capacityLeft(st, 0) == nil {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()

	tasks, records, err := h.Store.SampleHistory(ctx, h.historySamples(ctx, st.Tasks))
	if err != nil || tasks == 0 {
		return capacityLeft(st, 0)
	}

	return capacityLeft(st, float64(records)/float64(tasks))
}

// capacityLeft estimates the space that one task needs, and how many such tasks fit into the quota. The member with the
// least space decides. It returns nil if there is too little data.
func capacityLeft(st client.ClusterStatus, history float64) *client.Room {
	var inUse, quota int64
	for _, m := range st.Etcd {
		inUse = max(inUse, m.DBInUse)
		if m.DBQuota > 0 && (quota == 0 || m.DBQuota < quota) {
			quota = m.DBQuota
		}
	}

	if st.Tasks < fewTasks || inUse == 0 || quota == 0 {
		return nil
	}

	each := max(inUse/st.Tasks, 1)

	return &client.Room{BytesPerTask: each, HistoryPerTask: float64(int64(history*10)) / 10, Tasks: quota / 100 * etcdadmin.FillingUp / each}
}

// historySamples chooses the tasks whose history records are counted. etcd visits every key that it counts, so the number
// of tasks in the samples does not grow with that of the cluster. Names of tasks that the owners know, 250 tasks apart,
// bound them.
func (h *Handlers) historySamples(ctx context.Context, tasks int64) []store.HistorySample {
	shards := h.Cluster.Shards
	samples := make([]store.HistorySample, min(shards, sampleShards))
	for i := range samples {
		samples[i].Shard = i * shards / len(samples)
	}
	if inShard := tasks / int64(shards); inShard <= sampleTasks {
		return samples[:min(int(sampleTasks/max(inShard, 1))+1, len(samples))]
	}

	// A sample of a shard is a part of the order of all names. That contains tasks of all shards.
	names := h.Asker.Splits(ctx, "", nil)
	share := float64(sampleTasks) / float64(len(samples)) * float64(shards) / float64(tasks)
	length := max(int(share*float64(len(names))), 1)
	if length >= len(names) {
		return nil // the owners do not answer
	}

	for i := range samples {
		from := i * (len(names) - length) / len(samples)
		samples[i].From, samples[i].To = names[from], names[from+length]
	}

	return samples
}
