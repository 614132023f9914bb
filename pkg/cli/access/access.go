// Package access implements "carillon access" and "carillon whoami": who may do what, and changes of that.
package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
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
			row = append(row, output.Labels(b.Labels), output.OneLine(b.Reason), f.PastTime(b.UpdatedAt, output.ReaderZone), view.ActorCell(f, b.UpdatedBy))
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
				g := &output.Table{Headers: []string{"SUBJECT", "STATE", "TOKENS", "BINDINGS"}, Key: "SUBJECT", Empty: "no subjects"}
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

// longHelp explains access control: "carillon help access". Its lists are made from what the server enforces.
func longHelp() string {
	var b strings.Builder

	b.WriteString(`Manage who may do what. A binding gives a role to subjects, in namespaces or in the
whole cluster. Rights only add up, and nothing denies: without a binding, a subject
may do nothing. Nobody can give more than they have.

A subject is who makes a request:
  user:NAME      a person, by a token
  service:NAME   a program, by a token
  cert:NAME      the holder of a client certificate: its URI SAN, else its common name
  unix:uid=N     a trusted user of a node's host, by its unix socket; may do everything

A token acts as a user or a service, and may have a scope that narrows what it may do.
A namespace limits what its tasks may be, regardless of who writes them: carillon namespace get.

A role is a list of rules, VERBS:KINDS. These verbs apply to these kinds of objects:

`)

	width := 0
	for _, name := range access.KindNames() {
		width = max(width, len(name))
	}
	for i, name := range access.KindNames() {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, name, strings.Join(access.Kind(i).VerbNames(), ", "))
	}

	var ofCluster []string
	for i, name := range access.KindNames() {
		if access.Kind(i).OfCluster() {
			ofCluster = append(ofCluster, name)
		}
	}
	last := len(ofCluster) - 1

	fmt.Fprintf(&b, `
%s and %s belong to the cluster: only
bindings with --cluster give rights to them. Labels limit rights to tasks and runs.
Roles, users and tokens are objects of the kind access; bindings in namespaces, and
tokens of services for namespaces, are objects of the kind bindings.

These roles are built in; carillon role create makes others:

`, upperFirst(strings.Join(ofCluster[:last], ", ")), ofCluster[last])

	width = 0
	for _, r := range access.BuiltInRoles() {
		width = max(width, len(r.Name))
	}
	for _, r := range access.BuiltInRoles() {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, r.Name, r.Description)
	}

	b.WriteString(`
carillon role get NAME shows the rules of a role, carillon whoami what you may do, and
carillon audit log who changed what.`)

	return b.String()
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func disableCommand(f *factory.Factory) *cobra.Command {
	return subjectCommand(f, &cobra.Command{
		Use:   "disable SUBJECT",
		Short: "Take all rights from a subject, for now",
		Long: "Disable a subject. It may do nothing until carillon access enable, and its tokens are not accepted. When the command\n" +
			"returns, no change that it has requested is made any more. Streams such as logs -f end within 15 seconds.\n\n" +
			"Its tasks continue, because they belong to their namespaces. So do the tokens and bindings that it has made for\n" +
			"others: the command lists them.",
		Example: "  carillon access disable user:ann\n  carillon access disable cert:old-host",
	}, (*client.SubjectsService).Disable, func(change client.SubjectChange) {
		f.Say("disabled %s", output.OneLine(change.Subject))
		if len(change.Tokens) > 0 {
			f.Say("not accepted any more: %s", ofTokens(change.Tokens))
		}
		if len(change.MadeTokens)+len(change.MadeBindings) == 0 {
			return
		}

		f.Note("note: it has made these for others, and they stay in force:")
		for _, t := range change.MadeTokens {
			f.Note("  token %s of %s: carillon token delete %s", t.ID, output.OneLine(t.Subject), t.ID)
		}
		for _, b := range change.MadeBindings {
			f.Note("  %s for %s %s: carillon access revoke %s", output.OneLine(b.Role), output.OneLine(strings.Join(b.Subjects, ", ")), view.InWhere(b.Namespaces, b.Cluster), b.Name)
		}
	})
}

// ofTokens names tokens in a sentence.
func ofTokens(list []task.Token) string {
	ids := make([]string, len(list))
	for i, t := range list {
		ids[i] = t.ID
	}
	return output.Plural(int64(len(list)), "token") + " (" + strings.Join(ids, ", ") + ")"
}

func enableCommand(f *factory.Factory) *cobra.Command {
	return subjectCommand(f, &cobra.Command{
		Use:     "enable SUBJECT",
		Short:   "Give a disabled subject its rights back",
		Long:    "Enable a subject that was disabled. Its bindings and tokens are in force again. You must have all rights that it gets.",
		Example: "  carillon access enable user:ann",
	}, (*client.SubjectsService).Enable, func(change client.SubjectChange) {
		f.Say("enabled %s: %s, %s", output.OneLine(change.Subject), output.Plural(int64(len(change.Bindings)), "binding"), output.Plural(int64(len(change.Tokens)), "token"))
	})
}

// subjectCommand makes cmd do something to a subject, and explains the consequences.
func subjectCommand(f *factory.Factory, cmd *cobra.Command, do func(*client.SubjectsService, context.Context, string) (client.SubjectChange, error), tell func(client.SubjectChange)) *cobra.Command {
	cmd.Args = factory.Args(1, 1, "the subject, such as user:ann,")
	cmd.ValidArgsFunction = complete.At(complete.Subjects(f), nil)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, err := f.Connect()
		if err != nil {
			return err
		}

		change, err := factory.RetryBusy(cmd.Context(), func() (client.SubjectChange, error) { return do(c.Subjects, cmd.Context(), words[0]) })
		if err != nil {
			return err
		}

		if f.ForPeople() {
			tell(change)
			return nil
		}

		return output.EmitOne(&f.Printer, change, change.Subject, nil)
	}

	return cmd
}

func resetCommand(f *factory.Factory) *cobra.Command {
	return factory.LimitFormats(&cobra.Command{
		Use:   "reset",
		Short: "Create a new administrator, as root on a node's host",
		Long: "Create a new token of service:bootstrap, enable that subject, and make it an administrator of the cluster. Use it when\n" +
			"no administrator has a working token.\n\n" +
			"Only root on the host of a node that serves the API may do this, over the unix socket of the node and without a\n" +
			"token. The reset is logged and audited. The command prints the secret of the token on standard output, once.",
		Example: "  (umask 077; sudo carillon access reset --yes > admin.token)",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			if !f.Yes {
				ok, err := f.Ask(cmd.Context(), "create a new administrator of the cluster?", 1, false)
				if fail := new(failure.Error); errors.As(err, &fail) && fail.Exit == failure.ExitUsage {
					return fail.WithHint("add --yes to confirm") // this command does not have --dry-run, which the usual hint names
				}
				if !ok {
					return err
				}
			}

			t, err := factory.RetryBusy(cmd.Context(), func() (client.NewToken, error) { return c.Access.Reset(cmd.Context()) })
			if err != nil {
				return err
			}

			if !f.ForPeople() {
				return output.EmitOne(&f.Printer, t, t.ID, nil)
			}

			token.NoteCreated(cmd.Context(), f, c, t)
			f.Note("next: give yourself rights with carillon access grant, create a token of your own, and delete this one")

			return f.Print(t.Secret + "\n")
		},
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML) // -o name would lose the secret
}
