package importer_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/importer"
)

var elapse = regexp.MustCompile(`(?m)(?:Next elapse|Iter\. #\d+): (\S+ )?(never|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)`)

// systemdTicks returns the first ticks of a calendar event from systemd-analyze, or false if it rejects the event.
func systemdTicks(t *testing.T, event string, after time.Time, count int) ([]time.Time, bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "systemd-analyze", "calendar", fmt.Sprintf("--iterations=%d", count), "--base-time="+after.Format("2006-01-02 15:04:05 UTC"), event)
	cmd.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C", "SYSTEMD_COLORS=0")

	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "Resource deadlock avoided"):
		return nil, true // this version of systemd fails at some clock changes
	case err != nil:
		return nil, false
	}

	var list []time.Time
	for _, m := range elapse.FindAllStringSubmatch(string(out), -1) {
		if m[2] == "never" {
			break
		}

		at, err := time.Parse(time.DateTime, m[2])
		if err != nil {
			t.Fatal(err)
		}

		list = append(list, at)
	}

	return list, true
}

// sameAsSystemd compares the ticks of an imported timer with systemd's. It reports whether the importer accepted
// the event.
func sameAsSystemd(t *testing.T, event, zone string, starts []time.Time, count int) bool {
	t.Helper()
	timer := importer.ReadUnit("a.timer", "[Timer]\nOnCalendar="+event)
	service := importer.ReadUnit("a.service", "[Service]\nExecStart=/bin/true")
	r := importer.Systemd([]importer.Unit{timer, service}, importer.Options{Timezone: zone})

	for _, start := range starts {
		want, ok := systemdTicks(t, event+" "+zone, start, count)
		if ok && len(want) == 0 {
			continue
		}

		switch {
		case len(r.Jobs) == 0:
			return false
		case !ok:
			t.Errorf("%q: systemd refuses it, and the import reads it as %q", event, r.Jobs[0].Spec.Schedule)
			return true
		}

		i := 0
		next := func(time.Time) time.Time {
			if i == len(want) {
				return time.Time{}
			}
			i++
			return want[i-1]
		}

		end := start.AddDate(70, 0, 0)
		if len(want) == count {
			end = want[count-1]
		}

		walkBoth(t, r.Jobs[0].Spec, next, start, end, count+1)
	}

	return true
}

func needSystemdAnalyze(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("systemd-analyze", "calendar", "--iterations=1", "--base-time=2026-01-01 00:00:00 UTC", "daily").CombinedOutput(); err != nil {
		t.Skipf("needs a systemd-analyze that knows --base-time: %v: %s", err, out)
	}
}

// systemdStarts returns times before clock changes, and before a leap day.
func systemdStarts() []time.Time {
	return []time.Time{
		time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC),
		time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC), time.Date(2028, 2, 27, 0, 0, 0, 0, time.UTC),
	}
}

func TestSystemd_TicksAsSystemdDoes(t *testing.T) {
	needSystemdAnalyze(t)
	starts := systemdStarts()
	if testing.Short() {
		starts = starts[1:3] // each needs a call of systemd-analyze: only those at which Berlin's clocks change
	}

	for _, event := range []string{
		"minutely", "hourly", "daily", "weekly", "monthly", "quarterly", "semiannually", "yearly",
		"*-*-* 02:30:00", "*:30", "*:0/15", "0/2:30", "1..3:0/20", "*-*-1..7 03:00", "Mon..Fri 09:00", "Sat,Sun *-*-* 10:00", "Fri..Sun 1:00",
		"Sun *-*-1..7 04:00", "Mon,Tue *-*-8..14 04:00", "*-02~01", "12-24 18:00:30", "*-*-2/5 00:00", "*-1/3-1 0:0", "*:*:0/20", "02:59", "03:00", "00:00:01", "Sun 2:3",
	} {
		if !sameAsSystemd(t, event, "Europe/Berlin", starts, 20) {
			t.Errorf("%q is refused", event)
		}
	}
}

func TestSystemd_TicksAsSystemdDoesOnAnything(t *testing.T) {
	if testing.Short() {
		t.Skip("many random expressions: make test-cluster")
	}

	needSystemdAnalyze(t)
	rnd := rand.New(rand.NewPCG(5, 6))
	field := func(low, high int) string {
		a, b, step := low+rnd.IntN(high-low+1), low+rnd.IntN(high-low+1), 1+rnd.IntN(high)
		return []string{
			"*", "*", "*", fmt.Sprint(a), fmt.Sprintf("%02d", a), fmt.Sprintf("%d,%d", a, b), fmt.Sprintf("%d..%d", min(a, b), max(a, b)),
			fmt.Sprintf("%d/%d", a, step), fmt.Sprintf("%d..%d/%d", min(a, b), max(a, b), step), fmt.Sprintf("*/%d", step),
		}[rnd.IntN(10)]
	}

	days := strings.Fields("Mon Tue Wed Thu Fri Sat Sun Monday saturday")
	taken := 0
	for range 70 {
		var words []string
		weekday := rnd.IntN(3) == 0
		if weekday {
			words = append(words, days[rnd.IntN(9)]+[]string{"", "..", ","}[rnd.IntN(3)])
			if last := words[0][len(words[0])-1]; last == '.' || last == ',' {
				words[0] += days[rnd.IntN(9)]
			}
		}

		switch date := rnd.IntN(4); {
		case date == 0 && weekday:
			words = append(words, "*-"+field(1, 12)+"-"+[]string{"1..7", "8..14", "22..28", "29..31"}[rnd.IntN(4)])
		case date == 1:
			words = append(words, "*-"+field(1, 12)+"-"+field(1, 31))
		case date == 2:
			words = append(words, field(1, 12)+"~1")
		}

		if clock := field(0, 23) + ":" + field(0, 59); rnd.IntN(4) == 0 {
			words = append(words, clock+":"+field(0, 59))
		} else {
			words = append(words, clock)
		}

		if sameAsSystemd(t, strings.Join(words, " "), []string{"UTC", "Europe/Berlin", "America/New_York"}[rnd.IntN(3)], systemdStarts()[1:3], 40) {
			taken++
		}
	}

	if taken < 15 {
		t.Errorf("only %d events were compared", taken)
	}
}
