//go:build browser

package browsertest

import (
	"fmt"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The preview of a change shows all tasks that it concerns.
func TestBulk_ShowsTheWholePlan(t *testing.T) {
	for i := range 12 {
		createTask(t, fmt.Sprintf("planned-%02d", i))
	}
	p := chrome.newTab(t)
	p.open("/ui/tasks/bulk?q=name~planned-&scope=all&do=pause")
	if hidden := eval[[]string](p, `[...document.querySelectorAll("main tbody tr")].filter((row) => { const box = row.closest(".table").getBoundingClientRect(), r = row.getBoundingClientRect(); return r.bottom > box.bottom + 1; }).map((row) => row.textContent)`); len(hidden) > 0 {
		t.Errorf("these rows are out of sight: %q", hidden)
	}
	if n := eval[int](p, `document.querySelectorAll("main tbody tr").length`); n != 12 {
		t.Errorf("the plan has %d rows", n)
	}
	if !eval[bool](p, `document.activeElement.id === "until"`) {
		t.Error("the first field does not have the focus")
	}
	p.screenshot("bulk-plan-light")
}

// A run is cancelled only after a question, whose way back has the focus.
func TestRun_CancelAsksFirst(t *testing.T) {
	id, end := startUntil(t, "asks-first")
	p := chrome.newTab(t)
	p.open("/ui/runs/default/" + id)
	p.clickText("Cancel the run…")
	p.await(`location.search.includes("do=cancel") && document.activeElement.textContent === "Let it run"`)
	p.screenshot("run-cancel-light")
	p.axe()
	p.press("\r")
	p.await(`location.search === "" && !document.querySelector(".panel")`)
	end() // it was not cancelled: otherwise this fails
}

// A failure is dismissed only after a question, which shows the run. The viewer then returns to where they came from.
func TestNow_DismissAsksFirst(t *testing.T) {
	createTask(t, "dismissed", func(s *task.Spec) { s.Action = task.Action{Process: &task.Process{Shell: "exit 9"}} })
	id, err := fixture.trigger(t.Context(), "dismissed")
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Failed))

	p := chrome.newTab(t)
	p.open("/ui")
	const button = `a[aria-label^="Dismiss the run of dismissed"]`
	p.await(`document.querySelector(` + quote(button) + `)`)
	p.click(button)
	p.await(`location.pathname === "/ui/runs/default/` + id + `" && document.activeElement.textContent === "Keep it"`)
	p.screenshot("run-dismiss-light")
	if dead, err := fixture.api.Runs.List(t.Context(), client.RunListOptions{Namespace: "default", Task: "dismissed", Dead: true}); err != nil || len(dead) != 1 {
		t.Errorf("%d dead-letter runs, %v", len(dead), err)
	}
	p.clickText("Dismiss the run")
	p.await(`location.pathname === "/ui" && document.querySelector(".banner.good").textContent.includes("dismissed ")`)
	p.await(`!document.querySelector(` + quote(button) + `)`)
	p.checkPolicy()
}

// A form that is refused keeps the address of its page. All that is wrong is named, and has the focus.
func TestNew_Refused(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks/new")
	p.fill("f-name", "No Name")
	p.fill("f-retry-attempts", "many")
	p.clickText("Create")
	p.await(`location.pathname === "/ui/tasks/new" && document.getElementById("problem")`)
	p.await(`document.activeElement.id === "problem"`)
	text := eval[string](p, `document.getElementById("problem").innerText`)
	if !containsAll(text, "name", "schedule", "action.process", "retry.attempts", "many") {
		t.Errorf("the page says %q", text)
	}
	if n := eval[int](p, `document.querySelectorAll("[aria-invalid=true]").length`); n < 4 {
		t.Errorf("%d fields are marked", n)
	}
	p.screenshot("new-refused-light")
	p.axe()

	p.checkPolicy()
}
