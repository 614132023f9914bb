// Package schedule is the time of Carillon: it parses the time rules of tasks,
// refuses what is not one, and says when they tick.
//
// A time rule is a cron expression of five fields, or six with seconds first, a
// nickname such as @daily, @every, @at or @manual; a task has one or up to
// sixteen, whose union it is, between a start and an end if it has them.
// docs/schedules.md is the language. Two things are written by a user but are not
// yet a rule: H, a value that follows from the task's name (Spread), and @in, a
// time from now (ResolveIn). Check accepts them, Parse wants them resolved.
//
// What it guarantees:
//
//   - Next(t) is later than t, a whole millisecond, and the earliest such tick.
//   - Every method ends in bounded time, and Next allocates nothing. Ticks exist
//     from 1970-01-02 to 2100, so that Next looks up to a century ahead, and says
//     false when there is no more.
//   - A tick falls due at its time, or with jitter a little later (Due), but before
//     the next tick: the order in which ticks fall due is their own.
//   - The same text ticks at the same instants on every host that runs the same
//     build: time zones come from a database that is part of the package.
//   - Nothing that a user writes makes it panic, and whatever it refuses is a
//     *task.Error that names the field.
//
// How it works: an expression becomes bit sets (rule), a zone becomes stretches
// of one offset each (zone). Inside a stretch local clocks are plain arithmetic.
// At its start, if the clock jumped, the task's DST policy decides:
//
//	        stretch 1          |          stretch 2
//	local   01:00 … 01:59:59   | 03:00 …           a gap: ticks from 02:00 to 02:59:59 have
//	                           |                   no instant; run-after puts one tick at |
//	local   02:00 … 02:59:59   | 02:00 … 02:59:59  a fold: these ticks have two instants;
//	                           |                   first leaves those after | out
//
// Expressions whose hour field starts with * know no policy: they tick at every
// instant at which the local clock matches.
//
// It has no clock of its own, touches no key, and does no input or output.
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

// Schedule is the parsed time rule of a task, with its time zone. It is
// immutable, small (tasks with equal rules share what was parsed), and safe for
// concurrent use.
type Schedule struct {
	plan   *plan
	anchor int64 // ms; only @every and completion look at it
}

// A plan is the part of a schedule that does not depend on the task.
type plan struct {
	rules  []rule
	every  []int64 // periods in ms, ascending; none is a multiple of another
	at     []int64 // instants in ms, ascending, distinct
	after  int64   // the period in ms of @every … after completion, which stands alone; else 0
	zone   *zone
	policy policy

	first, last int64 // ms; ticks lie between them, both included
	jitter      int64 // ms
}

// Parse parses the expressions of a task, 1 to MaxExpressions of them, as a
// union: two ticks on one instant are one tick. timezone is an exact IANA name,
// or "" for UTC; dst may have empty fields for the defaults. @every ticks at
// anchor + k·period, k ≥ 1; anchor is the task's creation, cut to milliseconds.
// @every … after completion ticks once, at anchor + period (at the start, if that
// is later); anchor is the creation, then the end of each run. Ticks lie between
// start and end, both included, which are of 2000 to 2100; jitter is 0 to 24 hours.
//
// The error is a *task.Error of the field "schedule" (in a list "schedule[0]",
// "schedule[1]", …), "timezone", "dst.gap", "dst.fold", "start", "end" or "jitter".
// What never fires, whatever the anchor, is refused, with task.CodeNeverFires; H
// and @in are refused, too.
func Parse(t task.Timing, anchor time.Time) (*Schedule, error) {
	p, err := sharedPlans.getPlan(t)
	if err != nil {
		return nil, err
	}
	return &Schedule{plan: p, anchor: clampToMS(anchor)}, nil
}

// Anchored is the same schedule with another anchor.
func (s *Schedule) Anchored(anchor time.Time) Schedule {
	return Schedule{plan: s.plan, anchor: clampToMS(anchor)}
}

// Check refuses what no task may have: what Parse refuses, but for H and @in, if
// they are well written.
func Check(t task.Timing) error {
	if !slices.ContainsFunc(t.Schedule, isUnresolved) {
		_, err := sharedPlans.getPlan(t)
		return err
	}

	p := &plan{}
	if err := p.parseExpressions(t.Schedule, true); err != nil {
		return err
	}

	return p.setTiming(t)
}

// isUnresolved reports whether an expression is one that Parse refuses and Check
// accepts.
func isUnresolved(expr string) bool {
	return usesHash(expr) || isDelay(expr)
}

func newPlan(t task.Timing) (*plan, error) {
	p := &plan{}
	if err := p.parseExpressions(t.Schedule, false); err != nil {
		return nil, err
	}
	if err := p.setTiming(t); err != nil {
		return nil, err
	}

	return p, p.checkFires(t)
}

// setTiming sets all but the expressions.
func (p *plan) setTiming(t task.Timing) (err error) {
	if p.zone, err = findZone(t.Timezone); err != nil {
		return err
	}
	if p.policy, err = newPolicy(t.DST); err != nil {
		return err
	}

	return p.setBounds(t)
}

// parseExpressions reads the expressions. written says that they may be as a user writes
// them, with H and @in; these are then checked, and the plan is of no other use.
func (p *plan) parseExpressions(exprs []string, written bool) error {
	switch {
	case len(exprs) == 0:
		return task.Invalid(task.CodeRequired, "schedule", "a schedule is required: a cron expression, @every, @at or @manual")
	case len(exprs) > MaxExpressions:
		return task.Invalid(task.CodeTooMany, "schedule", "%d expressions are more than %d", len(exprs), MaxExpressions)
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
		case e.in != 0:
		case e.cron != nil:
			if !slices.Contains(p.rules, *e.cron) {
				p.rules = append(p.rules, *e.cron)
			}
		case e.every != 0:
			p.every = append(p.every, e.every)
		case e.at != 0:
			p.at = append(p.at, e.at)
		case len(exprs) > 1:
			return task.Invalid(task.CodeBadSchedule, name, "%s: @manual means no ticks and cannot be combined with others", task.Quote(text))
		}
	}

	slices.Sort(p.at)
	p.at = slices.Clip(slices.Compact(p.at))
	p.rules = slices.Clip(p.rules)
	slices.Sort(p.every)
	p.every = withoutMultiples(p.every)

	return nil
}

// fieldName is the user's name of an expression.
func fieldName(exprs []string, i int) string {
	if len(exprs) == 1 {
		return "schedule"
	}
	return fmt.Sprintf("schedule[%d]", i)
}

// Manual reports whether the schedule has no ticks, ever, because it is @manual.
func (s *Schedule) Manual() bool { return s.plan.isManual() }

func (p *plan) isManual() bool {
	return len(p.rules) == 0 && len(p.every) == 0 && len(p.at) == 0 && p.after == 0
}

// Location returns the schedule's time zone.
func (s *Schedule) Location() *time.Location { return s.plan.zone.location }

// Next returns the first tick later than after, in UTC and whole milliseconds.
// It returns false if there is none up to the schedule's end, or that of 2100.
func (s *Schedule) Next(after time.Time) (time.Time, bool) {
	next := s.nextAfter(clampToMS(after))
	if next == noInstant {
		return time.Time{}, false
	}
	return time.UnixMilli(next).UTC(), true
}

// nextAfter returns the first tick later than after, in ms, or none.
func (s *Schedule) nextAfter(after int64) int64 {
	p, next := s.plan, int64(math.MaxInt64)
	after = max(after, p.first-1)
	if after >= p.last {
		return noInstant
	}

	if from := after/1000 + 1; from < endSecond {
		for i := range p.rules {
			if tick := p.rules[i].nextTick(p.zone, p.policy, from); tick != noInstant {
				next = min(next, tick*1000)
			}
		}
	}

	for _, period := range p.every {
		ticks := max(after-s.anchor, 0) / period // up to after
		next = min(next, s.anchor+(ticks+1)*period)
	}

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

// previousTo returns the last tick not later than to, in ms, or none.
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

// clampToMS cuts an instant to ms, and what is absurd to the years 1 to 9999,
// where arithmetic in ms cannot overflow.
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
