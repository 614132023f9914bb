package cluster

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// What is frozen is the namespace of the command line: one that is set for all
// commands (CARILLON_NAMESPACE) does not narrow it.

func freezeCommand(f *factory.Factory) *cobra.Command {
	var reason string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "freeze --reason TEXT",
		Short: "Stop all firing, in the cluster or in a namespace",
		Long: "Stop all firing, in the cluster or, with --namespace, in one namespace. Ticks are skipped, and not caught up with later;\n" +
			"what waits waits on, also what is triggered; what runs goes on. The command returns when that holds: nothing is\n" +
			"decided to run any more, and no node starts anything. With exit code 5 it holds but for what the nodes it names\n" +
			"had been given before.",
		Example: "  carillon cluster freeze --reason 'the database moves'\n  carillon cluster freeze --namespace billing --reason 'INC-42' --yes",
		Args:    factory.Args(0, 0, ""),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever wonders that nothing runs; required")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be frozen")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := task.CheckReason("reason", reason); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		st, err := c.Freezes.Get(cmd.Context(), f.NamespaceFlag)
		if err != nil {
			return err
		}

		what := fmt.Sprintf("freeze %s with its %s", frozenName(f.NamespaceFlag), output.Plural(st.Tasks, "task"))

		if dryRun && f.ForPeople() {
			return f.Print("would " + what + "\n")
		}

		if dryRun {
			p := factory.DryRunItem{Would: "freeze", Kind: "cluster", Name: "cluster"}
			if f.NamespaceFlag != "" {
				p.Kind, p.Name = "namespace", f.NamespaceFlag
			}
			return output.EmitOne(&f.Printer, p, p.Name, nil)
		}

		if !f.Yes {
			if ok, err := f.Ask(cmd.Context(), what+"?", int(st.Tasks), true); !ok {
				return err
			}
		}

		if st, err = c.Freezes.Begin(cmd.Context(), f.NamespaceFlag, reason); err != nil {
			return err
		}

		if st.Changed {
			f.Say("froze %s · %s; end it with: carillon cluster unfreeze%s", frozenName(f.NamespaceFlag), standing(st.Tasks), view.NamespaceFlag(f.NamespaceFlag))
		} else {
			f.Say("%s was frozen already, %s", frozenName(f.NamespaceFlag), view.FreezeText(f, *st.Freeze))
		}

		return showFreeze(f, st)
	}

	return cmd
}

func unfreezeCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "unfreeze",
		Short:   "Let firing go on, from now",
		Long:    "Let firing go on, from now: end the freeze of the cluster or, with --namespace, that of a namespace. What has waited starts.",
		Example: "  carillon cluster unfreeze\n  carillon cluster unfreeze --namespace billing",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			st, err := c.Freezes.End(cmd.Context(), f.NamespaceFlag)
			if err != nil {
				return err
			}

			f.Say("unfroze %s", frozenName(f.NamespaceFlag))

			if z := st.Freeze; z != nil {
				f.Note("the whole cluster is frozen still, %s", view.FreezeText(f, *z))
			}

			return showFreeze(f, st)
		},
	}
}

// showFreeze is for programs; people have been told.
func showFreeze(f *factory.Factory, st client.FreezeStatus) error {
	if f.ForPeople() {
		return nil
	}
	return output.EmitOne(&f.Printer, st, cmp.Or(st.Namespace, "cluster"), nil)
}

func frozenName(ns string) string {
	if ns == "" {
		return "the whole cluster"
	}
	return "namespace " + ns
}

func standing(tasks int64) string {
	if tasks == 1 {
		return "1 task stands still"
	}
	return fmt.Sprintf("%d tasks stand still", tasks)
}
