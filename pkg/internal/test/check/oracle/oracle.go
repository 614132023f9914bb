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
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/test/check/utccron"
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

// tickSource lists the ticks of a schedule.
type tickSource interface {
	// nextTick returns the first tick after an instant, or false if there is none.
	nextTick(after int64) (int64, bool)
}

// newTickSource returns the ticks of an entry's schedule, without its start and end. own reports whether the oracle
// computes them, not package schedule.
func newTickSource(e task.Entry) (t tickSource, own bool, err error) {
	if period, is := completionPeriod(e); is {
		return onceAt(max(unixMS(e.Anchor)+period.Milliseconds(), unixMS(e.Start))), true, nil
	}

	var all tickUnion
	for _, expr := range e.Schedule {
		t, ok := parseExpression(expr, e.Timezone, e.Anchor.UnixMilli())
		if !ok {
			s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
			return productSchedule{s}, false, err
		}

		all = append(all, t)
	}

	return all, true, nil
}

// tickUnion has the ticks of several schedules. A tick that several of them have counts once.
type tickUnion []tickSource

// nextTick returns the first tick of any of the schedules.
func (u tickUnion) nextTick(after int64) (int64, bool) {
	var first int64
	var found bool
	for _, t := range u {
		if at, ok := t.nextTick(after); ok && (!found || at < first) {
			first, found = at, true
		}
	}

	return first, found
}

// productSchedule has the ticks that package schedule computes.
type productSchedule struct{ *schedule.Schedule }

func (p productSchedule) nextTick(after int64) (int64, bool) {
	at, ok := p.Next(time.UnixMilli(after).UTC())
	return at.UnixMilli(), ok
}

// neverTicks has no ticks: @manual.
type neverTicks struct{}

func (neverTicks) nextTick(int64) (int64, bool) { return 0, false }

// onceAt has one tick: @at, or a schedule that counts from the end of a run.
type onceAt int64

func (o onceAt) nextTick(after int64) (int64, bool) { return int64(o), after < int64(o) }

// fixedPeriod has the ticks of @every: anchor + k·period for k ≥ 1.
type fixedPeriod struct{ anchor, period int64 }

func (f fixedPeriod) nextTick(after int64) (int64, bool) {
	k := int64(1)
	if after > f.anchor {
		k = (after-f.anchor)/f.period + 1
	}
	return f.anchor + k*f.period, true
}

// cronTicks has the ticks of a cron expression in UTC.
type cronTicks struct{ utccron.Expression }

func (c cronTicks) nextTick(after int64) (int64, bool) { return c.Next(after) }

// boundedTicks has the ticks from start to end, both inclusive; 0 means no bound.
type boundedTicks struct {
	tickSource
	start, end int64
}

func (b boundedTicks) nextTick(after int64) (int64, bool) {
	if b.start != 0 {
		after = max(after, b.start-1)
	}
	at, ok := b.tickSource.nextTick(after)
	return at, ok && (b.end == 0 || at <= b.end)
}

// parseExpression returns the ticks of one expression, or false if the oracle does not support its form or its
// zone.
func parseExpression(expr, timezone string, anchor int64) (tickSource, bool) {
	words := strings.Fields(expr)
	if len(words) == 0 {
		return nil, false
	}

	switch words[0] {
	case "@manual", "@reboot":
		return neverTicks{}, len(words) == 1
	case "@every":
		d, err := task.ParseDuration("", words[len(words)-1])
		return fixedPeriod{anchor, d.Std().Milliseconds()}, err == nil && d.Std() >= time.Millisecond && len(words) == 2
	case "@at":
		at, err := time.Parse(time.RFC3339Nano, words[len(words)-1])
		return onceAt(at.UnixMilli()), err == nil && len(words) == 2
	}

	if timezone != "" && timezone != "UTC" {
		return nil, false
	}

	c, ok := utccron.Parse(expr)

	return cronTicks{c}, ok
}

// CountsFromCompletion reports whether a schedule counts from the end of a run, such as "@every 5m after
// completion". Such a schedule has one tick for each anchor.
func CountsFromCompletion(e task.Entry) bool {
	_, ok := completionPeriod(e)
	return ok
}

// completionPeriod returns the period of a schedule that counts from the end of a run, and false for any other
// schedule.
func completionPeriod(e task.Entry) (time.Duration, bool) {
	if len(e.Schedule) != 1 {
		return 0, false
	}

	words := strings.Fields(e.Schedule[0])
	if len(words) != 4 || words[0] != "@every" || words[2] != "after" || words[3] != "completion" {
		return 0, false
	}

	d, err := task.ParseDuration("", words[1])

	return d.Std(), err == nil && d.Std() >= time.Millisecond
}
