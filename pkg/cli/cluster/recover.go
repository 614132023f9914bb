package cluster

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// recoverCommand returns "carillon cluster recover".
func recoverCommand(f *factory.Factory) *cobra.Command {
	return factory.LimitFormats(&cobra.Command{
		Use:   "recover",
		Short: "Continue with an etcd restored from an older snapshot",
		Long: "Continue with an etcd that was restored from an older snapshot. When nodes detect such an etcd, they stop making\n" +
			"decisions and changes, because what they know may not be in the snapshot.\n\n" +
			"This command begins the next epoch of the cluster. All nodes then discard their state, kill their running processes,\n" +
			"and start again from what etcd contains now. Ticks since the snapshot are decided again.\n\n" +
			"Before you run it, make sure that this is the snapshot you want, and that all etcd members use it.",
		Example: "  carillon cluster recover\n  carillon cluster recover --yes",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			if !f.Yes {
				ok, err := f.Ask(cmd.Context(), "continue with the current contents of etcd?", 1, false)
				if fail := new(failure.Error); errors.As(err, &fail) && fail.Exit == failure.ExitUsage {
					return fail.WithHint("add --yes to continue") // replaces the hint that mentions --dry-run, which this command does not have
				}
				if !ok {
					return err
				}
			}

			k, err := c.Cluster.Recover(cmd.Context())
			if err != nil {
				return err
			}

			f.Say("the cluster is at epoch %d; all nodes reload their state from etcd within seconds", k.Epoch)

			return output.EmitChanged(&f.Printer, []task.Cluster{k}, 1, func(k task.Cluster) string { return k.ID })
		},
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)
}
