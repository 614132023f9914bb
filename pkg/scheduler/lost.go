package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// watch is what a worker has found out of an attempt whose node is gone, or that
// is to end: its task is gone, or a newer tick replaces it.
type watch struct {
	held  record.Held // of a record that cannot be read, what its key says
	since time.Time   // when the node was read as absent, with this record; zero: not yet
	lost  bool        // it was so all along: the attempt is lost
	// unreadable is why its record cannot be read. Nobody knows of which instance
	// it is, so that it is never proved dead.
	unreadable error
	// ask: it is to be asked to end; asked: it has been.
	ask   bool
	asked bool
}

// lostAfter is how long the attempt is waited for while its node is away: what its record
// says, which the node goes by, too. If the record cannot be read, nobody here knows what
// the node goes by. Then it is the longest that a record can say: with any shorter time
// the attempt's process might still run on a node that is cut off when others take over.
func (v *watch) lostAfter() time.Duration {
	if v.unreadable != nil {
		return task.MaxLostAfter.Std()
	}
	return v.held.EffectiveLostAfter().Std()
}

// maxReadingsPerRound is how many attempts are read in one round: ticks are due beside them.
const maxReadingsPerRound = 600

// reading is an attempt that is to be read.
type reading struct {
	t   *taskState
	a   *attempt
	ask bool // to have it end, not for its node's sake
}

// readings returns the attempts that are to be read now, of the tasks that want a look, and the
// instances of which it has to know first whether they are proved dead.
func (s *shardState) readings(now time.Time, cleared map[string]bool) (list []reading, unknown []string) {
	for _, t := range s.looks {
		for _, a := range t.active() {
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
func (s *shardState) wantsReading(t *taskState, a *attempt, now time.Time, cleared map[string]bool) (wanted, ask bool, unknown string) {
	if a.watch != nil {
		a.watch.lost, a.watch.ask = false, false
	}

	if _, present := s.placement.Present(a.node); present {
		if a.watch != nil {
			a.watch.since = time.Time{}
		}
		ask = (t.orphan(a.run) || t.replaces(now.UnixMilli()) || t.goesWithParent(a.run)) && !a.watched().asked
		return ask, ask, ""
	}

	if a.watched().since.IsZero() {
		return true, false, ""
	}

	waited := now.Sub(a.watch.since)
	ripe := waited >= a.watch.lostAfter()
	if !ripe && waited >= s.clearedAfter && a.watch.unreadable == nil {
		instance := a.watch.held.Instance
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

// sighted takes what was read of an attempt, at the time read.
func (s *shardState) sighted(r reading, v store.Sighting, now, read time.Time) {
	watch := r.a.watched()
	switch {
	case r.ask:
		if v.Err == nil {
			watch.held, watch.ask, watch.asked = v.Held, !v.CancelRequested, v.CancelRequested
		}
	case watch.since.IsZero():
		s.wakeAt(now.Add(s.clearedAfter))
		if v.NodePresent { // its record has not come to us
			return
		}
		if v.Err != nil {
			s.notify(notice{kind: attemptUnreadable, task: r.t.fullName(), run: r.a.run, err: v.Err})
		}
		watch.held, watch.unreadable, watch.since = v.Held, v.Err, read
	case v.NodePresent || v.Mod != watch.held.Mod:
		r.a.watch = nil
		s.wakeAt(now.Add(s.clearedAfter))
	default:
		watch.lost = true
	}
}
