package ui

import (
	"net/http"
	"net/url"
	"testing"
)

// The page of deleted tasks lists those of a namespace, and brings selected ones back. What cannot come back is named.
func TestDeleted_BringsTasksBack(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create("prod", name)
	}
	ann := w.as("user:ann")
	const at = "/ui/tasks/deleted?ns=prod"
	want(t, ann.page(at), "No deleted tasks", "carillon task deleted -n prod")

	at2 := "/ui/tasks/bulk?do=delete&task=prod%2Fa&task=prod%2Fb"
	deletion := url.Values{"at": {at2}, "do": {"delete"}, "plan": {bulkPlan(t, ann.page(at2))}, "count": {"2"}}
	if a := ann.do(http.MethodPost, "/ui/tasks/bulk/run", deletion); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("delete: %d %s", a.StatusCode, a.body)
	}
	page := ann.page(at)
	want(t, page, `name="task" value="a"`, `name="task" value="b"`)
	without(t, page, `value="c"`)
	want(t, ann.page("/ui/tasks?ns=prod"), "/ui/tasks/deleted?ns=prod")

	// Nothing is selected, and then one task that exists.
	form := url.Values{"at": {at}, "ns": {"prod"}}
	if a := ann.do(http.MethodPost, "/ui/tasks/deleted/undelete", form); a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("without a task: %d", a.StatusCode)
	}
	form["task"] = []string{"a", "c"}
	a := ann.do(http.MethodPost, "/ui/tasks/deleted/undelete", form)
	want(t, a.body, "undeleted 1 task", "already exists")

	form["task"] = []string{"b"}
	if a = ann.do(http.MethodPost, "/ui/tasks/deleted/undelete", form); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/tasks/prod/b" {
		t.Errorf("undelete: %d %s", a.StatusCode, a.Header.Get("Location"))
	}
	want(t, ann.page("/ui/tasks?ns=prod"), "/ui/tasks/prod/a", "/ui/tasks/prod/b")
	want(t, ann.page(at), "No deleted tasks")
}

// Who may only read sees deleted tasks, and cannot bring them back.
func TestDeleted_NeedsTheRightToCreate(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "a")
	ann := w.as("user:ann")
	at := "/ui/tasks/bulk?do=delete&task=prod%2Fa"
	form := url.Values{"at": {at}, "do": {"delete"}, "plan": {bulkPlan(t, ann.page(at))}, "count": {"1"}}
	ann.do(http.MethodPost, "/ui/tasks/bulk/run", form)

	w.Bind("user:bob", "viewer", "prod")
	bob := w.as("user:bob")
	page := bob.page("/ui/tasks/deleted?ns=prod")
	want(t, page, ">a</th>")
	without(t, page, "Undelete the selected tasks", `name="task"`)
	if a := bob.do(http.MethodPost, "/ui/tasks/deleted/undelete", url.Values{"at": {at}, "ns": {"prod"}, "task": {"a"}}); a.StatusCode == http.StatusSeeOther {
		t.Error("bob brings a task back")
	}
}
