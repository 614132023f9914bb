package scheduler

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// followUp draws conclusions from what has happened to a task. Consecutive failures pause it. The end of a
// run determines the next tick of a schedule that counts from there. When nothing is left to do, the ttl
// deletes it.
func (p *plan) followUp(t *taskstate.Task) {
	if !t.DependsOnPast() {
		return
	}

	p.countEnds(t)
	p.anchorAnew(t)
	p.deleteExpired(t)
}

// noteDecided is called after a tick of t was decided. If the task has no further tick, its next anchor or
// its ttl may follow from that.
func (s *shardState) noteDecided(t *taskstate.Task) {
	if t.Next == 0 && t.DependsOnPast() {
		t.ForgetLastEnd()
		s.examineNext(t)
	}
}

// countEnds counts consecutive failures of a task's runs, and pauses the task when there are too many.
//
// A count that has not changed is not written: a later owner computes the same from the history. But if
// there were failures, it is written even if a success reset it, because the record of that success may be
// trimmed before a later owner reads the history. The count in the entry is exact, whichever owner sees an
// end (G24).
func (p *plan) countEnds(t *taskstate.Task) {
	if !t.CountsFailures() {
		return
	}

	// Studied means that past.Ends holds all ends since those that the entry counts.
	past := t.EnsurePast()
	if !past.Studied {
		p.s.needHistory(t)
		return
	}

	ends := past.Uncounted()
	failures := taskstate.InARow(past.Own.Failures, ends)
	if failures == past.Own.Failures && !slices.ContainsFunc(ends, taskstate.End.Failed) {
		// Nothing failed, so the count stays.
		past.Ends = nil
		return
	}

	if !p.reserveRoom(t, 2, 2*roomForTask(t)) {
		return
	}

	_, pauseEnds := t.Silence()

	// A pause that would end by itself becomes one without an end.
	pause := failures >= t.Policy.PauseAfter && (!t.Paused || pauseEnds)
	p.changeEntry(t, func(c *entryChange) {
		c.own.Failures, c.own.Counted = failures, ends[len(ends)-1].Mod
		if pause {
			c.paused = true
			c.own.Pauses = taskstate.PausedByFailures(c.own.Pauses, failures, p.now)
		}
	})

	if pause {
		p.notices = append(p.notices, notice{kind: taskPaused, task: t.FullName(), failures: failures})
	}

	p.addEffect(failuresCounted{past})
}

// anchorAnew sets the next anchor of a task whose schedule counts from the end of its last run, when that
// run and everything else of the task has ended. The anchor determines exactly one tick, so there is at
// most one at a time.
func (p *plan) anchorAnew(t *taskstate.Task) {
	if !t.FollowsEnds() || !t.Fires() || t.Next != 0 || !t.Idle() || p.changesEntry(t) {
		return
	}

	now := p.now.UnixMilli()

	// Wait for the end of a pause, so that its end and not an earlier time is taken into account.
	if until, ends := t.Silence(); t.Paused && ends && now <= until {
		p.s.examineAgainAt(t, taskstate.Instant(until+1))
		return
	}

	if !t.EnsurePast().Known {
		p.s.needHistory(t)
		return
	}

	// The new tick must be later than everything that counts as decided, or it would never fire (G4).
	decided := max(now, p.s.Watermark.Time.UnixMilli(), t.From)
	anchor := anchorAfter(t.Past.Ended, decided, t.Timing.Period)

	s := t.Timing.Schedule.Anchored(taskstate.Instant(anchor))
	if _, ok := s.Next(taskstate.Instant(decided)); !ok {
		// The tick would be after the end of the schedule.
		return
	}
	if !p.reserveRoom(t, 2, 2*roomForTask(t)) {
		return
	}

	p.changeEntry(t, func(c *entryChange) { c.anchor = anchor })
}

// anchorAfter returns the anchor from which the period counts: the end of the last run, or later if the
// tick would otherwise be at or before decided. All times are in Unix milliseconds.
func anchorAfter(end, decided, period int64) int64 { return max(end, decided+1-period) }
