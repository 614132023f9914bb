package schedule

import (
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Due is when a tick of the task with this uid falls due: at the tick, or with
// jitter up to that much later, by a stable hash of uid and tick, and always
// before the next tick falls due. It may be later than the schedule's end.
func (s *Schedule) Due(tick time.Time, uid string) time.Time {
	width := s.jitterWidth(tick)
	if width <= 1 {
		return tick
	}

	var space [64]byte
	text := append(append(space[:0], uid...), '/')
	text = strconv.AppendInt(text, tick.UnixMilli(), 10)
	delay := xxhash.Sum64(text) % uint64(width)

	return tick.Add(time.Duration(delay) * time.Millisecond)
}

// DueBefore is the first instant by which a tick is due, whatever the uid: later
// than any that Due returns, or the tick itself if there is no jitter.
func (s *Schedule) DueBefore(tick time.Time) time.Time {
	return tick.Add(time.Duration(s.jitterWidth(tick)) * time.Millisecond)
}

// jitterWidth is within how many ms after a tick it falls due: the jitter, or up to the
// next tick if that is sooner.
func (s *Schedule) jitterWidth(tick time.Time) int64 {
	if s.plan.jitter == 0 {
		return 0
	}

	at := clampToMS(tick)
	if next := s.nextAfter(at); next != noInstant {
		return min(s.plan.jitter, next-at)
	}

	return s.plan.jitter
}

// LastDue returns the last tick that is due at upTo, for the task with this uid;
// false if none is.
func (s *Schedule) LastDue(upTo time.Time, uid string) (tick time.Time, ok bool) {
	at := s.previousTo(clampToMS(upTo))
	if at != noInstant && s.Due(instantOf(at), uid).After(upTo) {
		at = s.previousTo(at - 1) // which is due before the tick after it
	}

	if at == noInstant {
		return time.Time{}, false
	}

	return instantOf(at), true
}

func instantOf(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
