package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/task"
)

// record writes the steps into the record of the run.
func (f *flowRun) record() {
	flow := &task.Flow{}
	for _, s := range f.steps.Steps {
		step := task.FlowStep{Name: s.Name, Kind: s.Kind, When: task.When(s.When), IsMap: s.Map, MaxParallel: s.MaxParallel, OpenedAt: s.OpenedAt, Count: s.Items, Kept: s.Kept}
		for _, need := range s.Needs {
			step.Needs = append(step.Needs, slices.IndexFunc(flow.Steps, func(other task.FlowStep) bool { return other.Name == need }))
		}
		if len(s.Parts) > 0 {
			step.First = s.Parts[0].Index
		}
		flow.Steps = append(flow.Steps, step)
	}
	f.Fan.Flow = flow
}

// serveFlow lets the API answer with this run and its steps.
func (w *world) serveFlow(run *task.Run, steps *client.RunSteps) {
	w.t.Helper()
	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var body any
		switch {
		case strings.HasSuffix(r.URL.Path, "/runs/"+run.ID+"/steps"):
			body = steps
		case strings.HasSuffix(r.URL.Path, "/runs/"+run.ID) && r.Method == http.MethodGet:
			body = run
		default:
			api.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		must(w.t, json.NewEncoder(rw).Encode(body))
	})
}

// flowRun is a run of a workflow that began a minute ago, and its steps.
type flowRun struct {
	task.Run
	steps client.RunSteps
	next  int // the number of the next part
}

func newFlowRun(state task.State) *flowRun {
	began := task.At(apikit.Began.Add(-time.Minute))
	f := &flowRun{Run: task.Run{
		ID: "20261120T220400.000Z-abcd-efghijkl", Namespace: "prod", Task: "orders", State: state, Trigger: task.TriggerManual,
		ScheduledTime: began, CreatedAt: began, StartedAt: began,
	}}
	f.Fan = &task.Fan{Flow: &task.Flow{}}
	if state.Final() {
		f.EndedAt = task.At(apikit.Began)
	}
	f.steps = client.RunSteps{Run: f.ID, State: state, OnFailure: task.OnFailureStop}

	return f
}

// at returns a time after the begin of the run.
func (f *flowRun) at(seconds int) task.Time {
	return task.At(f.StartedAt.Add(time.Duration(seconds) * time.Second))
}

// add adds a step. edit, if not nil, changes it.
func (f *flowRun) add(name, state string, needs []string, edit func(*client.RunStep)) {
	s := client.RunStep{Name: name, Kind: task.KindProcess, Needs: needs, When: string(task.WhenSucceeded), State: state}
	if edit != nil {
		edit(&s)
	}
	f.steps.Steps = append(f.steps.Steps, s)
}

// open gives a step parts that began and ended at some seconds. Those with an end below 0 run, and those with a begin below 0 wait.
func (f *flowRun) open(s *client.RunStep, state task.State, count, began, ended int) {
	if s.OpenedAt.IsZero() {
		s.OpenedAt = f.at(max(began-1, 0))
	}
	for i := range count {
		p := client.StepPart{Name: s.Name, Run: task.PartID(f.ID, f.next), Part: task.Part{Index: f.next, State: state, Node: "node-a", Attempt: 1}}
		if s.Map {
			item := s.Items + i
			p.Item, p.Name = &item, fmt.Sprintf("%s/%d", s.Name, item)
		}
		if began >= 0 {
			p.StartedAt = f.at(began)
		}
		if ended >= 0 {
			p.EndedAt = f.at(ended)
			s.Ended++
		}
		switch state {
		case task.Succeeded:
			s.Succeeded++
		case task.Failed:
			code := 1
			p.ExitCode, p.Reason, p.Message = &code, task.ReasonExit, "cannot read file"
		}
		if s.State != "running" && s.EndedAt.Before(p.EndedAt.Time) {
			s.EndedAt = p.EndedAt
		}
		s.Parts = append(s.Parts, p)
		f.next++
	}
	s.Items += count
}

// failedOrders is a run in which items of a map of 1000 have failed, and that has cleaned up.
func failedOrders() *flowRun {
	f := newFlowRun(task.Failed)
	f.Reason, f.Message = task.ReasonSteps, "step load/0: exit code 1"
	f.add("extract", "succeeded", nil, func(s *client.RunStep) { f.open(s, task.Succeeded, 1, 0, 10) })
	f.add("load", "failed", []string{"extract"}, func(s *client.RunStep) {
		s.Map, s.MaxParallel = true, 10
		f.open(s, task.Failed, 3, 12, 30)
		f.open(s, task.Succeeded, 997, 11, 45)
	})
	f.add("pay", "skipped", []string{"load"}, func(s *client.RunStep) { s.Reason, s.Cause, s.Kind = task.ReasonNeeds, "load", task.KindHTTP })
	f.add("mail", "succeeded", []string{"load"}, func(s *client.RunStep) { s.When = "failed"; f.open(s, task.Succeeded, 1, 46, 47) })
	f.add("clean", "succeeded", []string{"extract", "pay"}, func(s *client.RunStep) { s.When = "always"; f.open(s, task.Succeeded, 1, 48, 59) })

	return f
}

// serveDead lets the API answer that a run is a dead-letter run.
func (w *world) serveDead(run *task.Run) {
	w.t.Helper()
	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("dead") == "" {
			api.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		must(w.t, json.NewEncoder(rw).Encode(client.List[task.Run]{Items: []task.Run{*run}}))
	})
}

// flowWorld is a world with a run of a workflow.
func flowWorld(t *testing.T, f *flowRun) *world {
	t.Helper()
	f.record()
	w := newWorld(t)
	w.create("prod", "orders")
	w.serveFlow(&f.Run, &f.steps)

	return w
}

// tableRow returns the row of a step, or of an item, in the table of steps.
func tableRow(t *testing.T, page, name string) string {
	t.Helper()
	_, table, _ := strings.Cut(page, "Steps of the run, with their times")
	for _, row := range strings.Split(table, "<tr ") {
		if strings.Contains(row, ">"+name+"</a><span") || strings.Contains(row, ">"+name+"</th>") {
			return row
		}
	}
	t.Fatalf("there is no row %s in:\n%s", name, table)

	return ""
}

func TestRunFlow_ShowsStepsOfAFailedRun(t *testing.T) {
	f := failedOrders()
	page := flowWorld(t, f).as("user:ann").page("/ui/runs/prod/" + f.ID)

	want(t, page, "5 of 5 steps ended, 1 failed, 1 skipped", `<svg class="lines"`, `class="off"`, "22:04:00.000 UTC", "22:05:00.000 UTC")
	want(t, tableRow(t, page, "extract"), "succeeded", "begins with the run", ">10s<", `/ui/runs/prod/`+task.PartID(f.ID, 0), `<rect class="bar good"`)
	want(t, tableRow(t, page, "load"), "failed", "997/1,000, 3 failed", "after extract", `<rect class="wait"`, `<rect class="bar good"`, `<rect class="bar bad"`, "<td data-label=\"Output\" class=\"none\">–")
	want(t, tableRow(t, page, "load/1"), "exit 1", "cannot read file", task.PartID(f.ID, 2))
	want(t, tableRow(t, page, "pay"), "skipped", "load has not succeeded")
	want(t, tableRow(t, page, "mail"), "if load fails")
	want(t, tableRow(t, page, "clean"), "cleans up after extract, pay", "bar good cleanup")
	without(t, page, "load/3<", `id="step"`, `id="output"`, "<h2>Parts</h2>", "Retry")
}

// While the run is active, bars end at the present, and the page does not change from second to second.
func TestRunFlow_FollowsAnActiveRun(t *testing.T) {
	f := newFlowRun(task.Running)
	f.add("extract", "succeeded", nil, func(s *client.RunStep) { f.open(s, task.Succeeded, 1, 0, 10) })
	f.add("load", "running", []string{"extract"}, func(s *client.RunStep) {
		s.Map, s.MaxParallel = true, 10
		f.open(s, task.Failed, 1, 11, 20)
		f.open(s, task.Running, 10, 50, -1)
		f.open(s, task.Succeeded, 412, 11, 45)
		f.open(s, task.Queued, 577, -1, -1)
	})
	f.add("check", "running", []string{"extract"}, func(s *client.RunStep) { f.open(s, task.Queued, 1, -1, -1) })
	f.add("pay", "waiting", []string{"load"}, func(s *client.RunStep) { s.Cause = "load" })
	w := flowWorld(t, f)

	page := w.as("user:ann").page("/ui/runs/prod/" + f.ID)
	want(t, page, "1 of 4 steps ended, 2 running", ">Pause<", "Cancel the run…")
	want(t, tableRow(t, page, "load"), "412/1,000, 1 failed, 10 running", "▶")
	want(t, tableRow(t, page, "load/0"), "exit 1")
	want(t, tableRow(t, page, "check"), "waits for a node", `<rect class="wait"`)
	want(t, tableRow(t, page, "pay"), "waits for load", `<rect class="wait"`)

	load := w.loadAgain(loadRun, "/ui/runs/prod/"+f.ID)
	first := load().(*runPage).Flow
	f.StartedAt, f.CreatedAt = task.At(apikit.Began.Add(-10*time.Minute)), task.At(apikit.Began.Add(-10*time.Minute))
	long := load().(*runPage).Flow
	w.Clock.Advance(2 * time.Second)
	if again := load().(*runPage).Flow; !again.To.Equal(long.To.Time) || first.To.Equal(long.To.Time) {
		t.Errorf("the bars end at %s, then at %s, two seconds later at %s", first.To, long.To, again.To)
	}
}

// A step that is chosen shows its parts: 50 on a page, and those of a kind on request.
func TestRunFlow_ShowsPartsOfAStep(t *testing.T) {
	f := failedOrders()
	ann := flowWorld(t, f).as("user:ann")
	at := "/ui/runs/prod/" + f.ID

	rows := func(page string) int { return strings.Count(page, `<tr id="item-`) }
	page := ann.page(at + "?step=load")
	want(t, page, `id="step" tabindex="-1"`, "Step load", "Step load failed: 3 of its 1000 items did not succeed", "It begins after extract.", "At most 10 run at the same time.", ">all 1,000</a>", ">failed 3</a>", ">succeeded 997</a>", "page=2&amp;step=load#step", `aria-current="true"`)
	if n := rows(page); n != itemsPerPage {
		t.Errorf("%d rows", n)
	}
	without(t, page, ">running 0")

	page = ann.page(at + "?step=load&items=failed")
	if n := rows(page); n != 3 {
		t.Errorf("%d rows of failed items", n)
	}
	page = ann.page(at + "?step=load&items=succeeded&page=20")
	if n := rows(page); n != 47 {
		t.Errorf("%d rows on the last page", n)
	}
	for _, odd := range []string{"?step=load&page=1000", "?step=load&page=-1", "?step=load&items=odd", "?step=none", "?step=pay"} {
		ann.page(at + odd)
	}
	want(t, ann.page(at+"?step=clean"), "It cleans up after extract, pay.")
}

// A map of which many items failed lists some of them.
func TestRunFlow_FoldsManyFailures(t *testing.T) {
	f := newFlowRun(task.Failed)
	f.add("load", "failed", nil, func(s *client.RunStep) {
		s.Map = true
		f.open(s, task.Failed, 700, 1, 9)
		f.open(s, task.Succeeded, 300, 1, 9)
	})
	page := flowWorld(t, f).as("user:ann").page("/ui/runs/prod/" + f.ID)
	want(t, page, "690 more failed", "300/1,000, 700 failed", "items=failed&amp;step=load#step")
	if n := strings.Count(page, `class="item"`); n != failedInRow+1 {
		t.Errorf("%d rows of items", n)
	}
	if len(page) > 60_000 {
		t.Errorf("the page has %d bytes", len(page))
	}
}

func TestRunFlow_SaysWhatARetryRepeats(t *testing.T) {
	f := failedOrders()
	w := flowWorld(t, f)
	w.serveDead(&f.Run)
	w.Bind("user:bob", "viewer", "prod")
	ann, at := w.as("user:ann"), "/ui/runs/prod/"+f.ID

	want(t, ann.page(at), `>Retry…</a>`)
	page := ann.page(at + "?do=retry")
	want(t, page, "Retry this run?", "<dd>load (3 items: 0, 1, 2), mail, clean</dd>", "<dd>pay</dd>", "<dd>extract, 997 items of load</dd>", "choose the first of them below")
	page = ann.page(at + "?do=retry&step=extract")
	want(t, page, "Retry this run from step extract?", "<dd>extract, load (all 1,000 items), mail, clean</dd>", "<dd>nothing</dd>", `name="from" value="extract"`)
	want(t, ann.page(at+"?step=load"), "Retry from this step…")

	// The form names the step to the API.
	asked := ""
	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if asked = r.URL.RawQuery; strings.HasSuffix(r.URL.Path, "/retry") {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusAccepted)
			must(t, json.NewEncoder(rw).Encode(client.Triggered{Run: task.Run{ID: "20261120T220500.000Z-abcd-again"}}))
			return
		}
		api.ServeHTTP(rw, r)
	})
	a := ann.do(http.MethodPost, at+"/retry", url.Values{"at": {at}, "from": {"extract"}})
	if a.StatusCode != http.StatusSeeOther || asked != "from=extract" || a.Header.Get("Location") != "/ui/runs/prod/20261120T220500.000Z-abcd-again" {
		t.Errorf("retry: %d to %s, query %q: %s", a.StatusCode, a.Header.Get("Location"), asked, a.body)
	}
	w.api = api

	bob := w.as("user:bob")
	for _, query := range []string{"", "?step=load", "?do=retry", "?do=cancel"} {
		without(t, bob.page(at+query), "Retry", "Cancel the run")
	}
}

func TestRunFlow_SaysWhatACancelLeaves(t *testing.T) {
	f := newFlowRun(task.Running)
	f.add("extract", "running", nil, func(s *client.RunStep) { f.open(s, task.Running, 1, 0, -1) })
	f.add("load", "waiting", []string{"extract"}, nil)
	f.add("clean", "waiting", []string{"load"}, func(s *client.RunStep) { s.When = "always" })
	f.add("other", "waiting", nil, nil)
	f.add("unused", "waiting", []string{"other"}, func(s *client.RunStep) { s.When = "always" })
	w := flowWorld(t, f)
	ann, at := w.as("user:ann"), "/ui/runs/prod/"+f.ID

	page := ann.page(at + "?do=cancel")
	want(t, page, "no other step begins, except cleanup", "Cleanup that will run to its end: <strong>clean</strong>.", `name="force" value="true"> Also end cleanup`)

	asked := ""
	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/cancel") {
			asked = r.URL.RawQuery
			rw.Header().Set("Content-Type", "application/json")
			must(t, json.NewEncoder(rw).Encode(client.Cancelled{Run: f.Run}))
			return
		}
		api.ServeHTTP(rw, r)
	})
	if a := ann.do(http.MethodPost, at+"/cancel", url.Values{"at": {at}, "force": {"true"}}); a.StatusCode != http.StatusSeeOther || asked != "force=true" {
		t.Errorf("cancel: %d, query %q: %s", a.StatusCode, asked, a.body)
	}

	f.steps.Cancel = task.ReasonCancelled
	want(t, ann.page(at+"?do=cancel"), "It is being cancelled already.", `name="force" value="true" required>`)
	f.steps.Steps = f.steps.Steps[:1]
	without(t, ann.page(at+"?do=cancel"), `name="force"`)
}

// Of a run that is no run of a workflow, the page asks for no steps.
func TestRunFlow_IsOnlyForWorkflows(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	run := w.trigger("prod", "web")
	without(t, w.as("user:ann").page("/ui/runs/prod/"+run.ID), `id="steps-title"`)
}

// Lists say that a task is a workflow, and how far its active runs are.
func TestRunFlow_IsInLists(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "orders", func(s *task.Spec) { s.Action = task.Action{Workflow: ordersWorkflow()} })
	w.create("prod", "web")
	ann := w.as("user:ann")
	if n := strings.Count(ann.page("/ui/tasks"), `<span class="sub">workflow</span>`); n != 1 {
		t.Errorf("%d tasks are workflows", n)
	}

	run := runRow{Run: task.Run{State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Count: 12, Ended: 3, Flow: &task.Flow{}}}}}
	if got := run.FlowProgress(); got != "workflow: 3 of 12 parts ended so far" {
		t.Errorf("got %q", got)
	}
	run.State = task.Failed
	if got := run.FlowProgress(); got != "" {
		t.Errorf("got %q", got)
	}
}

// A run of a workflow that waits shows the steps that its task has now.
func TestRunFlow_ShowsStepsOfAQueuedRun(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "orders", func(s *task.Spec) { s.Action = task.Action{Workflow: ordersWorkflow()} })
	run := w.trigger("prod", "orders")

	page := w.as("user:ann").page("/ui/runs/prod/" + run.ID + "?step=clean")
	want(t, page, "0 of 5 steps ended", "Step clean waits", `<svg class="lines"`)
	want(t, tableRow(t, page, "load"), "waits for extract")
	without(t, page, `id="output"`)
}
