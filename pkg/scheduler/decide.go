package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// decideDueTicks decides the ticks that are due, in (due time, task) order. It moves the watermark to now
// if it has decided all of them, otherwise to the last one that it has decided. So the watermark covers
// exactly the decided ticks (G3, G4).
func (p *plan) decideDueTicks() {
	s, now := p.s, p.now.UnixMilli()
	all := true
	for len(s.due) > 0 && s.due[0].DueAt() <= now {
		t := s.due[0]
		if all = p.decideNextTick(t); !all {
			break
		}

		// Set removes the task from the heap and clears Next. Restore Next, because applyAbandoned needs
		// it.
		tick := t.Next
		s.due.Set(t, 0)
		t.Next = tick
		p.reserved.due = append(p.reserved.due, t)

		if !p.changesEntry(t) {
			p.addEffect(tickDecided{t})
		}
	}

	if len(p.reserved.due) == 0 || p.keepWatermark {
		return
	}

	// The watermark moves. The commit fails if an edit that this worker has not seen gave a task ticks
	// before it.
	p.commit.Moves(s.revised)
	mark, last := &p.commit.Watermark, p.reserved.due[len(p.reserved.due)-1]
	if mark.Time, mark.Last = task.At(p.now), ""; !all {
		mark.Time, mark.Last = task.At(state.Instant(last.DueAt())), last.FullName()
	}
}

// decideNextTick gives the task's next tick its outcome. It returns false if the commit has no room, and
// then has changed nothing.
//
// Normally the commit's watermark records that the tick is decided. There are two exceptions: the watermark
// does not cover the task yet, because the watch has not delivered all creations up to the task's own, or
// the plan keeps the time of the watermark. Then the entry's from must record it. In both cases the commit
// compares the entry, so an edit that the worker has not seen makes the commit fail (G7).
func (p *plan) decideNextTick(t *state.Task) bool {
	covered := !p.keepWatermark && t.Create <= p.commit.Watermark.Seen

	// Most ticks write one record. more and size are the number and the size of the others.
	more := 2 * t.TicksToDrop(p.now.UnixMilli()) // history and queue records of waiting ticks that this one may drop

	// A late tick may have its turn before this one.
	late := t.LateTurn(p.now.UnixMilli())
	if late != nil {
		more += 2 + t.EntryRecords()
	}

	if !p.namespaceOf(t).allows(t) {
		more++ // a dead letter
	}

	plans, planSize := p.roomToBegin(t)
	if plans > 0 {
		plans++ // a dead letter, if the namespace does not allow one of its steps
	}
	more += plans

	size := more*roomForRecord + planSize

	if !covered || more > 0 || t.Policy.MaxRuns > 0 || t.Policy.Sticky() {
		more++ // the entry
		size += roomForTask(t)
	}

	if !p.admitChange(t, p.commit.FitsTick(more, roomForTask(t)+size)) {
		return false
	}

	id := task.RunID(state.Instant(t.Next), t.UID())
	if t.HasRun(id) {
		// The run already exists although its tick is undecided. Either this worker's rejected commit found
		// it in an inbox (see takeConflictingAttempt), or somebody else has written a queue record of it.
		// Only record the tick as decided: another record of the run would conflict with the existing one
		// (G3).
		p.endSpan(t)
		p.setEntryFrom(t, t.Next)
		return true
	}

	if covered {
		p.commit.GuardEntry(t.FullName(), t.Mod)
	} else {
		p.setEntryFrom(t, t.Next)
	}

	if late != nil && !p.isFrozen(t) && !p.s.isRestored(late.Create) {
		p.startWaiting(t, late)
	}

	p.decideTick(t, t.Next, id, task.TriggerSchedule)

	return true
}

// setEntryFrom writes the task's entry with the given from (Unix milliseconds): its ticks up to that time
// are decided.
func (p *plan) setEntryFrom(t *state.Task, from int64) {
	p.changeEntry(t, func(e *entryChanged) { e.from = from })
}

// decideTick gives a tick that is due now its outcome: missed if a lost history may have decided it, skipped if its task is frozen,
// missed if its start deadline has passed, and otherwise what the overlap policy says. A tick that may fire but gets no node or
// no catch-up token waits in the queue. The caller has made room in the commit.
func (p *plan) decideTick(t *state.Task, tick int64, id, trigger string) {
	if gap := p.s.fences.Gap; gap != nil && gap.Covers(state.Instant(t.Due(tick))) {
		p.missLost(t, tick)
		return
	}

	if p.isFrozen(t) {
		p.skipRun(t, p.newRun(t, tick, id, trigger), task.ReasonFrozen)
		return
	}

	if deadline := t.StartBefore(tick); !deadline.IsZero() && p.now.After(deadline.Time) {
		p.missTicks(t, tickpolicy.MissedTicks{First: state.Instant(tick), Last: state.Instant(tick), Count: 1, Reason: task.ReasonDeadline})
		return
	}

	if t.Policy.Shadow {
		p.decideShadowTick(t, tick, id, trigger)
		return
	}

	// d counts the active and waiting runs, without those of this plan.
	d, rule, reason := t.Doing(p.now.UnixMilli()), t.Policy.Rule, ""
	if p.isStarting(t) { // a late tick has the turn
		d = rule.AfterLateStart(d)
	}
	if span := p.s.skippedSpans[t]; span != nil && rule.JoinsLate() {
		d.Skipping = span.reason == task.ReasonOverlap && !p.changeOf(t).spanEnded
	}

	fate := rule.DecideTick(d)
	if fate == tickpolicy.Fire {
		// The policy lets the tick fire. If no node or token is free, the tick is decided again as one that
		// waits, because the queue may be full.
		if reason = p.fireTick(t, tick, id, trigger); reason == "" {
			if d.Late > 0 {
				p.addEffect(latePassed{t})
			}
			return
		}
		fate = rule.DecideWaitingTick(d)
	} else if reason = rule.Reason(d); reason == "" {
		reason = t.NewestReason()
	}

	switch fate {
	case tickpolicy.Join:
		p.enqueueRun(t, p.newTickRun(t, tick, id, trigger), task.ReasonCatchUp)
	case tickpolicy.Skip:
		p.skipRun(t, p.newRun(t, tick, id, trigger), task.ReasonOverlap)
	case tickpolicy.QueueFull:
		p.skipRun(t, p.newRun(t, tick, id, trigger), task.ReasonQueueFull)
	default:
		if fate == tickpolicy.WaitDropOldest {
			p.dropOldest(t, rule.TicksToDrop(d))
		}
		p.enqueueRun(t, p.newTickRun(t, tick, id, trigger), reason)
		p.examineAfterProbe(t)
	}
}

// fireTick starts the run of a tick: it puts an attempt into the inbox of a node, or begins a run with
// parts. If the task's namespace does not allow the task any more, the run ends at once. It returns "" if it
// has done one of these. Otherwise it returns why the tick must wait, and holds no slot and no token. A run
// of a late tick (trigger catch_up) needs a catch-up token.
func (p *plan) fireTick(t *state.Task, tick int64, id, trigger string) (reason string) {
	if !p.namespaceOf(t).allows(t) {
		p.failTick(t, tick, id, trigger)
		return ""
	}

	// A late tick first needs a token. It is given back if no node accepts the run.
	paced := trigger == task.TriggerCatchUp
	if paced && !p.reserved.takeToken(t, p.settings.clock) {
		return task.ReasonCatchUp
	}

	if t.Policy.Target.FansOut() || t.IsWorkflow() {
		reason = p.fireParent(t, tick, id, trigger)
		if reason != "" && paced {
			p.reserved.returnToken()
		}

		return reason
	}

	// The claim depends on the node's session, which the commit compares. So no attempt is assigned to an
	// instance that is gone.
	n, ok := p.pickNode(t, p.wantOf(t))
	if !ok {
		if paced {
			p.reserved.returnToken()
		}
		return task.ReasonNoNode
	}

	p.endSpan(t)
	p.attempt.Run, p.attempt.Env = p.newTickRun(t, tick, id, trigger), nil
	p.dispatchRun(t, n, false)

	if t.Policy.MaxRuns > 0 {
		p.countRun(t, tick)
	}

	p.counts.run++
	p.counts.lateness = append(p.counts.lateness, p.now.Sub(state.Instant(t.Due(tick))))

	return ""
}

// fireParent begins the run of a tick that has parts. The result is that of fireTick.
func (p *plan) fireParent(t *state.Task, tick int64, id, trigger string) (reason string) {
	if t.IsWorkflow() {
		return p.fireFlow(t, tick, id, trigger)
	}

	f, reason := p.planFanOut(t)
	if reason == "" {
		p.fanOut(t, p.newTickRun(t, tick, id, trigger), f)
	}

	return reason
}

// newTickRun returns the run that a tick becomes, with its start deadline.
func (p *plan) newTickRun(t *state.Task, tick int64, id, trigger string) task.Run {
	run := p.newRun(t, tick, id, trigger)
	run.StartBefore = t.StartBefore(tick)
	return run
}

// newRun returns the record of a tick, without a state. The trigger says why the run exists.
func (p *plan) newRun(t *state.Task, tick int64, id, trigger string) task.Run {
	ref := t.Ref(p.s.records.Shard)
	r := task.Run{
		ID: id, UID: t.UID(), Namespace: ref.Namespace, Task: ref.Name, Shard: ref.Shard,
		ScheduledTime: task.At(state.Instant(tick)), Trigger: trigger, Owner: p.s.ports.node, Attempt: 1, CreatedAt: task.At(p.now),
	}
	if t.Bad {
		return r // its ticks are not known
	}
	if due := t.Due(tick); due != tick {
		r.DueAt = task.At(state.Instant(due))
	}

	return r
}

// dispatchRun makes the run in p.attempt an attempt on node n, for which a slot has been counted. waited means that
// the run was in the queue. From now on the plan starts no other run of the task, so that their fencing tokens
// differ (G11).
func (p *plan) dispatchRun(t *state.Task, n *task.Node, waited bool) {
	a := &p.attempt
	a.Generation = int64(t.Generation)
	a.Timeout, a.KillGrace, a.Retry = t.Policy.Timeout, t.Policy.KillGrace, t.Policy.Retry
	a.KillSignal, a.Success = t.Policy.KillSignal, t.Policy.Success
	a.Output = p.outputOf(t)
	a.Values = nil // the plan may have started a step before, whose values are still there

	p.dispatchAttempt(t, n, t.PoolOf(a.ID), t.Action(), waited)
}

// dispatchAttempt puts the attempt in p.attempt, which has what its definition says, into the inbox of a node. action is its action as
// JSON, and pool the slots of which one has been counted.
func (p *plan) dispatchAttempt(t *state.Task, n *task.Node, pool placement.Pool, action string, waited bool) {
	p.reserved.reserveSlot(n, pool)
	p.changeOf(t).started = true

	a := &p.attempt
	probeUntil := int64(0)
	if a.WaitsForTarget() {
		probeUntil = p.now.Add(task.MaxUnsentBackoff).UnixMilli()
	}

	if a.Owner == "" { // a manual run: the API does not set an owner
		a.Owner = p.s.ports.node
	}

	caughtUp := t.JoinsLate() && p.startsLate(t, &a.Run)

	a.State, a.Reason, a.Node, a.DispatchedAt, a.NotBefore, a.NotBeforeBy = task.Dispatched, "", n.Name, task.At(p.now), task.Time{}, ""
	a.Instance = n.Instance

	// The attempt carries its own lost_after. From now on the owner and the node both use this value,
	// whatever the cluster's setting becomes, so the node has killed the attempt before it can be declared
	// lost (G17).
	a.LostAfter = p.settings.cluster.LostAfterWithLease(n.LeaseTTL)
	// The entry of a task with the sticky strategy names the node of its runs, except those for which a request named one. A step can
	// only be of a run that began before the task stopped being a workflow.
	if t.Policy.Sticky() && a.TargetNode == "" && a.Step == "" && p.ownFields(t).Node != n.Name {
		p.changeEntry(t, func(e *entryChanged) { e.own.Node = n.Name })
	}

	p.dispatched = append(p.dispatched, attemptDispatched{
		task: t, run: a.ID, node: n.Name, pool: pool, probeUntil: probeUntil, caughtUp: caughtUp, record: a, action: action, session: n.Revision, waited: waited,
	})
	p.addEffect(&p.dispatched[len(p.dispatched)-1])
}

// startsLate reports whether a run that starts now is of a tick that was caught up, and is later than its grace allows. When
// one is not, the catch-up of its task is over.
func (p *plan) startsLate(t *state.Task, r *task.Run) bool {
	due := r.ScheduledTime
	if !r.DueAt.IsZero() {
		due = r.DueAt
	}

	return (r.Trigger == task.TriggerCatchUp || r.Reason == task.ReasonCatchUp) && p.now.Sub(due.Time) > t.Policy.Grace
}

// decideShadowTick records a tick of a shadow task as skipped. Each tick has its own record (G24),
// because users compare them with what another scheduler did, and a range record contains only the first
// and the last time.
//
// The overlap policy does not apply: it concerns runs, and a shadow task has none.
func (p *plan) decideShadowTick(t *state.Task, tick int64, id, trigger string) {
	p.endSpan(t)
	r := p.newRun(t, tick, id, trigger)
	r.State, r.Reason, r.Attempt, r.EndedAt = task.Skipped, task.ReasonShadow, 0, task.At(p.now)
	p.commit.Record(t.Ref(p.s.records.Shard), r)
	p.counts.addNotRun(task.Skipped, task.ReasonShadow, 1)
}

// skippedSpan is a worker's last record of skipped ticks of a task. The next tick that is skipped for the
// same reason extends it. It is dropped (endSpan) as soon as one of the task's ticks has any other outcome,
// so that a range never includes a tick that ran.
type skippedSpan struct {
	first, last, created int64 // Unix milliseconds
	count, mod           int64 // number of ticks; mod revision of the record
	generation           int32
	reason               string
	trigger, message     string
	due                  task.Time // of the first, if jitter put it off
}

// skipRun records that a tick does not run, or run.Count ticks up to run.Last. If the ticks before it were
// skipped for the same reason by the same version of the task, their record is extended. The extended
// record keeps its key, which begins with the time of its first tick. The caller has made room.
func (p *plan) skipRun(t *state.Task, run task.Run, reason string) {
	now := skippedSpan{
		first: run.ScheduledTime.UnixMilli(), last: run.ScheduledTime.UnixMilli(), created: p.now.UnixMilli(), count: max(run.Count, 1),
		generation: t.Generation, reason: reason, trigger: run.Trigger, message: run.Message, due: run.DueAt,
	}
	if !run.Last.IsZero() {
		now.last = run.Last.UnixMilli()
	}

	// The write of an extended record compares its mod revision. If the record was trimmed or changed, the
	// commit fails and the next plan begins a new record.
	before := p.s.skippedSpans[t]
	extends := before != nil && !p.changeOf(t).spanEnded && before.reason == reason && before.generation == t.Generation && before.last < now.first
	if extends {
		now.first, now.created, now.trigger, now.message, now.due = before.first, before.created, before.trigger, before.message, before.due
		now.count += before.count
	}

	record := p.newRun(t, now.first, task.RunID(state.Instant(now.first), t.UID()), now.trigger)

	// Keep the due time of the first tick. It cannot be computed any more if the task's anchor has moved.
	record.DueAt = now.due
	record.State, record.Reason, record.Message, record.Attempt = task.Skipped, reason, now.message, 0
	record.CreatedAt, record.EndedAt = task.At(state.Instant(now.created)), task.At(p.now)
	if now.count > 1 {
		record.Last, record.Count = task.At(state.Instant(now.last)), now.count
	}

	effect := ticksSkipped{task: t, record: &record, span: &now}
	if extends {
		effect.extends = before.mod
	}

	p.addEffect(effect)
	p.counts.addNotRun(task.Skipped, reason, max(run.Count, 1))
}

// endSpan ends the current range of skipped ticks of t if the commit succeeds, because one of its ticks has another
// outcome.
func (p *plan) endSpan(t *state.Task) {
	if p.s.skippedSpans[t] == nil {
		return
	}

	if c := p.changeOf(t); !c.spanEnded {
		c.spanEnded = true
		p.addEffect(spanEnded{t})
	}
}

// endSpan ends the current range of skipped ticks of t.
func (s *shardState) endSpan(t *state.Task) {
	if len(s.skippedSpans) > 0 {
		delete(s.skippedSpans, t)
	}
}

// missTicks records ticks that will not run, as one range. The caller has made room.
func (p *plan) missTicks(t *state.Task, m tickpolicy.MissedTicks) {
	p.endSpan(t)
	r := p.newRun(t, m.First.UnixMilli(), task.RunID(m.First, t.UID()), task.TriggerSchedule)
	r.State, r.Reason, r.Attempt, r.EndedAt = task.Missed, m.Reason, 0, task.At(p.now)
	if m.Count > 1 {
		r.Last, r.Count = task.At(m.Last), m.Count
	}

	r.Message = p.describeMissed(t, m.Reason)
	p.commit.Record(t.Ref(p.s.records.Shard), r)
	p.counts.addNotRun(task.Missed, m.Reason, m.Count)
}

// decideUncovered decides the ticks up to the watermark of entries that it does not cover, in the order in
// which the entries were created. It returns up to where the watermark's seen may move: at most to seen, and not past
// an entry that has such ticks left. It also reports whether there were any.
//
// The watermark says nothing about a task that was created after its seen. So these ticks are undecided
// although they are before the watermark's time, and would be lost if seen moved past them (G4).
func (p *plan) decideUncovered(seen int64) (newSeen int64, found bool) {
	s, mark := p.s, p.s.records.Watermark.Time.UnixMilli()

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
			found = true

			// If upTo is before the watermark, the entry is done only if its next tick is due after the
			// watermark.
			next := t.After(t.LastDue(upTo))
			done = p.decideLateTicks(t, upTo) && (next == 0 || t.Due(next) > mark)
		}

		if !done {
			seen = min(seen, t.Create-1)
		}
	}

	return seen, found
}

// byCreation orders tasks by the create revision of their entries, then by name.
func byCreation(a, b *state.Task) int {
	return cmp.Or(cmp.Compare(a.Create, b.Create), strings.Compare(a.FullName(), b.FullName()))
}

// catchUp decides the ticks of tasks that are behind, the oldest tick first. It visits only as many tasks as the commit
// has room for; the next commits decide the rest.
func (p *plan) catchUp() {
	now := p.now.UnixMilli()

	// Visit the due tasks in order, and decide those that are behind, until the commit is full.
	p.s.due.InOrder(func(t *state.Task) bool {
		if t.DueAt() > now {
			return false
		}

		return !t.IsBehind(now) || p.decideLateTicks(t, now) || !p.full
	})
}

// anyBehind reports whether a task is behind at now. A negative result is remembered (onTime) until a task
// that is behind enters the heap, because one round has a single now and may take many commits.
func (s *shardState) anyBehind(now int64) bool {
	if s.onTime == now {
		return false
	}
	if s.due.AnyUpTo(now, func(t *state.Task) bool { return t.IsBehind(now) }) {
		return true
	}

	s.onTime = now

	return false
}

// decideLateTicks gives all undecided ticks of a task up to upTo (Unix milliseconds) their outcome by the
// missed policy. It sets the entry's from to the last one that it decides, because the watermark does not
// cover them. It returns false if the commit has no room for all of them. What is decided is then the
// oldest part, and the next commit continues after it (G4).
func (p *plan) decideLateTicks(t *state.Task, upTo int64) bool {
	if p.full {
		return false
	}

	// What a lost history may have decided is missed, whether the task is frozen or not. A freeze skips the ticks that are due later, in
	// the next commit.
	complete := true
	if p.isFrozen(t) {
		if !p.s.isLost(t) {
			return p.skipFrozen(t, upTo)
		}
		if until := p.s.lostUntil().UnixMilli(); until < upTo {
			upTo, complete = until, false
		}
	}

	l := tickpolicy.Lateness{Policy: t.Policy.Missed, Deadline: t.Policy.Deadline, Opened: p.s.opening.At, LostUntil: p.s.lostUntil()}
	c := tickpolicy.DecideLate(l, state.NewMissedSchedule(t), state.Instant(t.Next-1), state.Instant(upTo), p.now)

	// The run of a tick may drop older waiting ticks. Each of these takes a queue delete and a history
	// record.
	drops := t.TicksToDrop(p.now.UnixMilli())
	plans, planSize := p.roomToBegin(t)
	if !p.reserveRoom(t, 3+len(c.Missed)+2*drops+2*plans, 2*roomForTask(t)+(len(c.Missed)+2*drops)*roomForRecord+planSize) {
		return false
	}

	from := c.Last

	// The missed ticks are older than all that run. One record holds all ticks with the same reason.
	for _, m := range c.Missed {
		p.missTicks(t, m)
	}

	for i, tick := range c.Run {
		trigger := task.TriggerSchedule
		if p.now.Sub(state.Instant(t.Due(tick.UnixMilli()))) > t.Policy.Grace {
			trigger = task.TriggerCatchUp
		}

		id, at := task.RunID(tick, t.UID()), tick.UnixMilli()

		// Require room for the last two ticks together. If only one were left for the next commit, it could
		// be within its grace, and would then be decided as a single tick that is on time. The entry follows after all ticks.
		room := 1
		if i == len(c.Run)-2 {
			room = 2
		}

		switch {
		case i > 0 && !p.reserveRoom(t, room+1, room*roomForRecord+roomForTask(t)):
			// The first tick's room is part of the reservation above.
			complete = false
		case t.HasRun(id): // the run exists already; only record its tick as decided (see decideTicks)
			p.endSpan(t)
		case len(c.Run) == 1 && t.Policy.Missed.Policy != task.MissedAll:
			// A single tick is decided by the overlap policy, unless the missed policy requires that every tick
			// runs.
			p.decideTick(t, at, id, trigger)
		case t.Policy.Shadow:
			p.decideShadowTick(t, at, id, trigger)
		case i == 0 && t.Policy.Rule.LateGoesFirst(t.Doing(p.now.UnixMilli())) && p.fireTick(t, at, id, trigger) == "":
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

// skipFrozen decides all undecided ticks of a frozen task up to upTo (Unix milliseconds). All are skipped,
// however late they are, and the missed policy does not apply. It returns false if the commit has no room.
func (p *plan) skipFrozen(t *state.Task, upTo int64) bool {
	if !p.reserveRoom(t, 3, 2*roomForTask(t)) {
		return false
	}

	s := t.Schedule()
	first, last, count, _ := s.Missed(state.Instant(t.Next-1), state.Instant(t.LastDue(upTo)), 1)
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
