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

// Only the flag --namespace limits a freeze to a namespace. A namespace from the environment or the context
// does not, because a freeze of the whole cluster must not be narrowed by accident.

// freezeCommand returns "carillon cluster freeze".
func freezeCommand(f *factory.Factory) *cobra.Command {
	var reason string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "freeze --reason TEXT",
		Short: "Stop new runs in the cluster or in a namespace",
		Long: "Stop new runs in the whole cluster or, with --namespace, in one namespace. Ticks are skipped and do not run\n" +
			"later. Waiting runs, including triggered ones, keep waiting. Active runs continue.\n\n" +
			"The command returns when the freeze is in effect: no new run is decided and no node starts one. If it exits\n" +
			"with 5, the freeze is in effect except for runs that the nodes it names had already received.",
		Example: "  carillon cluster freeze --reason 'the database moves'\n  carillon cluster freeze --namespace billing --reason 'INC-42' --yes",
		Args:    factory.Args(0, 0, ""),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` that explains the freeze to other users; required")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be frozen, without freezing it")
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

		action := fmt.Sprintf("freeze %s with its %s", frozenName(f.NamespaceFlag), output.Plural(st.Tasks, "task"))

		if dryRun && f.ForPeople() {
			return f.Print("would " + action + "\n")
		}

		if dryRun {
			p := factory.DryRunItem{Would: "freeze", Kind: "cluster", Name: "cluster"}
			if f.NamespaceFlag != "" {
				p.Kind, p.Name = "namespace", f.NamespaceFlag
			}
			return output.EmitOne(&f.Printer, p, p.Name, nil)
		}

		if !f.Yes {
			if ok, err := f.Ask(cmd.Context(), action+"?", int(st.Tasks), true); !ok {
				return err
			}
		}

		if st, err = c.Freezes.Begin(cmd.Context(), f.NamespaceFlag, reason); err != nil {
			return err
		}

		if st.Changed {
			f.Say("froze %s · %s; end it with: carillon cluster unfreeze%s", frozenName(f.NamespaceFlag), stoppedTasks(st.Tasks), view.NamespaceFlag(f.NamespaceFlag))
		} else {
			f.Say("%s is already frozen, %s", frozenName(f.NamespaceFlag), view.FreezeText(f, *st.Freeze))
		}

		return showFreeze(f, st)
	}

	return cmd
}

// unfreezeCommand returns "carillon cluster unfreeze".
func unfreezeCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "unfreeze",
		Short:   "End a freeze",
		Long:    "End the freeze of the cluster or, with --namespace, of one namespace. Waiting runs start.",
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
				f.Note("the whole cluster is still frozen, %s", view.FreezeText(f, *z))
			}

			return showFreeze(f, st)
		},
	}
}

// showFreeze prints the status for programs. The text for people was printed before.
func showFreeze(f *factory.Factory, st client.FreezeStatus) error {
	if f.ForPeople() {
		return nil
	}
	return output.EmitOne(&f.Printer, st, cmp.Or(st.Namespace, "cluster"), nil)
}

// frozenName names the scope of a freeze.
func frozenName(ns string) string {
	if ns == "" {
		return "the whole cluster"
	}
	return "namespace " + ns
}

// stoppedTasks describes the number of tasks that a freeze stops.
func stoppedTasks(tasks int64) string {
	if tasks == 1 {
		return "1 task does not fire"
	}
	return fmt.Sprintf("%d tasks do not fire", tasks)
}
