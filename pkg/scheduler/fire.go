package scheduler

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxWaiting is how many runs of one task may wait; a tick that comes on top of
// them is skipped.
const maxWaiting = 100

// tick gives the task's next tick its outcome. false: there is no room.
//
// The commit's watermark speaks for the task, unless it is known before the watch
// has told of it: then the entry has to say that the tick is decided.
func (p *plan) tick(t *taskState) bool {
	covered := t.create <= p.commit.Watermark.Seen
	light := covered && t.how.maxRuns == 0 // it does not write the entry
	room := light && p.commit.FitsTick(t.bytes()) || !light && p.commit.Fits(2, 2*t.bytes())
	if !p.admit(t, room) {
		return false
	}
	id := task.RunID(instant(t.next), t.uidText())
	if t.holds(id) {
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

// decide runs a tick or skips it, by the overlap policy.
func (p *plan) decide(t *taskState, tick int64, id, trigger string) {
	if overlap(t.how.overlap, t.busy()) == skipped {
		p.skip(t, p.newRun(t, tick, id, trigger), task.ReasonOverlap)
		return
	}
	if p.fire(t, tick, id, trigger) {
		return
	}
	if len(t.queue()) >= maxWaiting {
		p.skip(t, p.newRun(t, tick, id, trigger), task.ReasonQueueFull)
		return
	}
	p.enqueue(t, p.newRun(t, tick, id, trigger), task.ReasonNoNode)
}

func (p *plan) newRun(t *taskState, tick int64, id, trigger string) task.Run {
	ref := t.ref(p.w.shard)
	r := task.Run{
		ID: id, UID: t.uidText(), Namespace: ref.Namespace, Task: ref.Name, Shard: ref.Shard,
		ScheduledTime: task.At(instant(tick)), Trigger: trigger, Owner: p.w.e.cfg.Node, Attempt: 1, CreatedAt: task.At(p.now),
	}
	if due := t.due(tick); due != tick {
		r.DueAt = task.At(instant(due))
	}
	return r
}

func (p *plan) skip(t *taskState, run task.Run, reason string) {
	run.State, run.Reason, run.Attempt, run.EndedAt = task.Skipped, reason, 0, task.At(p.now)
	p.commit.Record(t.ref(p.w.shard), run)
	p.counts.skipped++
}

func (p *plan) enqueue(t *taskState, run task.Run, reason string) {
	run.State, run.Reason = task.Queued, reason
	q := task.Waiting{Run: run}
	p.commit.Enqueue(t.ref(p.w.shard), q)
	p.ran(t, run.ScheduledTime.UnixMilli())
	p.then = append(p.then, func(rev int64) { p.w.enqueued(t, &waiting{Waiting: q, mod: rev}) })
	p.counts.queued++
}

// fire has a node run a tick; false if none takes it.
func (p *plan) fire(t *taskState, tick int64, id, trigger string) bool {
	n, ok := p.pick(t)
	if !ok {
		return false
	}
	p.attempt.Run, p.attempt.Env = p.newRun(t, tick, id, trigger), nil
	p.dispatch(t, n, p.now.Sub(instant(tick)))
	p.commit.Claim(&p.attempt, t.action(), n.Revision)
	p.ran(t, tick)
	p.counts.run++
	return true
}

// pick chooses a node for a run. If it finds none because a session is suspect,
// what waits for a node is looked at again when the suspicion ends.
func (p *plan) pick(t *taskState) (*task.Node, bool) {
	n, ok := p.w.e.cfg.Fleet.Pick(t.how.selector, p.now)
	if !ok {
		if until, suspect := p.w.e.cfg.Fleet.Suspected(p.now); suspect {
			p.w.wakeAt(until)
		}
	}
	return n, ok
}

// dispatch makes the run in p.attempt an attempt for the node that was picked for
// it.
func (p *plan) dispatch(t *taskState, n *task.Node, late time.Duration) {
	p.given = append(p.given, n)
	t.started = true
	a := &p.attempt
	if a.Owner == "" { // a person asked for it
		a.Owner = p.w.e.cfg.Node
	}
	a.State, a.Reason, a.Node, a.DispatchedAt, a.NotBefore = task.Dispatched, "", n.Name, task.At(p.now), task.Time{}
	a.Instance, a.Generation = n.Instance, int64(t.generation)
	a.Timeout, a.KillGrace, a.Retry, a.Replaceable = t.how.timeout, t.how.killGrace, t.how.retry, t.how.replaceable
	p.claims = append(p.claims, claim{t, a.ID, n.Name, late})
}

// catchUp gives all of a task's undecided ticks up to an instant their outcome,
// by the missed policy, and sets the entry's from behind them: the watermark
// does not speak for them. false if some are left for the next commit; what is
// decided is the oldest then.
func (p *plan) catchUp(t *taskState, upTo int64) bool {
	if !p.fits(t, 4, 2*t.bytes()) {
		return false
	}
	s := t.schedule()
	c := behind(t.how.missed, &s, instant(t.next-1), instant(t.lastDue(upTo)), p.now)
	from := c.last
	if c.missed > 0 {
		p.miss(t, c)
	}
	complete := true
	for i, tick := range c.run {
		trigger := task.TriggerSchedule
		if p.now.Sub(tick) > t.how.grace {
			trigger = task.TriggerCatchUp
		}
		id, at := task.RunID(tick, t.uidText()), tick.UnixMilli()
		// The last two go together: one that is left alone may be on time, and
		// would then be decided as if it had not come with the others.
		room := 1
		if i == len(c.run)-2 {
			room = 2
		}
		switch {
		case i > 0 && !p.fits(t, room, room*roomForRecord):
			complete = false
		case t.holds(id):
		case len(c.run) == 1 && t.how.missed.Policy != task.MissedAll:
			p.decide(t, at, id, trigger)
		case i == 0 && mayStart(t.how.overlap, len(t.active()), t.begun()) && p.fire(t, at, id, trigger):
		default: // whoever wants all of them wants the last one of a piece too
			p.enqueue(t, p.newRun(t, at, id, trigger), task.ReasonCatchUp)
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
	p.then = append(p.then, func(int64) {
		p.w.reschedule(t)
		p.w.look(t)
	})
	return complete
}

// move sets an entry's from: its ticks up to there are decided.
func (p *plan) move(t *taskState, from int64) {
	p.change(t, func(d *draft) { d.from = from })
}

// miss records the ticks that will not run, as one range.
func (p *plan) miss(t *taskState, c catchUp) {
	r := p.newRun(t, c.first.UnixMilli(), task.RunID(c.first, t.uidText()), task.TriggerSchedule)
	r.State, r.Reason, r.Attempt, r.EndedAt = task.Missed, c.reason, 0, task.At(p.now)
	if c.missed > 1 {
		r.Last, r.Count = task.At(c.last), c.missed
	}
	p.commit.Record(t.ref(p.w.shard), r)
	p.counts.missed += c.missed
}

// queue dispatches what waits and may start now.
func (p *plan) queue(t *taskState) {
	if t.buried() {
		return
	}
	begun, before := t.begun(), 0 // before q, of those that are begun
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
		if t.started {
			// At most one in a revision: the others in the next.
			p.then = append(p.then, func(int64) { p.w.look(t) })
			return
		}
		others := begun
		if q.begun() {
			// Of several that are begun the first goes on; else all would wait
			// for each other.
			others = before
			before++
		}
		if at := t.notBefore(q); at.After(p.now) {
			p.w.wakeAt(at)
			continue
		}
		if mayStart(t.how.overlap, len(t.active()), others) && !p.start(t, q) {
			return
		}
	}
}

// start moves a run from the queue to an inbox, or says why it waits on. false:
// there is no room.
func (p *plan) start(t *taskState, q *waiting) bool {
	n, ok := p.pick(t)
	if ok {
		if !p.fits(t, 2, t.bytes()) {
			p.w.e.cfg.Fleet.Take(n.Name)
			return false
		}
		p.attempt.Run, p.attempt.Env = q.Run, q.Env
		p.dispatch(t, n, -1)
		p.commit.Dispatch(&p.attempt, t.action(), n.Revision)
		p.commit.GuardEntry(t.fullName(), t.mod)
		p.dequeue(t, q)
		return true
	}
	if q.Reason == task.ReasonNoNode || q.begun() {
		return true // the reason says already why, or what has been
	}
	if !p.fits(t, 1, t.bytes()) {
		return false
	}
	w := q.Waiting
	w.Reason = task.ReasonNoNode
	p.commit.Requeue(t.ref(p.w.shard), w, q.mod)
	p.then = append(p.then, func(rev int64) { q.Waiting, q.mod = w, rev })
	return true
}

func (p *plan) dequeue(t *taskState, q *waiting) {
	p.commit.Dequeue(t.ref(p.w.shard), q.ID, q.mod)
	p.then = append(p.then, func(rev int64) {
		p.w.gone[t.fullName()+"/"+q.ID] = rev
		if i := slices.Index(t.queue(), q); i >= 0 {
			p.w.dequeued(t, i)
		}
		if t.empty() {
			p.w.look(t) // nobody else will, to forget it
		}
	})
}

// attempts ends those that are lost, and asks those to end whose task is gone.
func (p *plan) attempts(t *taskState) {
	for _, a := range t.active() {
		switch {
		case a.watch == nil:
		case a.watch.lost:
			if !p.fits(t, 2, 2*roomForRecord) {
				return
			}
			p.lose(t, a)
		case a.watch.orphan:
			if !p.fits(t, 1, 2*roomForRecord) {
				return
			}
			p.commit.AskCancel(a.watch.held, "")
			p.then = append(p.then, func(int64) { a.watch.orphan, a.watch.asked = false, true })
		}
	}
}

func (p *plan) lose(t *taskState, a *attempt) {
	end := a.watch.held.Run
	end.State, end.Reason, end.EndedAt = task.Lost, task.ReasonNodeLost, task.At(p.now)
	var next *task.Waiting
	switch {
	case a.watch.unreadable != nil: // nor does anybody know of a next one
		end.UID, end.Owner = t.uidText(), p.w.e.cfg.Node
		end.Message = "the record of its attempt could not be read: " + a.watch.unreadable.Error()
	case !t.orphan(a.run):
		next = p.w.e.cfg.NextAttempt(a.watch.held.Assigned, end, p.now, rand.Float64())
	}
	p.commit.EndLost(a.watch.held, end, next)
	p.then = append(p.then, func(rev int64) {
		p.w.e.metrics.lost.Inc()
		p.w.ended(t, a.run, rev+1)
		if next != nil {
			p.w.enqueued(t, &waiting{Waiting: *next, mod: rev})
		}
	})
}
