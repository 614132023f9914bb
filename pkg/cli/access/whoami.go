package access

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/token"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
)

// WhoAmICommand returns "carillon whoami".
func WhoAmICommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show who you are and what you may do",
		Long: "Show who the server takes you for, with which token or certificate, and what you may do where. A token with a scope\n" +
			"may do less than its subject.",
		Example: "  carillon whoami\n  carillon whoami -o json | jq .namespaces",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			me, err := c.Access.WhoAmI(cmd.Context())
			if err != nil {
				return err
			}

			return output.EmitOne(&f.Printer, me, me.Subject, func(d *output.Details) { describeMe(f, d, me) })
		},
	}
}

func describeMe(f *factory.Factory, d *output.Details, me client.WhoAmI) {
	if me.Token != nil {
		token.DescribeToken(f, d, *me.Token)
	} else {
		d.Field("Subject", "%s", me.Subject)
	}
	if me.Host {
		d.Field("May do", "everything, as a trusted user of the node's host")
	}

	d.Field("Certificate", "%s", me.Certificate)
	d.Field("Address", "%s", me.Address)
	d.Field("Namespaces", "%s", readableText(me))

	if len(me.Cluster) > 0 {
		d.Section("Cluster", f.RenderIndented(view.RulesTable(me.Cluster)))
	}

	if len(me.Bindings) > 0 {
		g := &output.Table{}
		for _, b := range me.Bindings {
			end := ""
			if !b.Until.IsZero() {
				end = "ends " + view.ExpirySentence(f, b.Until)
			}
			g.AddRow(output.OneLine(b.Role), view.InWhere(b.Namespaces, b.Cluster), output.Labels(b.Labels), end)
		}
		d.Section("Roles of "+output.OneLine(me.Subject), f.RenderIndented(g))
	} else if !me.Host {
		d.Section("Roles", "  none: ask an administrator for carillon access grant ROLE "+output.OneLine(me.Subject)+" --in NAMESPACE\n")
	}
}

// readableText says which namespaces somebody may read.
func readableText(me client.WhoAmI) string {
	switch {
	case me.AllNamespaces:
		return "all"
	case len(me.Namespaces) == 0:
		return "none that you may read"
	}
	return strings.Join(me.Namespaces, ", ")
}
