package apply

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// manyDiffs is the number of tasks above which diff does not compare ticks.
const manyDiffs = 10_000

// difference describes how a task would change, for programs.
type difference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	client.Change
}

// diffResult is the state of "carillon diff".
type diffResult struct {
	exitCode bool
	list     []difference
	found    int
}

// DiffCommand returns "carillon diff".
func DiffCommand(f *factory.Factory) *cobra.Command {
	d := &diffResult{}
	r := New(f)
	r.dry, r.diff = true, d
	cmd := &cobra.Command{
		Use:   "diff -f FILE|DIR|-",
		Short: "Show what apply would change",
		Long: "Show what apply would change for the tasks in the files: fields, and the ticks of the next 7 days that\n" +
			"would be added (+), removed (-) or moved (~). The server validates everything, as with apply, and writes\n" +
			"nothing. The command ignores tasks that are in no file; for those, use apply --prune --dry-run.\n\n" +
			"With --exit-code, the command exits with 8 if anything differs. For more than 10000 tasks, it compares only\n" +
			"the fields.",
		Example: `  carillon diff -f tasks/
  carillon diff -f tasks/ --exit-code -q     in CI: is the cluster what git says?
  carillon task diff -f nightly-backup.yaml -o json`,
	}
	r.bindFlag(cmd)
	cmd.Flags().BoolVar(&d.exitCode, "exit-code", false, "exit with 8 if anything differs")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := r.checkArguments(cmd, words); err != nil {
			return err
		}
		if err := r.applyAll(cmd.Context()); err != nil {
			return err
		}
		if d.exitCode && d.found > 0 {
			return &failure.Error{Exit: failure.ExitFinding, Reported: true}
		}

		return nil
	}

	return cmd
}

// recordResult prints or records a task if it differs.
func (d *diffResult) recordResult(r *Operation, o manifest.Object, b client.BatchResult) error {
	if b.Change == nil || !b.Change.Changes() {
		return nil
	}

	d.found++
	one := difference{b.Namespace, b.Name, *b.Change}

	switch {
	case r.Format == output.FormatName, r.Format == output.FormatJSONL:
		return output.EmitList(&r.Factory.Printer, []difference{one}, d.nameFunc(r), nil)
	case !r.ForPeople():
		d.list = append(d.list, one)
		return nil
	}

	text := fmt.Sprintf("%s %s\n", b.Result, selection.Show(r.Files.Factory, selection.Ref{Namespace: b.Namespace, Name: b.Name}))
	for _, line := range ChangeText(r.Files.Factory, b.Change, o.Spec.Timezone) {
		text += line + "\n"
	}

	return r.Print(r.Plain(text))
}

// nameFunc returns a function that names a difference.
func (d *diffResult) nameFunc(a *Operation) func(difference) string {
	return func(one difference) string { return selection.Name(a.Files.Factory, one.Namespace, one.Name) }
}

// printSummary prints a note if nothing differs.
func (d *diffResult) printSummary(r *Operation) {
	if total := r.doneCount(); d.found == 0 && len(r.codes) == 0 && r.ForPeople() {
		r.Note("no differences in %s", output.Plural(int64(total), "task"))
	}
}

// emitDifferences prints the differences in formats that contain all of them in one document.
func (d *diffResult) emitDifferences(r *Operation) error {
	if r.ForPeople() || r.Format == output.FormatName || r.Format == output.FormatJSONL {
		return nil
	}
	return output.EmitList(&r.Factory.Printer, d.list, d.nameFunc(r), nil)
}

// firstTicks is how many ticks of a new task are printed; all of its ticks are new.
const firstTicks = 3

// ChangeText returns the result of a dry run as text. timezone is the task's time zone after the change.
func ChangeText(f *factory.Factory, c *client.Change, timezone string) []string {
	var lines []string
	before := timezone
	for _, change := range c.Fields {
		lines = append(lines, view.FieldChange(f, change)...)
		if was, ok := change.From.(string); ok && change.Field == "timezone" {
			before = was
		}
	}

	if c.Ticks != nil {
		lines = append(lines, tickLines(f, c, before, timezone)...)
	}

	return lines
}

// tickLines returns one line for each tick that is added, removed or moved.
func tickLines(f *factory.Factory, c *client.Change, before, after string) []string {
	t := c.Ticks
	until := f.DateTime(t.Until, after)

	switch {
	case t.Come+t.Go+t.Move > 0:
	case c.Result == client.Deleted:
		return nil
	case c.Result == client.Created:
		return []string{"  no ticks up to " + until}
	default:
		return []string{"  ticks: unchanged up to " + until}
	}

	var counts []string
	for _, part := range []struct {
		n    int
		what string
	}{{t.Come, "added"}, {t.Go, "removed"}, {t.Move, "moved"}} {
		if part.n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}

	lines := []string{fmt.Sprintf("  ticks up to %s: %s", until, strings.Join(counts, ", "))}
	list := t.Ticks
	if c.Result == client.Created {
		list = list[:min(len(list), firstTicks)]
	}

	for _, m := range list {
		switch {
		case m.Was == nil:
			lines = append(lines, f.Paint(output.Green, "  + "+tickTimeWords(f, m.Is, after)))
		case m.Is == nil:
			lines = append(lines, f.Paint(output.Red, "  - "+tickTimeWords(f, m.Was, before)))
		default:
			lines = append(lines, f.Paint(output.Yellow, "  ~ "+tickTimeWords(f, m.Was, before)+" → "+tickTimeWords(f, m.Is, after)))
		}
	}

	if more := t.Come + t.Go + t.Move - len(list); more > 0 {
		lines = append(lines, fmt.Sprintf("  … and %d more", more))
	}

	return lines
}

// tickTimeWords returns the text about the time of a tick.
func tickTimeWords(f *factory.Factory, t *client.TickTime, timezone string) string {
	words := f.DateTime(t.Time, timezone)

	switch {
	case !t.DueAt.IsZero():
		words += ", due " + f.ClockTime(t.DueAt, timezone)
	case !t.DueBefore.IsZero():
		words += ", due before " + f.ClockTime(t.DueBefore, timezone)
	}

	return words
}
