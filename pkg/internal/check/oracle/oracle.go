// Package oracle computes the ticks of a task and when they are due, so that package check can judge what the
// owners of shards decided. All times are in ms since 1970.
//
// It shares no code with package schedule for the forms that tests use most: @every, also after completion, @at,
// @manual, nicknames, and cron expressions in UTC, with names, L, LW, 15W, 5L and 5#3 (see package utccron). It
// steps through days and seconds one by one. This is slow, but too simple to contain the same error as package
// schedule. Starts, ends and jitter are the oracle's own in all zones.
//
// Cron expressions in any other zone, and forms that the oracle does not support, are left to package schedule.
// Their ticks are then not verified independently; UsesSchedule tells the caller.
//
// Package oracle reads neither clocks nor records. It ignores pauses and max_runs, which package check applies.
package oracle

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// Timing holds an entry's ticks and when they are due. A tick is due at its time, or with jitter up to that much
// later.
type Timing struct {
	source       tickSource
	uid          string // part of the hash that spreads due times
	jitter       int64  // in ms; 0: none
	usesSchedule bool
}

// NewTiming returns the timing of an entry, or an error if its schedule cannot be parsed.
func NewTiming(e task.Entry) (*Timing, error) {
	source, own, err := newTickSource(e)
	if err != nil {
		return nil, err
	}

	if !e.Start.IsZero() || !e.End.IsZero() {
		source = boundedTicks{source, unixMS(e.Start), unixMS(e.End)}
	}

	return &Timing{source: source, uid: e.UID, jitter: int64(e.Jitter) / 1e6, usesSchedule: !own}, nil
}

// UsesSchedule reports whether package schedule computes the ticks, because the oracle does not support the
// schedule. If the oracle does not support one expression of several, package schedule computes all of them.
func (t *Timing) UsesSchedule() bool { return t.usesSchedule }

// NextTick returns the first tick after an instant, or false if there is none.
func (t *Timing) NextTick(after int64) (int64, bool) { return t.source.nextTick(after) }

// HasTick reports whether an instant is a tick.
func (t *Timing) HasTick(ms int64) bool {
	at, ok := t.NextTick(ms - 1)
	return ok && at == ms
}

// ListTicks calls f with every tick in (after, upTo], until f returns false.
func (t *Timing) ListTicks(after, upTo int64, f func(ms int64) bool) {
	for at, ok := t.NextTick(after); ok && at <= upTo; at, ok = t.NextTick(at) {
		if !f(at) {
			return
		}
	}
}

// HasJitter reports whether ticks can be due later than their time. A nil Timing has no jitter.
func (t *Timing) HasJitter() bool { return t != nil && t.jitter > 0 }

// DueAt returns when a tick is due: with jitter, later by a hash of uid and tick, but before the next tick. The
// formula is part of the protocol: owners compute the same hash, so that a new owner knows when a tick is due.
// With a nil Timing, a tick is due at its time.
func (t *Timing) DueAt(tick int64) int64 {
	if t == nil || t.jitter == 0 {
		return tick
	}

	width := t.jitter
	if next, ok := t.NextTick(tick); ok {
		width = min(width, next-tick)
	}

	return tick + int64(xxhash.Sum64String(t.uid+"/"+strconv.FormatInt(tick, 10))%uint64(width))
}

// DueUpTo returns an instant such that all ticks up to it are due at or before at, and no tick after it is. Such an
// instant exists because jitter never delays a tick past the next one, so that ticks are due in their order. With a
// nil Timing, it is at itself.
func (t *Timing) DueUpTo(at int64) int64 {
	if t == nil || t.jitter == 0 {
		return at
	}

	upTo := max(at-t.jitter, 0)
	t.ListTicks(upTo, at, func(tick int64) bool {
		if t.DueAt(tick) > at {
			return false
		}
		upTo = tick
		return true
	})

	return upTo
}

// unixMS converts a time to ms since 1970. A time that is not set becomes 0.
func unixMS(t task.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
