package evaluator

import (
	"math"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// glance is what the row of a task says about its alerts. It only says which tasks to read.
type glance uint8

const (
	unknown glance = iota // it is not known yet how the runs of the task have ended
	agrees                // the row tells, and the alerts say the same
	differs               // the records of the task must be read
)

const (
	// noJudgement is a WatchedRow.JudgeAt that never comes.
	noJudgement = math.MaxUint32
	// alwaysDue is one that has passed. It is not 0, so that a change of the task while it is judged can be seen.
	alwaysDue = 1
)

// eye compares rows with alerts in one visit of a shard.
type eye struct {
	now, opened time.Time
	first       map[deadlineKey]uint32 // when tasks are judged first, by what that depends on
}

// deadlineKey is what the deadlines of a task depend on.
type deadlineKey struct {
	alerts *task.Alerts
	zone   *time.Location
}

// look compares the row of a task with its alerts. lastSuccess is that of the row when the task was read last; 0: not known. If the
// shard was opened a short time ago, it may set when the task is judged.
func (e *eye) look(w *readmodel.WatchedRow, lastSuccess uint32) glance {
	r := w.Row
	if !r.Flags.Has(readmodel.History) || r.Flags.Has(readmodel.Unreadable) {
		return unknown
	}

	if failuresDiffer(w) || e.successWithinDiffers(w) || e.successByDiffers(w, lastSuccess) || e.limitsDiffer(w) {
		return differs
	}

	return agrees
}

// failuresDiffer compares a row with Alerts.Failures.
func failuresDiffer(w *readmodel.WatchedRow) bool {
	n, isOpen, isFailing := w.Alerts.FailuresInARow(), w.NotMet.Has(readmodel.AlertFailures), w.Row.Flags.Has(readmodel.Failing)
	if isOpen {
		return n == 0 || !isFailing
	}

	return n > 0 && isFailing && int(w.Row.Failures) >= n
}

// successWithinDiffers compares a row with Alerts.SuccessWithin.
func (e *eye) successWithinDiffers(w *readmodel.WatchedRow) bool {
	within, isOpen := w.Alerts.SuccessWithin.Std(), w.NotMet.Has(readmodel.AlertSuccessWithin)

	isMet := w.Row.LastSuccess != 0 && time.Duration(e.now.Unix()-int64(w.Row.LastSuccess))*time.Second < within
	switch {
	case within == 0:
		return isOpen
	case isOpen:
		return isMet || w.Row.Flags.Has(readmodel.Paused)
	}

	return !isMet && e.isDue(w)
}

// successByDiffers compares a row with Alerts.SuccessBy. The row does not tell which tick has succeeded, so the task is read once
// after each deadline.
func (e *eye) successByDiffers(w *readmodel.WatchedRow, lastSuccess uint32) bool {
	isOpen := w.NotMet.Has(readmodel.AlertSuccessBy)
	switch {
	case w.Alerts.SuccessBy == "":
		return isOpen
	case isOpen && (w.Row.LastSuccess != lastSuccess || w.Row.Flags.Has(readmodel.Paused)):
		return true
	case w.JudgeAt == 0 && !isOpen && !hasOtherTimes(w.Alerts) && e.now.Before(e.opened.Add(alert.CatchUpTime)):
		// Deadlines from before the opening are judged later, so the next one comes first, or that time. Other expectations do not wait.
		w.JudgeAt = e.firstJudgement(w)
	}

	return e.isDue(w)
}

// hasOtherTimes reports whether verdicts about other expectations than Alerts.SuccessBy depend on WatchedRow.JudgeAt.
func hasOtherTimes(a *task.Alerts) bool {
	return a.SuccessWithin > 0 || a.MaxLateness > 0 || a.MaxPause > 0
}

// limitsDiffer compares a row with Alerts.MaxLateness, MaxDuration and MaxPause.
func (e *eye) limitsDiffer(w *readmodel.WatchedRow) bool {
	a, paused := w.Alerts, w.Row.Flags.Has(readmodel.Paused)

	// A row does not tell which tick has started, so the task is read once after each tick, or less often if ticks follow each other
	// faster than they can be late.
	isLate := w.NotMet.Has(readmodel.AlertMaxLateness)
	if a.MaxLateness == 0 && isLate || a.MaxLateness > 0 && (isLate && paused || e.isDue(w)) {
		return true
	}

	isLong := w.NotMet.Has(readmodel.AlertMaxDuration)
	if a.MaxDuration == 0 && isLong || a.MaxDuration > 0 && e.durationDiffers(w, isLong) {
		return true
	}

	isPaused := w.NotMet.Has(readmodel.AlertMaxPause)
	if a.MaxPause == 0 || !paused {
		return isPaused
	}

	return e.isDue(w)
}

// durationDiffers compares a row with Alerts.MaxDuration. A row does not tell when its runs have first started, but not before the times
// in their ids.
func (e *eye) durationDiffers(w *readmodel.WatchedRow, isOpen bool) bool {
	isActive := w.Row.Active > 0 || w.Row.Waiting > 0
	if isOpen || !isActive {
		return isOpen && !isActive
	}

	// A run in parts has no attempt of its own.
	runs := w.Runs()
	return runs == nil || runs.HasRunFrom(e.now.Add(-w.Alerts.MaxDuration.Std()))
}

// firstJudgement returns when a task is judged first after the opening of its shard, in Unix seconds.
func (e *eye) firstJudgement(w *readmodel.WatchedRow) uint32 {
	s := w.Row.Schedule
	if s == nil {
		return 0
	}

	key := deadlineKey{w.Alerts, s.Location()}
	if at, known := e.first[key]; known {
		return at
	}

	// A row does not have the policy for clock changes, which moves a deadline by an hour on two days of a year. The task is
	// read at the end of the time for catching up in any case.
	at := e.opened.Add(alert.CatchUpTime)
	if d, err := alert.ParseDeadlines(w.Alerts.SuccessBy, key.zone.String(), task.DST{}); err == nil {
		if next := d.JudgedNext(e.opened); !next.IsZero() && next.Before(at) {
			at = next
		}
	}

	e.first[key] = seconds(at)

	return e.first[key]
}

// isDue reports whether a verdict may have changed because time has passed.
func (e *eye) isDue(w *readmodel.WatchedRow) bool { return int64(w.JudgeAt) <= e.now.Unix() }

// seconds returns a time for WatchedRow.JudgeAt: not before the time.
func seconds(at time.Time) uint32 {
	if at.IsZero() {
		return noJudgement
	}
	return uint32(min(max(at.Add(time.Second-time.Nanosecond).Unix(), alwaysDue), noJudgement))
}
