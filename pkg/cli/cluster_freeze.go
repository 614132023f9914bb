package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// What is frozen is the namespace of the command line: one that is set for all
// commands (CARILLON_NAMESPACE) does not narrow it.

func (a *app) clusterFreeze() *cobra.Command {
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
		Args:    args(0, 0, ""),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever wonders that nothing runs; required")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be frozen")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := task.CheckReason("reason", reason); err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		st, err := c.Freezing(cmd.Context(), a.NamespaceFlag)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("freeze %s with its %s", frozenName(a.NamespaceFlag), output.Plural(st.Tasks, "task"))
		if dryRun && a.ForPeople() {
			return a.Print("would " + what + "\n")
		}
		if dryRun {
			p := planned{"freeze", "cluster", "cluster"}
			if a.NamespaceFlag != "" {
				p.Kind, p.Name = "namespace", a.NamespaceFlag
			}
			return output.EmitOne(&a.Printer, p, p.Name, nil)
		}
		if !a.yes {
			if ok, err := a.ask(cmd.Context(), what+"?", int(st.Tasks), true); !ok {
				return err
			}
		}
		if st, err = c.Freeze(cmd.Context(), a.NamespaceFlag, reason); err != nil {
			return err
		}
		if st.Changed {
			a.Say("froze %s · %s; end it with: carillon cluster unfreeze%s", frozenName(a.NamespaceFlag), standing(st.Tasks), namespaceFlag(a.NamespaceFlag))
		} else {
			a.Say("%s was frozen already, %s", frozenName(a.NamespaceFlag), a.freezeWords(*st.Freeze))
		}
		return a.showFreeze(st)
	}
	return cmd
}

func (a *app) clusterUnfreeze() *cobra.Command {
	return &cobra.Command{
		Use:     "unfreeze",
		Short:   "Let firing go on, from now",
		Long:    "Let firing go on, from now: end the freeze of the cluster or, with --namespace, that of a namespace. What has waited starts.",
		Example: "  carillon cluster unfreeze\n  carillon cluster unfreeze --namespace billing",
		Args:    args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			st, err := c.Unfreeze(cmd.Context(), a.NamespaceFlag)
			if err != nil {
				return err
			}
			a.Say("unfroze %s", frozenName(a.NamespaceFlag))
			if z := st.Freeze; z != nil {
				a.Note("the whole cluster is frozen still, %s", a.freezeWords(*z))
			}
			return a.showFreeze(st)
		},
	}
}

// showFreeze is for programs; people have been told.
func (a *app) showFreeze(st client.FreezeStatus) error {
	if a.ForPeople() {
		return nil
	}
	return output.EmitOne(&a.Printer, st, cmp.Or(st.Namespace, "cluster"), nil)
}

func frozenName(ns string) string {
	if ns == "" {
		return "the whole cluster"
	}
	return "namespace " + ns
}

func namespaceFlag(ns string) string {
	if ns == "" {
		return ""
	}
	return " --namespace " + ns
}

func standing(tasks int64) string {
	if tasks == 1 {
		return "1 task stands still"
	}
	return fmt.Sprintf("%d tasks stand still", tasks)
}

// noteFrozen tells who looks at what comes that it does not while a freeze holds.
func (a *app) noteFrozen(ctx context.Context, c *client.Client, namespace string) {
	if !a.ForPeople() {
		return
	}
	if words := a.frozenWords(ctx, c, namespace); words != "" {
		a.Note("%s", words)
	}
}

// frozenWords say that a namespace is frozen, or the cluster; "" if neither is, as
// far as can be learned.
func (a *app) frozenWords(ctx context.Context, c *client.Client, namespace string) string {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	st, err := c.Freezing(ctx, namespace)
	if err != nil || st.Freeze == nil {
		return ""
	}
	what := "the cluster"
	if ns := st.Freeze.Namespace; ns != "" {
		what = "namespace " + ns
	}
	return fmt.Sprintf("%s is frozen, %s; ticks are skipped until carillon cluster unfreeze%s", what, a.freezeWords(*st.Freeze), namespaceFlag(st.Freeze.Namespace))
}

// freezeWords say since when something is frozen, by whom and why.
func (a *app) freezeWords(z task.Freeze) string {
	var words []string
	if !z.Since.IsZero() {
		words = append(words, "since "+a.PastTime(z.Since, output.ReaderZone))
	}
	if z.By != "" {
		words = append(words, "by "+output.OneLine(z.By))
	}
	return strings.Join(words, " ") + ": " + output.OneLine(z.Reason)
}
