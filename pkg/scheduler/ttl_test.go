package scheduler

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func ttl(d time.Duration) option { return func(t *task.Task) { t.TTL = task.Duration(d) } }

// deleteExpired carries out the deletions that were requested, as the engine does in parallel with its workers.
func (tw *testWorker) deleteExpired() {
	for {
		select {
		case b := <-tw.e.ttlDeleter.Pending():
			tw.e.ttlDeleter.Delete(tw.world.ctx, b)
			tw.state.examineAll()
		default:
			return
		}
	}
}

// wantDeletion decides rounds at two times. The task must exist after the first, and after the second only
// if kept is true.
func (tw *testWorker) wantDeletion(name string, first, second float64, kept bool) {
	tw.world.Helper()

	tw.decide(first)
	tw.deleteExpired()
	tw.world.wantThere(name, true)

	tw.decide(second)
	tw.deleteExpired()
	tw.world.wantThere(name, kept)
}

func (w *world) wantThere(name string, there bool) {
	w.Helper()
	_, err := w.store.Task(w.ctx, ref(name))
	if gone := errors.Is(err, task.ErrNotFound); gone == there {
		w.Errorf("%s: %v", name, err)
	}
}

func TestTTL_DeletesWhatIsOver(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name  string
		opts  []option
		keeps bool
		at    float64 // its run ends at +20; the task is deleted at this time and not before
	}{
		{"the last run's end counts", []option{cronned("@at 2026-01-02T12:00:10Z")}, false, 50},
		{"max runs", []option{every("10s"), maxRuns(1)}, false, 50},
		{"an end", []option{every("10s"), func(t *task.Task) { t.End = task.At(sec(40)) }}, false, 70},
		{"after completion", []option{after("10s"), func(t *task.Task) { t.End = task.At(sec(15)) }}, false, 50},
		{"jitter", []option{cronned("@at 2026-01-02T12:00:09Z"), jitter(1 * time.Second)}, false, 50},
		{"ticks to come", []option{every("10s")}, true, 0},
		{"ticks to come, far away", []option{cronned("10 0 12 2 1 *")}, true, 0},
		{"manual", []option{cronned("@manual")}, true, 0},
		{"after completion, always", []option{after("10s")}, true, 0},
		{"no ttl", []option{cronned("@at 2026-01-02T12:00:10Z"), ttl(0)}, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2").judged()
			h := w.work("n1")
			w.create("a", append([]option{ttl(30 * time.Second)}, c.opts...)...)
			h.decide(10)

			if len(w.active("a")) > 0 {
				w.endAs("a", task.Succeeded, 20)
			}

			last := c.at
			if c.keeps {
				last = 10_000
			}

			for at := 20.0; at < last; at += max(1, math.Floor(last/50)) {
				h.decide(at)
				h.deleteExpired()
				for _, a := range w.active("a") {
					w.end(a, task.Succeeded)
				}
			}

			w.wantThere("a", true)
			h = w.work("n2")
			h.wantDeletion("a", last-0.001, last, c.keeps)

			if c.keeps {
				return
			}

			_, stone, err := w.store.Versions(w.ctx, ref("a"))
			if !errors.Is(err, task.ErrNotFound) {
				t.Fatalf("the versions of a deleted task: %v", err)
			}

			if stone == nil || stone.Why == "" || !stone.DeletedBy.Is(ttlDeletedBy) || !stone.DeletedAt.Equal(sec(last)) {
				t.Errorf("the tombstone: %+v", stone)
			}

			h.decide(last + 1)

			if h.state.records.Tasks.Len() != 0 {
				t.Error("the worker remembers it")
			}

			if len(w.story("a")) != 0 {
				t.Errorf("left: %v", w.story("a"))
			}
		})
	}
}

func TestTTL_NotWhileSomethingIsLeftToDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("active", cronned("@at 2026-01-02T12:00:10Z"), ttl(5*time.Second))
	w.create("waits", cronned("@at 2026-01-02T12:00:10Z"), ttl(5*time.Second), on("role = none"))
	w.create("asked", cronned("@at 2026-01-02T12:00:10Z"), ttl(5*time.Second), missed(task.MissedSkip, 1))

	for _, at := range []float64{10, 20, 40} {
		h.decide(at)
		if at < 20 {
			h.deleteExpired()
		}
	}

	for _, name := range []string{"active", "waits"} {
		w.wantThere(name, true)
	}

	w.finish("asked", task.Succeeded)
	h.decide(41)
	h.decide(46) // requests the deletion
	w.trigger("asked")
	h.decide(46)

	if len(w.active("asked")) != 0 {
		t.Error("the run is dispatched while the task is being deleted")
	}

	h.deleteExpired() // fails because a run waits
	w.wantThere("asked", true)
	h.decide(46)

	if len(w.active("asked")) != 1 {
		t.Error("it does not run")
	}

	w.finish("asked", task.Succeeded)
	h.decide(47)
	h.decide(51)
	w.write("asked", func(e *task.Entry) { e.TTL = task.Duration(time.Hour) })
	h.deleteExpired() // fails because the entry has changed
	w.wantThere("asked", true)
}

// A deletion whose outcome is unknown may be applied late, but not after a run of the task was dispatched.
func TestTTL_ArrivesLate(t *testing.T) {
	t.Parallel()

	for name, between := range map[string]func(h *testWorker){
		"nothing happens":          func(*testWorker) {},
		"the shard is opened anew": func(h *testWorker) { h.open() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", cronned("@at 2026-01-02T12:00:10Z"), ttl(5*time.Second))
			h.decide(10)
			w.finish("a", task.Succeeded)
			h.decide(11)
			h.decide(16)
			h.gate.play(h.gate.delayed)
			h.deleteExpired()
			between(h)
			w.trigger("a")
			h.decide(17)

			if len(w.active("a")) != 1 {
				t.Error("the manual run does not start")
			}

			h.gate.deliver()
			w.wantThere("a", true)
			w.finish("a", task.Succeeded)
			h.decide(18)
			h.decide(40)
			h.deleteExpired()
			w.wantThere("a", false)
		})
	}
}

func TestTTL_OfAnOwnerThatIsFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", cronned("@at 2026-01-02T12:00:10Z"), ttl(time.Second))
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	f := w.assign("n1")
	w.assign("n2")

	if err := w.store.ExpireTask(w.ctx, f, ref("a"), st.EntryMod, record.Tombstone{}); !errors.Is(err, task.ErrConflict) {
		t.Errorf("a fenced owner's: %v", err)
	}

	w.wantThere("a", true)
}

func TestTTL_OfARunningEngine(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		w.run("n1")
		now := w.clock()
		w.create("a", cronned("@at "+now.Add(time.Second).UTC().Format(time.RFC3339)), ttl(time.Second), func(t *task.Task) { t.Action = task.Action{Noop: &task.Noop{}} })
		w.eventually("it runs", func() bool { return len(w.active("a")) == 1 })
		w.setClockToNow()
		w.finish("a", task.Succeeded)
		w.eventually("it is deleted", func() bool {
			_, err := w.store.Task(w.ctx, ref("a"))
			return errors.Is(err, task.ErrNotFound)
		})
	})
}

// A task after which others run stays, and the store is not asked again and again.
func TestTTL_SparesASource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.create("a", cronned("@at 2026-01-02T12:00:10Z"), ttl(time.Second))
	key := w.store.Keys().Subscriber(ref("a"), "b")
	w.put(key, record.Encode(record.Subscriber{UID: "u", Generation: 1}))
	h := w.work("n1")
	h.decide(10)
	w.endAs("a", task.Succeeded, 20)

	h.decide(40)
	select {
	case <-h.e.ttlDeleter.Pending():
		t.Error("the deletion of a source is requested")
	default:
	}

	// It goes when nobody runs after it any more.
	w.delete(key)
	h.wantDeletion("a", 41, 41+2*ttlDeletionRetry.Seconds(), false)
}
