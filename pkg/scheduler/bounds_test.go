package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/task"
)

func maxRuns(n int64) option { return func(t *task.Task) { t.MaxRuns = n } }

// write changes a task's entry as the API does, together with the spec.
func (w *world) write(name string, f func(*task.Entry)) {
	w.Helper()
	old, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	e := old.Entry
	f(&e)
	t := old.Task
	t.Paused = e.Paused
	_, err = w.store.UpdateTask(w.ctx, old, t, e)
	w.ok(err)
}

func (w *world) entry(name string) task.Entry {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	return st.Entry
}

func (w *world) own(name string) task.Own {
	w.Helper()
	if own := w.entry(name).Own; own != nil {
		return *own
	}
	return task.Own{}
}

func (w *world) pauseUntil(name string, until float64) {
	w.write(name, func(e *task.Entry) {
		e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{{Since: task.At(w.clock()), Until: task.At(sec(until)), Reason: "a test"}}}
	})
}

func TestPause_WithAnEndEndsByItself(t *testing.T) {
	t.Parallel()

	for _, handOver := range []bool{false, true} {
		w := newWorld(t, "n1", "n2").judged()
		h := w.work("n1")
		w.create("a", every("10s"), allow)
		h.decide(10)
		w.pauseUntil("a", 30)

		for _, at := range []float64{20, 30, 35} {
			if handOver {
				h = w.work([]string{"n2", "n1"}[int(at)%2])
			}
			h.decide(at)
		}

		w.want("a", "+10 dispatched")
		mod := w.entry("a")
		h.decide(40)
		w.want("a", "+10 dispatched", "+40 dispatched")

		if e := w.entry("a"); !e.Paused || !e.From.Equal(mod.From.Time) {
			t.Error("the end of a pause was written")
		}

		// Late ticks also count only from the end of the pause.
		w.pauseUntil("a", 65)
		h = w.work("n2")
		h.decide(100)
		w.want("a", "+10 dispatched", "+40 dispatched", "+70..+90 missed 3 came_to_light_late", "+100 dispatched")
	}
}

func TestPause_EndsAreNotTakenForTicks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("10s"), allow, paused)
	h.decide(30)
	w.want("a")

	if s := h.state.records.TaskNamed("default/a"); s.Next != 0 {
		t.Errorf("a task that is paused for good ticks at %s", state.Instant(s.Next))
	}
}

func TestMaxRuns_OfTicksInTheirOrder(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name string
		opts []option
		at   []float64
		want []string
	}{
		{"on time", []option{allow}, []float64{10, 20, 30, 40, 50}, []string{"+10 dispatched", "+20 dispatched", "+30 dispatched"}},
		{"skipped ticks do not count", nil, []float64{10, 20, 30}, []string{"+10 dispatched", "+20..+30 skipped 2 overlap"}},
		{"all at once", []option{allow, missed(task.MissedAll, 100)}, []float64{95},
			[]string{"+10 dispatched catch_up", "+20 queued catch_up", "+30 queued catch_up"}},
		{"waiting counts", []option{allow, on("role = none")}, []float64{10, 20, 30, 40}, []string{"+10 queued no_matching_node", "+20 queued no_matching_node", "+30 queued no_matching_node"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2").judged()
			w.create("a", append([]option{every("10s"), maxRuns(3)}, c.opts...)...)

			h := w.work("n1")
			for i, at := range c.at {
				if i%2 == 1 { // the count was written by another owner
					h = w.work([]string{"n1", "n2"}[i%4/2])
				}
				h.decide(at)
			}

			got := w.story("a")
			for i := range got {
				if len(c.at) == 1 && got[i] == "+20 dispatched catch_up" || got[i] == "+30 dispatched catch_up" {
					got[i] = got[i][:4] + "queued catch_up"
				}
			}

			if !slices.Equal(got, c.want) {
				t.Errorf("\n got  %q\n want %q", got, c.want)
			}
		})
	}
}

func TestMaxRuns_RaisedHasTicksAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("a", every("10s"), allow, maxRuns(1))
	w.create("z", every("5s"), allow)
	h := w.work("n1")

	for _, at := range []float64{5, 10, 15, 20, 25} {
		h.decide(at)
	}

	w.write("a", func(e *task.Entry) { e.MaxRuns = 3 })
	h.decide(31) // +20 is at or before the watermark
	w.want("a", "+10 dispatched", "+30 dispatched")
	w.work("n2").decide(61)
	w.want("a", "+10 dispatched", "+30 dispatched", "+40..+50 missed 2 came_to_light_late", "+60 dispatched")

	if n := w.own("a").Runs; n != 3 {
		t.Errorf("%d runs are counted", n)
	}
}

// The count and the run are one write. So there are as many runs as are counted, whatever the outcome of
// each commit.
func TestMaxRuns_OverCrashes(t *testing.T) {
	t.Parallel()

	for i, trick := range []func(*testWorker) trick{
		func(h *testWorker) trick { return h.dies }, func(h *testWorker) trick { return h.diesAfter },
		func(*testWorker) trick { return lost }, func(*testWorker) trick { return appliedButLost },
		func(h *testWorker) trick {
			return func(send func() (r kv.Result, err error)) (kv.Result, error) { h.die(); return h.gate.delayed(send) }
		},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2").judged()
			w.create("a", every("10s"), allow, maxRuns(2))
			h := w.work("n1")
			h.decide(1) // covered
			h.gate.play(trick(h))
			_ = h.try(10)
			h2 := w.work("n2")
			h.gate.deliver()
			h2.decide(10)
			w.want("a", "+10 dispatched")
			h2.decide(20)
			h2.decide(30)
			w.want("a", "+10 dispatched", "+20 dispatched")

			if n := w.own("a").Runs; n != 2 {
				t.Errorf("%d runs are counted", n)
			}
		})
	}
}

func TestInARow(t *testing.T) {
	t.Parallel()
	states := map[byte]task.State{'f': task.Failed, 't': task.TimedOut, 'l': task.Lost, 's': task.Succeeded, 'c': task.Cancelled, 'k': task.Skipped, 'm': task.Missed}

	for text, want := range map[string]int{"": 2, "f": 3, "ftl": 5, "s": 0, "fsf": 1, "ckm": 2, "fcf": 4, "fs": 0} {
		var ends []state.End
		for i, c := range []byte(text) {
			ends = append(ends, state.End{Create: int64(i), State: states[c]})
		}

		if got := state.InARow(2, ends); got != want {
			t.Errorf("after %q %d are in a row, want %d", text, got, want)
		}
	}
}

func TestAnchorAfter(t *testing.T) {
	t.Parallel()
	ms := func(d time.Duration) int64 { return d.Milliseconds() }

	for _, c := range []struct{ end, decided, want time.Duration }{
		{100 * time.Second, 101 * time.Second, 100 * time.Second},
		{10 * time.Second, 101 * time.Second, 41*time.Second + time.Millisecond}, // its tick would be decided already
		{0, 101 * time.Second, 41*time.Second + time.Millisecond},                // nothing has ended yet
		{41 * time.Second, 101 * time.Second, 41*time.Second + time.Millisecond}, // the tick is at now, which counts as decided
		{41001 * time.Millisecond, 101 * time.Second, 41001 * time.Millisecond},  // the tick is just after that
	} {
		if got := anchorAfter(ms(c.end), ms(c.decided), 60_000); got != ms(c.want) {
			t.Errorf("%+v: the anchor is %d", c, got)
		}
	}
}
