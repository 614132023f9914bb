package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run with parts lives in the queue from when it has them until all have ended;
// see "Fan out" in docs/architecture.md. Its record says which parts are left to
// give out. A part that is not left is in an inbox, in the queue (to be tried
// again), or has ended: then it is on record under parts/, until its parent is in
// history.

// returned is how a part ended.
type returned struct {
	task.Part
	parent string
	mod    int64
}

// roomForPart is a generous guess of the bytes of a part in its parent's records.
const roomForPart = 512

// roomForFan is what the record of a fan-out may have more than another's, before it
// is known how many nodes it is for.
const roomForFan = 64 << 10

// tellEvery is how often at most a run's record is written only to say how many of
// its parts have ended.
const tellEvery = time.Second

// fan is the parts that a run of t has if it begins now; or why it cannot.
func (p *plan) fan(t *taskState) (*task.Fan, string) {
	target := t.how.target
	nodes := p.w.e.cfg.Fleet.namesByLoad(t.how.selector, p.now)
	f := &task.Fan{Count: target.Parts, Stagger: target.Stagger}
	switch {
	case len(nodes) == 0:
		p.looksForNodes(t)
		return nil, task.ReasonNoNode
	case target.Count == task.All && len(nodes) > task.MaxParts, int(target.Count) > len(nodes):
		p.looksForNodes(t)
		return nil, task.ReasonCount
	case target.Count == task.All:
		f.Nodes = nodes
	case target.Parts == 0:
		f.Nodes = nodes[:target.Count] // the least loaded
	}
	if f.Nodes != nil {
		slices.Sort(f.Nodes)
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
		run.Owner = p.w.e.cfg.Node
	}
	run.DispatchedAt = task.At(p.now)
	return run
}

// fanOut has a tick become a run with parts.
func (p *plan) fanOut(t *taskState, run task.Run, f *task.Fan) {
	p.w.spanEnds(t)
	q := task.Waiting{Run: p.begin(run, f)}
	t.started = true // what waits of the task counts it from the next commit on
	p.commit.Enqueue(t.ref(p.w.shard), q)
	p.ran(t, run.ScheduledTime.UnixMilli())
	p.then = append(p.then, func(rev int64) {
		p.w.enqueued(t, &waiting{Waiting: q, mod: rev})
		p.w.look(t)
	})
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
			p.giveBack()
		}
		return p.waitsFor(t, q, reason)
	}
	if !p.fits(t, 2, t.bytes()) {
		if q.paced() {
			p.giveBack()
		}
		return false
	}
	p.commit.GuardEntry(t.fullName(), t.mod)
	w := q.Waiting
	w.Run = p.begin(w.Run, f)
	p.rewrite(t, q, w)
	t.started = true // its first part goes with the next commit
	return true
}

// rewrite puts another version of a queue record.
func (p *plan) rewrite(t *taskState, q *waiting, w task.Waiting) {
	p.commit.Requeue(t.ref(p.w.shard), w, q.mod)
	p.then = append(p.then, func(rev int64) {
		q.Waiting, q.mod, q.toldAt = w, rev, p.now
		p.w.look(t)
	})
}

// parent sees to a run that has its parts: it ends it if all have ended, asks for its
// end if it is replaced, gives out the next part if it may. false: there is no room.
func (p *plan) parent(t *taskState, q *waiting, what turn) bool {
	ended, succeeded := t.back(q)
	active := q.Fan.Count - q.Fan.Kept - len(q.Fan.Left) - ended
	ending := q.Fan.Cancel != ""
	switch {
	case active == 0 && (ending || len(q.Fan.Left) == 0):
		return p.endParent(t, q)
	case !ending && what == givesWay:
		return p.cancelParent(t, q, task.ReasonReplaced)
	case !ending && what == starts && len(q.Fan.Left) > 0 && !p.isFrozen(t):
		if done, ok := p.giveOut(t, q, ended, succeeded); done || !ok {
			return ok
		}
	}
	if active > 0 && !p.seek(t, q) {
		return false
	}
	return p.tell(t, q, ended, succeeded)
}

// back counts the parts of a run that have ended, and how many succeeded.
func (t *taskState) back(q *waiting) (ended, succeeded int) {
	for _, r := range t.live.returned {
		if r.parent != q.ID {
			continue
		}
		ended++
		if r.State == task.Succeeded {
			succeeded++
		}
	}
	return ended, succeeded
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
		p.w.wakeAt(at)
		return true
	}
	if !p.fits(t, 1, t.bytes()) {
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
	if !p.fits(t, 2, t.bytes()) {
		return false
	}
	p.commit.GuardEntry(t.fullName(), t.mod) // whose policy it is
	w, f := q.Waiting, *q.Fan
	f.Cancel, w.Fan = reason, &f
	p.rewrite(t, q, w)
	return true
}

// giveOut gives the first part that can go to its node; done says that the commit
// does something about the run. ok is false if there is no room.
func (p *plan) giveOut(t *taskState, q *waiting, ended, succeeded int) (done, ok bool) {
	if at := q.NotBefore.Time; at.After(p.now) {
		p.w.wakeAt(at)
		return false, true
	}
	for at, index := range q.Fan.Left {
		n, gone, found := p.nodeOf(t, q, index)
		switch {
		case gone:
			return p.giveUp(t, q, at, ended, succeeded)
		case !found && q.Fan.Nodes == nil:
			return false, true
		case !found:
			continue
		case t.started:
			p.unpick(n)
			p.then = append(p.then, func(int64) { p.w.look(t) })
			return false, true
		}
		if !p.fits(t, 4+t.sticks(), 3*t.bytes()+len(q.Fan.Nodes)*roomForPart/8) {
			p.unpick(n)
			return false, false
		}
		w := q.Waiting
		w.Fan = withCounts(q, ended, succeeded)
		w.Fan.Left = slices.Delete(slices.Clone(q.Fan.Left), at, at+1)
		if q.Fan.Stagger > 0 {
			w.NotBefore = task.At(p.now.Add(q.Fan.Stagger.Std()))
		}
		p.attempt.Run, p.attempt.Env = p.partRun(t, q, index), q.Env
		p.dispatch(t, n, -1)
		p.commit.Dispatch(&p.attempt, t.action(), n.Revision)
		p.commit.GuardEntry(t.fullName(), t.mod)
		p.rewrite(t, q, w)
		return true, true
	}
	return false, true
}

// giveUp ends a part whose node has been away for as long as lost attempts are
// waited for.
func (p *plan) giveUp(t *taskState, q *waiting, at, ended, succeeded int) (done, ok bool) {
	if !p.fits(t, 3, t.bytes()+roomForRecord) {
		return false, false
	}
	end := p.partRun(t, q, q.Fan.Left[at])
	end.State, end.Reason, end.EndedAt, end.Attempt = task.Lost, task.ReasonNodeGone, task.At(p.now), 0
	end.Node = q.Fan.Nodes[q.Fan.Left[at]]
	w := q.Waiting
	w.Fan = withCounts(q, ended, succeeded)
	w.Fan.Left = slices.Delete(slices.Clone(q.Fan.Left), at, at+1)
	p.commit.EndPart(t.ref(p.w.shard), end)
	p.rewrite(t, q, w)
	p.ends(t, end)
	return true, true
}

// ends takes into memory that the commit has ended a part.
func (p *plan) ends(t *taskState, end task.Run) {
	p.then = append(p.then, func(rev int64) { p.w.takeBack(t, end.ID, end.AsPart(), rev) })
}

// partRun is the run that a part is, before its first attempt.
func (p *plan) partRun(t *taskState, q *waiting, index int) task.Run {
	return task.Run{
		ID: task.PartID(q.ID, index), UID: q.UID, Namespace: q.Namespace, Task: q.Task, Shard: q.Shard, ScheduledTime: q.ScheduledTime,
		DueAt: q.DueAt, Trigger: task.TriggerPart, Owner: p.w.e.cfg.Node, Attempt: 1, CreatedAt: task.At(p.now), PartCount: q.Fan.Count,
	}
}

// nodeOf picks the node for a part of a run: its own, if it has one. gone: that has
// been away for too long.
func (p *plan) nodeOf(t *taskState, q *waiting, index int) (n *task.Node, gone, ok bool) {
	if index >= len(q.Fan.Nodes) {
		n, ok = p.pickPart(t, index)
		return n, false, ok
	}
	name := q.Fan.Nodes[index]
	if n, ok = p.w.e.cfg.Fleet.pickNamed(name, p.now); ok {
		delete(q.away, name)
		return n, false, true
	}
	since, known := q.away[name]
	if !known {
		if q.away == nil {
			q.away = map[string]time.Time{}
		}
		since = p.now
		q.away[name] = since
	}
	if until := since.Add(p.w.e.cfg.LostAfter); p.now.Before(until) {
		p.w.wakeAt(until)
		return nil, false, false
	}
	return nil, true, false
}

// unpick gives back what nodeOf picked.
func (p *plan) unpick(n *task.Node) { p.w.e.cfg.Fleet.Take(n.Name) }

// parentOf is the run that a part belongs to, if it is under way.
func (t *taskState) parentOf(part string) *waiting {
	id, _, is := task.ParentOf(part)
	if !is || t.live == nil {
		return nil
	}
	for _, q := range t.live.queue {
		if q.ID == id && q.UnderWay() {
			return q
		}
	}
	return nil
}

// endsWithParent is why a part is to end with its run; "": it is not.
func (t *taskState) endsWithParent(part string) (reason, who string) {
	if q := t.parentOf(part); q != nil {
		return q.Fan.Cancel, q.CancelledBy
	}
	return "", ""
}

// goesWithParent reports whether an attempt is of a part that is to end with its run.
func (t *taskState) goesWithParent(part string) bool {
	reason, _ := t.endsWithParent(part)
	return reason != ""
}

// part sees to a part that waits for another attempt. false: there is no room.
func (p *plan) part(t *taskState, q *waiting) bool {
	parent, index := t.parentOf(q.ID), 0
	if parent != nil {
		_, index, _ = task.ParentOf(q.ID)
	}
	switch {
	case parent == nil && t.knowsParent(q.ID): // it cannot be read: nobody knows
		return true
	case parent == nil:
		if !p.fits(t, 1, roomForRecord) {
			return false
		}
		p.dequeue(t, q)
		return true
	case parent.Fan.Cancel != "":
		return p.endWaitingPart(t, q, parent, task.Cancelled, parent.Fan.Cancel)
	case p.isFrozen(t):
		return true
	}
	if at := t.notBefore(q); at.After(p.now) {
		p.w.wakeAt(at)
		return true
	}
	if t.started {
		p.then = append(p.then, func(int64) { p.w.look(t) })
		return true
	}
	n, gone, ok := p.nodeOf(t, parent, index)
	switch {
	case gone:
		return p.endWaitingPart(t, q, parent, task.Lost, task.ReasonNodeGone)
	case !ok:
		return true
	case !p.fits(t, 2+t.sticks(), (1+t.sticks())*t.bytes()):
		p.unpick(n)
		return false
	}
	p.attempt.Run, p.attempt.Env = q.Run, q.Env
	p.dispatch(t, n, -1)
	p.commit.Dispatch(&p.attempt, t.action(), n.Revision)
	p.commit.GuardEntry(t.fullName(), t.mod)
	p.commit.GuardQueued(t.ref(p.w.shard), parent.ID, parent.mod) // it is not to end
	p.dequeue(t, q)
	return true
}

// endWaitingPart ends a part out of the queue.
func (p *plan) endWaitingPart(t *taskState, q, parent *waiting, state task.State, reason string) bool {
	if !p.fits(t, 2, 2*roomForRecord) {
		return false
	}
	end := q.Run
	end.State, end.Reason, end.EndedAt, end.CancelledBy = state, reason, task.At(p.now), parent.CancelledBy
	p.dequeue(t, q)
	p.commit.Record(t.ref(p.w.shard), end)
	p.ends(t, end)
	p.then = append(p.then, func(int64) { p.w.look(t) })
	return true
}

// knowsParent reports whether the queue has a record of the run that a part belongs
// to, if only one that cannot be read.
func (t *taskState) knowsParent(part string) bool {
	id, _, _ := task.ParentOf(part)
	return t.live != nil && (slices.Contains(t.live.unreadable, id) || slices.ContainsFunc(t.live.queue, func(q *waiting) bool { return q.ID == id }))
}

// endParent puts a run whose parts have all ended into history. false: there is no
// room.
func (p *plan) endParent(t *taskState, q *waiting) bool {
	size := len(q.Message) + q.Fan.Count*roomForPart + 4*roomForRecord
	if !p.fits(t, 3, min(size, roomForParent)) {
		return false
	}
	end := concluded(t, q, p.now)
	ref := t.ref(p.w.shard)
	p.dequeue(t, q)
	p.commit.Record(ref, end)
	if end.State == task.Failed {
		p.commit.BuryParent(ref, end, q.Env)
	}
	p.then = append(p.then, func(int64) { p.w.look(t) }) // another may start now, and the parts go
	return true
}

// roomForParent is what the two records of a run with MaxParts parts take at most.
const roomForParent = 640 << 10

// concluded is how a run whose parts have ended has ended itself.
func concluded(t *taskState, q *waiting, now time.Time) task.Run {
	end, f := q.Run, *q.Fan
	f.Parts, f.Ended, f.Succeeded = make([]task.Part, 0, f.Count), 0, 0
	cut := len(f.Left) > 0
	for _, i := range f.Left {
		f.Parts = append(f.Parts, task.Part{Index: i, State: task.Cancelled, Reason: f.Cancel})
	}
	for _, r := range t.live.returned {
		if r.parent != q.ID {
			continue
		}
		f.Parts = append(f.Parts, r.Part)
		cut = cut || r.State == task.Cancelled
		if r.State == task.Succeeded {
			f.Succeeded++
		}
		if at := r.StartedAt; !at.IsZero() && (end.StartedAt.IsZero() || at.Before(end.StartedAt.Time)) {
			end.StartedAt = at
		}
	}
	f.Ended, f.Left = len(f.Parts), nil
	slices.SortFunc(f.Parts, func(a, b task.Part) int { return a.Index - b.Index })
	end.Fan, end.EndedAt, end.NotBefore = &f, task.At(now), task.Time{}
	due := end.ScheduledTime
	if !end.DueAt.IsZero() {
		due = end.DueAt
	}
	if !end.StartedAt.IsZero() {
		end.LatenessMS = new(max(0, end.StartedAt.Sub(due.Time).Milliseconds()))
	}
	switch {
	case f.Cancel != "" && cut:
		end.State, end.Reason = task.Cancelled, f.Cancel
	case f.Met():
		end.State, end.Reason, end.CancelledBy = task.Succeeded, "", ""
	default:
		end.State, end.Reason, end.CancelledBy = task.Failed, task.ReasonParts, ""
		end.Message = shortfall(f)
	}
	return end
}

// shortfall says which parts were missed, for a person.
func shortfall(f task.Fan) string {
	text := fmt.Sprintf("%d of %d parts succeeded, %d had to", f.Succeeded+f.Kept, f.Count, f.Need)
	for n, p := range f.Parts {
		if p.State != task.Succeeded {
			text += fmt.Sprintf("; part %d", p.Index)
			if p.Node != "" {
				text += " on " + p.Node
			}
			text += fmt.Sprintf(": %s (%s)", p.State, p.Reason)
			if len(text) > 400 && n < len(f.Parts)-1 {
				return text + "; …"
			}
		}
	}
	return text
}

// seek ends the parts of a run that are nowhere: not left, not in an inbox, not in the
// queue, not ended. Somebody has deleted their record. They are lost when that has
// been so for as long as it takes to be found otherwise. false: there is no room.
func (p *plan) seek(t *taskState, q *waiting) bool {
	nowhere := map[int]bool{}
	for _, i := range q.Fan.Numbers() {
		nowhere[i] = true
	}
	for _, i := range q.Fan.Left {
		delete(nowhere, i)
	}
	found := func(id string) {
		if parent, i, is := task.ParentOf(id); is && parent == q.ID {
			delete(nowhere, i)
		}
	}
	for id := range t.live.returned {
		found(id)
	}
	for _, a := range t.live.active {
		found(a.run)
	}
	for _, other := range t.live.queue {
		found(other.ID)
	}
	for _, id := range t.live.unreadable {
		found(id)
	}
	if len(nowhere) == 0 {
		q.missing = time.Time{}
		return true
	}
	if q.missing.IsZero() || p.now.Before(q.missing) {
		q.missing = p.now
	}
	if until := q.missing.Add(p.w.e.cfg.LostAfter); p.now.Before(until) {
		p.w.wakeAt(until)
		return true
	}
	return p.endNowhere(t, q, nowhere)
}

func (p *plan) endNowhere(t *taskState, q *waiting, nowhere map[int]bool) bool {
	for _, i := range slices.Sorted(maps.Keys(nowhere)) {
		if !p.fits(t, 3, t.bytes()) {
			return false
		}
		end := p.partRun(t, q, i)
		end.State, end.Reason, end.EndedAt, end.Message = task.Lost, task.ReasonBadEntry, task.At(p.now), "its record is gone"
		p.commit.EndPart(t.ref(p.w.shard), end)
		p.ends(t, end)
		p.w.log.Error("a part of a run is nowhere on record; it is lost", zap.String("task", t.fullName()), zap.String("run", end.ID))
	}
	return true
}

// applyPart takes note of how a part has ended. Its record goes when that of its run
// is in history, or when its task is gone.
func (w *worker) applyPart(ev *store.ShardEvent) {
	t := w.taskOf(ev)
	if ev.Deleted {
		delete(w.purges, ev.Key)
		if t.live != nil {
			delete(t.live.returned, ev.Run)
		}
		w.drop(t)
		return
	}
	w.ended(t, ev.Run, ev.Mod)
	end, err := store.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		end = task.Run{ID: ev.Run, State: task.Failed, Reason: task.ReasonBadEntry}
		w.log.Error("the record of a part cannot be read; it counts as failed", zap.String("task", t.fullName()), zap.String("run", ev.Run), zap.Error(err))
	}
	w.takeBack(t, ev.Run, end.AsPart(), ev.Mod)
}

// takeBack notes that a part has ended.
func (w *worker) takeBack(t *taskState, id string, p task.Part, mod int64) {
	parent, _, is := task.ParentOf(id)
	if !is {
		return
	}
	l := w.lively(t)
	if l.returned == nil {
		l.returned = map[string]returned{}
	}
	l.returned[id] = returned{p, parent, mod}
	w.look(t)
}

// forgetParts has the records of parts deleted whose run has ended.
func (p *plan) forgetParts(t *taskState) {
	if t.live == nil || len(t.live.returned) == 0 {
		return
	}
	ref := t.ref(p.w.shard)
	for id, r := range t.live.returned {
		if !t.knowsParent(id) {
			p.w.purges[p.w.keys().Ended(ref, id)] = r.mod
		}
	}
}
