package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// keep is an option: how many history records of the task stay.
func keep(n int) option { return func(t *task.Task) { t.History.Keep = n } }

// trimTo trims a task's history now, with other settings than those of the task.
func (tw *testWorker) trimTo(name string, history task.History) {
	tw.world.Helper()
	tw.see()
	tw.world.ok(tw.e.trims.Trim(tw.world.ctx, tw.trimJob(name, history)))
}

// trimJob returns what trimTo requests.
func (tw *testWorker) trimJob(name string, history task.History) background.Trim {
	tw.world.Helper()
	t := tw.state.records.Tasks.Get(ref(name).String())
	if t == nil || !t.Present {
		tw.world.Fatalf("there is no task %s", name)
	}

	job := tw.state.trimOf(t, &store.ShardEvent{})
	job.History = history
	job.Before = 0

	return job
}

// trim carries out the trims that were requested, as the engine does in parallel with its workers.
func (tw *testWorker) trim() {
	tw.world.Helper()

	for {
		select {
		case job := <-tw.e.trims.Pending():
			tw.world.ok(tw.e.trims.Trim(tw.world.ctx, job))
		default:
			return
		}
	}
}

// listing is a Store in which something happens after the keys of histories were listed and before their
// records are read.
type listing struct {
	Store
	then func()
}

func (l *listing) HistoriesOf(ctx context.Context, refs []record.Ref) ([][]store.ShardEvent, int64, error) {
	keys, rev, err := l.Store.HistoriesOf(ctx, refs)

	if l.then != nil {
		l.then()
		l.then = nil
	}

	return keys, rev, err
}

// endsOutOfOrder creates a task that ticks at +3600. While the run of that tick is active, a manual run
// begins and ends, at +3650. The run of the tick ends at +3800. It is the last to end, and has the oldest
// key.
func endsOutOfOrder(w *world, opts ...option) {
	w.Helper()
	h := w.work("n1")
	w.create("a", append([]option{allow}, opts...)...)
	h.decide(3600)
	w.trigger("a")
	h.decide(3610)

	all := w.active("a")
	if len(all) != 2 || all[0].Trigger == task.TriggerManual {
		w.Fatalf("active are %+v", all)
	}

	w.at(3650)
	w.end(all[1], task.Succeeded)
	w.at(3800)
	w.end(all[0], task.Succeeded)
}

// An owner reads when the last run ended while the trimmer deletes that record. The next tick must not come
// a period early.
//
// Verifies: G25
func TestStudy_ReadsTheLastEndThoughItIsTrimmedMeanwhile(t *testing.T) {
	t.Parallel()

	for name, then := range map[string]func(*world, *testWorker){
		"left alone": func(*world, *testWorker) {},
		"trimmed": func(w *world, h *testWorker) {
			w.ok(h.e.trims.Trim(w.ctx, h.trimJob("a", task.History{Keep: 1, Record: task.RecordAll})))
		},
		"deleted": func(w *world, _ *testWorker) {
			_, err := w.client.Delete(w.ctx, w.store.Keys().HistoryOf(ref("a")), clientPrefix)
			w.ok(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2").judged()
			endsOutOfOrder(w, after("1h"))
			h := w.work("n2")
			h.e.cfg.Store = &listing{Store: h.e.cfg.Store, then: func() { then(w, h) }}
			h.decide(3801)
			w.wantAnchor("a", 3800)
		})
	}
}

// If a record cannot be read, it is unknown when its run ended. What counts from the last end then counts
// from now: too late is better than too early.
func TestStudy_OfALastEndThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2")
	endsOutOfOrder(w, after("1h"))
	past, err := w.store.History(w.ctx, ref("a"), false)
	w.ok(err)
	w.put(w.store.Keys().Ended(ref("a"), past[0].ID), "{garbage")
	w.work("n2").decide(4000)
	w.wantAnchor("a", 4000)
}

// A trim keeps the record of the last end, from which the ttl counts.
//
// Verifies: G25
func TestTrim_KeepsTheLastEndForTheTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	endsOutOfOrder(w, cronned("@at 2026-01-02T13:00:00Z"), ttl(time.Minute), keep(1))
	h := w.work("n2")
	h.trimTo("a", task.History{Keep: 1, Record: task.RecordAll})
	w.want("a", "+3600 succeeded")
	h.wantDeletion("a", 3859, 3860, false)
}

// A node that was cut off records an end late, after the end of another run that ended later. The ttl
// counts from the later end: for an owner that saw the two ends, for one that reads them, and for one that sees
// only the late record.
//
// Verifies: G25
func TestTTL_CountsFromTheLatestEnd(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name               string
		takesOver, between bool
	}{
		{"the owner sees both", false, false},
		{"another owner reads both", true, false},
		{"another owner sees the late one", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2").judged()
			h := w.work("n1")
			// Its entry counts runs, so an owner remembers something of its past from the beginning.
			w.create("a", allow, cronned("@at 2026-01-02T13:00:00Z"), ttl(10*time.Minute), maxRuns(9))
			h.decide(3600)
			w.at(3700)
			w.end(w.active("a")[0], task.Succeeded)
			h.decide(4210) // the first owner reads the history
			w.trigger("a")
			h.decide(4211)
			w.trigger("a")
			h.decide(4212)

			all := w.active("a")
			if len(all) != 2 {
				t.Fatalf("active are %+v", all)
			}

			w.at(4300)
			w.end(all[0], task.Succeeded)
			h.decide(4300)

			if c.between {
				h = w.work("n2")
				h.decide(4301)
			}

			w.at(4250)
			w.end(all[1], task.Succeeded)
			w.at(4300)
			h.decide(4301)

			if c.takesOver && !c.between {
				h = w.work("n2")
			}

			h.wantDeletion("a", 4860, 4900, false) // ten minutes after the end that was recorded last
		})
	}
}

// The last attempts of a deleted task leave records behind, which are deleted. Until then they do not count
// toward the length of the history of another task with that name.
func TestTrim_DoesNotCountRecordsOfADeletedTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("1s"), keep(1))
	h.decide(1)
	w.remove("a")
	w.at(1.5)
	w.create("a", every("1s"), keep(1))
	h.decide(2)
	all := w.active("a") // the run of the deleted task comes first
	w.end(all[1], task.Succeeded)
	w.end(all[0], task.Cancelled)
	h.trimTo("a", task.History{Keep: 1, Record: task.RecordAll})
	h.decide(2.5)
	w.want("a", "+2 succeeded")
}

// Consecutive failures count although few records are kept: no record is trimmed before it is counted.
func TestTrim_DeletesNoFailureThatIsNotCounted(t *testing.T) {
	t.Parallel()
	t.Run("that no owner has told of", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "n1", "n2").judged()
		h := w.work("n1")
		w.create("a", every("15m"), allow, pauseAfter(3), keep(1))
		h.decide(900)
		h.decide(1800)
		h.decide(2700)
		w.endAs("a", task.Failed, 2701)
		w.endAs("a", task.Failed, 2702)
		h = w.work("n2")
		w.endAs("a", task.Failed, 2703)
		h.see()
		h.trim()
		h.blind(2704)
		w.wantPaused("a", 3)
	})

	t.Run("that come together before a failover", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "n1", "n2").judged()
		h := w.work("n1")
		w.create("a", every("15m"), allow, pauseAfter(3), keep(1))
		h.decide(900)
		h.decide(1800)
		h.decide(2700)
		w.endAs("a", task.Failed, 2701)
		h.decide(2701)
		w.endAs("a", task.Failed, 2702)
		w.endAs("a", task.Failed, 2703)
		h.see()
		h.trim()
		w.work("n2").decide(2704)
		w.wantPaused("a", 3)
	})

	t.Run("and all that are", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "n1").judged()
		h := w.work("n1")
		w.create("a", every("1h"), pauseAfter(3), keep(2))

		for s := 3600.0; s <= 5*3600; s += 3600 {
			h.decide(s)
			w.endAs("a", task.Succeeded, s+1)
			h.decide(s + 1)
			h.trim()
		}

		w.want("a", "+14400 succeeded", "+18000 succeeded")
	})
}
