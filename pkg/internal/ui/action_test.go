package ui

import (
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// pauseScreen is a screen with a form that pauses a task.
func pauseScreen() Screen {
	return Screen{
		Name: "pause", Pattern: "/ui/pause/{ns}/{name}", Nav: "tasks", Title: func(*View) string { return "Pause" },
		Load: func(ctx context.Context, r *Request) (any, error) {
			return r.API.Tasks.Get(ctx, r.Value("ns"), r.Value("name"))
		},
		Actions: []Action{{
			Pattern: "/ui/pause/{ns}/{name}/now",
			Run: func(ctx context.Context, r *Request) (Done, error) {
				if r.Form.Get("reason") == "" {
					return Done{}, task.Invalid(task.CodeRequired, "reason", "is required")
				}
				t, err := r.API.Tasks.Pause(ctx, r.Value("ns"), r.Value("name"), 0)
				return Done{Message: t.Name + " is paused"}, err
			},
		}},
	}
}

// pauseTemplate is its template.
const pauseTemplate = `{{define "content"}}<form method="post" action="{{$.Link "/ui/pause/{}/{}/now" .Data.Namespace .Data.Name}}">
<input name="reason" value="{{.Form.Get "reason"}}"{{if $.Faulty "reason"}} aria-invalid="true"{{end}}>{{if .Data.Paused}}paused{{end}}</form>{{end}}`

// withTemplate adds a template to the embedded files.
type withTemplate struct {
	fs.FS
	name, text string
}

func (w withTemplate) Open(name string) (fs.File, error) {
	if name == w.name {
		return fstest.MapFS{name: &fstest.MapFile{Data: []byte(w.text)}}.Open(name)
	}
	return w.FS.Open(name)
}

// Glob finds a file by its name, as parsing templates does, and otherwise embedded files.
func (w withTemplate) Glob(pattern string) ([]string, error) {
	if pattern == w.name {
		return []string{w.name}, nil
	}
	return fs.Glob(w.FS, pattern)
}

// newPauseWorld is a world whose pages have the screen.
func newPauseWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, append(screens(), pauseScreen()), withTemplate{embedded, "templates/pause.html", pauseTemplate})
}

// An action is judged by the API. Its error is shown on the page of the form, at its field, with what was entered.
func TestAction_ShowsItsErrorOnThePage(t *testing.T) {
	w := newPauseWorld(t)
	w.create("prod", "web")
	w.Bind("user:bob", "viewer", "prod")
	form := func(reason string) url.Values {
		return url.Values{"reason": {reason}, "at": {"/ui/pause/prod/web?tz=UTC"}}
	}

	a := w.as("user:bob").do(http.MethodPost, "/ui/pause/prod/web/now", form("because"))
	if a.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer's POST: %d, want 403", a.StatusCode)
	}
	want(t, a.body, "user:bob may not pause tasks in namespace prod", "the role operator allows it", `value="because"`)

	ann := w.as("user:ann")
	a = ann.do(http.MethodPost, "/ui/pause/prod/web/now", form(""))
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("an invalid form: %d, want 422", a.StatusCode)
	}
	want(t, a.body, "<code>reason</code>: is required", `aria-invalid="true"`)

	a = w.as("").do(http.MethodPost, "/ui/pause/prod/web/now", form("because"))
	if got := a.Header.Get("Location"); a.StatusCode != http.StatusSeeOther || got != "/ui/login?"+(url.Values{"next": {"/ui/pause/prod/web?tz=UTC"}}).Encode() {
		t.Errorf("a POST without a session: %d to %q", a.StatusCode, got)
	}

	if page := ann.page("/ui/pause/prod/web"); strings.Contains(page, "paused") {
		t.Error("the task is paused after refused requests")
	}
}

// After an action the browser gets the page again, and once what was done.
func TestAction_LeadsBackToThePage(t *testing.T) {
	w := newPauseWorld(t)
	w.create("prod", "web")
	ann := w.as("user:ann")

	a := ann.do(http.MethodPost, "/ui/pause/prod/web/now", url.Values{"reason": {"x"}, "at": {"/ui/pause/prod/web?tz=UTC"}})
	if got := a.Header.Get("Location"); a.StatusCode != http.StatusSeeOther || got != "/ui/pause/prod/web?tz=UTC" {
		t.Fatalf("POST: %d to %q", a.StatusCode, got)
	}

	withMessage := func(r *http.Request) {
		for _, c := range a.Cookies() {
			r.AddCookie(c)
		}
	}
	next := ann.get("/ui/pause/prod/web?tz=UTC", withMessage)
	want(t, next.body, "web is paused", "paused</form>")
	if cookies := next.Cookies(); len(cookies) != 1 || cookies[0].Name != messageCookie || cookies[0].MaxAge >= 0 {
		t.Errorf("the message is not taken back: %v", cookies)
	}
}

// An action changes a limited number of tasks. If more match, the list says so, and the preview says why it shows none.
func TestBulk_LimitsItsTasks(t *testing.T) {
	w := newWorld(t)
	inner := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/tasks" {
			inner.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		spec := task.Spec{Namespace: "prod", Name: "web"}
		n := 1
		if r.URL.Query().Get("complete") == "true" {
			n = maxBulk + 1
		}
		_ = json.NewEncoder(rw).Encode(map[string]any{"items": slices.Repeat([]client.Task{{Task: task.Task{Spec: spec}}}, n), "count": 12_000})
	})
	ann := w.as("user:ann")

	want(t, ann.page("/ui/tasks"), "12,000 tasks", `value="all" disabled`, "At most 10,000 at once")

	a := ann.get("/ui/tasks/bulk?do=pause&scope=all")
	want(t, a.body, "more than 10,000 tasks match", "<h1>Pause tasks</h1>", "Back to the tasks")
	without(t, a.body, "No task matches")
}
