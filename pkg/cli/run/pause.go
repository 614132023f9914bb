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

func pauseCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Have running processes stand still; their timeout stands still, too",
		Long: "Have the processes of runs stand still, on whatever node, until `carillon run resume`. A paused run is active: it keeps its\n" +
			"slot, its task's overlap policy counts it, and it can be cancelled. Its timeout counts the time that it ran. One that a node\n" +
			"has and has not started does not start. (`carillon task pause` is another thing: it stops the ticks of a task.) Of a run with\n" +
			"parts those stand still that nodes have now; parts that begin later do not. A glob stands for the runs of the tasks that it\n" +
			"matches, which nodes have.\n\n" + selection.RunHelp,
		Example: `  carillon run pause nightly-backup
  carillon run pause 20261120T220500.000Z-k3f9
  carillon run pause 'sync-*' --dry-run
  carillon run pause -l team=data --yes`,
	}
	return runsCommand(f, cmd, &runPick{of: []task.State{task.Dispatched, task.Running}}, "paused",
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
				return r, "", fmt.Errorf("run %s: %s", r.ID, cmp.Or(r.Message, "somebody has resumed it meanwhile"))
			}

			return r, fmt.Sprintf("asked %s to stand still; %s tells when it does", r.ID, "carillon run get "+r.ID), nil
		}, selection.RunName)
}

func resumeCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Let paused runs go on",
		Long: "Let runs go on that `carillon run pause` has paused, a run with parts with all of them. A glob stands for the paused runs\n" +
			"of the tasks that it matches, and for their paused parts.\n\n" +
			selection.RunHelp,
		Example: `  carillon run resume nightly-backup
  carillon run resume 20261120T220500.000Z-k3f9
  carillon run resume 'sync-*' --dry-run
  carillon run resume --all --yes`,
	}
	p := &runPick{of: []task.State{task.Dispatched, task.Running, task.Paused}, parts: true, only: func(r task.Run) bool { return r.PausedBy != "" }}
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
				said = fmt.Sprintf("asked %s to go on; %s tells when it does", r.ID, "carillon run get "+r.ID)
			}

			return r, said, nil
		}, selection.RunName)
}

// awaitState reads a run until it is as it should be, or has waited long enough; at
// the end it is as it was read last.
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

// pauseWords say how long a run stood still, and since when it does.
func pauseWords(f *factory.Factory, r task.Run, at func(task.Time) string) string {
	sum := task.Duration(r.PausedFor(f.Now())).Approximate()

	switch {
	case r.State == task.Paused:
		return fmt.Sprintf("since %s by %s; %s in all", at(r.PausedAt), cmp.Or(r.PausedBy, "somebody"), sum)
	case r.PausedBy != "" && r.State == task.Dispatched && r.StartedAt.IsZero():
		return "asked for by " + r.PausedBy + ": until it is resumed it does not start"
	case r.PausedBy != "":
		return "asked for by " + r.PausedBy
	case r.PausedMS > 0:
		return sum + " in all"
	}

	return ""
}
