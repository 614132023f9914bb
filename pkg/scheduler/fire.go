package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// decideNextTick gives the task's next tick its outcome. false: there is no room.
//
// The commit's watermark says that the tick is decided, with two exceptions: the watermark does not
// cover the task, since the watch has yet to tell of all creations up to its own, or the plan
// leaves the watermark where it is. Then the entry's from has to say so.
func (p *plan) decideNextTick(t *taskstate.Task) bool {
	covered, records := !p.keepWatermark && t.Create <= p.commit.Watermark.Seen, 2*t.TicksToDrop()
	light := covered && t.Policy.MaxRuns == 0 && records == 0 && !t.Policy.Sticky() // one record, and not the entry

	room := light && p.commit.FitsTick(roomForTask(t)) || !light && p.commit.Fits(2+records, 2*roomForTask(t)+records*roomForRecord)
	if !p.admitChange(t, room) {
		return false
	}

	id := task.RunID(taskstate.Instant(t.Next), t.UID())
	if t.Holds(id) {
		// The run is on record although its tick is not decided: a commit of ours that was rejected has found it in an inbox
		// (see takeConflictingAttempt), or a queue record that cannot be read has its id.
		p.s.endSpan(t)
		p.setEntryFrom(t, t.Next) // there is nothing else to write
		return true
	}

	if covered {
		p.commit.GuardEntry(t.FullName(), t.Mod)
	} else {
		p.setEntryFrom(t, t.Next)
	}

	p.decideTick(t, t.Next, id, task.TriggerSchedule)

	return true
}

// decideTick gives a tick that is due now its outcome, by the policies of overlap and
// of the start deadline.
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

	d, rule, reason := t.Doing(), t.Policy.Rule, ""
	fate := rule.DecideTick(d)
	if fate == tickpolicy.Fire {
		if reason = p.fireTick(t, tick, id, trigger); reason == "" {
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
	}
}

// newTickRun is the run that a tick becomes.
func (p *plan) newTickRun(t *taskstate.Task, tick int64, id, trigger string) task.Run {
	run := p.newRun(t, tick, id, trigger)
	run.StartBefore = t.StartBefore(tick)
	return run
}

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

func (p *plan) enqueueRun(t *taskstate.Task, run task.Run, reason string) {
	p.s.endSpan(t)
	run.State, run.Reason = task.Queued, reason
	p.addEffect(runEnqueued{t, &taskstate.Waiting{Waiting: task.Waiting{Run: run}}})
	p.countRun(t, run.ScheduledTime.UnixMilli())
	p.counts.queued++
}

// fireTick has a node run a tick. If that cannot be, it says why the tick waits.
func (p *plan) fireTick(t *taskstate.Task, tick int64, id, trigger string) (reason string) {
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

// dispatchRun makes the run in p.attempt an attempt for the node that was picked for
// it.
func (p *plan) dispatchRun(t *taskstate.Task, n *task.Node, late time.Duration) {
	p.reserveSlot(n)
	p.changeOf(t).started = true

	a := &p.attempt
	if a.Owner == "" { // a person asked for it
		a.Owner = p.s.node
	}

	a.State, a.Reason, a.Node, a.DispatchedAt, a.NotBefore = task.Dispatched, "", n.Name, task.At(p.now), task.Time{}
	a.Instance, a.Generation = n.Instance, int64(t.Generation)
	a.Timeout, a.KillGrace, a.Retry = t.Policy.Timeout, t.Policy.KillGrace, t.Policy.Retry
	a.KillSignal, a.Success = t.Policy.KillSignal, t.Policy.Success
	a.Output = t.Policy.Output
	// The owner and the node both go by this value from now on, whatever becomes of the
	// cluster's setting: the node has killed the attempt before it can be declared lost.
	a.LostAfter = p.cluster.LostAfterWithLease(n.LeaseTTL)
	p.claims = append(p.claims, claim{t, a.ID, n.Name, late})
	p.stickToNode(t, n)
}

// decideLateTicks gives all of a task's undecided ticks up to an instant their outcome,
// by the missed policy, and sets the entry's from behind them: the watermark
// does not speak for them. false if some are left for the next commit; what is
// decided is the oldest then.
func (p *plan) decideLateTicks(t *taskstate.Task, upTo int64) bool {
	if p.full {
		return false
	}
	if p.isFrozen(t) {
		return p.skipFrozen(t, upTo)
	}

	l := tickpolicy.Lateness{Policy: t.Policy.Missed, Deadline: t.Policy.Deadline, Opened: p.s.opening.at}
	c := tickpolicy.DecideLate(l, taskstate.NewMissedSchedule(t), taskstate.Instant(t.Next-1), taskstate.Instant(upTo), p.now)
	drops := t.TicksToDrop()
	if !p.reserveRoom(t, 3+len(c.Missed)+2*drops, 2*roomForTask(t)+(len(c.Missed)+2*drops)*roomForRecord) {
		return false
	}

	from := c.Last

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
		// The last two go together: one that is left alone may be on time, and
		// would then be decided as if it had not come with the others.
		room := 1
		if i == len(c.Run)-2 {
			room = 2
		}

		switch {
		case i > 0 && !p.reserveRoom(t, room, room*roomForRecord):
			complete = false
		case t.Holds(id):
		case len(c.Run) == 1 && t.Policy.Missed.Policy != task.MissedAll:
			p.decideTick(t, at, id, trigger)
		case t.Policy.Shadow:
			p.decideShadowTick(t, at, id, trigger)
		case i == 0 && p.goesFirst(t) && p.fireTick(t, at, id, trigger) == "":
		default: // whoever wants all of them wants the last one of a piece too
			p.enqueueRun(t, p.newTickRun(t, at, id, trigger), task.ReasonCatchUp)
		}

		if !complete {
			break
		}

		from = tick

		if p.usesRunBudget(t) {
			break
		}
	}

	p.setEntryFrom(t, from.UnixMilli())
	p.lookAfterCommit(t)

	return complete
}

// setEntryFrom sets an entry's from: its ticks up to there are decided.
func (p *plan) setEntryFrom(t *taskstate.Task, from int64) {
	p.changeEntry(t, func(c *entryChange) { c.from = from })
}

// goesFirst reports whether the first of several late ticks may start at once.
func (p *plan) goesFirst(t *taskstate.Task) bool {
	d := t.Doing()
	return t.Policy.Rule.Free(d) && (t.Policy.Rule.Most == 0 || d.Ticks == 0)
}

// serveQueue dispatches what waits and may start now, and ends what is not to start.
func (p *plan) serveQueue(t *taskstate.Task) {
	if t.BeingDeleted() {
		return
	}

	now := p.now.UnixMilli()
	begun := t.DispatchedWaiting()

	// Of several that are begun the first goes on; else all would wait for each other. Runs that
	// have their parts go first, since their parts are active: they are more than may be active
	// only if the limit was lowered. Both counts are of those before q.
	parents, others := 0, t.Parents()
	replacer := t.Replacer(func(q *taskstate.Waiting) bool { return q.Expired(now) })

	for _, q := range t.Queue() {
		if !t.Present || !t.Bad && q.UID != t.UID() || t.Holds(q.ID) {
			if !p.reserveRoom(t, 1, roomForRecord) {
				return
			}
			p.dequeueRun(t, q)
			continue
		}

		if t.Bad {
			return // what it would run cannot be read
		}

		if task.IsPart(q.ID) {
			if !p.retryPart(t, q) {
				return
			}
			continue
		}

		if q.UnderWay() {
			c := tickpolicy.Candidate{Manual: q.Trigger == task.TriggerManual, Begun: true}
			r := parentRun{plan: p, t: t, q: q}
			if !r.decideRun(t.Policy.Rule.DecideWaitingRun(c, replacer != nil, t.Attempts(), parents)) {
				return
			}

			parents++
			continue
		}

		if p.isFrozen(t) { // looked at again when that has changed
			what := tickpolicy.TurnWait
			if q.Expired(now) {
				what = tickpolicy.TurnExpire
			}

			if !p.applyTurn(t, q, what) {
				return
			}

			continue
		}

		if p.isStarting(t) {
			p.lookAfterCommit(t) // at most one in a revision: the others in the next
			return
		}

		c := tickpolicy.Candidate{Manual: q.Trigger == task.TriggerManual, Begun: q.DispatchedBefore(), Expired: q.Expired(now), Replacer: q == replacer, Newer: replacer != nil && q.ID > replacer.ID}
		ahead := begun
		if c.Begun {
			ahead = others
			others++
		}

		if !p.applyTurn(t, q, t.Policy.Rule.DecideWaitingRun(c, replacer != nil, t.Attempts(), ahead)) {
			return
		}
	}
}

// applyTurn does with a waiting run what its turn is. false: there is no room.
func (p *plan) applyTurn(t *taskstate.Task, q *taskstate.Waiting, what tickpolicy.Turn) bool {
	switch what {
	case tickpolicy.TurnExpire:
		return p.expireQueued(t, q)
	case tickpolicy.TurnReplaced:
		return p.endQueued(t, q, task.Cancelled, task.ReasonReplaced)
	}

	if !q.StartBefore.IsZero() && q.Attempt <= 1 {
		p.s.wakeAt(q.StartBefore.Truncate(deadlineStep).Add(deadlineStep))
	}

	if at := t.NotBefore(q); at.After(p.now) {
		p.s.wakeAt(at)
		return true
	}

	return what != tickpolicy.TurnStart || p.startWaiting(t, q)
}

// deadlineStep is how far apart the looks at runs are whose start deadlines pass:
// what is past its own starts no more, it is only the record of it that can wait.
const deadlineStep = 100 * time.Millisecond

// startWaiting moves a run from the queue to an inbox, or says why it waits on. false:
// there is no room.
func (p *plan) startWaiting(t *taskstate.Task, q *taskstate.Waiting) bool {
	if q.Paced() && !p.takeToken(t, p.clock) {
		return q.Reason == task.ReasonNoNode || p.waitsFor(t, q, task.ReasonCatchUp)
	}
	if q.Fan != nil || t.Policy.Target.FansOut() && !q.DispatchedBefore() {
		return p.startParent(t, q)
	}

	n, ok := p.pickForAttempt(t, q)
	if ok && p.reserveRoom(t, 2+t.EntryRecords(), (1+t.EntryRecords())*roomForTask(t)) {
		p.attempt.Run, p.attempt.Env = q.Run, q.Env
		p.dispatchRun(t, n, -1)
		p.commit.Dispatch(&p.attempt, t.Action(), n.Revision)
		p.commit.GuardEntry(t.FullName(), t.Mod)
		p.dequeueRun(t, q)

		return true
	}

	if q.Paced() {
		p.returnToken()
	}

	if ok {
		p.s.placement.Release(n.Name)
		return false
	}

	return p.waitsFor(t, q, task.ReasonNoNode)
}

// waitsFor says why a run waits, if its record does not say so, nor what has been.
// false: there is no room.
func (p *plan) waitsFor(t *taskstate.Task, q *taskstate.Waiting, reason string) bool {
	if q.Reason == reason || q.DispatchedBefore() {
		return true
	}
	if !p.reserveRoom(t, 1, roomForTask(t)) {
		return false
	}

	w := q.Waiting
	w.Reason = reason
	p.addEffect(runRequeued{t, q, &w})

	return true
}

func (p *plan) dequeueRun(t *taskstate.Task, q *taskstate.Waiting) {
	p.addEffect(runDequeued{t, q})
}

// endAttempts ends those that are lost, and asks those to end that are unwanted.
func (p *plan) endAttempts(t *taskstate.Task) {
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

// mayAskCancel reports whether an attempt that was read to be asked to end still has to.
// That is not so while its task is frozen, since what would replace it may not start, nor
// if its task does not replace any more: a conflict tells of such an edit within the round.
func (p *plan) mayAskCancel(t *taskstate.Task, a *taskstate.Attempt) bool {
	if t.Orphan(a.Run) || t.GoesWithParent(a.Run) {
		return true
	}

	return !p.isFrozen(t) && t.Replaces(p.now.UnixMilli())
}

func (p *plan) askCancel(t *taskstate.Task, a *taskstate.Attempt) {
	reason, who := task.ReasonDeleted, ""

	switch {
	case t.Orphan(a.Run):
	case t.GoesWithParent(a.Run):
		reason, who = t.EndsWithParent(a.Run)
	default:
		reason = task.ReasonReplaced
		p.commit.GuardEntry(t.FullName(), t.Mod) // whose policy it is
	}

	p.addEffect(cancelAsked{a, who, reason})
}

func (p *plan) loseAttempt(t *taskstate.Task, a *taskstate.Attempt) {
	end := a.Watch.Held.Unpaused()
	end.State, end.Reason, end.EndedAt = task.Lost, task.ReasonNodeLost, task.At(p.now)
	var next *taskstate.Waiting

	switch {
	case a.Watch.Unreadable != nil: // nor does anybody know of a next one
		end.UID, end.Owner = t.UID(), p.s.node
		end.Message = "the record of its attempt could not be read: " + a.Watch.Unreadable.Error()
	case !t.Orphan(a.Run) && !t.GoesWithParent(a.Run):
		if retry := p.s.nextAttempt(a.Watch.Held.Assigned, end, p.now, p.s.random.Float64()); retry != nil {
			next = &taskstate.Waiting{Waiting: *retry}
		}
	}

	p.addEffect(runLost{t, a, &end, next})
	p.counts.lost++
}
