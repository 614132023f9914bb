package task

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// The output of a task cannot control the terminal through reasons.
func TestWhy_ShowsNothingThatATerminalObeys(t *testing.T) {
	for _, evil := range factorytest.Hostile {
		answer := task.Answer{Sentence: "it said " + evil, Lines: []task.EvidenceLine{{What: "Last output", Says: evil}},
			Stretches: []task.Stretch{{Sentence: evil}}, Also: []task.Answer{{Sentence: evil}}}

		for _, format := range []string{output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML} {
			d := factorytest.New("")
			d.Format, d.Terminal = format, func(any) (int, bool) { return 80, true }

			if err := output.EmitOne(&d.Printer, answer, "a", func(w *output.Details) { explainWhy(d.Factory, w, answer) }); err != nil {
				t.Fatal(err)
			}

			if what := factorytest.Obeyed(d.Out.String()); what != "" {
				t.Errorf("%q, -o %s: %q is shown", evil, format, what)
			}
		}
	}
}
