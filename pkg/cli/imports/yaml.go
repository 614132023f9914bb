package imports

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// printTasks prints the tasks in a form that can be applied. YAML also contains the remarks as comments.
func (i *importSession) printTasks() error {
	if i.Format != output.FormatTable && i.Format != output.FormatWide && i.Format != output.FormatYAML {
		specs := make([]task.Spec, len(i.result.Jobs))
		for n, j := range i.result.Jobs {
			specs[n] = j.Spec
		}

		return output.EmitList(&i.Factory.Printer, specs, func(s task.Spec) string {
			return selection.Show(i.Factory, selection.Ref{Namespace: s.Namespace, Name: s.Name})
		}, nil)
	}

	var b bytes.Buffer

	for _, r := range i.result.Refusals {
		writeRemark(&b, r.Place, "not imported: "+r.Why)
	}

	for _, n := range i.result.Notes {
		writeRemark(&b, n.Place, n.Why)
	}

	for n, j := range i.result.Jobs {
		if n > 0 || b.Len() > 0 {
			b.WriteString("---\n")
		}

		writeRemark(&b, j.Place, strings.Join(j.Notes, "\n"))
		least, err := manifest.MinimalSpec(j.Spec, false)
		if err != nil {
			return err
		}

		y, err := manifest.WriteYAML(least)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}

		b.Write(y)
	}

	return i.Factory.Print(b.String())
}

// writeRemark writes a remark as a YAML comment.
func writeRemark(b *bytes.Buffer, at importer.Place, text string) {
	fmt.Fprintf(b, "# %s", output.Sanitize(at.String()))
	if text = output.Sanitize(text); text != "" {
		b.WriteString(": " + strings.ReplaceAll(text, "\n", "\n#   "))
	}
	b.WriteString("\n")
}
