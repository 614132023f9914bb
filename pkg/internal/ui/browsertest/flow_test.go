//go:build browser

package browsertest

import (
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/carillonhq/carillon/pkg/task"
)

// The steps of a workflow are reached with arrow keys. Enter shows one of them, with the focus on it.
func TestFlow_WorksWithKeys(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/orders-flow?tab=steps")

	p.press("j")
	p.await(`document.activeElement.textContent === "extract"`)
	p.press(kb.ArrowRight)
	p.await(`document.activeElement.closest(".graph > li") === document.querySelectorAll(".graph > li")[1]`)
	first := eval[string](p, `document.activeElement.title`)
	p.press(kb.ArrowDown)
	p.await(`document.activeElement.title !== ` + quote(first))
	p.press(kb.ArrowUp)
	p.await(`document.activeElement.title === ` + quote(first))
	p.press(kb.ArrowLeft)
	p.await(`document.activeElement.textContent === "extract"`)
	p.press(kb.ArrowLeft) // there is no column before
	p.await(`document.activeElement.textContent === "extract"`)

	p.press("\r")
	p.await(`location.search.includes("step=extract") && document.activeElement.id === "step"`)
	p.await(`document.querySelector(".graph [aria-current]").textContent === "extract"`)
	p.checkPolicy()
}

// The page of a run follows its steps, and keeps the focus. A cancel names the cleanup that it leaves, and a retry what it repeats.
func TestFlow_IsCancelledAndRetried(t *testing.T) {
	createTask(t, "cancelled-flow", func(s *task.Spec) { s.Action = task.Action{Workflow: endlessFlow()} })
	run, err := fixture.trigger(t.Context(), "cancelled-flow")
	must(t, err)
	p := chrome.newTab(t)
	p.open("/ui/runs/default/" + run)

	p.press("j")
	p.press("j")
	p.await(`document.activeElement.textContent === "work"`)
	p.await(stepIs("work", "running") + " && " + stepIs("clean", "waiting"))
	if !eval[bool](p, `document.activeElement.textContent === "work"`) {
		t.Error("the focus has moved")
	}

	p.press("\r")
	p.await(`document.activeElement.id === "step" && document.activeElement.textContent.includes("Step work has been running")`)

	p.clickText("Cancel the run")
	p.await(`document.querySelector(".panel.severe")?.textContent.includes("Cleanup that will run to its end: clean.")`)
	p.click(".panel.severe button.danger")
	p.await(stepIs("work", "cancelled") + " && " + stepIs("next", "skipped") + " && " + stepIs("clean", "succeeded"))
	p.await(`document.querySelector("#head .lead").textContent.includes("cancelled")`)

	p.clickText("Retry from this step")
	p.await(`document.querySelector(".panel dl")?.textContent.includes("work, clean") && document.querySelector(".panel dl").textContent.includes("begin")`)
	p.click(".panel button.primary")
	p.await(`!location.pathname.endsWith(` + quote(run) + `) && ` + stepIs("begin", "kept") + " && " + stepIs("work", "running"))
	p.checkPolicy()

	again := eval[string](p, `location.pathname.split("/").pop()`)
	_, err = fixture.api.Runs.Cancel(t.Context(), "default", "cancelled-flow", again)
	must(t, err)
}

// A run is paused and resumed. A forced cancel also ends a cleanup that hangs.
func TestFlow_IsPausedAndForced(t *testing.T) {
	createTask(t, "paused-flow", func(s *task.Spec) {
		w := endlessFlow()
		clean := w.Steps["clean"]
		clean.Process = &task.Process{Shell: "echo cleaning; sleep 3600"}
		w.Steps["clean"] = clean
		s.Action = task.Action{Workflow: w}
	})
	run, err := fixture.trigger(t.Context(), "paused-flow")
	must(t, err)
	p := chrome.newTab(t)
	p.open("/ui/runs/default/" + run)
	p.await(stepIs("work", "running"))

	p.click(`form[action$="/pause"] button`)
	p.await(stepIs("work", "paused"))
	p.click(`form[action$="/resume"] button`)
	p.await(stepIs("work", "running"))

	p.clickText("Cancel the run")
	p.await(`document.querySelector(".panel.severe") !== null`)
	p.click(".panel.severe button.danger")
	p.await(stepIs("work", "cancelled") + " && " + stepIs("clean", "running"))

	// The cleanup goes on, and only force ends it.
	p.clickText("Cancel the run")
	p.await(`document.querySelector(".panel.severe input[name=force]") !== null`)
	p.click(".panel.severe input[name=force]")
	p.click(".panel.severe button.danger")
	p.await(stepIs("clean", "cancelled"))
	p.await(`document.querySelector("#head .lead").textContent.includes("cancelled")`)
	p.checkPolicy()
}

// stepIs returns an expression that is true when the card of a step has a text.
func stepIs(step, state string) string {
	return `[...document.querySelectorAll(".graph ul li")].some((el) => el.querySelector(".name")?.textContent === ` + quote(step) + ` && el.textContent.includes(` + quote(state) + `))`
}

// Lines end at the cards, also with another size of the text.
func TestFlow_LinesEndAtCards(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/orders-flow?tab=steps")

	for _, size := range []string{"15px", "22px"} {
		eval[bool](p, `(() => { document.documentElement.style.fontSize = `+quote(size)+`; return true; })()`)
		off := eval[[]string](p, `(() => {
			const cards = [...document.querySelectorAll(".graph ul li:not(.lane)")].map((el) => el.getBoundingClientRect());
			return [...document.querySelectorAll(".lines .head")].map((el) => el.getBoundingClientRect())
				.filter((head) => !cards.some((card) => Math.abs(card.left - head.right) < 2 && Math.abs((card.top + card.bottom - head.top - head.bottom) / 2) < 2))
				.map((head) => JSON.stringify(head));
		})()`)
		if len(off) > 0 {
			t.Errorf("with %s, lines do not end at a card: %s", size, off)
		}
	}
}
