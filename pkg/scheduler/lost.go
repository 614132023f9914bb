package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
)

// maxReadingsPerRound is how many attempts one round reads. Due ticks wait meanwhile.
const maxReadingsPerRound = 600

// reading is an attempt whose record must be read.
type reading struct {
	t   *taskstate.Task
	a   *taskstate.Attempt
	ask bool // to cancel it; otherwise because its node is absent
}

// neededReadings returns the attempts to read now, among the tasks that are noted for examination. cleared
// holds the instances for which it is known whether they are proved dead. unknown are instances for which
// that must be found out first: the caller does so and calls neededReadings again.
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
			case len(list) == maxReadingsPerRound: // the rest follows in the next round
				s.wakeAt(now)
			default:
				list = append(list, reading{t, a, ask})
			}
		}
	}

	return list, unknown
}

// wantsReading reports whether an attempt must be read now, and whether that is to cancel it (ask). If the
// attempt may have to be read later, the worker wakes up then. If the answer depends on whether an instance
// is proved dead, unknown is that instance.
func (s *shardState) wantsReading(t *taskstate.Task, a *taskstate.Attempt, now time.Time, cleared map[string]bool) (wanted, ask bool, unknown string) {
	// The results of an earlier round do not count. The attempt is read again before the commit that ends
	// it.
	if a.Watch != nil {
		a.Watch.Lost, a.Watch.Ask = false, false
	}

	// The node is present: the attempt is not lost. If the node was absent before, that period is over. The
	// attempt must be cancelled if its task is gone, a newer tick replaces it, or its run ends.
	if _, present := s.placement.Present(a.Node); present {
		if a.Watch != nil {
			a.Watch.Since = time.Time{}
		}
		ask = (t.Orphan(a.Run) || t.Replaces(now.UnixMilli()) || t.GoesWithParent(a.Run)) && !a.Watched().Asked
		return ask, ask, ""
	}

	// The node is absent, and the attempt has not been read since: read it for the first time.
	if a.Watched().Since.IsZero() {
		return true, false, ""
	}

	// A second reading is due after lost_after. If the instance is proved dead, clearedAfter is enough: no
	// process of it is left (G17).
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

	// Whether the instance is proved dead can change at any time, so check at intervals of clearedAfter.
	if !ripe {
		again := s.clearedAfter
		if waited < again {
			again -= waited
		}
		s.wakeAt(now.Add(again))
	}

	return ripe, false, ""
}

// applyReading applies what was read of an attempt. now is the time of the round, and read the time
// immediately after the reading.
func (s *shardState) applyReading(r reading, v store.Sighting, now, read time.Time) {
	watch := r.a.Watched()
	switch {
	case r.ask:
		// Skip a cancel that was requested before, by the API or by a former owner.
		if v.Err == nil {
			watch.Held, watch.Ask, watch.Asked = v.Held, !v.CancelRequested, v.CancelRequested
		}
	case watch.Since.IsZero(): // first reading
		s.wakeAt(now.Add(s.clearedAfter))

		if v.NodePresent { // the node's record has not reached this node's mirror yet
			return
		}

		if v.Err != nil {
			s.addNotice(notice{kind: attemptUnreadable, task: r.t.FullName(), run: r.a.Run, err: v.Err})
		}

		// The time of absence starts after the reading, so that it is never overestimated.
		watch.Held, watch.Unreadable, watch.Since = v.Held, v.Err, read
	case v.NodePresent || v.Mod != watch.Held.Mod:
		// Second reading: the node has been back, or its new session has adopted the attempt. Start over.
		r.a.Watch = nil
		s.wakeAt(now.Add(s.clearedAfter))
	default:
		// Absent at both readings, and the record is unchanged: the attempt is lost. The commit compares both
		// again.
		watch.Lost = true
	}
}

// lostAfter returns the cluster's current setting. It applies where there is no attempt, as for a part that
// waits for its node. An attempt has its own value (see Watch.LostAfter).
func (p *plan) lostAfter() time.Duration { return p.cluster.EffectiveLostAfter().Std() }
