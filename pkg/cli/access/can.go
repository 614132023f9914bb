package access

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/token"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

func canCommand(f *factory.Factory) *cobra.Command {
	var in, as string
	var labels []string
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "can VERB KIND",
		Short: "Check whether you or another subject may do something",
		Long: "Check whether you may do something: a verb on a kind of objects, in the namespace of --in or --namespace. With --as,\n" +
			"the check is about another subject; you need read on access for it.\n\n" +
			"The command prints yes or no, and exits with 0 or 1. With -q it prints nothing.",
		Example: `  carillon access can trigger tasks
  carillon access can update tasks --in billing --label env=prod
  carillon access can operate nodes --as user:ann
  if carillon access can create tasks -q; then carillon apply -f tasks/; fi`,
		Args: factory.Args(2, 2, "a verb or a kind of objects"), ValidArgsFunction: complete.VerbsAndKinds,
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)

	cmd.Flags().StringVar(&in, "in", "", "check in this `NAMESPACE` (default: that of --namespace)")
	cmd.Flags().StringSliceVar(&labels, "label", nil, "check for a task with this label, as `KEY=VALUE`; may be repeated")
	cmd.Flags().StringVar(&as, "as", "", "check for this `SUBJECT` instead of you")
	complete.Register(cmd, "in", complete.Namespaces(f))
	complete.Register(cmd, "as", complete.Subjects(f))
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "in", "as"); err != nil {
			return err
		}

		ask := client.Question{Verb: words[0], Kind: words[1], Namespace: in, Subject: as, Labels: strings.Join(labels, ",")}
		if err := checkQuestion(f, &ask, labels); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		d, err := c.Access.Can(cmd.Context(), ask)
		if err != nil {
			return err
		}

		if !f.ForPeople() || !f.Quiet {
			err = output.EmitOne(&f.Printer, d, "", func(out *output.Details) { out.Parts = append(out.Parts, decisionText(f, d)+"\n") })
		}
		if err == nil && !d.Allowed {
			err = failure.AlreadyReported([]int{failure.ExitFailure})
		}

		return err
	}

	return cmd
}

// checkQuestion checks verb and kind, and adds the namespace if the kind has one.
func checkQuestion(f *factory.Factory, ask *client.Question, labels []string) error {
	need, err := access.ParseNeed(ask.Verb, ask.Kind)
	if err != nil {
		fail := f.Explain(err)
		if near := nearWord(*ask); near != "" {
			fail.Hint = "did you mean: carillon access can " + near
		}
		return fail
	}

	if _, err := factory.ParseLabels("label", labels); err != nil {
		return err
	}
	if ask.Namespace == "" && !need.Kind.OfCluster() {
		ask.Namespace = f.Namespace()
	}

	return nil
}

// nearWord returns the verb and the kind that were probably meant; "" if that is not clear.
func nearWord(ask client.Question) string {
	verb := task.Nearest(ask.Verb, access.VerbNames())
	kind := task.Nearest(ask.Kind, access.KindNames())
	if verb == "" || kind == "" {
		return ""
	}
	if _, err := access.ParseNeed(verb, kind); err != nil {
		return ""
	}

	return verb + " " + kind
}

// decisionText is a decision for people.
func decisionText(f *factory.Factory, d client.Decision) string {
	text := f.Paint(output.Green, "yes")
	if !d.Allowed {
		text = f.Paint(output.Red, "no")
	}
	if d.Reason != "" {
		text += ": " + output.OneLine(d.Reason)
	}

	return text
}

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
