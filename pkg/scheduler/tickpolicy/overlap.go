// Package tickpolicy decides by a task's policies what happens to its ticks and waiting runs. The overlap
// policy (OverlapRule) determines whether a tick fires, waits or is skipped while other runs are active.
// The missed policy (DecideLate) determines what happens to ticks that nobody decided in time.
//
// The package is pure: the same arguments give the same result. It knows neither nodes nor records. The
// scheduler counts what a task is doing (Activity), calls these functions, and carries out the result if a
// node is free.
package tickpolicy

import "github.com/carillonhq/carillon/pkg/task"

// MaxWaiting is how many runs of one task may wait, unless its queue policy sets a limit. Further ticks are
// skipped.
const MaxWaiting = 100

// OverlapRule is a task's overlap policy. A run is active from its dispatch to its outcome, including the
// time in which it waits to be retried, or to be started after a node handed it back.
type OverlapRule struct {
	policy string // one of the task.Overlap constants
	Most   int    // how many runs may be active; 0: any number
	room   int    // how many ticks may wait (overlap queue), or how many runs (all other policies)
	Oldest bool   // when the queue is full, the oldest waiting tick is dropped; otherwise the new one is skipped
	joins  int    // ticks on time join the late ones until so many of these wait; 0: they never do
}

// NewOverlapRule returns the rule of a task's entry.
func NewOverlapRule(e task.Entry) OverlapRule {
	r := OverlapRule{policy: e.Overlap, Most: 1, room: MaxWaiting}

	switch e.Overlap {
	case task.OverlapAllow:
		r.Most = e.MaxActive
	case task.OverlapQueue:
		r.room, r.Oldest = e.Queue.Room(), e.Queue.Drop == task.DropOldest
	case task.OverlapSkip, task.OverlapReplace:
		// Without this, these policies contradict missed: all, by which every late tick runs: skip would lose the ticks that
		// fall due meanwhile, and replace the late ticks.
		if e.Missed.Policy == task.MissedAll {
			r.joins = e.Missed.Limit + MaxWaiting
		}
	}

	return r
}

// Room returns how many ticks may wait, or how many runs.
func (r OverlapRule) Room() int { return r.room }

// JoinsLate reports whether ticks on time join late ones: with overlap skip and replace, and missed all.
func (r OverlapRule) JoinsLate() bool { return r.joins > 0 }

// Activity counts what a task is doing when one of its ticks is decided.
type Activity struct {
	Active int // runs that are active because of attempts in inboxes
	Begun  int // waiting runs that were dispatched before; they count as active
	Ticks  int // waiting ticks that were not dispatched yet
	Held   int // those of Ticks that wait for active runs to end
	Late   int // those of Ticks that wait for their turn to be caught up (reason catch_up)
	After  int // waiting runs that ends of other tasks have started and that were not dispatched yet
	All    int // all waiting runs, without runs that have their parts

	// These are known only for a rule of which ticks on time join late ones.
	Catching bool // a run of a late tick is active that started later than its grace allows
	Skipping bool // the tick before was skipped because of overlap

	// TargetDown means that a run waits for the target of its request, or tries it again after that. Then no further run
	// may be active, so that not every tick becomes a run that waits for the target as well.
	TargetDown bool
}

// TickFate is what happens to a tick that is not late.
type TickFate int

const (
	// These are the fates of a tick.
	Fire           TickFate = iota // start now; if no node accepts the run, it waits
	Wait                           // wait for active runs to end, or behind other waiting ticks
	WaitDropOldest                 // wait, and drop the oldest waiting ticks
	Join                           // wait behind late ticks, as one of them
	Skip                           // do not run, because runs are active
	QueueFull                      // do not run, because too many wait
)

// DecideTick decides a tick by what its task is doing. Late ticks that wait for their turn do not delay
// ticks that are on time, except with the replace policy. The caller ensures that they get turns (HasOneTurn).
//
// With missed all, ticks on time join the late ones instead of being skipped or of replacing them. This ends when a run
// starts within its grace again. If runs take longer than the period, it would never end. So it also ends when too many
// wait: then ticks are skipped until the late ones have run.
func (r OverlapRule) DecideTick(d Activity) TickFate {
	free := r.Free(d)
	if r.joins > 0 && (d.Late > 0 || d.Catching) {
		switch {
		case d.Late < r.joins && !d.Skipping:
			return Join
		case !free || d.Ticks > d.Late || d.Skipping || r.waitsBehind(d):
			return Skip
		}

		return Fire
	}

	switch {
	case r.policy == task.OverlapSkip && (!free || d.Ticks > d.Late):
		return Skip
	case r.policy == task.OverlapReplace && (!free || d.Ticks > 0 || r.waitsBehind(d)):
		// The active runs are cancelled for this tick, and older waiting ticks are replaced. So the limit
		// of the queue does not apply.
		return Wait
	case free && r.mayPass(d):
		return Fire
	}

	return r.DecideWaitingTick(d)
}

// waitsBehind reports whether a tick must not start because a run waits that the end of another task has started. With the
// replace policy, that run would cancel the tick as soon as it is active, although the tick is newer.
func (r OverlapRule) waitsBehind(d Activity) bool {
	return r.policy == task.OverlapReplace && d.After > 0
}

// LateGoesFirst reports whether the first of several late ticks may start at once: no run is active, and with a policy that
// limits active runs, no tick waits.
func (r OverlapRule) LateGoesFirst(d Activity) bool {
	return r.Free(d) && (r.Most == 0 || d.Ticks == 0) && !r.waitsBehind(d)
}

// Free reports whether one more run may be active (G8).
func (r OverlapRule) Free(d Activity) bool {
	return !d.TargetDown && mayStart(r.Most, d.Active, d.Begun)
}

// HasOneTurn reports whether late ticks wait, and exactly one more run may be active. Then a late tick and a
// tick on time cannot both start.
func (r OverlapRule) HasOneTurn(d Activity) bool {
	return d.Late > 0 && (r.policy != task.OverlapReplace || r.joins > 0) && r.Free(d) && !r.Free(r.AfterLateStart(d)) && !r.waitsBehind(d)
}

// AfterLateStart returns what a task is doing after one of its late ticks has started.
func (r OverlapRule) AfterLateStart(d Activity) Activity {
	d.Active, d.Ticks, d.Late, d.All = d.Active+1, d.Ticks-1, d.Late-1, d.All-1
	return d
}

// mayPass reports whether a tick does not have to wait behind other waiting ticks.
func (r OverlapRule) mayPass(d Activity) bool {
	switch r.policy {
	case task.OverlapQueue:
		return d.Ticks == d.Late
	case task.OverlapAllow:
		return r.Most == 0 || d.Held == 0
	}

	return true
}

// DecideWaitingTick decides a tick that does not fire now. Ticks that are caught up do not count toward the limit: the missed
// policy has limited them already. With the queue policy, only ticks count.
func (r OverlapRule) DecideWaitingTick(d Activity) TickFate {
	n := d.All - d.Late
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

// maxDropsPerTick limits how many waiting ticks are dropped for a new one, so that a commit has room for
// that. More than one is needed only after the limit was lowered.
const maxDropsPerTick = 16

// TicksToDrop returns how many waiting ticks are dropped for a new one.
func (r OverlapRule) TicksToDrop(d Activity) int {
	if !r.Oldest {
		return 0
	}

	return max(0, min(d.Ticks-d.Late+1-r.room, maxDropsPerTick))
}

// Reason returns why a tick waits that does not fire now. An empty result means that it waits for the same
// reason as the ticks before it.
func (r OverlapRule) Reason(d Activity) string {
	switch {
	case r.policy == task.OverlapReplace:
		// Every owner recognizes a replacing tick by this reason (see state.Task.Replacer).
		return task.ReasonOverlap
	case r.Free(d):
		return ""
	case r.policy == task.OverlapAllow && mayStart(r.Most, d.Active, d.Begun):
		return task.ReasonTarget
	case r.policy == task.OverlapAllow:
		return task.ReasonLimit
	}

	return task.ReasonOverlap
}

// mayStart reports whether a run may be dispatched now. most is how many runs of the task may be active,
// active the number of those with attempts in inboxes, and begun the number of its other waiting runs that
// were dispatched before.
func mayStart(most, active, begun int) bool { return most == 0 || active+begun < most }

// Turn is what happens to a waiting run.
type Turn int

const (
	// These are the decisions about a waiting run.
	TurnWait     Turn = iota
	TurnStart         // start when its time has come, if a node accepts it
	TurnExpire        // end it, because its start deadline has passed
	TurnReplaced      // end it, because a newer tick replaces it
)

// Candidate is a waiting run to decide.
type Candidate struct {
	Manual   bool // a user requested it
	Begun    bool // it was dispatched before
	Expired  bool // its first attempt has not begun, and its start deadline has passed
	Replacer bool // it is the newest tick that waits to replace active runs
	Newer    bool // its tick is newer than the replacer's, as that of a tick which was decided late can be
	Late     bool // it is a late tick that waits for its turn

	TargetDown bool // a run of its task waits for its target (Activity.TargetDown)
}

// DecideWaitingRun decides a waiting run. replacing means that a tick waits to replace active runs. active
// is the number of runs with attempts in inboxes, and others the number of waiting runs that were
// dispatched before and precede this one.
//
// A replacement ends runs that were dispatched before, and older ticks. Manual runs that have not begun,
// newer ticks, and late ticks of which each must run wait until the replacement has started. While a run waits for its target, ticks wait. A manual run
// starts: a user may want to know whether the target is back.
func (r OverlapRule) DecideWaitingRun(c Candidate, replacing bool, active, others int) Turn {
	switch {
	case c.Expired:
		return TurnExpire
	case replacing && !c.Replacer && (c.Begun || !c.Manual && !c.Newer && !(c.Late && r.JoinsLate())):
		return TurnReplaced
	case replacing && !c.Replacer:
		return TurnWait
	case c.TargetDown && !c.Begun && !c.Manual:
		return TurnWait
	case mayStart(r.Most, active, others):
		return TurnStart
	}

	return TurnWait
}
