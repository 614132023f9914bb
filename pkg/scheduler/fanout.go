package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run with parts lives in the queue from when it has them until all have ended;
// see "Fan out" in docs/architecture.md. Its record says which parts are left to
// give out. A part that is not left is in an inbox, in the queue (to be tried
// again), or has ended: then it is on record under parts/, until its parent is in
// history.

// roomForPart is a generous guess of the bytes of a part in its parent's records.
const roomForPart = 512

// roomForFan is what the record of a fan-out may have more than another's, before it
// is known how many nodes it is for.
const roomForFan = 64 << 10

// roomForCheckpoints is what those take that a run's parts begin with.
func roomForCheckpoints(f *task.Fan) int {
	if len(f.Checkpoints) == 0 {
		return 0
	}
	return task.MaxPartCheckpoints
}

// tellEvery is how often at most a run's record is written only to say how many of
// its parts have ended.
const tellEvery = time.Second

// planFanOut is the parts that a run of t has if it begins now; or why it cannot.
func (p *plan) planFanOut(t *taskstate.Task) (*task.Fan, string) {
	target := t.Policy.Target
	nodes := p.s.placement.Rank(t.Want(), p.now)
	f := &task.Fan{Count: target.Parts, Stagger: target.Stagger}

	switch {
	case len(nodes) == 0:
		p.looksForNodes(t)
		return nil, task.ReasonNoNode
	case !target.Enough(len(nodes)):
		p.looksForNodes(t)
		return nil, task.ReasonCount
	case target.Count == task.All:
		f.Nodes = nodes
	case target.Parts == 0:
		f.Nodes = nodes[:target.Count]
	}

	if f.Nodes != nil {
		if !task.Ordered(target.Strategy) {
			slices.Sort(f.Nodes)
		}
		f.Count = len(f.Nodes)
	}

	for i := range f.Count {
		f.Left = append(f.Left, i)
	}

	f.Need, _ = target.Succeed.Need(f.Count) // it was checked with the policy

	return f, ""
}

// beginFanOut makes a run one that has its parts. None is given out by that.
func (p *plan) beginFanOut(run task.Run, f *task.Fan) task.Run {
	run.State, run.Reason, run.Fan, run.NotBefore = task.Running, "", f, task.Time{}
	if run.Owner == "" {
		run.Owner = p.s.node
	}

	run.DispatchedAt = task.At(p.now)
	return run
}

// fanOut has a tick become a run with parts.
func (p *plan) fanOut(t *taskstate.Task, run task.Run, f *task.Fan) {
	p.s.endSpan(t)
	p.changeOf(t).started = true // what waits of the task counts it from the next commit on
	p.addEffect(runEnqueued{t, &taskstate.Waiting{Waiting: task.Waiting{Run: p.beginFanOut(run, f)}}})
	p.lookAfterCommit(t)
	p.countRun(t, run.ScheduledTime.UnixMilli())
	p.counts.run++
}

// startParent gives a run that has waited its parts. false: there is no room.
func (p *plan) startParent(t *taskstate.Task, q *taskstate.Waiting) bool {
	f, reason := q.Fan, ""
	if f == nil {
		f, reason = p.planFanOut(t)
	}

	if reason != "" {
		if q.Paced() {
			p.returnToken()
		}
		return p.waitsFor(t, q, reason)
	}

	if !p.reserveRoom(t, 2, roomForTask(t)+roomForCheckpoints(f)) {
		if q.Paced() {
			p.returnToken()
		}
		return false
	}

	p.commit.GuardEntry(t.FullName(), t.Mod)
	w := q.Waiting
	w.Run = p.beginFanOut(w.Run, f)
	r := parentRun{plan: p, t: t, q: q}
	r.rewriteQueueRecord(w)
	p.changeOf(t).started = true // its first part goes with the next commit

	return true
}

// parentRun is what a plan decides of one run that has its parts: which of them is given to a node,
// missed or lost, and when the run itself ends.
type parentRun struct {
	*plan
	t *taskstate.Task
	q *taskstate.Waiting // the run's queue record, which says which parts are left to give out

	// How many of its parts have ended, and how many of these have succeeded. decideRun counts them.
	ended, succeeded int
}

// decideRun ends the run if all of its parts have ended, asks for its end if it is replaced, and
// gives out the next part if it may. false: there is no room.
func (r *parentRun) decideRun(what tickpolicy.Turn) bool {
	f := r.q.Fan
	r.ended, r.succeeded = r.t.CountEnded(r.q)
	active := f.Count - f.Kept - len(f.Left) - r.ended
	ending := f.Cancel != ""

	switch {
	case active == 0 && (ending || len(f.Left) == 0):
		return r.endRun()
	case !ending && what == tickpolicy.TurnReplaced:
		return r.cancelRun(task.ReasonReplaced)
	case !ending && what == tickpolicy.TurnStart && len(f.Left) > 0 && !r.isFrozen(r.t):
		if done, ok := r.giveOut(); done || !ok {
			return ok
		}
	}

	if active > 0 && !r.loseMissingParts() {
		return false
	}

	return r.writeCounts()
}

// rewriteQueueRecord writes another version of the run's queue record.
func (r *parentRun) rewriteQueueRecord(w task.Waiting) {
	r.addEffect(runRequeued{r.t, r.q, &w})
	r.lookAfterCommit(r.t)
}

// fanNow is the fan of the run as it is now, to be written.
func (r *parentRun) fanNow() *task.Fan {
	f := *r.q.Fan
	f.Ended, f.Succeeded = r.ended, r.succeeded
	return &f
}

// writeCounts writes how many parts have ended, if that has changed: once in tellEvery at most.
func (r *parentRun) writeCounts() bool {
	q := r.q
	if q.Fan.Ended == r.ended && q.Fan.Succeeded == r.succeeded {
		return true
	}

	if at := q.ToldAt.Add(tellEvery); r.now.Before(at) && q.ToldAt.Sub(r.now) < tellEvery {
		r.s.wakeAt(at)
		return true
	}

	if !r.reserveRoom(r.t, 1, roomForTask(r.t)+roomForCheckpoints(q.Fan)) {
		return false
	}

	w := q.Waiting
	w.Fan = r.fanNow()
	r.rewriteQueueRecord(w)

	return true
}

// cancelRun has the run end, for a reason. What is active of it is asked to end, as its record says so.
func (r *parentRun) cancelRun(reason string) bool {
	if !r.reserveRoom(r.t, 2, roomForTask(r.t)+roomForCheckpoints(r.q.Fan)) {
		return false
	}

	r.commit.GuardEntry(r.t.FullName(), r.t.Mod) // whose policy it is
	w, f := r.q.Waiting, *r.q.Fan
	f.Cancel, w.Fan = reason, &f
	r.rewriteQueueRecord(w)

	return true
}
