package scheduler

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/failures"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// keepsCount compares the worker's counts with its state.
func (h *testWorker) keepsCount() {
	h.world.Helper()
	var want [taskstate.Unreadable + 1]int
	lively := 0
	for t := range h.state.Tasks.All() {
		switch {
		case !t.Present:
			want[taskstate.Absent]++
		case t.Bad:
			want[taskstate.Unreadable]++
		case t.Paused:
			want[taskstate.Paused]++
		default:
			want[taskstate.Ticking]++
		}

		if t.Activity != nil {
			lively++
			if h.state.active.Tasks[t.Activity.At] != t {
				h.world.Errorf("%s has a wrong index among the active tasks", t.FullName())
			}
		}
	}

	got := h.state.census.Of
	if got[taskstate.Ticking] != want[taskstate.Ticking] || got[taskstate.Paused] != want[taskstate.Paused] || got[taskstate.Unreadable] != want[taskstate.Unreadable] {
		h.world.Errorf("the worker counts %v, and has %v", got, want)
	}

	if lively != len(h.state.active.Tasks) {
		h.world.Errorf("%d tasks are lively, %d are listed", lively, len(h.state.active.Tasks))
	}

	for t := range h.state.failures.All() {
		if !t.Present || h.state.Tasks.Get(t.FullName()) != t {
			h.world.Errorf("%s fails, and is not there", t.FullName())
		}
	}
}

// part returns what the worker adds to the board, with the ticks of the next minute.
func (h *testWorker) part(limit int) (p task.BoardPart) {
	var enough atomic.Int64
	enough.Store(math.MaxInt64)
	now := h.world.clock().UnixMilli()
	g := &board.Summary{Now: now, Until: now + time.Minute.Milliseconds(), Limit: limit, Enough: &enough, Shown: make(chan *board.Summary, 1)}
	h.state.addToBoard(g)
	s := board.NewBuilder(limit)
	s.Add(g)
	s.Fill(&p)

	return p
}

// saysBoard returns the content of a part in a short form.
func saysBoard(p task.BoardPart) string {
	var s []string
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	add("%d tasks, %d paused", p.Counts().Tasks, p.Counts().Paused)
	at := func(t task.Time) float64 { return t.Sub(start).Seconds() }

	for _, t := range p.Overdue {
		add("%s overdue +%g", t.Task, at(t.Time))
	}

	for _, t := range p.Next {
		add("%s +%g", t.Task, at(t.Time))
	}

	for _, r := range p.Active {
		add("%s on %s since +%g", r.Task, r.Node, at(r.Began()))
	}

	for _, r := range p.Away {
		add("%s away on %s", r.Task, r.Node)
	}

	for _, w := range p.Waits {
		add("%s waits: %s", w.Task, w.Reason)
	}

	for _, f := range p.Failing {
		add("%s %s ×%d", f.Task, f.State, f.InARow)
	}

	return strings.Join(s, "; ")
}

func (h *testWorker) shows(limit int, want ...string) {
	h.world.Helper()
	if got, want := saysBoard(h.part(limit)), strings.Join(want, "; "); got != want {
		h.world.Errorf("the board has\n %s\nwant\n %s", got, want)
	}
}

func TestBoard_ShowsWhatComesWhatRunsAndWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2")
	h := w.work("n1")
	w.create("a", cronned("5,30 0 12 * * *"))
	w.create("b", cronned("10 0 12 * * *"), on("node = n2"))
	w.create("c", cronned("7 0 12 * * *"), on("gpu = yes"))
	w.create("d", paused)
	w.create("e", cronned("0 0 0 1 1 *"))
	h.decide(1)
	h.shows(10, "5 tasks, 1 paused", "a +5", "c +7", "b +10")
	h.shows(2, "5 tasks, 1 paused", "a +5", "c +7")
	h.decide(10.5)
	h.shows(10, "5 tasks, 1 paused", "a +30", "a on n1 since +10.5", "b on n2 since +10.5", "c waits: no_matching_node")

	if p := h.part(10); p.Counts().Waiting[task.ReasonNoNode] != 1 || p.Counts().ActiveCount != 2 || p.Counts().WaitingCount != 1 || p.Active[0].Since.IsZero() {
		t.Errorf("the counts are %+v", p.Counts())
	}

	w.leave("n2") // its attempt is read as one on an absent node, and is lost later
	h.fleet()
	h.decide(11)
	h.shows(10, "5 tasks, 1 paused", "a +30", "a on n1 since +10.5", "b away on n2", "c waits: no_matching_node")

	// Another owner knows the time of the dispatch only from the run id.
	h = w.work("n1")
	if p := h.part(10); len(p.Active) != 2 || !p.Active[0].Since.IsZero() || p.Active[0].Began() != task.At(sec(5)) {
		t.Errorf("after a load %+v is active", p.Active)
	}

	w.resume("d")
	w.remove("a")
	h.see()

	if p := h.part(10); p.Counts().Tasks != 4 || p.Counts().Paused != 0 {
		t.Errorf("%d tasks, %d paused", p.Counts().Tasks, p.Counts().Paused)
	}
}

// When a node accepts runs that had no node, they wait for each other. Their selector is no longer the
// reason.
func TestBoard_ForgetsThatThereWasNoNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", cronned("5,6,7 0 12 * * *"), on("node = n2"), queues(10, ""))

	for _, at := range []float64{5, 6, 7, 8} {
		h.decide(at)
	}

	if p := h.part(10); p.Counts().Waiting[task.ReasonNoNode] != 3 {
		t.Fatalf("%+v", p.Counts().Waiting)
	}

	w.join("n2")
	h.fleet()
	h.decide(9)

	if p := h.part(10); p.Counts().ActiveCount != 1 || p.Counts().Waiting[task.ReasonOverlap] != 2 || p.Counts().Waiting[task.ReasonNoNode] != 0 || p.Waits[0].Reason != task.ReasonOverlap {
		t.Errorf("%d active, %+v", p.Counts().ActiveCount, p)
	}
}

func TestBoard_ShowsWhatIsOverdue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")

	for i := range 4 {
		w.create(fmt.Sprintf("a%d", i), cronned(fmt.Sprintf("%d 0 12 * * *", 5+i)))
	}

	w.create("later", cronned("30 0 12 * * *"))
	h.see()
	w.at(9) // the worker decides nothing meanwhile
	h.shows(10, "5 tasks, 0 paused", "a0 overdue +5", "a1 overdue +6", "a2 overdue +7", "a3 +8", "later +30")
	h.shows(1, "5 tasks, 0 paused", "a0 overdue +5", "a3 +8")

	if p := h.part(1); p.Counts().OverdueCount != 3 {
		t.Errorf("%d are overdue", p.Counts().OverdueCount)
	}
}

func TestBoard_APauseThatIsOverDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", cronned("@daily"), paused)
	h.see()
	h.shows(1, "1 tasks, 1 paused")
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	e := st.Entry
	e.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(start), Until: task.At(sec(5))}}}
	_, err = w.store.UpdateTask(w.ctx, st, st.Task, e)
	w.ok(err)
	h.see()
	h.shows(1, "1 tasks, 1 paused")
	w.at(6)
	h.shows(1, "1 tasks, 0 paused")
}

func TestBoard_ATaskFailsUntilARunOfItSucceeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a")
	w.create("b", cronned("1 0 12 * * *"))
	h.decide(1)
	w.finish("a", task.Failed)
	h.decide(2)
	h.shows(9, "2 tasks, 0 paused", "a +3", "b on n1 since +1", "a on n1 since +2", "a failed ×1")
	h.decide(3) // skipped, which is not the end of a run
	w.finish("a", task.TimedOut)
	w.finish("b", task.Failed)
	h.decide(3.5)
	h.shows(9, "2 tasks, 0 paused", "a +4", "a timed_out ×2", "b failed ×1")

	if p := h.part(1); p.Counts().FailingCount != 2 || len(p.Failing) != 1 {
		t.Errorf("%d fail, %d are listed", p.Counts().FailingCount, len(p.Failing))
	}

	if r := h.e.recent.Tally(w.clock()).Recent(); r.Failed != 3 || r.Fired != 3 || r.Skipped != 1 {
		t.Errorf("the last minute: %+v", r)
	}

	h.decide(4)
	w.finish("a", task.Cancelled) // a cancelled run is not a failure either
	h.decide(5)
	w.finish("a", task.Succeeded)
	w.remove("b")
	h.decide(5.5)
	h.shows(9, "1 tasks, 0 paused", "a +6")
}

// A task is failing until all its failures are dismissed, in any order. The board and the lists agree.
func TestBoard_FailsUntilAllFailuresAreDismissed(t *testing.T) {
	t.Parallel()

	for name, newestFirst := range map[string]bool{"the newest first": true, "the oldest first": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", cronned("1,2 0 12 * * *"))
			h.decide(1)
			w.finish("a", task.Failed)
			h.decide(2)
			w.finish("a", task.Failed)
			h.see()
			dead, err := w.store.DeadRuns(w.ctx, ref("a")) // the newest first
			w.ok(err)
			if !newestFirst {
				slices.Reverse(dead)
			}

			for i, want := range []int{1, 0} {
				w.ok(w.store.Dismiss(w.ctx, ref("a"), dead[i], "ann"))
				h.see()

				listed, _ := h.state.rows.DeadRuns(h.state.TaskNamed("default/a"))
				if got := h.part(9).Counts().FailingCount; got != want || min(listed, 1) != want {
					t.Errorf("after %d dismissals, %d tasks fail on the board, and %d failures are listed; want %d", i+1, got, listed, want)
				}
			}
		})
	}
}

func TestBoard_ANewOwnerFindsOutWhatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")

	for _, name := range []string{"fails", "recovered", "again", "meanwhile", "fine"} {
		w.create(name, cronned("1,2,3 0 12 * * *"))
	}

	h.decide(1)

	for _, name := range []string{"fails", "recovered", "again", "meanwhile"} {
		w.finish(name, task.Failed)
	}

	h.decide(2)
	w.finish("recovered", task.Succeeded)
	w.finish("again", task.Failed)
	h.decide(3)

	h = w.work("n1")
	h.keepsCount()
	found := make(chan review, 4)
	h.reviews = found
	w.finish("meanwhile", task.Succeeded) // after the load, and before the earlier failures are delivered
	h.see()

	ctx, cancel := context.WithCancel(w.ctx)
	reader := make(chan error)
	go func() { reader <- h.e.failures.Run(ctx) }()
	h.e.failures.Request(h.requestFailures())

	for more := true; more; {
		r := (<-found).(earlierFailures)
		w.ok(r.reviewBy(w.ctx, h.worker))
		more = r.found.More
	}

	cancel()
	<-reader

	var got []string
	for _, f := range h.part(9).Failing {
		got = append(got, fmt.Sprint(f.Task, " ", f.State, " ", f.Run[9:15]))
	}

	slices.Sort(got)

	if want := []string{"again failed 120002", "fails failed 120001"}; !slices.Equal(got, want) {
		t.Errorf("%q fail, want %q", got, want)
	}
}

// Earlier failures that a Reader finds do not replace what the watch has delivered since.
func TestBoard_WhatTheWatchToldCountsMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"))
	h.decide(1)
	old := &failures.Failure{Mod: 1, Failure: board.Failure{Run: w.active("a")[0].ID, State: task.Failed}}
	w.finish("a", task.Succeeded)
	h.see()
	w.ok(earlierFailures{&failures.Found{Failing: map[string]*failures.Failure{"default/a": old, "default/gone": old}}, h.openings.Load()}.reviewBy(w.ctx, h.worker))
	h.shows(9, "1 tasks, 0 paused")
}

func TestEngine_ShowsWhatItKnowsOfAWorkerThatIsHeldUp(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.setClockToNow()
		s := &stuckStore{}
		r := w.run("n1", func(e *Engine) { s.Store, e.cfg.Store = e.cfg.Store, s })
		w.create("a", allow, every("200ms"))
		w.create("b", cronned("@at 2099-01-01T00:00:00Z"))
		w.eventually("it fires", func() bool { return len(w.active("a")) > 1 })
		w.eventually("it is shown", func() bool {
			p := r.Part(w.ctx, task.BoardQuery{Span: time.Minute, Limit: 10})
			return p.Counts().Tasks == 2 && p.Counts().Serving == 1 && p.Counts().ActiveCount > 1 && len(p.Next) == 1 && len(p.Stuck) == 0 && p.Tally.Recent().Fired > 1
		})

		s.stuck.Store(true)
		var p task.BoardPart
		w.eventually("it is overdue", func() bool {
			p = r.Part(w.ctx, task.BoardQuery{Span: time.Minute, Limit: 10})
			return len(p.Stuck) == 1 && len(p.Overdue) == 1
		})

		if p.Counts().Tasks != 2 || p.Overdue[0].Task != "a" || p.Stuck[0].Loading || p.Stuck[0].Node != "n1" || p.Counts().OverdueCount != 1 {
			t.Errorf("it shows %+v", p)
		}
	})
}

// A caller whose context ends does not wait for the workers. The next caller gets the complete board.
func TestEngine_ShowsAllToWhoComesAfterOneThatHungUp(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.setClockToNow()
		r := w.run("n1", func(*Engine) {})
		w.create("a", allow, every("200ms"))
		w.eventually("it fires", func() bool { return len(w.active("a")) > 0 })
		gone, hangUp := context.WithCancel(w.ctx)
		hangUp()
		r.Part(gone, task.BoardQuery{Span: time.Minute, Limit: 10})

		w.eventually("all is shown", func() bool { return r.Part(w.ctx, task.BoardQuery{Span: time.Minute, Limit: 10}).Counts().Tasks == 1 })
	})
}

// A worker that was busy when a caller's context ended answers the next caller.
func TestEngine_AsksAWorkerThatHasNotLookedYet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	h.serving.Store(true)
	h.e.workers[0] = h.worker
	gone, hangUp := context.WithCancel(w.ctx)
	hangUp()
	h.e.Part(gone, task.BoardQuery{Span: time.Minute, Limit: 10})
	former := <-h.summaryRequests
	h.summaryRequests <- former
	h.e.Part(w.ctx, task.BoardQuery{Span: time.Minute, Limit: 10})

	if <-h.summaryRequests == former {
		t.Error("it is asked on behalf of a caller that has disconnected")
	}
}

// The board refers to a worker as long as it shows its last summary. The worker must not keep its tasks in
// memory after its shard has moved.
func TestWorker_HoldsNoTasksWhenItHasEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", allow, every("1s"))
	h.decide(1)
	h.releaseShared()

	if h.state.Tasks.Len()+len(h.state.due)+len(h.state.active.Tasks)+len(h.state.uncovered) > 0 {
		t.Errorf("%d tasks, %d due, %d lively", h.state.Tasks.Len(), len(h.state.due), len(h.state.active.Tasks))
	}
}

func TestHeap_IsVisitedInOrder(t *testing.T) {
	var h taskstate.Heap
	var want []int64
	for i := range 500 {
		at := int64(rand.IntN(300)) + 1
		h.Set(&taskstate.Task{Text: fmt.Sprintf("t%03d", i), NameLen: 4, At: -1}, at)
		want = append(want, at)
	}

	slices.Sort(want)

	for _, most := range []int{0, 1, 17, 500} {
		var got []int64
		h.InOrder(func(t *taskstate.Task) bool {
			if len(got) == most {
				return false
			}
			got = append(got, t.Next)
			return true
		})

		if !slices.Equal(got, want[:most]) {
			t.Errorf("the first %d are %v", most, got)
		}
	}

	if n, _ := slices.BinarySearch(want, 151); h.CountUpTo(150) != n {
		t.Errorf("%d are due at 150, want %d", h.CountUpTo(150), n)
	}
}

// The cost of a board for a shard with many tasks.
func BenchmarkGlimpse(b *testing.B) {
	w, now := benchWorker(b, 10_000, "* * * * * *")
	var enough atomic.Int64
	enough.Store(math.MaxInt64)
	b.ReportAllocs()

	for b.Loop() {
		g := &board.Summary{Now: now.UnixMilli(), Until: now.Add(time.Minute).UnixMilli(), Limit: 50, Enough: &enough, Shown: make(chan *board.Summary, 1)}
		w.state.addToBoard(g)
	}
}

// Compares finding the state of a record with decoding the record.
func BenchmarkOutcome(b *testing.B) {
	value := []byte(`{"uid":"k3f9aaaaaaaaaaaa","scheduled_time":"2026-11-20T22:05:00.000Z","state":"succeeded","trigger":"schedule","node":"n1",` +
		`"owner":"n1","attempt":1,"token":123456,"created_at":"2026-11-20T22:05:00.001Z","started_at":"2026-11-20T22:05:00.002Z",` +
		`"ended_at":"2026-11-20T22:05:00.003Z","exit_code":0,"lateness_ms":2}`)
	b.ReportAllocs()

	for b.Loop() {
		if record.StateOf(value) != task.Succeeded {
			b.Fatal("not found")
		}
	}
}
