package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// ordersWorkflow is a workflow with a map, a step for failures, and cleanup.
func ordersWorkflow() *task.Workflow {
	return &task.Workflow{Steps: map[string]task.Step{
		"extract": {Process: &task.Process{Command: []string{"extract", "a b"}}, Timeout: task.Duration(10 * time.Minute)},
		"load":    {Needs: []string{"extract"}, Map: "${steps.extract.results.files}", MaxParallel: 8, Process: &task.Process{Shell: "load\n" + "<b>"}},
		"pay":     {Needs: []string{"load"}, HTTP: &task.HTTP{URL: "https://bank.example/pay", JSON: []byte(`{}`)}},
		"mail":    {Needs: []string{"load", "pay"}, When: task.WhenFailed, Noop: &task.Noop{}},
		"clean":   {Needs: []string{"extract", "pay"}, When: task.WhenAlways, Noop: &task.Noop{}, Timeout: task.Duration(time.Minute)},
	}}
}

// The page of a workflow shows its steps as a graph without states, as a table, and each as YAML.
func TestTaskSteps_ShowTheDefinition(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "orders", func(s *task.Spec) { s.Action = task.Action{Workflow: ordersWorkflow()} })
	w.create("prod", "web")
	ann := w.as("user:ann")

	without(t, ann.page("/ui/tasks/prod/web"), ">Steps</a>")
	page := ann.page("/ui/tasks/prod/orders?tab=steps")
	want(t, page, ">Steps</a>", `<svg class="lines"`, `href="/ui/tasks/prod/orders?step=load&amp;tab=steps#step"`, "for each item in result files of extract", "at most 8 at the same time",
		"if one of these fails: load, pay", "cleans up after extract, pay", "begins with the run", "extract &#39;a b&#39;", "load …", "POST https://bank.example/pay",
		"only steps with <code>when: failed</code>", ">cleanup<", ">on failure<")
	without(t, page, `id="step"`, "waiting", `class="meter"`)

	// Cards come in the order in which steps run, so that the keyboard follows it.
	last := -1
	for _, name := range []string{"extract", "load", "pay", "clean"} {
		at := strings.Index(page, `title="`+name+`"`)
		if at <= last {
			t.Errorf("%s is at %d, after %d", name, at, last)
		}
		last = at
	}

	want(t, ann.page("/ui/tasks/prod/orders?tab=steps&step=load"), `id="step"`, "Definition of step load", "max_parallel: 8", `aria-current="true"`)
	without(t, ann.page("/ui/tasks/prod/orders?tab=steps&step=none"), `id="step"`)
	without(t, ann.page("/ui/tasks/prod/web?tab=steps"), `class="flow"`)
}
