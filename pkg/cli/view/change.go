package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// shortValue is the maximum length of two values on one line.
const shortValue = 100

// PrintDryRun prints for people how a write would change a record, which what names, such as "role deployer".
func PrintDryRun(f *factory.Factory, what string, c *client.Change) error {
	lines := []string{fmt.Sprintf("%s %s (dry run)", c.Result, what)}
	for _, change := range c.Fields {
		lines = append(lines, FieldChange(f, change)...)
	}

	return f.Print(f.Plain(strings.Join(append(lines, ""), "\n")))
}

// FieldChange returns the text about a changed field. Short values are on one line. For long values, it returns
// the lines of both, without common lines at the beginning and the end.
func FieldChange(f *factory.Factory, change client.FieldChange) []string {
	from, to := wording.ValueLines(change.From), wording.ValueLines(change.To)
	if len(from) <= 1 && len(to) <= 1 {
		if line := "  " + change.Field + ": " + cmp.Or(slices.Concat(from, []string{"none"})...) + " → " + cmp.Or(slices.Concat(to, []string{"none"})...); len(line) <= shortValue {
			return []string{line}
		}
	}

	for len(from) > 1 && len(to) > 1 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}

	for len(from) > 1 && len(to) > 1 && from[len(from)-1] == to[len(to)-1] {
		from, to = from[:len(from)-1], to[:len(to)-1]
	}

	lines := []string{"  " + change.Field + ":"}
	for _, l := range from {
		lines = append(lines, f.Paint(output.Red, "  - "+l))
	}

	for _, l := range to {
		lines = append(lines, f.Paint(output.Green, "  + "+l))
	}

	return lines
}
