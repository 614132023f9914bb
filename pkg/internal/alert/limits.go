package alert

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// startPause is after what time a task is judged again whose tick has not started: no record that a row shows says when it does.
	startPause = time.Minute
	// activePause is after what time a task is judged again whose active runs are not all known.
	activePause = 15 * time.Second
)

// ActiveRun is a run that waits in the queue, or an attempt in the inbox of a node.
type ActiveRun struct {
	Run         *task.Run
	Node        string // "": it is in the queue
	Create, Mod int64
}

// ActiveFacts are the waiting and active runs of a task.
type ActiveFacts struct {
	Runs []ActiveRun
	// IsComplete is set if these are all of them.
	IsComplete bool
	// IsCurrent is set if the owner knew all attempts that had begun by the revision of the evidence. There may be more of them than are
	// listed.
	IsCurrent bool
}

// Guard is a waiting or active run that must be unchanged when an alert opens. If only its create revision counts, it may be rewritten: an
// attempt notes its checkpoints.
type Guard struct {
	Run        *ActiveRun
	CreateOnly bool
}

// dueAt returns when a run was due. A manual run is due when it is requested.
func dueAt(r *task.Run) time.Time {
	if !r.DueAt.IsZero() {
		return r.DueAt.Time
	}
	return r.ScheduledTime.Time
}

// firstStart returns when the first attempt of a run has started; zero: it has not. A run in parts starts when its first parts are
// assigned to nodes.
func firstStart(r *task.Run) time.Time {
	switch {
	case r.LatenessMS != nil: // attempts that were not sent are not listed
		return dueAt(r).Add(time.Duration(*r.LatenessMS) * time.Millisecond)
	case len(r.Attempts) > 0 && !r.Attempts[0].StartedAt.IsZero():
		return r.Attempts[0].StartedAt.Time
	case r.Fan != nil && r.StartedAt.IsZero():
		return r.DispatchedAt.Time
	}

	return r.StartedAt.Time
}

// wasTried reports whether a run has started, or has ended in another way than being skipped, missed or cancelled. A run whose program
// cannot be started fails, and counts as a failure.
func wasTried(r *task.Run) bool {
	return !firstStart(r).IsZero() || r.State == task.Succeeded || r.IsFailure()
}

// evaluateMaxDuration judges Alerts.MaxDuration. A run takes its time from the start of its first attempt, with all retries and the waits
// between them, until it ends.
func (e *Evidence) evaluateMaxDuration(current *task.Alert, now time.Time) (Verdict, Needs) {
	if e.Active == nil {
		return Verdict{}, Needs{Active: true}
	}

	limit := e.alerts().MaxDuration.Std()
	isOpen := current != nil && current.IsOpen()
	v := Verdict{State: Met}

	var oldest *ActiveRun
	var since time.Time
	for i := range e.Active.Runs {
		r := &e.Active.Runs[i]
		if task.IsPart(r.Run.ID) {
			continue // its run counts
		}
		if !isOpen && e.Gap.HasRecord(r.Create) {
			continue // it may have ended in the history that a restore has lost, and ends as lost
		}

		// A run that waits for its first start may begin at any time.
		ends := now.Add(limit)
		if start := firstStart(r.Run); !start.IsZero() {
			ends = start.Add(limit)
		}

		switch {
		case ends.After(now):
			v.Next = earliest(v.Next, ends)
		case oldest == nil || ends.Before(since):
			oldest, since = r, ends
		}
	}

	if oldest != nil {
		return Verdict{State: NotMet, Since: since, Run: oldest.Run.ID, Guard: &Guard{Run: oldest, CreateOnly: true}}, Needs{}
	}
	if !isOpen {
		return v, Needs{}
	}

	return e.closeMaxDuration(current, v, now)
}

// closeMaxDuration returns the verdict about an open alert, when no run is known that takes too long. v is what is known so far.
func (e *Evidence) closeMaxDuration(current *task.Alert, v Verdict, now time.Time) (Verdict, Needs) {
	at := slices.IndexFunc(e.Records, func(r Record) bool { return r.ID == current.Run })
	switch {
	case at >= 0 && !e.Records[at].IsRead:
		return Verdict{}, Needs{Records: []int{at}}
	case at < 0 && !e.Active.IsComplete:
		return Verdict{State: Undecided, Next: now.Add(activePause)}, Needs{}
	case at < 0 && e.isActive(current.Run):
		return e.raised(v)
	}

	v.Why, v.Run = task.AlertRunEnded, current.Run
	if at >= 0 && e.Records[at].Run != nil && e.Records[at].Run.State == task.Succeeded {
		v.Why, v.Success = task.AlertSucceeded, e.Records[at].Run
	}

	return v, Needs{}
}

// isActive reports whether a run waits or is active.
func (e *Evidence) isActive(run string) bool {
	return slices.ContainsFunc(e.Active.Runs, func(r ActiveRun) bool { return r.Run.ID == run })
}

// raised returns the verdict v of an open alert that is met because a person has raised the limit.
func (e *Evidence) raised(v Verdict) (Verdict, Needs) {
	if e.Spec == nil {
		return Verdict{}, Needs{Spec: true}
	}
	v.Why, v.By = task.AlertLimitRaised, e.Spec.UpdatedBy

	return v, Needs{}
}

// evaluateMaxPause judges Alerts.MaxPause: how long a person has paused the task.
func (e *Evidence) evaluateMaxPause(current *task.Alert, now time.Time) (Verdict, Needs) {
	isOpen := current != nil && current.IsOpen()

	p, paused := e.pauseOf(now)
	if !paused {
		v := Verdict{State: Met, Why: task.AlertResumed}
		if own := e.Entry.Own; own != nil && len(own.Pauses) > 0 {
			v.By = own.Pauses[len(own.Pauses)-1].EndedBy
		}

		return v, Needs{}
	}
	if p.Since.IsZero() {
		return Verdict{State: Undecided, Next: p.Until.Time}, Needs{} // there is no record of the pause
	}

	due := earlier(p.Since.Time, now).Add(e.alerts().MaxPause.Std())
	switch {
	case !now.Before(due):
		return Verdict{State: NotMet, Since: due, By: p.By, Next: p.Until.Time}, Needs{}
	case isOpen && !current.Since.Before(p.Since.Time):
		return e.raised(Verdict{State: Met, Next: due})
	}

	return Verdict{State: Met, Why: task.AlertResumed, Next: due}, Needs{}
}

// evaluateMaxLateness judges Alerts.MaxLateness: whether the newest tick that was due this long ago, or a later one, has started. A tick
// that a policy or a person has not let run was not due.
func (e *Evidence) evaluateMaxLateness(s *schedule.Schedule, current *task.Alert, now time.Time) (Verdict, Needs) {
	if s.Manual() {
		return e.notWatched(current)
	}
	if e.Freezes.Of(e.Namespace) != nil {
		return Verdict{State: Undecided, Next: now.Add(frozenPause)}, Needs{}
	}
	if e.Active == nil {
		return Verdict{}, Needs{Active: true}
	}

	l := lateness{Evidence: e, schedule: s, limit: e.alerts().MaxLateness.Std() + judgeAfter, now: now}
	tick, ok := l.newestDue()
	if !ok {
		return Verdict{State: Undecided, Next: l.judgedNext(now.Add(-l.limit))}, Needs{}
	}

	started, needs := l.startedSince(tick)
	switch {
	case needs.Any():
		return Verdict{}, needs
	case started != nil:
		return Verdict{State: Met, Why: task.AlertStarted, Run: started.ID, Next: l.judgedNext(started.ScheduledTime.Time)}, Needs{}
	}

	v, needs := l.judge(tick)
	if v.State == NotMet || current != nil && current.IsOpen() {
		v.Next = earliest(v.Next, now.Add(startPause))
	}

	return v, needs
}

// lateness is an evaluation of Alerts.MaxLateness.
type lateness struct {
	*Evidence
	schedule *schedule.Schedule
	limit    time.Duration // from when a tick is due until it is judged
	now      time.Time
}

// newestDue returns the newest tick that is judged. Schedules that do not say when the ticks are get the newest one that has a record.
func (l *lateness) newestDue() (tick time.Time, ok bool) {
	upTo := l.now.Add(-l.limit)
	if _, after := l.schedule.AfterCompletion(); !after {
		return l.schedule.LastDue(upTo, l.Entry.UID)
	}

	note := func(id string, due time.Time) {
		if at, known := task.TimeOfRunID(id); known && isTick(id) && !due.After(upTo) && at.After(tick) {
			tick, ok = at, true
		}
	}
	for i := range l.Active.Runs {
		note(l.Active.Runs[i].Run.ID, dueAt(l.Active.Runs[i].Run))
	}
	for i := range l.Records {
		at, _ := task.TimeOfRunID(l.Records[i].ID)
		note(l.Records[i].ID, at)
	}

	return tick, ok
}

// isTick reports whether an id is that of the run of a tick.
func isTick(id string) bool { return task.TriggerOfRunID(id) == task.TriggerSchedule }

// judgedNext returns when the first tick after another one is judged; zero: there is none.
func (l *lateness) judgedNext(tick time.Time) time.Time {
	if _, after := l.schedule.AfterCompletion(); after {
		return l.now.Add(l.limit) // a tick that is not due yet is not judged before
	}

	next, ok := l.schedule.Next(tick)
	if !ok {
		return time.Time{}
	}

	// With jitter, a tick before upTo may be due later.
	return later(l.schedule.Due(next, l.Entry.UID).Add(l.limit), l.now.Add(time.Second))
}

// startedSince returns a run of a tick, or of a later one, that has started; nil: none has.
func (l *lateness) startedSince(tick time.Time) (*task.Run, Needs) {
	var page []int
	for i := range min(len(l.Records), MaxRecords) {
		r := &l.Records[i]
		at, known := task.TimeOfRunID(r.ID)
		switch {
		case known && at.Before(tick), !isTick(r.ID):
		case !r.IsRead:
			if page = append(page, i); len(page) == maxPage {
				return nil, Needs{Records: page}
			}
		case r.Run != nil && wasTried(r.Run) && !r.Run.ScheduledTime.Before(tick):
			return r.Run, Needs{}
		}

		// The run that ended last usually tells.
		if len(page) == firstPage && i == 0 {
			return nil, Needs{Records: page}
		}
	}

	for i := range l.Active.Runs {
		if r := l.Active.Runs[i].Run; isTick(r.ID) && !r.ScheduledTime.Before(tick) && !firstStart(r).IsZero() {
			return r, Needs{}
		}
	}

	return nil, Needs{Records: page}
}

// judge judges a tick, when neither it nor a later one has started, as far as is known.
func (l *lateness) judge(tick time.Time) (Verdict, Needs) {
	undecided := Verdict{State: Undecided, Next: l.judgedNext(tick)}
	if !tick.After(l.graceUntil(l.now)) {
		return undecided, Needs{} // a pause or a freeze has held it up, or a restore has lost it
	}

	due := l.schedule.Due(tick, l.Entry.UID)
	id := task.RunID(tick, l.Entry.UID)
	deadline := due.Add(l.alerts().MaxLateness.Std())
	notMet := Verdict{State: NotMet, Since: deadline, Deadline: deadline, Run: id, Next: undecided.Next}

	if i := slices.IndexFunc(l.Active.Runs, func(r ActiveRun) bool { return r.Run.ID == id }); i >= 0 {
		if at := l.judgedAt(deadline.Add(judgeAfter)); l.now.Before(at) {
			undecided.Next = earliest(undecided.Next, at)
			return undecided, Needs{}
		}
		if !l.Active.IsCurrent { // a later run may have started
			return Verdict{State: Undecided, Next: l.now.Add(activePause)}, Needs{}
		}

		notMet.Guard = &Guard{Run: &l.Active.Runs[i]}
		return notMet, Needs{}
	}

	outcome, needs := l.outcomeOf(tick)
	switch {
	case needs.Any():
		return Verdict{}, needs
	case outcome != nil && outcome.State != task.Missed:
		return undecided, Needs{}
	case outcome != nil && l.hasEnded(l.schedule, l.now):
		return Verdict{State: NotExpected, Why: task.AlertEnded}, Needs{}
	case !l.Active.IsComplete:
		return Verdict{State: Undecided, Next: l.now.Add(activePause)}, Needs{}
	}

	from, needs := l.expectedFrom(tick.Add(-time.Millisecond))
	switch {
	case needs.Any():
		return Verdict{}, needs
	case !tick.After(from):
		return undecided, Needs{}
	}

	if at := l.judgedAt(deadline.Add(judgeAfter)); l.now.Before(at) {
		undecided.Next = earliest(undecided.Next, at)
		return undecided, Needs{}
	}
	if outcome != nil {
		notMet.Run = outcome.ID
		return notMet, Needs{}
	}

	return l.judgeWithoutRecord(tick, notMet, undecided)
}

// judgeWithoutRecord judges a tick that has no record: it is not decided yet, or its record was deleted. The verdict is one of two.
func (l *lateness) judgeWithoutRecord(tick time.Time, notMet, undecided Verdict) (Verdict, Needs) {
	if l.Ledger == nil {
		return Verdict{}, Needs{Ledger: true}
	}
	if !l.Ledger.LastTick.IsZero() && !l.Ledger.LastTick.Before(tick) {
		return Verdict{State: Met, Why: task.AlertStarted, Next: undecided.Next}, Needs{}
	}
	if slices.ContainsFunc(l.Ledger.Excused, func(line task.LedgerLine) bool { return !tick.Before(line.First.Time) && !tick.After(line.Last.Time) }) {
		return undecided, Needs{}
	}

	isWhole, needs := l.keepsAllSince(tick)
	switch {
	case needs.Any():
		return Verdict{}, needs
	case !isWhole:
		return Verdict{}, Needs{}
	}

	notMet.Run = ""

	return notMet, Needs{}
}

// earliest returns the earlier of two times. A time that is zero does not count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
