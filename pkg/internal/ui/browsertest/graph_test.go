//go:build browser

package browsertest

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// The graph of a task is read and left with keys alone. It shows new states while somebody watches, and keeps the focus.
func TestGraph_IsLiveAndWorksWithKeys(t *testing.T) {
	createTask(t, "graph-source")
	createTask(t, "graph-dependent", after(task.Source{Task: "graph-source"}))
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/graph-dependent?tab=graph")
	p.await(`document.querySelectorAll(".graph ul li").length === 2`)

	p.press("j")
	p.await(`document.activeElement.textContent === "graph-source"`)
	if eval[bool](p, `document.querySelector(".graph .current").textContent.includes("last run")`) {
		t.Error("the dependent has run already")
	}

	_, err := fixture.trigger(t.Context(), "graph-source")
	must(t, err)
	p.await(`document.querySelector(".graph .current").textContent.includes("last run")`)
	if !eval[bool](p, `document.activeElement.textContent === "graph-source"`) {
		t.Error("the focus has moved")
	}

	p.press("\r")
	p.await(`location.pathname === "/ui/tasks/default/graph-source" && location.search === "?tab=graph"`)
	p.await(`document.querySelector(".graph .current").textContent.includes("graph-source")`)
	p.checkPolicy()
}
