package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Ticks answers what a task's schedule has between two instants.
type Ticks interface {
	// Missed is all ticks in (after, upTo]: the first, the last, how many, and
	// the newest of them in ascending order.
	Missed(after, upTo time.Time, newest int) (first, last time.Time, count int64, ticks []time.Time)
	// DueBy is an instant such that the ticks up to it are those that are due at at,
	// or before it.
	DueBy(at time.Time) time.Time
}

// lateDecision is what becomes of the ticks of a task that is behind: the oldest are
// missed, the newest run.
type lateDecision struct {
	missed []missedTicks // ascending; one for each reason
	run    []time.Time   // ascending
	last   time.Time     // of the missed
}

// missedTicks are ticks in a row that are missed for the same reason.
type missedTicks struct {
	first, last time.Time
	count       int64
	reason      string
}

// lateness is what decides over late ticks.
type lateness struct {
	policy   task.MissedPolicy
	deadline time.Duration // for the start, after a tick falls due; 0: none
	opened   time.Time     // when the owner opened the shard
}

// decideLate gives every tick after an instant that is due at upTo its fate, as of now.
//
//	latest  the newest runs, if it is within the window
//	all     the newest Limit within the window run
//	skip    none runs, but the newest if it is still within its grace
//
// None runs that is past its start deadline.
func decideLate(l lateness, s Ticks, after, upTo, now time.Time) lateDecision {
	want, oldest := 1, now.Add(-l.policy.Window.Std())
	switch l.policy.Policy {
	case task.MissedAll:
		want = l.policy.Limit
	case task.MissedSkip:
		oldest = now.Add(-l.policy.Grace.Std())
	}
	if expired := now.Add(-l.deadline); l.deadline > 0 && expired.After(oldest) {
		oldest = expired
	}
	end := s.DueBy(upTo)
	_, _, count, run := s.Missed(after, end, want)
	tooOld := s.DueBy(oldest.Add(-1))
	for len(run) > 0 && !run[0].After(tooOld) {
		run = run[1:]
	}
	c := lateDecision{run: run}
	if int64(len(run)) == count {
		return c
	}
	if len(run) > 0 {
		end = run[0].Add(-1)
	}
	c.explain(l, s, after, end, now)
	return c
}

// explain gives the ticks in (after, end], which are missed, their reasons: the
// oldest ones the first that fits.
func (c *lateDecision) explain(l lateness, s Ticks, after, end, now time.Time) {
	reason := func(name string, upTo time.Time) {
		if upTo.After(end) {
			upTo = end
		}
		if !upTo.After(after) {
			return
		}
		if first, last, n, _ := s.Missed(after, upTo, 0); n > 0 {
			c.missed, c.last = append(c.missed, missedTicks{first, last, n, name}), last
		}
		after = upTo
	}
	if l.deadline > 0 {
		reason(task.ReasonDeadline, s.DueBy(now.Add(-l.deadline-1)))
	}
	reason(task.ReasonWindow, s.DueBy(now.Add(-l.policy.Window.Std()-1)))
	reason(task.ReasonNoOwner, s.DueBy(l.opened.Add(-1)))
	reason(task.ReasonCameToLightLate, end)
}
