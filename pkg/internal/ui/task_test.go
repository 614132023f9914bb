package ui

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// stored returns a task as the API has it.
func (w *world) stored(ns, name string) client.Task {
	w.t.Helper()
	c, err := w.ui.clientAt(&transport{api: w.api}, w.Token("user:ann"))
	must(w.t, err)
	t, err := c.Tasks.Get(w.t.Context(), ns, name)
	must(w.t, err)

	return t
}

// without checks that a text lacks others.
func without(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if strings.Contains(text, p) {
			t.Errorf("%q is in:\n%s", p, text)
		}
	}
}

// The page of a failing task shows how its last run ended, the end of its output, and lets who may retry that run do so.
func TestTask_ShowsItsLastFailure(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "dump")
	id := w.deadRun("prod", "dump", func(r *task.Run) { r.OutputTail = "one\ntwo\nthree\nfour\nfive\ncannot reach <db-2>\n" })
	ann := w.as("user:ann")

	page := ann.page("/ui/tasks/prod/dump")
	want(t, page, `id="failure-title"`, "exit 3", "cannot reach &lt;db-2&gt;", "/ui/runs/prod/"+id+"/retry", "The run, with its whole output")
	without(t, page, "one\n")

	w.Bind("user:bob", "viewer", "prod")
	page = w.as("user:bob").page("/ui/tasks/prod/dump")
	want(t, page, `id="failure-title"`, "exit 3")
	without(t, page, "/retry")

	// A failure that somebody has dismissed needs nobody.
	w.create("prod", "old")
	dismissed := w.deadRun("prod", "old", func(r *task.Run) { r.OutputTail = "cannot reach <db-2>\n" })
	if a := ann.do(http.MethodPost, "/ui/runs/prod/"+dismissed+"/dismiss", url.Values{"at": {"/ui/tasks/prod/old"}}); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("dismiss: %d %s", a.StatusCode, a.body)
	}
	without(t, ann.page("/ui/tasks/prod/old"), `id="failure-title"`)
	want(t, ann.page("/ui/runs/prod/"+dismissed), "not among the dead-letter runs any more", "/ui/events?kind=run&amp;ns=prod")

	// A task is failing until all of its failures are dismissed: the page shows one that is left.
	w.create("prod", "twice")
	left := w.deadRun("prod", "twice")
	w.Clock.Advance(time.Minute)
	newest := w.deadRun("prod", "twice")
	if a := ann.do(http.MethodPost, "/ui/runs/prod/"+newest+"/dismiss", url.Values{"at": {"/ui/tasks/prod/twice"}}); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("dismiss: %d %s", a.StatusCode, a.body)
	}
	want(t, ann.page("/ui/tasks/prod/twice"), `id="failure-title"`, "/ui/runs/prod/"+left+"/retry")

	// The run that was retried leads to the new one, and the task no longer offers a retry.
	a := ann.do(http.MethodPost, "/ui/runs/prod/"+id+"/retry", url.Values{"at": {"/ui/tasks/prod/dump"}})
	if a.StatusCode != http.StatusSeeOther {
		t.Fatalf("retry: %d %s", a.StatusCode, a.body)
	}
	want(t, ann.page("/ui/runs/prod/"+id), "retried as", a.Header.Get("Location"))
	without(t, ann.page("/ui/tasks/prod/dump"), id+"/retry")
}

// The page of a task says when it runs, which clock changes matter, and what it is; each tab has its command line.
func TestTask_ShowsWhatItDoes(t *testing.T) {
	w := newWorld(t)
	w.Clock.Set(time.Date(2027, 3, 26, 12, 0, 0, 0, time.UTC))
	w.create("prod", "dump", func(s *task.Spec) {
		s.Schedule, s.Timezone, s.Description = task.Schedules{"30 2 * * *"}, "Europe/Berlin", "nightly <b>"
		s.Labels = map[string]string{"team": "data"}
	})
	ann := w.as("user:ann")

	page := ann.page("/ui/tasks/prod/dump")
	want(t, page, "At 02:30 every day, Berlin time", "nightly &lt;b&gt;", "Sat 27 Mar 02:30 CET", "Sun 28 Mar 03:00 CEST", "after a gap: the clocks go forward",
		"label%3Ateam%3Ddata", "It has not run yet", "carillon task get dump -n prod", "Trigger…", "Pause…", "Delete…")

	for tab, parts := range map[string][]string{
		"runs":       {"It has not run yet", "carillon task history dump -n prod"},
		"stats":      {"the task has not run yet", "carillon task stats dump -n prod"},
		"versions":   {"created", "user:ann", "carillon task history dump --versions -n prod"},
		"definition": {"timezone: Europe/Berlin", "Keys in etcd", w.stored("prod", "dump").UID, "carillon task get dump -o yaml -n prod"},
	} {
		want(t, ann.page("/ui/tasks/prod/dump?tab="+tab), parts...)
	}

	if a := ann.get("/ui/tasks/prod/none"); a.StatusCode != http.StatusNotFound {
		t.Errorf("a task that does not exist: %d", a.StatusCode)
	}
}

// A viewer is offered nothing that changes a task, and is refused it.
func TestTask_OffersWhatIsAllowed(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.Bind("user:bob", "viewer", "prod")
	bob := w.as("user:bob")

	without(t, bob.page("/ui/tasks/prod/web?do=delete"), "Trigger…", "Pause…", "Delete", "Clone", ">Edit<")
	without(t, bob.page("/ui/tasks"), "New task", `name="task"`, `value="delete"`)
	for _, what := range []string{"trigger", "pause", "resume", "delete"} {
		form := url.Values{"at": {"/ui/tasks/prod/web"}, "revision": {strconv.FormatInt(w.stored("prod", "web").Revision, 10)}}
		if a := bob.do(http.MethodPost, "/ui/tasks/prod/web/"+what, form); a.StatusCode != http.StatusForbidden {
			t.Errorf("%s by a viewer: %d, want 403", what, a.StatusCode)
		}
	}
}

// A trigger runs the task that the form has shown. If it has changed since, the form is shown again with what was entered, for
// the present task.
func TestTask_TriggersWhatWasShown(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", func(s *task.Spec) { s.Accept.Env = []string{"A"} })
	ann := w.as("user:ann")
	const at = "/ui/tasks/prod/web?do=trigger"
	revision := func() string { return strconv.FormatInt(w.stored("prod", "web").Revision, 10) }
	form := url.Values{"at": {at}, "env": {"A=typed"}, "revision": {revision()}}
	want(t, ann.page(at), `name="revision" value="`+revision()+`"`)

	ann.do(http.MethodPost, "/ui/tasks/prod/web/pause", url.Values{"at": {"/ui/tasks/prod/web"}})
	a := ann.do(http.MethodPost, "/ui/tasks/prod/web/trigger", form)
	if a.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("a task that has changed: %d", a.StatusCode)
	}
	want(t, a.body, "It has changed meanwhile", "A=typed", "The task is paused, but this run starts anyway", `name="revision" value="`+revision()+`"`)

	form.Set("revision", revision())
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/trigger", form); a.StatusCode != http.StatusSeeOther {
		t.Errorf("the present task: %d %s", a.StatusCode, a.body)
	}
}

// A pause has an end and a reason. A wrong end is shown at its field, with what was entered.
func TestTask_Pauses(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", func(s *task.Spec) { s.Timezone = "Europe/Berlin" })
	ann := w.as("user:ann")
	form := func(until string) url.Values {
		return url.Values{"at": {"/ui/tasks/prod/web?do=pause"}, "until": {until}, "reason": {"disk <full>"}}
	}

	a := ann.do(http.MethodPost, "/ui/tasks/prod/web/pause", form("soon"))
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a wrong end: %d", a.StatusCode)
	}
	want(t, a.body, `id="until-error"`, `value="soon"`, "disk &lt;full&gt;")

	// It is 23:05 in Berlin, so this is tomorrow.
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/pause", form("18:00")); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("pause: %d %s", a.StatusCode, a.body)
	}
	got := w.stored("prod", "web")
	if until := time.Date(2026, 11, 21, 17, 0, 0, 0, time.UTC); !got.Paused || !got.PausedUntil.Equal(until) || got.PauseReason != "disk <full>" {
		t.Errorf("paused %v until %v: %q", got.Paused, got.PausedUntil, got.PauseReason)
	}
	want(t, ann.page("/ui/tasks/prod/web"), "disk &lt;full&gt;", "Resume")

	ann.do(http.MethodPost, "/ui/tasks/prod/web/resume", url.Values{"at": {"/ui/tasks/prod/web"}})
	if w.stored("prod", "web").Paused {
		t.Error("the task is still paused")
	}
}

// A rollback shows what it would change, and makes that change.
func TestTask_RollsBack(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	ann := w.as("user:ann")
	form := builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
	form.Set("timeout", "5m")
	ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form)

	page := ann.page("/ui/tasks/prod/web?tab=versions&to=1")
	want(t, page, "Version 1 instead of the current one", "timeout", "5m", "Roll back to version 1")

	rollback := url.Values{"at": {"/ui/tasks/prod/web?tab=versions"}, "to": {"1"}, "revision": {strconv.FormatInt(w.stored("prod", "web").Revision, 10)}}
	ann.do(http.MethodPost, "/ui/tasks/prod/web/rollback", rollback)
	if got := w.stored("prod", "web"); got.Timeout != 0 || got.Generation != 3 {
		t.Errorf("timeout %v in version %d", got.Timeout, got.Generation)
	}
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/rollback", rollback); a.StatusCode != http.StatusPreconditionFailed && a.StatusCode != http.StatusConflict {
		t.Errorf("a rollback of another version than the one that was shown: %d", a.StatusCode)
	}
}

// A query that is not valid stays in its field, with the error, and chips add and remove terms.
func TestTasks_Query(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", func(s *task.Spec) { s.Labels = map[string]string{"team": "data"} })
	ann := w.as("user:ann")

	want(t, ann.page("/ui/tasks?q=state:nonsense"), `value="state:nonsense"`, `id="q-error"`, `aria-invalid="true"`)
	page := ann.page("/ui/tasks?q=" + url.QueryEscape("name~w state:idle"))
	want(t, page, "Remove name~w", `href="/ui/tasks?q=name~w"`, "Add label:team=data", "1 task matches")
}

// While a shard does not answer, its rows stay on a page that somebody watches.
func TestTasks_RowsOfSilentShardsStay(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	load := w.loadAgain(loadTasks, "/ui/tasks")
	if first, _ := load().(tasksPage); len(first.Tasks) != 1 {
		t.Fatalf("%d tasks", len(first.Tasks))
	}

	w.api = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write([]byte(`{"items": [], "missing": [3]}`))
	})
	w.Clock.Advance(refreshEvery)
	if second, _ := load().(tasksPage); len(second.Tasks) != 1 {
		t.Errorf("%d tasks while a shard does not answer", len(second.Tasks))
	}
}

// The form of a trigger offers what the task accepts, and nothing else.
func TestTask_ATriggerGivesWhatTheTaskAccepts(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "plain")
	w.create("prod", "report", func(s *task.Spec) {
		s.Action = task.Action{Process: &task.Process{Command: []string{"report"}, Stdin: &task.Stdin{Secret: "db/query"}}}
		s.Accept = task.Accept{Args: 2, Env: []string{"DAY", "MODE"}, Target: true}
	})
	ann := w.as("user:ann")

	without(t, ann.page("/ui/tasks/prod/plain?do=trigger"), `name="args"`, `name="env"`, `name="target"`)
	page := ann.page("/ui/tasks/prod/report?do=trigger")
	want(t, page, `name="args"`, `name="env"`, `name="target"`, "at most 2", "DAY, MODE", "secret db/query", "up to 2 arguments; variables DAY, MODE; its node")

	form := func(args string) url.Values {
		revision := strconv.FormatInt(w.stored("prod", "report").Revision, 10)
		return url.Values{"at": {"/ui/tasks/prod/report?do=trigger"}, "args": {args}, "env": {"DAY=1"}, "target": {"n7"}, "revision": {revision}}
	}
	a := ann.do(http.MethodPost, "/ui/tasks/prod/report/trigger", form("--day\r\n<b>\r\nx"))
	want(t, a.body, "has 3 arguments; the task accepts at most 2", "args-error")

	ann.do(http.MethodPost, "/ui/tasks/prod/report/trigger", form("--day\r\n<b>"))
	c, err := w.ui.clientAt(&transport{api: w.api}, w.Token("user:ann"))
	must(t, err)
	runs, err := c.Runs.ListByTask(t.Context(), "prod", "report", client.RunListOptions{})
	must(t, err)
	if len(runs) != 1 || strings.Join(runs[0].Args, "|") != "--day|<b>" || runs[0].TargetNode != "n7" {
		t.Fatalf("runs are %+v", runs)
	}

	want(t, ann.page("/ui/runs/prod/"+runs[0].ID), "Extra arguments", "--day &#39;&lt;b&gt;&#39;", "Requested node", "n7")
}

// A form that is sent several times, because its answer is slow, starts one run. A form that is opened again starts another one.
func TestTask_TriggersOnceForEachForm(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	ann := w.as("user:ann")
	const at = "/ui/tasks/prod/web?do=trigger"
	open := func() url.Values {
		page := ann.page(at)
		_, after, ok := strings.Cut(page, `name="key" value="`)
		key, _, _ := strings.Cut(after, `"`)
		if !ok || key == "" {
			t.Fatalf("the form has no key: %s", page)
		}
		return url.Values{"at": {at}, "revision": {strconv.FormatInt(w.stored("prod", "web").Revision, 10)}, "key": {key}}
	}

	form := open()
	places := map[string]int{}
	for range 3 {
		a := ann.do(http.MethodPost, "/ui/tasks/prod/web/trigger", form)
		if a.StatusCode != http.StatusSeeOther {
			t.Fatalf("%d: %s", a.StatusCode, a.body)
		}
		places[a.Header.Get("Location")]++
	}
	if n := w.queued("prod", "web"); n != 1 || len(places) != 1 {
		t.Errorf("one form has queued %d runs, and leads to %v", n, places)
	}

	ann.do(http.MethodPost, "/ui/tasks/prod/web/trigger", open())
	if n := w.queued("prod", "web"); n != 2 {
		t.Errorf("two forms have queued %d runs", n)
	}

	// The same for a bulk action.
	plan := fmt.Sprintf("prod web %s %d\n", w.stored("prod", "web").UID, w.stored("prod", "web").Revision)
	for range 2 {
		ann.do(http.MethodPost, "/ui/tasks/bulk/run", url.Values{"at": {"/ui/tasks/bulk?do=trigger&task=prod/web"}, "do": {"trigger"}, "plan": {plan}, "key": {"k"}})
	}
	if n := w.queued("prod", "web"); n != 3 {
		t.Errorf("after a bulk action that was sent twice, %d runs are queued", n)
	}
}

// queued returns the number of waiting runs of a task.
func (w *world) queued(ns, name string) int {
	w.t.Helper()
	c, err := w.ui.clientAt(&transport{api: w.api}, w.Token("user:ann"))
	must(w.t, err)
	runs, err := c.Runs.ListByTask(w.t.Context(), ns, name, client.RunListOptions{State: task.Queued})
	must(w.t, err)

	return len(runs)
}
