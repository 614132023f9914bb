package readmodel

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// boardTask is what a board shows of a task, in a form that is easy to check.
type boardTask struct {
	row     Row
	failure *Failure
	active  []Attempt
	away    []Attempt
	waiting []WaitingRun
	alerts  *task.Alerts
	notMet  Flags
}

// put stores the task in an index.
func (b *boardTask) put(x *Index) {
	d := Details{Failure: b.failure}
	if len(b.active)+len(b.away)+len(b.waiting) > 0 {
		d.Runs = NewRuns(0)
	}
	for _, a := range b.active {
		d.Runs.AddAttempt(&a, false)
	}
	for _, a := range b.away {
		d.Runs.AddAttempt(&a, true)
	}
	for _, q := range b.waiting {
		d.Runs.AddWaiting(q)
	}

	slot := x.Put(NoSlot, b.row, d, b.alerts)
	x.ChangeWatched(slot, b.row.Name, func(w *WatchedRow) { w.NotMet = b.notMet })
}

var boardNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC).UnixMilli()

// drawBoardTask draws a task with a name.
func drawBoardTask(t *rapid.T, name string) boardTask {
	at := func(what string) int64 { return boardNow + int64(rapid.IntRange(-5, 5).Draw(t, what))*1000 }
	runs := 0
	run := func() string { // no two runs of the task have the same id
		runs++
		return task.RunID(time.UnixMilli(at("tick")), rapid.StringMatching(`[a-c]`).Draw(t, "run")+fmt.Sprint(runs))
	}

	b := boardTask{row: Row{Name: name, Flags: anyFlags(t)}}
	if b.row.Flags.Has(Gone) {
		b.row.Flags = Gone
	} else if rapid.Bool().Draw(t, "ticks") {
		b.row.Next, b.row.Delay = at("next"), int32(rapid.IntRange(0, 2).Draw(t, "delay"))*1000
	}

	if b.row.Flags.Has(Failing) {
		b.row.Failures = uint16(rapid.IntRange(0, 3).Draw(t, "failures"))
		b.row.SetLast(OutcomeOf(task.Lost))
		b.row.LastEnd = at("last end")
		if rapid.Bool().Draw(t, "known") {
			b.failure = &Failure{Run: run(), State: task.Failed, Reason: task.ReasonExit, ExitCode: new(3), Node: "n1", Ended: at("failed")}
		}
	}

	if !b.row.Flags.Has(Gone) && rapid.Bool().Draw(t, "alerts") {
		b.alerts = &task.Alerts{}
		b.notMet = Flags(rapid.IntRange(0, 1<<len(task.TaskAlertKinds)-1).Draw(t, "not met")) * AlertFailures
		b.row.Labels = map[string]string{task.LabelSeverity: rapid.SampledFrom([]string{"critical", "", "info"}).Draw(t, "severity")}
		b.row.LastSuccess = uint32(rapid.IntRange(0, 1).Draw(t, "last success")) * Seconds(boardNow)
	}

	attempts := func(what string) (list []Attempt) {
		for range rapid.IntRange(0, 3).Draw(t, what) {
			a := Attempt{Run: run(), Node: "n1", Known: rapid.Bool().Draw(t, "dispatched here"), Ending: rapid.Bool().Draw(t, "ending")}
			tick, _ := task.TimeOfRunID(a.Run)
			if a.Since = tick.UnixMilli(); a.Known {
				a.Since = at("since")
			}
			list = append(list, a)
		}
		return list
	}
	b.active, b.away = attempts("active"), attempts("away")

	for range rapid.IntRange(0, 3).Draw(t, "waiting") {
		q := WaitingRun{Run: run(), Reason: rapid.SampledFrom([]string{task.ReasonNoNode, task.ReasonTarget, task.ReasonRetry}).Draw(t, "reason")}
		if rapid.Bool().Draw(t, "unsent") {
			q.Unsent = &task.Unsent{Count: 1}
		}
		b.waiting = append(b.waiting, q)
	}

	return b
}

// boardOf returns the board of tasks without cleverness. Its lists are not cut.
func boardOf(tasks []boardTask, span time.Duration) *BoardAnswer {
	b := newBoardScan(&Query{Board: &BoardRange{}}).board()
	line, until := boardNow-OverdueAfter.Milliseconds(), boardNow+span.Milliseconds()

	for _, k := range tasks {
		namespace, name, _ := strings.Cut(k.row.Name, "/")
		count := func(n *int, is bool) {
			if is {
				*n++
			}
		}

		gone, due := k.row.Flags.Has(Gone), k.row.Next+int64(k.row.Delay)
		count(&b.Counts.Tasks, !gone)
		count(&b.Counts.Paused, k.row.Flags.Has(Paused))
		count(&b.Counts.Unreadable, k.row.Flags.Has(Unreadable))
		count(&b.Counts.FailingCount, k.row.Flags.Has(Failing))
		count(&b.Counts.OverdueCount, k.row.Next != 0 && due < line)

		tick := task.BoardTick{Namespace: namespace, Task: name, Time: task.At(time.UnixMilli(k.row.Next))}
		if k.row.Delay != 0 {
			tick.DueAt = task.At(time.UnixMilli(due))
		}
		switch {
		case k.row.Next == 0:
		case due < line:
			b.Lists.Overdue = append(b.Lists.Overdue, tick)
		case due <= until:
			b.Lists.Next = append(b.Lists.Next, tick)
		}

		if k.row.Flags.Has(Failing) {
			f := task.BoardFailing{Namespace: namespace, Task: name, State: task.Failed, InARow: max(int(k.row.Failures), 1)}
			if k.failure != nil {
				f.Run, f.State, f.Reason, f.ExitCode, f.Node, f.EndedAt = k.failure.Run, task.Failed, task.ReasonExit, k.failure.ExitCode, "n1", task.At(time.UnixMilli(k.failure.Ended))
			}
			b.Lists.Failing = append(b.Lists.Failing, f)
		}

		if k.notMet != 0 {
			a := task.BoardAlerting{Namespace: namespace, Task: name, Severity: cmp.Or(k.row.Labels[task.LabelSeverity], "error")}
			for _, kind := range task.TaskAlertKinds {
				if k.notMet.Has(AlertFlag(kind)) {
					a.Kinds = append(a.Kinds, kind)
				}
			}
			if k.row.LastSuccess != 0 {
				a.LastSuccess = task.At(time.UnixMilli(boardNow))
			}

			b.Counts.Alerts[a.Severity] += len(a.Kinds)
			if !k.row.Flags.Has(Failing) {
				b.Counts.AlertingCount++
				b.Lists.Alerting = append(b.Lists.Alerting, a)
			}
		}

		run := func(a Attempt) task.BoardRun {
			tick, _ := task.TimeOfRunID(a.Run)
			r := task.BoardRun{Namespace: namespace, Task: name, Run: a.Run, Node: "n1", ScheduledTime: task.At(tick), Ending: a.Ending}
			if a.Known {
				r.Since = task.At(time.UnixMilli(a.Since))
			}
			b.Counts.ActiveCount++
			return r
		}
		for _, a := range k.active {
			b.Lists.Active = append(b.Lists.Active, run(a))
		}
		for _, a := range k.away {
			b.Lists.Away = append(b.Lists.Away, run(a))
			b.Counts.AwayCount++
		}

		for _, q := range k.waiting {
			since, _ := task.TimeOfRunID(q.Run)
			b.Lists.Waits = append(b.Lists.Waits, task.BoardWait{Namespace: namespace, Task: name, Run: q.Run, Reason: q.Reason, Since: task.At(since), Unsent: q.Unsent})
			b.Counts.WaitingCount++
			b.Counts.Waiting[q.Reason]++
		}
	}

	slices.SortStableFunc(b.Lists.Failing, func(a, b task.BoardFailing) int {
		return cmp.Or(b.EndedAt.Compare(a.EndedAt.Time), strings.Compare(a.Namespace+"/"+a.Task, b.Namespace+"/"+b.Task))
	})

	return b
}

// sortedBoard returns a board whose lists are in their order and cut, except for failing tasks, which must be sorted already.
func sortedBoard(b *BoardAnswer, limit int) *BoardAnswer {
	cut := mergeBoards(&BoardRange{Limit: limit}, []*BoardAnswer{b})
	cut.Lists.Failing = b.Lists.Failing[:min(len(b.Lists.Failing), limit)]

	return cut
}

// The board of several nodes has the counts of all tasks that the caller may read, and the first items of each list.
func TestBoard_CountsAllAndListsTheFirst(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		limit, span := rapid.IntRange(1, 5).Draw(t, "limit"), time.Duration(rapid.IntRange(1, 4).Draw(t, "span"))*time.Second
		q := &Query{Now: boardNow, Board: &BoardRange{Span: span, Limit: limit}}
		if rapid.Bool().Draw(t, "restricted") {
			q.Filter.Within = []string{"a", "c"}
		}

		var all []boardTask
		var answers []NodeAnswer
		for shard := range rapid.IntRange(1, 3).Draw(t, "shards") {
			var x Index
			for i := range rapid.IntRange(0, 30).Draw(t, "tasks") {
				k := drawBoardTask(t, fmt.Sprintf("%s/t%d-%d", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"), i, shard))
				k.put(&x)
				if q.Filter.Within == nil || k.row.Name[0] != 'b' {
					all = append(all, k)
				}
			}

			s := NewScan(q, fmt.Sprint("n", shard))
			s.Add(ShardAnswer{Shard: shard, Owner: 1}, &x)
			answers = append(answers, s.Answer())
		}

		got, want := Merge(q, len(answers), answers).Board, sortedBoard(boardOf(all, span), limit)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("the board is\n%+v, want\n%+v", got, want)
		}
	})
}

// A caller who may read no namespace gets an empty board, without a scan.
func TestBoard_OfNoNamespaceIsEmpty(t *testing.T) {
	t.Parallel()
	var x Index
	x.Put(NoSlot, Row{Name: "a/b", Next: boardNow}, Details{}, nil)
	q := &Query{Now: boardNow, Filter: Filter{Within: []string{}}, Board: &BoardRange{Span: time.Minute, Limit: 5}}
	s := NewScan(q, "n1")
	s.Add(ShardAnswer{Shard: 0, Owner: 1}, &x)

	if p := Merge(q, 1, []NodeAnswer{s.Answer()}); p.Board.Counts.Tasks != 0 || len(p.Board.Lists.Next) != 0 || len(p.Missing) != 0 {
		t.Errorf("%+v", p.Board)
	}
}

// A task may have thousands of attempts. The sums cover all of them, and the list has the oldest ones.
func TestRuns_KeepsTheFirstOfMany(t *testing.T) {
	t.Parallel()
	const many = 3*maxTaskRuns + 7
	r := NewRuns(0)

	for i := range int64(many) {
		at := i * 7919 % many // each once, in no order
		r.AddAttempt(&Attempt{Run: fmt.Sprint(at), Since: at}, false)
		r.AddAttempt(&Attempt{Run: fmt.Sprint(at), Since: at}, true)
		r.AddWaiting(WaitingRun{Run: fmt.Sprintf("%05d", at), Reason: []string{task.ReasonRetry, task.ReasonNoNode}[at%2]})
	}

	if r.attempts != 2*many || r.attemptsAway != many || len(r.reasons) != 2 || r.reasons[0].Runs+r.reasons[1].Runs != many {
		t.Errorf("%d attempts, %d away, waiting %v", r.attempts, r.attemptsAway, r.reasons)
	}

	for _, list := range [][]*Attempt{r.active, r.away} {
		for i, a := range list {
			if a.Since != int64(i) {
				t.Fatalf("attempt %d is since %d", i, a.Since)
			}
		}
		if len(list) != maxTaskRuns {
			t.Errorf("%d attempts are kept", len(list))
		}
	}

	// Those that no node matches come first.
	for i, q := range r.waiting {
		if q.Run != fmt.Sprintf("%05d", 2*i+1) || q.Reason != task.ReasonNoNode {
			t.Fatalf("run %d that waits is %s: %s", i, q.Run, q.Reason)
		}
	}
	if len(r.waiting) != maxTaskRuns {
		t.Errorf("%d waiting runs are kept", len(r.waiting))
	}
}

// A list has no room for all runs that wait, so those on which somebody may have to act come first.
func TestWaitOrder_PutsFirstWhatNeedsAttention(t *testing.T) {
	t.Parallel()
	unsent := &task.Unsent{Count: 1}
	runs := firstOf([]task.BoardWait{
		{Run: "1", Reason: task.ReasonOverlap}, {Run: "2", Reason: task.ReasonTarget}, {Run: "3", Reason: task.ReasonTarget, Unsent: unsent},
		{Run: "4", Reason: task.ReasonRetry, Unsent: unsent}, {Run: "5", Reason: task.ReasonNoNode},
	}, 5, waitOrder)

	var order string
	for _, r := range runs {
		order += r.Run
	}

	if order != "53124" {
		t.Errorf("the order is %s", order)
	}
}

// A board that is kept for minutes must not keep the actions of tasks in memory.
func TestBoard_OwnsItsStrings(t *testing.T) {
	t.Parallel()
	var x Index
	text := "a/b" + strings.Repeat("x", 1000)
	k := boardTask{row: Row{Name: text[:3], Next: boardNow, Flags: Failing}, active: []Attempt{{Run: text[3:7], Node: text[7:9]}}}
	k.put(&x)

	s := newBoardScan(&Query{Now: boardNow, Board: &BoardRange{Span: time.Minute, Limit: 5}})
	s.scan(&x)
	l := s.board().Lists

	for _, got := range []string{l.Next[0].Namespace, l.Next[0].Task, l.Failing[0].Task, l.Active[0].Namespace, l.Active[0].Run, l.Active[0].Node} {
		if isPartOf(got, text) {
			t.Errorf("%q is a part of the owner's text", got)
		}
	}
}

// isPartOf reports whether a string shares its memory with another one.
func isPartOf(part, text string) bool {
	begin := uintptr(unsafe.Pointer(unsafe.StringData(text)))
	at := uintptr(unsafe.Pointer(unsafe.StringData(part)))

	return at >= begin && at < begin+uintptr(len(text))
}
