package alert

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Kinds are the kinds of the expectations of a task.
var Kinds = task.TaskAlertKinds

// State is whether an expectation is met.
type State uint8

// The states of an expectation.
const (
	// Unknown means that the records do not tell.
	Unknown State = iota
	// Undecided means that the expectation is neither met nor not met: a deadline is not due, fewer runs have failed than
	// it takes, or a failed run was started again. An alert neither opens nor closes.
	Undecided
	// Met closes an alert.
	Met
	// NotMet opens one.
	NotMet
	// NotExpected means that nothing is expected any more, for the reason in Verdict.Why. It closes an alert, too.
	NotExpected
)

// Verdict is what records say about one expectation of a task.
type Verdict struct {
	State State

	// If it is not met: since when, the newest failed run, how many failed in a row, and the deadline that has passed.
	Since    time.Time
	Run      string
	Failures int
	Deadline time.Time
	// Dead is the newest dead run that counts, if the expectation is about failures and not met.
	Dead *Dead
	// Base is the create revision of the last success, if the expectation is about failures; 0: none is kept.
	Base int64

	// Guard is a waiting or active run that shows that the expectation is not met; nil: none.
	Guard *Guard

	// If it is met: the success, which may not be on record any more. Failures is how many runs in a row failed before it.
	Success *task.Run

	// If nothing is expected: why, and who caused it. If the expectation is met for another reason than a success: the same.
	Why task.AlertReason
	By  *task.Actor

	// Next is when the verdict may change without a new record; zero: never.
	Next time.Time
}

const (
	// judgeAfter is how long after a deadline it is judged: the end of a run may be recorded a moment late.
	judgeAfter = 15 * time.Second
	// CatchUpTime is how long after the opening of its shard a time is judged that passed before the opening. The runs of ticks
	// that were missed in the meantime come first.
	CatchUpTime = 15 * time.Minute
	// frozenPause is after what time a frozen task is judged again.
	frozenPause = time.Minute
)

// Evaluate compares the records of a task with one of its expectations. current is the alert on record; nil: there is none. If
// needs is not empty, the verdict is not valid yet.
//
// The verdict holds at the revision of the evidence. now must not be before the times in the records that a trusted clock has
// written.
func Evaluate(e *Evidence, kind task.AlertKind, current *task.Alert, now time.Time) (v Verdict, needs Needs) {
	if isUnreadable(current) {
		return Verdict{}, Needs{}
	}
	if e.Entry != nil && current != nil && current.UID != e.Entry.UID {
		current = nil // it is about a former task of the name
	}
	isOpen := current != nil && current.IsOpen()

	switch {
	case e.Unreadable:
		return Verdict{}, Needs{}
	case e.Entry == nil:
		return e.notExpected(task.AlertDeleted, isOpen)
	case !e.expects(kind):
		return e.notWatched(current)
	case kind == task.AlertFailures:
		return e.evaluateFailures(current)
	case kind == task.AlertMaxDuration:
		return e.evaluateMaxDuration(current, now)
	case kind == task.AlertMaxPause:
		return e.evaluateMaxPause(current, now)
	}

	if e.Entry.Shadow {
		return e.notExpected(task.AlertShadow, isOpen)
	}
	if p, paused := e.pauseOf(now); paused {
		return Verdict{State: NotExpected, Why: task.AlertPaused, By: p.By, Next: p.Until.Time}, Needs{}
	}

	s, err := e.schedule()
	if err != nil {
		return Verdict{}, Needs{}
	}

	switch kind {
	case task.AlertSuccessWithin:
		return e.evaluateSuccessWithin(s, now)
	case task.AlertSuccessBy:
		return e.evaluateSuccessBy(s, current, now)
	case task.AlertMaxLateness:
		return e.evaluateMaxLateness(s, current, now)
	}

	return Verdict{}, Needs{}
}

// isUnreadable reports whether a record exists and cannot be read: only its key is known. A later version may have written it, so it is
// not replaced.
func isUnreadable(current *task.Alert) bool { return current != nil && current.UID == "" }

// notWatched returns the verdict that the task does not have the expectation. Who changed or deleted a rule is not known.
func (e *Evidence) notWatched(current *task.Alert) (Verdict, Needs) {
	isOpen := current != nil && current.IsOpen()
	if isOpen && current.Rule != "" && e.Entry.Alerts == nil {
		return Verdict{State: NotExpected, Why: task.AlertNotWatched}, Needs{}
	}

	return e.notExpected(task.AlertNotWatched, isOpen)
}

// notExpected returns the verdict that nothing is expected any more. Only if an alert is open, it matters who caused that.
func (e *Evidence) notExpected(why task.AlertReason, isOpen bool) (Verdict, Needs) {
	v := Verdict{State: NotExpected, Why: why}

	switch {
	case !isOpen:
	case why == task.AlertDeleted && e.Deleted == nil:
		return v, Needs{Deleted: true}
	case why == task.AlertDeleted:
		v.By = e.Deleted.By
	case e.Spec == nil:
		return v, Needs{Spec: true}
	default:
		v.By = e.Spec.UpdatedBy
	}

	return v, Needs{}
}

// maxRowRead is how many records before the last success are read to count the failures before it.
const maxRowRead = 100

// evaluateFailures judges Alerts.Failures. A task is failing if it has a dead run that was created after the last success. Only
// the create revision tells: a dismissal rewrites a dead run before it deletes it. The trimmer keeps the last success while
// there is a dead run from before it, so without a success on record, every dead run counts.
func (e *Evidence) evaluateFailures(current *task.Alert) (Verdict, Needs) {
	isOpen := current != nil && current.IsOpen()

	// If the run that ended last failed and is dead, the task is failing, and an open alert stays so.
	if isOpen && len(e.Records) > 0 {
		last := &e.Records[0]
		if !last.IsRead {
			return Verdict{}, Needs{Records: e.unread(0)}
		}
		if d := e.newestDead(last.Create - 1); last.Run != nil && last.Run.IsFailure() && d != nil {
			return Verdict{State: NotMet, Dead: d, Run: d.Run, Base: current.Base}, Needs{}
		}
	}

	var v Verdict
	success, needs := e.lastSuccess()
	if needs.Any() {
		return v, needs
	}
	if success != nil {
		v.Base, v.Success = success.Create, success.Run
	}

	v.Dead = e.newestDead(v.Base)
	if v.Dead == nil {
		v.State = Met
		if isOpen && success != nil && success.Create > current.Base {
			v.Failures, needs = e.failuresBefore(success, current.Base)
		}

		return v, needs
	}

	v.Success, v.Run = nil, v.Dead.Run
	e.countFailures(&v)

	v.State = Undecided
	if v.Failures >= e.alerts().FailuresInARow() {
		v.State = NotMet
	}

	return v, Needs{}
}

// newestDead returns the newest of the dead runs that were created after a revision, or nil.
func (e *Evidence) newestDead(after int64) (newest *Dead) {
	for i := range e.Dead {
		if d := &e.Dead[i]; d.Create > after && (newest == nil || d.Create > newest.Create) {
			newest = d
		}
	}

	return newest
}

// countFailures sets how many runs in a row have failed, and since when. All records since the last success were read. The
// history may be too short for them, because it also has ticks that did not run; then the dead runs tell.
func (e *Evidence) countFailures(v *Verdict) {
	dead := 0
	for i := range e.Dead {
		if e.Dead[i].Create > v.Base {
			dead++
		}
	}

	for i := range e.Records {
		r := e.Records[i].Run
		switch {
		case !e.Records[i].IsRead, r != nil && r.State == task.Succeeded:
			v.Failures = max(v.Failures, dead)
			return
		case r != nil && r.IsFailure():
			v.Failures++
			v.Since = r.EndedAt.Time
		}
	}

	v.Failures = max(v.Failures, dead)
}

// failuresBefore counts the runs that failed between the revision base and a success.
func (e *Evidence) failuresBefore(success *Record, base int64) (n int, needs Needs) {
	for i := range min(len(e.Records), maxRowRead) {
		r := &e.Records[i]
		switch {
		case r.Create >= success.Create:
		case r.Create <= base:
			return n, Needs{}
		case !r.IsRead:
			return 0, Needs{Records: e.unread(i)}
		case r.Run != nil && r.Run.IsFailure():
			n++
		}
	}

	return n, Needs{}
}

// evaluateSuccessWithin judges Alerts.SuccessWithin.
func (e *Evidence) evaluateSuccessWithin(s *schedule.Schedule, now time.Time) (Verdict, Needs) {
	within := e.alerts().SuccessWithin.Std()

	success, needs := e.lastSuccess()
	if needs.Any() {
		return Verdict{}, needs
	}

	var since time.Time
	var run *task.Run
	switch {
	case success != nil:
		run, since = success.Run, earlier(success.Run.EndedAt.Time, now)
	case e.Ledger == nil:
		return Verdict{}, Needs{Ledger: true}
	default:
		since = earlier(e.Ledger.LastSuccess, now)
	}

	// The end of the last run may have been recorded late. Then another run may have ended after it that was recorded before.
	if success != nil && now.Sub(since) >= within {
		other, needs := e.successOf(now.Add(-within))
		if needs.Any() {
			return Verdict{}, needs
		}
		if other != nil && other.EndedAt.After(since) {
			run, since = other, earlier(other.EndedAt.Time, now)
		}
	}

	switch {
	case !since.IsZero() && now.Sub(since) < within:
		return Verdict{State: Met, Success: run, Next: since.Add(within)}, Needs{}
	case e.hasEnded(s, now):
		return Verdict{State: NotExpected, Why: task.AlertEnded}, Needs{}
	case e.Freezes.Of(e.Namespace) != nil:
		return Verdict{State: Undecided, Next: now.Add(frozenPause)}, Needs{}
	}

	since = later(since, e.graceUntil(now))
	from, needs := e.expectedFrom(later(since, now.Add(-within)))
	if needs.Any() {
		return Verdict{}, needs
	}

	due := later(since, from).Add(within)
	if at := e.judgedAt(due); now.Before(at) {
		return Verdict{State: Undecided, Next: at}, Needs{}
	}

	return Verdict{State: NotMet, Since: due, Run: e.newestFailure()}, Needs{}
}

// judgedAt returns when an expectation is judged whose time passed at an instant.
func (e *Evidence) judgedAt(due time.Time) time.Time {
	if due.Before(e.Opened) {
		return e.Opened.Add(CatchUpTime)
	}
	return due
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
