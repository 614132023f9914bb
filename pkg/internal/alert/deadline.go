package alert

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Deadlines are the deadlines of Alerts.SuccessBy, in the time zone of a task.
type Deadlines struct{ schedule *schedule.Schedule }

// ParseDeadlines parses the deadlines of a task.
func ParseDeadlines(successBy, timezone string, dst task.DST) (Deadlines, error) {
	s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{successBy}, Timezone: timezone, DST: dst}, time.Time{})
	return Deadlines{s}, err
}

// JudgedNext returns when the first deadline is judged that is judged after an instant; zero: there is none.
func (d Deadlines) JudgedNext(now time.Time) time.Time {
	next, ok := d.schedule.Next(now.Add(-judgeAfter))
	if !ok {
		return time.Time{}
	}

	return next.Add(judgeAfter)
}

// lastJudged returns the last deadline that is judged at an instant, or false if there is none.
func (d Deadlines) lastJudged(now time.Time) (time.Time, bool) {
	return d.schedule.LastDue(now.Add(-judgeAfter), "")
}

// before returns the deadline before another one. If there is none, it returns that one.
func (d Deadlines) before(deadline time.Time) time.Time {
	if at, ok := d.schedule.LastDue(deadline.Add(-time.Millisecond), ""); ok {
		return at
	}
	return deadline
}

// dueTick returns the tick of the task with a uid that must have succeeded by a deadline: the newest one since the deadline
// before. ok is false if there is none. Schedules that do not say when the ticks are get the deadline before: any run since then
// counts.
//
// Where the clocks go forward, a tick and a deadline after it may fall on the same instant. Then the tick belongs to the next
// deadline.
func (d Deadlines) dueTick(s *schedule.Schedule, uid string, deadline time.Time) (tick time.Time, ok bool) {
	previous := d.before(deadline)
	if _, after := s.AfterCompletion(); after || s.Manual() {
		return previous, previous.Before(deadline)
	}

	tick, ok = s.LastDue(deadline.Add(-time.Millisecond), uid)

	return tick, ok && !tick.Before(previous)
}

// evaluateSuccessBy judges Alerts.SuccessBy.
func (e *Evidence) evaluateSuccessBy(s *schedule.Schedule, current *task.Alert, now time.Time) (Verdict, Needs) {
	d, err := ParseDeadlines(e.alerts().SuccessBy, e.Entry.Timezone, e.Entry.DST)
	if err != nil {
		return Verdict{}, Needs{}
	}

	v, needs := e.evaluateDeadline(s, d, now)
	if needs.Any() {
		return v, needs
	}

	// The newest deadline may not be due. An open alert is about an earlier one, and a success since closes it.
	if v.State == Undecided && current != nil && current.IsOpen() && !current.Deadline.IsZero() {
		tick, ok := d.dueTick(s, e.Entry.UID, current.Deadline.Time)
		if !ok {
			tick = d.before(current.Deadline.Time)
		}

		success, isMet, needs := e.succeededSince(tick)
		if needs.Any() {
			return v, needs
		}
		if isMet {
			v.State, v.Success = Met, success
		}
	}

	return v, Needs{}
}

// evaluateDeadline judges the last deadline that has passed.
func (e *Evidence) evaluateDeadline(s *schedule.Schedule, d Deadlines, now time.Time) (Verdict, Needs) {
	v := Verdict{State: Undecided, Next: d.JudgedNext(now)}

	deadline, ok := d.lastJudged(now)
	if !ok {
		return v, Needs{}
	}

	tick, ok := d.dueTick(s, e.Entry.UID, deadline)
	if e.hasUsedRuns() && tick.After(e.Entry.From.Time) {
		ok = false
	}

	switch {
	case !ok && e.hasEnded(s, now):
		return Verdict{State: NotExpected, Why: task.AlertEnded}, Needs{}
	case !ok:
		return v, Needs{}
	}

	success, isMet, needs := e.succeededSince(tick)
	switch {
	case needs.Any():
		return v, needs
	case isMet:
		v.State, v.Success = Met, success
		return v, Needs{}
	}

	due, needs := e.isDue(tick, now)
	if needs.Any() || !due {
		return v, needs
	}

	if at := e.judgedAt(deadline.Add(judgeAfter)); now.Before(at) {
		if v.Next.IsZero() || at.Before(v.Next) {
			v.Next = at
		}
		return v, Needs{}
	}

	// Records that were deleted without being counted may have had a success. Then it is not known.
	isWhole, needs := e.keepsAllSince(tick)
	switch {
	case needs.Any():
		return v, needs
	case !isWhole:
		return Verdict{}, Needs{}
	}

	v.State, v.Since, v.Deadline, v.Run = NotMet, deadline, deadline, e.newestFailure()

	return v, Needs{}
}

// succeededSince reports whether a run has succeeded whose tick is not before an instant, or that was asked for since then. The
// ledger has what was trimmed from the history; then the run is nil.
func (e *Evidence) succeededSince(tick time.Time) (success *task.Run, ok bool, needs Needs) {
	success, needs = e.successOf(tick)
	switch {
	case needs.Any() || success != nil:
		return success, success != nil, needs
	case e.Ledger == nil:
		return nil, false, Needs{Ledger: true}
	}

	return nil, !e.Ledger.LastTick.IsZero() && !e.Ledger.LastTick.Before(tick), Needs{}
}

// keepsAllSince reports whether each success of a run whose tick is not before an instant is in the history or in the ledger. The
// ledger must have been read.
func (e *Evidence) keepsAllSince(tick time.Time) (bool, Needs) {
	l := e.Ledger
	switch {
	case !l.IsIncomplete && !tick.Before(l.CompleteSince) && l.MoreUntil.Before(tick):
		return true, Needs{}
	case e.Entry.History.Record == task.RecordFailures:
		return false, Needs{}
	}

	// Runs that ended last are kept. So if the history still has a run that ended before the tick, it has all that ended since. The
	// trimmer may keep the last success for longer than others, but then there is no later one.
	var page []int
	for i := len(e.Records) - 1; i >= max(0, len(e.Records)-maxPage); i-- {
		r := &e.Records[i]
		at, known := task.TimeOfRunID(r.ID)
		switch {
		case !known || !at.Before(tick):
		case !r.IsRead:
			page = append(page, i)
		case r.Run != nil && !r.Run.EndedAt.IsZero() && r.Run.EndedAt.Before(tick):
			return true, Needs{}
		}
	}

	return false, Needs{Records: page}
}

// isExcuse reports whether a tick was skipped by a freeze or by a shadow, so that its run was not due, or may have run in a history that a
// restore has lost.
func isExcuse(s task.State, reason string) bool {
	return s == task.Skipped && (reason == task.ReasonFrozen || reason == task.ReasonShadow) || reason == task.ReasonRestored
}

// successOf returns a success of a run whose tick is not before an instant, or that was asked for since then. A run keeps
// its tick through retries and queues, and the ids of both begin with that time.
func (e *Evidence) successOf(tick time.Time) (*task.Run, Needs) {
	var page []int

	for i := range min(len(e.Records), MaxRecords) {
		r := &e.Records[i]
		at, known := task.TimeOfRunID(r.ID)
		switch {
		case known && at.Before(tick):
		case !r.IsRead:
			if page = append(page, i); len(page) == maxPage {
				return nil, Needs{Records: page}
			}
		case r.Run != nil && r.Run.State == task.Succeeded && !r.Run.ScheduledTime.Before(tick):
			return r.Run, Needs{}
		}
	}

	return nil, Needs{Records: page}
}

// isDue reports whether a run of a tick was due. It was not if the tick is from before the time from which ticks are
// expected, or was skipped by a freeze or by a shadow. If it was skipped because another run was active, or missed, it was. The
// ledger must have been read.
func (e *Evidence) isDue(tick, now time.Time) (bool, Needs) {
	outcome, needs := e.outcomeOf(tick)
	if needs.Any() {
		return false, needs
	}

	if outcome != nil {
		return !isExcuse(outcome.State, outcome.Reason), Needs{}
	}
	if slices.ContainsFunc(e.Ledger.Excused, func(l task.LedgerLine) bool { return !tick.Before(l.First.Time) && !tick.After(l.Last.Time) }) {
		return false, Needs{}
	}

	// Without a record, the tick is undecided yet, or did not exist.
	if !tick.After(e.graceUntil(now)) {
		return false, Needs{}
	}

	from, needs := e.expectedFrom(tick.Add(-time.Millisecond))

	return tick.After(from), needs
}

// outcomeOf returns the record that says what became of a tick; nil: there is none. Ticks that did not run for the same
// reason share one record, which has the id of the first one.
func (e *Evidence) outcomeOf(tick time.Time) (*task.Run, Needs) {
	nearest, nearestAt := -1, time.Time{}
	for i := range min(len(e.Records), MaxRecords) {
		id := e.Records[i].ID
		at, known := task.TimeOfRunID(id)
		if !known || at.After(tick) || !isTick(id) {
			continue
		}
		if nearest < 0 || at.After(nearestAt) {
			nearest, nearestAt = i, at
		}
	}

	if nearest < 0 {
		return nil, Needs{}
	}
	r := &e.Records[nearest]
	if !r.IsRead {
		return nil, Needs{Records: []int{nearest}}
	}

	if r.Run == nil || !r.Run.ScheduledTime.Equal(tick) && r.Run.Last.Before(tick) {
		return nil, Needs{}
	}

	return r.Run, Needs{}
}
