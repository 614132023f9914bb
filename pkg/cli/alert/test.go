package alert

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/wait"
	"github.com/carillonhq/carillon/pkg/task"
)

// testCommand returns "carillon alert test".
func testCommand(f *factory.Factory) *cobra.Command {
	var waiting wait.Flag
	cmd := &cobra.Command{
		Use:   "test RECEIVER",
		Short: "Send a test message to a receiver",
		Long: "Send a test message to a receiver, as a run of it. With --wait, print its output until it has ended, and exit with 9 if the\n" +
			"message was not delivered.",
		Example:           "  carillon alert test ops/slack --wait",
		Args:              factory.Args(1, 1, "the receiver's name"),
		ValidArgsFunction: complete.Receivers(f),
	}
	waiting.Bind(cmd.Flags(), "wait until the run has ended; exit with 9 if it did not succeed")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		t, err := c.Alerts.Test(ctx, r.Namespace, r.Name)
		if err != nil {
			return selection.ExplainMissing(ctx, f, c, r, err)
		}

		f.Say("sent a test message to %s · run %s", r, t.ID)
		view.NoteHeld(f, r, t)

		runs := []task.Run{t.Run}
		var failed error
		if waiting.On {
			failed = wait.ForRuns(ctx, f, c, runs, waiting.Limit, false)
		} else {
			f.SayNext("carillon run get -n %s %s", r.Namespace, t.ID)
		}
		if err := output.EmitChanged(&f.Printer, runs, 1, selection.RunName); err != nil {
			return err
		}

		return failed
	}

	return cmd
}
