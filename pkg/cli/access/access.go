package access

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon access".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "access",
		Short: "Manage who may do what",
		Long:  longHelp(),
		Example: `  carillon access grant editor user:ann --in billing
  carillon access list --in billing
  carillon access can trigger tasks --in billing --as user:ann
  carillon access disable user:ann`,
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "View:"}, &cobra.Group{ID: "change", Title: "Change:"})
	factory.AddGroup(cmd, "look", listCommand(f), getCommand(f), subjectsCommand(f), canCommand(f))
	factory.AddGroup(cmd, "change", grantCommand(f), revokeCommand(f), disableCommand(f), enableCommand(f), resetCommand(f))

	return cmd
}

// bindings are bindings as commands name them.
var bindings = batch.Named[task.Binding]{
	Kind: "binding", Name: func(b task.Binding) string { return b.Name },
	List: func(ctx context.Context, c *client.Client) ([]task.Binding, error) { return c.Bindings.List(ctx, "") },
	Get: func(ctx context.Context, c *client.Client, name string) (task.Binding, error) {
		return c.Bindings.Get(ctx, name)
	},
	Delete: func(ctx context.Context, c *client.Client, name string) error { return c.Bindings.Delete(ctx, name, 0) },
}

// namespacesOf returns the namespaces of --in, or else that of --namespace: ignored, it would mean more than was typed.
// A namespace of the environment or of the context means nothing here.
func namespacesOf(f *factory.Factory, in []string) []string {
	if len(in) == 0 && f.NamespaceFlag != "" {
		return []string{f.NamespaceFlag}
	}
	return in
}

func listCommand(f *factory.Factory) *cobra.Command {
	var subject, in string
	of := bindings
	of.List = func(ctx context.Context, c *client.Client) ([]task.Binding, error) {
		list, err := c.Bindings.List(ctx, subject)

		var wanted []string
		if in != "" {
			wanted = []string{in}
		}
		for _, ns := range namespacesOf(f, wanted) {
			list = slices.DeleteFunc(list, func(b task.Binding) bool { return !reaches(b, ns) })
		}

		return list, err
	}

	cmd := batch.BindList(f, &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List bindings: who has which role, and where",
		Long:    "List the bindings that you may see: those of namespaces whose bindings you may read, and all if you may read access.",
		Example: "  carillon access list\n  carillon access list --subject user:ann\n  carillon access list --in billing -o wide",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return factory.RefuseEmpty(cmd, "subject", "in") },
	}, of, func(list []task.Binding, wide bool) *output.Table { return bindingTable(f, list, wide) })

	cmd.Flags().StringVar(&subject, "subject", "", "list only bindings of this `SUBJECT`, such as user:ann or service:ci")
	cmd.Flags().StringVar(&in, "in", "", "list only bindings that apply in this `NAMESPACE`, those of the cluster included")
	complete.Register(cmd, "subject", complete.Subjects(f))
	complete.Register(cmd, "in", complete.Namespaces(f))

	return cmd
}

// reaches reports whether a binding applies in a namespace.
func reaches(b task.Binding, namespace string) bool {
	return b.Cluster || slices.ContainsFunc(b.Namespaces, func(ns string) bool {
		prefix, isPrefix := strings.CutSuffix(ns, "*")
		return ns == namespace || isPrefix && strings.HasPrefix(namespace, prefix)
	})
}

func bindingTable(f *factory.Factory, list []task.Binding, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "ROLE", "SUBJECTS", "IN", "ENDS"}, Empty: "no bindings that you may see"}
	if wide {
		g.Headers = append(g.Headers, "LABELS", "REASON", "UPDATED", "BY")
	}

	for _, b := range list {
		row := []string{b.Name, output.OneLine(b.Role), output.OneLine(strings.Join(b.Subjects, ",")), view.Where(b.Namespaces, b.Cluster), view.ExpiryText(f, b.Until)}
		if wide {
			row = append(row, output.Labels(b.Labels), output.OneLine(b.Reason), f.PastTime(b.UpdatedAt, output.ReaderZone), view.ActorCell(f, task.ActorName(b.UpdatedBy)))
		}
		g.AddRow(row...)
	}

	return g
}

func getCommand(f *factory.Factory) *cobra.Command {
	return batch.BindGet(f, &cobra.Command{
		Use:     "get NAME",
		Short:   "Show a binding",
		Example: "  carillon access get billing.editor-user-ann\n  carillon access get billing.editor-user-ann -o yaml",
		Args:    factory.Args(1, 1, "the binding's name"), ValidArgsFunction: complete.At(complete.Bindings(f), nil),
	}, bindings, func(_ context.Context, _ *client.Client, d *output.Details, b task.Binding) { describeBinding(f, d, b) })
}

func describeBinding(f *factory.Factory, d *output.Details, b task.Binding) {
	d.Field("Name", "%s", b.Name)
	d.Field("Role", "%s", b.Role)
	d.Field("Subjects", "%s", strings.Join(b.Subjects, ", "))
	d.Field("Applies", "%s", view.InWhere(b.Namespaces, b.Cluster))
	d.Field("Labels", "%s", output.Labels(b.Labels))
	d.Field("Ends", "%s", view.ExpirySentence(f, b.Until))
	d.Field("Reason", "%s", b.Reason)
	d.Field("Created", "%s", view.ChangedText(f, b.CreatedAt, b.CreatedBy))
	d.Field("Updated", "%s", view.ChangedText(f, b.UpdatedAt, b.UpdatedBy))
	d.Field("Revision", "%s", view.RevisionText(b.Revision))
}

func revokeCommand(f *factory.Factory) *cobra.Command {
	return batch.BindDelete(f, &cobra.Command{
		Use:     "revoke NAME...",
		Aliases: []string{"delete"},
		Short:   "Delete bindings",
		Long: "Delete bindings. When the command returns, no change is made any more that only these bindings allow. Streams such\n" +
			"as logs -f end within 15 seconds. Tasks continue: they belong to their namespace.\n\n" +
			"To stop a subject at once, whatever its bindings and tokens, use carillon access disable.",
		Example:           "  carillon access revoke billing.editor-user-ann\n  carillon access revoke '*-user-ann*' --dry-run",
		ValidArgsFunction: complete.Bindings(f),
	}, "revoke", "revoked", bindings)
}

func subjectsCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "subjects",
		Short:   "List subjects that have bindings or tokens, or are disabled",
		Example: "  carillon access subjects\n  carillon access subjects -o json | jq '.[] | select(.disabled).subject'",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			list, err := c.Subjects.List(cmd.Context())
			if err != nil {
				return err
			}

			return output.EmitList(&f.Printer, list, func(s client.Subject) string { return s.Subject }, func(bool) *output.Table {
				g := &output.Table{Headers: []string{"SUBJECT", "STATE", "TOKENS", "BINDINGS"}, Empty: "no subjects"}
				for _, s := range list {
					state := f.Paint(output.Green, "enabled")
					if s.Disabled {
						state = f.Paint(output.Red, "disabled")
					}
					g.AddRow(output.OneLine(s.Subject), state, fmt.Sprint(s.Tokens), output.OneLine(strings.Join(s.Bindings, ",")))
				}
				return g
			})
		},
	}
}
