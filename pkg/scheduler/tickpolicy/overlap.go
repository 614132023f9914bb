// Package tickpolicy decides by a task's policies what becomes of its ticks and of the runs that they
// become: the overlap policy (OverlapRule) says whether a tick fires, waits or is skipped while other
// runs are active, and the missed policy (DecideLate) what becomes of ticks that nobody decided in time.
//
// It is pure: it knows neither nodes nor records, and gives the same answer to the same question. The
// scheduler counts what a task does (Activity), asks, and carries the answer out if a node is free.
package tickpolicy

import "github.com/carillonhq/carillon/pkg/task"

// MaxWaiting is how many runs of one task may wait; a tick that comes on top of
// them is skipped.
const MaxWaiting = 100

// OverlapRule is what a task's policy says of runs beside each other. A run is
// active from its dispatch to its outcome: while it waits to be retried, or to be
// started after it was handed back, too.
type OverlapRule struct {
	policy string
	Most   int  // so many runs may be active; 0: any number
	room   int  // so many ticks may wait; with other policies than queue, so many runs
	Oldest bool // the oldest that waits gives way to one more; else that one does
}

// NewOverlapRule returns the rule of a task's entry.
func NewOverlapRule(e task.Entry) OverlapRule {
	r := OverlapRule{policy: e.Overlap, Most: 1, room: MaxWaiting}

	switch e.Overlap {
	case task.OverlapAllow:
		r.Most = e.MaxActive
	case task.OverlapQueue:
		r.room, r.Oldest = e.Queue.Room(), e.Queue.Drop == task.DropOldest
	}

	return r
}

// Activity is what a task does when one of its ticks comes.
type Activity struct {
	Active int // attempts in inboxes
	Begun  int // waiting runs that have been dispatched before
	Ticks  int // ticks that wait to be dispatched for the first time
	Held   int // of these, those that wait for active runs to end
	Late   int // of these, those that wait for their turn to be caught up with
	All    int // whatever waits
}

// TickFate is what becomes of a tick that is not late.
type TickFate int

const (
	Fire           TickFate = iota // at once; if no node takes it, it waits
	Wait                           // for active runs to end, or behind ticks that wait
	WaitDropOldest                 // waits, and the oldest ticks that wait are skipped for it
	Skip                           // for the runs that are active
	QueueFull                      // skipped: as many wait as may
)

// DecideTick decides a tick by what its task is doing. Late ticks that wait for their
// turn hold up none that is on time.
func (r OverlapRule) DecideTick(d Activity) TickFate {
	free := r.Free(d)
	switch {
	case r.policy == task.OverlapSkip && (!free || d.Ticks > d.Late):
		return Skip
	case r.policy == task.OverlapReplace && (!free || d.Ticks > 0):
		return Wait // the others give way, however many
	case free && r.mayPass(d):
		return Fire
	}

	return r.DecideWaitingTick(d)
}

// Free reports whether one more run may be active.
func (r OverlapRule) Free(d Activity) bool { return mayStart(r.Most, d.Active, d.Begun) }

// mayPass reports whether a tick need not wait behind others that wait.
func (r OverlapRule) mayPass(d Activity) bool {
	switch r.policy {
	case task.OverlapQueue:
		return d.Ticks == d.Late
	case task.OverlapAllow:
		return r.Most == 0 || d.Held == 0
	}

	return true
}

// DecideWaitingTick decides a tick that does not fire at once. Of the policy queue,
// only ticks take room, and none that is caught up with: as many of these wait as the
// missed policy let in.
func (r OverlapRule) DecideWaitingTick(d Activity) TickFate {
	n := d.All
	if r.policy == task.OverlapQueue {
		n = d.Ticks - d.Late
	}

	switch {
	case n < r.room || r.policy == task.OverlapReplace:
		return Wait
	case r.Oldest:
		return WaitDropOldest
	}

	return QueueFull
}

// maxDropsPerTick bounds how many ticks one that comes drops, so that a commit has room
// for them: more than one are too many only when the limit was lowered.
const maxDropsPerTick = 16

// TicksToDrop is how many waiting ticks are dropped for one more.
func (r OverlapRule) TicksToDrop(d Activity) int {
	if !r.Oldest {
		return 0
	}

	return max(0, min(d.Ticks-d.Late+1-r.room, maxDropsPerTick))
}

// Reason is why a tick waits that does not fire at once; empty: for the same
// reason as those before it.
func (r OverlapRule) Reason(d Activity) string {
	switch {
	case r.policy == task.OverlapReplace:
		return task.ReasonOverlap // by which every owner knows that it replaces
	case r.Free(d):
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

// Turn is what becomes of a run that waits.
type Turn int

const (
	TurnWait     Turn = iota
	TurnStart         // if its time has come, and a node takes it
	TurnExpire        // it is past its start deadline
	TurnReplaced      // it is replaced
)

// Candidate is a run that waits.
type Candidate struct {
	Manual   bool
	Begun    bool // it has been dispatched before
	Expired  bool // it has not, and its start deadline has passed
	Replacer bool // it is the newest tick that waits to replace others
	Newer    bool // than that one: a tick that came to light late
}

// DecideWaitingRun decides a run that waits. replacing says that a tick waits to replace
// others, others is how many begun ones go before it.
//
// What has begun gives way to a replacement; of a person's runs that have not, and
// of newer ticks, none does: they wait until the replacement has started.
func (r OverlapRule) DecideWaitingRun(c Candidate, replacing bool, active, others int) Turn {
	switch {
	case c.Expired:
		return TurnExpire
	case replacing && !c.Replacer && (c.Begun || !c.Manual && !c.Newer):
		return TurnReplaced
	case replacing && !c.Replacer:
		return TurnWait
	case mayStart(r.Most, active, others):
		return TurnStart
	}

	return TurnWait
}
