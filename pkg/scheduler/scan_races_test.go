package scheduler

import (
	"encoding/json"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// An owner wants to declare an attempt lost. Its node is back and has just ended it, and the next attempt
// waits. The failed commit finds both: the attempt's record is gone, and the run is in the queue. In a bug
// that the simulation found, the owner then assumed that the run was in an inbox, and deleted its queue
// record.
func TestSettle_AnAttemptThatEndedMeanwhileIsNotThereAfterAll(t *testing.T) {
	keys, err := record.NewKeys("/test")
	if err != nil {
		t.Fatal(err)
	}

	e := New(Config{
		Node: "n1", Store: store.New(nil, &yes{revision: 1000}, keys), Fleet: placement.NewFleet("n1", func() int { return 1 }),
		NextAttempt: executor.Next, Namespaces: openNamespaces, Now: func() time.Time { return start }, Logger: zap.NewNop(),
	})

	w := newWorker(e, 0, store.Fences{})
	w.discardState()
	run := task.RunID(start, "abcdefgh")
	s := w.state.records.TaskNamed("default/a")
	w.state.addActiveAttempt(s, &state.Attempt{Run: run, Node: "n2", Create: 50})

	waits, err := json.Marshal(task.Waiting{Run: task.Run{UID: "abcdefgh", State: task.Queued, Reason: task.ReasonRetry, Attempt: 2}})
	if err != nil {
		t.Fatal(err)
	}

	p := &plan{s: &w.state, now: start}
	w.state.takeConflict(p, &store.Conflict{
		Runs: []string{keys.Run("n2", ref("a"), run)},
		Records: []store.ShardEvent{{
			ShardKey: record.ShardKey{Kind: record.KindQueued, Ref: ref("a"), Run: run}, Key: keys.Queued(ref("a"), run),
			Task: "default/a", Mod: 90, Create: 90, Value: waits,
		}},
	}, start)

	if s.Holds(run) || len(s.Queue()) != 1 {
		t.Errorf("held: %t, %d wait; want the run to wait, and no attempt", s.Holds(run), len(s.Queue()))
	}
}

// The attempt of an earlier owner ends with a retry between the load of the shard and the scan. The scan
// does not contain it, and the watch has not delivered the retry yet. The run is active all the same (G8).
func TestOpen_SeesARetryThatWasQueuedBeforeTheScan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	before := w.work("n1")
	w.create("a", every("1s"), retries(2, 5*time.Second, task.Failed))
	before.decide(1)
	w.want("a", "+1 dispatched")
	h := w.startOwner("n1")
	w.ok(h.load())
	w.finish("a", task.Failed)
	h.scan()
	h.blind(2)
	w.want("a", "+1 queued retry #2", "+2 skipped overlap")
}

// A task is created and triggered between the load of the shard and the scan, and the watch has delivered
// neither. The run must not count as an orphan.
func TestOpen_LeavesWhatWaitsForAnUntoldTaskToTheWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.startOwner("n1")
	w.ok(h.load())
	w.create("a", every("1h"))
	w.trigger("a")
	h.scan()
	h.blind(1)
	h.decide(1)
	w.want("a", "+0 dispatched manual")
}

// By then, another task has the name. Its run must not count as one of the task that is known.
func TestOpen_LeavesWhatWaitsForARecreatedTaskToTheWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.create("a", every("1h"))
	h := w.startOwner("n1")
	w.ok(h.load())
	w.remove("a")
	w.create("a", every("1h"))
	w.trigger("a")
	h.scan()
	h.blind(1)
	h.decide(1)
	w.want("a", "+0 dispatched manual")
}
