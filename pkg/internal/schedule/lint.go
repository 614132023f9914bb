package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The codes of Findings. A schedule that is rejected has the code of its error instead.
const (
	LintEnded   = "ended"        // no tick is left
	LintSeconds = "every_second" // it has a tick every second
	LintMinutes = "every_minute" // it has a tick every minute of certain hours or days, where one may have been meant
	LintStep    = "uneven_step"  // a step that does not divide its field evenly
	LintDays    = "two_days"     // both day of month and day of week are restricted
	LintWeekday = "weekday"      // numbers of weekdays in what looks like a Quartz expression
	LintClocks  = "clock_change" // a clock change moves, drops or doubles ticks
	LintCrowd   = "crowd"        // many tasks have a tick at the same second
)

// Finding is something unusual about a schedule that is valid and may be intended.
type Finding struct {
	Code    string // one of the Lint constants, or the code of an error
	Field   string // "schedule", "schedule[1]" or "end"
	Message string
	Hint    string // what to write instead; may be empty
}

// Lint returns what is unusual about a schedule, as of an instant. It considers clock changes within two years of
// now. If the schedule is invalid, that is the only finding. The schedule may contain H.
func Lint(t task.Timing, now time.Time) []Finding {
	if err := Check(t); err != nil {
		if e, ok := err.(*task.Error); ok {
			return []Finding{{Code: e.Code, Field: e.Field, Message: e.Message}}
		}
		return []Finding{{Code: task.CodeBadSchedule, Field: "schedule", Message: err.Error()}}
	}

	p := &plan{}
	if p.parseExpressions(t.Schedule, true) != nil || p.setTiming(t) != nil {
		return nil // cannot happen: Check has accepted it
	}

	l := linter{plan: p, timing: t, now: now.Unix()}
	l.checkEnded(now)

	for i, text := range t.Schedule {
		l.field = fieldName(t.Schedule, i)
		x, err := parseExpression(l.field, text, true)
		if err == nil && x.cron != nil {
			l.checkRule(x.cron, text)
		}

		if x.every > 0 && x.every <= 1000 {
			l.addWarning(LintSeconds, "", "%s ticks %s", task.Quote(text), timesADay(86_400_000/x.every))
		}
	}

	return l.found
}

// linter collects the findings for one timing.
type linter struct {
	*plan
	timing task.Timing
	now    int64  // in seconds
	field  string // of the expression that is examined
	found  []Finding
}

// addWarning adds a finding about the current field.
func (l *linter) addWarning(code, hint, format string, args ...any) {
	l.found = append(l.found, Finding{code, l.field, fmt.Sprintf(format, args...), hint})
}

// timesADay formats how often something happens in a day.
func timesADay(n int64) string { return fmt.Sprintf("%d times a day", n) }

// checkEnded finds schedules without a tick left. A schedule that counts from when the task is written, or from the
// end of a run, always has one, unless its end is past.
func (l *linter) checkEnded(now time.Time) {
	if !l.timing.End.IsZero() && l.timing.End.Before(now) {
		l.field = "end"
		l.addWarning(LintEnded, "", "%s is in the past: no ticks are left", l.timing.End.UTC().Format(time.RFC3339))
		return
	}

	if l.isManual() || l.after != 0 || slices.ContainsFunc(l.timing.Schedule, isDelay) {
		return
	}

	s := Schedule{plan: l.plan, anchor: clampToMS(now)}
	if _, ok := s.Next(now); !ok {
		l.field = "schedule"
		l.addWarning(LintEnded, "", "no ticks are left after %s", now.UTC().Format(time.RFC3339))
	}
}

// checkRule examines one cron expression.
func (l *linter) checkRule(r *rule, text string) {
	words := strings.Fields(text)
	if words[0][0] == '@' { // the fields of a nickname are intended as they are
		l.checkClockChanges(r)
		return
	}

	if len(words) == maxFields-1 {
		words = append([]string{"0"}, words...)
	}

	l.checkSmallestField(r, text, words)

	for i := range cronFields {
		l.checkSteps(&cronFields[i], words, i)
	}

	// Both day fields are restricted: whether one or both must match surprises many users.
	byDay, byWeekday := r.days != everyDay, r.weekdays != everyWeekday
	switch {
	case !byDay || !byWeekday:
	case r.bothDays:
		l.addWarning(LintDays, "", "the day of month %s and the day of week %s must both match, because one of them starts with *", shorten(words[3]), shorten(words[5]))
	default:
		l.addWarning(LintDays, "", "ticks match the day of month %s or the day of week %s, not necessarily both", shorten(words[3]), shorten(words[5]))
	}

	l.quartzWeekday(words)

	if !hasH(words[2]) {
		l.checkClockChanges(r)
	}
}

// checkSmallestField finds a * in front of a field that is restricted: "* 9 * * *" ticks 60 times, where once an hour or once
// a day was probably meant.
func (l *linter) checkSmallestField(r *rule, text string, words []string) {
	minutes, hours := len(setMembers(r.minutes)), len(setMembers(uint64(r.hours)))
	once := func(first int) string {
		fields := slices.Clone(words[first:])
		for i := range fields {
			if fields[i] != "*" {
				break
			}
			fields[i] = "0"
		}

		return fmt.Sprintf("for one tick, write %q", strings.Join(fields, " "))
	}

	switch {
	case words[0] == "*" && minutes < 60:
		l.addWarning(LintSeconds, once(0), "%s ticks every second of the minutes that match: %s", task.Quote(text), timesADay(int64(60*minutes*hours)))
	case len(setMembers(r.seconds)) == 60 && minutes == 60:
		l.addWarning(LintSeconds, "", "%s ticks %s", task.Quote(text), timesADay(int64(3600*hours)))
	case words[1] == "*" && words[0] == "0" && hours < 24:
		l.addWarning(LintMinutes, once(1), "%s ticks every minute of the hours that match: %s", task.Quote(text), timesADay(int64(60*hours)))
	}
}

// fieldRounds gives, for each field in which steps can be uneven, after how many values it starts again, and the
// unit that starts then.
var fieldRounds = map[string]struct {
	size int
	unit string
}{"second": {60, "minute"}, "minute": {60, "hour"}, "hour": {24, "day"}, "month": {12, "year"}}

// checkSteps finds steps over a whole field, or from a value on, that do not divide the field evenly: */7 minutes
// leaves 4 minutes between :56 and :00. A range shows where it ends, so steps in ranges are not reported.
func (l *linter) checkSteps(f *field, words []string, i int) {
	if strings.Contains(words[i], ",") {
		return
	}

	item := words[i]
	begin, text, stepped := strings.Cut(item, "/")
	by, ok := parseDigits(text)
	if !stepped || !ok || by < 2 {
		return
	}

	from := f.min
	whole := begin == "*" || strings.EqualFold(begin, "H") || begin == fmt.Sprintf("%d-%d", f.min, f.maxValue())
	if !whole {
		var err error
		if from, err = f.parseValue(item, begin); err != nil || from > f.maxValue() {
			return // a range, which shows where it ends
		}
	}

	last := from + (f.maxValue()-from)/by*by

	if f == dayOfMonth {
		l.addWarning(LintStep, "", "day of month %s restarts each month: the %s is followed by the %s", shorten(item), formatOrdinal(last), formatOrdinal(from))
		return
	}

	round, known := fieldRounds[f.name]
	if !known || from+round.size-last == by {
		return
	}

	// @every is a replacement only if all larger fields match everything.
	hint := ""
	if f.unit != "" && i+1 < len(words) && !slices.ContainsFunc(words[i+1:], func(w string) bool { return w != "*" && w != "?" }) {
		hint = fmt.Sprintf("\"@every %d%s\" has equal intervals", by, f.unit)
	}

	l.addWarning(LintStep, hint, "%s %s restarts each %s: the interval from %d to %d is %s, not %d", f.name, shorten(item), round.unit,
		last, from, countUnit(from+round.size-last, f.name), by)
}

// quartzWeekday finds numbers of weekdays where a ? suggests that the expression was written for Quartz, in which 1
// is Sunday.
func (l *linter) quartzWeekday(words []string) {
	if words[3] != "?" {
		return
	}

	numbered := slices.ContainsFunc(strings.Split(words[5], ","), func(item string) bool {
		days, _, _ := strings.Cut(item, "/")
		days, _, _ = strings.Cut(days, "#")
		return strings.ContainsAny(days, "0123456789")
	})

	if numbered {
		l.addWarning(LintWeekday, "use names such as MON-FRI, which are unambiguous", "day of week %s: 1 is Monday, as in cron and Spring; in Quartz, 1 is Sunday", shorten(words[5]))
	}
}

// checkClockChanges finds what the next gap and the next fold of the zone do to the rule's ticks.
func (l *linter) checkClockChanges(r *rule) {
	const twoYears = 2 * 366 * daySeconds
	var gap, fold bool
	for i := range l.zone.periods {
		st := &l.zone.periods[i]
		if st.start < l.now || st.start > l.now+twoYears || st.start > l.last/1000 || st.start < l.first/1000 {
			continue
		}

		switch {
		case st.startsWithGap() && !gap:
			gap = l.checkGap(r, st)
		case st.startsWithFold() && !fold:
			fold = l.checkFold(r, st)
		}
	}
}

// ticksEveryHour reports whether a rule has ticks in every hour by the real clock. A clock change of an hour takes
// no ticks from it.
func (r *rule) ticksEveryHour() bool { return r.hours == 1<<24-1 && r.realTime }

// checkGap reports a gap that contains ticks of the rule. It returns whether it did.
func (l *linter) checkGap(r *rule, st *offsetPeriod) bool {
	from, to := st.start+st.before, st.start+st.offset
	first := r.nextLocal(from, to)
	if first == noInstant || r.ticksEveryHour() {
		return false
	}

	count := 0
	for local := first; local != noInstant && count < 1000; count++ {
		local = r.nextLocal(local+1, to)
	}

	when := time.Unix(first, 0).UTC().Format("15:04:05 on 2 January 2006")
	effect := "there is no tick"
	if !r.realTime && !l.policy.skipGap {
		effect = "the tick is at " + time.Unix(to, 0).UTC().Format("15:04:05") + " instead"
		if count > 1 {
			effect = fmt.Sprintf("it and the next %d become one tick, at %s", count-1, time.Unix(to, 0).UTC().Format("15:04:05"))
		}
	}

	l.addWarning(LintClocks, "", "%s does not exist in %s: %s", when, l.zone.location, effect)

	return true
}

// checkFold reports a fold in which the rule's ticks come twice. It returns whether it did.
func (l *linter) checkFold(r *rule, st *offsetPeriod) bool {
	local := r.nextLocal(st.start+st.offset, st.start+st.before)
	if local == noInstant || r.ticksEveryHour() || !r.realTime && !l.policy.foldBoth {
		return false
	}

	l.addWarning(LintClocks, "", "%s exists twice in %s: there are two ticks", time.Unix(local, 0).UTC().Format("15:04:05 on 2 January 2006"), l.zone.location)

	return true
}

// Crowd is a second at which many schedules have a tick.
type Crowd struct {
	At      time.Time
	Members []int // indexes of the list that was passed to Crowds
}

// maxLooked is how many ticks of each schedule Crowds considers. A schedule that has more than one tick an hour
// shares its seconds with others anyway.
const maxLooked = 24

// maxCrowds is how many crowds Crowds returns at most.
const maxCrowds = 10

// Crowds returns the seconds of the day after now at which at least least schedules have a tick, the largest crowds
// first. The same set of schedules is returned only once. Schedules with jitter do not count, because their ticks
// are already spread.
func Crowds(list []*Schedule, now time.Time, least int) []Crowd {
	// Collect which schedules have a tick at each second of the day.
	bySecond := map[int64][]int{}
	for i, s := range list {
		if s == nil || s.plan.jitter > 0 {
			continue
		}

		at := clampToMS(now)
		for range maxLooked {
			if at = s.nextAfter(at); at == noInstant || at > clampToMS(now)+daySeconds*1000 {
				break
			}

			members := bySecond[at/1000]
			if len(members) == 0 || members[len(members)-1] != i {
				bySecond[at/1000] = append(members, i)
			}
		}
	}

	var crowds []Crowd
	for second, members := range bySecond {
		if len(members) >= least {
			crowds = append(crowds, Crowd{time.Unix(second, 0).UTC(), members})
		}
	}

	slices.SortFunc(crowds, func(a, b Crowd) int {
		if d := len(b.Members) - len(a.Members); d != 0 {
			return d
		}
		return a.At.Compare(b.At)
	})

	// Drop sets that occur again, and limit the result.
	var found []Crowd
	for _, c := range crowds { // schedules that meet every hour form one crowd, not 24
		again := slices.ContainsFunc(found, func(f Crowd) bool { return slices.Equal(f.Members, c.Members) })
		if !again && len(found) < maxCrowds {
			found = append(found, c)
		}
	}

	return found
}
