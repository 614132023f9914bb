package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// RuleText is a rule as --rule takes it: VERBS:KINDS, with labels after a further colon.
func RuleText(r task.Rule) string {
	text := strings.Join(r.Verbs, ",") + ":" + strings.Join(r.Objects, ",")
	if len(r.Labels) > 0 {
		text += ":" + output.Labels(r.Labels)
	}
	return output.OneLine(text)
}

// RulesTable lists rules, one a row.
func RulesTable(rules []task.Rule) *output.Table {
	g := &output.Table{Headers: []string{"OBJECTS", "VERBS", "LABELS"}}
	for _, r := range rules {
		g.AddRow(output.OneLine(words(r.Objects)), output.OneLine(words(r.Verbs)), output.Labels(r.Labels))
	}
	return g
}

// words joins names; * reads as all.
func words(names []string) string {
	if slices.Contains(names, "*") {
		return "all"
	}
	return strings.Join(names, ", ")
}

// Where is where a binding or a scope applies, in a cell of a table.
func Where(namespaces []string, cluster bool) string {
	if cluster {
		return "the whole cluster"
	}
	return output.OneLine(strings.Join(namespaces, ","))
}

// InWhere is Where in a sentence.
func InWhere(namespaces []string, cluster bool) string {
	switch {
	case cluster:
		return "in the whole cluster"
	case len(namespaces) == 1:
		return "in namespace " + output.OneLine(namespaces[0])
	}
	return "in namespaces " + output.OneLine(strings.Join(namespaces, ", "))
}

// ExpiryText is when rights end, in a cell of a table.
func ExpiryText(f *factory.Factory, t task.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case !f.Now().Before(t.Time):
		return f.Paint(output.Yellow, "ended "+f.PastTime(t, output.ReaderZone))
	case f.TimeMode != output.TimeRelative:
		return f.FutureTime(t, output.ReaderZone)
	}

	return "in " + f.TimeLeft(t)
}

// ExpirySentence is when rights end, with the time that is left.
func ExpirySentence(f *factory.Factory, t task.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case !f.Now().Before(t.Time):
		return "ended " + f.PastTime(t, output.ReaderZone)
	}
	return f.DateTime(t, output.ReaderZone) + " (in " + f.TimeLeft(t) + ")"
}

// ChangedText is who changed something and when.
func ChangedText(f *factory.Factory, at task.Time, by *task.Actor) string {
	if at.IsZero() {
		return ""
	}
	if by == nil {
		return f.PastTime(at, output.ReaderZone)
	}
	return f.PastTime(at, output.ReaderZone) + " by " + output.OneLine(by.String())
}

// ActorCell is who changed something, in a cell of a table.
func ActorCell(f *factory.Factory, by *task.Actor) string {
	return cmp.Or(output.OneLine(by.Name()), f.NoValue())
}

// RevisionText is a revision, or "" if there is none.
func RevisionText(revision int64) string {
	if revision == 0 {
		return ""
	}
	return strconv.FormatInt(revision, 10)
}

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
