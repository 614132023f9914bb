package schedule

import (
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Due returns when a tick of the task with this uid is due: at the tick, or with jitter up to that much later, by a
// hash of uid and tick. It is always before the next tick. It may be later than the schedule's end.
//
// The hash is part of the protocol. It must not change between versions, because owners of different versions would
// otherwise disagree about when a tick is due.
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

// DueBefore returns the first instant by which a tick is certainly due, whatever the uid: later than any that Due
// returns, or the tick itself without jitter.
func (s *Schedule) DueBefore(tick time.Time) time.Time {
	return tick.Add(time.Duration(s.jitterWidth(tick)) * time.Millisecond)
}

// jitterWidth returns within how many ms after a tick it is due: the jitter, or the time to the next tick if that
// is shorter.
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

// LastDue returns the last tick that is due at upTo for the task with this uid, or false if none is.
func (s *Schedule) LastDue(upTo time.Time, uid string) (tick time.Time, ok bool) {
	at := s.previousTo(clampToMS(upTo))
	if at != noInstant && s.Due(instantOf(at), uid).After(upTo) {
		at = s.previousTo(at - 1) // due before the tick that follows it
	}

	if at == noInstant {
		return time.Time{}, false
	}

	return instantOf(at), true
}

// instantOf converts ms to a time in UTC.
func instantOf(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
