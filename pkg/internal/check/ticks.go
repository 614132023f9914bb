package check

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/check/utccron"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// tickSource lists the ticks of a schedule, in ms since 1970.
//
// newTickSource implements it by an oracle that shares no code with package schedule for the forms that tests use
// most: @every, also after completion, @at, @manual, nicknames, and cron expressions in UTC, with names, L, LW,
// 15W, 5L and 5#3. The oracle steps through days and seconds one by one. This is slow, but too simple to contain
// the same error as package schedule. That package computes all zones except UTC. Starts, ends and jitter are the
// oracle's own in all zones (timing.go).
type tickSource interface {
	// nextTick returns the first tick after an instant, or false if there is none.
	nextTick(after int64) (int64, bool)
}

// newTickSource returns the ticks of an entry's schedule. own reports whether the oracle computes them. If it
// supports one expression of several only through package schedule, that package computes all of them.
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

// listTicks calls f with every tick in (after, upTo], until f returns false.
func listTicks(t tickSource, after, upTo int64, f func(ms int64) bool) {
	for at, ok := t.nextTick(after); ok && at <= upTo; at, ok = t.nextTick(at) {
		if !f(at) {
			return
		}
	}
}

// hasTick reports whether an instant is a tick.
func hasTick(t tickSource, ms int64) bool {
	at, ok := t.nextTick(ms - 1)
	return ok && at == ms
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

func (b productSchedule) nextTick(after int64) (int64, bool) {
	at, ok := b.Next(timeOfMS(after))
	return at.UnixMilli(), ok
}

// neverTicks has no ticks: @manual.
type neverTicks struct{}

func (neverTicks) nextTick(int64) (int64, bool) { return 0, false }

// onceAt has one tick: @at, or a schedule that counts from the end of a run.
type onceAt int64

func (o onceAt) nextTick(after int64) (int64, bool) { return int64(o), after < int64(o) }

// fixedPeriod has the ticks of @every: anchor + k·period for k ≥ 1, in ms.
type fixedPeriod struct{ anchor, period int64 }

func (e fixedPeriod) nextTick(after int64) (int64, bool) {
	k := int64(1)
	if after > e.anchor {
		k = (after-e.anchor)/e.period + 1
	}
	return e.anchor + k*e.period, true
}

// cronTicks has the ticks of a cron expression in UTC.
type cronTicks struct{ utccron.Expression }

func (c cronTicks) nextTick(after int64) (int64, bool) { return c.Next(after) }

// parseExpression returns the ticks of one expression, or false if the oracle does not support its form or its
// zone. anchor is in ms.
func parseExpression(expr, timezone string, anchor int64) (tickSource, bool) {
	words := strings.Fields(expr)
	if len(words) == 0 {
		return nil, false
	}

	switch words[0] {
	case "@manual":
		return neverTicks{}, len(words) == 1
	case "@every":
		d, err := time.ParseDuration(words[len(words)-1])
		return fixedPeriod{anchor, d.Milliseconds()}, err == nil && d >= time.Millisecond && len(words) == 2
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
