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

// pauseCommand returns "carillon task pause".
func pauseCommand(f *factory.Factory) *cobra.Command {
	var revision revisionFlag
	var until, reason string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Pause the schedules of tasks",
		Long: "Pause the schedules of tasks. Paused tasks have no ticks. Waiting and active runs continue, and you can\n" +
			"still trigger the tasks. With --until, the schedules resume at that time. Ticks that fell into the pause\n" +
			"never run.\n\n" +
			"For a task that is already paused, the command changes the end or the reason that you pass.",
		Example: `  carillon task pause nightly-backup
  carillon task pause nightly-backup --until 18:00 --reason "disk is being replaced"
  carillon task pause 'sync-*' --until 2h --yes
  carillon task pause -l team=data --until "2026-12-27 08:00" --yes`,
	}
	revision.bindFlag(cmd)
	cmd.Flags().StringVar(&until, "until", "", "resume at this `TIME`, or after this duration: 2h, 18:00, \"2026-12-24 18:00\" in the task's zone (yours for a glob, a selector or several tasks), or RFC 3339 (default: when you resume it)")
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` that explains the pause to other users")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return factory.RefuseEmpty(cmd, "until", "reason")
	}

	verbCommand(f, cmd, func(t client.Task) string { return selection.TaskName(f, t) },
		func(ctx context.Context, c *client.Client, r selection.Ref, alone bool) (client.Task, error) {
			request, err := pauseUntil(f, until, func() error {
				if !alone {
					return nil
				}
				t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
				if err != nil {
					return err
				}
				return aboutTask(f, t, until)
			})

			if err != nil {
				return client.Task{}, err
			}
			if request.Reason = reason; request == (client.PauseRequest{}) {
				return c.Tasks.Pause(ctx, r.Namespace, r.Name, int64(revision))
			}

			return c.Tasks.PauseWith(ctx, r.Namespace, r.Name, request, int64(revision))
		},
		func(r selection.Ref, t client.Task) string {
			if t.PausedUntil.IsZero() {
				return "paused " + selection.Show(f, r)
			}
			return fmt.Sprintf("paused %s until %s (%s)", selection.Show(f, r), f.DateTime(t.PausedUntil, t.Timezone), f.TimeLeft(t.PausedUntil))
		})

	return revision.ofOne(cmd)
}

// resumeCommand returns "carillon task resume".
func resumeCommand(f *factory.Factory) *cobra.Command {
	var revision revisionFlag
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume the schedules of paused tasks",
		Long: "Resume the schedules of paused tasks, whether a user paused them or Carillon did after too many failures.\n" +
			"The count of failures in a row starts again at zero. Ticks in the pause never run, and neither do runs for sources\n" +
			"that ended in it.",
		Example: `  carillon task resume nightly-backup
  carillon task resume -l team=data --yes`,
	}
	revision.bindFlag(cmd)
	verbCommand(f, cmd, func(t client.Task) string { return selection.TaskName(f, t) },
		func(ctx context.Context, c *client.Client, r selection.Ref, _ bool) (client.Task, error) {
			return c.Tasks.Resume(ctx, r.Namespace, r.Name, int64(revision))
		},
		func(r selection.Ref, t client.Task) string {
			if t.Result == client.Unchanged {
				return "not paused: " + selection.Show(f, r) + view.NextText(f, t)
			}
			text := "resumed " + selection.Show(f, r) + view.NextText(f, t)
			if t.DroppedTriggers > 0 {
				text += f.Plain(" · ") + "the pause dropped " + output.Plural(t.DroppedTriggers, "ended run") + " of its sources"
			}
			return text
		})

	return revision.ofOne(cmd)
}

// describePause adds the details of a pause.
func describePause(f *factory.Factory, d *output.Details, t client.Task) {
	if !t.Paused {
		return
	}

	words := "yes"
	if p := t.Pause; p != nil {
		words = "since " + f.PastTime(p.Since, t.Timezone)
		if p.By.Is(task.PausedByFailures) {
			words += ", after too many failures"
		} else if p.By != nil {
			words += " by " + p.By.String()
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
