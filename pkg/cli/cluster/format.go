package cluster

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// upgradeCommand returns "carillon cluster upgrade".
func upgradeCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Switch to the newest record format that all nodes support",
		Long: "Switch to the newest record format that all nodes support, now. The cluster does this by itself when every\n" +
			"node has run a version that supports the format for ten minutes. Afterwards, older versions cannot join until\n" +
			"you downgrade.",
		Example: "  carillon cluster upgrade",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			status, err := c.Cluster.SetFormat(cmd.Context(), 0)
			if err != nil {
				return err
			}

			return showFormat(f, status)
		},
	}
}

// downgradeCommand returns "carillon cluster downgrade".
func downgradeCommand(f *factory.Factory) *cobra.Command {
	var to int
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "downgrade --to-format N",
		Short: "Switch to an older record format, so that an older version can join",
		Long: "Switch to an older record format, so that an older version can join. Nodes start to write the older format\n" +
			"immediately. The downgrade is complete when all nodes have confirmed it and their last writes have arrived. If\n" +
			"you interrupt the command, the downgrade continues.",
		Example: "  carillon cluster downgrade --to-format 1\n  carillon cluster downgrade --to-format 1 --wait 1h",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to < 1 {
				return failure.Usage("--to-format: the format to go back to, from 1 on")
			}
			if wait < 0 {
				return failure.Usage("--wait %s: must not be negative", wait)
			}

			c, err := f.Connect()
			if err != nil {
				return err
			}

			status, err := c.Cluster.SetFormat(cmd.Context(), to)
			if err != nil {
				return err
			}
			if status, err = awaitFormat(cmd.Context(), f, c, status, wait); err != nil {
				return err
			}

			return showFormat(f, status)
		},
	}

	cmd.Flags().IntVar(&to, "to-format", 0, "switch to record format `N`")
	factory.DurationVar(cmd.Flags(), &wait, "wait", 2*time.Minute, "wait at most this `DURATION` for the downgrade to complete, then exit with 5")

	return cmd
}

// awaitFormat waits until the wanted format is in force, and prints what the downgrade waits for.
func awaitFormat(ctx context.Context, f *factory.Factory, c *client.Client, status client.FormatStatus, most time.Duration) (client.FormatStatus, error) {
	deadline := time.Now().Add(most)
	reported := ""
	for status.Format != status.Wanted {
		if status.WaitsFor != reported {
			reported = status.WaitsFor
			if reported != "" {
				f.Note("waiting for %s", output.OneLine(reported))
			}
		}

		if time.Now().After(deadline) {
			return status, &failure.Error{Exit: failure.ExitUnavailable, Problem: failure.Problem{Code: client.CodeUnavailable,
				Message: fmt.Sprintf("format %d is still in use after %s, waiting for %s", status.Format, most, cmp.Or(output.OneLine(status.WaitsFor), "the last writes")),
				Hint:    "the downgrade continues; to check it: carillon cluster status"}}
		}

		err := factory.Sleep(ctx, time.Second)
		if err == nil {
			status, err = c.Cluster.Format(ctx)
		}

		if err != nil {
			return status, err
		}
	}

	return status, nil
}

// showFormat prints the format.
func showFormat(f *factory.Factory, status client.FormatStatus) error {
	return output.EmitOne(&f.Printer, status, fmt.Sprint(status.Format), func(d *output.Details) { d.Field("Format", "%s", wording.FormatText(status)) })
}
