package ui

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// A source and its dependents are deleted together, in whichever order they were selected. A source with a dependent that was not
// selected stays, and the report names the dependent.
func TestBulk_DeletesDependentsFirst(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")
	const chain = 30 // more than are deleted at the same time
	name := func(i int) string { return fmt.Sprintf("t%02d", i) }
	w.create("prod", name(0))
	for i := 1; i < chain; i++ {
		w.create("prod", name(i), func(s *task.Spec) {
			s.Schedule, s.After, s.Overlap = task.Schedules{"@manual"}, task.Sources{{Task: name(i - 1)}}, task.OverlapQueue
		})
	}

	remove := func(names ...string) answer {
		var plan strings.Builder
		for _, n := range names {
			fmt.Fprintf(&plan, "prod %s %s %d\n", n, w.stored("prod", n).UID, w.stored("prod", n).Revision)
		}
		return ann.do(http.MethodPost, "/ui/tasks/bulk/run", url.Values{"at": {"/ui/tasks/bulk?do=delete"}, "do": {"delete"}, "plan": {plan.String()}, "count": {fmt.Sprint(len(names))}})
	}

	a := remove(name(chain-3), name(chain-2))
	want(t, a.body, "deleted 0 tasks", "2 failed", "task prod/t28 cannot be deleted, because a task runs after it: t29")

	all := make([]string, chain)
	for i := range all {
		all[i] = name(i)
	}
	if a := remove(all...); a.StatusCode != http.StatusSeeOther || !strings.HasPrefix(a.Header.Get("Location"), "/ui/tasks") {
		t.Errorf("%d: %s", a.StatusCode, a.body)
	}
}
