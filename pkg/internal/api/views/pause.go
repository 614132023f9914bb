package views

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// PauseInForce returns the pause of an entry that is in force at a time. paused is false if there is none. The
// pause may be nil although paused is true, if earlier versions of Carillon recorded no details.
func PauseInForce(e *task.Entry, now time.Time) (*task.Pause, bool) {
	if !e.Paused {
		return nil, false
	}
	p := e.Pause()
	return p, p == nil || !p.Over(now)
}

// Settled returns a spec without a pause that has ended.
func Settled(s task.Spec, now time.Time) task.Spec {
	if s.Paused && !s.PausedUntil.IsZero() && now.After(s.PausedUntil.Time) {
		return Unpaused(s)
	}
	return s
}

// Unpaused returns a spec without a pause.
func Unpaused(s task.Spec) task.Spec {
	s.Paused, s.PausedUntil, s.PauseReason = false, task.Time{}, ""
	return s
}

// ShownAs returns a spec as users see it: with the pause in force, which the owner may have set, and without
// one that has ended.
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
