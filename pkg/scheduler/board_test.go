package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/task"
)

// keepsCount compares the worker's list of active tasks with its state.
func (tw *testWorker) keepsCount() {
	tw.world.Helper()
	active := 0

	for t := range tw.state.records.Tasks.All() {
		if t.Activity != nil {
			active++
			if tw.state.active.Tasks[t.Activity.At] != t {
				tw.world.Errorf("%s has a wrong index among the active tasks", t.FullName())
			}
		}
	}

	if active != len(tw.state.active.Tasks) {
		tw.world.Errorf("%d tasks are active, %d are listed", active, len(tw.state.active.Tasks))
	}
}

// board returns what the shard adds to a board, with the ticks of the next minute.
func (tw *testWorker) board(limit int) *readmodel.BoardAnswer {
	scan := readmodel.NewScan(boardQuery(tw.world.clock(), limit), "n1")
	scan.Add(readmodel.ShardAnswer{}, tw.state.rows.Index)

	return scan.Answer().Board
}

// boardQuery returns a query for a board with the ticks of the next minute.
func boardQuery(now time.Time, limit int) *readmodel.Query {
	return &readmodel.Query{Subject: "user:ann", Now: now.UnixMilli(), Board: &readmodel.BoardRange{Span: time.Minute, Limit: limit}}
}

// saysBoard returns the content of a board in a short form.
func saysBoard(b *readmodel.BoardAnswer) string {
	var s []string
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	add("%d tasks, %d paused", b.Counts.Tasks, b.Counts.Paused)
	p := &b.Lists
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

func (tw *testWorker) shows(limit int, want ...string) {
	tw.world.Helper()
	if got, want := saysBoard(tw.board(limit)), strings.Join(want, "; "); got != want {
		tw.world.Errorf("the board has\n %s\nwant\n %s", got, want)
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

	if p := h.board(10); p.Counts.Waiting[task.ReasonNoNode] != 1 || p.Counts.ActiveCount != 2 || p.Counts.WaitingCount != 1 || p.Lists.Active[0].Since.IsZero() {
		t.Errorf("the counts are %+v", p.Counts)
	}

	w.leave("n2") // its attempt is read as one on an absent node, and is lost later
	h.fleet()
	h.decide(11)
	h.shows(10, "5 tasks, 1 paused", "a +30", "a on n1 since +10.5", "b away on n2", "c waits: no_matching_node")

	// Another owner knows the time of the dispatch only from the run id.
	h = w.work("n1")
	if p := h.board(10); len(p.Lists.Active) != 2 || !p.Lists.Active[0].Since.IsZero() || p.Lists.Active[0].Began() != task.At(sec(5)) {
		t.Errorf("after a load %+v is active", p.Lists.Active)
	}

	w.resume("d")
	w.remove("a")
	h.see()

	if p := h.board(10); p.Counts.Tasks != 4 || p.Counts.Paused != 0 {
		t.Errorf("%d tasks, %d paused", p.Counts.Tasks, p.Counts.Paused)
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

	if p := h.board(10); p.Counts.Waiting[task.ReasonNoNode] != 3 {
		t.Fatalf("%+v", p.Counts.Waiting)
	}

	w.join("n2")
	h.fleet()
	h.decide(9)

	if p := h.board(10); p.Counts.ActiveCount != 1 || p.Counts.Waiting[task.ReasonOverlap] != 2 || p.Counts.Waiting[task.ReasonNoNode] != 0 || p.Lists.Waits[0].Reason != task.ReasonOverlap {
		t.Errorf("%d active, %+v", p.Counts.ActiveCount, p)
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
	w.at(9.001) // the worker decides nothing meanwhile
	h.shows(10, "5 tasks, 0 paused", "a0 overdue +5", "a1 overdue +6", "a2 overdue +7", "a3 +8", "later +30")
	h.shows(1, "5 tasks, 0 paused", "a0 overdue +5", "a3 +8")

	if p := h.board(1); p.Counts.OverdueCount != 3 {
		t.Errorf("%d are overdue", p.Counts.OverdueCount)
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

	if p := h.board(1); p.Counts.FailingCount != 2 || len(p.Lists.Failing) != 1 {
		t.Errorf("%d fail, %d are listed", p.Counts.FailingCount, len(p.Lists.Failing))
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
				w.ok(w.store.Dismiss(w.ctx, ref("a"), dead[i], task.NewActor("ann"), w.clock()))
				h.see()

				q := &readmodel.Query{}
				listed := h.state.rows.Index.Scan(q, 0, readmodel.NewFirst(q)).Failing
				if got := h.board(9).Counts.FailingCount; got != want || listed != want {
					t.Errorf("after %d dismissals, %d tasks fail on the board, and %d in lists; want %d", i+1, got, listed, want)
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
	h.served.Store(&served{index: h.state.rows.Index})
	go func() { reader <- h.e.pastRuns.Run(ctx) }()
	h.requestPast()

	for more := true; more; {
		r := <-found
		w.ok(r.reviewBy(w.ctx, h.worker))
		if p, ok := r.(foundPast); ok {
			more = p.more
		}
	}

	cancel()
	<-reader

	var got []string
	for _, f := range h.board(9).Lists.Failing {
		got = append(got, fmt.Sprint(f.Task, " ", f.State, " ", f.Run[9:15]))
	}

	slices.Sort(got)

	if want := []string{"again failed 120002", "fails failed 120001"}; !slices.Equal(got, want) {
		t.Errorf("%q fail, want %q", got, want)
	}
}

// While a worker waits for etcd, the board shows what it has decided, and what has become overdue since.
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
			a := r.askBoard()
			b := a.Board
			return b.Counts.Tasks == 2 && len(a.Shards) == 1 && b.Counts.ActiveCount > 1 && len(b.Lists.Next) == 1 && len(b.Lists.Stuck) == 0 && b.Tally.Recent().Fired > 1
		})

		s.stuck.Store(true)
		var b *readmodel.BoardAnswer
		w.eventually("it is overdue", func() bool {
			b = r.askBoard().Board
			return len(b.Lists.Stuck) == 1 && len(b.Lists.Overdue) == 1
		})

		if l := b.Lists; b.Counts.Tasks != 2 || l.Overdue[0].Task != "a" || l.Stuck[0].Loading || l.Stuck[0].Node != "n1" || b.Counts.OverdueCount != 1 {
			t.Errorf("it shows %+v", b)
		}

		// What the last minute was like is of all namespaces, so it is not for those who may read some.
		q := boardQuery(time.Now(), 10)
		q.Filter.Within = []string{"default"}
		if a, err := r.Ask(w.ctx, q, nil); err != nil || a.Board.Counts.Tasks != 2 || a.Board.Tally.Recent().Fired != 0 {
			t.Errorf("a caller who may read some namespaces gets %+v, %v", a.Board, err)
		}
		if a, err := r.Ask(w.ctx, q, []int{0}); err != nil || a.Board.Counts.Tasks != 0 || len(a.Board.Lists.Stuck) != 0 {
			t.Errorf("without its shard, it shows %+v, %v", a.Board, err)
		}
	})
}

// askBoard asks for the board of a node.
func (r *runningEngine) askBoard() readmodel.NodeAnswer {
	a, err := r.Ask(context.Background(), boardQuery(time.Now(), 10), nil)
	if err != nil {
		panic(err)
	}

	return a
}

// A shard that is being opened is on the board as stuck, with what the node knows: that it is loading.
func TestEngine_ShowsShardsThatAreBeingOpened(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.setClockToNow()
		s := &heldOpening{hold: make(chan chan struct{})}
		r := w.run("n1", func(e *Engine) { s.Store, e.cfg.Store = e.cfg.Store, s })
		held := make(chan struct{})
		s.hold <- held

		time.Sleep(time.Second)
		if a := r.askBoard(); len(a.Board.Lists.Stuck) != 0 {
			t.Errorf("after a second: %+v", a.Board.Lists.Stuck)
		}

		time.Sleep(2 * time.Second)
		if a := r.askBoard(); len(a.Shards) != 0 || len(a.Board.Lists.Stuck) != 1 || !a.Board.Lists.Stuck[0].Loading || a.Board.Lists.Stuck[0].Since != task.At(start) {
			t.Errorf("after three seconds: %+v", a.Board.Lists.Stuck)
		}

		close(held)
		w.eventually("the shard is open", func() bool { a := r.askBoard(); return len(a.Shards) == 1 && len(a.Board.Lists.Stuck) == 0 })
	})
}

// A caller whose context has ended gets no board. The next caller gets the complete one.
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
		if _, err := r.Ask(gone, boardQuery(time.Now(), 10), nil); err == nil {
			t.Error("a caller that has hung up gets an answer")
		}

		if b := r.askBoard().Board; b.Counts.Tasks != 1 {
			t.Errorf("the next caller gets %+v", b.Counts)
		}
	})
}

// A worker must not keep its tasks in memory after its shard has moved.
func TestWorker_HoldsNoTasksWhenItHasEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", allow, every("1s"))
	h.decide(1)
	h.releaseShared()

	if h.state.records.Tasks.Len()+len(h.state.due)+len(h.state.active.Tasks)+len(h.state.uncovered) > 0 {
		t.Errorf("%d tasks, %d due, %d lively", h.state.records.Tasks.Len(), len(h.state.due), len(h.state.active.Tasks))
	}
}

func TestHeap_IsVisitedInOrder(t *testing.T) {
	var h state.Heap
	var want []int64
	for i := range 500 {
		at := int64(rand.IntN(300)) + 1
		h.Set(&state.Task{Text: fmt.Sprintf("t%03d", i), NameLen: 4, At: -1}, at)
		want = append(want, at)
	}

	slices.Sort(want)

	for _, most := range []int{0, 1, 17, 500} {
		var got []int64
		h.InOrder(func(t *state.Task) bool {
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
}
