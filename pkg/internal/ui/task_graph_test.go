package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// serveGraph lets the API answer with this graph for all tasks.
func (w *world) serveGraph(g *client.Graph) {
	w.t.Helper()
	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/graph") {
			api.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		must(w.t, json.NewEncoder(rw).Encode(g))
	})
}

// graphOfNight is a graph of five tasks around report.
func graphOfNight() *client.Graph {
	return &client.Graph{
		Namespace: "prod",
		Tasks: []client.GraphTask{
			{Name: "etl", State: "ok", LastRun: &client.PastRun{ID: "r1", State: task.Succeeded}},
			{Name: "import", Missing: true},
			{Name: "mail", State: "waiting", WaitingTriggers: []client.WaitingTriggers{{Source: "report", Count: 3}}},
			{Name: "report", State: "failing", LastRun: &client.PastRun{ID: "r2", State: task.Failed, Reason: task.ReasonExit}},
			{Name: "source", State: "paused", Paused: true},
		},
		Links: []client.GraphLink{
			{Source: "etl", Dependent: "report", When: task.WhenSucceeded, Results: []string{"rows"}},
			{Source: "import", Dependent: "report", When: task.WhenEnded},
			{Source: "report", Dependent: "mail", When: task.WhenFailed},
			{Source: "source", Dependent: "etl", When: task.WhenSucceeded},
		},
	}
}

func TestTaskGraph_ShowsTwoLevelsWithStates(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "report")
	w.serveGraph(graphOfNight())

	page := w.as("user:ann").page("/ui/tasks/prod/report?tab=graph")
	_, graph, _ := strings.Cut(page, `<ol class="graph" aria-label="Tasks in the order in which they run">`)
	graph, _, _ = strings.Cut(graph, "</ol>")
	want(t, graph, "<h2>Two before</h2>", "<h2>Runs after</h2>", "<h2>This task</h2>", "<h2>Then</h2>", `aria-current="true">report</strong>`,
		`href="/ui/tasks/prod/etl?tab=graph">etl</a>`, "after etl has succeeded", "after import has ended", "after report has failed", "gets rows of etl", "3 ended runs waiting",
		"failing", "paused", "missing", "a new task of this name takes its place", "has not run yet")
	want(t, page, "carillon task graph report --levels 2 -n prod")

	// The order of the links is that in which the tasks run, so that the keyboard goes from left to right.
	last := -1
	for _, name := range []string{">source</a>", ">etl</a>", ">import</strong>", ">report</strong>", ">mail</a>"} {
		at := strings.Index(graph, name)
		if at <= last {
			t.Errorf("%s is at %d, after %d", name, at, last)
		}
		last = at
	}
}

// The graph is part of what a stream keeps current.
func TestTaskGraph_FollowsChanges(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "report")
	g := graphOfNight()
	w.serveGraph(g)

	load := w.loadAgain(loadTask, "/ui/tasks/prod/report?tab=graph")
	before := load().(taskPage)
	g.Tasks[3].State = "running"
	after := load().(taskPage)

	state := func(p taskPage) string { return p.Graph.Columns[2].Tasks[0].State }
	if state(before) != "failing" || state(after) != "running" {
		t.Errorf("%s, then %s", state(before), state(after))
	}
}

func TestTaskGraph_SaysThatThereIsNone(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "report")
	w.serveGraph(&client.Graph{Tasks: []client.GraphTask{{Name: "report", State: "ok"}}})
	want(t, w.as("user:ann").page("/ui/tasks/prod/report?tab=graph"), "No other task is linked with it", "Edit</a> it to name the tasks after which it runs")
}

// The form reads and writes the tasks after which a task runs. A new task without a schedule gets the defaults of such tasks.
func TestBuilder_EditsSources(t *testing.T) {
	sources := task.Sources{{Task: "etl", Results: []string{"rows", "day"}}, {Task: "import", When: task.WhenEnded}}
	text := sourcesText(sources)
	if text != "etl rows, day\nimport:ended" {
		t.Errorf("%q", text)
	}
	if again, err := parseSources(text + "\n\n"); err != nil || !again.Equal(sources) {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := parseSources(":failed"); err == nil {
		t.Error("a source without a name is read")
	}

	s := task.Defaults()
	f := builderFields{Name: "report", Namespace: "prod", After: "etl", Kind: kindNoop, Texts: map[string]string{}}
	must(t, f.apply(&s))
	if s.Overlap != task.OverlapQueue || s.Schedule[0] != task.ManualSchedule || !s.After.Equal(task.Sources{{Task: "etl"}}) {
		t.Errorf("%+v", s)
	}

	// What a user has chosen stays.
	s = task.Defaults()
	f.Texts = map[string]string{"overlap": task.OverlapAllow}
	must(t, f.apply(&s))
	if s.Overlap != task.OverlapAllow {
		t.Errorf("overlap is %s", s.Overlap)
	}

	// With a schedule, the user has to choose, and may choose the default of other tasks.
	s = task.Defaults()
	f.Schedule, f.Texts = "@daily", map[string]string{"overlap": ""}
	if err := f.apply(&s); err == nil || !strings.Contains(err.Error(), "overlap: is required for a task with a schedule and after") {
		t.Errorf("without overlap: %v", err)
	}
	s = task.Defaults()
	f.Texts["overlap"] = task.OverlapSkip
	must(t, f.apply(&s))
	if s.Overlap != task.OverlapSkip {
		t.Errorf("overlap is %s", s.Overlap)
	}
	overlap, _ := task.FindField(task.SpecFields(), "overlap")
	in := builderInput{Field: overlap}
	if !slices.Contains(in.Options(), task.OverlapSkip) {
		t.Errorf("the form offers %v", in.Options())
	}

	s = task.Defaults()
	f.After, f.Schedule = "", "@daily"
	must(t, f.apply(&s))
	if len(s.After) > 0 || s.Schedule[0] != "@daily" {
		t.Errorf("%+v", s)
	}
}

// A source is deleted only with a tick in a box. The panels name its dependents.
func TestTask_DeletesASourceByForce(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "etl")
	w.create("prod", "report", func(s *task.Spec) {
		s.Schedule, s.After, s.Overlap = task.Schedules{task.ManualSchedule}, task.Sources{{Task: "etl", When: task.WhenFailed}}, task.OverlapQueue
	})
	ann := w.as("user:ann")

	want(t, ann.page("/ui/tasks/prod/etl?do=trigger"), "Then: report if it has failed.")
	page := ann.page("/ui/tasks/prod/etl?do=delete")
	want(t, page, "These tasks run after it: report if it has failed.", `name="force"`, "will not run. The first:")
	without(t, ann.page("/ui/tasks/prod/report?do=delete"), `name="force"`)

	form := url.Values{"at": {"/ui/tasks/prod/etl?do=delete"}, "revision": {fmt.Sprint(w.stored("prod", "etl").Revision)}}
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/etl/delete", form); a.StatusCode != http.StatusConflict {
		t.Errorf("without force: %d %s", a.StatusCode, a.body)
	}
	form.Set("force", "true")
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/etl/delete", form); a.StatusCode != http.StatusSeeOther {
		t.Errorf("with force: %d %s", a.StatusCode, a.body)
	}

	want(t, ann.page("/ui/tasks/prod/report?tab=graph"), "missing", "after etl has failed")
}
