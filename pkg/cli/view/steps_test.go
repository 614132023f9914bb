package view_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

var update = flag.Bool("update", false, "rewrite testdata/steps.txt")

// at returns a time in the night of the tests.
func at(second int) task.Time {
	return task.At(time.Date(2026, 11, 30, 2, 0, second, 0, time.UTC))
}

// stepPart returns a part that began with its step.
func stepPart(name string, item int, state task.State, edit func(*client.StepPart)) client.StepPart {
	p := client.StepPart{Name: name, Part: task.Part{State: state, Node: "node-1", Attempt: 1, StartedAt: at(1)}}
	if item >= 0 {
		p.Name, p.Item = fmt.Sprintf("%s/%d", name, item), &item
	}
	if state.Final() {
		p.EndedAt = at(5)
	}
	if state == task.Failed {
		code := 3
		p.Reason, p.ExitCode, p.Message = task.ReasonExit, &code, "exit code 3"
	}
	if edit != nil {
		edit(&p)
	}

	return p
}

// shownSteps are runs whose steps the golden file has.
func shownSteps() map[string]client.RunSteps {
	extract := client.RunStep{Name: "extract", State: "succeeded", Items: 1, Ended: 1, Succeeded: 1, OpenedAt: at(0), EndedAt: at(1), Parts: []client.StepPart{stepPart("extract", -1, task.Succeeded, nil)}}
	load := client.RunStep{Name: "load", State: "failed", Needs: []string{"extract"}, Map: true, Items: 4, Ended: 4, Succeeded: 2, OpenedAt: at(1), EndedAt: at(5), Parts: []client.StepPart{
		stepPart("load", 1, task.Failed, nil), stepPart("load", 3, task.TimedOut, func(p *client.StepPart) { p.Attempt, p.Reason = 2, task.ReasonTimeout }),
		stepPart("load", 0, task.Succeeded, nil), stepPart("load", 2, task.Succeeded, nil),
	}}
	stocks := client.RunStep{Name: "stocks", State: "succeeded", Items: 1, OpenedAt: at(0), Parts: []client.StepPart{stepPart("stocks", -1, task.Succeeded, nil)}}

	many := client.RunStep{Name: "load", State: "running", Map: true, MaxParallel: 10, Items: 1000, Ended: 40, Succeeded: 12, Kept: 5, OpenedAt: at(0)}
	for i := range 28 {
		many.Parts = append(many.Parts, stepPart("load", i, task.Failed, nil))
	}
	for i := range 10 {
		many.Parts = append(many.Parts, stepPart("load", 100+i, task.Running, nil))
	}

	return map[string]client.RunSteps{
		"1 failed in the night": {State: task.Failed, Steps: []client.RunStep{
			extract, load, stocks,
			{Name: "check", State: "skipped", Needs: []string{"load", "stocks"}, Reason: task.ReasonNeeds, Cause: "load"},
			{Name: "report", State: "skipped", Needs: []string{"check"}, Reason: task.ReasonNeeds, Cause: "check"},
			{Name: "clean", State: "succeeded", Needs: []string{"load"}, When: "always", Items: 1, OpenedAt: at(6), Parts: []client.StepPart{stepPart("clean", -1, task.Succeeded, nil)}},
		}},
		"2 a map that runs": {State: task.Running, Steps: []client.RunStep{many, {Name: "check", State: "waiting", Needs: []string{"load"}, Cause: "load"}}},
		"3 a retry": {State: task.Running, Retries: "20261129T020000.000Z-m6nw", Steps: []client.RunStep{
			{Name: "extract", State: "succeeded", Kept: 1},
			{Name: "load", State: "succeeded", Needs: []string{"extract"}, Map: true, Kept: 2, Items: 1, Ended: 1, Succeeded: 1, OpenedAt: at(1), EndedAt: at(5)},
			{Name: "check", State: "running", Needs: []string{"load"}, Items: 1, OpenedAt: at(6), Parts: []client.StepPart{stepPart("check", -1, task.Running, func(p *client.StepPart) { p.StartedAt = at(6) })}},
			{Name: "report", State: "waiting", Needs: []string{"check"}, Cause: "check"},
		}},
		"4 no value, stopped, cancelled": {State: task.Failed, Steps: []client.RunStep{
			{Name: "load", State: "failed", Reason: task.ReasonValues, Message: `step extract has reported no result "files"`},
			{Name: "mail", State: "cancelled", Map: true, Items: 3, Ended: 1, Succeeded: 1, Reason: task.ReasonStopped, Cause: "load", OpenedAt: at(1), EndedAt: at(5)},
			{Name: "none", State: "succeeded", Map: true, OpenedAt: at(1)},
			{Name: "other", State: "skipped", Reason: task.ReasonStopped, Cause: "load"},
			{Name: "late", State: "skipped", Reason: task.ReasonTimeout},
			{Name: "next", State: "ready"},
		}},
	}
}

// TestStepsTable_Golden compares the tables of steps in terminals of several widths. To accept a change, run the test with -update and
// read the difference.
func TestStepsTable_Golden(t *testing.T) {
	const golden = "testdata/steps.txt"

	runs := shownSteps()
	var all strings.Builder
	for _, name := range []string{"1 failed in the night", "2 a map that runs", "3 a retry", "4 no value, stopped, cancelled"} {
		for _, width := range []int{60, 80, 120} {
			d := factorytest.New("")
			d.Now, d.ASCII = func() time.Time { return at(60).Time }, width == 60
			d.Terminal = func(any) (int, bool) { return width, true }

			out := d.RenderIndented(view.StepsTable(d.Factory, runs[name], "UTC"))
			for line := range strings.Lines(out) {
				if n := text.StringWidthWithoutEscSequences(strings.TrimRight(line, "\n")); n > width {
					t.Errorf("%s: %d columns in a terminal of %d: %s", name, n, width, line)
				}
				if d.ASCII && strings.ContainsFunc(line, func(r rune) bool { return r > 126 }) {
					t.Errorf("%s: not ASCII: %s", name, line)
				}
			}

			fmt.Fprintf(&all, "%s, %d columns\nSteps: %s\n%s\n", name, width, view.StepsSummary(runs[name]), out)
		}
	}

	if *update {
		if err := os.WriteFile(golden, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("the tables differ from %s; they are now:\n%s", golden, all.String())
	}
}

// A message, or the name of a node, cannot control the terminal.
func TestStepsTable_ShowsNothingThatATerminalObeys(t *testing.T) {
	for _, evil := range factorytest.Hostile {
		d := factorytest.New("")
		steps := client.RunSteps{Steps: []client.RunStep{{Name: "a", State: "failed", Message: evil, Reason: evil, Cause: evil, Items: 1, Parts: []client.StepPart{
			stepPart("a", -1, task.Failed, func(p *client.StepPart) { p.Node, p.Message, p.Signal = evil, evil, evil }),
		}}, {Name: "b", State: "skipped", Reason: evil, Cause: evil}, {Name: "c", State: evil}}}

		if err := output.EmitList(&d.Printer, steps.Steps, nil, func(bool) *output.Table { return view.StepsTable(d.Factory, steps, "UTC") }); err != nil {
			t.Fatal(err)
		}
		if what := factorytest.Obeyed(d.Out.String()); what != "" {
			t.Errorf("%q: %s", evil, what)
		}
	}
}
