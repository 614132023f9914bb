// Package apply implements "carillon apply" and "carillon diff". It reads files of tasks, sends them in one
// stream, and shows what changed or would change. On request, it deletes tasks that are no longer in the files.
// Errors in files are reported with their positions before anything is sent.
package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon apply".
func Command(f *factory.Factory) *cobra.Command {
	r := New(f)
	var p pruner
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or update tasks from files",
		Long: "Create or update tasks from YAML or JSON files. A file can contain several tasks or documents. Fields that\n" +
			"a file omits get their default. The command first validates all files. If one is not valid, it prints the line\n" +
			"and the column and sends nothing. If the server later rejects a task, the other tasks are still applied.\n\n" +
			"With --dry-run, the server validates everything and writes nothing. The command prints the fields and the\n" +
			"ticks that would change: added (+), removed (-) and moved (~).\n\n" +
			"With --prune and -l, the command deletes tasks that match the selector but are not in the files. It looks in the\n" +
			"namespaces of the tasks in the files, in the namespace given with -n, or in all namespaces with -A.\n\n" +
			"Files that end in .ndjson or .jsonl contain one task per line, and so does standard input if it begins like\n" +
			"such a file. Such files can have any length. A task must come after the tasks in its field after. The command\n" +
			"sends each line as it reads it, and an invalid line does not stop the others.\n\n" +
			"For more than 100 tasks, the command prints only failures and a summary. Applying the same files again changes\n" +
			"nothing, so you can repeat an interrupted apply.",
		Example: `  carillon apply -f nightly-backup.yaml
  carillon apply -f tasks/ --dry-run
  carillon apply -f tasks/ --prune -l team=data
  carillon apply -f million.ndjson
  carillon task get nightly-backup -o yaml | sed s/02:30/03:30/ | carillon apply -f -`,
	}
	r.bindFlag(cmd)
	cmd.Flags().BoolVar(&r.dry, "dry-run", false, "validate on the server and print the changes, without writing them")
	p.bindFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := r.checkArguments(cmd, words); err != nil {
			return err
		}
		if err := p.checkFlags(cmd, r.paths); err != nil {
			return err
		}

		if p.on {
			r.prune = &p
		}

		return r.applyAll(cmd.Context())
	}

	return cmd
}

// Operation is an apply, or its dry run, in progress.
type Operation struct {
	Files
	dry   bool
	diff  *diffResult // only print differences (diff); nothing is written
	prune *pruner     // nil: nothing is deleted

	told    batch.Progress
	counts  map[string]int // the number of tasks for each result
	applied []client.Task  // the tasks for formats that print all at once
	held    []string       // lines that are printed at the end if there are not too many
	codes   []int          // the exit codes of failures that were printed or counted
	warned  int            // the number of tasks with warnings
}

// New returns an operation without tasks.
func New(f *factory.Factory) *Operation {
	r := &Operation{Files: Files{Factory: f}, counts: map[string]int{}}
	r.fail = r.reportError
	return r
}

// applyAll reads and checks all files, and sends the tasks if all files are valid.
func (op *Operation) applyAll(ctx context.Context) error {
	if err := op.readFiles(ctx); err != nil {
		return err
	}

	if op.prune != nil {
		op.prune.keepApplied(op)
	}

	if len(op.codes) > 0 {
		if op.ForPeople() && len(op.Objects)+len(op.streams) > 0 {
			op.Note("nothing was sent")
		}
		return failure.AlreadyReported(op.codes)
	}

	return op.Deliver(ctx)
}

// Deliver sends the tasks that were read, and prints the results.
func (op *Operation) Deliver(ctx context.Context) error {
	c, err := op.Connect()
	if err != nil {
		return err
	}

	sortSourcesFirst(op.Objects)

	if len(op.Objects) == 1 && op.totalTasks() == 1 && op.prune == nil {
		op.Files.AboutTask(op.Objects[0].Spec.Timezone)
	}

	// The tasks to delete are confirmed before anything is written.
	if op.prune != nil {
		if err := op.prune.findAndConfirm(ctx, op, c); err != nil {
			return err
		}
	}

	if _, tty := op.Terminal(op.Out); op.diff == nil || !tty {
		op.told = batch.NewApplyProgress(op.Files.Factory, op.totalTasks())
	}

	err = op.sendTasks(ctx, c)
	op.told.Close()

	// Tasks are deleted last, and only if everything was applied.
	switch {
	case err == nil && op.prune != nil:
		err = op.prune.deleteUnchanged(ctx, op, c)
		op.printSummary()
	case err == nil:
		op.printSummary()
	case !op.dry && (op.doneCount() > 0 || ctx.Err() != nil):
		op.printTasks()
		if op.ForPeople() {
			op.Note("applied %s; to continue, run the same command again", output.Plural(int64(op.doneCount()), "task"))
		}
	}

	if ctx.Err() == nil {
		err = errors.Join(op.Emit(), err)
	}

	if err != nil {
		return err
	}

	return failure.AlreadyReported(op.codes)
}

// reportError prints an error, or only counts it if many were printed already.
func (op *Operation) reportError(err error) {
	if len(op.codes) < batch.Few {
		op.codes = append(op.codes, op.told.Report(op.Factory, err))
		return
	}

	if len(op.codes) == batch.Few {
		op.told.Print(op.Factory, "more tasks failed; their errors are not shown")
	}

	op.codes = append(op.codes, op.Explain(err).Exit)
}

// batchOptions returns the options of the request.
func (op *Operation) batchOptions() client.BatchOptions {
	o := client.BatchOptions{DryRun: op.dry, Full: !slices.Contains([]string{output.FormatTable, output.FormatWide, output.FormatName}, op.Format)}
	if op.diff != nil {
		o.Full = false
	}

	if total := op.totalTasks(); op.diff == nil && total > batch.Few || total > manyDiffs || op.Format == output.FormatName {
		o.Ticks = -1 // the ticks would not be printed
	}

	return o
}

// sendTasks sends all tasks in their order. Tasks are read, sent and answered at the same time, so any number
// of tasks needs a bounded amount of memory.
func (op *Operation) sendTasks(ctx context.Context, c *client.Client) error {
	sent := make(chan manifest.Object, 64<<10) // the tasks that wait for an answer, in order
	faults := make(chan error, batch.Few)
	quit := make(chan struct{})
	defer close(quit)

	specs := func(yield func(task.Spec) bool) {
		defer close(faults)
		for o, err := range op.allTasks() {
			if err == nil {
				err = op.checkTask(o)
			}

			if err != nil {
				select {
				case faults <- err:
					continue
				case <-quit:
					return
				}
			}

			select {
			case sent <- o:
			case <-quit:
				return
			}

			if !yield(o.Spec) {
				return
			}
		}
	}

	if len(op.Objects) == 0 && len(op.streams) == 0 {
		return nil
	}

	ctx, cancel := context.WithCancel(ctx)
	answers, gone := batch.Results(ctx, c.Tasks.ApplyAll(ctx, specs, op.batchOptions()))
	defer func() { cancel(); <-gone }()

	for answers != nil || faults != nil {
		select {
		case err, more := <-faults:
			if !more {
				faults = nil
				continue
			}
			op.reportError(err)
		case a, more := <-answers:
			if !more {
				answers = nil
				continue
			}

			if a.Err != nil {
				return a.Err
			}
			if err := op.recordResult(<-sent, a.BatchResult); err != nil {
				return err
			}
		}

		op.told.Step(op.doneCount(), len(op.codes))
	}

	return nil
}

// recordResult records the result of a task, and prints it if each task has its own line.
func (op *Operation) recordResult(o manifest.Object, b client.BatchResult) error {
	if err := b.Err(); err != nil {
		op.reportError(Locate(o, err))
		return nil
	}

	op.counts[b.Result]++
	if op.diff != nil {
		return op.diff.recordResult(op, o, b)
	}

	t := client.Task{Task: task.Task{Spec: o.Spec, Revision: b.Revision}, Next: b.Next, Result: b.Result, DryRun: b.Change}
	t.Paused = b.Paused || t.Paused && b.Next.IsZero() // an older server does not send Paused
	if b.Task != nil {
		t = *b.Task
	}

	t.Warnings, t.WarningDetails = b.Warnings, b.WarningDetails
	op.printWarnings(t)

	return op.recordTask(t)
}

// printWarnings prints the warnings of the first tasks that have some, and counts the others.
func (op *Operation) printWarnings(t client.Task) {
	if len(t.Warnings) == 0 {
		return
	}

	if op.warned < batch.Few {
		selection.PrintWarnings(op.Files.Factory, t)
	}

	op.warned++
}

// recordTask records or prints the result of a task.
func (op *Operation) recordTask(t client.Task) error {
	switch {
	case op.Format == output.FormatName, op.Format == output.FormatJSONL:
		return output.EmitList(&op.Factory.Printer, []client.Task{t}, func(t client.Task) string { return selection.TaskName(op.Files.Factory, t) }, nil)

	case !op.ForPeople():
		op.applied = append(op.applied, t)
	case op.doneCount() <= batch.Few && !op.told.HasMany():
		op.held = append(op.held, op.resultLines(t)...)
	}

	return nil
}

// resultLines returns the text about the result of a task.
func (op *Operation) resultLines(t client.Task) []string {
	name := selection.Show(op.Files.Factory, selection.Ref{Namespace: t.Namespace, Name: t.Name})

	if t.DryRun != nil {
		return append([]string{fmt.Sprintf("%s %s (dry run)", t.Result, name)}, ChangeText(op.Files.Factory, t.DryRun, t.Timezone)...)
	}

	next := ""
	if t.Result != client.Deleted {
		next = view.NextText(op.Files.Factory, t)
	}

	return []string{fmt.Sprintf("%s %s%s", t.Result, name, next)}
}

// doneCount returns the number of tasks with a result.
func (op *Operation) doneCount() int {
	n := 0
	for _, c := range op.counts {
		n += c
	}
	return n
}

// Locate adds the position in the file to an error of the server about a field. Other errors, such as those of
// the network, have no position.
func Locate(o manifest.Object, err error) error {
	var f *client.Error
	if !errors.As(err, &f) || f.Field == "" {
		return err
	}
	if len(f.Errors) < 2 {
		return o.LocateField(f.Field, err)
	}

	located := make([]error, len(f.Errors))
	for i, p := range f.Errors {
		located[i] = o.LocateField(p.Field, task.Invalid(p.Code, p.Field, "%s", p.Detail))
	}

	return errors.Join(located...)
}

// printTasks prints a line for each task, unless there are too many. It prints the result of a dry run even
// with --quiet, because that is what the user requested.
func (op *Operation) printTasks() {
	if op.doneCount() > batch.Few {
		return
	}

	for _, line := range op.held {
		if op.dry && op.ForPeople() {
			fmt.Fprintln(op.Out, op.Plain(line))
			continue
		}
		op.Say("%s", line)
	}
}

// printSummary prints the number of tasks for each result.
func (op *Operation) printSummary() {
	if op.diff != nil {
		op.diff.printSummary(op)
		return
	}

	op.printTasks()
	total := op.doneCount() + len(op.codes)
	if total < 2 {
		return
	}

	var parts []string
	for _, what := range []string{client.Created, client.Configured, client.Unchanged} {
		parts = append(parts, fmt.Sprintf("%d %s", op.counts[what], what))
	}

	if op.prune != nil {
		parts = append(parts, fmt.Sprintf("%d %s", op.counts[client.Deleted], client.Deleted))
	}

	if n := len(op.codes); n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n))
	}

	if op.warned > batch.Few && op.ForPeople() {
		op.Note("warning: there are warnings about %s; -o jsonl shows all of them", output.Plural(int64(op.warned-batch.Few), "more task"))
	}

	dry := ""
	if op.dry {
		dry = " (dry run: nothing was written)"
	}

	op.Say("%s: %s%s", output.Plural(int64(total), "task"), strings.Join(parts, ", "), dry)
}

// Emit prints the tasks in formats that contain all tasks in one document.
func (op *Operation) Emit() error {
	if op.diff != nil {
		return op.diff.emitDifferences(op)
	}
	if op.Format == output.FormatName || op.Format == output.FormatJSONL { // printed already
		return nil
	}

	return output.EmitChanged(&op.Factory.Printer, op.applied, 2, func(t client.Task) string { return selection.TaskName(op.Files.Factory, t) })
}
