package scheduler

import (
	"fmt"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// followUp draws the conclusions from what has happened to a task: failures in a
// row pause it, the end of a run makes the next tick of a schedule that counts
// from there, and the end of everything has it deleted.
func (p *plan) followUp(t *taskstate.Task) {
	if !t.DependsOnPast() {
		return
	}

	delete(p.s.rests, t)
	p.countEnds(t)
	p.anchorAnew(t)
	p.deleteExpired(t)
}

// noteDecided notes that a tick of t was decided: if there is no other, something
// follows from that.
func (s *shardState) noteDecided(t *taskstate.Task) {
	if t.Next == 0 && t.DependsOnPast() {
		t.ForgetLastEnd()
		s.addLook(t)
	}
}

// countEnds counts runs that failed in a row, and pauses the task after so many.
// What changes nothing is not written: who comes later counts it again, from the
// history, with the same result. But for failures: the success that made up for
// them may be gone by then.
func (p *plan) countEnds(t *taskstate.Task) {
	if !t.CountsFailures() {
		return
	}

	past := t.EnsurePast()
	if !past.Studied {
		p.s.needHistory(t)
		return
	}

	ends := past.Uncounted()
	failures := taskstate.InARow(past.Own.Failures, ends)
	if failures == past.Own.Failures && !slices.ContainsFunc(ends, taskstate.End.Failed) {
		past.Ends = nil
		return
	}

	if !p.reserveRoom(t, 2, 2*roomForTask(t)) {
		return
	}

	_, pauseEnds := t.Silence()
	pause := failures >= t.Policy.PauseAfter && (!t.Paused || pauseEnds)
	p.changeEntry(t, func(c *entryChange) {
		c.own.Failures, c.own.Counted = failures, ends[len(ends)-1].Mod
		if pause {
			c.paused = true
			c.own.Pauses = pausedByFailures(c.own.Pauses, failures, p.now)
		}
	})

	if pause {
		p.notices = append(p.notices, notice{kind: taskPaused, task: t.FullName(), failures: failures})
	}

	p.addEffect(failuresCounted{past})
}

// pausedByFailures adds a pause to the latest. A pause with an end that it cuts
// short ends with its beginning.
func pausedByFailures(pauses []task.Pause, failures int, now time.Time) []task.Pause {
	if n := len(pauses); n > 0 && !pauses[n-1].Over(now) {
		pauses[n-1].Ended, pauses[n-1].EndedBy = task.At(now), task.PausedByFailures
	}

	pauses = append(pauses, task.Pause{
		Since: task.At(now), By: task.PausedByFailures, Reason: fmt.Sprintf("%d runs in a row failed", failures),
	})
	return pauses[max(0, len(pauses)-task.KeepPauses):]
}

// anchorAnew gives a task whose schedule counts from the end of its last run its
// next tick, when that run and all else of the task has ended.
func (p *plan) anchorAnew(t *taskstate.Task) {
	if !t.FollowsEnds() || !t.Fires() || t.Next != 0 || !t.Idle() || p.changesEntry(t) {
		return
	}

	now := p.now.UnixMilli()
	if until, ends := t.Silence(); t.Paused && ends && now <= until {
		p.s.lookAgainAt(t, until+1)
		return
	}

	if !t.EnsurePast().Known {
		p.s.needHistory(t)
		return
	}

	decided := max(now, p.s.Watermark.Time.UnixMilli(), t.From)
	anchor := anchorAfter(t.Past.Ended, decided, t.Timing.Period)

	s := t.Timing.Schedule.Anchored(taskstate.Instant(anchor))
	if _, ok := s.Next(taskstate.Instant(decided)); !ok {
		return // it would be after the schedule's end
	}
	if !p.reserveRoom(t, 2, 2*roomForTask(t)) {
		return
	}

	p.changeEntry(t, func(c *entryChange) { c.anchor = anchor })
}

// anchorAfter is from when the period counts after which a task ticks again: from
// the end of its last run, or from so much later that the tick is not among those
// that are decided already. All in ms.
func anchorAfter(end, decided, period int64) int64 { return max(end, decided+1-period) }
