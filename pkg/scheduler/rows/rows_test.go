package rows

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const taskName = "default/a"

// newTask returns a task whose entry was created at a revision.
func newTask(create int64) *state.Task {
	return &state.Task{Text: taskName + "uid0", NameLen: uint16(len(taskName)), UIDLen: 4, Present: true, Create: create, Row: readmodel.NoSlot}
}

// happening is one thing that happens to the task: a run ends, which may leave a dead run, or a dead run is dismissed.
// Several of them may have the same revision.
type happening struct {
	state   task.State // "": a dismissal
	run     string
	dead    bool  // the run becomes a dead run
	marked  int64 // the dismissal only begins: it rewrites the record of the dead run, which was created at this revision
	revised int64
}

// events returns what a watch delivers of it.
func (h happening) events() []store.ShardEvent {
	key := record.ShardKey{Kind: record.KindDead, Ref: record.Ref{Namespace: "default", Name: "a"}, Run: h.run}
	dead := store.ShardEvent{ShardKey: key, Key: "dead/" + h.run, Task: taskName, Mod: h.revised, Create: h.revised, Value: record.EncodeWaiting(task.Waiting{Run: h.end()})}
	switch {
	case h.marked != 0:
		dead.Create = h.marked
		return []store.ShardEvent{dead}
	case h.state == "":
		dead.Deleted, dead.Create, dead.Value = true, 0, nil
		return []store.ShardEvent{dead}
	}

	key.Kind = record.KindEnded
	end := store.ShardEvent{ShardKey: key, Key: "history/" + h.run, Task: taskName, Mod: h.revised, Create: h.revised, Value: h.record()}
	if h.dead {
		return []store.ShardEvent{dead, end}
	}

	return []store.ShardEvent{end}
}

// end returns the run of an end. Each is different.
func (h happening) end() task.Run {
	at := time.UnixMilli(1_700_000_000_000)
	r := task.Run{UID: "uid0", ID: h.run, State: h.state, Reason: task.ReasonExit, Node: "n1", ScheduledTime: task.At(at), StartedAt: task.At(at), EndedAt: task.At(at.Add(time.Duration(h.revised) * time.Second))}
	r.LatenessMS, r.ExitCode = new(h.revised), new(int(h.revised))

	return r
}

// record returns the history record of an end.
func (h happening) record() []byte { return record.EncodeEnded(h.end()) }

// outcome is what a row says about ends.
type outcome struct {
	LastEnd            int64
	LastSuccess        uint32
	Duration, Lateness int32
	Failures           uint16
	Last               task.State
	Failing, History   bool
}

func outcomeOf(r readmodel.Row) outcome {
	return outcome{
		r.LastEnd, r.LastSuccess, r.Duration, r.Lateness, r.Failures, r.Last().State(),
		r.Flags.Has(readmodel.Failing), r.Flags.Has(readmodel.History),
	}
}

// outcomeAfter returns what a row must say after all of this has happened.
func outcomeAfter(story []happening) outcome {
	want := outcome{History: true}
	dead, success := map[string]int64{}, int64(0) // revisions

	for _, h := range story {
		if h.state == "" {
			if h.marked == 0 {
				delete(dead, h.run)
			}
			continue
		}

		end, _ := record.EndOf(h.record())
		want.LastEnd, want.Last, want.Duration, want.Lateness = end.Ended, h.state, int32(end.Ended-end.Started), int32(h.revised)

		switch h.state {
		case task.Succeeded:
			want.LastSuccess, want.Failures = readmodel.Seconds(end.Ended), 0
			success = h.revised
		case task.Cancelled:
		default:
			want.Failures++
		}

		if h.dead {
			dead[h.run] = h.revised
		}
	}

	for _, created := range dead {
		want.Failing = want.Failing || created > success
	}

	return want
}

// pastAt returns what a reader finds that lists the dead runs at one revision, and the history at a later one.
func pastAt(story []happening, deadAt, historyAt int64) background.Past {
	p := background.Past{Want: background.WantedPast{Task: taskName, UID: "uid0"}, Revision: historyAt, DeadRevision: deadAt}
	var dead []store.ShardEvent

	for _, h := range story {
		if h.revised <= deadAt && h.state == "" && h.marked == 0 {
			dead = slices.DeleteFunc(dead, func(ev store.ShardEvent) bool { return ev.Run == h.run })
		}
		if h.revised <= deadAt && h.dead {
			dead = append(dead, h.events()[0])
		}

		if h.revised > historyAt || h.state == "" {
			continue
		}

		end, _ := record.EndOf(h.record())
		p.Last = background.PastEnd{Create: h.revised, End: end}

		switch h.state {
		case task.Succeeded:
			p.Success, p.Failures = p.Last, 0
		case task.Cancelled:
		default:
			p.Failures++
		}
	}

	for _, ev := range dead {
		if ev.Create > p.Success.Create {
			p.Dead = append(p.Dead, ev)
		}
	}
	for i := range p.Dead {
		if i < len(p.Dead)-1 {
			p.Dead[i].Value = nil // only the newest is read
		}
	}

	return p
}

// boardOf returns what a board shows of an index.
func boardOf(x *readmodel.Index) *readmodel.BoardAnswer {
	scan := readmodel.NewScan(&readmodel.Query{Board: &readmodel.BoardRange{Span: time.Hour, Limit: 10}}, "n1")
	scan.Add(readmodel.ShardAnswer{}, x)

	return scan.Answer().Board
}

// deadRunsOf returns how many dead runs the metrics of an index count.
func deadRunsOf(x *readmodel.Index) (n int) {
	f := readmodel.NewFigures(readmodel.FigureLimits{Namespaces: 10})
	f.Add(x, 0, func(string) bool { return false })
	for _, of := range f.Namespaces() {
		n += of.DeadRuns
	}

	return n
}

// deadRunsAfter returns how many dead runs are left, after which no run has succeeded.
func deadRunsAfter(story []happening) (n int) {
	success, left := int64(0), map[string]int64{}
	for _, h := range story {
		switch {
		case h.state == "" && h.marked == 0:
			delete(left, h.run)
		case h.state == task.Succeeded:
			success = h.revised
		case h.dead:
			left[h.run] = h.revised
		}
	}

	for _, created := range left {
		if created > success {
			n++
		}
	}

	return n
}

// failureFault compares the failure on a board with what has happened, and returns the difference, or "". It is the newest
// dead run since the last success. If that was dismissed, and older ones were not, it may be one of these.
func failureFault(failing []task.BoardFailing, story []happening) string {
	died, left, success := map[string]happening{}, map[string]bool{}, int64(0)
	for _, h := range story {
		switch {
		case h.state == "" && h.marked == 0:
			delete(left, h.run)
		case h.state == task.Succeeded:
			success = h.revised
		case h.dead:
			died[h.run], left[h.run] = h, true
		}
	}

	newestLeft := int64(0)
	for run := range left {
		if at := died[run].revised; at > success {
			newestLeft = max(newestLeft, at)
		}
	}

	if newestLeft == 0 {
		if len(failing) > 0 {
			return fmt.Sprintf("%+v is failing", failing)
		}
		return ""
	}

	if len(failing) != 1 {
		return fmt.Sprintf("%d tasks are failing", len(failing))
	}

	f := failing[0]
	h, ok := died[f.Run]
	if !ok || h.revised < newestLeft {
		return fmt.Sprintf("the last failure is %+v, and a run failed at %d", f, newestLeft)
	}
	if e := h.end(); f.State != e.State || f.Reason != e.Reason || *f.ExitCode != *e.ExitCode || f.Node != e.Node || f.EndedAt != e.EndedAt {
		return fmt.Sprintf("%+v, want %+v", f, e)
	}

	return ""
}

// drawStory draws what happens to the task, each at a revision of its own.
func drawStory(t *rapid.T) (story []happening) {
	var dead []happening

	for rev := int64(10); len(story) < 12 && rapid.IntRange(0, 9).Draw(t, "more") > 0; rev += int64(rapid.IntRange(0, 2).Draw(t, "step")) {
		h := happening{revised: rev, run: fmt.Sprintf("r%d-%d", rev, len(story)), state: rapid.SampledFrom([]task.State{task.Succeeded, task.Failed, task.Failed, task.TimedOut, task.Lost, task.Cancelled}).Draw(t, "state")}

		// A record that is created in a revision is not rewritten or deleted in the same one.
		older := slices.DeleteFunc(slices.Clone(dead), func(d happening) bool { return d.revised == rev })

		if len(older) > 0 && rapid.Bool().Draw(t, "dismiss") {
			of := rapid.SampledFrom(older).Draw(t, "which")
			h.state, h.run = "", of.run
			if rapid.Bool().Draw(t, "it only begins") {
				h.marked = of.revised
			} else {
				dead = slices.DeleteFunc(dead, func(d happening) bool { return d.run == h.run })
			}
		} else if (state.End{State: h.state}).Failed() && rapid.Bool().Draw(t, "dead") {
			h.dead = true
			dead = append(dead, h)
		}

		story = append(story, h)
	}

	return story
}

// Somebody writes the record of a run again, as it is, after another run has failed. That is no new end.
func TestWriter_IgnoresRecordsThatAreWrittenAgain(t *testing.T) {
	t.Parallel()
	story := []happening{{state: task.Succeeded, run: "r102", revised: 102}, {state: task.Failed, run: "r103", dead: true, revised: 103}}

	for _, again := range story {
		w := NewWriter()
		w.NoteLoad(100, time.UnixMilli(0))
		at := newTask(101)
		w.Touch(at)
		w.Flush(101)

		for _, h := range story {
			for _, ev := range h.events() {
				if ev.Kind == record.KindEnded {
					w.NoteEnd(at, &ev)
				} else {
					w.NoteDead(at, &ev)
				}
			}
			w.Flush(h.revised)
		}

		for _, ev := range again.events() {
			if ev.Kind == record.KindEnded {
				ev.Mod = 104
				w.NoteEnd(at, &ev)
			}
		}
		w.Flush(104)

		if got, want := outcomeOf(w.Index.Row(at.Row)), outcomeAfter(story); got != want {
			t.Errorf("%s is written again: %+v, want %+v", again.run, got, want)
		}
	}
}

// The history is read while the watch delivers events, and may be ahead of it or behind. It may be read again because the
// watch has lost events. The row is the same as if there had been one owner all the time, which has seen everything.
func TestWriter_KnowsThePastAsIfItHadSeenIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		story := drawStory(t)
		last := int64(40)
		loaded := rapid.Int64Range(5, last).Draw(t, "loaded")
		deadAt := rapid.Int64Range(loaded, last).Draw(t, "dead runs read at")
		historyAt := rapid.Int64Range(deadAt, last).Draw(t, "history read at")
		deliveredAt := rapid.Int64Range(loaded, last).Draw(t, "delivered when events are applied up to")
		at := newTask(min(loaded, 5))

		var tasks state.Tasks
		tasks.Put(at)

		w := NewWriter()
		w.NoteLoad(loaded, time.UnixMilli(0))
		w.Touch(at)
		w.Flush(loaded)

		began := rapid.Int64Range(loaded, deliveredAt).Draw(t, "asked when events are applied up to")
		doubted := rapid.Int64Range(loaded-1, began).Draw(t, "doubted when events are applied up to")
		isLost := make([]bool, len(story))
		for i, h := range story {
			isLost[i] = h.revised <= doubted && rapid.Bool().Draw(t, "lost")
		}

		for rev := loaded; rev <= last; rev++ {
			if rev == doubted {
				w.DoubtPast(at, time.UnixMilli(0))
			}

			if rev == began && len(w.Wanted(&tasks, false)) == 0 && !w.Index.Row(at.Row).Flags.Has(readmodel.History) {
				t.Fatal("the past of the task is not wanted")
			}

			if rev == deliveredAt {
				p := pastAt(story, max(deadAt, began), max(historyAt, began))
				w.Restore(at, &p, rev)
				w.Restored()
				w.Flush(rev)
			}

			for i, h := range story {
				if h.revised != rev+1 || isLost[i] {
					continue
				}

				for _, ev := range h.events() {
					if ev.Kind == record.KindEnded {
						w.NoteEnd(at, &ev)
					} else {
						w.NoteDead(at, &ev)
					}
				}
			}

			w.Flush(rev + 1)
		}

		// The dead runs whose failures the reading has found may have been dismissed since. Then the past is read again.
		if len(w.Wanted(&tasks, false)) > 0 {
			p := pastAt(story, last, last)
			w.Restore(at, &p, last)
			w.Restored()
			w.Flush(last)
		}

		if got, want := outcomeOf(w.Index.Row(at.Row)), outcomeAfter(story); got != want {
			t.Fatalf("loaded at %d: %+v\nwant %+v\nafter %+v", loaded, got, want, story)
		}
		if got, want := deadRunsOf(w.Index), deadRunsAfter(story); got != want {
			t.Fatalf("loaded at %d: %d dead runs, want %d\nafter %+v", loaded, got, want, story)
		}
		if fault := failureFault(boardOf(w.Index).Lists.Failing, story); fault != "" {
			t.Fatalf("loaded at %d: %s\nafter %+v", loaded, fault, story)
		}

		if len(w.recent)+len(w.readAhead)+len(w.dismissed) > 0 {
			t.Fatalf("it still keeps %v, %v, %v", w.recent, w.readAhead, w.dismissed)
		}
	})
}

// Nothing has to be read about a task that was created after the load, and an entry that was created again has no past.
func TestWriter_NewTasksHaveNoPast(t *testing.T) {
	t.Parallel()
	w := NewWriter()
	w.NoteLoad(100, time.UnixMilli(0))
	at := newTask(101)
	w.Touch(at)
	w.Flush(101)

	if got := outcomeOf(w.Index.Row(at.Row)); got != (outcome{History: true}) {
		t.Errorf("%+v", got)
	}

	failed := happening{state: task.Failed, run: "r102", dead: true, revised: 102}
	for _, ev := range failed.events() {
		if ev.Kind == record.KindEnded {
			w.NoteEnd(at, &ev)
		} else {
			w.NoteDead(at, &ev)
		}
	}
	w.Flush(102)

	if got := outcomeOf(w.Index.Row(at.Row)); !got.Failing || got.Failures != 1 {
		t.Errorf("after a failure: %+v", got)
	}

	w.Forget(at)
	at.Create = 103
	w.Touch(at)
	w.Flush(103)

	if got := outcomeOf(w.Index.Row(at.Row)); got != (outcome{History: true}) {
		t.Errorf("created again: %+v", got)
	}

	at.Present = false
	w.Touch(at)
	w.Flush(104)

	if size := w.Index.Size(); size.Rows != 0 || at.Row != readmodel.NoSlot {
		t.Errorf("%d rows after the task was deleted", size.Rows)
	}
}

// As long as a run of a deleted task is left, boards show it. The task is in no count and in no list, and what was known of
// its past is forgotten.
func TestWriter_ShowsRunsOfADeletedTask(t *testing.T) {
	t.Parallel()
	w := NewWriter()
	at := newTask(1)
	at.Activity = &state.Activity{Active: []*state.Attempt{{Run: "20261120T120000.000Z-uid0", Node: "n1", Since: 7}}}
	w.Touch(at)
	w.Flush(1)
	for _, ev := range (happening{state: task.Failed, run: "r2", dead: true, revised: 2}).events() {
		if ev.Kind == record.KindDead {
			w.NoteDead(at, &ev)
		}
	}
	w.Flush(2)

	if b := boardOf(w.Index); b.Counts.Tasks != 1 || b.Counts.ActiveCount != 1 || b.Counts.FailingCount != 1 {
		t.Errorf("before it is deleted: %+v", b.Counts)
	}

	at.Present = false
	w.Touch(at)
	w.Flush(3)

	q := &readmodel.Query{Limit: 10}
	first := readmodel.NewFirst(q)
	if counts := w.Index.Scan(q, 0, first); counts != (readmodel.Counts{}) || len(first.Sorted()) != 0 || w.Index.Size() != (readmodel.Size{}) {
		t.Errorf("a deleted task counts: %+v, %+v", counts, w.Index.Size())
	}
	if b := boardOf(w.Index); b.Counts.Tasks != 0 || b.Counts.ActiveCount != 1 || len(b.Lists.Active) != 1 || b.Counts.FailingCount != 0 {
		t.Errorf("after it is deleted: %+v, %+v", b.Counts, b.Lists.Active)
	}

	at.Activity = nil
	w.Touch(at)
	w.Flush(4)

	if b := boardOf(w.Index); b.Counts.ActiveCount != 0 || at.Row != readmodel.NoSlot {
		t.Errorf("after its run has ended: %+v", b.Counts)
	}
}

// The board must not keep the record of a dead run in memory, which contains the end of its output.
func TestWriter_KeepsNoRecordsOfDeadRuns(t *testing.T) {
	t.Parallel()
	w := NewWriter()
	at := newTask(1)
	key := strings.Repeat("k", 1000) + "r2"
	ev := (happening{state: task.Failed, run: "r2", dead: true, revised: 2}).events()[0]
	ev.Run = key[1000:]
	w.NoteDead(at, &ev)

	f := w.failing[at].newest()
	if f.Run != "r2" || unsafe.StringData(f.Run) == unsafe.StringData(ev.Run) {
		t.Errorf("the id %q is a part of the key", f.Run)
	}
	if reason, _ := task.ReasonOf(task.ReasonExit); unsafe.StringData(f.Reason) != unsafe.StringData(reason.Name) {
		t.Error("the reason is no constant")
	}
}

// Once the newest dead runs of a task are dismissed, the details of the others are read. Until then the board shows only that
// a run has failed, even if the last run was cancelled. What the row says otherwise remains.
func TestWriter_ReadsDeadRunsWhoseDetailsItHasDropped(t *testing.T) {
	t.Parallel()
	w := NewWriter()
	w.NoteLoad(1, time.UnixMilli(0))
	at := newTask(2)
	var tasks state.Tasks
	tasks.Put(at)
	w.Touch(at)
	w.Flush(2)

	var story []happening
	happens := func(h happening) {
		h.revised = int64(10 + len(story))
		story = append(story, h)
		for _, ev := range h.events() {
			if ev.Kind == record.KindEnded {
				w.NoteEnd(at, &ev)
			} else {
				w.NoteDead(at, &ev)
			}
		}
		w.Flush(h.revised)
	}

	const failures = background.MaxPastDead + 2
	for i := range failures {
		happens(happening{state: task.Lost, run: fmt.Sprint("r", i), dead: true})
	}
	for i := range failures - 1 {
		happens(happening{run: fmt.Sprint("r", failures-1-i)})

		// It is requested once.
		if is, want := w.NeedsExplanations(), i+1 == background.MaxPastDead; is != want {
			t.Errorf("after %d dismissals, something has to be read: %t", i+1, is)
		}
	}
	happens(happening{state: task.Cancelled, run: "c"})

	want := task.BoardFailing{Namespace: "default", Task: "a", State: task.Failed, InARow: failures}
	if got := boardOf(w.Index).Lists.Failing; len(got) != 1 || got[0] != want {
		t.Errorf("before it is read, the board shows %+v", got)
	}

	// What is read may be older than what is known.
	before := outcomeOf(w.Index.Row(at.Row))
	read := story[len(story)-2].revised
	if wanted := w.Wanted(&tasks, false); len(wanted) != 1 {
		t.Fatalf("wanted are %v", wanted)
	}
	p := pastAt(story, read, read)
	p.Failures = 1 // the history is short
	w.Restore(at, &p, read)
	w.Restored()
	w.Flush(read)

	if got := outcomeOf(w.Index.Row(at.Row)); got != before || w.NeedsExplanations() || len(w.Wanted(&tasks, false)) != 0 {
		t.Errorf("the row says %+v, want %+v", got, before)
	}
	if fault := failureFault(boardOf(w.Index).Lists.Failing, story); fault != "" {
		t.Error(fault)
	}
}

// A record that cannot be read is not read again and again.
func TestWriter_ShowsDeadRunsWhoseRecordsCannotBeRead(t *testing.T) {
	t.Parallel()
	w := NewWriter()
	at := newTask(1)
	ev := happening{state: task.Lost, run: "r2", dead: true, revised: 2}.events()[0]
	ev.Value = []byte("{")
	w.NoteDead(at, &ev)
	w.Flush(2)

	want := task.BoardFailing{Namespace: "default", Task: "a", Run: "r2", State: task.Failed, InARow: 1}
	if got := boardOf(w.Index).Lists.Failing; len(got) != 1 || got[0] != want || w.NeedsExplanations() {
		t.Errorf("the board shows %+v", got)
	}
}

// Late results, ticks that did not run, and records that cannot be read do not count as ends.
func TestWriter_IgnoresWhatIsNoEnd(t *testing.T) {
	t.Parallel()
	w := NewWriter()
	at := newTask(1)
	w.Touch(at)
	w.Flush(1)

	late := happening{state: task.Succeeded, run: "r2", revised: 2}.events()[0]
	late.Late = true
	broken := happening{state: task.Failed, run: "r4", revised: 4}.events()[0]
	broken.Value = []byte("{")

	for _, ev := range []store.ShardEvent{late, happening{state: task.Skipped, run: "r3", revised: 3}.events()[0], broken} {
		w.NoteEnd(at, &ev)
	}

	if got := outcomeOf(w.Index.Row(at.Row)); got != (outcome{History: true}) {
		t.Errorf("%+v", got)
	}
}

func BenchmarkWriter_Tick(b *testing.B) {
	w := NewWriter()
	at := newTask(1)
	w.Touch(at)
	w.Flush(1)
	ended := happening{state: task.Succeeded, run: "r2", revised: 2}.events()[0]
	b.ReportAllocs()

	// What one tick and the end of its run cost.
	for b.Loop() {
		w.Touch(at)
		w.Flush(1)
		w.NoteEnd(at, &ended)
		w.Touch(at)
		w.Flush(2)
	}
}

// Lists of the newest runs are made of the runs in the history that the owner has learned of since it loaded the shard.
func TestWriter_RemembersRunsSinceTheLoad(t *testing.T) {
	w := NewWriter()
	a := newTask(1)
	began := time.UnixMilli(1_700_000_000_000)
	event := func(after time.Duration) *store.ShardEvent {
		return &store.ShardEvent{ShardKey: record.ShardKey{Kind: record.KindEnded, Run: task.RunID(began.Add(after), "uid0")}}
	}
	recent := func() *readmodel.RecentRuns {
		scan := readmodel.NewScan(&readmodel.Query{Runs: &readmodel.RunsRange{Limit: 10}}, "n1")
		scan.Add(readmodel.ShardAnswer{}, w.Index)
		return scan.Answer().Recent
	}

	w.NoteLoad(100, began)
	for _, after := range []time.Duration{-time.Minute, time.Second, time.Minute, 2 * time.Minute} {
		w.NoteRun(a, event(after))
	}
	late := event(3 * time.Minute)
	late.Late = true
	w.NoteRun(a, late)

	// A run that leaves the queue is active.
	for _, deleted := range []bool{false, true} {
		queued := event(4 * time.Minute)
		queued.Kind, queued.Deleted = record.KindQueued, deleted
		w.NoteRun(a, queued)
	}

	gone := event(2 * time.Minute)
	gone.Deleted = true
	w.NoteRun(a, gone)

	// The clock of the former owner may have been ahead by some seconds.
	want := []readmodel.RunPlace{{Task: taskName, Run: event(4 * time.Minute).Run}, {Task: taskName, Run: event(time.Minute).Run}}
	if r := recent(); !slices.Equal(r.Runs, want) || r.After != task.RunID(began.Add(clockMargin), "") {
		t.Errorf("%v", r)
	}

	// An event was lost, so runs up to now may be missing.
	w.DoubtPast(a, began.Add(time.Hour))
	if r := recent(); len(r.Runs) != 0 || r.After != task.RunID(began.Add(time.Hour+clockMargin), "") {
		t.Errorf("after a lost event: %v", r)
	}
}

// What it costs to write the row of a task with dozens of active attempts when one more begins.
func BenchmarkWriter_ManyAttempts(b *testing.B) {
	const least, most = 40, 60
	w, t := NewWriter(), newTask(1)
	t.Activity = &state.Activity{}
	began := time.UnixMilli(1_700_000_000_000)
	b.ReportAllocs()

	for n := 0; b.Loop(); n++ {
		if len(t.Activity.Active) == most {
			t.Activity.Active = slices.Delete(t.Activity.Active, 0, most-least)
		}

		at := began.Add(time.Duration(n) * time.Millisecond)
		t.Activity.Active = append(t.Activity.Active, &state.Attempt{Run: task.RunID(at, "uid0"), Node: "n1", Since: at.UnixMilli()})
		w.Touch(t)
		w.Flush(int64(n))
	}
}

// textOf returns the lists and numbers of r. An attempt in a list never changes, so its address stands for it.
func textOf(r *readmodel.Runs) string {
	if r == nil {
		return ""
	}

	var text strings.Builder
	for _, field := range []string{"active", "away", "waiting", "reasons", "attempts", "attemptsAway"} {
		fmt.Fprintf(&text, "%s %+v\n", field, reflect.ValueOf(r).Elem().FieldByName(field))
	}

	return text.String()
}

// An attempt that is no longer asked to end is not shown as ending, even if another one begins before the row is written.
func TestWriter_EndingIsForgottenWhenAnotherAttemptBegins(t *testing.T) {
	a := newTask(1)
	first := &state.Attempt{Run: "r1", Node: "n1", Since: 1}
	a.Activity = &state.Activity{Active: []*state.Attempt{first}}

	first.Watched().Asked = true
	runsOf(a)

	first.Watch = nil // as watchAnew of scheduler does
	a.Activity.Active = append(a.Activity.Active, &state.Attempt{Run: "r2", Node: "n1", Since: 2})
	got := runsOf(a)
	a.Activity.Shown = nil

	if want := runsOf(a); textOf(got) != textOf(want) {
		t.Errorf("got\n%s\nwant\n%s", textOf(got), textOf(want))
	}
}

// A row lists the attempts of a task as if all of them were listed again, whatever has changed, and a list that was passed on
// does not change.
func TestWriter_ListsAttemptsAsIfAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newTask(1)
		l := &state.Activity{}
		a.Activity = l
		now := time.UnixMilli(1_700_000_000_000)

		var passedOn []*readmodel.Runs
		var looked []string

		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-1, 3).Draw(t, "ms")) * time.Millisecond)
			some := func() int { return rapid.IntRange(0, len(l.Active)-1).Draw(t, "attempt") }

			switch what := rapid.IntRange(0, 19).Draw(t, "what"); {
			case what < 14 || len(l.Active) == 0:
				l.Active = append(l.Active, &state.Attempt{Run: task.RunID(now, "uid0"), Node: "n1", Since: now.UnixMilli()})
			case what == 14:
				i := some()
				l.Active = slices.Delete(l.Active, i, i+1)
			case what == 15:
				l.Active[some()].Watched().Asked = true
			case what == 16:
				l.Active[some()].Watched().Since = now
			case what == 17:
				l.Active[some()].Watch = nil
			case what == 18:
				l.Queue = append(l.Queue, &state.Waiting{Waiting: task.Waiting{Run: task.Run{ID: task.RunID(now, "uid0")}}})
			case what == 19:
				l.Queue = nil
			}

			// A row is written after one change or after several.
			if rapid.IntRange(0, 3).Draw(t, "write") == 0 {
				continue
			}

			got := runsOf(a)
			l.Shown = nil
			want := runsOf(a)
			l.Shown = got

			if textOf(got) != textOf(want) {
				t.Fatalf("got\n%s\nwant\n%s", textOf(got), textOf(want))
			}

			passedOn, looked = append(passedOn, got), append(looked, textOf(got))
		}

		for i, r := range passedOn {
			if textOf(r) != looked[i] {
				t.Fatalf("list %d was\n%s\nand is\n%s", i, looked[i], textOf(r))
			}
		}
	})
}

// A workflow that was cancelled is dead, so that it can be retried, but its task is not failing because of it.
func TestWriter_CancelledDeadRunsAreNoFailures(t *testing.T) {
	t.Parallel()
	w := NewWriter()
	w.NoteLoad(1, time.UnixMilli(0))
	at := newTask(2)
	var tasks state.Tasks
	tasks.Put(at)
	w.Touch(at)
	w.Flush(2)

	revision := int64(10)
	happens := func(h happening) {
		h.revised = revision
		revision++
		for _, ev := range h.events() {
			if ev.Kind == record.KindEnded {
				w.NoteEnd(at, &ev)
			} else {
				w.NoteDead(at, &ev)
			}
		}
		w.Flush(h.revised)
	}

	for _, c := range []struct {
		h       happening
		failing bool
	}{
		{happening{state: task.Cancelled, run: "a", dead: true}, false},
		{happening{state: task.Failed, run: "b", dead: true}, true},
		{happening{state: task.Cancelled, run: "c", dead: true}, true},
		{happening{run: "b"}, false}, // it was dismissed
	} {
		happens(c.h)
		if got := outcomeOf(w.Index.Row(at.Row)).Failing; got != c.failing {
			t.Errorf("after %+v, the task is failing: %t", c.h, got)
		}
	}
}

// A cancelled run of a workflow is dead, so that it can be retried, but its task is not failing.
func TestWriter_CancelledDeadRunOfAWorkflowIsNoFailure(t *testing.T) {
	t.Parallel()

	for dead, want := range map[task.State]int{task.Cancelled: 0, task.Failed: 1} {
		w := NewWriter()
		at := newTask(1)
		at.SetWorkflow(true)
		w.Touch(at)
		w.Flush(1)

		for _, ev := range (happening{state: dead, run: "r2", dead: true, revised: 2}).events() {
			if ev.Kind == record.KindDead {
				w.NoteDead(at, &ev)
			}
		}
		w.Flush(2)

		if got := w.Index.Size().Failing; got != want {
			t.Errorf("after a run that is %s, %d tasks are failing; want %d", dead, got, want)
		}
	}
}
