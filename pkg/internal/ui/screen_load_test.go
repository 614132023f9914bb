package ui

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// loadOf returns a load of two hours from 22:30 UTC on.
func loadOf(runs map[int]float64) client.TaskLoad {
	l := client.TaskLoad{From: task.At(time.Date(2026, 11, 25, 22, 30, 0, 0, time.UTC)), Step: task.Duration(time.Minute), Runs: make([]float64, 120), Tasks: 3, AfterCompletion: 2}
	for minute, n := range runs {
		l.Runs[minute] = n
	}
	l.Peaks = []client.LoadPeak{{At: task.At(l.From.Add(90 * time.Minute)), Runs: 1000}}

	return l
}

// Hours are those of the clock in the zone of the page, and minutes with more runs than slots stand out.
func TestLoadPage_DrawsHours(t *testing.T) {
	p := loadPage{Slots: 100}
	p.fill(loadOf(map[int]float64{0: 1, 30: 10, 90: 1000}), time.FixedZone("X", 45*60), time.Time{})

	if len(p.Hours) != 3 || p.Runs != "1,011 runs" || p.Over != 1 || p.Top != "1,000" || len(p.Peaks) != 1 || !p.Peaks[0].Over || len(p.Inexact) != 1 {
		t.Fatalf("%+v", p)
	}
	first, last := p.Hours[0], p.Hours[2]
	if first.Label != "23:00" || first.Day != "Wed 25 Nov" || last.Day != "" || first.Minutes[15].Level != 1 || first.Minutes[14].Level != 0 {
		t.Errorf("the first hour: %+v", first)
	}
	if c := p.Hours[1].Minutes[45]; c.Level != loadLevels || !c.Over {
		t.Errorf("the busiest minute: %+v", c)
	}
	if p.Hours[1].Day != "Thu 26 Nov" || p.Hours[1].Busiest != "00:45, 1,000 runs" {
		t.Errorf("the second hour: %+v", p.Hours[1])
	}
}

// The hour of the chosen minute is chosen, or the one that the address names. The map of an hour has few elements.
func TestLoadPage_ChoosesAnHour(t *testing.T) {
	p := loadPage{Slots: 100}
	l := loadOf(map[int]float64{0: 1, 30: 10, 31: 10, 90: 1000})
	p.fill(l, time.UTC, time.Time{})
	p.chooseHour("", time.Time{})
	if p.Hour != nil {
		t.Errorf("the hour from %s is chosen", p.Hour.Label)
	}

	p.chooseHour("", l.From.Add(91*time.Minute))
	if p.Hour == nil || p.Hour.Label != "00:00" || !p.Hour.Chosen || !strings.HasPrefix(p.Hour.Counts, "1,000 0 ") {
		t.Errorf("of a minute: %+v", p.Hour)
	}
	p.chooseHour("2026-11-25T23:00:00Z", time.Time{})
	if p.Hour.Label != "23:00" {
		t.Errorf("by its beginning: %+v", p.Hour)
	}

	drawn := string(p.Hour.Map())
	if strings.Count(drawn, "<path") != 1 || strings.Count(drawn, "h9v") != 2 {
		t.Errorf("two minutes of the same color are not one path: %s", drawn)
	}
}

// Where the clock changes by half an hour, the rest of an hour is an hour of its own.
func TestLoadPage_ClockThatChangesByHalfAnHour(t *testing.T) {
	zone, err := time.LoadLocation("Australia/Lord_Howe")
	if err != nil {
		t.Skip(err)
	}

	// At 15:00 UTC, the clock goes back from 02:00 to 01:30.
	l := loadOf(map[int]float64{70: 1, 95: 2})
	l.From = task.At(time.Date(2026, 4, 4, 13, 30, 0, 0, time.UTC))
	p := loadPage{}
	p.fill(l, zone, time.Time{})

	var hours []string
	for _, h := range p.Hours {
		hours = append(hours, h.Title())
	}
	if want := []string{"Sun 00:00 +11", "Sun 01:00 +11", "Sun 01:00 +1030"}; !slices.Equal(hours, want) {
		t.Fatalf("hours %q, want %q", hours, want)
	}
	if before, after := p.Hours[1], p.Hours[2]; before.Minutes[40].Runs != 1 || after.Minutes[35].Runs != 2 || after.Label != "01:00" || !after.Minutes[29].At.IsZero() {
		t.Errorf("before %+v, after %+v", before, after)
	}

	for at, want := range map[int]int{70: 1, 95: 2} {
		minute := l.From.Add(time.Duration(at) * time.Minute)
		p.chooseHour("", minute)
		if p.Hour != &p.Hours[want] || p.Hours[3-want].Chosen {
			t.Errorf("of the minute %s: %s", minute, p.Hour.Title())
		}

		p.chooseHour(p.Hours[want].Begins.UTC().Format(time.RFC3339), time.Time{})
		if p.Hour != &p.Hours[want] || p.Hours[3-want].Chosen {
			t.Errorf("by its beginning: %s", p.Hour.Title())
		}
	}
}

// The page shows the map, and the tasks of the minute that was chosen.
func TestLoad_ShowsTheTasksOfAMinute(t *testing.T) {
	w := newWorld(t)
	w.online("node-a")
	w.create("prod", "web")
	ann := w.as("user:ann")

	w.create("prod", "hourly-b", func(s *task.Spec) { s.Schedule = task.Schedules{"30 0 * * * *"} })
	want(t, ann.page("/ui/load"), "48 runs of 2 tasks", "No minute has more runs than there are slots (4)", "hour=2026-11-20T23%3A00%3A00Z", "minute=2026-11-20T23%3A00%3A00Z", ":00 1, :30 1", "@hourly", "carillon load</code>")
	want(t, ann.page("/ui/load?hour=2026-11-20T23:00:00Z"), "The hour from Fri 23:00 UTC: 2 runs", "minute=2026-11-20T23%3A00%3A00Z", `<span class="at">:00</span> <b>2</b>`)

	// A minute shows all tasks with a tick in it, also if others come before it.
	page := ann.page("/ui/load?minute=2026-11-21T05:00:00Z")
	want(t, page, "2 runs</h2>", `<a href="/ui/tasks/prod/web">web</a>`, `<a href="/ui/tasks/prod/hourly-b">hourly-b</a>`, "prod/web", "<code>:30</code> 1 run", "The hour from Sat 05:00 UTC", "q=tick%3A2026-11-21T05%3A00Z", "carillon load --minute 2026-11-21T05:00:00Z")
	want(t, ann.page("/ui/load?minute=2001-11-21T05:00:00Z"), "This minute is not in the coming 24 hours", "48 runs of 2 tasks")
	want(t, ann.page("/ui/load?q=name~none"), "No runs fall due")
	if a := ann.get("/ui/load?q=next:soon"); a.StatusCode < 400 || !strings.Contains(a.body, `value="next:soon"`) {
		t.Errorf("a query that is not valid: %d", a.StatusCode)
	}
}

// The latest events come first, and filters are those of the CLI.
func TestEvents_ShowTheLatest(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		w.create("prod", fmt.Sprintf("web-%d", i))
	}
	w.create("test", "other")
	ann := w.as("user:ann")

	page := ann.page("/ui/events?kind=task")
	want(t, page, "created by user:ann", `href="/ui/tasks/prod/web-0"`, "4 events in the last 15m", "carillon events --since 15m -A --kind task")
	if strings.Index(page, "web-2") > strings.Index(page, "web-0") {
		t.Error("the oldest event comes first")
	}

	page = ann.page("/ui/events?kind=task&ns=prod&task=web-1")
	if want(t, page, "web-1"); strings.Contains(page, "web-2</a>") {
		t.Error("the events of another task are shown")
	}
	for _, query := range []string{"since=never", "kind=none", "task=web-1"} {
		if a := ann.get("/ui/events?" + query); a.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(a.body, "All kinds") {
			t.Errorf("%s: %d", query, a.StatusCode)
		}
	}

	w.Bind("user:bob", "viewer", "test")
	if page := w.as("user:bob").page("/ui/events"); strings.Contains(page, "web-") {
		t.Error("a viewer of another namespace sees its events")
	}
}

// A page that somebody watches asks once for what is new.
func TestEvents_ContinueWhereTheyWere(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "first")

	var asked []string
	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/events" {
			asked = append(asked, r.URL.Query().Get("after"))
		}
		api.ServeHTTP(rw, r)
	})

	load := w.loadAgain(loadEvents, "/ui/events?kind=task&since=15m")
	names := func(p eventsPage) (list []string) {
		for _, e := range p.Events {
			list = append(list, e.Task)
		}
		return list
	}
	if first := load().(eventsPage); !slices.Equal(names(first), []string{"first"}) || len(asked) > 3 {
		t.Fatalf("%q; asked %q", names(first), asked)
	}

	w.Clock.Advance(10 * time.Minute)
	w.create("prod", "second")
	asked = nil
	if second := load().(eventsPage); !slices.Equal(names(second), []string{"second", "first"}) || len(asked) != 1 || asked[0] == "" || second.Note != "2 events in the last 15m" {
		t.Errorf("%q, %s; asked %q", names(second), second.Note, asked)
	}

	w.Clock.Advance(10 * time.Minute)
	if third := load().(eventsPage); !slices.Equal(names(third), []string{"second"}) {
		t.Errorf("%q are in the span", names(third))
	}

	// Of very many, only the newest are kept.
	for i := range 3 * shownEvents {
		w.create("prod", fmt.Sprintf("web-%d", i))
	}
	p := load().(eventsPage)
	if len(p.Events) != shownEvents || p.Events[0].Task != fmt.Sprintf("web-%d", 3*shownEvents-1) || p.Oldest || len(p.latest.events) > 2*shownEvents {
		t.Errorf("%d events of %d, the newest %v", len(p.Events), len(p.latest.events), p.Events[0].Task)
	}
}

// The page says what needs attention before anything else.
func TestHealth_ShowsWarningsAndEtcd(t *testing.T) {
	w := newWorld(t)
	w.online("node-a")
	page := w.as("user:ann").page("/ui/health")
	want(t, page, "Needs attention", "1 of 1 ready", "0 of 8 owned", "carillon cluster status")

	// A restore is on the page for as long as its cluster lives, with a link to what it has lost.
	if strings.Contains(page, "Restored") {
		t.Error("the cluster was never restored")
	}
	present, err := w.Store.Present(t.Context())
	must(t, err)
	r := task.Restored{
		Epoch: 2, FromEpoch: 1, ID: "r1", At: task.At(w.Clock.Now()), Revision: present.Revision, BackupRevision: 7,
		BackupTime: task.At(w.Clock.Now().Add(-3 * time.Hour)), Until: task.At(w.Clock.Now().Add(-time.Hour)), By: task.NewActor("unix:root"),
	}
	must(t, w.Store.ChangeCluster(t.Context(), present.Record(), present.Cluster.WithRestore(r)))
	gap := fmt.Sprintf("from a backup of %s; gap until %s, by unix:root", r.BackupTime.UTC().Format(time.RFC3339), r.Until.UTC().Format(time.RFC3339))
	want(t, w.as("user:ann").page("/ui/health"), "Restored", gap, `href="/ui/runs?show=restored"`)

	row := memberRowOf(client.EtcdMember{Endpoint: "e", DBSize: 101 << 20, DBQuota: 100 << 20, Leader: true, Alarms: []string{"NOSPACE"}, Index: 9, Applied: 7})
	if row.Role != "leader" || row.Look != string(task.Failed) || row.Size != "101.0 MiB of 100.0 MiB (101%)" || row.Trail != 2 {
		t.Errorf("%+v", row)
	}
	if row := memberRowOf(client.EtcdMember{Error: "refused"}); row.Role != "away" || row.Look != string(task.Lost) {
		t.Errorf("%+v", row)
	}
}
