package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxReadingsPerRound is how many attempts one round reads. Due ticks wait meanwhile.
const maxReadingsPerRound = 600

// neededReadings returns the attempts to read now, among the tasks that are noted for examination. cleared
// holds the instances for which it is known whether they are proved dead. unknown are instances for which
// that must be found out first: the caller does so and calls neededReadings again.
func (s *shardState) neededReadings(now time.Time, cleared map[string]bool) (list []state.AttemptReading, unknown []string) {
	for _, t := range s.agenda.toExamine {
		for _, a := range t.Active() {
			_, present := s.ports.placement.Present(a.Node)
			wasAway := a.IsAway()
			step := state.ExamineAttempt(t, a, present, now, s.ports.clearedAfter, cleared)
			if a.IsAway() != wasAway {
				s.rows.Touch(t)
			}

			switch {
			case step.Prove != "":
				if !slices.Contains(unknown, step.Prove) {
					unknown = append(unknown, step.Prove)
				}
			case !step.Again.IsZero():
				s.agenda.examineAgainAt(t, step.Again)
			case !step.Read && !step.Cancel:
			case len(list) == maxReadingsPerRound: // the rest follows in the next round
				s.agenda.examineAgainAt(t, now)
			default:
				list = append(list, state.AttemptReading{Task: t, Attempt: a, Cancel: step.Cancel})
			}
		}
	}

	return list, unknown
}

// applyReading applies what was read of an attempt. now is the time of the round, and read the time
// immediately after the reading.
func (s *shardState) applyReading(r state.AttemptReading, v store.Sighting, now, read time.Time) {
	if r.First() && !v.NodePresent && v.Err != nil {
		s.addNotice(notice{kind: attemptUnreadable, task: r.Task.FullName(), run: r.Attempt.Run, err: v.Err})
	}

	s.rows.Touch(r.Task)
	if r.Apply(v, read) {
		s.agenda.examineAgainAt(r.Task, now.Add(s.ports.clearedAfter))
	}
}

// endAttempts ends the attempts of t that are lost, and requests the end of those that must not continue.
// Both were determined before the plan was made (see watchAttempts).
func (p *plan) endAttempts(t *state.Task) {
	for _, a := range t.Active() {
		switch {
		case a.Watch == nil:
		case a.Watch.Lost:
			if !p.reserveRoom(t, 3, 3*roomForRecord) {
				return
			}
			p.loseAttempt(t, a)
		case a.Watch.Ask && p.mayAskCancel(t, a):
			if !p.reserveRoom(t, 2, 2*roomForRecord) {
				return
			}
			p.askCancel(t, a)
		}
	}
}

// mayAskCancel reports whether an attempt still has to be cancelled. The attempt was read before this plan,
// and the task may have changed since: a conflict within the round can deliver an edit. While the task is
// frozen, nothing is replaced, because the replacement could not start.
func (p *plan) mayAskCancel(t *state.Task, a *state.Attempt) bool {
	if t.Orphan(a.Run) || t.GoesWithParent(a.Run) {
		return true
	}

	return !p.isFrozen(t) && t.ReplacesAttempt(a, p.now.UnixMilli())
}

// askCancel requests that the node of an attempt ends it. The reason is one of: the task was deleted, the
// attempt is a part whose run ends, or a newer tick replaces it.
func (p *plan) askCancel(t *state.Task, a *state.Attempt) {
	reason := task.ReasonDeleted
	var who *task.Actor

	switch {
	case t.Orphan(a.Run):
	case t.GoesWithParent(a.Run):
		reason, who = t.EndsWithParent(a.Run)
	default:
		reason = task.ReasonReplaced

		// The policy must still be replace when the cancel is written (G7).
		p.commit.GuardEntry(t.FullName(), t.Mod)
	}

	p.addEffect(cancelAsked{t, a, who, reason})
}

// loseAttempt ends an attempt whose node is gone. Its outcome is unknown. The commit requires that its
// record is unchanged and its node still absent, so a node that comes back first keeps its attempt (G12,
// G17). The run is retried if its policy includes lost; otherwise it has ended (G9).
func (p *plan) loseAttempt(t *state.Task, a *state.Attempt) {
	end := a.Watch.Held.Unpaused()
	end.State, end.Reason, end.EndedAt = task.Lost, task.ReasonNodeLost, task.At(p.now)
	if p.s.isRestored(a.Create) {
		end.Reason = task.ReasonRestored
	}
	end.Message = p.s.lostMessage(a.Create, a.Watch.Held.LostMessage())
	var next *state.Waiting

	switch {
	case a.Watch.Unreadable != nil:
		// The record cannot be read, so its retry policy is unknown and no attempt follows.
		end.UID, end.Owner = t.UID(), p.s.ports.node
		end.Message = "the record of its attempt could not be read: " + a.Watch.Unreadable.Error()
	case !t.Orphan(a.Run) && !t.GoesWithParent(a.Run):
		// The retry policy applies, except to an attempt of a deleted task and to a part whose run ends.
		if retry := p.s.ports.nextAttempt(a.Watch.Held.Assigned, end, p.now, p.s.ports.random.Float64()); retry != nil {
			next = &state.Waiting{Waiting: *retry}
		}
	}

	p.addEffect(runLost{t, a, &end, next})
	p.counts.lost++
}

// followUp draws conclusions from what has happened to a task. Consecutive failures pause it. The end of a
// run determines the next tick of a schedule that counts from there. When nothing is left to do, the ttl
// deletes it.
func (p *plan) followUp(t *state.Task) {
	if !t.DependsOnPast() {
		return
	}

	p.countEnds(t)
	p.anchorAnew(t)
	p.deleteExpired(t)
}

// noteDecided is called after a tick of t was decided. If the task has no further tick, its next anchor or
// its ttl may follow from that.
func (s *shardState) noteDecided(t *state.Task) {
	if t.Next == 0 && t.DependsOnPast() {
		t.ForgetLastEnd()
		s.agenda.examineNext(t)
	}
}

// countEnds counts consecutive failures of a task's runs, and pauses the task when there are too many.
//
// A count that has not changed is not written: a later owner computes the same from the history. But if
// there were failures, it is written even if a success reset it, because the record of that success may be
// trimmed before a later owner reads the history. The count in the entry is exact, whichever owner sees an
// end (G24).
func (p *plan) countEnds(t *state.Task) {
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
	failures := state.InARow(past.Own.Failures, ends)
	if failures == past.Own.Failures && !slices.ContainsFunc(ends, state.End.Failed) {
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
	p.changeEntry(t, func(e *entryChanged) {
		e.own.Failures, e.own.Counted = failures, ends[len(ends)-1].Create
		if pause {
			e.paused = true
			e.own.Pauses = state.PausedByFailures(e.own.Pauses, failures, p.now)
		}
	})

	if pause {
		p.addEffect(noticeGiven{notice{kind: taskPaused, task: t.FullName(), failedRuns: failures}})
	}

	p.addEffect(failuresCounted{past})
}

// anchorAnew sets the next anchor of a task whose schedule counts from the end of its last run, when that
// run and everything else of the task has ended. The anchor determines exactly one tick, so there is at
// most one at a time.
func (p *plan) anchorAnew(t *state.Task) {
	if !t.FollowsEnds() || !t.Fires() || t.Next != 0 || !t.Idle() || p.changesEntry(t) {
		return
	}

	now := p.now.UnixMilli()

	// Wait for the end of a pause, so that its end and not an earlier time is taken into account.
	if until, ends := t.Silence(); t.Paused && ends && now <= until {
		p.s.agenda.examineAgainAt(t, state.Instant(until+1))
		return
	}

	if !t.EnsurePast().Known {
		p.s.needHistory(t)
		return
	}

	// The new tick must be later than everything that counts as decided, or it would never fire (G4).
	decided := max(now, p.s.records.Watermark.Time.UnixMilli(), t.From)
	anchor := anchorAfter(t.Past.Ended, decided, t.Timing.Period)

	s := t.Timing.Schedule.Anchored(state.Instant(anchor))
	if _, ok := s.Next(state.Instant(decided)); !ok {
		// The tick would be after the end of the schedule.
		return
	}
	if !p.reserveRoom(t, 2, 2*roomForTask(t)) {
		return
	}

	p.changeEntry(t, func(e *entryChanged) { e.anchor = anchor })
}

// anchorAfter returns the anchor from which the period counts: the end of the last run, or later if the
// tick would otherwise be at or before decided. All times are in Unix milliseconds.
func anchorAfter(end, decided, period int64) int64 { return max(end, decided+1-period) }

// ttlDeletedBy is recorded as the user who deleted a task because of its ttl.
const ttlDeletedBy = "carillon"

// deleteExpired requests the deletion of a task when its schedule has no further ticks, nothing of it waits
// or is active, and its ttl has passed since its last end. The deletion is a separate transaction that
// compares the entry, so an edit in the meantime prevents it (G25). Until then, each reason to wait is
// noted with the time at which it ends.
func (p *plan) deleteExpired(t *state.Task) {
	if t.Policy.TTL == 0 || t.Timing.Manual || t.Next != 0 || !t.Idle() || p.changesEntry(t) || p.s.hasTriggers(t) {
		return
	}

	now := p.now.UnixMilli()
	since, over := t.Over(now)
	if !over {
		// A schedule that counts from the end of the last run is over only after its own end.
		if t.FollowsEnds() && t.Timing.End >= now {
			p.s.agenda.examineAgainAt(t, state.Instant(t.Timing.End+1))
		}
		return
	}

	// The ttl cannot have passed, whatever the last end is. Avoid reading the history.
	if until := since + t.Policy.TTL; now < until {
		p.s.agenda.examineAgainAt(t, state.Instant(until))
		return
	}

	// The ttl counts from the last end of a run, which must be read first.
	if !t.EnsurePast().Known {
		p.s.needHistory(t)
		return
	}

	if until := max(since, t.Past.Ended) + t.Policy.TTL; now < until {
		p.s.agenda.examineAgainAt(t, state.Instant(until))
		return
	}

	// The only trace of what a lost history may have done stays long enough to be looked at.
	if g := p.s.fences.Gap; g != nil {
		if !t.Past.IsReadForTTL { // the task got its ttl afterwards
			p.s.needHistory(t)
			return
		}
		if until := g.Restored.At.Add(keepRestored); t.Past.HasRestored && p.now.Before(until) {
			p.s.agenda.examineAgainAt(t, until)
			return
		}
	}

	// The deletion can fail or be dropped without notice. Check again later in any case.
	p.s.agenda.examineAgainAt(t, p.now.Add(ttlDeletionRetry))

	// A task after which others run stays: the deletion would fail.
	if t.BeingDeleted() || p.s.records.Links.IsSource(t.FullName()) {
		return
	}

	b := &background.Deletion{Fences: p.s.fences, Ref: t.Ref(p.s.records.Shard), Mod: t.Mod, Tombstone: record.Tombstone{
		UID: t.UID(), Generation: int64(t.Generation), DeletedAt: task.At(p.now), DeletedBy: task.NewActor(ttlDeletedBy),
		Why: "its schedule had ended, and its ttl of " + task.Duration(time.Duration(t.Policy.TTL)*time.Millisecond).String() + " was over",
	}}

	// From now on nothing of the task is dispatched (see BeingDeleted).
	t.Past.Deletion = b
	p.deletions = append(p.deletions, b)
}

// keepRestored is how long after a restore a task is kept of which a run or a tick may have been lost, whatever its ttl is.
const keepRestored = 7 * 24 * time.Hour

// ttlDeletionRetry is the time after which a deletion that has not succeeded is requested again.
const ttlDeletionRetry = 10 * time.Second
