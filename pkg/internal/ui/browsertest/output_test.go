//go:build browser

package browsertest

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// Long output that the node has stored only in part ends with the last lines, and the page says what is missing.
func TestRun_OutputBeyondTheLimit(t *testing.T) {
	createTask(t, "writes-much", func(s *task.Spec) {
		s.Output.Limit = 64 << 10
		s.Action = task.Action{Process: &task.Process{Shell: "seq 1 100000; echo the very end"}}
	})
	id, err := fixture.trigger(t.Context(), "writes-much")
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Succeeded))

	p := chrome.newTab(t)
	p.open("/ui/runs/default/" + id)
	const last = `document.querySelector("#output .line:last-child")`
	p.await(`document.getElementById("output").textContent.includes("were not kept") && ` + last + `.textContent === "the very end"`)
	if !eval[bool](p, `(() => { const box = document.getElementById("output").getBoundingClientRect(), line = `+last+`.getBoundingClientRect(); return line.bottom <= box.bottom && line.top >= box.top; })()`) {
		t.Error("the end of the output is not in view")
	}
	if note := eval[string](p, `document.getElementById("output-note").textContent`); !containsAll(note, "KiB before this are not shown here", "KiB before the last lines were not kept") {
		t.Errorf("the note says %q", note)
	}
	p.screenshot("run-beyond-limit-light")
	p.axe()
	p.checkPolicy()
}

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
