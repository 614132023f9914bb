package cli

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestOutput_HoldsNothingThatATerminalObeys(t *testing.T) {
	d := factorytest.New("")
	r := task.Run{ID: "i", State: task.Failed, Message: "\x1b]0;owned\a", Reason: "\x1b[2J", Node: "n", OutputTail: "a\x1b[31mb\rc\n\td"}
	if err := output.EmitOne(&d.Factory.Printer, r, r.ID, func(w *output.Details) { describeRun(d.Factory, w, r, "UTC") }); err != nil {
		t.Fatal(err)
	}
	if err := output.EmitList(&d.Factory.Printer, []task.Run{r}, selection.RunName, func(bool) *output.Table { return view.RunTable(d.Factory, []task.Run{r}, true, true, view.Zones{}) }); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(d.Out.String(), "\x1b\a\r") || !strings.Contains(d.Out.String(), "\n\td") {
		t.Errorf("%q", d.Out.String())
	}
}
