package task

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func pauseCommand(f *factory.Factory) *cobra.Command {
	var revision revisionFlag
	var until, reason string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Stop the ticks of tasks; what runs goes on",
		Long: "Stop the ticks of tasks. Runs that wait or run already go on, and a trigger still works. With --until ticks\n" +
			"come again by themselves after that time; those that fell into the pause do not run later. Of a task that\n" +
			"is paused already, what is given changes.",
		Example: `  carillon task pause nightly-backup
  carillon task pause nightly-backup --until 18:00 --reason "disk is being replaced"
  carillon task pause 'sync-*' --until 2h --yes
  carillon task pause -l team=data --until "2026-12-27 08:00" --yes`,
	}
	revision.bind(cmd)
	cmd.Flags().StringVar(&until, "until", "", "`TIME` or duration: 2h, 18:00, \"2026-12-24 18:00\" in the task's zone, or RFC 3339 (default: until it is resumed)")
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT`: why, for whoever looks at the task")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return factory.RefuseEmpty(cmd, "until", "reason")
	}

	verbCommand(f, cmd, false, func(t client.Task) string { return selection.TaskName(f, t) },
		func(ctx context.Context, c *client.Client, r selection.Ref) (client.Task, error) {
			how, err := pauseUntil(f, until, func() (string, error) {
				t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
				return t.Timezone, err
			})

			if err != nil {
				return client.Task{}, err
			}
			if how.Reason = reason; how == (client.PauseRequest{}) {
				return c.Tasks.Pause(ctx, r.Namespace, r.Name, int64(revision))
			}

			return c.Tasks.PauseWith(ctx, r.Namespace, r.Name, how, int64(revision))
		},
		func(r selection.Ref, t client.Task) string {
			if t.PausedUntil.IsZero() {
				return "paused " + selection.Show(f, r)
			}
			return fmt.Sprintf("paused %s until %s (%s)", selection.Show(f, r), f.DateTime(t.PausedUntil, t.Timezone), f.TimeLeft(t.PausedUntil))
		})

	return revision.ofOne(cmd)
}

func resumeCommand(f *factory.Factory) *cobra.Command {
	var revision revisionFlag
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Let paused tasks tick again, from now on",
		Long: "Let paused tasks tick again, from now on, whoever paused them: a user, or Carillon after too many failures,\n" +
			"which are counted anew then. Ticks that fell into the pause do not run later.",
		Example: `  carillon task resume nightly-backup
  carillon task resume -l team=data --yes`,
	}
	revision.bind(cmd)
	verbCommand(f, cmd, false, func(t client.Task) string { return selection.TaskName(f, t) },
		func(ctx context.Context, c *client.Client, r selection.Ref) (client.Task, error) {
			return c.Tasks.Resume(ctx, r.Namespace, r.Name, int64(revision))
		},
		func(r selection.Ref, t client.Task) string {
			return "resumed " + selection.Show(f, r) + view.NextText(f, t)
		})

	return revision.ofOne(cmd)
}

// describePause tells all that is known of a pause.
func describePause(f *factory.Factory, d *output.Details, t client.Task) {
	if !t.Paused {
		return
	}

	words := "yes"
	if p := t.Pause; p != nil {
		words = "since " + f.PastTime(p.Since, t.Timezone)
		if p.By == task.PausedByFailures {
			words += ", after too many failures"
		} else if p.By != "" {
			words += " by " + p.By
		}
	}

	if !t.PausedUntil.IsZero() {
		words += ", until " + f.DateTime(t.PausedUntil, t.Timezone)
	}

	if t.PauseReason != "" {
		words += ": " + t.PauseReason
	}

	d.Field("Paused", "%s", words)
}
