package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Ticks answers what a schedule has between two instants.
type Ticks interface {
	// Missed is all ticks in (after, upTo]: the first, the last, how many, and
	// the newest of them in ascending order.
	Missed(after, upTo time.Time, newest int) (first, last time.Time, count int64, ticks []time.Time)
}

// catchUp is what becomes of the ticks of a task that is behind: the oldest are
// missed, as one range, the newest run.
type catchUp struct {
	missed      int64
	first, last time.Time // of the missed
	reason      string
	run         []time.Time // ascending
}

// behind gives every tick of (after, upTo] its fate by policy, as of now.
//
//	latest  the newest runs, if it is within the window
//	all     the newest Limit within the window run
//	skip    none runs, but the newest if it is still within its grace
func behind(p task.MissedPolicy, s Ticks, after, upTo, now time.Time) catchUp {
	want, oldest := 1, now.Add(-p.Window.Std())
	switch p.Policy {
	case task.MissedAll:
		want = p.Limit
	case task.MissedSkip:
		oldest = now.Add(-p.Grace.Std())
	}
	first, _, count, newest := s.Missed(after, upTo, want+1)
	run := newest[max(0, len(newest)-want):]
	for len(run) > 0 && run[0].Before(oldest) {
		run = run[1:]
	}
	c := catchUp{run: run, missed: count - int64(len(run))}
	if c.missed > 0 {
		c.first = first
		c.last = newest[len(newest)-len(run)-1]
		c.reason = task.ReasonMissed
		if c.last.Before(now.Add(-p.Window.Std())) {
			c.reason = task.ReasonWindow
		}
	}
	return c
}

// fate is what becomes of one tick that is on time.
type fate int

const (
	fires fate = iota
	skipped
)

// overlap decides a tick by what its task is doing: busy says that a run of it
// is active, or that one which a tick gave rise to waits.
func overlap(policy string, busy bool) fate {
	if busy && policy == task.OverlapSkip {
		return skipped
	}
	return fires
}

// mayStart reports whether a waiting run may be dispatched now. active is the
// number of the task's attempts in inboxes, begun that of its other waiting
// runs which have been dispatched before (retries, handed back).
func mayStart(policy string, active, begun int) bool {
	return policy == task.OverlapAllow || active == 0 && begun == 0
}
