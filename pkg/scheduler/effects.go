package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// An effect is a change that a plan makes to the shard: to its records when the commit
// succeeds, and to memory after that. Nothing of it is visible before. If the commit fails,
// the effect is dropped, and memory is as if nobody had planned it.
//
// Two kinds of changes are not effects, since every tick makes them: claims (an attempt put into
// an inbox) and entry changes. See plan.
type effect interface {
	// write adds the change to the commit. It is called once, when the effect is added.
	write(c *store.Commit)
	// apply makes the change in memory. It is called once, after the commit has succeeded: at
	// revision rev, for a decision that was made at now.
	apply(s *shardState, rev int64, now time.Time)
}

// addEffect adds an effect to the plan. The caller has made room for it (see reserveRoom).
func (p *plan) addEffect(e effect) {
	e.write(p.commit)
	p.effects = append(p.effects, e)
}

// runEnqueued puts a new run into the queue.
type runEnqueued struct {
	task *taskstate.Task
	run  *taskstate.Waiting
}

func (e runEnqueued) write(c *store.Commit) { c.Enqueue(e.task.Ref(c.Shard), e.run.Waiting) }

func (e runEnqueued) apply(s *shardState, rev int64, _ time.Time) {
	e.run.Mod = rev
	s.applyEnqueued(e.task, e.run)
}

// runRequeued writes another version of a queue record.
type runRequeued struct {
	task   *taskstate.Task
	run    *taskstate.Waiting
	record *task.Waiting
}

func (e runRequeued) write(c *store.Commit) { c.Requeue(e.task.Ref(c.Shard), *e.record, e.run.Mod) }

func (e runRequeued) apply(_ *shardState, rev int64, now time.Time) {
	e.run.Waiting, e.run.Mod, e.run.ToldAt = *e.record, rev, now
}

// runDequeued takes a run out of the queue: it starts, has ended, or belongs to no task.
type runDequeued struct {
	task *taskstate.Task
	run  *taskstate.Waiting
}

func (e runDequeued) write(c *store.Commit) { c.Dequeue(e.task.Ref(c.Shard), e.run.ID, e.run.Mod) }

func (e runDequeued) apply(s *shardState, rev int64, _ time.Time) {
	// An older event of the record may still be on its way.
	s.gone[e.task.FullName()+"/"+e.run.ID] = rev

	if i := slices.Index(e.task.Queue(), e.run); i >= 0 {
		s.applyDequeued(e.task, i)
	}

	// The next plan forgets a task of which nothing is left, or draws the conclusions from the end of its
	// runs. No event may come that would cause it.
	if e.task.Empty() || e.task.DependsOnPast() {
		s.addLook(e.task)
	}
}

// ticksSkipped records ticks that do not run. The record of those before them is extended if
// extends, its mod revision, is not 0.
type ticksSkipped struct {
	task    *taskstate.Task
	record  *task.Run
	span    *skippedSpan
	extends int64
}

func (e ticksSkipped) write(c *store.Commit) {
	ref := e.task.Ref(c.Shard)

	if e.extends != 0 {
		c.Extend(ref, *e.record, e.extends)
	} else {
		c.Record(ref, *e.record)
	}
}

func (e ticksSkipped) apply(s *shardState, rev int64, _ time.Time) {
	e.span.mod = rev
	s.skippedSpans[e.task] = e.span
}

// cancelAsked asks the node of an attempt to end it.
type cancelAsked struct {
	attempt     *taskstate.Attempt
	who, reason string
}

func (e cancelAsked) write(c *store.Commit) { c.AskCancel(e.attempt.Watch.Held, e.who, e.reason) }

func (e cancelAsked) apply(*shardState, int64, time.Time) {
	e.attempt.Watch.Ask, e.attempt.Watch.Asked = false, true
}

// runLost ends an attempt whose node is gone. next waits in the queue if the run is retried.
type runLost struct {
	task    *taskstate.Task
	attempt *taskstate.Attempt
	end     *task.Run
	next    *taskstate.Waiting
}

func (e runLost) write(c *store.Commit) {
	watch := e.attempt.Watch

	if e.next != nil {
		c.EndLost(watch.Held, *e.end, &e.next.Waiting)
		return
	}

	c.EndLost(watch.Held, *e.end, nil)

	if watch.Unreadable == nil && !e.task.Orphan(e.attempt.Run) {
		c.Bury(watch.Held, *e.end)
	}
}

func (e runLost) apply(s *shardState, rev int64, _ time.Time) {
	s.applyAttemptEnd(e.task, e.attempt.Run, rev+1)

	if e.next == nil {
		s.takeBack(e.task, e.attempt.Run, e.end.AsPart(), rev)
		return
	}

	e.next.Mod = rev
	s.applyEnqueued(e.task, e.next)
}

// partEnded ends a part of a run that no node has.
type partEnded struct {
	task *taskstate.Task
	end  *task.Run
	// waited says that the part leaves the queue. Else there is no record of it, and the commit
	// compares that there is none.
	waited bool
}

func (e partEnded) write(c *store.Commit) {
	ref := e.task.Ref(c.Shard)

	if e.waited {
		c.Record(ref, *e.end)
	} else {
		c.EndPart(ref, *e.end)
	}
}

func (e partEnded) apply(s *shardState, rev int64, _ time.Time) {
	s.takeBack(e.task, e.end.ID, e.end.AsPart(), rev)
}

// recordPurged deletes a record of history of a task that is gone.
type recordPurged struct {
	key string
	mod int64
}

func (e recordPurged) write(c *store.Commit) { c.Purge(e.key, e.mod) }

func (e recordPurged) apply(s *shardState, rev int64, _ time.Time) {
	delete(s.purges, e.key)
	s.gone[e.key] = rev
}

// failuresCounted drops the ends of runs that the entry counts from now on. The entry change of
// the same plan writes the count.
type failuresCounted struct{ past *taskstate.Past }

func (failuresCounted) write(*store.Commit) {}

func (e failuresCounted) apply(*shardState, int64, time.Time) { e.past.Ends = e.past.Uncounted() }
