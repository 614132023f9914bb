package scheduler

import (
	"slices"
	"time"

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

// fan is the parts that a run of t has if it begins now; or why it cannot.
func (p *plan) fan(t *taskState) (*task.Fan, string) {
	target := t.how.target
	nodes := p.s.placement.Rank(t.want(), p.now)
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

// begin makes a run one that has its parts. None is given out by that.
func (p *plan) begin(run task.Run, f *task.Fan) task.Run {
	run.State, run.Reason, run.Fan, run.NotBefore = task.Running, "", f, task.Time{}
	if run.Owner == "" {
		run.Owner = p.s.node
	}
	run.DispatchedAt = task.At(p.now)
	return run
}

// fanOut has a tick become a run with parts.
func (p *plan) fanOut(t *taskState, run task.Run, f *task.Fan) {
	p.s.endSpan(t)
	p.changeOf(t).started = true // what waits of the task counts it from the next commit on
	p.add(runEnqueued{t, &waiting{Waiting: task.Waiting{Run: p.begin(run, f)}}})
	p.lookAfterCommit(t)
	p.ran(t, run.ScheduledTime.UnixMilli())
	p.counts.run++
}

// startParent gives a run that has waited its parts. false: there is no room.
func (p *plan) startParent(t *taskState, q *waiting) bool {
	f, reason := q.Fan, ""
	if f == nil {
		f, reason = p.fan(t)
	}
	if reason != "" {
		if q.paced() {
			p.returnToken()
		}
		return p.waitsFor(t, q, reason)
	}
	if !p.fits(t, 2, t.bytes()+roomForCheckpoints(f)) {
		if q.paced() {
			p.returnToken()
		}
		return false
	}
	p.commit.GuardEntry(t.fullName(), t.mod)
	w := q.Waiting
	w.Run = p.begin(w.Run, f)
	p.rewrite(t, q, w)
	p.changeOf(t).started = true // its first part goes with the next commit
	return true
}

// rewrite puts another version of a parent's queue record.
func (p *plan) rewrite(t *taskState, q *waiting, w task.Waiting) {
	p.add(runRequeued{t, q, &w})
	p.lookAfterCommit(t)
}

// parent sees to a run that has its parts: it ends it if all have ended, asks for its
// end if it is replaced, gives out the next part if it may. false: there is no room.
func (p *plan) parent(t *taskState, q *waiting, what runTurn) bool {
	ended, succeeded := t.back(q)
	active := q.Fan.Count - q.Fan.Kept - len(q.Fan.Left) - ended
	ending := q.Fan.Cancel != ""
	switch {
	case active == 0 && (ending || len(q.Fan.Left) == 0):
		return p.endParent(t, q)
	case !ending && what == turnReplaced:
		return p.cancelParent(t, q, task.ReasonReplaced)
	case !ending && what == turnStart && len(q.Fan.Left) > 0 && !p.isFrozen(t):
		if done, ok := p.giveOut(t, q, ended, succeeded); done || !ok {
			return ok
		}
	}
	if active > 0 && !p.seek(t, q) {
		return false
	}
	return p.tell(t, q, ended, succeeded)
}

// withCounts is the fan of a run as it stands now, to be written.
func withCounts(q *waiting, ended, succeeded int) *task.Fan {
	f := *q.Fan
	f.Ended, f.Succeeded = ended, succeeded
	return &f
}

// tell writes how many parts have ended, now and then.
func (p *plan) tell(t *taskState, q *waiting, ended, succeeded int) bool {
	if q.Fan.Ended == ended && q.Fan.Succeeded == succeeded {
		return true
	}
	if at := q.toldAt.Add(tellEvery); p.now.Before(at) && q.toldAt.Sub(p.now) < tellEvery {
		p.s.wakeAt(at)
		return true
	}
	if !p.fits(t, 1, t.bytes()+roomForCheckpoints(q.Fan)) {
		return false
	}
	w := q.Waiting
	w.Fan = withCounts(q, ended, succeeded)
	p.rewrite(t, q, w)
	return true
}

// cancelParent has a run with parts end, for a reason. What is active of it is asked
// to end, as its record says so.
func (p *plan) cancelParent(t *taskState, q *waiting, reason string) bool {
	if !p.fits(t, 2, t.bytes()+roomForCheckpoints(q.Fan)) {
		return false
	}
	p.commit.GuardEntry(t.fullName(), t.mod) // whose policy it is
	w, f := q.Waiting, *q.Fan
	f.Cancel, w.Fan = reason, &f
	p.rewrite(t, q, w)
	return true
}
