package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// decideUncovered decides the ticks up to the watermark of entries that it does not cover, in the order in
// which the entries were created. It moves the watermark's seen past every entry that has none left, and
// reports whether there were any such ticks.
//
// The watermark says nothing about a task that was created after seen. So these ticks are undecided
// although they are before the watermark's time, and would be lost if seen moved past them (G4).
func (p *plan) decideUncovered() (owed bool) {
	s := p.s
	if len(s.uncovered) == 0 {
		p.commit.Watermark.Seen = max(s.Watermark.Seen, s.seenUpTo())
		return false
	}

	seen, mark := s.seenUpTo(), s.Watermark.Time.UnixMilli()

	// The clock of an earlier owner may have been ahead of this one. Ticks after now wait until they are
	// due (G6).
	upTo := min(mark, p.now.UnixMilli())

	for _, t := range slices.SortedFunc(maps.Keys(s.uncovered), byCreation) {
		// Its ticks stay undecided, and seen must not cover it.
		if s.aside.has(t) {
			seen = min(seen, t.Create-1)
			continue
		}

		// done means that no undecided tick up to the watermark is left, so seen may cover the entry.
		done := false
		if t.DueAt() <= upTo {
			owed = true

			// If upTo is before the watermark, the entry is done only if its next tick is due after the
			// watermark.
			next := t.After(t.LastDue(upTo))
			done = p.decideLateTicks(t, upTo) && (next == 0 || t.Due(next) > mark)
		}

		if !done {
			seen = min(seen, t.Create-1)
		}
	}

	p.commit.Watermark.Seen = max(s.Watermark.Seen, seen)

	return owed
}

// byCreation orders tasks by the create revision of their entries, then by name.
func byCreation(a, b *taskstate.Task) int {
	return cmp.Or(cmp.Compare(a.Create, b.Create), strings.Compare(a.FullName(), b.FullName()))
}

// catchUp decides the ticks of tasks that are behind, the oldest tick first, and reports whether there were
// any. It visits only as many tasks as the commit has room for; the next commits decide the rest.
func (p *plan) catchUp() (any bool) {
	now := p.now.UnixMilli()
	if !p.s.anyBehind(now) {
		return false
	}

	// Visit the due tasks in order, and decide those that are behind, until the commit is full.
	p.s.due.InOrder(func(t *taskstate.Task) bool {
		if t.DueAt() > now {
			return false
		}

		if t.IsBehind(now) {
			any = true
			return p.decideLateTicks(t, now) || !p.full
		}

		return true
	})

	return any
}

// anyBehind reports whether a task is behind at now. A negative result is remembered (onTime) until a task
// that is behind enters the heap, because one round has a single now and may take many commits.
func (s *shardState) anyBehind(now int64) bool {
	if s.onTime == now {
		return false
	}
	if s.due.AnyUpTo(now, func(t *taskstate.Task) bool { return t.IsBehind(now) }) {
		return true
	}

	s.onTime = now

	return false
}

// decideLateTicks gives all undecided ticks of a task up to upTo (Unix milliseconds) their outcome by the
// missed policy. It sets the entry's from to the last one that it decides, because the watermark does not
// cover them. It returns false if the commit has no room for all of them. What is decided is then the
// oldest part, and the next commit continues after it (G4).
func (p *plan) decideLateTicks(t *taskstate.Task, upTo int64) bool {
	if p.full {
		return false
	}
	if p.isFrozen(t) {
		return p.skipFrozen(t, upTo)
	}

	l := tickpolicy.Lateness{Policy: t.Policy.Missed, Deadline: t.Policy.Deadline, Opened: p.s.opening.At}
	c := tickpolicy.DecideLate(l, taskstate.NewMissedSchedule(t), taskstate.Instant(t.Next-1), taskstate.Instant(upTo), p.now)

	// The run of a tick may drop older waiting ticks. Each of these takes a queue delete and a history
	// record.
	drops := t.TicksToDrop(p.now.UnixMilli())
	if !p.reserveRoom(t, 3+len(c.Missed)+2*drops, 2*roomForTask(t)+(len(c.Missed)+2*drops)*roomForRecord) {
		return false
	}

	from := c.Last

	// The missed ticks are older than all that run. One record holds all ticks with the same reason.
	for _, m := range c.Missed {
		p.missTicks(t, m)
	}

	complete := true
	for i, tick := range c.Run {
		trigger := task.TriggerSchedule
		if p.now.Sub(taskstate.Instant(t.Due(tick.UnixMilli()))) > t.Policy.Grace {
			trigger = task.TriggerCatchUp
		}

		id, at := task.RunID(tick, t.UID()), tick.UnixMilli()

		// Require room for the last two ticks together. If only one were left for the next commit, it could
		// be within its grace, and would then be decided as a single tick that is on time.
		room := 1
		if i == len(c.Run)-2 {
			room = 2
		}

		switch {
		case i > 0 && !p.reserveRoom(t, room, room*roomForRecord):
			// The first tick's room is part of the reservation above.
			complete = false
		case t.HasRun(id): // the run exists already; only record its tick as decided
		case len(c.Run) == 1 && t.Policy.Missed.Policy != task.MissedAll:
			// A single tick is decided by the overlap policy, unless the missed policy requires that every tick
			// runs.
			p.decideTick(t, at, id, trigger)
		case t.Policy.Shadow:
			p.decideShadowTick(t, at, id, trigger)
		case i == 0 && p.goesFirst(t) && p.fireTick(t, at, id, trigger) == "":
		default:
			// All other ticks wait for their turn, one after another. The limit of the queue does not count
			// them.
			p.enqueueRun(t, p.newTickRun(t, at, id, trigger), task.ReasonCatchUp)
		}

		if !complete {
			break
		}

		from = tick

		// max_runs is used up: the task has no further ticks (G24).
		if p.usesRunBudget(t) {
			break
		}
	}

	p.setEntryFrom(t, from.UnixMilli())
	p.examineAfterCommit(t)

	return complete
}

// goesFirst reports whether the first of several late ticks may start at once: no run is active, and with a
// policy that limits active runs, no tick waits.
func (p *plan) goesFirst(t *taskstate.Task) bool {
	d := t.Doing(p.now.UnixMilli())
	return t.Policy.Rule.Free(d) && (t.Policy.Rule.Most == 0 || d.Ticks == 0)
}

// skipFrozen decides all undecided ticks of a frozen task up to upTo (Unix milliseconds). All are skipped,
// however late they are, and the missed policy does not apply. It returns false if the commit has no room.
func (p *plan) skipFrozen(t *taskstate.Task, upTo int64) bool {
	if !p.reserveRoom(t, 3, 2*roomForTask(t)) {
		return false
	}

	s := t.Schedule()
	first, last, count, _ := s.Missed(taskstate.Instant(t.Next-1), taskstate.Instant(t.LastDue(upTo)), 1)
	if count > 0 {
		run := p.newRun(t, first.UnixMilli(), task.RunID(first, t.UID()), task.TriggerSchedule)

		// One record holds the whole range.
		if count > 1 {
			run.Last, run.Count = task.At(last), count
		}

		p.skipRun(t, run, task.ReasonFrozen)
		p.setEntryFrom(t, last.UnixMilli())
	}

	p.examineAfterCommit(t)

	return true
}
