package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
)

// maxReadingsPerRound is how many attempts are read in one round: ticks are due beside them.
const maxReadingsPerRound = 600

// reading is an attempt that is to be read.
type reading struct {
	t   *taskstate.Task
	a   *taskstate.Attempt
	ask bool // to have it end, not for its node's sake
}

// neededReadings returns the attempts that are to be read now, of the tasks that want a look, and the
// instances of which it has to know first whether they are proved dead.
func (s *shardState) neededReadings(now time.Time, cleared map[string]bool) (list []reading, unknown []string) {
	for _, t := range s.looks {
		for _, a := range t.Active() {
			wanted, ask, instance := s.wantsReading(t, a, now, cleared)
			switch {
			case instance != "":
				if !slices.Contains(unknown, instance) {
					unknown = append(unknown, instance)
				}
			case !wanted:
			case len(list) == maxReadingsPerRound:
				s.wakeAt(now)
			default:
				list = append(list, reading{t, a, ask})
			}
		}
	}

	return list, unknown
}

// wantsReading reports whether an attempt is to be read now, and whether that is to have it end. If it
// may be later, the worker wakes then. unknown is its instance if it depends on whether that is
// proved dead.
func (s *shardState) wantsReading(t *taskstate.Task, a *taskstate.Attempt, now time.Time, cleared map[string]bool) (wanted, ask bool, unknown string) {
	if a.Watch != nil {
		a.Watch.Lost, a.Watch.Ask = false, false
	}

	if _, present := s.placement.Present(a.Node); present {
		if a.Watch != nil {
			a.Watch.Since = time.Time{}
		}
		ask = (t.Orphan(a.Run) || t.Replaces(now.UnixMilli()) || t.GoesWithParent(a.Run)) && !a.Watched().Asked
		return ask, ask, ""
	}

	if a.Watched().Since.IsZero() {
		return true, false, ""
	}

	waited := now.Sub(a.Watch.Since)
	ripe := waited >= a.Watch.LostAfter()
	if !ripe && waited >= s.clearedAfter && a.Watch.Unreadable == nil {
		instance := a.Watch.Held.Instance
		dead, known := cleared[instance]
		if !known && instance != "" {
			return false, false, instance
		}

		ripe = dead
	}

	if !ripe {
		again := s.clearedAfter
		if waited < again {
			again -= waited
		}
		s.wakeAt(now.Add(again))
	}

	return ripe, false, ""
}

// applyReading takes what was read of an attempt, at the time read.
func (s *shardState) applyReading(r reading, v store.Sighting, now, read time.Time) {
	watch := r.a.Watched()
	switch {
	case r.ask:
		if v.Err == nil {
			watch.Held, watch.Ask, watch.Asked = v.Held, !v.CancelRequested, v.CancelRequested
		}
	case watch.Since.IsZero():
		s.wakeAt(now.Add(s.clearedAfter))

		if v.NodePresent { // its record has not come to us
			return
		}

		if v.Err != nil {
			s.addNotice(notice{kind: attemptUnreadable, task: r.t.FullName(), run: r.a.Run, err: v.Err})
		}

		watch.Held, watch.Unreadable, watch.Since = v.Held, v.Err, read
	case v.NodePresent || v.Mod != watch.Held.Mod:
		r.a.Watch = nil
		s.wakeAt(now.Add(s.clearedAfter))
	default:
		watch.Lost = true
	}
}
