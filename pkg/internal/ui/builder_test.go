package ui

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

var (
	formPattern     = regexp.MustCompile(`(?s)<form id="form-fields".*?</form>`)
	inputPattern    = regexp.MustCompile(`<input[^>]*? name="([^"]*)"[^>]*? value="([^"]*)"`)
	textPattern     = regexp.MustCompile(`(?s)<textarea[^>]*? name="([^"]*)"[^>]*>(.*?)</textarea>`)
	selectPattern   = regexp.MustCompile(`(?s)<select[^>]*? name="([^"]*)"[^>]*>(.*?)</select>`)
	selectedPattern = regexp.MustCompile(`<option( value="([^"]*)")? selected>([^<]*)<`)
)

// builderForm returns what the form with fields of a page would post.
func builderForm(t *testing.T, page string) url.Values {
	t.Helper()
	text := formPattern.FindString(page)
	if text == "" {
		t.Fatalf("there is no form in:\n%s", page)
	}

	form := url.Values{}
	for _, p := range []*regexp.Regexp{inputPattern, textPattern} {
		for _, m := range p.FindAllStringSubmatch(text, -1) {
			form.Set(m[1], html.UnescapeString(m[2]))
		}
	}
	for _, m := range selectPattern.FindAllStringSubmatch(text, -1) {
		if s := selectedPattern.FindStringSubmatch(m[2]); s != nil {
			form.Set(m[1], map[bool]string{true: s[2], false: s[3]}[s[1] != ""])
		}
	}

	return form
}

// A task that is saved as the form shows it does not change, whatever it contains.
func TestBuilder_KeepsWhatItHasNoFieldsFor(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", func(s *task.Spec) {
		s.Description = hostileText[:20]
		s.Schedule, s.Timezone = task.Schedules{"30 2 * * 1-5", "@hourly"}, "Europe/Berlin"
		s.Action.Process.Command = []string{"/bin/sh", "-c", "echo 'a b' \"$X\" \\"}
		s.Action.Process.Env = map[string]string{"A": "1=2", "B": "x y"}
		s.Success.ExitCodes = []int{0, 3}
		s.Retry.Attempts, s.PauseAfter = 3, 5
	})
	ann, before := w.as("user:ann"), w.stored("prod", "web")

	form := builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/tasks/prod/web" {
		t.Fatalf("save: %d %s", a.StatusCode, a.body)
	}
	if changes := task.Differences(before.Spec, w.stored("prod", "web").Spec); len(changes) > 0 {
		t.Errorf("the form has changed %q", changes)
	}
}

// A request that is saved as the form shows it does not change, and the form changes its method, URL and body.
func TestBuilder_EditsRequests(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")

	save := func(change func(url.Values)) task.Action {
		t.Helper()
		form := builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
		change(form)
		if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form); a.StatusCode != http.StatusSeeOther {
			t.Fatalf("save: %d %s", a.StatusCode, a.body)
		}
		return w.stored("prod", "web").Action
	}

	for name, h := range map[string]task.HTTP{
		"json": {Method: "PUT", URL: "https://a/${run.id}?b=<c>", JSON: []byte(`{"z":1.0,"a":[null,"</textarea>"]}`), Headers: map[string]string{"A": "b", "B": "c:  ${secret:a/b}"}, Expect: task.HTTPExpect{Status: []string{"2xx", "404"}, Body: "ok"}, Results: map[string]string{"id": "/a"}},
		"text": {URL: "secret:a/b", Body: "\n{}\r\nx\ry", Auth: &task.HTTPAuth{Bearer: "a/b"}},
		"form": {URL: "https://a", Form: map[string]string{"a": "b"}},
	} {
		w.create("prod", name, func(s *task.Spec) { s.Action = task.Action{HTTP: &h} })
		before := w.stored("prod", name)
		form := builderForm(t, ann.page("/ui/tasks/prod/"+name+"/edit"))
		if a := ann.do(http.MethodPost, "/ui/tasks/prod/"+name+"/edit/save", form); a.StatusCode != http.StatusSeeOther {
			t.Fatalf("%s: %d %s", name, a.StatusCode, a.body)
		}
		if changes := task.Differences(before.Spec, w.stored("prod", name).Spec); len(changes) > 0 {
			t.Errorf("%s: the form has changed %q", name, changes)
		}
	}

	w.create("prod", "web")
	a := save(func(f url.Values) {
		f.Set("kind", "http")
		f.Set("action.http.url", " https://a/b ")
		f.Set("action.http.body", `{"a": "${run.id}"}`)
	})
	if h := a.HTTP; a.Process != nil || h == nil || h.URL != "https://a/b" || string(h.JSON) != `{"a":"${run.id}"}` {
		t.Fatalf("%+v", a)
	}
	want(t, ann.page("/ui/tasks/prod/web"), "POST https://a/b")

	a = save(func(f url.Values) { f.Set("action.http.body", "plain"); f.Set("action.http.method", "PATCH") })
	if h := a.HTTP; h.Method != "PATCH" || h.Body != "plain" || h.JSON != nil {
		t.Fatalf("%+v", h)
	}

	a = save(func(f url.Values) { f.Set("action.http.body", `{"a": 1}`) })
	if h := a.HTTP; h.Body != `{"a": 1}` || h.JSON != nil {
		t.Fatalf("text became %+v", h)
	}

	a = save(func(f url.Values) {
		f.Set("action.http.headers", "X-Team:  shop: a \r\n\r\nX-Key: ${secret:api/key}")
		f.Set("action.http.expect.status", "2xx,404 410")
	})
	if h := a.HTTP; !maps.Equal(h.Headers, map[string]string{"X-Team": "shop: a", "X-Key": "${secret:api/key}"}) || !slices.Equal(h.Expect.Status, []string{"2xx", "404", "410"}) {
		t.Fatalf("%+v", h)
	}
	for _, text := range []string{"no colon", ": value", "A: b\nA: c"} {
		form := builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
		form.Set("action.http.headers", text)
		if r := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form); r.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(r.body, `id="action.http.headers-error"`) {
			t.Errorf("headers %q: %d", text, r.StatusCode)
		}
	}
	a = save(func(f url.Values) { f.Set("action.http.headers", ""); f.Set("action.http.expect.status", " ") })
	if h := a.HTTP; h.Headers != nil || h.Expect.Status != nil {
		t.Fatalf("%+v", h)
	}

	a = save(func(f url.Values) { f.Set("kind", "command"); f.Set("action.process", "true") })
	if a.HTTP != nil || a.Process == nil {
		t.Fatalf("%+v", a)
	}
}

// A preview writes nothing, and says which ticks come and go, and in how many nodes the task could run.
func TestBuilder_Previews(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	ann := w.as("user:ann")
	form := builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
	form.Set("schedule", "30 2 * * *")

	a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/preview", form)
	if a.StatusCode != http.StatusOK {
		t.Fatalf("preview: %d %s", a.StatusCode, a.body)
	}
	want(t, a.body, "At 02:30 every day, UTC.", "Sat 21 Nov 02:30 UTC", "What changes", "7 added", "schedule: &#34;30 2 * * *&#34;", "168 removed", "0 moved", "more</li>", "no node would take its runs now")
	if got := w.stored("prod", "web"); got.Generation != 1 {
		t.Error("a preview has changed the task")
	}

	form.Set("schedule", "0 25 * * *")
	a = ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/preview", form)
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("an invalid schedule: %d", a.StatusCode)
	}
	want(t, a.body, `id="schedule-error"`, "25", "0 25 * * *</textarea>")
}

// A quieter minute is in the same hour, and has not begun: what is left of the present minute says nothing about its load.
func TestBuilder_FindsQuieterMinute(t *testing.T) {
	from := time.Date(2026, 11, 20, 2, 50, 0, 0, time.UTC)
	runs := make([]float64, 120)
	for i := range runs {
		runs[i] = 5
	}
	runs[3], runs[9], runs[20] = 0, 9, 0 // 02:53, 02:59, 03:10

	for begun, want := range map[int]int{0: 3, 3: 3, 4: 8} {
		if got := quietestMinute(runs, 9, begun, from); got != want {
			t.Errorf("after %d minutes: minute %d, want %d", begun, got, want)
		}
	}
}

// The form with YAML says where its error is, and does the same as the one with fields.
func TestBuilder_YAML(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")
	form := url.Values{"at": {"/ui/tasks/new"}, "sent": {"yaml"}, "yaml": {"name: x\nnamespace: prod\nschedul: '@hourly'\n"}}

	a := ann.do(http.MethodPost, "/ui/tasks/new/save", form)
	want(t, a.body, "line 3, column 1", "schedul: &#39;@hourly&#39;", `id="yaml-error"`)

	form.Set("yaml", "name: x\nnamespace: prod\nschedule: '@hourly'\naction:\n  noop: {}\n")
	a = ann.do(http.MethodPost, "/ui/tasks/new/preview", form)
	want(t, a.body, `name="name" value="x"`, `<option value="noop" selected>`, "Every hour")

	if a = ann.do(http.MethodPost, "/ui/tasks/new/save", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("save: %d %s", a.StatusCode, a.body)
	}
	if got := w.stored("prod", "x"); got.Action.Noop == nil {
		t.Errorf("got %+v", got.Action)
	}
}

// If somebody else has changed the task meanwhile, nothing is written, and both versions are shown.
func TestBuilder_ShowsConflicts(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	ann, ben := w.as("user:ann"), w.as("user:ann")
	form := builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
	other := builderForm(t, ben.page("/ui/tasks/prod/web/edit"))
	other.Set("timeout", "7m")
	ben.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", other)

	form.Set("timeout", "9m")
	a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form)
	if a.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("a save of an old version: %d", a.StatusCode)
	}
	want(t, a.body, "Somebody else has changed this task", "Stored now", "7m", "Yours", "9m", "Overwrite it with yours", "nothing was saved")

	over := regexp.MustCompile(`name="over" value="(\d+)"`).FindStringSubmatch(a.body)
	if over == nil {
		t.Fatal("there is no button to overwrite")
	}
	form = builderForm(t, a.body)
	form.Set("over", over[1])
	ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form)
	if got := w.stored("prod", "web").Timeout.String(); got != "9m" {
		t.Errorf("timeout %s", got)
	}
}

// A command line is split as a shell would, without what a shell would execute.
func TestSplitCommand(t *testing.T) {
	for text, want := range map[string][]string{
		`a 'b c' "d e" f\ g`:  {"a", "b c", "d e", "f g"},
		`x '' "a'b" 'a"b' \\`: {"x", "", "a'b", `a"b`, `\`},
		"a\n\tb  c":           {"a", "b", "c"},
		`$HOME $(x) *`:        {"$HOME", "$(x)", "*"},
	} {
		if got, err := splitCommand(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
	for _, bad := range []string{`'a`, `"a`, `a\`} {
		if got, err := splitCommand(bad); err == nil {
			t.Errorf("%s is %q", bad, got)
		}
	}
}

// bulkPlan returns the list of tasks that a preview posts.
func bulkPlan(t *testing.T, page string) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)name="plan" value="([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("there is no plan in:\n%s", page)
	}
	return html.UnescapeString(m[1])
}

// A bulk action changes exactly the tasks of its preview, as they were then, and names the others.
func TestBulk_CarriesOutItsPreview(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create("prod", name)
	}
	ann := w.as("user:ann")
	page := ann.page("/ui/tasks/bulk?do=pause&scope=all&ns=prod")
	want(t, page, "Pause 3 tasks?", "prod/a", "prod/b", "prod/c", w.stored("prod", "a").UID)

	// Meanwhile one task changes, one is deleted, and one is new.
	form := builderForm(t, ann.page("/ui/tasks/prod/b/edit"))
	form.Set("timeout", "7m")
	ann.do(http.MethodPost, "/ui/tasks/prod/b/edit/save", form)
	ann.do(http.MethodPost, "/ui/tasks/prod/c/delete", url.Values{"at": {"/ui/tasks"}, "revision": {strings.Fields(bulkPlan(t, page))[11]}})
	w.create("prod", "d")

	a := ann.do(http.MethodPost, "/ui/tasks/bulk/run", url.Values{"at": {"/ui/tasks/bulk?do=pause&scope=all&ns=prod"}, "do": {"pause"}, "plan": {bulkPlan(t, page)}})
	if a.StatusCode != http.StatusOK {
		t.Fatalf("run: %d %s", a.StatusCode, a.body)
	}
	want(t, a.body, "paused 1 task<", "2 left out", ">prod/b<", ">prod/c<")
	for name, paused := range map[string]bool{"a": true, "b": false, "d": false} {
		if got := w.stored("prod", name).Paused; got != paused {
			t.Errorf("%s is paused: %v", name, got)
		}
	}
}

// Many tasks are deleted only after their number was typed.
func TestBulk_DeletesAfterTheNumber(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create("prod", name)
	}
	ann := w.as("user:ann")
	at := "/ui/tasks/bulk?do=delete&task=prod%2Fa&task=prod%2Fb"
	page := ann.page(at)
	want(t, page, "Type 2 to confirm")
	form := url.Values{"at": {at}, "do": {"delete"}, "plan": {bulkPlan(t, page)}, "count": {"3"}}

	a := ann.do(http.MethodPost, "/ui/tasks/bulk/run", form)
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("the wrong number: %d", a.StatusCode)
	}
	want(t, a.body, `id="count-error"`, "type 2 to confirm", "prod/a")

	form.Set("count", "2")
	if a = ann.do(http.MethodPost, "/ui/tasks/bulk/run", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("run: %d %s", a.StatusCode, a.body)
	}
	page = ann.page("/ui/tasks")
	without(t, page, "/ui/tasks/prod/a", "/ui/tasks/prod/b")
	want(t, page, "/ui/tasks/prod/c")

	for _, plan := range []string{"", "prod a x", "prod a uid -1", "prod a uid x"} {
		form.Set("plan", plan)
		if a := ann.do(http.MethodPost, "/ui/tasks/bulk/run", form); a.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("the plan %q: %d", plan, a.StatusCode)
		}
	}
}

// A task that is refused names all fields that are wrong, each once.
func TestBuilder_NamesAllFaults(t *testing.T) {
	w := newWorld(t)
	a := w.as("user:ann").do(http.MethodPost, "/ui/tasks/new/save", url.Values{
		"at": {"/ui/tasks/new"}, sentField: {formFields}, "name": {"No Name"}, "namespace": {"prod"}, "kind": {kindCommand}, "labels": {"="}, "retry.attempts": {"many"}, "timeout": {"soon"},
		"overlap": {task.OverlapSkip}, "missed.policy": {task.MissedLatest}, "target.strategy": {task.Strategies()[0]},
	})
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("the status is %d", a.StatusCode)
	}

	_, box, _ := strings.Cut(a.body, `<div id="problem"`)
	box, _, _ = strings.Cut(box, "</div>")
	var fields []string
	for _, rest := range strings.Split(box, "<code>")[1:] {
		field, _, _ := strings.Cut(rest, "</code>")
		fields = append(fields, field)
	}
	if want := []string{"name", "labels", "schedule", "action.process", "timeout", "retry.attempts"}; !slices.Equal(fields, want) {
		t.Errorf("the page names %q, want %q", fields, want)
	}
	want(t, a.body, `data-at="/ui/tasks/new"`, `id="schedule-error"`, `id="timeout-error"`)
}

// The form has no fields for steps. It keeps them, and a new workflow begins with an example, which is valid.
func TestBuilder_KeepsSteps(t *testing.T) {
	w := newWorld(t)
	grace := task.Duration(3 * time.Second)
	retry := task.Defaults().Retry
	retry.Attempts = 3
	w.create("prod", "orders", func(s *task.Spec) {
		s.Action = task.Action{Workflow: &task.Workflow{OnFailure: task.OnFailureContinue, Steps: map[string]task.Step{
			"extract": {Process: &task.Process{Shell: "x='a b'\necho \"</textarea> $x\"\n"}, Retry: &retry, KillGrace: &grace},
			"load": {
				Needs: []string{"extract"}, Map: "${steps.extract.results.files}", MaxParallel: 3,
				Process: &task.Process{Command: []string{"load", "a b"}, Env: map[string]string{"FILE": "${item}", "PRICE": "$${x}"}}, Target: &task.StepTarget{Selector: "disk = ssd"},
			},
			"pay":   {Needs: []string{"load"}, HTTP: &task.HTTP{URL: "https://bank.example/pay", JSON: []byte(`{"n":1.0}`)}},
			"count": {Map: "7", Noop: &task.Noop{}},
			"clean": {Needs: []string{"pay"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute), Noop: &task.Noop{}},
		}}}
	})
	ann, before := w.as("user:ann"), w.stored("prod", "orders")

	page := ann.page("/ui/tasks/prod/orders/edit")
	want(t, page, "5 steps: <code>extract</code>, <code>load</code>, <code>pay</code>, <code>clean</code>, <code>count</code>.", "max_parallel: 3")
	form := builderForm(t, page)
	form.Set("description", "loads orders")
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/orders/edit/save", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("save: %d %s", a.StatusCode, a.body)
	}
	changes := task.Differences(before.Spec, w.stored("prod", "orders").Spec)
	if len(changes) != 1 || !strings.HasPrefix(changes[0], "description:") {
		t.Errorf("the form has changed %q", changes)
	}

	// The YAML is the editor of the steps.
	text := html.UnescapeString(textPattern.FindStringSubmatch(page[strings.Index(page, `id="f-yaml"`)-len("<textarea "):])[2])
	form = url.Values{"sent": {"yaml"}, "at": {"/ui/tasks/prod/orders/edit"}, "revision": {fmt.Sprint(w.stored("prod", "orders").Revision)}}
	form.Set("yaml", strings.Replace(text, "max_parallel: 3", "max_parallel: 4", 1))
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/orders/edit/save", form); a.StatusCode != http.StatusSeeOther || w.stored("prod", "orders").Action.Workflow.Steps["load"].MaxParallel != 4 {
		t.Errorf("the YAML: %d %s", a.StatusCode, a.body)
	}
	form.Set("yaml", strings.Replace(text, "needs:\n          - pay", "needs:\n          - pax", 1))
	want(t, ann.do(http.MethodPost, "/ui/tasks/prod/orders/edit/save", form).body, "steps.clean.needs[0]", "pax")
}

func TestBuilder_BeginsWorkflowsWithAnExample(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")

	want(t, ann.page("/ui/tasks/new"), `<a href="/ui/tasks/new?ns=default&amp;workflow=1">an example of a workflow</a>`)

	// With scripts, choosing the kind shows the example at once: other fields may be missing.
	form := builderForm(t, ann.page("/ui/tasks/new"))
	form.Set("kind", "workflow")
	page := ann.do(http.MethodPost, "/ui/tasks/new/preview", form).body
	want(t, page, "- extract", "${steps.extract.results.files}", "3 steps: <code>extract</code>, <code>load</code>, <code>clean</code>.", `<option value="workflow" selected>`)

	form = builderForm(t, ann.page("/ui/tasks/new?workflow=1"))
	form.Set("name", "orders")
	form.Set("schedule", "@manual")
	if a := ann.do(http.MethodPost, "/ui/tasks/new/save", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("save: %d %s", a.StatusCode, a.body)
	}
	if s := w.stored("default", "orders").Action.Workflow; s == nil || len(s.Steps) != 3 {
		t.Errorf("stored %+v", s)
	}

	// Another kind removes the steps.
	form = builderForm(t, ann.page("/ui/tasks/default/orders/edit"))
	form.Set("kind", "noop")
	form.Set("action.workflow.on_failure", "continue")
	if a := ann.do(http.MethodPost, "/ui/tasks/default/orders/edit/save", form); a.StatusCode != http.StatusSeeOther || w.stored("default", "orders").Action.Noop == nil {
		t.Errorf("save: %d %s", a.StatusCode, a.body)
	}
}
