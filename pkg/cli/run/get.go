package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/logs"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// getCommand returns "carillon run get".
func getCommand(f *factory.Factory) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "get RUN",
		Short: "Show a run with the end of its output",
		Long:  "Show a run: when and where it ran, its progress or how it ended, its results, and the end of its output.\n\n" + selection.RunHelp,
		Example: `  carillon run get nightly-backup
  carillon run get nightly-backup@-1
  carillon run get nightly-backup@2026-03-29T02:30 -o json
  carillon run get nightly-backup -w`,
		Args:              factory.Args(1, 1, "the run"),
		ValidArgsFunction: complete.Runs(f),
	}
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "watch until the run has ended: redraw on a terminal, print one line per change elsewhere")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, err := f.Connect()
		if err != nil {
			return err
		}

		r, err := findWithProgress(cmd.Context(), f, c, words[0])
		if err != nil {
			return err
		}

		zone := output.ReaderZone // if the task is gone
		if f.ForPeople() {
			if t, err := c.Tasks.Get(cmd.Context(), r.Namespace, r.Task); err == nil {
				zone = t.Timezone
				f.AboutTask(zone)
			}
		}

		if follow {
			return watchRun(cmd.Context(), f, c, r, zone)
		}

		shown, err := withSteps(cmd.Context(), c, r, maxShownItems)
		if err != nil {
			return err
		}

		return output.EmitOne(&f.Printer, shown, r.ID, func(d *output.Details) { describeRun(f, d, shown, zone) })
	}

	return cmd
}

// findWithProgress returns the run that a word names, with the progress and the states of its parts. Lists omit them.
func findWithProgress(ctx context.Context, f *factory.Factory, c *client.Client, word string) (task.Run, error) {
	r, err := selection.FindRun(ctx, f, c, word)
	if err != nil {
		return r, err
	}

	if r.State.Active() {
		if now, err := c.Runs.Get(ctx, r.Namespace, r.Task, r.ID); err == nil {
			r = now
		}
	}

	return logs.WithPartStates(ctx, c, r)
}

// Find returns the run that a word names, as run get shows it, with the first items of each step.
func Find(ctx context.Context, f *factory.Factory, c *client.Client, word string) (ShownRun, error) {
	r, err := findWithProgress(ctx, f, c, word)
	if err != nil {
		return ShownRun{}, err
	}

	return withSteps(ctx, c, r, 0)
}

// ShownRun is a run with the states of its steps, if it is one of a workflow.
type ShownRun struct {
	task.Run
	Steps *client.RunSteps `json:"steps,omitempty"`
}

// maxShownItems is how many items of each step are read: all that a map can have.
const maxShownItems = task.MaxMapItems

// withSteps reads the steps of a run, with at most this many items of each; 0 means the default. A run that waits has no steps on
// record, so its task says whether it is a workflow.
func withSteps(ctx context.Context, c *client.Client, r task.Run, items int) (ShownRun, error) {
	shown := ShownRun{Run: r}
	if r.Fan == nil && r.State != task.Queued || r.Fan != nil && r.Fan.Flow == nil {
		return shown, nil
	}

	steps, err := c.Runs.Steps(ctx, r.Namespace, r.Task, r.ID, client.StepsOptions{Items: items})
	var e *client.Error
	if errors.As(err, &e) && (e.Code == client.CodeNoSteps || e.Status == http.StatusNotFound) && r.Fan == nil {
		return shown, nil
	}
	if err != nil {
		return shown, err
	}
	shown.Steps = &steps

	return shown, nil
}

// describeRun adds the details of a run. zone is the time zone of its task.
func describeRun(f *factory.Factory, d *output.Details, shown ShownRun, zone string) {
	r := shown.Run
	at := func(t task.Time) string {
		if t.IsZero() {
			return ""
		}

		words := f.ExactTime(t, zone)
		if f.TimeMode == output.TimeRelative {
			words += " (" + f.PastTime(t, zone) + ")"
		}

		return words
	}

	d.Field("Run", "%s", r.ID)
	d.Field("Task", "%s", selection.Name(f, r.Namespace, r.Task))
	d.StyledField("Result", view.RunResult(f, r))

	d.Field("Reason", "%s", strings.ReplaceAll(r.Reason, "_", " "))
	d.Field("Message", "%s", r.Message)
	for _, field := range wording.RunRequestFields(r, at) {
		d.Field(field.Name, "%s", field.Value)
	}

	d.Field("Dispatched", "%s", at(r.DispatchedAt))
	d.Field("Started", "%s", at(r.StartedAt))
	d.Field("Ended", "%s", at(r.EndedAt))
	if view.RunDuration(r, f.Now()) >= 0 {
		d.Field("Took", "%s", view.TookText(f, r))
	}

	if shown.Steps != nil {
		d.Field("Steps", "%s", view.StepsSummary(*shown.Steps))
	}
	d.StyledField("Progress", view.ProgressBar(f, r))
	for _, field := range wording.RunAttemptFields(r, at, f.Now()) {
		d.Field(field.Name, "%s", field.Value)
	}
	d.Field("Decided by", "%s", wording.DecidedBy(r))
	d.Field("Retry of", "%s", r.RetryOf)
	d.Field("Rerun of", "%s", r.RerunOf)
	d.Field("Checkpoint", "%s", output.Truncate(output.OneLine(r.Checkpoint), 200))

	if len(r.Attempts) > 0 {
		g := &output.Table{Headers: []string{"ATTEMPT", "RESULT", "NODE", "STARTED", "TOOK"}}

		for _, t := range r.Attempts {
			past := task.Run{State: t.State, Reason: t.Reason, ExitCode: t.ExitCode, Signal: t.Signal, HTTPStatus: t.HTTPStatus, StartedAt: t.StartedAt, EndedAt: t.EndedAt}
			g.AddRow(fmt.Sprintf("attempt %d", t.Attempt), view.RunResult(f, past), cmp.Or(output.OneLine(t.Node), f.NoValue()), at(t.StartedAt), view.TookText(f, past))
		}

		d.Section("Earlier attempts", f.RenderIndented(g))
	}

	describeResults(f, d, r)
	if shown.Steps != nil {
		d.Section("Steps", f.RenderIndented(view.StepsTable(f, *shown.Steps, zone)))
	} else {
		describeParts(f, d, r, at)
	}

	if r.OutputTail != "" {
		title := "Output"
		if r.Truncated || int64(len(r.OutputTail)) < r.OutputBytes {
			title = fmt.Sprintf("Output (the end of %s)", output.Bytes(r.OutputBytes))
		}
		d.Section(title, output.Sanitize(r.OutputTail))
	}
}

// describeParts adds the parts of a run.
func describeParts(f *factory.Factory, d *output.Details, r task.Run, at func(task.Time) string) {
	fan := r.Fan
	if fan == nil || len(fan.Parts) == 0 {
		return
	}

	g := &output.Table{Headers: []string{"PART", "RESULT", "NODE", "STARTED", "TOOK", "MESSAGE"}}

	for _, p := range fan.Parts {
		part := r.OfPart(p)
		g.AddRow(fmt.Sprintf("%d", p.Index), view.RunResult(f, part), cmp.Or(p.Node, f.NoValue()), cmp.Or(at(p.StartedAt), f.NoValue()), view.TookText(f, part), output.Truncate(output.OneLine(p.Message), 80))
	}

	d.Section("Parts", f.RenderIndented(g))
}

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
