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

// importedCronJob imports a CronJob with a schedule and a time zone.
func importedCronJob(expr, zone string) importer.Result {
	text := fmt.Sprintf(`{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"}, "spec": {"schedule": %q, "timeZone": %q,
  "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"command": ["x"]}]}}}}}}`, expr, zone)
	return importer.Kubernetes("f.json", text, importer.Options{})
}

var created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// controllerSchedule parses a schedule and a time zone as the CronJob controller does, with the time zone database
// of package schedule.
func controllerSchedule(t *testing.T, expr, zone string) cron.Schedule {
	t.Helper()
	sched, err := cron.ParseStandard(expr)
	if err != nil {
		t.Fatalf("%q: %v", expr, err)
	}

	spec, isSpec := sched.(*cron.SpecSchedule)
	if !isSpec {
		return sched
	}

	if strings.Contains(expr, "TZ=") {
		zone = spec.Location.String()
	}

	if spec.Location, err = schedule.Location(zone); err != nil {
		t.Fatal(err)
	}

	return spec
}

// walkBoth compares the ticks of an imported task with those of another scheduler, in (from, upTo], limit of them
// at most.
func walkBoth(t *testing.T, spec task.Spec, next func(time.Time) time.Time, from, upTo time.Time, limit int) {
	t.Helper()
	timing := spec.Timing()

	s, err := schedule.Parse(timing, created)
	if err != nil {
		t.Fatalf("%q: %v", timing.Schedule, err)
	}

	at := from
	for range limit {
		want, got := next(at), time.Time{}
		if tick, ok := s.Next(at); ok {
			got = tick
		}

		if want.After(upTo) || want.IsZero() {
			if !got.IsZero() && !got.After(upTo) {
				t.Fatalf("task %q %s %+v after %v: %v, but the source does not tick up to %v", timing.Schedule, timing.Timezone, timing.DST, at, got, upTo)
			}
			return
		}

		if !got.Equal(want) {
			t.Fatalf("task %q %s %+v after %v: %v, but the source says %v", timing.Schedule, timing.Timezone, timing.DST, at, got, want.UTC())
		}

		at = want
	}
}

// sameAsController compares five years, and some clock changes in more detail.
func sameAsController(t *testing.T, expr, zone string) {
	t.Helper()
	r := importedCronJob(expr, zone)
	if len(r.Jobs) != 1 {
		t.Fatalf("%q: %v", expr, r.Refusals)
	}

	sched := controllerSchedule(t, expr, zone)
	walkBoth(t, r.Jobs[0].Spec, sched.Next, created, created.AddDate(5, 0, 0), 700)

	for _, day := range []string{"2026-03-07", "2026-03-28", "2026-10-24", "2026-10-31", "2028-02-27"} {
		at, err := time.Parse(time.DateOnly, day)
		if err != nil {
			t.Fatal(err)
		}
		walkBoth(t, r.Jobs[0].Spec, sched.Next, at, at.AddDate(0, 0, 3), 500)
	}
}

func TestKubernetes_TicksAsRobfigDoes(t *testing.T) {
	zones := []string{"Europe/Berlin", "America/New_York", "UTC"}
	if testing.Short() {
		zones = zones[:1]
	}

	for _, c := range []struct{ expr, want string }{
		{"0 0 */5 * MON", "0 0 1-31/5 * MON"}, // every fifth day or Monday: */5 is no star for robfig
		{"0 0 13 * */2", "0 0 13 * 0-6/2"},
		{"0 0 */5 * */3", "0 0 1-31/5 * 0-6/3"},
		{"0 0 */1 * MON", "0 0 * * MON"}, // but */1 is
		{"0 0 5,* * MON", "0 0 * * MON"}, // and so is a * anywhere in the list
		{"0 0 13 * 1,*", "0 0 13 * *"},
		{"0 0 ? * MON", "0 0 * * MON"},
		{"? ? ? ? ?", "* * * * *"},
		{"0 0 ?/5 * MON", "0 0 1-31/5 * MON"},
		{"0 0 *-3 * MON", "0 0 * * MON"},
		{"0 0 15 * MON", "0 0 15 * MON"},
		{"0 0 1/10 * MON", "0 0 1/10 * MON"},
		{"0 0 31 * FRI/2", "0 0 31 * FRI/2"},
		{"5/20 2 * * *", "5/20 2 * * *"},
		{"*/90 */30 * * *", "0 0 * * *"},
		{"10-20/90 0 * * *", "10 0 * * *"},
		{"1,,2 0 * jan,FEB-mar sun", "1-2 0 * jan,FEB-mar sun"},
		{"+5 08 * * *", "5 08 * * *"},
		{"30 2 * * *", "30 2 * * *"},
		{"*/20 * * * *", "*/20 * * * *"},
		{"*/20 1-3 * * *", "*/20 1-3 * * *"},
		{"0 */2 * * *", "0 */2 * * *"},
		{"0 0 29 2 *", "0 0 29 2 *"},
		{"@hourly", "@hourly"},
		{"@daily", "@daily"},
		{"@weekly", "@weekly"},
		{"@monthly", "@monthly"},
		{"@annually", "@annually"},
		{"@every 90m", "@every 1h30m"},
		{"@every 1500ms", "@every 1s"},
		{"@every -3s", "@every 1s"},
		{"CRON_TZ=Asia/Tokyo 30 2 * * MON", "30 2 * * MON"},
		{"TZ=America/New_York  */30 1-2 */9 * SAT,SUN", "*/30 1-2 1-31/9 * SAT,SUN"},
		{"TZ= 0 12 * * *", "0 12 * * *"},
		{"CRON_TZ=Europe/Berlin @daily", "@daily"},
	} {
		r := importedCronJob(c.expr, "Europe/Berlin")
		if len(r.Jobs) != 1 || r.Jobs[0].Spec.Schedule[0] != c.want {
			t.Errorf("%q: want %q; got %+v, refused %v", c.expr, c.want, r.Jobs, r.Refusals)
			continue
		}

		for _, zone := range zones {
			sameAsController(t, c.expr, zone)
		}
	}
}

// What robfig/cron rejects, or what never fires there, is refused with the reason.
func TestKubernetes_RefusesSchedules(t *testing.T) {
	for expr, want := range map[string]string{
		"0 0 * * 7":             `a: schedule: "0 0 * * 7": Kubernetes rejects it: end of range (7) above maximum (6)`,
		"0 0 L * *":             "Kubernetes rejects it: failed to parse int from L",
		"0 0 * *":               "expected exactly 5 fields",
		"0 0 0 * * *":           "expected exactly 5 fields",
		", 0 * * *":             `never fires: the minute "," has no value`,
		"0 0 30 2 *":            "never fires",
		"TZ=UTC":                `no schedule after "TZ=UTC"`,
		"TZ=UTC TZ=UTC @daily":  "no schedule after",
		" TZ=UTC 0 0 * * *":     "TZ= at the beginning",
		"@reboot":               "unrecognized descriptor",
		"@every 5 m":            "failed to parse duration",
		"@every 99999h":         "at most 87600h",
		"CRON_TZ=Local @daily":  "timezone:",
		"CRON_TZ=Mars/X @daily": "timezone:",
		"":                      "has no schedule",
		"H * * * *":             "failed to parse int from H",
	} {
		r := importedCronJob(expr, "")
		if len(r.Jobs) != 0 || len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, want) {
			t.Errorf("%q: %v, want %s", expr, r.Refusals, want)
		}
	}
}

// randomKubernetesField draws a field that robfig/cron accepts.
func randomKubernetesField(rnd *rand.Rand, low, high int, names []string) string {
	value := func() string {
		n := low + rnd.IntN(high-low+1)
		if n-low < len(names) && rnd.IntN(4) == 0 {
			return names[n-low]
		}
		return fmt.Sprint(n)
	}

	var items []string
	for range 1 + rnd.IntN(3)/2 {
		a, b := low+rnd.IntN(high-low+1), low+rnd.IntN(high-low+1)
		step := 1 + rnd.IntN(high+10)
		items = append(items, []string{
			"*", "*", "?", fmt.Sprintf("*/%d", step), value(), value(), value() + fmt.Sprintf("/%d", step),
			fmt.Sprintf("%d-%d", min(a, b), max(a, b)), fmt.Sprintf("%d-%d/%d", min(a, b), max(a, b), step), fmt.Sprintf("?/%d", step),
		}[rnd.IntN(10)])
	}

	return strings.Join(items, ",")
}

func randomKubernetesCron(rnd *rand.Rand) string {
	return strings.Join([]string{
		randomKubernetesField(rnd, 0, 59, nil), randomKubernetesField(rnd, 0, 23, nil), randomKubernetesField(rnd, 1, 31, nil),
		randomKubernetesField(rnd, 1, 12, strings.Fields("jan FEB mar apr May jun jul aug sep oct nov DEC")),
		randomKubernetesField(rnd, 0, 6, strings.Fields("sun MON tue wed Thu fri sat")),
	}, " ")
}

func TestKubernetes_TicksAsRobfigDoesOnAnything(t *testing.T) {
	count := 150
	if testing.Short() {
		count = 45
	}

	rnd := rand.New(rand.NewPCG(1, 2))
	zones := []string{"UTC", "Europe/Berlin", "America/New_York", "Europe/Dublin", "Asia/Kathmandu", "Australia/Sydney", "Africa/Casablanca", "Antarctica/Troll", "Pacific/Chatham"}

	compared := 0
	for range count {
		expr, zone := randomKubernetesCron(rnd), zones[rnd.IntN(len(zones))]
		r := importedCronJob(expr, zone)
		if len(r.Jobs) == 0 {
			// The only valid reason is that it never fires.
			if at := controllerSchedule(t, expr, zone).Next(created); !at.IsZero() {
				t.Fatalf("%q fires at %v, and is refused: %v", expr, at, r.Refusals)
			}
			continue
		}

		sameAsController(t, expr, zone)
		compared++
	}

	if compared < count*13/15 {
		t.Errorf("only %d expressions were compared", compared)
	}
}

// Where a clock changes at midnight, or by half an hour, robfig/cron's search fails: it loses a day, or has a tick
// on a day that the expression does not contain. The import adds a note, and the task has the ticks of the
// expression.
func TestKubernetes_NotesWhereRobfigGoesWrong(t *testing.T) {
	const note = "Kubernetes may lose or misplace ticks"

	for _, c := range []struct {
		zone, expr, from, robfig, task string
	}{
		{"Asia/Beirut", "0 9 29 3 *", "2026-03-01", "2027-03-29T06:00:00Z", "2026-03-29T06:00:00Z"},
		{"Australia/Lord_Howe", "0 3 4 10 *", "2026-10-01", "", "2026-10-03T16:00:00Z"},
	} {
		r := importedCronJob(c.expr, c.zone)
		if len(r.Jobs) != 1 || !strings.Contains(strings.Join(r.Jobs[0].Notes, "\n"), note) {
			t.Errorf("%s: no note: %+v", c.zone, r)
			continue
		}

		from, err := time.Parse(time.DateOnly, c.from)
		if err != nil {
			t.Fatal(err)
		}

		s, err := schedule.Parse(r.Jobs[0].Spec.Timing(), created)
		if err != nil {
			t.Fatal(err)
		}

		want := controllerSchedule(t, c.expr, c.zone).Next(from)
		if got, _ := s.Next(from); got.Format(time.RFC3339) != c.task || got.Equal(want) {
			t.Errorf("%s: the task ticks at %v, robfig/cron at %v", c.zone, got, want.UTC())
		}

		if c.robfig != "" && want.UTC().Format(time.RFC3339) != c.robfig {
			t.Errorf("%s: robfig/cron ticks at %v", c.zone, want.UTC())
		}
	}

	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Antarctica/Troll"} {
		if r := importedCronJob("0 9 * * *", zone); strings.Contains(strings.Join(r.Jobs[0].Notes, "\n"), note) {
			t.Errorf("%s: %v", zone, r.Jobs[0].Notes)
		}
	}
}
