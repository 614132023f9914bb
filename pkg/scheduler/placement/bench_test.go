package placement

import (
	"fmt"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func BenchmarkFleet_Pick(b *testing.B) {
	f := NewFleet("me", nil)
	var nodes []task.Node
	for i := range 500 {
		nodes = append(nodes, node(fmt.Sprintf("n%03d", i), 1<<20, func(n *task.Node) { n.Labels["odd"] = fmt.Sprint(i % 2) }))
	}

	nodes[77].Labels["gpu"] = "yes"
	for i := range nodes {
		free := int64(1) << 40
		nodes[i].Facts = &task.Facts{Disk: 1 << 42, DiskFree: &free}
	}

	f.Set(nodes)

	for _, strategy := range task.Strategies()[1:] {
		b.Run(strategy, func(b *testing.B) {
			w := Want{Strategy: strategy, Key: "default/report", Order: []string{"n500", "n003"}, Last: "n300"}
			for b.Loop() {
				f.Reserve(w, start)
			}
		})
	}

	for _, text := range []string{"", "odd = 1", "gpu", "disk_free > 1Gi"} {
		sel, _ := task.ParseSelector(text)
		b.Run(fmt.Sprintf("selector %q", text), func(b *testing.B) {
			for b.Loop() {
				f.Reserve(Want{Selector: sel}, start)
			}
		})
	}
}
