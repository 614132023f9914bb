package schedule

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The notes of an Occurrence.
const (
	NoteGap  = "gap"  // it stands for ticks whose local time does not exist
	NoteFold = "fold" // its local time exists twice
)

// Occurrence is a tick with the times that a user wants to see.
type Occurrence struct {
	Time  time.Time // in UTC
	Local time.Time // the same instant in the schedule's zone
	Due   time.Time // when it is due for its task's uid; zero if that is not known
	// Before is the first instant by which it is certainly due, whatever the uid; equal to Time without jitter.
	Before time.Time
	Note   string // NoteGap, NoteFold or ""; always "" for @every and @at, which have no local time
}

// MaxUpcoming is how many occurrences the function Upcoming returns at most.
const MaxUpcoming = 10_000

// Upcoming returns the next ticks later than from, up to count of them (1 to MaxUpcoming), or fewer if no more
// exist. The other arguments and the errors are those of Parse. A wrong count is an error of the field "count".
func Upcoming(t task.Timing, anchor, from time.Time, count int) ([]Occurrence, error) {
	if count < 1 || count > MaxUpcoming {
		return nil, task.Invalid(task.CodeOutOfRange, "count", "%d is not between 1 and %d", count, MaxUpcoming)
	}

	s, err := Parse(t, anchor)
	if err != nil {
		return nil, err
	}

	return s.Upcoming(from, count, ""), nil
}

// Upcoming returns the next ticks later than from, up to count of them. uid is the uid of the task, or "" if there
// is no task. Then Due is zero.
func (s *Schedule) Upcoming(from time.Time, count int, uid string) []Occurrence {
	list := []Occurrence{}
	for len(list) < count {
		tick, ok := s.Next(from)
		if !ok {
			break
		}

		o := Occurrence{Time: tick, Local: tick.In(s.Location()), Before: s.DueBefore(tick), Note: s.tickNote(tick)}
		if uid != "" {
			o.Due = s.Due(tick, uid)
		}

		list = append(list, o)
		from = tick
	}

	return list
}

// tickNote returns the note of a tick.
func (s *Schedule) tickNote(tick time.Time) string {
	p, instant := s.plan, tick.Unix()
	i := p.zone.periodAt(instant)
	st := &p.zone.periods[i]

	if tick.Nanosecond() != 0 {
		return ""
	}
	if instant == st.start && slices.ContainsFunc(p.rules, func(r rule) bool { return r.runsAfterGap(st, p.policy) }) {
		return NoteGap
	}
	if (p.zone.isRepeated(i, instant) || p.zone.occursTwice(i, instant)) && slices.ContainsFunc(p.rules, func(r rule) bool { return r.nextTick(p.zone, p.policy, instant) == instant }) {
		return NoteFold
	}

	return ""
}
