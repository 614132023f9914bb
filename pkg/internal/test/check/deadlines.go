package check

import (
	"errors"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/task"
)

// judgedAfter is how long after a deadline it is judged.
const judgedAfter = 15 * time.Second

// longestGap is the longest time between two deadlines, or two ticks, that is searched. It is longer than the time between two leap days.
const longestGap = 9 * 366 * 24 * time.Hour

// deadlines are those of Alerts.SuccessBy of a task, and the ticks whose runs must have succeeded by then. All times are in ms.
type deadlines struct {
	deadlines, ticks *oracle.Timing
	// anyRun is set if the schedule does not say when ticks are: a run since the deadline before must have succeeded.
	anyRun bool
}

// newDeadlines returns the deadlines and the ticks of a task. Without successBy, it has no deadlines.
func newDeadlines(e *task.Entry, successBy string) (d deadlines, err error) {
	d.anyRun = oracle.CountsFromCompletion(*e) || len(e.Schedule) == 1 && (e.Schedule[0] == "@manual" || e.Schedule[0] == "@reboot")

	if successBy != "" {
		if d.deadlines, err = oracle.NewTiming(task.Entry{Schedule: task.Schedules{successBy}, Timezone: e.Timezone, DST: e.DST}); err != nil {
			return d, err
		}
	}
	d.ticks, err = oracle.NewTiming(*e)

	return d, err
}

var errNoDeadlines = errors.New("the task has no deadlines")

// deadlinesOf returns the deadlines of a task by its own expectations or by those of a rule.
func (j *alertJudge) deadlinesOf(t *taskHistory) (deadlines, error) {
	a := j.alertsOf(t)
	if a == nil || a.SuccessBy == "" {
		return deadlines{}, errNoDeadlines
	}

	return newDeadlines(&t.entry.Entry, a.SuccessBy)
}

// dueTick returns the newest tick that is due before a deadline and not before the deadline before it, or false if there is none.
func (d *deadlines) dueTick(deadline int64) (tick int64, ok bool) {
	previous, hasPrevious := newestTick(d.deadlines, deadline-1)
	if d.anyRun {
		return previous, hasPrevious
	}
	if !hasPrevious {
		return 0, false
	}

	tick, ok = newestTick(d.ticks, d.ticks.DueUpTo(deadline-1))

	return tick, ok && tick >= previous
}

// newestTick returns the last tick that is not after an instant.
func newestTick(ticks *oracle.Timing, upTo int64) (last int64, ok bool) {
	for span := time.Minute; !ok && span < 8*longestGap; span *= 8 {
		ticks.ListTicks(upTo-min(span, longestGap).Milliseconds(), upTo, func(at int64) bool {
			last, ok = at, true
			return true
		})
	}

	return last, ok
}

// hasSince reports whether a run has succeeded whose tick is not before an instant, or that was asked for since then.
func (s *successes) hasSince(tick int64) bool { return s.newest != nil && s.newestTick >= tick }

// checkMissedDeadline judges an alert that opens because of a deadline: it has passed, a run was due, and none has succeeded in time.
func (j *alertJudge) checkMissedDeadline(t *taskHistory, a *task.Alert, wrong func(string, ...any)) {
	d, err := j.deadlinesOf(t)
	if err != nil {
		return
	}

	deadline, inc := a.Deadline.UnixMilli(), t.entry.incarnation
	tick, ok := d.dueTick(deadline)

	switch outcome := inc.outcomes[tick]; {
	case !d.deadlines.HasTick(deadline):
		wrong("%s is no deadline", formatTime(a.Deadline.Time))
	case !j.opts.wasWrong(a.OpenedAt.Time) && a.OpenedAt.Sub(a.Deadline.Time) < judgedAfter-2*j.opts.Skew:
		wrong("its deadline was %s, and it opens at %s", formatTime(a.Deadline.Time), formatTime(a.OpenedAt.Time))
	case !ok:
		wrong("there is no tick between the deadline %s and the one before", formatTime(a.Deadline.Time))
	case inc.successes.hasSince(tick):
		wrong("a run has succeeded whose tick is not before %s, the one due by %s", formatTime(timeOfMS(tick)), formatTime(a.Deadline.Time))
	case !d.anyRun && outcome.isExcuse():
		wrong("the tick %s is %s: %s", formatTime(timeOfMS(tick)), outcome.state, outcome.reason)
	case !d.anyRun && outcome == nil && tick <= j.cluster.decidedUpTo(t) && !isPausedByFailures(&t.entry.Entry, tick):
		wrong("the task did not have the tick %s", formatTime(timeOfMS(tick)))
	}
}

// isPausedByFailures reports whether a task was paused at a tick because its runs had failed. Such a tick has no outcome, but a success is
// expected nevertheless.
func isPausedByFailures(e *task.Entry, tick int64) bool {
	return slices.ContainsFunc(ownCounters(*e).Pauses, func(p task.Pause) bool {
		return p.By.Is(task.PausedByFailures) && unixMS(p.Since) <= tick && (p.Ended.IsZero() || tick <= unixMS(p.Ended))
	})
}

// hasMetDeadline reports whether, when an alert closes, a run has succeeded that was due by its deadline or by the last one since. former is the
// alert while it was open.
func (j *alertJudge) hasMetDeadline(t *taskHistory, former, a *task.Alert) bool {
	d, err := j.deadlinesOf(t)
	if err != nil {
		return true
	}

	due := func(deadline int64) int64 {
		tick, ok := d.dueTick(deadline)
		if !ok {
			tick, _ = newestTick(d.deadlines, deadline-1)
		}
		return tick
	}
	tick := due(former.Deadline.UnixMilli())

	// If the task has other deadlines now, the last one of them may be before the one that the alert is about.
	if last, ok := newestTick(d.deadlines, a.Closed.At.Add(-judgedAfter-j.tolerance()).UnixMilli()); ok && !d.deadlines.HasTick(former.Deadline.UnixMilli()) {
		tick = min(tick, due(last))
	}

	return t.entry.incarnation.successes.hasSince(tick)
}

// isAboutSuccess reports whether an expectation is that a run succeeds in time.
func isAboutSuccess(kind task.AlertKind) bool {
	return kind == task.AlertSuccessWithin || kind == task.AlertSuccessBy
}

// isPausedByPerson reports whether a person has paused a task at an instant, or at most a tolerance later.
func (j *alertJudge) isPausedByPerson(e *task.Entry, at time.Time) bool {
	p := e.Pause()
	return e.Paused && (p == nil || !p.By.Is(task.PausedByFailures) && !p.Over(at.Add(j.tolerance())))
}
