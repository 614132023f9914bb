package scheduler

import (
	"fmt"
	"testing"
)

// BenchmarkReconcile_Shard measures what a shard of 4,000 tasks costs once a minute, including etcd's part.
func BenchmarkReconcile_Shard(b *testing.B) {
	w := realWorlds(b)(b, "n1")
	const tasks = 4000
	for i := 0; i < tasks; i += 50 {
		var names []string
		for j := i; j < i+50; j++ {
			names = append(names, fmt.Sprintf("task-%06d", j))
		}
		w.createTogether(start, names, every("1h"))
	}

	h := w.work("n1")
	b.ReportAllocs()

	for b.Loop() {
		keys, rev, err := h.e.cfg.Store.ShardKeys(w.ctx, 0)
		w.ok(err)
		w.ok(recordListing{keys, rev}.reviewBy(w.ctx, h.worker))
	}

	if h.recordDiffs.NotEmpty() || h.state.Tasks.Len() != tasks {
		b.Fatalf("%d tasks, and the differences are %+v", h.state.Tasks.Len(), h.recordDiffs)
	}
}
