package cluster

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

func recoverCommand(f *factory.Factory) *cobra.Command {
	return factory.LimitFormats(&cobra.Command{
		Use:   "recover",
		Short: "Go on with an etcd that was restored from an older snapshot",
		Long: "Go on with an etcd that was restored from an older snapshot. Nodes that notice such an etcd stop deciding and\n" +
			"changing anything: what they know may not have happened. This bumps the cluster's epoch: all nodes forget what\n" +
			"they know, end what they run, and begin anew on what etcd holds now. Ticks since the snapshot are decided again.\n" +
			"Make sure first that it is the snapshot that you want, and that all members of etcd have it.",
		Example: "  carillon cluster recover\n  carillon cluster recover --yes",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			if !f.Yes {
				ok, err := f.Ask(cmd.Context(), "go on with what etcd holds now?", 1, false)
				if fail := new(failure.Error); errors.As(err, &fail) && fail.Exit == failure.ExitUsage {
					return fail.WithHint("add --yes to go ahead") // there is no --dry-run
				}
				if !ok {
					return err
				}
			}

			k, err := c.Cluster.Recover(cmd.Context())
			if err != nil {
				return err
			}

			f.Say("the cluster is at epoch %d: its nodes begin anew within seconds", k.Epoch)

			return output.EmitChanged(&f.Printer, []task.Cluster{k}, 1, func(k task.Cluster) string { return k.ID })
		},
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)
}
