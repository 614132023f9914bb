package store_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// minutes returns the time n minutes after noon.
func minutes(n int) task.Time { return task.At(noon.Add(time.Duration(n) * time.Minute)) }

// Verifies: G4
func TestBeginsTicks(t *testing.T) {
	pausedUntil := func(until task.Time) func(*task.Entry) {
		return func(e *task.Entry) {
			e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{{Since: minutes(0), Until: until}}}
		}
	}

	paused := func(e *task.Entry) { e.Paused = true }
	nothing := func(*task.Entry) {}

	untested := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[task.Entry]()) {
		untested[f.Name] = true
	}

	for _, c := range []struct {
		field, name string
		old, edited func(*task.Entry)
		want        bool
	}{
		{"UID", "another task, or the entry could not be read", nothing, func(e *task.Entry) { e.UID = "other" }, true},
		{"Schedule", "", nothing, func(e *task.Entry) { e.Schedule = task.Schedules{"@hourly"} }, true},
		{"Timezone", "", nothing, func(e *task.Entry) { e.Timezone = "Europe/Vienna" }, true},
		{"DST", "", nothing, func(e *task.Entry) { e.DST = task.DST{Gap: "skip"} }, true},
		{"Start", "", nothing, func(e *task.Entry) { e.Start = minutes(1) }, true},
		{"End", "", nothing, func(e *task.Entry) { e.End = minutes(1) }, true},
		{"Jitter", "", nothing, func(e *task.Entry) { e.Jitter = task.Duration(time.Second) }, true},
		{"From", "", nothing, func(e *task.Entry) { e.From = minutes(1) }, true},
		{"Anchor", "", nothing, func(e *task.Entry) { e.Anchor = minutes(1) }, true},
		{"MaxRuns", "raised", func(e *task.Entry) { e.MaxRuns = 3 }, func(e *task.Entry) { e.MaxRuns = 4 }, true},
		{"MaxRuns", "taken away", func(e *task.Entry) { e.MaxRuns = 3 }, func(e *task.Entry) { e.MaxRuns = 0 }, true},
		{"MaxRuns", "lowered", func(e *task.Entry) { e.MaxRuns = 3 }, func(e *task.Entry) { e.MaxRuns = 2 }, false},
		{"MaxRuns", "set", nothing, func(e *task.Entry) { e.MaxRuns = 2 }, false},
		{"Shadow", "switched off", func(e *task.Entry) { e.Shadow = true }, func(e *task.Entry) { e.Shadow = false }, true},
		{"Shadow", "switched on", nothing, func(e *task.Entry) { e.Shadow = true }, false},
		{"Paused", "paused", nothing, paused, false},
		{"Paused", "resumed", paused, func(e *task.Entry) { e.Paused = false }, true},
		{"Paused", "another schedule while it is paused", paused, func(e *task.Entry) { e.Schedule = task.Schedules{"@hourly"} }, false},
		{"Own", "paused for a time", nothing, pausedUntil(minutes(5)), false},
		{"Own", "the pause gets an end", paused, pausedUntil(minutes(5)), true},
		{"Own", "the pause ends sooner", pausedUntil(minutes(5)), pausedUntil(minutes(3)), true},
		{"Own", "the pause ends later", pausedUntil(minutes(5)), pausedUntil(minutes(9)), false},
		{"Own", "the pause loses its end", pausedUntil(minutes(5)), func(e *task.Entry) { e.Own = nil }, false},
		{"Generation", "", nothing, func(e *task.Entry) { e.Generation++ }, false},
		{"Action", "", nothing, func(e *task.Entry) { e.Action = task.Action{Process: &task.Process{Command: []string{"x"}}} }, false},
		{"Timeout", "", nothing, func(e *task.Entry) { e.Timeout++ }, false},
		{"KillGrace", "", nothing, func(e *task.Entry) { e.KillGrace++ }, false},
		{"TTL", "", nothing, func(e *task.Entry) { e.TTL++ }, false},
		{"Overlap", "", nothing, func(e *task.Entry) { e.Overlap = task.OverlapQueue }, false},
		{"Queue", "", nothing, func(e *task.Entry) { e.Queue.Limit++ }, false},
		{"MaxActive", "", nothing, func(e *task.Entry) { e.MaxActive++ }, false},
		{"Missed", "", nothing, func(e *task.Entry) { e.Missed.Grace++ }, false},
		{"Deadline", "", nothing, func(e *task.Entry) { e.Deadline++ }, false},
		{"PauseAfter", "", nothing, func(e *task.Entry) { e.PauseAfter++ }, false},
		{"Retry", "", nothing, func(e *task.Entry) { e.Retry.Attempts++ }, false},
		{"Target", "", nothing, func(e *task.Entry) { e.Target.Strategy = task.StrategySticky }, false},
		{"History", "", nothing, func(e *task.Entry) { e.History.Keep++ }, false},
		{"Output", "", nothing, func(e *task.Entry) { e.Output.Limit++ }, false},
		{"Metrics", "", nothing, func(e *task.Entry) { e.Metrics = new(true) }, false},
		{"KillSignal", "", nothing, func(e *task.Entry) { e.KillSignal = "SIGINT" }, false},
		{"Accept", "", nothing, func(e *task.Entry) { e.Accept.Args = 3 }, false},
		{"Success", "", nothing, func(e *task.Entry) { e.Success.ExitCodes = []int{3} }, false},
		{"NamespaceRev", "", nothing, func(e *task.Entry) { e.NamespaceRev++ }, false},
		{"Alerts", "", nothing, func(e *task.Entry) { e.Alerts = &task.Alerts{} }, false},
		{"Receiver", "", nothing, func(e *task.Entry) { e.Receiver = &task.Receiver{} }, false},
		{"Links", "", nothing, func(e *task.Entry) { e.Links = []task.Link{{Task: "b", Generation: 1}} }, false},
		{"Join", "", nothing, func(e *task.Entry) { e.Join = task.JoinAny }, false},
		{"Labels", "", nothing, func(e *task.Entry) { e.Labels = map[string]string{"team": "data"} }, false},
	} {
		old := entry(spec(record.Ref{Namespace: "default", Name: "a"}))
		c.old(&old)
		edited := old
		c.edited(&edited)

		if reflect.DeepEqual(old, edited) {
			t.Errorf("%s %s: the edit changes nothing", c.field, c.name)
		}

		if got := store.BeginsTicks(old, edited); got != c.want {
			t.Errorf("%s %s: %v, want %v", c.field, c.name, got, c.want)
		}

		delete(untested, c.field)
	}

	for field := range untested {
		t.Errorf("no case changes field %s of an entry: does that give a task ticks?", field)
	}
}

// A bulk request that gives several tasks of a shard new ticks puts revised once for the shard, after the entries.
func TestChangeTasks_PutsRevisedOncePerShard(t *testing.T) {
	w := newWorld(t)
	changes, _ := newTasks()
	_, _, err := w.ChangeTasks(t.Context(), changes)
	ok(t, err)

	if shards := w.revised(); len(shards) != 0 {
		t.Errorf("new tasks: put for shards %v", shards)
	}

	edit := func(change func(i int, e *task.Entry)) (rev int64) {
		t.Helper()
		var edits []store.Change
		for i, c := range changes[:20] {
			old := w.stored(c.New.Ref)
			next := old
			next.Task.Generation++
			change(i, &next.Entry)
			edits = append(edits, store.Change{Old: &old, New: &next})
		}

		rev, _, err := w.ChangeTasks(t.Context(), edits[:store.Fitting(edits)])
		ok(t, err)

		return rev
	}

	edit(func(_ int, e *task.Entry) { e.Timeout++ })

	if shards := w.revised(); len(shards) != 0 {
		t.Errorf("an edit without new ticks: put for shards %v", shards)
	}

	// Tasks 0 to 19 are in shards 0 to 4. Those of two shards get another schedule.
	rev := edit(func(i int, e *task.Entry) {
		if i%5 == 1 || i%5 == 3 {
			e.Schedule = task.Schedules{"@hourly"}
		}
	})

	if shards := w.revised(); !slices.Equal(shards, []int{1, 3}) {
		t.Errorf("put for shards %v, want 1 and 3", shards)
	}

	for _, shard := range []int{1, 3} {
		if puts, _ := w.changes(w.keys.Revised(shard), rev-1); puts != 1 {
			t.Errorf("put %d times for shard %d", puts, shard)
		}
	}
}

// Together with the puts of revised, the largest bulk request has no more operations than etcd allows.
func TestFitting_CountsRevised(t *testing.T) {
	var edits []store.Change
	for i := range store.MaxTogether {
		r := record.Ref{Namespace: "default", Name: "t", Shard: i}
		old := store.Stored{Ref: r, Task: spec(r), Entry: entry(spec(r))}
		next := old
		next.Entry.Schedule = task.Schedules{"@hourly"}
		edits = append(edits, store.Change{Old: &old, New: &next})
	}

	if n := store.Fitting(edits); n != 24 { // five operations each
		t.Errorf("%d edits of as many shards fit", n)
	}

	for i := range edits {
		edits[i].Old.Ref.Shard, edits[i].New.Ref.Shard = 7, 7
	}

	if n := store.Fitting(edits); n != 29 { // four operations each, and one more
		t.Errorf("%d edits of one shard fit", n)
	}
}

// revised lists the shards whose tasks have been given ticks.
func (w *world) revised() (shards []int) {
	for shard := range 5 {
		if w.exists(w.keys.Revised(shard)) {
			shards = append(shards, shard)
		}
	}

	return shards
}
