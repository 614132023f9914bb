package apply

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
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
		r.Note("no differences in %d tasks", total)
	}
}

// emitDifferences prints the differences in formats that contain all of them in one document.
func (d *diffResult) emitDifferences(r *Operation) error {
	if r.ForPeople() || r.Format == output.FormatName || r.Format == output.FormatJSONL {
		return nil
	}
	return output.EmitList(&r.Factory.Printer, d.list, d.nameFunc(r), nil)
}
