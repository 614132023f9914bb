package tasks

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// ticksAhead is how far ahead the ticks of two versions of a task are compared.
	ticksAhead = 7 * 24 * time.Hour
	// maxTicks is the maximum number of ticks of each version that are compared.
	maxTicks = 2000
	// clocksApart is the maximum difference between the clocks of two time zones, from UTC−12 to UTC+14. A tick
	// that only moves with the zone moves by no more than that.
	clocksApart = 26 * time.Hour
)

// upcomingTick is a future tick of a task. It is due at the tick's time plus jitter.
type upcomingTick struct {
	at, due time.Time
	before  time.Time // with jitter and no uid: the latest time at which the tick can be due
}

// ticker iterates over the undecided ticks of an entry, in the way in which the owner of its shard will decide
// them.
type ticker struct {
	schedule *schedule.Schedule // nil: no ticks
	uid      string             // "": the task has not been written yet
	after    time.Time          // the tick that was returned last, or where the iteration begins
	left     int64              // how many ticks may still become runs
}

// ticksOf returns a ticker over the ticks of an entry that are due later than now. e may be nil, for a task
// that does not exist. Late ticks are left out, because their outcome depends on the policies and not on the
// schedule.
func ticksOf(e *task.Entry, now time.Time) *ticker {
	t := &ticker{}

	if e == nil || !e.Ticks() {
		return t
	}

	s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return t // the owner does not fire an entry that it cannot parse
	}

	t.schedule, t.uid, t.after, t.left = s, e.UID, e.From.Time, views.RunsLeft(e, maxTicks+1)
	if until, ends := e.Silence(); ends && until.After(t.after) {
		t.after = until.Time
	}

	if due, ok := s.LastDue(now, e.UID); ok && due.After(t.after) {
		t.after = due // with jitter, a tick whose time has passed can still be due in the future
	}

	return t
}

// nextTick returns the next tick, or nil if there is none.
func (t *ticker) nextTick() *upcomingTick {
	if t.schedule == nil || t.left <= 0 {
		return nil
	}

	at, ok := t.schedule.Next(t.after)
	if !ok {
		return nil
	}

	t.after = at
	t.left--
	if t.uid == "" {
		return &upcomingTick{at: at, due: at, before: t.schedule.DueBefore(at)}
	}

	return &upcomingTick{at: at, due: t.schedule.Due(at, t.uid)}
}

// upTo returns the ticks from first on that are due no later than end, at most maxTicks. more is true if the
// list was cut off.
func (t *ticker) upTo(end time.Time, first *upcomingTick) (list []upcomingTick, more bool) {
	for tick := first; tick != nil && !tick.due.After(end); tick = t.nextTick() {
		if len(list) == maxTicks {
			return list, true
		}
		list = append(list, *tick)
	}

	return list, false
}

// location returns the time zone for the local times of the ticks.
func (t *ticker) location() *time.Location {
	if t.schedule == nil {
		return time.UTC
	}
	return t.schedule.Location()
}

// compareTicks compares the ticks of two entries, as client.TickChange defines it, and lists the first most
// ticks that are added, removed or moved. Either entry may be nil, if the task does not exist before or after
// the change. A task that does not exist yet has an empty uid.
//
// Both lists are compared over the same span: ticksAhead, extended to the first tick of each entry, and
// shortened where a list was cut off.
func compareTicks(before, after *task.Entry, now task.Time, most int) *client.TickChange {
	was, is := ticksOf(before, now.Time), ticksOf(after, now.Time)
	end := now.Add(ticksAhead)
	firstWas, firstIs := was.nextTick(), is.nextTick()
	for _, first := range []*upcomingTick{firstWas, firstIs} {
		if first != nil && first.due.After(end) {
			end = first.due
		}
	}

	// A tick near the end may move beyond it. It is found by reading clocksApart further.
	old, more := was.upTo(end.Add(clocksApart), firstWas)
	if more {
		end = earlierOf(end, old[len(old)-1].due)
	}

	young, more := is.upTo(end.Add(clocksApart), firstIs)
	if more {
		end = earlierOf(end, young[len(young)-1].due)
	}

	c := &client.TickChange{From: now, Until: task.At(end), Ticks: []client.TickMove{}}
	for _, m := range diffTicks(old, young, was.location(), is.location()) {
		if m.firstDue().After(end) {
			break // the moves are sorted, so all others lie beyond the compared span as well
		}

		switch {
		case m.was == nil:
			c.Come++
		case m.is == nil:
			c.Go++
		default:
			c.Move++
		}

		if len(c.Ticks) < most {
			c.Ticks = append(c.Ticks, client.TickMove{Was: m.was.asTickTime(was.location()), Is: m.is.asTickTime(is.location())})
		}
	}

	return c
}

// move is a tick that is added (was is nil), removed (is is nil) or moved.
type move struct{ was, is *upcomingTick }

// firstDue returns the earlier of the two due times.
func (m move) firstDue() time.Time {
	switch {
	case m.was == nil:
		return m.is.due
	case m.is == nil:
		return m.was.due
	}

	return earlierOf(m.was.due, m.is.due)
}

// diffTicks compares two lists of ticks and returns the differences in the order of their due times. Two ticks with
// the same time are the same tick, which moves if its due time differs. If the time zone changes, two remaining
// ticks with the same local time also count as one tick that moves.
func diffTicks(old, young []upcomingTick, zoneWas, zoneIs *time.Location) []move {
	var list []move
	var gone []*upcomingTick

	// come holds the new ticks that have no counterpart yet.
	come := make(map[int64]*upcomingTick, len(young))
	for i := range young {
		come[young[i].at.UnixMilli()] = &young[i]
	}

	for i := range old {
		was, at := &old[i], old[i].at.UnixMilli()
		is := come[at]
		delete(come, at)

		switch {
		case is == nil:
			gone = append(gone, was)
		case !is.due.Equal(was.due):
			list = append(list, move{was, is})
		}
	}

	if zoneWas.String() != zoneIs.String() {
		byClock := make(map[string]*upcomingTick, len(come))
		for i := range young {
			if t := &young[i]; come[t.at.UnixMilli()] != nil {
				byClock[t.at.In(zoneIs).Format(time.DateTime)] = t
			}
		}

		gone = slices.DeleteFunc(gone, func(was *upcomingTick) bool {
			clock := was.at.In(zoneWas).Format(time.DateTime)
			is := byClock[clock]
			if is != nil {
				list = append(list, move{was, is})
				delete(byClock, clock)
				delete(come, is.at.UnixMilli())
			}

			return is != nil
		})
	}

	for _, was := range gone {
		list = append(list, move{was: was})
	}

	for i := range young {
		if is := &young[i]; come[is.at.UnixMilli()] != nil {
			list = append(list, move{is: is})
		}
	}

	slices.SortStableFunc(list, func(a, b move) int { return a.firstDue().Compare(b.firstDue()) })

	return list
}

// earlierOf returns the earlier of two times.
func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// asTickTime converts a tick to the form of the API; nil stays nil.
func (t *upcomingTick) asTickTime(zone *time.Location) *client.TickTime {
	if t == nil {
		return nil
	}

	told := &client.TickTime{Time: task.At(t.at), Local: t.at.In(zone).Format(localLayout)}
	if !t.due.Equal(t.at) {
		told.DueAt = task.At(t.due)
	}

	if t.before.After(t.at) {
		told.DueBefore = task.At(t.before)
	}

	return told
}
