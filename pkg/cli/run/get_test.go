package run

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestOutput_HoldsNothingThatATerminalObeys(t *testing.T) {
	d := factorytest.New("")
	r := task.Run{ID: "i", State: task.Failed, Message: "\x1b]0;owned\a", Reason: "\x1b[2J", Node: "n", OutputSummary: task.OutputSummary{OutputTail: "a\x1b[31mb\rc\n\td"}}
	if err := output.EmitOne(&d.Factory.Printer, r, r.ID, func(w *output.Details) { describeRun(d.Factory, w, ShownRun{Run: r}, "UTC") }); err != nil {
		t.Fatal(err)
	}

	if err := output.EmitList(&d.Factory.Printer, []task.Run{r}, selection.RunName, func(bool) *output.Table { return view.RunTable(d.Factory, []task.Run{r}, true, true, view.Zones{}) }); err != nil {
		t.Fatal(err)
	}

	if strings.ContainsAny(d.Out.String(), "\x1b\a\r") || !strings.Contains(d.Out.String(), "\n\td") {
		t.Errorf("%q", d.Out.String())
	}
}

// The contents of a record cannot control the terminal, neither in a run nor in lists.
func TestRun_ShowsNothingThatATerminalObeys(t *testing.T) {
	for _, evil := range factorytest.Hostile {
		r := task.Run{ID: "i", Namespace: "default", Task: "a", State: task.Failed, Message: "m" + evil, Reason: "r" + evil, Node: "n" + evil,
			Signal: "s" + evil, Requests: task.Requests{CancelledBy: task.NewActor("c" + evil)}, OutputSummary: task.OutputSummary{OutputTail: "first\n" + evil + "last", OutputBytes: 100}, Attempt: 2,
			Attempts: []task.Attempt{{Attempt: 1, State: task.Failed, Node: evil, Reason: evil}}}

		for _, format := range []string{output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML} {
			d := factorytest.New("")
			d.Format, d.Terminal = format, func(any) (int, bool) { return 80, true }

			if err := output.EmitOne(&d.Printer, r, r.ID, func(w *output.Details) { describeRun(d.Factory, w, ShownRun{Run: r}, "UTC") }); err != nil {
				t.Fatal(err)
			}

			if err := output.EmitList(&d.Printer, []task.Run{r}, selection.RunName, func(bool) *output.Table { return view.RunTable(d.Factory, []task.Run{r}, true, true, view.Zones{}) }); err != nil {
				t.Fatal(err)
			}

			if what := factorytest.Obeyed(d.Out.String()); what != "" {
				t.Errorf("%q, -o %s: %q is shown", evil, format, what)
			}
		}
	}
}

func TestRunGet_OfPartsSpeaksOfTheRunAsAWhole(t *testing.T) {
	r := task.Run{ID: "20261120T220000.000Z-k3f9", Namespace: "default", Task: "index", State: task.Running, Attempt: 1,
		FanOut: task.FanOut{Fan: &task.Fan{Count: 3, Need: 1, Ended: 1, Succeeded: 1}}}
	d := factorytest.New("")
	if err := output.EmitOne(&d.Factory.Printer, r, r.ID, func(w *output.Details) { describeRun(d.Factory, w, ShownRun{Run: r}, "") }); err != nil {
		t.Fatal(err)
	}

	text := d.Out.String()
	if strings.Contains(text, "Attempt") || !strings.Contains(text, "3: 1 ended, 1 succeeded, 1 required") {
		t.Errorf("it is shown as\n%s", text)
	}
}

// Events of parts do not add parts to a list without parts.
func TestRunList_WatchesPartsIfTheyAreAskedFor(t *testing.T) {
	part := task.Run{ID: task.PartID("20261120T220000.000Z-k3f9", 7), Node: "n1"}

	for _, c := range []struct {
		filter client.RunListOptions
		want   bool
	}{{client.RunListOptions{}, false}, {client.RunListOptions{Parts: true}, true}, {client.RunListOptions{Node: "n1"}, true}, {client.RunListOptions{Node: "n2"}, false}} {
		if got := matchesFilter(c.filter, part); got != c.want {
			t.Errorf("%+v: %t", c.filter, got)
		}
	}
}
