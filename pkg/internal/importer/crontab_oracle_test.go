package importer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Debian's cron cannot evaluate a crontab without running it. So this oracle follows its source, 3.0pl1-162:
// debianEntry corresponds to load_entry and get_list of entry.c, which create bit maps and the *_STAR flags, and
// runs corresponds to the main loop of cron.c with find_jobs. It shares no code with the importer or with package
// schedule.
//
// debianEntry is a line of a crontab as entry.c parses it.
type debianEntry struct {
	minute, hour, dayOfMonth, month, dayOfWeek [64]bool
	minuteStar, hourStar, domStar, dowStar     bool
}

// debianReader reads a field character by character; 0 means the end.
type debianReader struct {
	text string
	at   int
}

func (r *debianReader) ch() byte {
	if r.at < len(r.text) {
		return r.text[r.at]
	}
	return 0
}

// number corresponds to get_number.
func (r *debianReader) number(low int, names []string) (int, bool) {
	start := r.at
	digits := true
	for c := r.ch(); c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'; c = r.ch() {
		digits = digits && c <= '9'
		r.at++
	}

	word := r.text[start:r.at]
	if i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, word) }); i >= 0 {
		return i + low, true
	}

	n := 0
	for _, c := range []byte(word) {
		n = min(n*10+int(c-'0'), 1_000_000)
	}

	return n, digits && word != ""
}

// span corresponds to get_range.
func (r *debianReader) span(set *[64]bool, low, high int, names []string) bool {
	first, last, step := low, high, 1
	ok := true

	if r.ch() == '*' {
		r.at++
	} else {
		if first, ok = r.number(low, names); !ok {
			return false
		}

		if r.ch() != '-' {
			if r.ch() == '/' || first < low || first > high {
				return false // Debian rejects a step without a range
			}
			set[first] = true
			return true
		}

		r.at++
		if last, ok = r.number(low, names); !ok {
			return false
		}
	}

	if r.ch() == '/' {
		r.at++
		if step, ok = r.number(0, nil); !ok || step <= 0 {
			return false
		}
	}

	if first < low || first > high || last < low || last > high {
		return false
	}

	for n := first; n <= last; n += step {
		set[n] = true
	}

	return true
}

// list corresponds to get_list. It skips what follows the last valid range.
func (r *debianReader) list(set *[64]bool, low, high int, names []string) bool {
	for {
		if !r.span(set, low, high, names) {
			return false
		}
		if r.ch() != ',' {
			return true
		}

		r.at++
	}
}

func readDebianEntry(expr string) (e debianEntry, ok bool) {
	words := strings.Fields(expr)
	e.minuteStar, e.hourStar = words[0][0] == '*', words[1][0] == '*'
	e.domStar, e.dowStar = words[2][0] == '*', words[4][0] == '*'
	months := strings.Fields("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")
	days := strings.Fields("Sun Mon Tue Wed Thu Fri Sat Sun")
	ok = (&debianReader{text: words[0]}).list(&e.minute, 0, 59, nil) &&
		(&debianReader{text: words[1]}).list(&e.hour, 0, 23, nil) &&
		(&debianReader{text: words[2]}).list(&e.dayOfMonth, 1, 31, nil) &&
		(&debianReader{text: words[3]}).list(&e.month, 1, 12, months) &&
		(&debianReader{text: words[4]}).list(&e.dayOfWeek, 0, 7, days)

	if e.dayOfWeek[0] || e.dayOfWeek[7] {
		e.dayOfWeek[0], e.dayOfWeek[7] = true, true
	}

	return e, ok
}

// debianClock is the local clock of a zone, in minutes since 1970, at each minute of a period.
type debianClock struct {
	start  time.Time
	minute []int64
}

func newDebianClock(t *testing.T, zone string, start, end time.Time) *debianClock {
	t.Helper()
	location, err := schedule.Location(zone)
	if err != nil {
		t.Fatal(err)
	}

	c := &debianClock{start: start}
	for at := start; at.Before(end); at = at.Add(time.Minute) {
		_, offset := at.In(location).Zone()
		c.minute = append(c.minute, (at.Unix()+int64(offset))/60)
	}

	return c
}

// found corresponds to find_jobs for one entry: whether the entry runs in a minute.
func (e *debianEntry) found(minute int64, wild, fixed bool) bool {
	isWild := e.minuteStar || e.hourStar
	if isWild && !wild || !isWild && !fixed || !e.minute[minute%60] || !e.hour[minute/60%24] {
		return false
	}

	at := time.Unix(minute*60, 0).UTC()
	dom, dow := e.dayOfMonth[at.Day()], e.dayOfWeek[at.Weekday()]

	if e.domStar || e.dowStar {
		return e.month[at.Month()] && dom && dow
	}

	return e.month[at.Month()] && (dom || dow)
}

// runs corresponds to the main loop: it returns the minutes in which cron runs the entry at least once.
func (c *debianClock) runs(e *debianEntry) []time.Time {
	var list []time.Time
	virtual := c.minute[0]
	for i, running := range c.minute[1:] {
		job := false

		switch diff := running - virtual; {
		case diff > 3*60, diff <= -3*60: // the clock jumped
			virtual = running
			job = e.found(running, true, true)
		case diff > 5: // as when a clock is put forward
			job = e.found(running, true, false)
			for virtual < running {
				virtual++
				job = e.found(virtual, false, true) || job
			}
		case diff > 0:
			for virtual < running {
				virtual++
				job = e.found(virtual, true, true) || job
			}
		default: // as when a clock is put back
			job = e.found(running, true, false)
		}

		if job {
			list = append(list, c.start.Add(time.Duration(i+1)*time.Minute))
		}
	}

	return list
}

// sameAsDebian compares the ticks of an imported line with Debian's cron. It reports whether the importer accepted
// the line.
func sameAsDebian(t *testing.T, c *debianClock, expr, zone string) bool {
	t.Helper()
	r := importer.Crontab("/var/spool/cron/crontabs/ann", expr+" x\n", ofAnn, importer.Options{Timezone: zone})
	e, ok := readDebianEntry(expr)

	if len(r.Jobs) == 0 {
		if len(r.Refusals) != 1 {
			t.Errorf("%q: neither a task nor a refusal", expr)
		}
		return false
	}

	if !ok {
		t.Errorf("%q: Debian's cron refuses it, and the import reads it as %q", expr, r.Jobs[0].Spec.Schedule)
		return true
	}

	want := c.runs(&e)
	s, err := schedule.Parse(r.Jobs[0].Spec.Timing(), c.start)
	if err != nil {
		t.Fatal(err)
	}

	var got []time.Time
	end := c.start.Add(time.Duration(len(c.minute)-1) * time.Minute)

	for at := c.start; ; {
		next, ok := s.Next(at)
		if !ok || next.After(end) {
			break
		}

		got = append(got, next)
		at = next
	}

	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !got[i].Equal(want[i]) {
			t.Errorf("%q in %s became %q %+v: of %d and %d ticks number %d differs: %v, cron %v", expr, zone, r.Jobs[0].Spec.Schedule, r.Jobs[0].Spec.DST,
				len(got), len(want), i, tickAt(got, i), tickAt(want, i))
			break
		}
	}

	return true
}

func tickAt(list []time.Time, i int) string {
	if i < len(list) {
		return list[i].Format(time.RFC3339)
	}
	return "none"
}

var crontabZones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Asia/Beirut"}

func TestCrontab_TicksAsDebianCronDoes(t *testing.T) {
	zones := crontabZones
	if testing.Short() {
		zones = []string{"Europe/Berlin", "Australia/Lord_Howe"} // clock changes of an hour, and of half an hour
	}

	for _, zone := range zones {
		c := newDebianClock(t, zone, created, created.AddDate(1, 0, 0))

		for _, expr := range []string{
			"0 0 */5 * 1", "0 0 13 * */2", "0 0 1-31/5 * MON", "0 0 13 * 5", "0 0 * * 7", "0 0 * * 5-7", "0 0 * * 0-7/7", "0 0 * * sun,sat",
			"0 0 5,* * 1", "0 0 *,5 * 1", "0 0 1 jan,JUL-sep *", "*/60 * * * *", "0 */24 * * *", "*/61 */25 * * *", "0 0 */40 * *", "0 0 */40 * 1", "0 0 1 * */9",
			"0 0 10-20/90 * *", "0 0 1 */13 *", "30 2 * * *", "0,30 2 * * *", "*/10 2 * * *", "*/10 1-3 * * *", "5-59/10 2 * * *", "15 1 * * *", "0 3 * * *", "0 0 * * *",
			"30 */2 * * *", "30 0-23 * * *", "* 2 * * *", "0 * * * *", "*/7 0-4/2 * * 0",
		} {
			if !sameAsDebian(t, c, expr, zone) {
				t.Errorf("%q is refused", expr)
			}
		}
	}
}

// The importer refuses every line that Debian's cron rejects, with its own message.
func TestCrontab_RefusesWhatDebianCronRefuses(t *testing.T) {
	for expr, want := range map[string]string{
		"5/10 * * * *":     `"5/10": cron rejects or ignores a step without a range: use 5, or 5-59/10`,
		"0 0 * * 1/2":      "use 1, or 1-6/2",
		"0 0 * jan/3 *":    "a step without a range",
		"60 * * * *":       "minute 60 is greater than 59",
		"0 0 * * 8":        "day of week 8 is greater than 7",
		"0 0 * * monday":   "neither a job nor a setting",
		"*/0 * * * *":      "step 0",
		"1,,2 * * * *":     "empty item",
		"1, * * * *":       "empty item",
		"0 0 0 * *":        "day of month 0 is less than 1",
		"5-64/30 * * * *":  "minute 64 is greater than 59",
		"* * * * * *":      "a * follows the five fields",
		"0 0 ? * *":        "neither a job nor a setting",
		"0 0 L * *":        "neither a job nor a setting",
		"1-2,3/4 0 * * *":  "a step without a range",
		"*/61,5/2 0 * * *": "a step without a range",
	} {
		r := importer.Crontab("/var/spool/cron/crontabs/ann", expr+" x\n", ofAnn, importer.Options{})
		if len(r.Jobs) != 0 || len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, want) {
			t.Errorf("%q: %+v, want %s", expr, r, want)
		}

		if _, ok := readDebianEntry(expr); ok && expr != "* * * * * *" {
			t.Errorf("%q: the oracle accepts it", expr)
		}
	}
}

func TestCrontab_TicksAsDebianCronDoesOnAnything(t *testing.T) {
	if testing.Short() {
		t.Skip("many random expressions: make test-cluster")
	}

	rnd := rand.New(rand.NewPCG(3, 4))
	field := func(low, high int, names []string) string {
		value := func() string {
			if n := low + rnd.IntN(high-low+1); n-low < len(names) && rnd.IntN(4) == 0 {
				return names[n-low]
			} else {
				return fmt.Sprint(n)
			}
		}

		var items []string
		for range 1 + rnd.IntN(3)/2 {
			a, b := low+rnd.IntN(high-low+1), low+rnd.IntN(high-low+1)
			step := 1 + rnd.IntN(high+10)

			if rnd.IntN(20) == 0 { // mostly what one of the two rejects
				items = append(items, []string{value() + fmt.Sprintf("/%d", step), fmt.Sprintf("%d-%d", a, b), fmt.Sprintf("*-%d", a)}[rnd.IntN(3)])
				continue
			}

			items = append(items, []string{
				"*", "*", fmt.Sprintf("*/%d", step), value(), value(), fmt.Sprintf("%d-%d", min(a, b), max(a, b)), fmt.Sprintf("%d-%d/%d", min(a, b), max(a, b), step),
			}[rnd.IntN(7)])
		}

		return strings.Join(items, ",")
	}

	months, days := strings.Fields("jan FEB mar apr May jun jul aug sep oct nov DEC"), strings.Fields("sun MON tue wed Thu fri sat")

	taken := 0
	for _, zone := range crontabZones {
		c := newDebianClock(t, zone, created, created.AddDate(1, 0, 0))

		for range 40 {
			expr := strings.Join([]string{field(0, 59, nil), field(0, 23, nil), field(1, 31, nil), field(1, 12, months), field(0, 7, days)}, " ")
			if sameAsDebian(t, c, expr, zone) {
				taken++
			}
		}
	}

	if taken < 150 {
		t.Errorf("only %d lines were compared", taken)
	}
}

// Lines with the same command become one task only if clock changes have the same effect on both.
func TestCrontab_KeepsLinesApartThatClockChangesTreatDifferently(t *testing.T) {
	text := "*/10 2 * * * x\n30 2 * * * x\n0 4 * * * x\n"
	r := importer.Crontab("/var/spool/cron/crontabs/ann", text, ofAnn, options)
	if len(r.Jobs) != 2 || r.Jobs[0].Spec.DST != (task.DST{Gap: task.GapSkip, Fold: task.FoldBoth}) || len(r.Jobs[1].Spec.Schedule) != 2 || r.Jobs[1].Spec.DST != task.Defaults().DST {
		t.Errorf("%+v", r.Jobs)
	}

	if r = importer.Crontab("/var/spool/cron/crontabs/ann", text, ofAnn, importer.Options{Timezone: "UTC"}); len(r.Jobs) != 1 {
		t.Errorf("in UTC: %+v", r.Jobs)
	}
}
