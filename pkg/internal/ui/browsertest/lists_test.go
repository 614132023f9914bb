//go:build browser

package browsertest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// createTask creates a task that is deleted at the end of the test.
func createTask(t *testing.T, name string, edits ...func(*task.Spec)) {
	t.Helper()
	s := fixtureTasks()[0]
	s.Name, s.Schedule = name, task.Schedules{"@manual"}
	for _, edit := range edits {
		edit(&s)
	}
	_, err := fixture.api.Tasks.Create(t.Context(), "default", s)
	must(t, err)
	t.Cleanup(func() { _ = fixture.api.Tasks.Delete(context.WithoutCancel(t.Context()), "default", name, 0) })
}

// schedule sets the schedule of a task.
func schedule(text string) func(*task.Spec) {
	return func(s *task.Spec) { s.Schedule = task.Schedules{text} }
}

// startUntil starts a run of a new task. The run ends when end is called.
func startUntil(t *testing.T, name string) (id string, end func()) {
	t.Helper()
	signal := filepath.Join(t.TempDir(), "end")
	createTask(t, name, func(s *task.Spec) {
		s.Action = task.Action{Process: &task.Process{Shell: "while [ ! -e " + signal + " ]; do sleep 0.1; done"}}
	})
	id, err := fixture.trigger(t.Context(), name)
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Running))

	return id, func() {
		must(t, os.WriteFile(signal, nil, 0o600))
		must(t, fixture.awaitRun(t.Context(), id, task.Succeeded))
	}
}

// rowOf is the row of a list that contains a text.
func rowOf(text string) string {
	return `[...document.querySelectorAll("#rows tr")].find((row) => row.textContent.includes(` + quote(text) + `))`
}

// A row that no longer matches the query stays where it is until the viewer asks for the new list. It says so, and shows how
// the task is now.
func TestTasks_RowLeavesTheQuery(t *testing.T) {
	_, end := startUntil(t, "leaves")
	p := chrome.newTab(t)
	p.open("/ui/tasks?q=state:running+name~leaves")
	p.await(rowOf("leaves") + `?.textContent.includes("running")`)

	end()
	p.await(`document.getElementById("held-rows")?.textContent.includes("1 gone")`)
	row := rowOf("leaves")
	p.await(row + `.textContent.includes("no longer in this list") && ` + row + `.textContent.includes("succeeded") && !` + row + `.textContent.includes("running")`)
	p.screenshot("tasks-gone-light")
	p.axe()
	p.dark(true)
	p.axe("color-contrast")

	_, err := fixture.api.Tasks.Pause(t.Context(), "default", "leaves", 0)
	must(t, err)
	p.await(row + `.textContent.includes("paused (")`)

	must(t, fixture.api.Tasks.Delete(t.Context(), "default", "leaves", 0))
	p.await(row + `.textContent.includes("deleted") && !` + row + `.textContent.includes("paused (")`)

	p.click("#held-rows")
	p.await(`document.getElementById("rows").textContent.includes("No task matches") && !document.getElementById("held-rows")`)
	p.checkPolicy()
}

// The same with runs.
func TestRuns_RowLeavesTheList(t *testing.T) {
	id, end := startUntil(t, "leaves-run")
	p := chrome.newTab(t)
	p.open("/ui/runs?show=active&task=default/leaves-run")
	p.await(rowOf(id) + `?.textContent.includes("running")`)

	end()
	row := rowOf(id)
	p.await(row + `.textContent.includes("no longer in this list") && ` + row + `.textContent.includes("succeeded") && !` + row + `.textContent.includes("running")`)
	p.screenshot("runs-gone-light")
	p.axe()
}

// Lists in the order of time follow it by themselves, unless the viewer uses a row.
func TestTasks_OrderOfTimeFlows(t *testing.T) {
	createTask(t, "flow-a", schedule("@every 3h"))
	p := chrome.newTab(t)
	p.open("/ui/tasks?q=name~flow-&sort=next")
	names := func() string {
		t.Helper()
		return strings.Join(eval[[]string](p, `[...document.querySelectorAll("#rows th a")].map((a) => a.textContent)`), " ")
	}

	createTask(t, "flow-b", schedule("@every 2h"))
	p.await(rowOf("flow-b"))
	if got := names(); got != "flow-b flow-a" || eval[bool](p, `!!document.getElementById("held-rows")`) {
		t.Errorf("the list shows %q, or waits for a click", got)
	}

	p.press("j")
	p.await(`document.activeElement.textContent === "flow-b"`)
	createTask(t, "flow-c", schedule("@every 1h"))
	p.await(`document.getElementById("held-rows")?.textContent.includes("1 new")`)
	if got := names(); got != "flow-b flow-a" {
		t.Errorf("while a row has the focus, the list shows %q", got)
	}

	eval[bool](p, `document.activeElement.blur(), true`)
	p.await(rowOf("flow-c"))
	if got := names(); got != "flow-c flow-b flow-a" || eval[bool](p, `!!document.getElementById("held-rows")`) {
		t.Errorf("after the focus has left, the list shows %q", got)
	}
	p.checkPolicy()
}

// A time at which something should have come is not shown as past.
func TestTasks_NextIsNeverPast(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks?q=backup-db")
	eval[bool](p, `document.querySelector("#rows time[data-left]").dateTime = new Date(Date.now() - 480_000).toISOString(), true`)
	p.await(`document.querySelector("#rows time[data-left]").textContent === "due"`)
}

// The Enter key opens what a row is about, and so does a click on it.
func TestRuns_RowOpensTheRun(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/runs")
	p.press("j")
	p.press("j")
	href := eval[string](p, `document.activeElement.closest("tr").querySelectorAll("td.break a")[0].pathname`)
	p.press("\r")
	p.await(`location.pathname === ` + quote(href) + ` && location.pathname.startsWith("/ui/runs/default/")`)

	p.open("/ui/runs?show=failed")
	href = eval[string](p, `document.querySelector("#rows td.break a").pathname`)
	p.click(`#rows tr:first-child td[data-label="Node"]`)
	p.awaitPage(href)

	p.open("/ui/tasks?q=name~backup-db")
	p.click(`#rows tr:first-child td[data-label="State"]`)
	p.awaitPage("/ui/tasks/default/backup-db")
}
