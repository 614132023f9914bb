package ui

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/task"
)

// serveLedger lets the API answer with this ledger for all tasks. It selects no lines.
func (w *world) serveLedger(l client.TaskLedger) {
	w.t.Helper()
	body, err := json.Marshal(l)
	must(w.t, err)

	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/ledger") {
			api.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write(body)
	})
}

// at returns a time on a day of November 2026, in UTC.
func at(day, hour, minute, second int) task.Time {
	return task.At(time.Date(2026, 11, day, hour, minute, second, 0, time.UTC))
}

// ledgerOfAMonth is a ledger with a line of each kind.
func ledgerOfAMonth() client.TaskLedger {
	return client.TaskLedger{
		Remembers: task.DefaultLedger, Since: at(14, 0, 0, 0), CompleteSince: at(14, 0, 0, 0),
		Lines: []task.LedgerLine{
			{Kind: task.LedgerSucceeded, First: at(19, 0, 0, 0), Last: at(19, 23, 59, 59), Count: 86_312, MeanMS: 1400, MaxMS: 1480, MaxLatenessMS: 35},
			{Kind: task.LedgerException, First: at(19, 2, 0, 0), Last: at(19, 2, 0, 0), Count: 1, State: task.Lost, Reason: task.ReasonNodeLost, Late: true, Node: "n8"},
			{Kind: task.LedgerException, First: at(19, 1, 0, 5), Last: at(19, 1, 0, 5), Count: 1, State: task.Failed, Reason: "exit 1", Attempt: 2, Node: "n7<b>", Run: "20261119T010005.000Z-a7c2"},
			{Kind: task.LedgerException, First: at(18, 2, 0, 0), Last: at(18, 2, 0, 9), Count: 10, State: task.Skipped, Reason: "overlap<i>"},
			{Kind: task.LedgerHour, First: at(17, 2, 0, 0), Last: at(17, 2, 0, 0), Count: 312, Causes: map[string]int64{"failed: exit 1<b>": 300, "timed_out": 12}, Named: []task.Time{at(17, 2, 0, 12), at(17, 2, 0, 19)}},
			{Kind: task.LedgerRequestedMore, First: at(16, 10, 0, 0), Last: at(16, 11, 0, 0), Count: 3, Causes: map[string]int64{"succeeded": 3}},
			{Kind: task.LedgerRequested, First: at(16, 9, 0, 0), Last: at(16, 9, 0, 0), Count: 1, State: task.Succeeded, Attempt: 1, Node: "n9", Run: "20261116T090000.000Z-a7c2-x9k2"},
			{Kind: task.LedgerUnreadable, First: at(15, 9, 0, 0), Last: at(15, 9, 0, 0), Count: 2},
		},
	}
}

// The list of runs continues with the ledger: what is counted, what is named, and which details there are. Texts of users
// stay texts.
func TestTaskRuns_ContinueWithTheLedger(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "dump")
	id := w.deadRun("prod", "dump")
	w.serveLedger(ledgerOfAMonth())
	ann := w.as("user:ann")

	page := ann.page("/ui/tasks/prod/dump?tab=runs")
	want(t, page, id, "Details of earlier runs are no longer kept", "86,312 succeeded", "Thu 19 Nov 00:00 UTC", "Thu 19 Nov 23:59:59 UTC", "max 35ms", "mean 1s", "max 1s",
		"exit 1, attempt 2", "n7&lt;b&gt;", "20261119T010005.000Z-a7c2", "lost, with a late result", "skipped (overlap&lt;i&gt;) ×10",
		"312 did not succeed", "failed ×300, timed out ×12", "the first at <time", "02:00:12", "the hour that begins then", "3 more manual runs", "2 records could not be read",
		"Complete since", "Sat 14 Nov 00:00 UTC", "remembers ticks for 30d", "/ui/why/prod/dump?at=2026-11-19T01%3A00%3A05.000Z")
	without(t, page, "/ui/runs/prod/20261119T010005.000Z-a7c2") // its run can no longer be shown

	if first, second := strings.Index(page, id), strings.Index(page, "86,312 succeeded"); first > second {
		t.Error("the ledger comes before the history")
	}
	without(t, ann.page("/ui/tasks/prod/dump?tab=runs&state=active"), "86,312 succeeded")

	empty := client.TaskLedger{}
	w.serveLedger(empty)
	page = ann.page("/ui/tasks/prod/dump?tab=runs")
	want(t, page, id, "There is no ledger")
	without(t, page, "no longer kept")
}

// A long ledger has pages, which together contain each line once.
func TestTaskRuns_PagesOfTheLedger(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "dump")
	ledger := client.TaskLedger{Remembers: task.DefaultLedger, CompleteSince: at(1, 0, 0, 0)}
	for i := 3*runsPerPage - 1; i >= 0; i-- {
		tick := at(1+i/60, 0, i%60/2*2, 0) // two lines have the same time
		ledger.Lines = append(ledger.Lines, task.LedgerLine{Kind: task.LedgerException, First: tick, Last: tick, Count: 1, State: task.Failed, Reason: "exit 1", Node: "node-" + string(rune('a'+i/26)) + string(rune('a'+i%26)) + "."})
	}
	w.serveLedger(ledger)
	ann := w.as("user:ann")

	var all string
	pages := 0
	for path := "/ui/tasks/prod/dump?tab=runs"; path != ""; pages++ {
		page := ann.page(path)
		all += page

		_, rest, more := strings.Cut(page, `class="button" href="`)
		path = ""
		for more && path == "" {
			var link string
			link, rest, _ = strings.Cut(rest, `"`)
			if strings.HasPrefix(strings.TrimSpace(rest), `rel="next"`) {
				path = strings.ReplaceAll(link, "&amp;", "&")
			}
			_, rest, more = strings.Cut(rest, `class="button" href="`)
		}
	}
	if pages != 3 {
		t.Errorf("there are %d pages, not 3", pages)
	}
	for _, l := range ledger.Lines {
		if n := strings.Count(all, l.Node); n != 1 {
			t.Errorf("%s is on the pages %d times", l.Node, n)
		}
	}

	if a := ann.get("/ui/tasks/prod/dump?tab=runs&page=ledger-x"); a.StatusCode < 400 {
		t.Errorf("a wrong page: %d", a.StatusCode)
	}
}

// The page warns if the ledger cannot be read, or is limited because etcd is filling up.
func TestTaskRuns_WarnOfAnIncompleteLedger(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "dump")
	ledger := ledgerOfAMonth()
	week := task.Duration(7 * 24 * time.Hour)
	ledger.Broken, ledger.Limit, ledger.Remembers = 2, &week, week
	w.serveLedger(ledger)

	want(t, w.as("user:ann").page("/ui/tasks/prod/dump?tab=runs"), "2 of the records of the ledger cannot be read", "etcd is filling up: ledgers remember only the last 7d")
}

// The days count the history and the ledger together, and say what they do not know.
func TestTaskDays_CountHistoryAndLedger(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "dump")
	w.deadRun("prod", "dump") // an hour before now, on 20 November
	w.serveLedger(ledgerOfAMonth())
	w.Bind("user:bob", "viewer", "prod")

	for _, path := range []string{"/ui/tasks/prod/dump", "/ui/tasks/prod/dump?tab=stats"} {
		page := w.as("user:bob").page(path)
		want(t, page, "Last 30 days", "Thu 19 Nov: 86,312 succeeded, 2 did not succeed", "Fri 20 Nov: 1 did not succeed", "Wed 18 Nov: 10 did not run",
			"Tue 17 Nov: 312 did not succeed", "Mon 16 Nov: 4 succeeded", "Fri 13 Nov: nothing on record", "99.6% of 86,631 runs succeeded",
			"/ui/why/prod/dump?at=2026-11-19")
	}
}

// Ticks of a span that several days share are divided among them, in the zone of the task.
func TestTaskDays_DivideSpans(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	day := func(d int) time.Time { return time.Date(2026, 10, d, 0, 0, 0, 0, zone) } // the clocks go back on 25 October

	for _, c := range []struct {
		what        string
		first, last time.Time
		count       int64
		want        []int64 // from 24 October on
		about       bool
	}{
		{"within a day", day(25), day(25).Add(24*time.Hour + 59*time.Minute), 1500, []int64{0, 1500, 0}, false},
		{"an hourly task through three days", day(24), day(26).Add(23 * time.Hour), 73, []int64{24, 25, 24}, true},
		{"a daily task", day(24).Add(12 * time.Hour), day(26).Add(12 * time.Hour), 3, []int64{1, 1, 1}, true},
		{"begins before the first day", day(24).AddDate(0, 0, -1), day(24).AddDate(0, 0, -1).Add(36 * time.Hour), 37, []int64{13, 0, 0}, true},
		{"a single tick", day(26), day(26), 1, []int64{0, 0, 1}, false},
	} {
		d := newTaskDays(day(26).Add(12*time.Hour), zone)
		d.Days = d.Days[shownDays-3:]
		d.addLine(task.LedgerLine{Kind: task.LedgerSucceeded, First: task.At(c.first), Last: task.At(c.last), Count: c.count})

		about := false
		for i, n := range c.want {
			if d.Days[i].Succeeded != n {
				t.Errorf("%s: %d on %s, not %d", c.what, d.Days[i].Succeeded, d.Days[i].Date(), n)
			}
			about = about || d.Days[i].About
		}
		if about != c.about {
			t.Errorf("%s: about is %v", c.what, about)
		}
	}
}

// A page that somebody watches does not count the days each time that it is rendered.
func TestTaskDays_AreCountedNowAndThen(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "dump")
	w.serveLedger(ledgerOfAMonth())
	load := w.loadAgain(loadTask, "/ui/tasks/prod/dump")

	days := func() *taskDays { p, _ := load().(taskPage); return p.Days }
	first := days()
	if days() != first {
		t.Error("the days were counted again at once")
	}
	w.Clock.Advance(daysEvery)
	if days() == first {
		t.Error("the days were not counted again")
	}
}

// The statistics count the ledger, and say which figures it does not have.
func TestTaskStats_CountTheLedger(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "dump")
	w.deadRun("prod", "dump")
	uid := w.stored("prod", "dump").UID
	w.put(w.Store.Keys().LedgerChunk(apikit.Ref("prod", "dump"), "20261119T000000.000Z"), json.RawMessage(
		`{"uid":"`+uid+`","from":"2026-11-19T00:00:00Z","ok":[[0,82800,23,46000,5000,35]],"not":[[3600,1,"f","exit 1",2,"","n7"]]}`))

	page := w.as("user:ann").page("/ui/tasks/prod/dump?tab=stats")
	want(t, page, "Thu 19 Nov 00:00 UTC", "are counted in the ledger, which has no percentiles", "25: 23 succeeded, 2 failed", "92%",
		"mean 2s, max 5s, 35ms late at most", "max 1s (of the 1 run in the history)", "exit 1: 1", "Thu 19 Nov: 23 succeeded, 1 did not succeed")

	page = w.as("user:ann").page("/ui/why/prod/dump?at=2026-11-19T01:00:00Z")
	want(t, page, "exit code 1")
}
