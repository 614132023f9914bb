// Package schedule parses the schedules of tasks, rejects invalid ones, and computes their ticks.
//
// A schedule is a cron expression of five fields, or six with seconds first, a nickname such as @daily, @every, @at
// @manual or @reboot. A task has up to sixteen of them. Its ticks are the union of theirs, between a start and an end if it
// has them. docs/schedules.md describes the language. Two forms are accepted from users but are not schedules yet:
// H, a value that is derived from the task's name (Spread), and @in or a local @at, a time relative to now (Resolve). Check
// accepts them. Parse requires that they are resolved.
//
// Guarantees:
//
//   - Next(t) is later than t, a whole millisecond, and the earliest such tick.
//   - Every method ends in bounded time, and Next allocates nothing. Ticks exist from 1970-01-02 to 2100. So Next
//     looks ahead by a century at most, and returns false if no tick is left.
//   - A tick is due at its time, or with jitter a little later (Due), but before the next tick. So ticks are due
//     in their order.
//   - The same text has the same ticks on every host that runs the same build, because the package contains its
//     own time zone database.
//   - No input makes it panic. Whatever it rejects is a *task.Error that names the field.
//
// How it works: an expression becomes bit sets (rule), and a zone becomes periods of one offset each (zone).
// Inside a period, local clocks are plain arithmetic. At the start of a period, if the clock jumped, the task's
// DST policy decides:
//
//	        period 1           |          period 2
//	local   01:00 … 01:59:59   | 03:00 …           a gap: ticks from 02:00 to 02:59:59 have
//	                           |                   no instant; run-after puts one tick at |
//	local   02:00 … 02:59:59   | 02:00 … 02:59:59  a fold: these ticks have two instants;
//	                           |                   first leaves those after | out
//
// The policy does not apply to expressions whose hour field starts with *. They have a tick at every instant at
// which the local clock matches.
//
// The package does not read the clock, uses no etcd keys, and does no input or output.
package schedule

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// MaxExpressions is how many expressions a task may have.
const MaxExpressions = 16

// Schedule is the parsed schedule of a task, with its time zone. It is immutable and safe for concurrent use. It is
// small, because tasks with equal schedules share the parsed plan.
type Schedule struct {
	plan   *plan
	anchor int64 // in ms; used only by @every and by schedules that count from the end of a run
}

// plan is the part of a schedule that does not depend on the task. Plans are cached and shared, so a plan never
// changes after it was parsed.
type plan struct {
	rules  []rule  // the distinct cron expressions
	every  []int64 // periods in ms, ascending; none is a multiple of another
	at     []int64 // instants in ms, ascending, distinct
	after  int64   // in ms: the period of @every … after completion, which cannot be combined; 0: none
	zone   *zone
	policy policy // what cron expressions do at clock changes
	text   string // the expressions as written; "": only @at

	first, last int64 // in ms; ticks lie between them, both inclusive
	jitter      int64 // in ms; 0: none
}

// Parse parses the expressions of a task, 1 to MaxExpressions of them. The ticks are their union: two ticks at one
// instant count as one. The time zone is an exact IANA name, or "" for UTC. Empty fields of the DST policy stand
// for the defaults.
//
// @every has ticks at anchor + k·period, k ≥ 1, where anchor is the task's creation, truncated to milliseconds.
// @every … after completion has one tick, at anchor + period, or at the start if that is later. Its anchor is the
// task's creation at first, and then the end of each run. Ticks lie between start and end, both inclusive, which
// are in the years 2000 to 2100. Jitter is 0 to 24 hours.
//
// The error is a *task.Error of the field "schedule" (in a list "schedule[0]", "schedule[1]", …), "timezone",
// "dst.gap", "dst.fold", "start", "end" or "jitter". Parse rejects a schedule that never has a tick, whatever the
// anchor, with task.CodeNeverFires. It also rejects H and @in.
func Parse(t task.Timing, anchor time.Time) (*Schedule, error) {
	p, err := sharedPlans.getPlan(t)
	if err != nil {
		return nil, err
	}
	return &Schedule{plan: p, anchor: clampToMS(anchor)}, nil
}

// Anchored returns the same schedule with another anchor.
func (s *Schedule) Anchored(anchor time.Time) Schedule {
	return Schedule{plan: s.plan, anchor: clampToMS(anchor)}
}

// Check rejects what no task may have: what Parse rejects, except for H and @in if their syntax is valid.
func Check(t task.Timing) error {
	if !slices.ContainsFunc(t.Schedule, isUnresolved) {
		_, err := sharedPlans.getPlan(t)
		return err
	}

	// Expressions with H or @in have no plan to cache, because their ticks depend on the task's name or on the
	// time.
	p := &plan{}
	if err := p.parseExpressions(t.Schedule, true); err != nil {
		return err
	}

	return p.setTiming(t)
}

// isUnresolved reports whether an expression contains H or is an @in, which Parse rejects and Check accepts.
func isUnresolved(expr string) bool {
	return UsesHash(expr) || isDelay(expr)
}

// newPlan parses a timing without the cache.
func newPlan(t task.Timing) (*plan, error) {
	p := &plan{text: textOf(t.Schedule)}
	if err := p.parseExpressions(t.Schedule, false); err != nil {
		return nil, err
	}
	if err := p.setTiming(t); err != nil {
		return nil, err
	}

	return p, p.checkFires(t)
}

// setTiming sets everything except the expressions.
func (p *plan) setTiming(t task.Timing) (err error) {
	if p.zone, err = findZone(t.Timezone); err != nil {
		return err
	}
	if p.policy, err = newPolicy(t.DST); err != nil {
		return err
	}

	return p.setBounds(t)
}

// parseExpressions parses the expressions. With written, they may contain H and @in. Then they are only checked,
// and the plan must not be used for ticks.
func (p *plan) parseExpressions(exprs []string, written bool) error {
	switch {
	case len(exprs) == 0:
		return task.Invalid(task.CodeRequired, "schedule", "a schedule is required: a cron expression, @every, @at, @manual or @reboot")
	case len(exprs) > MaxExpressions:
		return task.Invalid(task.CodeTooMany, "schedule", "has %d expressions; at most %d are allowed", len(exprs), MaxExpressions)
	}

	for i, text := range exprs {
		name := fieldName(exprs, i)
		e, err := parseExpression(name, text, written)
		switch {
		case err != nil:
			return err
		case e.after != 0 && len(exprs) > 1:
			return task.Invalid(task.CodeBadSchedule, name, "%s: a schedule that counts from the end of a run cannot be combined with others", task.Quote(text))
		case e.after != 0:
			p.after = e.after
		case e.in != 0, e.local != "":
		case e.cron != nil:
			if !slices.Contains(p.rules, *e.cron) {
				p.rules = append(p.rules, *e.cron)
			}
		case e.every != 0:
			p.every = append(p.every, e.every)
		case e.at != 0:
			p.at = append(p.at, e.at)
		case len(exprs) > 1:
			return task.Invalid(task.CodeBadSchedule, name, "%s has no ticks and cannot be combined with others", task.Quote(text))
		}
	}

	// Bring the parts into the form that the methods expect: ascending, distinct, and without periods that others
	// include.
	slices.Sort(p.at)
	p.at = slices.Clip(slices.Compact(p.at))
	p.rules = slices.Clip(p.rules)
	slices.Sort(p.every)
	p.every = withoutMultiples(p.every)

	return nil
}

// fieldName returns the name of an expression's field, as errors show it.
func fieldName(exprs []string, i int) string {
	if len(exprs) == 1 {
		return "schedule"
	}
	return fmt.Sprintf("schedule[%d]", i)
}

// Manual reports whether the schedule is @manual or @reboot, so that it never has ticks.
func (s *Schedule) Manual() bool { return s.plan.isManual() }

// isManual reports whether the plan is @manual or @reboot: none of its other parts is set.
func (p *plan) isManual() bool {
	return len(p.rules) == 0 && len(p.every) == 0 && len(p.at) == 0 && p.after == 0
}

// Location returns the schedule's time zone.
func (s *Schedule) Location() *time.Location { return s.plan.zone.location }

// Next returns the first tick later than after, in UTC and whole milliseconds. It returns false if no tick is left
// up to the schedule's end, or up to the end of 2100.
func (s *Schedule) Next(after time.Time) (time.Time, bool) {
	next := s.nextAfter(clampToMS(after))
	if next == noInstant {
		return time.Time{}, false
	}
	return time.UnixMilli(next).UTC(), true
}

// nextAfter returns the first tick later than after, in ms, or noInstant.
func (s *Schedule) nextAfter(after int64) int64 {
	p, next := s.plan, int64(math.MaxInt64)
	after = max(after, p.first-1)
	if after >= p.last {
		return noInstant
	}

	// Cron expressions have ticks only at whole seconds.
	if from := after/1000 + 1; from < endSecond {
		for i := range p.rules {
			if tick := p.rules[i].nextTick(p.zone, p.policy, from); tick != noInstant {
				next = min(next, tick*1000)
			}
		}
	}

	// The first multiple of the period after after.
	for _, period := range p.every {
		ticks := max(after-s.anchor, 0) / period // how many ticks there are up to after
		next = min(next, s.anchor+(ticks+1)*period)
	}

	// The instants are ascending, so the first later one is enough.
	for _, at := range p.at {
		if at > after {
			next = min(next, at)
			break
		}
	}

	if p.after != 0 {
		if tick := s.completionTick(); tick > after {
			next = tick
		}
	}

	if next > p.last {
		return noInstant
	}

	return next
}

// previousTo returns the last tick not later than to, in ms, or noInstant.
func (s *Schedule) previousTo(to int64) int64 {
	p, last := s.plan, noInstant
	to = min(to, p.last)
	if to < p.first {
		return noInstant
	}

	for i := range p.rules {
		if tick := p.rules[i].previousTick(p.zone, p.policy, to/1000); tick != noInstant {
			last = max(last, tick*1000)
		}
	}

	// The last multiple of the period up to to. The anchor itself is not a tick.
	for _, period := range p.every {
		if ticks := (to - s.anchor) / period; to > s.anchor && ticks > 0 {
			last = max(last, s.anchor+ticks*period)
		}
	}

	for _, at := range p.at {
		if at <= to {
			last = max(last, at)
		}
	}

	if p.after != 0 {
		if tick := s.completionTick(); tick <= to {
			last = tick
		}
	}

	if last < p.first {
		return noInstant
	}

	return last
}

// clampToMS truncates an instant to ms, and limits it to the years 1 to 9999, so that arithmetic in ms cannot
// overflow.
func clampToMS(t time.Time) int64 {
	const (
		year1    = -62135596800
		year9999 = 253402300799
	)
	switch seconds := t.Unix(); {
	case seconds < year1:
		return year1 * 1000
	case seconds > year9999:
		return year9999 * 1000
	}

	return t.UnixMilli()
}

// setBounds sets the times between which ticks lie, and the jitter. It rejects what task.Spec.Validate also
// rejects, because a timing is not always part of a validated task.
func (p *plan) setBounds(t task.Timing) error {
	p.first, p.last = firstSecond*1000, endSecond*1000-1
	for _, b := range []struct {
		field string
		at    task.Time
		to    *int64
	}{{"start", t.Start, &p.first}, {"end", t.End, &p.last}} {
		switch {
		case b.at.IsZero():
			continue
		case b.at.Unix() < firstWritten || b.at.Unix() >= endSecond:
			return task.Invalid(task.CodeBadTime, b.field, "%s is not in the years 2000 to 2100", b.at.UTC().Format(time.RFC3339))
		}

		*b.to = b.at.UnixMilli()
	}

	if p.last < p.first {
		return task.Invalid(task.CodeBadTime, "end", "%s is before start, %s", formatTime(t.End), formatTime(t.Start))
	}
	if t.Jitter < 0 || t.Jitter > task.MaxJitter {
		return task.Invalid(task.CodeOutOfRange, "jitter", "%s is not between 0s and %s", t.Jitter, task.MaxJitter)
	}

	p.jitter = t.Jitter.Std().Milliseconds()

	return nil
}

// checkFires rejects a plan that has no tick between start and end. It accepts every plan that counts from an
// anchor, which it does not know.
func (p *plan) checkFires(t task.Timing) error {
	if p.isManual() || len(p.every) > 0 || p.after != 0 {
		return nil
	}

	s := Schedule{plan: p}
	if s.nextAfter(p.first-1) != noInstant {
		return nil
	}

	const never = "never fires "

	switch {
	case t.End.IsZero():
		return task.Invalid(task.CodeNeverFires, "schedule", never+"after start, %s", formatTime(t.Start))
	case t.Start.IsZero():
		return task.Invalid(task.CodeNeverFires, "schedule", never+"before end, %s", formatTime(t.End))
	}

	return task.Invalid(task.CodeNeverFires, "schedule", never+"between start, %s, and end, %s", formatTime(t.Start), formatTime(t.End))
}

// formatTime formats a time for messages.
func formatTime(t task.Time) string { return t.UTC().Format(time.RFC3339) }

// AfterCompletion returns the period of a schedule that counts from the end of the run before, such as "@every 1h
// after completion". Such a schedule has one tick for each anchor. When a run has ended, its end becomes the next
// anchor.
func (s *Schedule) AfterCompletion() (period time.Duration, ok bool) {
	return time.Duration(s.plan.after) * time.Millisecond, s.plan.after != 0
}

// completionTick returns the one tick of a schedule that counts from the end of a run, in ms. If the task's start
// is later, that is the tick.
func (s *Schedule) completionTick() int64 {
	return max(s.anchor+s.plan.after, s.plan.first)
}
