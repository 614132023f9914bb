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
func (p *plan) tick(t *taskState) bool {
	if !p.fits(t, 1, t.bytes()) {
		return false
	}
	run := p.newRun(t, t.next, task.TriggerSchedule)
	if t.holds(run.ID) {
		p.move(t, t.next) // there is nothing else to write
		return true
	}
	p.commit.GuardEntry(t.ref, t.mod)
	p.decide(t, run)
	return true
}

// decide runs a tick or skips it, by the overlap policy.
func (p *plan) decide(t *taskState, run task.Run) {
	switch {
	case overlap(t.entry.Overlap, t.busy()) == skipped:
		p.skip(t, run, task.ReasonOverlap)
	case !p.fire(t, run):
		if len(t.queue) >= maxWaiting {
			p.skip(t, run, task.ReasonQueueFull)
			return
		}
		p.enqueue(t, run, task.ReasonNoNode)
	}
}

func (p *plan) newRun(t *taskState, tick time.Time, trigger string) task.Run {
	return task.Run{
		ID: task.RunID(tick, t.entry.UID), UID: t.entry.UID, Namespace: t.ref.Namespace, Task: t.ref.Name, Shard: t.ref.Shard,
		ScheduledTime: task.At(tick), Trigger: trigger, Owner: p.w.e.cfg.Node, Attempt: 1, CreatedAt: task.At(p.now),
	}
}

func (p *plan) skip(t *taskState, run task.Run, reason string) {
	run.State, run.Reason, run.Attempt, run.EndedAt = task.Skipped, reason, 0, task.At(p.now)
	p.commit.Record(t.ref, run)
	p.count("skipped", 1)
}

func (p *plan) enqueue(t *taskState, run task.Run, reason string) {
	run.State, run.Reason = task.Queued, reason
	q := task.Waiting{Run: run}
	p.commit.Enqueue(t.ref, q)
	p.then = append(p.then, func(rev int64) { p.w.enqueued(t, &waiting{q, rev}) })
	p.count("queued", 1)
}

// fire has a node run a tick; false if none takes it.
func (p *plan) fire(t *taskState, run task.Run) bool {
	n, ok := p.pick(t)
	if !ok {
		return false
	}
	p.dispatch(t, run, nil, n)
	p.count("run", 1)
	late := p.now.Sub(run.ScheduledTime.Time).Seconds()
	p.then = append(p.then, func(int64) { p.w.e.metrics.lateness.Observe(late) })
	return true
}

// pick chooses a node for a run. If it finds none because a session is suspect,
// what waits for a node is looked at again when the suspicion ends.
func (p *plan) pick(t *taskState) (task.Node, bool) {
	n, ok := p.w.e.cfg.Fleet.Pick(t.selector, p.now)
	if !ok {
		if until, suspect := p.w.e.cfg.Fleet.Suspected(p.now); suspect {
			p.w.wakeAt(until)
		}
	}
	return n, ok
}

// dispatch puts a run into the inbox of the node that was picked for it.
func (p *plan) dispatch(t *taskState, run task.Run, env map[string]string, n task.Node) {
	p.given = append(p.given, n)
	p.started[t] = struct{}{}
	e := &t.entry
	if run.Owner == "" { // a person asked for it
		run.Owner = p.w.e.cfg.Node
	}
	run.State, run.Reason, run.Node, run.DispatchedAt, run.NotBefore = task.Dispatched, "", n.Name, task.At(p.now), task.Time{}
	p.commit.Dispatch(t.ref, task.Assigned{
		Run: run, Instance: n.Instance, Generation: e.Generation, Action: e.Action, Env: env,
		Timeout: e.Timeout, KillGrace: e.KillGrace, Retry: e.Retry,
		Replaceable: e.Overlap != task.OverlapAllow || slices.Contains(e.Retry.On, task.Lost),
	}, n.Revision)
	p.then = append(p.then, func(rev int64) {
		t.active = append(t.active, &attempt{run: run.ID, node: n.Name, create: rev})
	})
}

func (p *plan) count(outcome string, n int64) {
	p.then = append(p.then, func(int64) { p.w.e.metrics.ticks.WithLabelValues(outcome).Add(float64(n)) })
}

// catchUp gives all of a task's undecided ticks up to an instant their outcome,
// by the missed policy, and sets the entry's from behind them: the watermark
// does not speak for them. false if some are left for the next commit; what is
// decided is the oldest then.
func (p *plan) catchUp(t *taskState, upTo time.Time) bool {
	if !p.fits(t, 4, 2*t.bytes()) {
		return false
	}
	c := behind(t.entry.Missed, t.schedule, t.next.Add(-time.Millisecond), upTo, p.now)
	from := c.last
	if c.missed > 0 {
		p.miss(t, c)
	}
	complete := true
	for i, tick := range c.run {
		trigger := task.TriggerSchedule
		if p.now.Sub(tick) > t.entry.Missed.Grace.Std() {
			trigger = task.TriggerCatchUp
		}
		run := p.newRun(t, tick, trigger)
		// The last two go together: one that is left alone may be on time, and
		// would then be decided as if it had not come with the others.
		room := 1
		if i == len(c.run)-2 {
			room = 2
		}
		switch {
		case i > 0 && !p.fits(t, room, room*roomForRecord):
			complete = false
		case t.holds(run.ID):
		case len(c.run) == 1 && t.entry.Missed.Policy != task.MissedAll:
			p.decide(t, run)
		case i == 0 && mayStart(t.entry.Overlap, len(t.active), t.begun()) && p.fire(t, run):
		default: // whoever wants all of them wants the last one of a piece too
			p.enqueue(t, run, task.ReasonCatchUp)
		}
		if !complete {
			break
		}
		from = tick
	}
	p.move(t, from)
	p.then = append(p.then, func(int64) {
		p.w.reschedule(t)
		p.w.look(t)
	})
	return complete
}

// move sets an entry's from: its ticks up to there are decided.
func (p *plan) move(t *taskState, from time.Time) {
	e := t.entry
	e.From = task.At(from)
	p.commit.PutEntry(t.ref, e, t.mod)
	p.then = append(p.then, func(rev int64) { t.entry, t.mod = e, rev })
}

// miss records the ticks that will not run, as one range.
func (p *plan) miss(t *taskState, c catchUp) {
	r := p.newRun(t, c.first, task.TriggerSchedule)
	r.State, r.Reason, r.Attempt, r.EndedAt = task.Missed, c.reason, 0, task.At(p.now)
	if c.missed > 1 {
		r.Last, r.Count = task.At(c.last), c.missed
	}
	p.commit.Record(t.ref, r)
	p.count("missed", c.missed)
}

// queue dispatches what waits and may start now.
func (p *plan) queue(t *taskState) {
	begun, before := t.begun(), 0 // before q, of those that are begun
	for _, q := range t.queue {
		if !t.present || !t.bad && q.UID != t.entry.UID || t.holds(q.ID) {
			if !p.fits(t, 1, roomForRecord) {
				return
			}
			p.dequeue(t, q)
			continue
		}
		if t.bad {
			return // what it would run cannot be read
		}
		if _, one := p.started[t]; one {
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
		if q.NotBefore.After(p.now) {
			p.w.wakeAt(q.NotBefore.Time)
			continue
		}
		if mayStart(t.entry.Overlap, len(t.active), others) && !p.start(t, q) {
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
		p.dispatch(t, q.Run, q.Env, n)
		p.commit.GuardEntry(t.ref, t.mod)
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
	p.commit.Requeue(t.ref, w, q.mod)
	p.then = append(p.then, func(rev int64) { q.Waiting, q.mod = w, rev })
	return true
}

func (p *plan) dequeue(t *taskState, q *waiting) {
	p.commit.Dequeue(t.ref, q.ID, q.mod)
	p.then = append(p.then, func(rev int64) {
		p.w.gone[t.name+"/"+q.ID] = rev
		if i := slices.Index(t.queue, q); i >= 0 {
			p.w.dequeued(t, i)
		}
		if t.empty() {
			p.w.look(t) // nobody else will, to forget it
		}
	})
}

// attempts ends those that are lost, and asks those to end whose task is gone.
func (p *plan) attempts(t *taskState) {
	for _, a := range t.active {
		switch {
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
	if !t.orphan(a.run) {
		next = p.w.e.cfg.NextAttempt(a.watch.held.Assigned, end, p.now, rand.Float64())
	}
	p.commit.EndLost(a.watch.held, end, next)
	p.then = append(p.then, func(rev int64) {
		p.w.e.metrics.lost.Inc()
		p.w.ended(t, a.run, rev+1)
		if next != nil {
			p.w.enqueued(t, &waiting{*next, rev})
		}
	})
}
