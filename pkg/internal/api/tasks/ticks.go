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
	// ticksAhead is how far ahead the ticks of a task are compared.
	ticksAhead = 7 * 24 * time.Hour
	// mostTicks is how many of its ticks are compared at most.
	mostTicks = 2000
	// clocksApart is how far the clocks of two zones may be apart.
	clocksApart = 26 * time.Hour
)

// aTick is a tick of a task to come.
type aTick struct {
	at, due time.Time
	before  time.Time // with jitter, where no uid tells when it falls due
}

// ticker walks over the ticks of an entry that are yet to be decided at an instant,
// as its owner will decide them.
type ticker struct {
	schedule *schedule.Schedule // nil: there are none
	uid      string             // "": the task is not there yet
	after    time.Time
	left     int64
}

// ticksOf walks over the ticks of an entry, which may be nil, that fall due later
// than now. Those that are late already are not among them: what becomes of them is
// no matter of the schedule.
func ticksOf(e *task.Entry, now time.Time) *ticker {
	t := &ticker{}

	if e == nil || !e.Ticks() {
		return t
	}

	s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return t // it does not fire
	}

	t.schedule, t.uid, t.after, t.left = s, e.UID, e.From.Time, views.RunsLeft(e, mostTicks+1)
	if until, ends := e.Silence(); ends && until.After(t.after) {
		t.after = until.Time
	}

	if due, ok := s.LastDue(now, e.UID); ok && due.After(t.after) {
		t.after = due // with jitter, a tick of the past may be due in the future
	}

	return t
}

// next is the next tick; nil if there is none.
func (t *ticker) next() *aTick {
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
		return &aTick{at: at, due: at, before: t.schedule.DueBefore(at)}
	}

	return &aTick{at: at, due: t.schedule.Due(at, t.uid)}
}

// upTo are the ticks from first on that fall due at an instant or before it, at
// most mostTicks; true if there are more.
func (t *ticker) upTo(end time.Time, first *aTick) (list []aTick, more bool) {
	for tick := first; tick != nil && !tick.due.After(end); tick = t.next() {
		if len(list) == mostTicks {
			return list, true
		}
		list = append(list, *tick)
	}

	return list, false
}

// zone is where the ticks have local times.
func (t *ticker) zone() *time.Location {
	if t.schedule == nil {
		return time.UTC
	}
	return t.schedule.Location()
}

// compareTicks tells the ticks of two entries apart, as client.TickChange defines
// it, and lists the first most of those that come, go or move. Either may be nil:
// there is none. Of a task that is not there yet nobody knows the uid: it is empty.
func compareTicks(before, after *task.Entry, now task.Time, most int) *client.TickChange {
	was, is := ticksOf(before, now.Time), ticksOf(after, now.Time)
	end := now.Add(ticksAhead)
	firstWas, firstIs := was.next(), is.next()
	for _, first := range []*aTick{firstWas, firstIs} {
		if first != nil && first.due.After(end) {
			end = first.due
		}
	}

	// A tick may move beyond the end: it is looked for a little further.
	old, more := was.upTo(end.Add(clocksApart), firstWas)
	if more {
		end = earlier(end, old[len(old)-1].due)
	}

	young, more := is.upTo(end.Add(clocksApart), firstIs)
	if more {
		end = earlier(end, young[len(young)-1].due)
	}

	c := &client.TickChange{From: now, Until: task.At(end), Ticks: []client.TickMove{}}
	for _, m := range moves(old, young, was.zone(), is.zone()) {
		if m.first().After(end) {
			break
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
			c.Ticks = append(c.Ticks, client.TickMove{Was: m.was.told(was.zone()), Is: m.is.told(is.zone())})
		}
	}

	return c
}

// move is a tick that comes, goes or moves.
type move struct{ was, is *aTick }

// first is when the earlier of the two falls due.
func (m move) first() time.Time {
	switch {
	case m.was == nil:
		return m.is.due
	case m.is == nil:
		return m.was.due
	}

	return earlier(m.was.due, m.is.due)
}

// moves tells two lists of ticks apart, in the order of their times. Two of the same
// time are one tick, which moves if it falls due at another instant. If the zone is
// another, so are two of the others for which the clocks show the same.
func moves(old, young []aTick, zoneWas, zoneIs *time.Location) []move {
	var list []move
	var gone []*aTick

	come := make(map[int64]*aTick, len(young))
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
		byClock := make(map[string]*aTick, len(come))
		for i := range young {
			if t := &young[i]; come[t.at.UnixMilli()] != nil {
				byClock[t.at.In(zoneIs).Format(time.DateTime)] = t
			}
		}

		gone = slices.DeleteFunc(gone, func(was *aTick) bool {
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

	slices.SortStableFunc(list, func(a, b move) int { return a.first().Compare(b.first()) })

	return list
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// told is a tick as it is told; nil of none.
func (t *aTick) told(zone *time.Location) *client.TickTime {
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
