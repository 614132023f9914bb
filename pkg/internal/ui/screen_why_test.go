package ui

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// The page explains a time, and leads from tick to tick.
func TestWhy_ExplainsTicks(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", func(s *task.Spec) { s.Timezone = "Europe/Berlin" })
	w.online("node-a")
	ann := w.as("user:ann")
	page := func(at string) string {
		return ann.page("/ui/why/prod/web?" + url.Values{"at": {at}}.Encode())
	}

	want(t, page("2026-11-21T09:00:00Z"), "will run", "What the timetable says", "@hourly in Europe/Berlin", "at=2026-11-21T08%3A00%3A00Z", "at=2026-11-21T10%3A00%3A00Z", "carillon why web -n prod --at 2026-11-21T09:00:00Z")
	want(t, page("23:30"), "no tick", "Sat 21 Nov 2026 00:00:00 CET", "Later tick") // today, in the zone of the task
	want(t, ann.page("/ui/why/prod/web"), "Later tick", "carillon why web -n prod</code>")
	want(t, ann.page("/ui/why/prod/web?from=2026-11-21&to=2026-11-22"), "In order")

	a := ann.get("/ui/why/prod/web?at=never")
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a time that cannot be read: %d", a.StatusCode)
	}
	want(t, a.body, `value="never"`, `aria-invalid="true"`, "never")

	if a := ann.get("/ui/why/prod/none"); a.StatusCode != http.StatusNotFound {
		t.Errorf("a task that does not exist: %d", a.StatusCode)
	}
	w.Bind("user:bob", "viewer", "test")
	if a := w.as("user:bob").get("/ui/why/prod/web"); a.StatusCode < 400 || strings.Contains(a.body, "@hourly") {
		t.Errorf("a viewer of another namespace: %d", a.StatusCode)
	}
}
