package tickpolicy

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
	Missed []MissedTicks // ascending; one for each reason
	Run    []time.Time   // ascending
	Last   time.Time     // of the missed
}

// MissedTicks are ticks in a row that are missed for the same reason.
type MissedTicks struct {
	First, Last time.Time
	Count       int64
	Reason      string
}

// Lateness is what decides over late ticks.
type Lateness struct {
	Policy   task.MissedPolicy
	Deadline time.Duration // for the start, after a tick falls due; 0: none
	Opened   time.Time     // when the owner opened the shard
}

// DecideLate gives every tick after an instant that is due at upTo its fate, as of now.
//
//	latest  the newest runs, if it is within the window
//	all     the newest Limit within the window run
//	skip    none runs, but the newest if it is still within its grace
//
// None runs that is past its start deadline.
func DecideLate(l Lateness, s Ticks, after, upTo, now time.Time) lateDecision {
	want, oldest := 1, now.Add(-l.Policy.Window.Std())

	switch l.Policy.Policy {
	case task.MissedAll:
		want = l.Policy.Limit
	case task.MissedSkip:
		oldest = now.Add(-l.Policy.Grace.Std())
	}

	if expired := now.Add(-l.Deadline); l.Deadline > 0 && expired.After(oldest) {
		oldest = expired
	}

	end := s.DueBy(upTo)
	_, _, count, run := s.Missed(after, end, want)
	tooOld := s.DueBy(oldest.Add(-1))
	for len(run) > 0 && !run[0].After(tooOld) {
		run = run[1:]
	}

	c := lateDecision{Run: run}

	if int64(len(run)) == count {
		return c
	}

	if len(run) > 0 {
		end = run[0].Add(-1)
	}

	c.addReasons(l, s, after, end, now)

	return c
}

// addReasons gives the ticks in (after, end], which are missed, their reasons: the
// oldest ones the first that fits.
func (c *lateDecision) addReasons(l Lateness, s Ticks, after, end, now time.Time) {
	reason := func(name string, upTo time.Time) {
		if upTo.After(end) {
			upTo = end
		}

		if !upTo.After(after) {
			return
		}

		if first, last, n, _ := s.Missed(after, upTo, 0); n > 0 {
			c.Missed, c.Last = append(c.Missed, MissedTicks{first, last, n, name}), last
		}

		after = upTo
	}

	if l.Deadline > 0 {
		reason(task.ReasonDeadline, s.DueBy(now.Add(-l.Deadline-1)))
	}

	reason(task.ReasonWindow, s.DueBy(now.Add(-l.Policy.Window.Std()-1)))
	reason(task.ReasonNoOwner, s.DueBy(l.Opened.Add(-1)))
	reason(task.ReasonCameToLightLate, end)
}
