package daemon

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestRaised_WhenAllHaveLongUnderstood(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	node := func(format int, up time.Duration) task.Node {
		return task.Node{Format: format, StartedAt: task.At(now.Add(-up))}
	}
	for name, tc := range map[string]struct {
		cluster task.Cluster
		nodes   []task.Node
		want    int
	}{
		"all, for long":               {task.Cluster{}, []task.Node{node(2, time.Hour), node(2, time.Hour)}, 2},
		"one has just come":           {task.Cluster{}, []task.Node{node(2, time.Hour), node(2, time.Minute)}, 1},
		"one is of a former version":  {task.Cluster{}, []task.Node{node(2, time.Hour), node(0, time.Hour)}, 1},
		"an older one is wanted":      {task.Cluster{FormatWanted: 1}, []task.Node{node(2, time.Hour)}, 1},
		"it is already":               {task.Cluster{Format: 2}, []task.Node{node(2, time.Hour)}, 2},
		"never lower by itself":       {task.Cluster{Format: 2}, []task.Node{node(1, time.Hour)}, 2},
		"beyond what the leader does": {task.Cluster{Format: 1}, []task.Node{node(9, time.Hour)}, 2},
		"nobody":                      {task.Cluster{}, nil, 1},
	} {
		if got := raised(store.Formats{Cluster: store.ClusterRecord{Cluster: tc.cluster}, Nodes: tc.nodes}, now, 2); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
