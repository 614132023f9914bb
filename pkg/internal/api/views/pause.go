package views

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// PauseInForce is the pause of an entry at an instant: whether there is one, and what is
// known of it.
func PauseInForce(e *task.Entry, now time.Time) (*task.Pause, bool) {
	if !e.Paused {
		return nil, false
	}
	p := e.Pause()
	return p, p == nil || !p.Over(now)
}

// Settled is a spec without a pause that is over.
func Settled(s task.Spec, now time.Time) task.Spec {
	if s.Paused && !s.PausedUntil.IsZero() && now.After(s.PausedUntil.Time) {
		return Unpaused(s)
	}
	return s
}

// Unpaused is a spec without a pause.
func Unpaused(s task.Spec) task.Spec {
	s.Paused, s.PausedUntil, s.PauseReason = false, task.Time{}, ""
	return s
}

// ShownAs is a spec as users see it: paused if the task is.
func ShownAs(s task.Spec, e *task.Entry, now time.Time) task.Spec {
	p, paused := PauseInForce(e, now)
	switch {
	case !paused:
		return Unpaused(s)
	case p != nil:
		s.PausedUntil, s.PauseReason = p.Until, p.Reason
	}

	s.Paused = true
	return s
}
