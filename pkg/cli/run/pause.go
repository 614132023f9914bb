package run

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// pauseCommand returns "carillon run pause".
func pauseCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Suspend the processes of runs",
		Long: "Suspend the processes of runs on any node, until you run carillon run resume. A paused run is still active: it keeps its\n" +
			"slot, it counts for the overlap policy of its task, and you can cancel it. Time in a pause does not count towards the\n" +
			"timeout. If a node has received a run but not started it, the run does not start.\n\n" +
			"To stop the schedule of a task instead, use carillon task pause. For a run in parts, the command pauses only the parts\n" +
			"that nodes have received; later parts still start. A glob selects the runs that nodes have received, of all tasks whose\n" +
			"names match.\n\n" + selection.RunHelp,
		Example: `  carillon run pause nightly-backup
  carillon run pause 20261120T220500.000Z-k3f9
  carillon run pause 'sync-*' --dry-run
  carillon run pause -l team=data --yes`,
	}
	return runsCommand(f, cmd, &bulkFlags{of: []task.State{task.Dispatched, task.Running}}, "paused",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			r, err := c.Runs.Pause(ctx, r.Namespace, r.Task, r.ID)
			if err != nil {
				return r, "", err
			}
			if r.Fan != nil {
				return partsPaused(ctx, f, c, r)
			}

			r = awaitState(ctx, f, c, r, func(r task.Run) bool { return r.State == task.Paused || r.PausedBy == "" })
			switch {
			case r.State == task.Paused:
				return r, "paused " + r.ID, nil
			case r.State.Final(), !r.State.Active():
				return r, fmt.Sprintf("%s had ended before it could be paused: %s", r.ID, r.State), nil
			case r.PausedBy == "":
				return r, "", fmt.Errorf("run %s: %s", r.ID, cmp.Or(r.Message, "another user has resumed it"))
			}

			return r, fmt.Sprintf("requested a pause of %s; to check it: %s", r.ID, "carillon run get "+r.ID), nil
		}, selection.RunName)
}

// resumeCommand returns "carillon run resume".
func resumeCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume paused runs",
		Long: "Resume runs that carillon run pause has paused. A run in parts is resumed with all of its parts. A glob selects the\n" +
			"paused runs and paused parts of all tasks whose names match.\n\n" +
			selection.RunHelp,
		Example: `  carillon run resume nightly-backup
  carillon run resume 20261120T220500.000Z-k3f9
  carillon run resume 'sync-*' --dry-run
  carillon run resume --all --yes`,
	}
	p := &bulkFlags{of: []task.State{task.Dispatched, task.Running, task.Paused}, parts: true, only: func(r task.Run) bool { return r.PausedBy != "" }}
	return runsCommand(f, cmd, p, "resumed",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			r, err := c.Runs.Resume(ctx, r.Namespace, r.Task, r.ID)
			if err != nil {
				return r, "", err
			}
			if r.Fan != nil {
				return partsResumed(ctx, f, c, r)
			}

			r = awaitState(ctx, f, c, r, func(r task.Run) bool { return r.State != task.Paused })
			said := "resumed " + r.ID
			if r.State == task.Paused {
				said = fmt.Sprintf("requested the resumption of %s; to check it: %s", r.ID, "carillon run get "+r.ID)
			}

			return r, said, nil
		}, selection.RunName)
}

// awaitState reads a run until is returns true or the time is up, and returns it as read last.
func awaitState(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run, is func(task.Run) bool) task.Run {
	ctx, cancel := context.WithTimeout(ctx, f.NodeTimeout)
	defer cancel()

	for wait := 20 * time.Millisecond; !is(r) && r.State.Active(); wait = min(2*wait, 250*time.Millisecond) {
		if !clock.Sleep(ctx, wait) {
			return r
		}

		if now, err := c.Runs.Get(ctx, r.Namespace, r.Task, r.ID); err == nil {
			r = now
		}
	}

	return r
}

// pauseWords describes since when a run is paused, and how long it was paused in total.
func pauseWords(f *factory.Factory, r task.Run, at func(task.Time) string) string {
	sum := task.Duration(r.PausedFor(f.Now())).Approximate()

	switch {
	case r.State == task.Paused:
		return fmt.Sprintf("since %s by %s; %s in total", at(r.PausedAt), cmp.Or(r.PausedBy, "an unknown user"), sum)
	case r.PausedBy != "" && r.State == task.Dispatched && r.StartedAt.IsZero():
		return "requested by " + r.PausedBy + "; the run does not start until you resume it"
	case r.PausedBy != "":
		return "requested by " + r.PausedBy
	case r.PausedMS > 0:
		return sum + " in total"
	}

	return ""
}
