package daemon

import (
	"reflect"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
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
		if got := newestFormat(store.Formats{Cluster: store.ClusterRecord{Cluster: tc.cluster}, Nodes: tc.nodes}, now, 2); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestLowering_WaitsForTheLastWritesOfTheNewerFormat(t *testing.T) {
	var down formatDowngrade
	start := time.Now()
	for i, step := range []struct {
		at   time.Duration
		why  string
		want bool
	}{
		{0, "n1", false},
		{time.Minute, "", false},
		{time.Minute + lastWrites - 1, "", false},
		{time.Minute + lastWrites, "n2", false}, // a node that has just joined
		{2*time.Minute + lastWrites, "", false},
		{2*time.Minute + 2*lastWrites, "", true},
	} {
		if got := down.mayLower(step.why, start.Add(step.at)); got != step.want || !down.underWay {
			t.Errorf("step %d: %v, %+v", i, got, down)
		}
	}
}

func TestClusterRecord_TellsTheEngineTheRateOfCatchingUp(t *testing.T) {
	keys, err := record.NewKeys("/t")
	if err != nil {
		t.Fatal(err)
	}
	r := &clusterRecord{store: store.New(nil, nil, keys), log: zap.NewNop(), atStart: task.Cluster{Shards: 4}, check: func(task.Cluster) error { return nil }}
	if c := r.currentRecord(); c.CatchUp() != task.DefaultCatchUpRate || c.Shards != 4 {
		t.Errorf("at the start: %+v", c)
	}
	is := task.Cluster{Shards: 4, Format: store.NewestFormat, CatchUpRate: 7}
	if err := r.applyRecord(store.ClusterRecord{Cluster: is, Mod: 5}, nil); err != nil || !reflect.DeepEqual(r.currentRecord(), is) {
		t.Errorf("%+v, %v", r.currentRecord(), err)
	}
}
