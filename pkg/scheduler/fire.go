package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// decideNextTick gives the task's next tick its outcome. It returns false if the commit has no room, and
// then has changed nothing.
//
// Normally the commit's watermark records that the tick is decided. There are two exceptions: the watermark
// does not cover the task yet, because the watch has not delivered all creations up to the task's own, or
// the plan keeps the time of the watermark. Then the entry's from must record it. In both cases the commit
// compares the entry, so an edit that the worker has not seen makes the commit fail (G7).
func (p *plan) decideNextTick(t *taskstate.Task) bool {
	// records are the history and queue records of waiting ticks that this one may drop.
	covered, records := !p.keepWatermark && t.Create <= p.commit.Watermark.Seen, 2*t.TicksToDrop(p.now.UnixMilli())

	// A late tick may have its turn before this one.
	late := t.LateTurn(p.now.UnixMilli())
	if late != nil {
		records += 2 + t.EntryRecords()
	}

	// A light tick is the usual case: it writes one record and does not write the entry. It needs less room
	// than Fits reserves, so more ticks fit into a commit.
	light := covered && t.Policy.MaxRuns == 0 && records == 0 && !t.Policy.Sticky()

	if !p.namespaceOf(t).allows(t) { // its end takes a history record and a dead letter
		light = false
		records++
	}

	room := light && p.commit.FitsTick(roomForTask(t)) || !light && p.commit.Fits(2+records, 2*roomForTask(t)+records*roomForRecord)
	if !p.admitChange(t, room) {
		return false
	}

	id := task.RunID(taskstate.Instant(t.Next), t.UID())
	if t.HasRun(id) {
		// The run already exists although its tick is undecided. Either this worker's rejected commit found
		// it in an inbox (see takeConflictingAttempt), or somebody else has written a queue record of it.
		// Only record the tick as decided: another record of the run would conflict with the existing one
		// (G3).
		p.s.endSpan(t)
		p.setEntryFrom(t, t.Next)
		return true
	}

	if covered {
		p.commit.GuardEntry(t.FullName(), t.Mod)
	} else {
		p.setEntryFrom(t, t.Next)
	}

	if late != nil && !p.isFrozen(t) {
		p.startWaiting(t, late)
	}

	p.decideTick(t, t.Next, id, task.TriggerSchedule)

	return true
}

// decideTick gives a tick that is due now its outcome: skipped if its task is frozen, missed if its start
// deadline has passed, and otherwise what the overlap policy says. A tick that may fire but gets no node or
// no catch-up token waits in the queue. The caller has made room in the commit.
func (p *plan) decideTick(t *taskstate.Task, tick int64, id, trigger string) {
	if p.isFrozen(t) {
		p.skipRun(t, p.newRun(t, tick, id, trigger), task.ReasonFrozen)
		return
	}

	if deadline := t.StartBefore(tick); !deadline.IsZero() && p.now.After(deadline.Time) {
		p.missTicks(t, tickpolicy.MissedTicks{First: taskstate.Instant(tick), Last: taskstate.Instant(tick), Count: 1, Reason: task.ReasonDeadline})
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

// newTickRun returns the run that a tick becomes, with its start deadline.
func (p *plan) newTickRun(t *taskstate.Task, tick int64, id, trigger string) task.Run {
	run := p.newRun(t, tick, id, trigger)
	run.StartBefore = t.StartBefore(tick)
	return run
}

// newRun returns the record of a tick, without a state. The trigger says why the run exists.
func (p *plan) newRun(t *taskstate.Task, tick int64, id, trigger string) task.Run {
	ref := t.Ref(p.s.Shard)
	r := task.Run{
		ID: id, UID: t.UID(), Namespace: ref.Namespace, Task: ref.Name, Shard: ref.Shard,
		ScheduledTime: task.At(taskstate.Instant(tick)), Trigger: trigger, Owner: p.s.node, Attempt: 1, CreatedAt: task.At(p.now),
	}
	if due := t.Due(tick); due != tick {
		r.DueAt = task.At(taskstate.Instant(due))
	}

	return r
}

// fireTick starts the run of a tick: it puts an attempt into the inbox of a node, or begins a run with
// parts. If the task's namespace does not allow the task any more, the run ends at once. It returns "" if it
// has done one of these. Otherwise it returns why the tick must wait, and holds no slot and no token. A run
// of a late tick (trigger catch_up) needs a catch-up token.
func (p *plan) fireTick(t *taskstate.Task, tick int64, id, trigger string) (reason string) {
	if !p.namespaceOf(t).allows(t) {
		p.failTick(t, tick, id, trigger)
		return ""
	}

	// A late tick first needs a token. It is given back if no node accepts the run.
	paced := trigger == task.TriggerCatchUp
	if paced && !p.takeToken(t, p.clock) {
		return task.ReasonCatchUp
	}

	if t.Policy.Target.FansOut() {
		f, reason := p.planFanOut(t)
		if reason == "" {
			p.fanOut(t, p.newTickRun(t, tick, id, trigger), f)
		} else if paced {
			p.returnToken()
		}

		return reason
	}

	// The claim depends on the node's session, which the commit compares. So no attempt is assigned to an
	// instance that is gone.
	n, ok := p.pickNode(t)
	if !ok {
		if paced {
			p.returnToken()
		}
		return task.ReasonNoNode
	}

	p.s.endSpan(t)
	p.attempt.Run, p.attempt.Env = p.newTickRun(t, tick, id, trigger), nil
	p.dispatchRun(t, n, p.now.Sub(taskstate.Instant(t.Due(tick))))
	p.commit.Claim(&p.attempt, t.Action(), n.Revision)
	p.countRun(t, tick)
	p.counts.run++

	return ""
}

// dispatchRun makes the run in p.attempt an attempt on node n, for which a slot has been counted. The
// caller then adds the attempt to the commit with Claim or Dispatch. late is how late its tick is, or
// negative for a run that has waited. From now on the plan starts no other run of the task, so that their
// fencing tokens differ (G11).
func (p *plan) dispatchRun(t *taskstate.Task, n *task.Node, late time.Duration) {
	p.reserveSlot(n, t.Pool())
	p.changeOf(t).started = true

	a := &p.attempt
	probeUntil := int64(0)
	if a.WaitsForTarget() {
		probeUntil = p.now.Add(task.MaxUnsentBackoff).UnixMilli()
	}

	if a.Owner == "" { // a manual run: the API does not set an owner
		a.Owner = p.s.node
	}

	a.State, a.Reason, a.Node, a.DispatchedAt, a.NotBefore, a.NotBeforeBy = task.Dispatched, "", n.Name, task.At(p.now), task.Time{}, ""
	a.Instance, a.Generation = n.Instance, int64(t.Generation)
	a.Timeout, a.KillGrace, a.Retry = t.Policy.Timeout, t.Policy.KillGrace, t.Policy.Retry
	a.KillSignal, a.Success = t.Policy.KillSignal, t.Policy.Success
	a.Output = t.Policy.Output

	// The attempt carries its own lost_after. From now on the owner and the node both use this value,
	// whatever the cluster's setting becomes, so the node has killed the attempt before it can be declared
	// lost (G17).
	a.LostAfter = p.cluster.LostAfterWithLease(n.LeaseTTL)
	p.claims = append(p.claims, claim{t, a.ID, n.Name, late, probeUntil})

	// The entry of a task with the sticky strategy names the node of its runs, except those for which a request named one.
	if t.Policy.Sticky() && a.TargetNode == "" && p.ownFields(t).Node != n.Name {
		p.changeEntry(t, func(c *entryChange) { c.own.Node = n.Name })
	}
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

// setEntryFrom writes the task's entry with the given from (Unix milliseconds): its ticks up to that time
// are decided.
func (p *plan) setEntryFrom(t *taskstate.Task, from int64) {
	p.changeEntry(t, func(c *entryChange) { c.from = from })
}

// goesFirst reports whether the first of several late ticks may start at once: no run is active, and with a
// policy that limits active runs, no tick waits.
func (p *plan) goesFirst(t *taskstate.Task) bool {
	d := t.Doing(p.now.UnixMilli())
	return t.Policy.Rule.Free(d) && (t.Policy.Rule.Most == 0 || d.Ticks == 0)
}
