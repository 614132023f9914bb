package oracle

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/check/utccron"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

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

func (b productSchedule) nextTick(after int64) (int64, bool) {
	at, ok := b.Next(time.UnixMilli(after).UTC())
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

// CountsFromCompletion reports whether a schedule counts from the end of a run, such as "@every 5m after
// completion". Such a schedule has one tick for each anchor.
func CountsFromCompletion(e task.Entry) bool {
	_, is := completionPeriod(e)
	return is
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

	d, err := time.ParseDuration(words[1])

	return d, err == nil && d >= time.Millisecond
}
