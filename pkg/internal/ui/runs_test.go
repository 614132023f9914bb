package ui

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/task"
)

// A change of several runs first shows which ones, and then changes exactly these.
func TestRuns_ChangeWhatThePreviewShows(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.create("test", "web")
	first := w.trigger("prod", "web")
	ann := w.as("user:ann")

	const at = "/ui/runs?show=active"
	want(t, ann.page(at), first.ID, "Cancel…", "carillon run list -A --state queued,dispatched,running,paused --limit 50")
	a := ann.do(http.MethodPost, "/ui/runs/change", url.Values{"at": {at}, "do": {"cancel"}, "all": {"1"}})
	want(t, a.body, "Cancel 1 run?", "prod/web@"+first.ID)

	w.Clock.Advance(time.Minute)
	second := w.trigger("prod", "web")
	a = ann.do(http.MethodPost, "/ui/runs/change", url.Values{"at": {at}, "do": {"cancel"}, "confirm": {"1"}, "run": {"prod/web@" + first.ID}})
	if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != at {
		t.Fatalf("the change: %d to %q: %s", a.StatusCode, a.Header.Get("Location"), a.body)
	}
	if page := ann.page(at); strings.Contains(page, first.ID) || !strings.Contains(page, second.ID) {
		t.Errorf("the change has not cancelled exactly the run of the preview:\n%s", page)
	}

	// What has changed since is reported.
	a = ann.do(http.MethodPost, "/ui/runs/change", url.Values{"at": {at}, "do": {"cancel"}, "confirm": {"1"}, "run": {"prod/web@" + first.ID, "prod/web@" + second.ID}})
	want(t, a.body, "1 run cancelled, 1 not", first.ID+"</a>: ")

	a = ann.do(http.MethodPost, "/ui/runs/change", url.Values{"at": {at}, "do": {"cancel"}})
	want(t, a.body, "no run is selected")
}

// Viewers see the runs of their namespaces, and only the changes that they may make.
func TestRuns_ShowWhatTheViewerMay(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.create("test", "web")
	seen, hidden := w.trigger("prod", "web"), w.trigger("test", "web")
	w.Bind("user:bob", "viewer", "prod")
	bob := w.as("user:bob")

	page := bob.page("/ui/runs?show=active")
	if !strings.Contains(page, seen.ID) || strings.Contains(page, hidden.ID) || strings.Contains(page, "Cancel…") {
		t.Errorf("the runs of bob:\n%s", page)
	}

	a := bob.do(http.MethodPost, "/ui/runs/change", url.Values{"at": {"/ui/runs"}, "do": {"cancel"}, "confirm": {"1"}, "run": {"prod/web@" + seen.ID}})
	want(t, a.body, "0 runs cancelled, 1 not", "may not cancel")
	want(t, bob.get("/ui/runs?since=soon").body, "<code>since</code>: &#34;soon&#34;", `aria-invalid="true"`)
}

// What a restore has lost has a list, to which the page of the cluster leads. Other pages do not mention it.
func TestRuns_OfARestore(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")
	want(t, ann.page("/ui/runs?show=restored"), "lost in a restore", "carillon run list -A --reason restored")
	if page := ann.page("/ui/runs"); strings.Contains(page, "lost in a restore") {
		t.Errorf("the list of all runs:\n%s", page)
	}
}

// A dead-letter run is retried on its page, which leads to the new run.
func TestRun_IsRetried(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	id := w.deadRun("prod", "web")
	ann := w.as("user:ann")

	want(t, ann.page("/ui/runs?show=dead"), id, "Retry…", "Dismiss…")
	at := "/ui/runs/prod/" + id
	want(t, ann.page(at), "exit 3", "its process exited with a code that does not count as success", "dead-letter run", `class="bad"`)
	a := ann.do(http.MethodPost, at+"/retry", url.Values{"at": {at}})
	if to := a.Header.Get("Location"); a.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, "/ui/runs/prod/") || to == at {
		t.Fatalf("retry: %d to %q: %s", a.StatusCode, to, a.body)
	} else {
		want(t, ann.page(to), "retry of", id)
	}
	want(t, ann.page("/ui/runs?show=dead"), "No dead-letter runs")
}

// A run that has ended is started again on its page, which leads to the new run.
func TestRun_IsStartedAgain(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	id := w.deadRun("prod", "web")
	ann := w.as("user:ann")

	at := "/ui/runs/prod/" + id
	key := regexp.MustCompile(`name="key" value="(ui rerun [^"]+)"`).FindStringSubmatch(ann.page(at))
	if key == nil {
		t.Fatal("the page has no button that starts the run again")
	}

	var to string
	for _, message := range []string{"queued", "was+already+queued"} { // a copy of the request starts nothing, and says so
		a := ann.do(http.MethodPost, at+"/rerun", url.Values{"at": {at}, "key": {key[1]}})
		next := a.Header.Get("Location")
		if a.StatusCode != http.StatusSeeOther || !strings.HasPrefix(next, "/ui/runs/prod/") || next == at || to != "" && next != to {
			t.Fatalf("rerun: %d to %q after %q: %s", a.StatusCode, next, to, a.body)
		}
		if cookies := fmt.Sprint(a.Cookies()); !strings.Contains(cookies, message+"+") {
			t.Errorf("rerun: no message %q in %s", message, cookies)
		}
		to = next
	}
	page := ann.page(to)
	want(t, page, "rerun of", id)
	if strings.Contains(page, "Run again") {
		t.Error("a run that has not ended can be started again")
	}
	want(t, ann.page("/ui/runs?show=dead"), id) // it stays
}

// deadRun writes a failed run of a task as its node would, and returns its id.
func (w *world) deadRun(ns, name string, edits ...func(*task.Run)) string {
	w.t.Helper()
	ref := apikit.Ref(ns, name)
	st, err := w.Store.Task(w.t.Context(), ref)
	must(w.t, err)

	at, code := task.At(w.Clock.Now().Add(-time.Hour)), 3
	run := task.Run{
		ID: task.RunID(at.Time, st.Task.UID), Namespace: ns, Task: name, UID: st.Task.UID, State: task.Failed, Reason: task.ReasonExit, ExitCode: &code,
		ScheduledTime: at, Trigger: task.TriggerSchedule, Attempt: 1, Node: "node-a", Token: 7, CreatedAt: at, DispatchedAt: at, StartedAt: at, EndedAt: task.At(at.Add(time.Second)),
	}
	for _, edit := range edits {
		edit(&run)
	}
	keys := w.Store.Keys()
	w.put(keys.DeadRun(ref, run.ID), task.Waiting{Run: run})
	w.put(keys.Ended(ref, run.ID), run)

	return run.ID
}

func TestLeftRows(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	key := func(text string) string { return text }
	show := func(rows []leftRow[string]) string {
		text := ""
		for _, row := range rows {
			text += fmt.Sprintf("%s-%s ", row.item, now.Sub(row.since))
		}
		return text
	}
	old := []leftRow[string]{{item: "back", since: now.Add(-time.Second)}, {item: "recent", since: now.Add(-time.Minute)}, {item: "long", since: now.Add(-leftKept)}}

	if got, want := show(leftRows(now, []string{"stays", "goes"}, old, []string{"stays", "back", "new"}, key)), "goes-0s recent-1m0s "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	var many []string
	for i := range maxLeft + 10 {
		many = append(many, strconv.Itoa(i))
	}
	if n := len(leftRows(now, many, old, nil, key)); n != maxLeft {
		t.Errorf("%d rows are kept, want %d", n, maxLeft)
	}
}
