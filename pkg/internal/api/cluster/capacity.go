package cluster

import (
	"context"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
)

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
