package run

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// describeResults adds the results that a run has reported.
func describeResults(f *factory.Factory, d *output.Details, r task.Run) {
	if len(r.Results) > 0 {
		g := &output.Table{Headers: []string{"NAME", "VALUE"}}
		for _, name := range slices.Sorted(maps.Keys(r.Results)) {
			g.AddRow(output.OneLine(name), output.Truncate(output.OneLine(r.Results[name]), 200))
		}
		d.Section("Results", f.RenderIndented(g))
	}
}
