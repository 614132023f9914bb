package tickpolicy

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Ticks is the schedule of a task, for the missed policy.
type Ticks interface {
	// Missed returns the ticks in (after, upTo]: the first, the last, how many there are, and the newest
	// ones in ascending order, at most the given number. Its cost does not depend on how many ticks there
	// are.
	Missed(after, upTo time.Time, newest int) (first, last time.Time, count int64, ticks []time.Time)
	// DueBy returns an instant with this property: the ticks up to it are exactly those that are due at the
	// instant at.
	DueBy(at time.Time) time.Time
}

// lateDecision is the outcome of the ticks of a task that is behind. The oldest are missed, the newest run.
type lateDecision struct {
	Missed []MissedTicks // ascending; one range for each reason
	Run    []time.Time   // ascending
	Last   time.Time     // the last missed tick
}

// MissedTicks is a range of ticks that are missed for the same reason.
type MissedTicks struct {
	First, Last time.Time
	Count       int64
	Reason      string
}

// Lateness is what the decision about late ticks depends on, besides the schedule.
type Lateness struct {
	Policy   task.MissedPolicy
	Deadline time.Duration // start deadline, from when a tick is due; 0: none
	Opened   time.Time     // when the owner opened the shard
	// LostUntil is the last moment at which a history that a restore has lost may have decided ticks; zero: there was none.
	LostUntil time.Time
}

// DecideLate decides every tick after the instant after that is due at upTo. now is the current time.
//
//	latest  the newest tick runs, if it is within the window
//	all     the newest Limit ticks within the window run
//	skip    no tick runs, except the newest if it is still within its grace
//
// No tick that is past its start deadline runs (G22). All other ticks are missed.
//
// A tick that is due up to LostUntil does not run, whatever the policy says: it may have run in the lost history. The policy decides
// about those that are due later.
func DecideLate(l Lateness, s Ticks, after, upTo, now time.Time) lateDecision {
	var c lateDecision
	end := s.DueBy(upTo)

	if !l.LostUntil.IsZero() {
		after = c.missLost(s, after, end, l.LostUntil)
		if !end.After(after) {
			return c
		}
	}

	want, oldest := 1, now.Add(-l.Policy.Window.Std())

	switch l.Policy.Policy {
	case task.MissedAll:
		want = l.Policy.Limit
	case task.MissedSkip:
		oldest = now.Add(-l.Policy.Grace.Std())
	}

	// A start deadline that is shorter than the window takes its place.
	if expired := now.Add(-l.Deadline); l.Deadline > 0 && expired.After(oldest) {
		oldest = expired
	}

	// The ticks that may run are the newest ones that are not older than oldest.
	_, _, count, run := s.Missed(after, end, want)
	tooOld := s.DueBy(oldest.Add(-1))
	for len(run) > 0 && !run[0].After(tooOld) {
		run = run[1:]
	}

	c.Run = run

	if int64(len(run)) == count {
		return c
	}

	// The missed ticks are those before the first one that runs.
	if len(run) > 0 {
		end = run[0].Add(-1)
	}

	c.addReasons(l, s, after, end, now)

	return c
}

// missLost adds the ticks in (after, end] that are due up to an instant, because a lost history may have decided them. It returns after
// which instant the others are.
func (d *lateDecision) missLost(s Ticks, after, end, until time.Time) (rest time.Time) {
	last := s.DueBy(until)
	if last.After(end) {
		last = end
	}
	if !last.After(after) {
		return after
	}

	if first, newest, n, _ := s.Missed(after, last, 0); n > 0 {
		d.Missed, d.Last = append(d.Missed, MissedTicks{first, newest, n, task.ReasonRestored}), newest
	}

	return last
}

// addReasons divides the ticks in (after, end], which are missed, into ranges by reason. Each tick gets the
// first reason that applies: past its start deadline, past the window, due before this owner opened the
// shard, or decided late for another cause.
func (d *lateDecision) addReasons(l Lateness, s Ticks, after, end, now time.Time) {
	// reason assigns a reason to the ticks up to an instant that have none yet.
	reason := func(name string, upTo time.Time) {
		if upTo.After(end) {
			upTo = end
		}

		if !upTo.After(after) {
			return
		}

		if first, last, n, _ := s.Missed(after, upTo, 0); n > 0 {
			d.Missed, d.Last = append(d.Missed, MissedTicks{first, last, n, name}), last
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
