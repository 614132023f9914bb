package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// tick gives the task's next tick its outcome. false: there is no room.
//
// The commit's watermark says that the tick is decided, with two exceptions: the watermark does not
// cover the task, since the watch has yet to tell of all creations up to its own, or the plan
// leaves the watermark where it is. Then the entry's from has to say so.
func (p *plan) tick(t *taskState) bool {
	covered, records := !p.keepWatermark && t.create <= p.commit.Watermark.Seen, 2*t.ticksToDrop()
	light := covered && t.how.MaxRuns == 0 && records == 0 && !t.how.Sticky() // one record, and not the entry
	room := light && p.commit.FitsTick(t.bytes()) || !light && p.commit.Fits(2+records, 2*t.bytes()+records*roomForRecord)
	if !p.admit(t, room) {
		return false
	}
	id := task.RunID(instant(t.next), t.uidText())
	if t.holds(id) {
		// The run is on record although its tick is not decided: a commit of ours that was rejected has found it in an inbox
		// (see takeConflictingAttempt), or a queue record that cannot be read has its id.
		p.s.endSpan(t)
		p.move(t, t.next) // there is nothing else to write
		return true
	}
	if covered {
		p.commit.GuardEntry(t.fullName(), t.mod)
	} else {
		p.move(t, t.next)
	}
	p.decide(t, t.next, id, task.TriggerSchedule)
	return true
}

// decide gives a tick that is due now its outcome, by the policies of overlap and
// of the start deadline.
func (p *plan) decide(t *taskState, tick int64, id, trigger string) {
	if p.isFrozen(t) {
		p.skip(t, p.newRun(t, tick, id, trigger), task.ReasonFrozen)
		return
	}
	if deadline := t.startBefore(tick); !deadline.IsZero() && p.now.After(deadline.Time) {
		p.miss(t, tickpolicy.MissedTicks{First: instant(tick), Last: instant(tick), Count: 1, Reason: task.ReasonDeadline})
		return
	}
	if t.how.Shadow {
		p.shadow(t, tick, id, trigger)
		return
	}
	d, rule, reason := t.doing(), t.how.Rule, ""
	fate := rule.DecideTick(d)
	if fate == tickpolicy.Fire {
		if reason = p.fire(t, tick, id, trigger); reason == "" {
			return
		}
		fate = rule.DecideWaitingTick(d)
	} else if reason = rule.Reason(d); reason == "" {
		reason = t.newestReason()
	}
	switch fate {
	case tickpolicy.Skip:
		p.skip(t, p.newRun(t, tick, id, trigger), task.ReasonOverlap)
	case tickpolicy.QueueFull:
		p.skip(t, p.newRun(t, tick, id, trigger), task.ReasonQueueFull)
	default:
		if fate == tickpolicy.WaitDropOldest {
			p.drop(t, rule.TicksToDrop(d))
		}
		p.enqueue(t, p.newTickRun(t, tick, id, trigger), reason)
	}
}

// ticksToDrop is how many waiting ticks of t may be dropped for one that comes.
func (t *taskState) ticksToDrop() int {
	if t.activity == nil || !t.how.Rule.Oldest {
		return 0
	}
	return t.how.Rule.TicksToDrop(t.doing())
}

// startBefore is the start deadline of a tick; zero: it has none.
func (t *taskState) startBefore(tick int64) task.Time {
	if t.how.Deadline == 0 {
		return task.Time{}
	}
	return task.At(instant(t.due(tick)).Add(t.how.Deadline))
}

// newTickRun is the run that a tick becomes.
func (p *plan) newTickRun(t *taskState, tick int64, id, trigger string) task.Run {
	run := p.newRun(t, tick, id, trigger)
	run.StartBefore = t.startBefore(tick)
	return run
}

func (p *plan) newRun(t *taskState, tick int64, id, trigger string) task.Run {
	ref := t.ref(p.s.shard)
	r := task.Run{
		ID: id, UID: t.uidText(), Namespace: ref.Namespace, Task: ref.Name, Shard: ref.Shard,
		ScheduledTime: task.At(instant(tick)), Trigger: trigger, Owner: p.s.node, Attempt: 1, CreatedAt: task.At(p.now),
	}
	if due := t.due(tick); due != tick {
		r.DueAt = task.At(instant(due))
	}
	return r
}

func (p *plan) enqueue(t *taskState, run task.Run, reason string) {
	p.s.endSpan(t)
	run.State, run.Reason = task.Queued, reason
	p.add(runEnqueued{t, &waiting{Waiting: task.Waiting{Run: run}}})
	p.ran(t, run.ScheduledTime.UnixMilli())
	p.counts.queued++
}

// fire has a node run a tick. If that cannot be, it says why the tick waits.
func (p *plan) fire(t *taskState, tick int64, id, trigger string) (reason string) {
	paced := trigger == task.TriggerCatchUp
	if paced && !p.takeToken(t, p.clock) {
		return task.ReasonCatchUp
	}
	if t.how.Target.FansOut() {
		f, reason := p.fan(t)
		if reason == "" {
			p.fanOut(t, p.newTickRun(t, tick, id, trigger), f)
		} else if paced {
			p.returnToken()
		}
		return reason
	}
	n, ok := p.pick(t)
	if !ok {
		if paced {
			p.returnToken()
		}
		return task.ReasonNoNode
	}
	p.s.endSpan(t)
	p.attempt.Run, p.attempt.Env = p.newTickRun(t, tick, id, trigger), nil
	p.dispatch(t, n, p.now.Sub(instant(t.due(tick))))
	p.commit.Claim(&p.attempt, t.action(), n.Revision)
	p.ran(t, tick)
	p.counts.run++
	return ""
}

// dispatch makes the run in p.attempt an attempt for the node that was picked for
// it.
func (p *plan) dispatch(t *taskState, n *task.Node, late time.Duration) {
	p.reserveSlot(n)
	p.changeOf(t).started = true
	a := &p.attempt
	if a.Owner == "" { // a person asked for it
		a.Owner = p.s.node
	}
	a.State, a.Reason, a.Node, a.DispatchedAt, a.NotBefore = task.Dispatched, "", n.Name, task.At(p.now), task.Time{}
	a.Instance, a.Generation = n.Instance, int64(t.generation)
	a.Timeout, a.KillGrace, a.Retry = t.how.Timeout, t.how.KillGrace, t.how.Retry
	a.KillSignal, a.Success = t.how.KillSignal, t.how.Success
	a.Output = t.how.Output
	// The owner and the node both go by this value from now on, whatever becomes of the
	// cluster's setting: the node has killed the attempt before it can be declared lost.
	a.LostAfter = p.cluster.LostAfterWithLease(n.LeaseTTL)
	p.claims = append(p.claims, claim{t, a.ID, n.Name, late})
	p.stick(t, n)
}

// decideLateTicks gives all of a task's undecided ticks up to an instant their outcome,
// by the missed policy, and sets the entry's from behind them: the watermark
// does not speak for them. false if some are left for the next commit; what is
// decided is the oldest then.
func (p *plan) decideLateTicks(t *taskState, upTo int64) bool {
	if p.full {
		return false
	}
	if p.isFrozen(t) {
		return p.skipFrozen(t, upTo)
	}
	s := t.schedule()
	l := tickpolicy.Lateness{Policy: t.how.Missed, Deadline: t.how.Deadline, Opened: p.s.opening.at}
	c := tickpolicy.DecideLate(l, ticking{&s, t}, instant(t.next-1), instant(upTo), p.now)
	drops := t.ticksToDrop()
	if !p.fits(t, 3+len(c.Missed)+2*drops, 2*t.bytes()+(len(c.Missed)+2*drops)*roomForRecord) {
		return false
	}
	from := c.Last
	for _, m := range c.Missed {
		p.miss(t, m)
	}
	complete := true
	for i, tick := range c.Run {
		trigger := task.TriggerSchedule
		if p.now.Sub(instant(t.due(tick.UnixMilli()))) > t.how.Grace {
			trigger = task.TriggerCatchUp
		}
		id, at := task.RunID(tick, t.uidText()), tick.UnixMilli()
		// The last two go together: one that is left alone may be on time, and
		// would then be decided as if it had not come with the others.
		room := 1
		if i == len(c.Run)-2 {
			room = 2
		}
		switch {
		case i > 0 && !p.fits(t, room, room*roomForRecord):
			complete = false
		case t.holds(id):
		case len(c.Run) == 1 && t.how.Missed.Policy != task.MissedAll:
			p.decide(t, at, id, trigger)
		case t.how.Shadow:
			p.shadow(t, at, id, trigger)
		case i == 0 && p.goesFirst(t) && p.fire(t, at, id, trigger) == "":
		default: // whoever wants all of them wants the last one of a piece too
			p.enqueue(t, p.newTickRun(t, at, id, trigger), task.ReasonCatchUp)
		}
		if !complete {
			break
		}
		from = tick
		if p.spends(t) {
			break
		}
	}
	p.move(t, from.UnixMilli())
	p.lookAfterCommit(t)
	return complete
}

// move sets an entry's from: its ticks up to there are decided.
func (p *plan) move(t *taskState, from int64) {
	p.changeEntry(t, func(c *entryChange) { c.from = from })
}

// goesFirst reports whether the first of several late ticks may start at once.
func (p *plan) goesFirst(t *taskState) bool {
	d := t.doing()
	return t.how.Rule.Free(d) && (t.how.Rule.Most == 0 || d.Ticks == 0)
}

// queue dispatches what waits and may start now, and ends what is not to start.
func (p *plan) queue(t *taskState) {
	if t.beingDeleted() {
		return
	}
	now := p.now.UnixMilli()
	begun := t.dispatchedWaiting()

	// Of several that are begun the first goes on; else all would wait for each other. Runs that
	// have their parts go first, since their parts are active: they are more than may be active
	// only if the limit was lowered. Both counts are of those before q.
	parents, others := 0, t.parents()
	replacer := t.replacer(func(q *waiting) bool { return q.expired(now) })
	for _, q := range t.queue() {
		if !t.present || !t.bad && q.UID != t.uidText() || t.holds(q.ID) {
			if !p.fits(t, 1, roomForRecord) {
				return
			}
			p.dequeue(t, q)
			continue
		}
		if t.bad {
			return // what it would run cannot be read
		}
		if task.IsPart(q.ID) {
			if !p.part(t, q) {
				return
			}
			continue
		}
		if q.UnderWay() {
			c := tickpolicy.Candidate{Manual: q.Trigger == task.TriggerManual, Begun: true}
			r := parentRun{plan: p, t: t, q: q}
			if !r.decideRun(t.how.Rule.DecideWaitingRun(c, replacer != nil, t.attempts(), parents)) {
				return
			}
			parents++
			continue
		}
		if p.isFrozen(t) { // looked at again when that has changed
			what := tickpolicy.TurnWait
			if q.expired(now) {
				what = tickpolicy.TurnExpire
			}
			if !p.take(t, q, what) {
				return
			}
			continue
		}
		if p.starts(t) {
			p.lookAfterCommit(t) // at most one in a revision: the others in the next
			return
		}
		c := tickpolicy.Candidate{Manual: q.Trigger == task.TriggerManual, Begun: q.dispatchedBefore(), Expired: q.expired(now), Replacer: q == replacer, Newer: replacer != nil && q.ID > replacer.ID}
		ahead := begun
		if c.Begun {
			ahead = others
			others++
		}
		if !p.take(t, q, t.how.Rule.DecideWaitingRun(c, replacer != nil, t.attempts(), ahead)) {
			return
		}
	}
}

// take does with a waiting run what its turn is. false: there is no room.
func (p *plan) take(t *taskState, q *waiting, what tickpolicy.Turn) bool {
	switch what {
	case tickpolicy.TurnExpire:
		return p.expire(t, q)
	case tickpolicy.TurnReplaced:
		return p.end(t, q, task.Cancelled, task.ReasonReplaced)
	}
	if !q.StartBefore.IsZero() && q.Attempt <= 1 {
		p.s.wakeAt(q.StartBefore.Truncate(deadlineStep).Add(deadlineStep))
	}
	if at := t.notBefore(q); at.After(p.now) {
		p.s.wakeAt(at)
		return true
	}
	return what != tickpolicy.TurnStart || p.start(t, q)
}

// deadlineStep is how far apart the looks at runs are whose start deadlines pass:
// what is past its own starts no more, it is only the record of it that can wait.
const deadlineStep = 100 * time.Millisecond

// start moves a run from the queue to an inbox, or says why it waits on. false:
// there is no room.
func (p *plan) start(t *taskState, q *waiting) bool {
	if q.paced() && !p.takeToken(t, p.clock) {
		return q.Reason == task.ReasonNoNode || p.waitsFor(t, q, task.ReasonCatchUp)
	}
	if q.Fan != nil || t.how.Target.FansOut() && !q.dispatchedBefore() {
		return p.startParent(t, q)
	}
	n, ok := p.pickForAttempt(t, q)
	if ok && p.fits(t, 2+t.sticks(), (1+t.sticks())*t.bytes()) {
		p.attempt.Run, p.attempt.Env = q.Run, q.Env
		p.dispatch(t, n, -1)
		p.commit.Dispatch(&p.attempt, t.action(), n.Revision)
		p.commit.GuardEntry(t.fullName(), t.mod)
		p.dequeue(t, q)
		return true
	}
	if q.paced() {
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
func (p *plan) waitsFor(t *taskState, q *waiting, reason string) bool {
	if q.Reason == reason || q.dispatchedBefore() {
		return true
	}
	if !p.fits(t, 1, t.bytes()) {
		return false
	}
	w := q.Waiting
	w.Reason = reason
	p.add(runRequeued{t, q, &w})
	return true
}

func (p *plan) dequeue(t *taskState, q *waiting) {
	p.add(runDequeued{t, q})
}

// attempts ends those that are lost, and asks those to end that are unwanted.
func (p *plan) attempts(t *taskState) {
	for _, a := range t.active() {
		switch {
		case a.watch == nil:
		case a.watch.lost:
			if !p.fits(t, 3, 3*roomForRecord) {
				return
			}
			p.lose(t, a)
		case a.watch.ask && p.mayAskCancel(t, a):
			if !p.fits(t, 2, 2*roomForRecord) {
				return
			}
			p.askCancel(t, a)
		}
	}
}

// mayAskCancel reports whether an attempt that was read to be asked to end still has to.
// That is not so while its task is frozen, since what would replace it may not start, nor
// if its task does not replace any more: a conflict tells of such an edit within the round.
func (p *plan) mayAskCancel(t *taskState, a *attempt) bool {
	if t.orphan(a.run) || t.goesWithParent(a.run) {
		return true
	}

	return !p.isFrozen(t) && t.replaces(p.now.UnixMilli())
}

func (p *plan) askCancel(t *taskState, a *attempt) {
	reason, who := task.ReasonDeleted, ""
	switch {
	case t.orphan(a.run):
	case t.goesWithParent(a.run):
		reason, who = t.endsWithParent(a.run)
	default:
		reason = task.ReasonReplaced
		p.commit.GuardEntry(t.fullName(), t.mod) // whose policy it is
	}
	p.add(cancelAsked{a, who, reason})
}

func (p *plan) lose(t *taskState, a *attempt) {
	end := a.watch.held.Unpaused()
	end.State, end.Reason, end.EndedAt = task.Lost, task.ReasonNodeLost, task.At(p.now)
	var next *waiting
	switch {
	case a.watch.unreadable != nil: // nor does anybody know of a next one
		end.UID, end.Owner = t.uidText(), p.s.node
		end.Message = "the record of its attempt could not be read: " + a.watch.unreadable.Error()
	case !t.orphan(a.run) && !t.goesWithParent(a.run):
		if retry := p.s.nextAttempt(a.watch.held.Assigned, end, p.now, p.s.random.Float64()); retry != nil {
			next = &waiting{Waiting: *retry}
		}
	}
	p.add(runLost{t, a, &end, next})
	p.counts.lost++
}
