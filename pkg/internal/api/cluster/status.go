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
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/record"
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

// StatusReader reads the status of the cluster and what its warnings follow from. The API and the leader share it.
type StatusReader struct {
	Store   *store.Store
	Cluster task.Cluster
	Now     httpapi.Clock
	// BootstrapToken returns a token that never expires and that the cluster no longer needs (access.Table).
	BootstrapToken func() (task.Token, bool)
}

// Status returns the status of the cluster, with warnings, but without what depends on the number of tasks or of runs. It
// fails only if the nodes or the leader cannot be read. Everything else is left out if it cannot be determined.
func (h *Handlers) Status(ctx context.Context) (client.ClusterStatus, error) {
	var alerts []task.Warning
	g := callgroup.New()
	g.Go(func() error {
		alerts = h.leaderWarnings(ctx)
		return nil
	})

	f, err := h.Reader.ReadFacts(ctx)
	if err := cmp.Or(err, g.Wait()); err != nil {
		return client.ClusterStatus{}, err
	}

	st, list := f.Status, append(Warnings(&f), alerts...)
	st.WarningDetails, st.Warnings = list, task.WarningTexts(list)
	st.MakeSpace = append(st.MakeSpace, makeSpace(st, h.Etcd)...)

	return st, nil
}

// ReadFacts reads the status of the cluster, and what else its warnings follow from. It fails only if the nodes or the leader cannot
// be read. It sets Incomplete if something else is left out.
func (r *StatusReader) ReadFacts(ctx context.Context) (Facts, error) {
	nodes, owners, err := views.PresentNodes(ctx, r.Store)
	if err != nil {
		return Facts{}, err
	}

	leader, err := r.Store.CurrentLeader(ctx)
	if err != nil {
		return Facts{}, err
	}

	f := Facts{Now: r.Now(), Nodes: nodes, Status: client.ClusterStatus{
		ID: r.Cluster.ID, Shards: r.Cluster.Shards, Epoch: r.Cluster.Epoch, Schema: r.Cluster.Schema, CreatedAt: r.Cluster.CreatedAt,
		CatchUpRate: r.Cluster.CatchUp(), LostAfter: r.Cluster.EffectiveLostAfter(), Ledger: r.Cluster.LedgerSetting(),
		Leader: leader, Nodes: len(nodes),
		Etcd: []client.EtcdMember{}, MakeSpace: []string{}, Freezes: []task.Freeze{},
	}}
	f.Token, f.HasToken = r.BootstrapToken()
	f.countFleet(owners)

	// etcd takes longer than the rest, because its leader confirms the alarms. Each sets fields of its own.
	complete := [3]bool{}
	callgroup.Run(
		func() { complete[0] = r.readEtcd(ctx, &f.Status) },
		func() { complete[1] = r.readRecord(ctx, &f) },
		func() { complete[2] = r.readFreezes(ctx, &f) },
	)
	f.Incomplete = complete != [3]bool{true, true, true}

	return f, nil
}

// countFleet counts what the nodes announce, and the shards that have an owner.
func (f *Facts) countFleet(owners []record.Owner) {
	st, present := &f.Status, map[string]bool{}
	for _, n := range f.Nodes {
		present[n.Name] = true
		st.Unreadable += n.Unreadable
		if n.State == task.NodeReady && n.Ineligible == "" {
			st.NodesReady++
			if len(n.Blocked) > 0 {
				st.Blocked++
			}
		}
	}

	for _, o := range owners {
		if present[o.Node] {
			st.ShardsOwned++
		}
	}
}

// serveVersion serves the versions of this node.
func (h *Handlers) serveVersion(*httpapi.Call) (httpapi.Answer, error) {
	return httpapi.Answer{Status: http.StatusOK, Body: client.Version{Version: h.Version, Node: h.Node, Cluster: h.Cluster.ID, Go: runtime.Version()}}, nil
}

// readRecord adds the settings of the cluster and the format of its records, and reports whether it could read them.
func (r *StatusReader) readRecord(ctx context.Context, f *Facts) bool {
	formats, err := r.Store.Formats(ctx)
	if err != nil {
		return false
	}

	// The record is newer than what this node has loaded.
	st, c := &f.Status, &formats.Cluster
	st.Restored = c.LastRestored()
	st.Epoch, st.CatchUpRate, st.LostAfter = c.Epoch, c.CatchUp(), c.EffectiveLostAfter()
	st.Ledger, st.LedgerLimit, st.LedgerLimitSince = c.LedgerSetting(), c.LedgerLimit, c.LedgerLimitSince
	st.PublicURL, st.AlertReceivers = c.PublicURL, c.AlertReceivers
	st.ChangedBy, st.ChangedAt, st.Change = c.ChangedBy, c.ChangedAt, c.Change
	st.Format, f.FormatInForce = r.formatStatus(formats), c.InForce()

	return true
}

// readFreezes adds the freezes in force, and reports whether it could read them.
func (r *StatusReader) readFreezes(ctx context.Context, f *Facts) bool {
	freezes, err := r.Store.Freezes(ctx)
	if err != nil {
		return false
	}

	if len(freezes.Holding) > 0 {
		f.Status.Freezes, f.FreezeRevision = freezes.Holding, freezes.Mod
	}

	return true
}

// leaderWarnings returns a warning for each open alert about what only the leader knows. They are left out if the alerts cannot be
// read.
func (h *Handlers) leaderWarnings(ctx context.Context) (list []task.Warning) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()

	alerts, err := h.Store.ClusterAlerts(ctx)
	if err != nil {
		return nil
	}

	for _, a := range alerts {
		if a.IsOpen() && slices.Contains(task.LeaderWarnings, a.Code) {
			list = append(list, newWarning(a.Code, "%s (since %s)", a.Text, a.Since.UTC().Format(time.RFC3339)))
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
