package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// An effect is a change that a plan makes to the shard: to its records when the commit succeeds, and to
// memory after that. It is not visible before. If the commit fails, the effect is dropped, and memory is as
// if it had never been planned.
type effect interface {
	// writeTo adds the change to the commit. It is called once, when the effect is added to the plan.
	writeTo(c *store.Commit)
	// applyTo makes the change in memory. It is called once, after the commit has succeeded at revision rev.
	// now is the time for which the plan decided.
	applyTo(s *shardState, rev int64, now time.Time)
}

// addEffect adds an effect to the plan. The caller has made room for it (see reserveRoom).
func (p *plan) addEffect(e effect) {
	e.writeTo(p.commit)
	p.effects = append(p.effects, e)
}

// attemptDispatched puts an attempt into the inbox of a node. The plan keeps these effects in a slice, because nearly
// every tick has one.
type attemptDispatched struct {
	task       *state.Task
	run, node  string
	pool       placement.Pool
	probeUntil int64 // see state.Attempt
	caughtUp   bool  // see state.Attempt

	// The rest is for writeTo only.
	record  *task.Assigned // the plan's scratch space
	action  string         // as JSON
	session int64          // create revision of the node's key, which the commit compares
	waited  bool           // the run was in the queue, so an earlier attempt may have had the same key
}

func (a *attemptDispatched) writeTo(c *store.Commit) {
	if a.waited {
		c.Dispatch(a.record, a.action, a.session)
	} else {
		c.Claim(a.record, a.action, a.session)
	}
}

// applyTo counts the attempt as active. The revision of the commit is the create revision of the inbox record, and
// thus the attempt's fencing token.
func (a *attemptDispatched) applyTo(s *shardState, rev int64, now time.Time) {
	s.addActiveAttempt(a.task, &state.Attempt{
		Run: a.run, Node: a.node, Create: rev, Since: now.UnixMilli(), ProbeUntil: a.probeUntil, CaughtUp: a.caughtUp, Pool: a.pool,
	})
	a.task.NoteTurn(a.node)
}

// entryChanged writes the fields of a task's entry that its owner may change.
type entryChanged struct {
	task         *state.Task
	from, anchor int64 // Unix milliseconds
	paused       bool
	own          task.Own // counts, pauses and the sticky node
}

// newEntryChanged returns an effect that changes nothing yet.
func newEntryChanged(t *state.Task) *entryChanged {
	e := &entryChanged{task: t, from: t.From, anchor: t.Anchor, paused: t.Paused, own: t.Own()}

	// An element may change, and the task's own list must stay as it is until the commit has succeeded.
	e.own.Pauses = slices.Clone(e.own.Pauses)

	return e
}

// content returns the entry with the changes.
func (e *entryChanged) content() record.EntryParts {
	parts := e.task.Entry()
	parts.From, parts.Anchor = task.At(state.Instant(e.from)), task.At(state.Instant(e.anchor))
	parts.Paused, parts.Own = e.paused, record.EncodeOwn(&e.own)

	return parts
}

func (e *entryChanged) writeTo(c *store.Commit) {
	c.PutEntry(e.task.FullName(), e.content(), e.task.Mod)
}

// rewriteTo replaces what writeTo has written, after another change.
func (e *entryChanged) rewriteTo(c *store.Commit) { c.ChangeEntry(e.task.FullName(), e.content()) }

// applyTo copies the fields to the task, and finds its next tick.
func (e *entryChanged) applyTo(s *shardState, rev int64, _ time.Time) {
	t := e.task
	t.From, t.Anchor, t.Paused, t.Mod = e.from, e.anchor, e.paused, rev
	t.SetOwn(&e.own)
	s.rows.Touch(t)
	s.rescheduleTask(t)
	s.noteDecided(t)
}

// tickDecided moves a task to its next tick. The watermark of the commit records that the last one is decided. If the
// entry records it, entryChanged moves the task.
type tickDecided struct{ task *state.Task }

func (tickDecided) writeTo(*store.Commit) {}

func (t tickDecided) applyTo(s *shardState, _ int64, _ time.Time) {
	s.advanceToNextTick(t.task)
	s.noteDecided(t.task)
}

// runEnqueued puts a new run into the queue. The commit requires that the queue has no record of it.
type runEnqueued struct {
	task *state.Task
	run  *state.Waiting
}

func (e runEnqueued) writeTo(c *store.Commit) { c.Enqueue(e.task.Ref(c.Shard), e.run.Waiting) }

func (e runEnqueued) applyTo(s *shardState, rev int64, _ time.Time) {
	e.run.Mod, e.run.Create = rev, rev
	s.applyEnqueued(e.task, e.run)
}

// runRequeued replaces the queue record of a run.
type runRequeued struct {
	task   *state.Task
	run    *state.Waiting
	record *task.Waiting // the new content
}

func (r runRequeued) writeTo(c *store.Commit) { c.Requeue(r.task.Ref(c.Shard), *r.record, r.run.Mod) }

func (r runRequeued) applyTo(s *shardState, rev int64, now time.Time) {
	// A late tick becomes a run with parts.
	if r.run.WaitsForTurn() && r.record.Fan != nil {
		r.task.Activity.LatePassed = false
	}

	r.run.Waiting, r.run.Mod, r.run.Parts.ToldAt = *r.record, rev, now
	s.rows.Touch(r.task)
}

// runDequeued removes a run from the queue, because it starts, has ended, or belongs to no task.
type runDequeued struct {
	task *state.Task
	run  *state.Waiting
}

func (r runDequeued) writeTo(c *store.Commit) { c.Dequeue(r.task.Ref(c.Shard), r.run.ID, r.run.Mod) }

func (r runDequeued) applyTo(s *shardState, rev int64, _ time.Time) {
	// An older event of the record may still be on its way. It must not put the run back into the queue.
	s.gone[r.task.FullName()+"/"+r.run.ID] = rev

	if i := slices.Index(r.task.Queue(), r.run); i >= 0 {
		if r.run.WaitsForTurn() {
			r.task.Activity.LatePassed = false
		}

		s.applyDequeued(r.task, i)
	}

	// The next plan forgets a task that has nothing left, or draws the conclusions from the end of its
	// runs. The watch's event of this deletion is ignored because of gone, so it would not cause that.
	if r.task.Empty() || r.task.DependsOnPast() || s.hasTriggers(r.task) {
		s.agenda.examineNext(r.task)
	}
}

// latePassed notes that a tick on time has started while late ticks wait.
type latePassed struct{ task *state.Task }

func (latePassed) writeTo(*store.Commit) {}

func (l latePassed) applyTo(*shardState, int64, time.Time) {
	if l.task.Activity != nil {
		l.task.Activity.LatePassed = true
	}
}

// ticksSkipped records ticks that do not run. If extends is not 0, it is the mod revision of the existing
// record of the ticks before them, which the new record replaces.
type ticksSkipped struct {
	task    *state.Task
	record  *task.Run
	span    *skippedSpan // the range after this commit
	extends int64
}

func (t ticksSkipped) writeTo(c *store.Commit) {
	ref := t.task.Ref(c.Shard)

	if t.extends != 0 {
		c.Extend(ref, *t.record, t.extends)
	} else {
		c.Record(ref, *t.record)
	}
}

func (t ticksSkipped) applyTo(s *shardState, rev int64, _ time.Time) {
	t.span.mod = rev
	s.skippedSpans[t.task] = t.span
}

// spanEnded ends a task's range of skipped ticks, because a tick has another outcome.
type spanEnded struct{ task *state.Task }

func (spanEnded) writeTo(*store.Commit) {}

func (e spanEnded) applyTo(s *shardState, _ int64, _ time.Time) { s.endSpan(e.task) }

// cancelAsked requests that the node of an attempt ends it.
type cancelAsked struct {
	task    *state.Task
	attempt *state.Attempt
	who     *task.Actor // the user who cancelled the run, or nil
	reason  string
}

func (a cancelAsked) writeTo(c *store.Commit) { c.AskCancel(a.attempt.Watch.Held, a.who, a.reason) }

func (a cancelAsked) applyTo(s *shardState, _ int64, _ time.Time) {
	a.attempt.Watch.Ask, a.attempt.Watch.Asked = false, true
	s.rows.Touch(a.task)
}

// runLost ends an attempt whose node is gone. If the run is retried, next is its next attempt, which waits
// in the queue. Otherwise next is nil, and end is its final record.
type runLost struct {
	task    *state.Task
	attempt *state.Attempt
	end     *task.Run
	next    *state.Waiting
}

func (r runLost) writeTo(c *store.Commit) {
	watch := r.attempt.Watch

	if r.next != nil {
		c.EndLost(watch.Held, *r.end, &r.next.Waiting)
		return
	}

	c.EndLost(watch.Held, *r.end, nil)

	// The run has no attempt left, so it also becomes a dead run. That needs a readable record, to start it
	// again, and a task that still exists.
	if watch.Unreadable == nil && !r.task.Orphan(r.attempt.Run) {
		c.PutDeadLetter(watch.Held, *r.end)
	}
}

func (r runLost) applyTo(s *shardState, rev int64, _ time.Time) {
	// The attempt began at or before rev, so it ended at a revision below rev+1.
	s.applyAttemptEnd(r.task, r.attempt.Run, rev+1)

	if r.next == nil {
		s.notePartEnded(r.task, r.attempt.Run, r.end.AsPart(), nil, rev)
		return
	}

	r.next.Mod, r.next.Create = rev, rev
	s.applyEnqueued(r.task, r.next)
}

// partEnded ends a part of a run that is on no node.
type partEnded struct {
	task *state.Task
	end  *task.Run
	// waited means that the part leaves the queue in the same commit. Otherwise there is no record of the
	// part, and the commit requires that there is none.
	waited bool
}

func (e partEnded) writeTo(c *store.Commit) {
	ref := e.task.Ref(c.Shard)

	if e.waited {
		c.Record(ref, *e.end)
	} else {
		c.EndPart(ref, *e.end)
	}
}

func (e partEnded) applyTo(s *shardState, rev int64, _ time.Time) {
	s.notePartEnded(e.task, e.end.ID, e.end.AsPart(), nil, rev)
}

// recordPurged deletes a history record whose task no longer exists, or a record of a part whose run has
// ended.
type recordPurged struct {
	key string
	mod int64
}

func (r recordPurged) writeTo(c *store.Commit) { c.Purge(r.key, r.mod) }

func (r recordPurged) applyTo(s *shardState, rev int64, _ time.Time) {
	delete(s.purges, r.key)

	// Remember the deletion until the watch has reported it (see forgetParts).
	s.gone[r.key] = rev
}

// failuresCounted drops the ends of runs that the entry counts from now on. An entryChanged before it writes the
// count.
type failuresCounted struct{ past *state.Past }

func (failuresCounted) writeTo(*store.Commit) {}

func (f failuresCounted) applyTo(*shardState, int64, time.Time) { f.past.Ends = f.past.Uncounted() }

// noticeGiven passes a notice on to the worker.
type noticeGiven struct{ notice notice }

func (noticeGiven) writeTo(*store.Commit) {}

func (n noticeGiven) applyTo(s *shardState, _ int64, _ time.Time) { s.addNotice(n.notice) }

// taskNoted makes the next plan examine a task.
type taskNoted struct{ task *state.Task }

func (taskNoted) writeTo(*store.Commit) {}

func (t taskNoted) applyTo(s *shardState, _ int64, _ time.Time) { s.agenda.examineNext(t.task) }
