package scheduler

import "github.com/carillonhq/carillon/pkg/task"

// overlapRule is what a task's policy says of runs beside each other. A run is
// active from its dispatch to its outcome: while it waits to be retried, or to be
// started after it was handed back, too.
type overlapRule struct {
	policy string
	most   int  // so many runs may be active; 0: any number
	room   int  // so many ticks may wait; with other policies than queue, so many runs
	oldest bool // the oldest that waits gives way to one more; else that one does
}

func newOverlapRule(e task.Entry) overlapRule {
	r := overlapRule{policy: e.Overlap, most: 1, room: maxWaiting}
	switch e.Overlap {
	case task.OverlapAllow:
		r.most = e.MaxActive
	case task.OverlapQueue:
		r.room, r.oldest = e.Queue.Room(), e.Queue.Drop == task.DropOldest
	}
	return r
}

// doing is what a task does when one of its ticks comes.
type doing struct {
	active int // attempts in inboxes
	begun  int // waiting runs that have been dispatched before
	ticks  int // ticks that wait to be dispatched for the first time
	held   int // of these, those that wait for active runs to end
	late   int // of these, those that wait for their turn to be caught up with
	all    int // whatever waits
}

// tickFate is what becomes of a tick that is not late.
type tickFate int

const (
	fateFire           tickFate = iota // at once; if no node takes it, it waits
	fateWait                           // for active runs to end, or behind ticks that wait
	fateWaitDropOldest                 // waits, and the oldest ticks that wait are skipped for it
	fateSkip                           // for the runs that are active
	fateQueueFull                      // skipped: as many wait as may
)

// decideTick decides a tick by what its task is doing. Late ticks that wait for their
// turn hold up none that is on time.
func (r overlapRule) decideTick(d doing) tickFate {
	free := r.free(d)
	switch {
	case r.policy == task.OverlapSkip && (!free || d.ticks > d.late):
		return fateSkip
	case r.policy == task.OverlapReplace && (!free || d.ticks > 0):
		return fateWait // the others give way, however many
	case free && r.passes(d):
		return fateFire
	}
	return r.decideWaitingTick(d)
}

// free reports whether one more run may be active.
func (r overlapRule) free(d doing) bool { return mayStart(r.most, d.active, d.begun) }

// passes reports whether a tick need not wait behind others that wait.
func (r overlapRule) passes(d doing) bool {
	switch r.policy {
	case task.OverlapQueue:
		return d.ticks == d.late
	case task.OverlapAllow:
		return r.most == 0 || d.held == 0
	}
	return true
}

// decideWaitingTick decides a tick that does not fire at once. Of the policy queue,
// only ticks take room, and none that is caught up with: as many of these wait as the
// missed policy let in.
func (r overlapRule) decideWaitingTick(d doing) tickFate {
	n := d.all
	if r.policy == task.OverlapQueue {
		n = d.ticks - d.late
	}

	switch {
	case n < r.room || r.policy == task.OverlapReplace:
		return fateWait
	case r.oldest:
		return fateWaitDropOldest
	}
	return fateQueueFull
}

// maxDropsPerTick bounds how many ticks one that comes drops, so that a commit has room
// for them: more than one are too many only when the limit was lowered.
const maxDropsPerTick = 16

// ticksToDrop is how many waiting ticks are dropped for one more.
func (r overlapRule) ticksToDrop(d doing) int {
	if !r.oldest {
		return 0
	}

	return max(0, min(d.ticks-d.late+1-r.room, maxDropsPerTick))
}

// reason is why a tick waits that does not fire at once; empty: for the same
// reason as those before it.
func (r overlapRule) reason(d doing) string {
	switch {
	case r.policy == task.OverlapReplace:
		return task.ReasonOverlap // by which every owner knows that it replaces
	case r.free(d):
		return ""
	case r.policy == task.OverlapAllow:
		return task.ReasonLimit
	}
	return task.ReasonOverlap
}

// mayStart reports whether a waiting run may be dispatched now. most is how many
// runs of the task may be active, active the number of its attempts in inboxes,
// begun that of its other waiting runs which have been dispatched before.
func mayStart(most, active, begun int) bool { return most == 0 || active+begun < most }

// runTurn is what becomes of a run that waits.
type runTurn int

const (
	turnWait     runTurn = iota
	turnStart            // if its time has come, and a node takes it
	turnExpire           // it is past its start deadline
	turnReplaced         // it is replaced
)

// candidate is a run that waits.
type candidate struct {
	manual   bool
	begun    bool // it has been dispatched before
	expired  bool // it has not, and its start deadline has passed
	replacer bool // it is the newest tick that waits to replace others
	newer    bool // than that one: a tick that came to light late
}

// decideWaitingRun decides a run that waits. replacing says that a tick waits to replace
// others, others is how many begun ones go before it.
//
// What has begun gives way to a replacement; of a person's runs that have not, and
// of newer ticks, none does: they wait until the replacement has started.
func (r overlapRule) decideWaitingRun(c candidate, replacing bool, active, others int) runTurn {
	switch {
	case c.expired:
		return turnExpire
	case replacing && !c.replacer && (c.begun || !c.manual && !c.newer):
		return turnReplaced
	case replacing && !c.replacer:
		return turnWait
	case mayStart(r.most, active, others):
		return turnStart
	}
	return turnWait
}

// doing is what t does now.
func (t *taskState) doing() (d doing) {
	if t.activity == nil {
		return d
	}
	d.active = t.attempts()
	for _, q := range t.activity.queue {
		if task.IsPart(q.ID) || t.orphan(q.ID) {
			continue
		}
		if !q.UnderWay() {
			d.all++
		}
		switch {
		case q.dispatchedBefore():
			d.begun++
		case q.Trigger != task.TriggerManual:
			d.ticks++
			switch q.Reason {
			case task.ReasonCatchUp:
				d.late++
			case task.ReasonOverlap, task.ReasonLimit:
				d.held++
			}
		}
	}
	return d
}

// replacer is the newest tick of t that waits to replace others; nil if none does.
func (t *taskState) replacer(expired func(*waiting) bool) *waiting {
	if t.how == nil || t.how.overlap != task.OverlapReplace {
		return nil
	}
	for i := len(t.queue()) - 1; i >= 0; i-- {
		q := t.queue()[i]
		if q.Trigger != task.TriggerManual && !q.dispatchedBefore() && q.Reason == task.ReasonOverlap && !expired(q) {
			return q
		}
	}
	return nil
}

// replaces reports whether t's active attempts are to end for a tick that waits.
func (t *taskState) replaces(now int64) bool {
	return len(t.active()) > 0 && t.replacer(func(q *waiting) bool { return q.expired(now) }) != nil
}

// expired reports whether a waiting run can not start any more: it has not begun,
// and its start deadline has passed. Handed back, it has not begun to run.
func (q *waiting) expired(now int64) bool {
	return !q.StartBefore.IsZero() && q.Attempt <= 1 && !q.UnderWay() && now > q.StartBefore.UnixMilli()
}
