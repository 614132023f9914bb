package alert

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Limits limit how often a receiver gets a message, and how much its record contains.
type Limits struct {
	// Pace is the minimum time between the beginnings of two messages: before the first, the second and every further one. After Quiet
	// without a message, the next one is the first again.
	Pace  []time.Duration
	Quiet time.Duration
	// Retry is how long after the beginning of a failed message the next one follows: after the first failure in a row, and so on.
	Retry []time.Duration
	// Hold is how long an alert must have been closed before the receiver is told, and HoldFlapping that of one that has
	// opened three times within Flapping.
	Hold, HoldFlapping, Flapping time.Duration
	// Keys is the maximum number of alerts in AlertsSent.Delivered, and of those that a message opens. A group opens no further alert
	// while its receiver knows of so many.
	Keys int
	// Uncertain is the maximum number of alerts in AlertsSent.Uncertain. The receiver may not be told of the closing of more.
	Uncertain int
	// Runs is the maximum number of runs of a message of a group.
	Runs int
}

// LimitsOf returns the limits of a receiver. They allow three messages within six minutes or, of a group, one a minute with ten runs.
func LimitsOf(group string) Limits {
	l := DefaultLimits()
	if group == task.GroupTask {
		l.Pace = []time.Duration{0, time.Minute}
	}

	return l
}

// DefaultLimits are the limits of a receiver that gets one message about all alerts.
func DefaultLimits() Limits {
	return Limits{
		Pace: []time.Duration{0, time.Minute, 5 * time.Minute}, Quiet: 15 * time.Minute,
		Retry: []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute},
		Hold:  5 * time.Minute, HoldFlapping: time.Hour, Flapping: time.Hour,
		Keys: 5000, Uncertain: 10_000, Runs: 10,
	}
}

// mayWrite reports whether a message may be written now. A message of a group that is no retry does not wait for the time of the next
// retry: what the service has rejected says nothing about other alerts.
func (l *Limits) mayWrite(s *task.AlertsSent, now time.Time, isRetry bool) bool {
	if len(s.Past) == 0 {
		return true
	}

	recent := l.recent(s, now)
	wait := at(l.Pace, recent)
	if s.FailedInARow > 0 && isRetry {
		wait = at(l.Retry, s.FailedInARow-1)
		// The pace holds as soon as its last step is reached, whatever failed before.
		if recent >= len(l.Pace) {
			wait = max(wait, at(l.Pace, recent))
		}
	}

	return hasElapsed(s.Past[0].At, wait, now)
}

// recent returns how many messages were written in a row without a quiet time.
func (l *Limits) recent(s *task.AlertsSent, now time.Time) int {
	if len(s.Past) > 0 && hasElapsed(s.Past[0].At, l.Quiet, now) {
		return 0
	}
	return s.Recent
}

// at returns the i-th step, or the last one. It is 0 if there are no steps.
func at(steps []time.Duration, i int) time.Duration {
	if len(steps) == 0 {
		return 0
	}
	return steps[min(i, len(steps)-1)]
}

// maxSkew is by how much the clocks of nodes may differ. A time that is later than that was written with a wrong clock.
const maxSkew = time.Minute

// hasElapsed reports whether a time is at least d ago. A time that a wrong clock has put into the future delays nothing.
func hasElapsed(since task.Time, d time.Duration, now time.Time) bool {
	age := now.Sub(since.Time)
	return age >= d || age < -maxSkew
}

// holdOf returns how long an alert must have been closed before receivers are told.
func (l *Limits) holdOf(a *task.Alert) time.Duration {
	if IsFlapping(a, l.Flapping) {
		return l.HoldFlapping
	}
	return l.Hold
}

// IsFlapping reports whether the last three openings of an alert were within a time.
func IsFlapping(a *task.Alert, within time.Duration) bool {
	n := len(a.Opened)
	return n >= 2 && a.OpenedAt.Sub(a.Opened[n-2].Time) <= within
}
