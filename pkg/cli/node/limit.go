package node

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// limitFlags are the flags of node limit.
type limitFlags struct {
	labels                  []string
	noLabels, clear, dryRun bool
}

// limitCommand returns "carillon node limit".
func limitCommand(f *factory.Factory) *cobra.Command {
	var o limitFlags
	cmd := &cobra.Command{
		Use:   "limit [NAME] [--label KEY=VALUE... | --no-labels | --clear]",
		Short: "Limit which labels nodes may have",
		Long: "Limit which labels a node may have, so that a host cannot give itself a label and receive the runs of tasks and\n" +
			"namespaces that select nodes by it. NAME is that of a node, or a prefix of names with * at its end; the longest\n" +
			"match applies to a node. Other labels that the node announces do not count, except node, os and arch.\n\n" +
			"With only a NAME, the command shows the limit; without one, it lists all limits.",
		Example: `  carillon node limit
  carillon node limit '*' --label 'zone=*' --label 'host=*'
  carillon node limit vault-1 --label 'zone=*' --label 'host=*' --label team=vault --dry-run
  carillon node limit vault-1 --clear`,
		Args: factory.Args(0, 1, ""), ValidArgsFunction: complete.At(complete.Nodes(f), nil),
		RunE: func(cmd *cobra.Command, words []string) error {
			changes := 0
			for _, given := range []bool{len(o.labels) > 0, o.noLabels, o.clear} {
				if given {
					changes++
				}
			}

			switch {
			case changes > 1:
				return failure.Usage("--label, --no-labels and --clear exclude each other")
			case changes > 0 && len(words) == 0:
				return failure.Usage("node limit: name the node, or a prefix such as 'web-*'")
			case changes == 0 && o.dryRun:
				return failure.Usage("node limit: nothing to change; use --label, --no-labels or --clear")
			}

			c, err := f.Connect()
			if err != nil {
				return err
			}

			switch {
			case len(words) == 0:
				return listLimits(cmd.Context(), f, c)
			case changes == 0:
				return showLimit(cmd.Context(), f, c, words[0])
			case o.clear:
				return clearLimit(cmd.Context(), f, c, words[0], o.dryRun)
			}

			return setLimit(cmd.Context(), f, c, task.NodeLimit{Name: words[0], Labels: append([]string{}, o.labels...)}, o.dryRun)
		},
	}

	cmd.Flags().StringSliceVar(&o.labels, "label", nil, "allow this label, as `KEY=VALUE`, KEY=* for any value, or * for any label; may be repeated, and replaces all labels of the limit")
	cmd.Flags().BoolVar(&o.noLabels, "no-labels", false, "allow no labels but node, os and arch")
	cmd.Flags().BoolVar(&o.clear, "clear", false, "delete the limit")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "validate the change on the server and print it, without making it")

	return cmd
}

func listLimits(ctx context.Context, f *factory.Factory, c *client.Client) error {
	list, err := c.NodeLimits.List(ctx)
	if err != nil {
		return err
	}

	return output.EmitList(&f.Printer, list, func(l task.NodeLimit) string { return l.Name }, func(wide bool) *output.Table {
		g := &output.Table{Headers: []string{"NAME", "LABELS"}, Empty: "no limits: nodes may have any labels"}
		if wide {
			g.Headers = append(g.Headers, "UPDATED", "BY")
		}

		for _, l := range list {
			row := []string{l.Name, allowedLabels(l)}
			if wide {
				row = append(row, f.PastTime(l.UpdatedAt, output.ReaderZone), view.ActorCell(f, l.UpdatedBy))
			}
			g.AddRow(row...)
		}

		return g
	})
}

// allowedLabels names the labels that a limit allows.
func allowedLabels(l task.NodeLimit) string {
	return cmp.Or(output.OneLine(strings.Join(l.Labels, ",")), "none")
}

func showLimit(ctx context.Context, f *factory.Factory, c *client.Client, name string) error {
	l, err := c.NodeLimits.Get(ctx, name)
	if err != nil {
		return explainMissingLimit(f, name, err)
	}

	return output.EmitOne(&f.Printer, l, l.Name, func(d *output.Details) {
		d.Field("Name", "%s", l.Name)
		d.Field("Labels", "%s", allowedLabels(l))
		d.Field("Created", "%s", view.ChangedText(f, l.CreatedAt, l.CreatedBy))
		d.Field("Updated", "%s", view.ChangedText(f, l.UpdatedAt, l.UpdatedBy))
		d.Field("Revision", "%s", view.RevisionText(l.Revision))
	})
}

// explainMissingLimit says how to see the limits that exist.
func explainMissingLimit(f *factory.Factory, name string, err error) error {
	if !errors.Is(err, task.ErrNotFound) {
		return err
	}

	fail := f.Explain(err)
	fail.Hint = "no limit has exactly the name " + name + "; carillon node limit lists all"

	return fail
}

func setLimit(ctx context.Context, f *factory.Factory, c *client.Client, l task.NodeLimit, dryRun bool) error {
	put := c.NodeLimits.Put
	if dryRun {
		put = c.NodeLimits.DryRunPut
	}

	change, err := factory.RetryBusy(ctx, func() (client.NodeLimitChange, error) { return put(ctx, l, client.Writing{}) })
	if err != nil {
		return err
	}

	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, change, l.Name, nil)
	}

	if dryRun {
		if err := view.PrintDryRun(f, "limit of "+l.Name, change.DryRun); err != nil {
			return err
		}
	} else {
		f.Say("%s may have these labels: %s", l.Name, allowedLabels(l))
	}

	for _, n := range change.Nodes {
		f.Note("note: labels of %s that do not count: %s", output.OneLine(n.Name), output.Labels(n.IgnoredLabels))
	}

	return nil
}

func clearLimit(ctx context.Context, f *factory.Factory, c *client.Client, name string, dryRun bool) error {
	l, err := c.NodeLimits.Get(ctx, name)
	if err != nil {
		return explainMissingLimit(f, name, err)
	}

	if !dryRun {
		err = factory.RetryBusyError(ctx, func() error { return c.NodeLimits.Delete(ctx, name, l.Revision) })
		if err != nil {
			return err
		}
	}

	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, l, l.Name, nil)
	}

	if dryRun {
		return f.Print(f.Plain("would delete the limit of " + l.Name + "\n"))
	}
	f.Say("deleted the limit of %s", l.Name)

	return nil
}
