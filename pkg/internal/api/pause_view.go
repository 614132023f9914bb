package api

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// inForce is the pause of an entry at an instant: whether there is one, and what is
// known of it.
func inForce(e *task.Entry, now time.Time) (*task.Pause, bool) {
	if !e.Paused {
		return nil, false
	}
	p := e.Pause()
	return p, p == nil || !p.Over(now)
}

// settled is a spec without a pause that is over.
func settled(s task.Spec, now time.Time) task.Spec {
	if s.Paused && !s.PausedUntil.IsZero() && now.After(s.PausedUntil.Time) {
		return unpaused(s)
	}
	return s
}

func unpaused(s task.Spec) task.Spec {
	s.Paused, s.PausedUntil, s.PauseReason = false, task.Time{}, ""
	return s
}

// shownAs is a spec as users see it: paused if the task is.
func shownAs(s task.Spec, e *task.Entry, now time.Time) task.Spec {
	p, paused := inForce(e, now)
	switch {
	case !paused:
		return unpaused(s)
	case p != nil:
		s.PausedUntil, s.PauseReason = p.Until, p.Reason
	}
	s.Paused = true
	return s
}
