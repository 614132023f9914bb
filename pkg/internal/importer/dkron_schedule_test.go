package importer_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// importedDkronJob imports a job with a name, a schedule and a time zone.
func importedDkronJob(t *testing.T, name, expr, zone string) importer.Result {
	t.Helper()
	return importer.Dkron("f.json", dkronText(t, map[string]any{"name": name, "schedule": expr, "timezone": zone}, map[string]any{"command": "x"}), importer.Options{})
}

// dkronSchedule parses an expression without ~ as Dkron does: with seconds, in the zone of the job, which does not apply to
// @daily and the like.
func dkronSchedule(t *testing.T, expr, zone string) cron.Schedule {
	t.Helper()
	parser := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	if expr == "@minutely" {
		expr = "0 * * * * *"
		zone = ""
	}

	sched, err := parser.Parse(expr)
	if err != nil {
		t.Fatalf("%q: %v", expr, err)
	}

	spec, isSpec := sched.(*cron.SpecSchedule)
	if !isSpec {
		return sched
	}

	switch {
	case strings.Contains(expr, "TZ="):
		zone = spec.Location.String()
	case zone == "", strings.HasPrefix(expr, "@"):
		zone = "UTC" // of the servers, as the import assumes
	}

	if spec.Location, err = schedule.Location(zone); err != nil {
		t.Fatal(err)
	}

	return spec
}

// sameAsDkron compares the ticks of a task with those of Dkron's scheduler: of the next years, and around clock changes.
func sameAsDkron(t *testing.T, spec task.Spec, expr, zone string) {
	t.Helper()
	sched := dkronSchedule(t, expr, zone)
	walkBoth(t, spec, sched.Next, created, created.AddDate(4, 0, 0), 300)
	if strings.HasPrefix(expr, "@every") {
		return // each counts from its own beginning
	}

	for _, day := range []string{"2026-03-07", "2026-03-28", "2026-10-24", "2026-10-31", "2028-02-27"} {
		at, err := time.Parse(time.DateOnly, day)
		must(t, err)
		walkBoth(t, spec, sched.Next, at, at.AddDate(0, 0, 3), 300)
	}
}

// The examples of Dkron's documentation, and expressions that robfig/cron interprets in its own way.
func TestDkron_TicksAsDkronDoes(t *testing.T) {
	for _, c := range []struct{ expr, want string }{
		{"* * * * * *", "* * * * * *"},
		{"0 */15 * * * *", "*/15 * * * *"},
		{"0 0 0 * * MON,WED,FRI", "0 0 * * MON,WED,FRI"},
		{"0 0 9-17 * * *", "0 9-17 * * *"},
		{"0 0 0 1 * ?", "0 0 1 * *"},
		{"0 0 8 * * 1-5", "0 8 * * 1-5"},
		{"0 */10 9-17 * * 1-5", "*/10 9-17 * * 1-5"},
		{"0 0 3 1 * *", "0 3 1 * *"},
		{"0 0 0 1 1,4,7,10 *", "0 0 1 1,4,7,10 *"},
		{"0 0 22 * * 0,6", "0 22 * * 0,6"},
		{"30 0 0 * * sun", "30 0 0 * * sun"},
		{"*/10 * * * * *", "*/10 * * * * *"},
		{"5/20 1 2 * * *", "5/20 1 2 * * *"},
		{"*/90 0 0 */5 * MON", "0 0 1-31/5 * MON"},
		{"? ? ? ? ? ?", "* * * * * *"},
		{"00 0 12 * * *", "0 12 * * *"},
		{"0   0  12 * * *", "0 12 * * *"},
		{"@yearly", "@yearly"},
		{"@annually", "@annually"},
		{"@monthly", "@monthly"},
		{"@weekly", "@weekly"},
		{"@daily", "@daily"},
		{"@midnight", "@midnight"},
		{"@hourly", "@hourly"},
		{"@minutely", "* * * * *"},
		{"@every 10s", "@every 10s"},
		{"@every 1h30m10s", "@every 1h30m10s"},
		{"@every 1500ms", "@every 1s"},
		{"CRON_TZ=Asia/Tokyo 0 30 2 * * MON", "30 2 * * MON"},
		{"TZ=America/New_York  30 */30 1-2 */9 * SAT,SUN", "30 */30 1-2 1-31/9 * SAT,SUN"},
		{"TZ=Asia/Tokyo @daily", "@daily"},
	} {
		for _, zone := range []string{"Europe/Berlin", ""} {
			r := importedDkronJob(t, "job", c.expr, zone)
			if len(r.Jobs) != 1 || r.Jobs[0].Spec.Schedule[0] != c.want {
				t.Errorf("%q: want %q; got %+v, refused %v", c.expr, c.want, r.Jobs, r.Refusals)
				continue
			}
			sameAsDkron(t, r.Jobs[0].Spec, c.expr, zone)
		}
	}
}

func TestDkron_SaysWhichTimeZoneApplies(t *testing.T) {
	for _, c := range []struct{ expr, zone, want, note string }{
		{"0 0 2 * * *", "Europe/Berlin", "Europe/Berlin", ""},
		{"0 0 2 * * *", "", "UTC", "no time zone given: uses UTC; Dkron uses the zone of its servers"},
		{"@daily", "", "UTC", "no time zone given"},
		{"@daily", "Europe/Berlin", "UTC", "Dkron ignores its time zone Europe/Berlin, because of @daily"},
		{"@minutely", "Europe/Berlin", "UTC", "Dkron ignores its time zone"},
		{"TZ=Asia/Tokyo 0 0 2 * * *", "Europe/Berlin", "Asia/Tokyo", ""},
		{"0 0 2 * * *", "Africa/Cairo", "Africa/Cairo", "Dkron may lose or misplace ticks"},
	} {
		r := importedDkronJob(t, "job", c.expr, c.zone)
		if len(r.Jobs) != 1 {
			t.Errorf("%s: %v", c.expr, r.Refusals)
			continue
		}

		notes := strings.Join(r.Jobs[0].Notes, "\n")
		if r.Jobs[0].Spec.Timezone != c.want || !strings.Contains(notes, c.note) || c.note == "" && strings.Contains(notes, "zone") {
			t.Errorf("%s in %q: %s, %s", c.expr, c.zone, r.Jobs[0].Spec.Timezone, notes)
		}
	}
}

// Dkron replaces ~ by the sum of the name's characters, modulo the values of the field. That of "job" is 106+111+98 = 315.
func TestDkron_ChoosesTheSameValuesForTildes(t *testing.T) {
	for _, c := range []struct{ expr, resolved, want string }{
		{"0 ~ * * * *", "0 15 * * * *", "15 * * * *"},
		{"~ ~ ~ ~ ~ ~", "15 15 3 8 4 0", "15 15 3 8 4 0"},
		{"0 ~/15 * * * *", "0 15/15 * * * *", "15/15 * * * *"},
		{"0 0 ~ * * 1-5", "0 0 3 * * 1-5", "0 3 * * 1-5"},
		{"0 10-~ 0 * * *", "0 10-15 0 * * *", "10-15 0 * * *"},
		{"0  ~ 2 * * *", "0  3 2 * * *", "3 2 * * *"}, // two spaces count as a field
		{"CRON_TZ=Asia/Tokyo 0 ~ 1 * * *", "CRON_TZ=Asia/Tokyo 0 15 1 * * *", "15 1 * * *"},
	} {
		r := importedDkronJob(t, "job", c.expr, "Europe/Berlin")
		if len(r.Jobs) != 1 || r.Jobs[0].Spec.Schedule[0] != c.want || !strings.Contains(strings.Join(r.Jobs[0].Notes, "\n"), "~ in the schedule becomes") {
			t.Errorf("%q: want %q; got %+v, refused %v", c.expr, c.want, r.Jobs, r.Refusals)
			continue
		}
		sameAsDkron(t, r.Jobs[0].Spec, c.resolved, "Europe/Berlin")
	}
}

func TestDkron_RefusesSchedules(t *testing.T) {
	for expr, want := range map[string]string{
		"30 2 * * *":          "Dkron rejects it: expected exactly 6 fields",
		"0 0 0 0 0 32 *":      "Dkron rejects it",
		"0 0 24 * * *":        "Dkron rejects it",
		"0 0 0 30 2 *":        "",
		"@sometimes":          "Dkron rejects it",
		"@at tomorrow":        "Dkron rejects it: not a time in RFC 3339",
		"@at 2029-01-01":      "Dkron rejects it",
		"@every soon":         "Dkron rejects it",
		"TZ=Asia/Tokyo":       "no schedule after",
		"TZ=Mars/X 0 0 * * *": "Dkron rejects it",
		"TZ=UTC @minutely":    "Dkron rejects it",
		"0 0 0 L * *":         "Dkron rejects it",
		"0 0 0 * * 7":         "Dkron rejects it",
		"@every ~":            "Dkron rejects it",
	} {
		r := importedDkronJob(t, "job", expr, "Europe/Berlin")
		if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, want) {
			t.Errorf("%q: %+v", expr, r)
		}
	}
}

// Random expressions tick as in Dkron.
func TestDkron_TicksAsDkronDoesForRandomExpressions(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 7))
	bounds := [6][2]int{{0, 59}, {0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}
	field := func(i int) string {
		low, high := bounds[i][0], bounds[i][1]
		value := func() int { return low + rnd.IntN(high-low+1) }

		switch rnd.IntN(7) {
		case 0, 1:
			return "*"
		case 2:
			return fmt.Sprintf("*/%d", 1+rnd.IntN(high+3))
		case 3:
			a, b := value(), value()
			return fmt.Sprintf("%d-%d/%d", min(a, b), max(a, b), 1+rnd.IntN(7))
		case 4:
			return fmt.Sprintf("%d,%d", value(), value())
		case 5:
			return fmt.Sprintf("%d/%d", value(), 1+rnd.IntN(high))
		}

		return fmt.Sprint(value())
	}

	tries := 150
	if testing.Short() {
		tries = 30
	}

	for range tries {
		words := make([]string, 6)
		for i := range words {
			words[i] = field(i)
		}

		expr := strings.Join(words, " ")
		zone := []string{"Europe/Berlin", "America/New_York", "UTC"}[rnd.IntN(3)]
		r := importedDkronJob(t, "job", expr, zone)
		if len(r.Jobs) == 1 {
			sameAsDkron(t, r.Jobs[0].Spec, expr, zone)
			continue
		}

		// Refused because it never ticks: robfig/cron agrees.
		if next := dkronSchedule(t, expr, zone).Next(created); !next.IsZero() {
			t.Errorf("%q: %v, although Dkron runs it at %v", expr, r.Refusals, next)
		}
	}
}
