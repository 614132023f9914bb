// Package rows keeps the rows of a shard's tasks (readmodel.Index) equal to what the shard's owner knows. Queries read
// the rows. No decision depends on them.
//
// The owner notes each task that changes (Touch), each end of a run and each change of a dead run. At the end of a batch
// of events, and when a commit has succeeded, it writes the rows of these tasks (Flush).
//
// How the last run of a task ended, and since when its runs fail, is known only from its history. A Writer learns of
// each end from the events since the shard was loaded. Earlier ends are read in the background (background.PastReader) and
// passed to Restore. Both may contain the same ends, in any order.
//
// The rows of tasks with waiting or active runs and of failing tasks have details, for boards. Of a task whose entry is
// gone, a row is kept as long as runs of it are left.
package rows

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Writer writes the rows of one shard. Only the shard's worker uses it.
type Writer struct {
	Index *readmodel.Index

	touched []*state.Task

	// loaded is the revision at which the shard was loaded. A task that was created later has no earlier ends.
	loaded int64

	// failing holds the failing tasks.
	failing map[*state.Task]failing

	// succeeded holds the tasks with a run that has succeeded in the revision succeededAt, the last one with a success.
	succeeded   []*state.Task
	succeededAt int64

	// recent holds what has ended since the load, of tasks whose earlier ends are not known yet.
	recent map[*state.Task]*recentEnds
	// dismissed holds the dead runs that were removed since the reading of the past began, by key. It is nil while
	// nothing is being read.
	dismissed map[string]struct{}
	// unexplained holds the failing tasks of which no dead run has details any more, because those of the newest dead runs
	// were dismissed. isExplanationDue is set when a task is added, until NeedsExplanations is called.
	unexplained      map[*state.Task]struct{}
	isExplanationDue bool
	// readAhead holds, for tasks with an end that Restore knew before its event was delivered, the mod revision of
	// that end. The events up to there bring nothing new.
	readAhead map[*state.Task]int64
}

// failing are the dead runs of a failing task after which no run has succeeded, in the order in which they were created.
// There are at most some more than store.KeepDead of them.
type failing []deadRun

// deadRun is a dead run of a task.
type deadRun struct {
	run    uint64 // a hash of its id
	create int64  // the create revision of its record; a dismissal rewrites the record before it deletes it
	// failure is how the run has failed. It is nil if that is not known, and for all but the newest background.MaxPastDead.
	failure *readmodel.Failure
}

// recentEnds are the ends of a task since the load, after which no run has succeeded.
type recentEnds struct {
	last   int64   // mod revision of the last end
	failed []int64 // mod revisions of the failures, at most maxRecent of them, the latest
}

// maxRecent limits the failures of a task that a Writer keeps while the earlier ends are being read.
const maxRecent = 1000

// maxIdleTouched is for how many tasks a Writer keeps the list of touched tasks in memory.
const maxIdleTouched = 256

// NewWriter returns a Writer with an empty index.
func NewWriter() Writer {
	return Writer{
		Index: &readmodel.Index{}, failing: map[*state.Task]failing{}, recent: map[*state.Task]*recentEnds{},
		readAhead: map[*state.Task]int64{}, unexplained: map[*state.Task]struct{}{},
	}
}

// clockMargin is by how much the clocks of nodes may differ.
const clockMargin = 10 * time.Second

// NoteLoad notes the revision of the pages from which the shard is loaded, and when that was.
func (w *Writer) NoteLoad(revision int64, now time.Time) {
	w.loaded = revision
	w.Index.NoteLoad(task.RunID(now.Add(clockMargin), ""))
}

// NoteEntry notes that the entry of t has a new version. Its row may stay the same although its alerts must be judged again, for example
// when a person pauses a task that was paused.
func (w *Writer) NoteEntry(t *state.Task) {
	w.Touch(t)
	if t.Row != readmodel.NoSlot {
		w.Index.JudgeAgain(t.Row)
	}
}

// NoteRun notes that the record of a run was written to the queue or the history of t, or deleted. A run that leaves the
// queue usually comes into the history. Late results and parts are not separate runs.
func (w *Writer) NoteRun(t *state.Task, ev *store.ShardEvent) {
	switch run := (readmodel.RunPlace{Task: t.FullName(), Run: ev.Run}); {
	case ev.Late, ev.Deleted && ev.Kind == record.KindQueued, task.IsPart(ev.Run):
	case ev.Deleted:
		w.Index.RemoveRun(run)
	default:
		w.Index.AddRun(run)
	}
}

// Touch notes that a task has changed, or is gone. The next Flush writes its row.
func (w *Writer) Touch(t *state.Task) {
	if t.SetTouched(true) {
		w.touched = append(w.touched, t)
	}
}

// Flush writes the rows of the tasks that have changed. applied is the revision up to which all events are applied.
func (w *Writer) Flush(applied int64) {
	for _, t := range w.touched {
		t.SetTouched(false)
		w.write(t)
	}

	// Keep the memory for the next batch, but not that for a load, which touches all tasks: it would be 8 bytes of each.
	clear(w.touched)
	if w.touched = w.touched[:0]; cap(w.touched) > maxIdleTouched {
		w.touched = nil
	}

	w.Index.NoteApplied(applied)

	for t, rev := range w.readAhead {
		if rev <= applied {
			delete(w.readAhead, t)
		}
	}
}

// write writes the row of a task, or removes it.
func (w *Writer) write(t *state.Task) {
	d := readmodel.Details{Runs: runsOf(t)}

	if !t.Present {
		w.forgetPast(t)

		if d.Runs == nil {
			w.Forget(t)
		} else {
			t.Row = w.Index.Put(t.Row, readmodel.Row{Name: t.FullName(), Flags: readmodel.Gone}, d, nil)
		}

		return
	}

	var r readmodel.Row
	if t.Row != readmodel.NoSlot {
		r = w.Index.Row(t.Row)
	} else if t.Create > w.loaded {
		r.Flags = readmodel.History
	}

	d.PausedUntil = fill(&r, t)
	f := w.failing[t]
	d.Failure, d.DeadRuns = f.newest(), len(f)
	w.noteUnexplained(t, len(f) > 0 && d.Failure == nil)
	r.Flags = with(r.Flags, readmodel.Failing, len(f) > 0)
	t.Row = w.Index.Put(t.Row, r, d, alertsOf(t))
}

// metricsFlag returns the flag for what a task says about metrics of its own; nil: nothing.
func metricsFlag(has *bool) readmodel.Flags {
	switch {
	case has == nil:
		return 0
	case *has:
		return readmodel.MetricsOn
	}

	return readmodel.MetricsOff
}

// alertsOf returns what is expected of a task; nil: nothing, as far as its entry can be read.
func alertsOf(t *state.Task) *task.Alerts {
	if t.Policy == nil {
		return nil
	}
	return t.Policy.Alerts
}

// noteUnexplained notes whether a task is failing and it is not known how.
func (w *Writer) noteUnexplained(t *state.Task, is bool) {
	if !is {
		delete(w.unexplained, t)
		return
	}

	if _, was := w.unexplained[t]; !was {
		w.unexplained[t], w.isExplanationDue = struct{}{}, true
	}
}

// NeedsExplanations reports whether there are tasks whose dead runs have to be read again, since the last call.
func (w *Writer) NeedsExplanations() bool {
	is := w.isExplanationDue
	w.isExplanationDue = false

	return is
}

// fill sets those fields of a row that follow from what is known of its task. It returns when the task's pause ends.
func fill(r *readmodel.Row, t *state.Task) (pausedUntil int64) {
	r.Name, r.Next, r.Delay = t.FullName(), t.Next, 0
	r.Labels, r.Schedule = nil, nil
	r.Flags &^= readmodel.MetricsOn | readmodel.MetricsOff

	if t.Next != 0 {
		r.Delay = int32(t.DueAt() - t.Next)
	}

	if t.Policy != nil {
		r.Labels = t.Policy.Labels.Map()
		r.Flags |= metricsFlag(t.Policy.Metrics)
	}
	if t.Timing != nil && !t.Bad {
		r.Schedule = t.Timing.Schedule
	}

	active, waiting := 0, 0
	if t.Activity != nil {
		active, waiting = t.Attempts()+t.Parents(), t.WaitingRuns()
	}

	r.Active, r.Waiting = readmodel.Count(active), readmodel.Count(waiting)

	paused := t.Paused && !t.Bad
	if paused {
		pausedUntil, _ = t.Silence()
	}

	r.Flags = with(with(r.Flags, readmodel.Paused, paused), readmodel.Unreadable, t.Bad)
	r.Flags = with(r.Flags, readmodel.Workflow, t.IsWorkflow() && !t.Bad)

	return pausedUntil
}

// runsOf returns what boards show of the waiting and active runs of a task, or nil if it has none.
func runsOf(t *state.Task) *readmodel.Runs {
	l := t.Activity
	if l == nil || len(l.Active)+len(l.Queue) == 0 {
		return nil
	}

	if r := extendRuns(l); r != nil {
		l.Shown = r
		return r
	}

	r := readmodel.NewRuns(len(l.Active))
	l.Shown = r
	for _, a := range l.Active {
		r.AddAttempt(shown(a), a.IsAway())
	}

	// If a record says that no node was free, a node may have taken another run of the task since.
	noNode := func(q *state.Waiting) bool { return q.Reason == task.ReasonNoNode }
	held := slices.ContainsFunc(l.Queue, noNode) && isHeld(t)

	for _, q := range l.Queue {
		w := readmodel.WaitingRun{Run: q.ID, Reason: q.Reason, NotBefore: q.NotBefore, Unsent: q.Unsent}

		switch {
		case t.IsWaiting(q):
			if held && noNode(q) {
				w.Reason = task.ReasonOverlap
			}
			r.AddWaiting(w)
		case task.IsPart(q.ID) && !t.Orphan(q.ID):
			r.AddWaitingPart(w) // somebody may have to act on it, for example if no node matches
		}
	}

	return r
}

// extendRuns returns the runs of a task if only one more attempt has begun, or nil if more has
// changed. This is the usual case for a task with many attempts, and saves listing all of them again.
func extendRuns(l *state.Activity) *readmodel.Runs {
	n := len(l.Active) - 1
	if n < 1 || len(l.Queue) > 0 || l.Active[n].Watch != nil {
		return nil
	}

	// An attempt that is shown differently by now has another address. The list contains none that is away.
	unchanged := func(i int) *readmodel.Attempt {
		if a := l.Active[i]; !a.IsAway() {
			return shown(a)
		}
		return nil
	}

	return l.Shown.WithAttempt(unchanged, n, shown(l.Active[n]))
}

// shown returns what boards show of an attempt. It is made once, and again if it changes, because all attempts of a task are
// listed again whenever one of them begins or ends.
func shown(a *state.Attempt) *readmodel.Attempt {
	if ending := a.Watch != nil && a.Watch.Asked; a.Shown == nil || a.Shown.Ending != ending {
		a.Shown = &readmodel.Attempt{Run: a.Run, Node: a.Node, Since: a.Since, Known: !a.Found, Ending: ending}
	}

	return a.Shown
}

// isHeld reports whether the overlap policy does not let another run of the task start, because some are active. It does
// not consider attempts that only try a target again: this ends at some time, without any change of the task.
func isHeld(t *state.Task) bool {
	return t.Policy != nil && len(t.Activity.Active) > 0 && !t.Policy.Rule.Free(t.Doing(0))
}

// with returns flags with one of them set or cleared.
func with(flags, flag readmodel.Flags, set bool) readmodel.Flags {
	if set {
		return flags | flag
	}
	return flags &^ flag
}

// Forget removes the row of a task whose entry is gone or belongs to another task by now, and what is known of its
// past.
func (w *Writer) Forget(t *state.Task) {
	w.Index.Remove(t.Row)
	t.Row = readmodel.NoSlot
	w.forgetPast(t)
}

// forgetPast forgets what is known of the past of a task.
func (w *Writer) forgetPast(t *state.Task) {
	delete(w.failing, t)
	delete(w.recent, t)
	delete(w.readAhead, t)
	delete(w.unexplained, t)
}

// NoteEnd notes the end of a run of t, which must have an entry, and returns how it ended. It ignores the records of
// ticks that did not run, and late results, and returns 0 for them.
func (w *Writer) NoteEnd(t *state.Task, ev *store.ShardEvent) (outcome readmodel.Outcome) {
	if ev.Late {
		return 0
	}

	end, ok := record.EndOf(ev.Value)
	if outcome = readmodel.OutcomeOf(end.State); !ok || outcome == 0 {
		return 0
	}

	// Somebody has written the record of an earlier end again. It is no new end.
	if ev.Mod != ev.Create {
		return outcome
	}

	if end.State == task.Succeeded {
		w.noteSuccess(t, ev.Create)
	}

	if ev.Mod <= w.readAhead[t] {
		return outcome
	}

	if t.Row == readmodel.NoSlot {
		w.write(t)
	}

	r := w.Index.Row(t.Row)
	if !r.Flags.Has(readmodel.History) {
		w.noteRecent(t, ev.Mod, end)
	}

	w.Index.Change(t.Row, func(r *readmodel.Row) {
		takeEnd(r, end, outcome)
		// After a success, nothing that was before matters.
		r.Flags = with(r.Flags, readmodel.History, r.Flags.Has(readmodel.History) || end.State == task.Succeeded)

		if !end.IsFailure() {
			return
		}
		r.Failures = readmodel.Count(int(r.Failures) + 1)
	})

	return outcome
}

// noteSuccess notes that a run of t has succeeded in a revision. Dead runs up to there do not make it failing any more.
func (w *Writer) noteSuccess(t *state.Task, revision int64) {
	w.Touch(t)

	// Events arrive in the order of their revisions, but a dead run of the same revision may still follow.
	if revision != w.succeededAt {
		w.succeeded, w.succeededAt = w.succeeded[:0], revision
	}
	w.succeeded = append(w.succeeded, t)

	w.keepDead(t, func(d deadRun) bool { return d.create > revision })
}

// keepDead removes the dead runs of t for which keep returns false.
func (w *Writer) keepDead(t *state.Task, keep func(deadRun) bool) {
	left := slices.DeleteFunc(w.failing[t], func(d deadRun) bool { return !keep(d) })
	if len(left) == 0 {
		delete(w.failing, t)
		return
	}

	w.failing[t] = left
}

// takeEnd sets the fields of a row that describe the last end. It does not count failures.
func takeEnd(r *readmodel.Row, end record.End, outcome readmodel.Outcome) {
	r.SetLast(outcome)
	r.LastEnd, r.Duration, r.Lateness = end.Ended, 0, milliseconds(end.LatenessMS)
	if end.Started != 0 {
		r.Duration = milliseconds(end.Ended - end.Started)
	}

	if end.State == task.Succeeded {
		r.LastSuccess, r.Failures = readmodel.Seconds(end.Ended), 0
	}
}

// milliseconds returns a number of milliseconds for a row, see readmodel.Milliseconds.
func milliseconds(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// noteRecent keeps an end until the earlier ones are known.
func (w *Writer) noteRecent(t *state.Task, mod int64, end record.End) {
	if end.State == task.Succeeded {
		delete(w.recent, t) // nothing that was before matters
		return
	}

	e := w.recent[t]
	if e == nil {
		e = &recentEnds{}
		w.recent[t] = e
	}

	e.last = mod
	if end.IsFailure() {
		e.failed = append(e.failed, mod)
		e.failed = e.failed[max(0, len(e.failed)-maxRecent):]
	}
}

// NoteDead notes a dead run of t, or that it was dismissed or started again.
func (w *Writer) NoteDead(t *state.Task, ev *store.ShardEvent) {
	run := xxhash.Sum64String(ev.Run)

	switch {
	case ev.Deleted:
		if w.dismissed != nil {
			w.dismissed[ev.Key] = struct{}{}
		}
		w.keepDead(t, func(d deadRun) bool { return d.run != run })
	case ev.Mod != ev.Create:
		// A dismissal has begun. If the run is not known, a later run has succeeded, or the past of the task is still to be read.
		return
	default:
		w.addDead(t, ev)
	}

	w.Touch(t)
}

// addDead adds a dead run of t, unless it is known, a run has succeeded in the same revision, or it is no failure.
func (w *Writer) addDead(t *state.Task, ev *store.ShardEvent) {
	if ev.Value != nil && !record.IsDeadFailure(ev.Value) {
		return
	}

	if ev.Create == w.succeededAt && slices.Contains(w.succeeded, t) {
		return
	}

	f, run := w.failing[t], xxhash.Sum64String(ev.Run)
	at := slices.IndexFunc(f, func(d deadRun) bool { return d.run == run })
	if at < 0 {
		at, _ = slices.BinarySearchFunc(f, ev.Create, func(d deadRun, create int64) int { return cmp.Compare(d.create, create) })
		f = slices.Insert(f, at, deadRun{run: run, create: ev.Create})
	}
	if f[at].failure == nil {
		f[at].failure = failureOf(ev)
	}

	if older := len(f) - 1 - background.MaxPastDead; older >= 0 {
		f[older].failure = nil
	}
	w.failing[t] = f
}

// newest returns how the newest of those dead runs has failed for which that is known, or nil.
func (f failing) newest() *readmodel.Failure {
	for _, d := range slices.Backward(f) {
		if d.failure != nil {
			return d.failure
		}
	}

	return nil
}

// failureOf returns how a dead run has failed, or nil if its record is not known. It does not keep the record in memory,
// which may be large. Of a record that cannot be read, only the run is known: reading it again would not help.
func failureOf(ev *store.ShardEvent) *readmodel.Failure {
	if len(ev.Value) == 0 {
		return nil
	}

	f := &readmodel.Failure{Run: strings.Clone(ev.Run), State: task.Failed}
	d, err := record.DecodeWaiting(ev.ShardKey, ev.Value)
	if err != nil || !d.IsFailure() {
		return f
	}

	reason, _ := task.ReasonOf(d.Reason)
	f.State, f.Reason, f.ExitCode, f.Node = readmodel.OutcomeOf(d.State).State(), reason.Name, d.ExitCode, strings.Clone(d.Node)
	if !d.EndedAt.IsZero() {
		f.Ended = d.EndedAt.UnixMilli()
	}

	return f
}

// Wanted returns the tasks whose past is not known, and those that are failing without that it is known how, in no
// particular order. It begins to note what Restore needs. tasks are those of the shard. isRestored is set if dead runs of any task may be
// such that a restore has lost.
func (w *Writer) Wanted(tasks *state.Tasks, isRestored bool) (list []background.WantedPast) {
	w.dismissed = map[string]struct{}{}

	for t := range tasks.All() {
		if !t.Present || t.Row == readmodel.NoSlot {
			continue
		}

		_, isUnexplained := w.unexplained[t]
		if isUnexplained || !w.Index.Row(t.Row).Flags.Has(readmodel.History) {
			list = append(list, background.WantedPast{Task: t.FullName(), UID: t.UID(), IsWatched: alertsOf(t) != nil, ReadsDead: t.MayHaveBeenWorkflow() || isRestored})
		}
	}

	return list
}

// DoubtPast makes the past of a task one that has to be read: an event of an end was lost, before now.
func (w *Writer) DoubtPast(t *state.Task, now time.Time) {
	w.Index.NoteLoad(task.RunID(now.Add(clockMargin), ""))
	if t.Present && t.Row != readmodel.NoSlot {
		w.Index.Change(t.Row, func(r *readmodel.Row) { r.Flags &^= readmodel.History })
	}
}

// Restored ends the reading of the past.
func (w *Writer) Restored() { w.dismissed = nil }

// Restore completes the row of a task with what has been read of its past. applied is the revision up to which all
// events are applied.
func (w *Writer) Restore(t *state.Task, p *background.Past, applied int64) {
	if t == nil || !t.Present || t.Row == readmodel.NoSlot || p.Want.UID != t.UID() {
		return
	}

	_, isUnexplained := w.unexplained[t]
	delete(w.unexplained, t) // Flush adds it again if its newest dead runs were dismissed meanwhile

	if w.Index.Row(t.Row).Flags.Has(readmodel.History) {
		if isUnexplained {
			w.explain(t, p)
		}
		return
	}

	// Failures since then are not in p. Whatever was before that is.
	recent := w.recent[t]
	later := 0
	if recent != nil {
		later = len(recent.failed) - countUpTo(recent.failed, p.Revision)
	}

	w.Index.Change(t.Row, func(r *readmodel.Row) {
		if recent == nil || recent.last <= p.Revision {
			*r = withoutEnds(*r)
			if p.Last.Create != 0 {
				takeEnd(r, p.Last.End, readmodel.OutcomeOf(p.Last.End.State))
			}
		}

		r.LastSuccess, r.Failures = readmodel.Seconds(p.Success.End.Ended), readmodel.Count(p.Failures+later)
		r.Flags |= readmodel.History
	})

	delete(w.recent, t)

	if p.Last.Create > applied {
		w.readAhead[t] = p.Last.Create
	}

	// Knowledge from before the reading may be wrong, if events were lost. Events since then are not in p.
	w.keepDead(t, func(d deadRun) bool { return d.create > max(p.DeadRevision, p.Success.Create) })
	for i := range p.Dead {
		if d := &p.Dead[i]; !w.isDismissed(d) && !t.Orphan(d.Run) {
			w.addDead(t, d)
		}
	}

	w.Touch(t)
}

// explain adds to the dead runs of a failing task how they have failed. All that p says otherwise is known already.
func (w *Writer) explain(t *state.Task, p *background.Past) {
	read := map[uint64]*store.ShardEvent{}
	for i := range p.Dead {
		read[xxhash.Sum64String(p.Dead[i].Run)] = &p.Dead[i]
	}

	// A dead run that was not found is gone, or a run has succeeded since; the event is on its way.
	w.keepDead(t, func(d deadRun) bool { return read[d.run] != nil || d.create > p.DeadRevision })

	f := w.failing[t]
	for i := max(0, len(f)-background.MaxPastDead); i < len(f); i++ {
		if d := read[f[i].run]; d != nil && f[i].failure == nil {
			f[i].failure = failureOf(d)
		}
	}

	w.Touch(t)
}

// isDismissed reports whether a dead run was removed since the reading of the past began.
func (w *Writer) isDismissed(d *store.ShardEvent) bool {
	_, ok := w.dismissed[d.Key]
	return ok
}

// countUpTo returns how many of the ascending revisions are not above one.
func countUpTo(revisions []int64, upTo int64) int {
	n, _ := slices.BinarySearch(revisions, upTo+1)
	return n
}

// withoutEnds returns a row without the fields that follow from ends.
func withoutEnds(r readmodel.Row) readmodel.Row {
	r.LastEnd, r.LastSuccess, r.Duration, r.Lateness, r.Failures = 0, 0, 0, 0, 0
	r.SetLast(0)

	return r
}
