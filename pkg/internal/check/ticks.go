package check

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The oracle says which ticks a schedule has. It shares no code with package
// schedule for what tests mostly use: @every, also after completion, @at,
// @manual, nicknames, and cron expressions in UTC, with names, L, LW, 15W, 5L and
// 5#3. It walks through days and seconds one by one, too plainly to be wrong in
// the same way. All zones but UTC are left to package schedule. Starts, ends and
// jitter are its own in all of them (timing.go).

// ticker lists ticks, in ms.
type ticker interface {
	// next is the first tick after an instant; false if there is none.
	next(after int64) (int64, bool)
}

// newTicker makes the ticker of an entry's schedule. own says that it is the
// oracle's own.
func newTicker(e task.Entry) (t ticker, own bool, err error) {
	if period, is := afterCompletion(e); is {
		return once(max(ms(e.Anchor)+period.Milliseconds(), ms(e.Start))), true, nil
	}
	var all union
	for _, expr := range e.Schedule {
		t, ok := ownTicker(expr, e.Timezone, e.Anchor.UnixMilli())
		if !ok {
			s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
			return borrowed{s}, false, err
		}
		all = append(all, t)
	}
	return all, true, nil
}

// listTicks calls f with every tick in (after, upTo], until f says false.
func listTicks(t ticker, after, upTo int64, f func(ms int64) bool) {
	for at, ok := t.next(after); ok && at <= upTo; at, ok = t.next(at) {
		if !f(at) {
			return
		}
	}
}

// hasTick reports whether an instant is a tick.
func hasTick(t ticker, ms int64) bool {
	at, ok := t.next(ms - 1)
	return ok && at == ms
}

type union []ticker

func (u union) next(after int64) (int64, bool) {
	var first int64
	var found bool
	for _, t := range u {
		if at, ok := t.next(after); ok && (!found || at < first) {
			first, found = at, true
		}
	}
	return first, found
}

type borrowed struct{ *schedule.Schedule }

func (b borrowed) next(after int64) (int64, bool) {
	at, ok := b.Next(instant(after))
	return at.UnixMilli(), ok
}

// none is @manual.
type none struct{}

func (none) next(int64) (int64, bool) { return 0, false }

// once is @at.
type once int64

func (o once) next(after int64) (int64, bool) { return int64(o), after < int64(o) }

// every is @every: anchor + k·period, k ≥ 1.
type every struct{ anchor, period int64 }

func (e every) next(after int64) (int64, bool) {
	k := int64(1)
	if after > e.anchor {
		k = (after-e.anchor)/e.period + 1
	}
	return e.anchor + k*e.period, true
}

// cron is an expression in UTC: a set of values for each field.
type cron struct {
	second, minute, hour, dom, month, dow uint64
	bothDays                              bool // day of month and day of week are both required
	monthForms, weekForms                 []form
}

const (
	secondMS = 1000
	dayMS    = 24 * 3600 * secondMS
	// horizon is how many days next looks ahead: 29 February on a given weekday
	// comes once in 40 years at the latest, around 2100.
	horizon = 41 * 366
)

func (c cron) next(after int64) (int64, bool) {
	at := (max(after, 0)/secondMS + 1) * secondMS // a watermark may stand at the beginning of time
	for range horizon {
		if c.day(instant(at)) {
			for end := at - at%dayMS + dayMS; at < end; {
				s := at / secondMS
				switch {
				case !has(c.hour, s/3600%24):
					at = (s/3600 + 1) * 3600 * secondMS
				case !has(c.minute, s/60%60):
					at = (s/60 + 1) * 60 * secondMS
				case !has(c.second, s%60):
					at += secondMS
				default:
					return at, true
				}
			}
			continue
		}
		at = at - at%dayMS + dayMS
	}
	return 0, false
}

func (c cron) day(t time.Time) bool {
	is := func(f form) bool { return f(t) }
	dom := has(c.dom, int64(t.Day())) || slices.ContainsFunc(c.monthForms, is)
	dow := has(c.dow, int64(t.Weekday())) || slices.ContainsFunc(c.weekForms, is)
	if !has(c.month, int64(t.Month())) {
		return false
	}
	if c.bothDays {
		return dom && dow
	}
	return dom || dow
}

func has(set uint64, value int64) bool { return set&(1<<value) != 0 }

var ownNicknames = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// ownTicker makes a ticker of one expression if the oracle knows its form.
func ownTicker(expr, timezone string, anchor int64) (ticker, bool) {
	words := strings.Fields(expr)
	if len(words) == 0 {
		return nil, false
	}
	switch words[0] {
	case "@manual":
		return none{}, len(words) == 1
	case "@every":
		d, err := time.ParseDuration(words[len(words)-1])
		return every{anchor, d.Milliseconds()}, err == nil && d >= time.Millisecond && len(words) == 2
	case "@at":
		at, err := time.Parse(time.RFC3339Nano, words[len(words)-1])
		return once(at.UnixMilli()), err == nil && len(words) == 2
	}
	if timezone != "" && timezone != "UTC" {
		return nil, false
	}
	if full, ok := ownNicknames[expr]; ok {
		words = strings.Fields(full)
	}
	if len(words) == 5 {
		words = slices.Insert(words, 0, "0")
	}
	if len(words) != 6 {
		return nil, false
	}
	c := cron{bothDays: words[3][0] == '*' || words[5][0] == '*'}
	ranges := []struct {
		set       *uint64
		low, high int
	}{{&c.second, 0, 59}, {&c.minute, 0, 59}, {&c.hour, 0, 23}, {&c.dom, 1, 31}, {&c.month, 1, 12}, {&c.dow, 0, 7}}
	words[3], c.monthForms = forms(strings.ToUpper(words[3]), monthForm)
	words[4] = numbered(words[4], monthNames, 1)
	words[5], c.weekForms = forms(numbered(words[5], dayNames, 0), weekForm)
	for i, r := range ranges {
		var ok bool
		if words[i] == "" {
			continue // nothing but forms
		}
		if *r.set, ok = ownField(words[i], r.low, r.high); !ok {
			return nil, false
		}
	}
	if has(c.dow, 7) {
		c.dow |= 1 // Sunday
	}
	return c, true
}

// ownField reads a list of *, n, a-b, */n and a-b/n.
func ownField(text string, low, high int) (set uint64, ok bool) {
	for item := range strings.SplitSeq(text, ",") {
		values, stepText, stepped := strings.Cut(item, "/")
		from, to, step := low, high, 1
		if stepped {
			var err error
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
				return 0, false
			}
		}
		if values == "*" && high == 7 {
			to = 6 // 7 is Sunday again
		}
		if values != "*" {
			a, b, ranged := strings.Cut(values, "-")
			var err error
			if from, err = strconv.Atoi(a); err != nil {
				return 0, false
			}
			to = from
			if ranged {
				if to, err = strconv.Atoi(b); err != nil {
					return 0, false
				}
			}
		}
		if from < low || to > high || from > to {
			return 0, false
		}
		for n := from; n <= to; n += step {
			set |= 1 << n
		}
	}
	return set, bits.OnesCount64(set) > 0
}
