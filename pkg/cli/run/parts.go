package run

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// describeParts adds the parts of a run.
func describeParts(f *factory.Factory, d *output.Details, r task.Run, at func(task.Time) string) {
	fan := r.Fan
	if fan == nil {
		return
	}

	d.Field("Parts", "%s", wording.PartsText(*fan))

	if fan.Cancel != "" && !r.State.Final() {
		d.Field("Ending", "%s", strings.ReplaceAll(fan.Cancel, "_", " "))
	}

	if len(fan.Parts) == 0 {
		return
	}

	g := &output.Table{Headers: []string{"PART", "RESULT", "NODE", "STARTED", "TOOK", "MESSAGE"}}

	for _, p := range fan.Parts {
		part := r.OfPart(p)
		g.AddRow(fmt.Sprintf("%d", p.Index), view.RunResult(f, part), cmp.Or(p.Node, f.NoValue()), cmp.Or(at(p.StartedAt), f.NoValue()), view.TookText(f, part), output.Truncate(output.OneLine(p.Message), 80))
	}

	d.Section("Parts", f.RenderIndented(g))
}
