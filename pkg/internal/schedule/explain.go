package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Explanation describes in English when a schedule has ticks.
type Explanation struct {
	// Text is one sentence without a full stop, such as "At 02:30, Monday to Friday, Berlin time". Schedules that
	// differ only in how they are written have the same text.
	Text string
	// Each describes each expression, in the order of the schedule, without the zone.
	Each []string
}

// Explain describes when a schedule has ticks. The schedule may contain H and @in. The errors are those of Check.
func Explain(t task.Timing) (Explanation, error) {
	if err := Check(t); err != nil {
		return Explanation{}, err
	}

	z, err := findZone(t.Timezone)
	if err != nil {
		return Explanation{}, err
	}

	p, err := newPolicy(t.DST)
	if err != nil {
		return Explanation{}, err
	}

	var e Explanation
	var rules []*rule
	zoned := false
	for i, text := range t.Schedule {
		x, err := parseExpression(fieldName(t.Schedule, i), text, true)
		if err != nil {
			return Explanation{}, err
		}

		if x.cron != nil {
			zoned = true
			if !spreadsHours(text) { // with H in the hours, it depends on the task whether a clock change concerns the expression
				rules = append(rules, x.cron)
			}
		}

		e.Each = append(e.Each, capitalize(x.describeExpression(text, z)))
	}

	// Sort the descriptions and drop duplicates, so that the text does not depend on the order of the expressions.
	sorted := slices.Compact(slices.Sorted(slices.Values(e.Each)))
	for i := 1; i < len(sorted); i++ {
		sorted[i] = strings.ToLower(sorted[i][:1]) + sorted[i][1:]
	}

	parts := []string{strings.Join(sorted, "; and ")}
	if zoned {
		parts[0] += ", " + z.displayName()
	}

	parts = append(parts, boundWords(t, z)...)
	if words := changeWords(rules, z, p); words != "" {
		parts = append(parts, words)
	}

	e.Text = strings.Join(parts, "; ")

	return e, nil
}

// capitalize returns s with an upper-case first letter.
func capitalize(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// describeExpression describes when an expression has ticks.
func (e expression) describeExpression(text string, z *zone) string {
	switch {
	case e.cron != nil:
		if fields := strings.Fields(text); slices.ContainsFunc(fields, hasH) && fields[0][0] != '@' {
			return spreadRule(e.cron, fields)
		}
		return e.cron.describeRule()
	case e.every != 0:
		return "every " + durationWords(e.every) + ", counted from the task's creation"
	case e.after != 0:
		return durationWords(e.after) + " after each run has ended; the first, " + durationWords(e.after) + " after the task's creation"
	case e.at != 0:
		return "once, on " + z.instantWords(e.at)
	case e.local != "":
		return "once, at " + e.local + " in " + z.displayName()
	case e.in != 0:
		return "once, " + durationWords(e.in) + " after the task is written"
	case e.boot:
		return "once for each boot of a node that matches the target of the task"
	}

	return "only when it is triggered"
}

// spreadsHours reports whether the hours of an expression contain H. The hours are the fourth field from the end.
func spreadsHours(text string) bool {
	words := strings.Fields(text)
	return UsesHash(text) && hasH(words[len(words)-4])
}

// displayName returns the name of a zone as people use it, such as "Berlin time".
func (z *zone) displayName() string {
	name := z.location.String()
	if name == "UTC" {
		return name
	}
	if strings.HasPrefix(name, "Etc/") || !strings.Contains(name, "/") {
		return name + " time"
	}

	return strings.ReplaceAll(name[strings.LastIndex(name, "/")+1:], "_", " ") + " time"
}

// instantWords formats an instant in ms as a local time, with as much precision as it has.
func (z *zone) instantWords(ms int64) string {
	at := time.UnixMilli(ms).In(z.location)
	layout := "2 January 2006 at 15:04"

	switch {
	case at.Nanosecond() != 0:
		layout += ":05.000"
	case at.Second() != 0:
		layout += ":05"
	}

	return at.Format(layout) + ", " + z.displayName()
}

// boundWords describes start, end and jitter.
func boundWords(t task.Timing, z *zone) []string {
	var words []string

	switch from, to := !t.Start.IsZero(), !t.End.IsZero(); {
	case from && to:
		words = append(words, "from "+z.instantWords(t.Start.UnixMilli())+", to "+z.instantWords(t.End.UnixMilli()))
	case from:
		words = append(words, "from "+z.instantWords(t.Start.UnixMilli())+" on")
	case to:
		words = append(words, "until "+z.instantWords(t.End.UnixMilli()))
	}

	if t.Jitter > 0 {
		words = append(words, "each delayed by up to "+durationWords(t.Jitter.Std().Milliseconds()))
	}

	return words
}

// changeWords describes what happens to ticks where the zone's clocks change; "" if no change from 2025 on concerns
// them.
func changeWords(rules []*rule, z *zone, p policy) string {
	const since = 1735689600 // 2025, fixed so that the text does not depend on when it is read
	skipped, repeated := false, false
	for _, r := range rules {
		for i := range z.periods {
			st := &z.periods[i]
			if st.start < since || r.realTime {
				continue
			}

			if st.startsWithGap() {
				skipped = skipped || r.nextLocal(st.start+st.before, st.start+st.offset) != noInstant
			} else if st.startsWithFold() {
				repeated = repeated || r.nextLocal(st.start+st.offset, st.start+st.before) != noInstant
			}
		}
	}

	gap, fold := "run right after the gap", "run once, the first time"
	if p.skipGap {
		gap = "do not run"
	}

	if p.foldBoth {
		fold = "run twice"
	}

	switch {
	case skipped && repeated:
		return fmt.Sprintf("times that a clock change skips %s; repeated times %s", gap, fold)
	case skipped:
		return "times that a clock change skips " + gap
	case repeated:
		return "times that a clock change repeats " + fold
	}

	return ""
}

// durationWords formats a duration in ms, such as "1 hour 30 minutes".
func durationWords(ms int64) string {
	var words []string
	for _, u := range []struct {
		ms   int64
		name string
	}{{3_600_000, "hour"}, {60_000, "minute"}, {1000, "second"}, {1, "millisecond"}} {
		if n := ms / u.ms; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, pluralNoun(int(n), u.name)))
		}
		ms %= u.ms
	}

	return strings.Join(words, " ")
}

// byName describes a value that H stands for.
const byName = "derived from the task's name"

// spreadRule describes a rule whose expression contains H. In r, an arbitrary value stands in the place of each H.
// So those fields are described from the text instead.
func spreadRule(r *rule, fields []string) string {
	if len(fields) == maxFields-1 {
		fields = append([]string{"0"}, fields...)
	}

	words := []string{r.spreadClock(fields)}
	rest := *r
	if hasH(fields[3]) {
		words = append(words, "on "+spreadField(fields[3], "day of the month", "days of the month"))
		rest.days, rest.special.lastDay, rest.special.lastWorkday, rest.special.nearest = everyDay, false, false, 0
	}

	if hasH(fields[5]) {
		words = append(words, "on "+spreadField(fields[5], "day of the week", "days of the week"))
		rest.weekdays, rest.special.nth, rest.special.last = everyWeekday, [5]uint8{}, 0
	}

	if hasH(fields[4]) {
		words = append(words, "in "+spreadField(fields[4], "month", "months"))
		rest.months = everyMonth
	}

	rest.hasSpecial = rest.special != special{}
	switch day := rest.dayWords(); {
	case day != "":
		words = append(words, day)
	case len(words) == 1 && (hasH(fields[2]) || r.hours != 1<<24-1):
		words[0] += " every day"
	}

	return strings.Join(words, ", ")
}

// spreadClock describes the times of day.
func (r *rule) spreadClock(fields []string) string {
	seconds, minutes, hours := fields[0], fields[1], fields[2]
	if !hasH(seconds) && !hasH(minutes) && !hasH(hours) {
		return r.clockWords()
	}

	if !hasH(seconds) && r.seconds == 1 {
		hour, within := hours[1:], strings.HasPrefix(hours[1:], "(") && strings.HasSuffix(hours, ")")
		switch {
		case strings.EqualFold(minutes, "H") && strings.EqualFold(hours, "H"):
			return "at a time of day " + byName
		case strings.EqualFold(minutes, "H") && within && !strings.Contains(hour, ","):
			from, to, _ := strings.Cut(strings.Trim(hour, "()"), "-")
			return fmt.Sprintf("at a time from %02s:00 to %02s:59 %s", from, to, byName)
		case strings.EqualFold(minutes, "H") && r.hours == 1<<24-1:
			return "every hour, at a minute " + byName
		}
	}

	var words []string
	for i, f := range []struct {
		unit string
		set  uint64
		all  uint64
	}{{"second", r.seconds, 1<<60 - 1}, {"minute", r.minutes, 1<<60 - 1}, {"hour", uint64(r.hours), 1<<24 - 1}} {
		switch {
		case hasH(fields[i]):
			words = append(words, "at "+spreadField(fields[i], f.unit, f.unit+"s"))
		case i == 0 && f.set == 1:
		case f.set == f.all:
			words = append(words, "every "+f.unit)
		case i == 2:
			words = append(words, hourWords(setMembers(f.set)))
		default:
			words = append(words, "at "+f.unit+" "+enumerateValues(setMembers(f.set), twoDigits))
		}
	}

	return strings.Join(words, ", ")
}

// spreadField describes the values of a field with H.
func spreadField(text, unit, several string) string {
	if strings.Contains(text, ",") {
		return several + ", some of them derived from the task's name"
	}

	within, step, stepped := strings.Cut(text[1:], "/")
	from, to, ranged := strings.Cut(strings.Trim(within, "()"), "-")
	span := ""
	if ranged {
		span = fmt.Sprintf(" from %s to %s", strings.ToUpper(from), strings.ToUpper(to))
	}

	if stepped {
		return fmt.Sprintf("every %s %s%s, starting at one %s", stepOrdinal(step), unit, span, byName)
	}
	if unit == "hour" {
		return "an hour" + span + " " + byName
	}

	return "a " + unit + span + " " + byName
}

// stepOrdinal formats the step of a field, as in "every 3rd hour".
func stepOrdinal(text string) string {
	n, _ := parseDigits(text) // checked when the expression was parsed
	if n == 1 {
		return "single"
	}
	return formatOrdinal(n)
}
