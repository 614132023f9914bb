// Package token implements "carillon token": create, list and delete API tokens.
//
// The secret of a new token is the only thing that its creation prints on the standard output, so that it can be
// redirected to a file. What people should know about it goes to the standard error.
package token

import (
	"cmp"
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
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon token".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Aliases: []string{"tokens"},
		Short:   "Manage API tokens",
		Long: "Manage API tokens. A token acts as a user or a service: it may do what its subject may do, or less if it has a\n" +
			"scope. Carillon stores only a hash of its secret, and shows the secret only when the token is created.\n\n" +
			"\"carillon help access\" explains subjects, roles and bindings.",
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "View:"}, &cobra.Group{ID: "change", Title: "Change:"})
	factory.AddGroup(cmd, "look", listCommand(f), getCommand(f))
	factory.AddGroup(cmd, "change", createCommand(f), deleteCommand(f))

	return cmd
}

// tokens are tokens as commands name them: by their ids.
var tokens = batch.Named[task.Token]{
	Kind: "token", Name: func(t task.Token) string { return t.ID },
	List: func(ctx context.Context, c *client.Client) ([]task.Token, error) { return c.Tokens.List(ctx, "") },
	Get: func(ctx context.Context, c *client.Client, id string) (task.Token, error) {
		return c.Tokens.Get(ctx, id)
	},
	Delete: func(ctx context.Context, c *client.Client, id string) error { return c.Tokens.Delete(ctx, id) },
}

func listCommand(f *factory.Factory) *cobra.Command {
	var subject string
	var sessions bool
	of := tokens
	of.List = func(ctx context.Context, c *client.Client) ([]task.Token, error) {
		if sessions {
			return c.Tokens.ListWithSessions(ctx, subject)
		}
		return c.Tokens.List(ctx, subject)
	}

	cmd := batch.BindList(f, &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tokens",
		Long: "List the tokens that you may see: your own, those whose scope lies in namespaces whose bindings you may read, or all\n" +
			"if you may read access. With --sessions, the list also has the sessions and login links of the tokens.",
		Example: "  carillon token list\n  carillon token list --subject service:ci -o wide\n  carillon token list --sessions",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return factory.RefuseEmpty(cmd, "subject") },
	}, of, func(list []task.Token, wide bool) *output.Table { return tokenTable(f, list, wide, sessions) })

	cmd.Flags().BoolVar(&sessions, "sessions", false, "also list sessions and login links that have not ended")
	cmd.Flags().StringVar(&subject, "subject", "", "list only tokens that act as this `SUBJECT`, such as user:ann or service:ci")
	complete.Register(cmd, "subject", complete.Subjects(f))

	return cmd
}

func tokenTable(f *factory.Factory, list []task.Token, wide, sessions bool) *output.Table {
	g := &output.Table{Headers: []string{"ID", "SUBJECT", "ROLE", "IN", "EXPIRES", "REASON"}, Empty: "no tokens that you may see"}
	if sessions {
		g.Headers = append(g.Headers, "KIND", "TOKEN")
	}
	if wide {
		g.Headers = append(g.Headers, "LABELS", "FROM", "CREATED", "BY")
	}

	for _, t := range list {
		role, where, labels := "all of its subject", f.NoValue(), ""
		if s := t.Scope; s != nil {
			role, where, labels = output.OneLine(s.Role), view.Where(s.Namespaces, len(s.Namespaces) == 0), output.Labels(s.Labels)
		}

		row := []string{t.ID, output.OneLine(t.Subject), role, where, view.ExpiryText(f, t.Until), output.OneLine(t.Reason)}
		if sessions {
			row = append(row, kindText(t), cmp.Or(t.Parent, f.NoValue()))
		}
		if wide {
			row = append(row, labels, output.OneLine(strings.Join(t.CIDRs, ",")), f.PastTime(t.CreatedAt, output.ReaderZone), view.ActorCell(f, t.CreatedBy))
		}
		g.AddRow(row...)
	}

	return g
}

func getCommand(f *factory.Factory) *cobra.Command {
	return batch.BindGet(f, &cobra.Command{
		Use:     "get ID",
		Short:   "Show a token without its secret",
		Example: "  carillon token get k3jx5n2mqa7bcdef",
		Args:    factory.Args(1, 1, "the token's id"), ValidArgsFunction: complete.At(complete.Tokens(f), nil),
	}, tokens, func(_ context.Context, _ *client.Client, d *output.Details, t task.Token) { DescribeToken(f, d, t) })
}

// DescribeToken adds the fields of a token.
func DescribeToken(f *factory.Factory, d *output.Details, t task.Token) {
	d.Field("Token", "%s", t.ID)
	if t.Kind != task.TokenKindToken {
		d.Field("Kind", "%s", kindText(t))
		d.Field("Created with", "%s", t.Parent)
		d.Field("Accepted by", "%s", t.Node)
	}
	d.Field("Subject", "%s", t.Subject)
	d.Field("Person", "%s", strings.TrimSpace(t.Name+" "+t.Mail))
	d.Field("Groups", "%s", strings.Join(t.Groups, ", "))
	d.Field("May do", "%s", scopeText(t))
	d.Field("Accepted from", "%s", strings.Join(t.CIDRs, ", "))
	d.Field("Expires", "%s", view.ExpirySentence(f, t.Until))
	d.Field("Reason", "%s", t.Reason)
	d.Field("Created", "%s", view.ChangedText(f, t.CreatedAt, t.CreatedBy))
}

// kindText is what kind of token it is.
func kindText(t task.Token) string {
	switch t.Kind {
	case task.TokenKindToken:
		return "token"
	case task.TokenKindLink:
		return "login link"
	}

	return output.OneLine(t.Kind)
}

// scopeText says what a token may do.
func scopeText(t task.Token) string {
	s := t.Scope
	if s == nil {
		return "all that " + t.Subject + " may do"
	}

	text := fmt.Sprintf("what both the role %s allows %s and %s may do", s.Role, view.InWhere(s.Namespaces, len(s.Namespaces) == 0), t.Subject)
	if len(s.Labels) > 0 {
		text += ", to tasks with " + output.Labels(s.Labels)
	}

	return text
}

func deleteCommand(f *factory.Factory) *cobra.Command {
	of := tokens
	of.Caution = func(ids []string) string {
		if id := usedToken(f); id != "" && slices.Contains(ids, id) {
			return fmt.Sprintf("delete %s, the token that this command uses?", id)
		}
		return ""
	}

	return batch.BindDelete(f, &cobra.Command{
		Use:     "delete ID...",
		Aliases: []string{"revoke"},
		Short:   "Delete tokens",
		Long: "Delete tokens. When the command returns, no change that a holder of the token has requested is made any more. The\n" +
			"sessions of the token end, too. Streams such as logs -f end within 15 seconds. Tasks continue: they belong to their\n" +
			"namespace.",
		Example: "  carillon token delete k3jx5n2mqa7bcdef\n" +
			"  carillon token list --subject user:ann -o name | xargs carillon token delete",
		ValidArgsFunction: complete.Tokens(f),
	}, "delete", "deleted", of)
}

// usedToken returns the id of the token that this command uses; "" if it uses none.
func usedToken(f *factory.Factory) string {
	secret, err := f.Token()
	if err != nil {
		return ""
	}

	parts := strings.Split(secret, "_")
	if len(parts) != 3 {
		return ""
	}

	return parts[1]
}

// createFlags contains the flags of the command.
type createFlags struct {
	subject, role, until, reason string
	namespaces, labels, cidrs    []string
}

func createCommand(f *factory.Factory) *cobra.Command {
	var o createFlags
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "create",
		Short: "Create a token and print its secret",
		Long: "Create a token and print its secret on standard output, once. Redirect it to a file that only you can read.\n\n" +
			"The token acts as you, or as the subject of --for. Without --role, it may do all that its subject may do. With\n" +
			"--role, it may do only what that role also allows: in the whole cluster, or in the namespaces of --in, and with\n" +
			"--label only to tasks with these labels.\n\n" +
			"An end is required unless the role is viewer, and is at most 90 days ahead for the token of a user. You can create\n" +
			"a token for another subject only if you may grant access, and only for rights that you have yourself.",
		Example: `  (umask 077; carillon token create --until 30d > ~/.config/carillon/token)
  carillon token create --role viewer --in billing --reason dashboard > dashboard.token
  carillon token create --for service:ci --role editor --in billing --until 90d --cidr 10.0.0.0/8 > ci.token
  carillon token create --role operator --in 'team-*' --label env=dev --until 8h -o json`,
		Args: factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := factory.RefuseEmpty(cmd, "for", "role", "until", "reason"); err != nil {
				return err
			}
			return createToken(cmd.Context(), f, o)
		},
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML) // -o name would lose the secret

	flags := cmd.Flags()
	flags.StringVar(&o.subject, "for", "", "act as this `SUBJECT`: user:NAME or service:NAME (default: you)")
	flags.StringVar(&o.role, "role", "", "limit the token to what this `ROLE` allows")
	flags.StringSliceVar(&o.namespaces, "in", nil, "limit the token to these `NAMESPACES`: names, or prefixes that end in *")
	flags.StringSliceVar(&o.labels, "label", nil, "limit the token to tasks with this label, as `KEY=VALUE`; may be repeated")
	flags.StringVar(&o.until, "until", "", "expire at this `TIME`, or after a duration such as 8h or 30d")
	flags.StringSliceVar(&o.cidrs, "cidr", nil, "accept the token only from these `NETWORKS`, such as 10.0.0.0/8")
	flags.StringVar(&o.reason, "reason", "", "`TEXT` that says what the token is for")
	complete.Register(cmd, "for", complete.Subjects(f))
	complete.Register(cmd, "role", complete.Roles(f))
	complete.Register(cmd, "in", complete.Namespaces(f))

	return cmd
}

// createToken creates a token and prints its secret.
func createToken(ctx context.Context, f *factory.Factory, o createFlags) error {
	r, err := tokenRequest(f, o)
	if err != nil {
		return err
	}

	c, err := f.Connect()
	if err != nil {
		return err
	}

	t, err := factory.RetryBusy(ctx, func() (client.NewToken, error) { return c.Tokens.Create(ctx, r) })
	if err != nil {
		return explainCreate(f, err)
	}

	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, t, t.ID, nil)
	}

	NoteCreated(ctx, f, c, t)

	return f.Print(t.Secret + "\n")
}

// tokenRequest converts the flags to a request.
func tokenRequest(f *factory.Factory, o createFlags) (r client.TokenRequest, err error) {
	r = client.TokenRequest{Subject: o.subject, CIDRs: o.cidrs, Reason: o.reason}
	if r.Until, err = f.ParseEnd("until", o.until, f.Zone(output.ReaderZone)); err != nil {
		return r, err
	}

	// The namespace of --namespace would be ignored otherwise, and the token would reach further than was meant.
	namespaces := o.namespaces
	if len(namespaces) == 0 && f.NamespaceFlag != "" {
		namespaces = []string{f.NamespaceFlag}
	}

	labels, err := factory.ParseLabels("label", o.labels)
	if err != nil {
		return r, err
	}

	switch {
	case o.role != "":
		r.Scope = &task.TokenScope{Role: o.role, Namespaces: namespaces, Labels: labels}
	case len(namespaces) > 0 || len(labels) > 0:
		return r, failure.Usage("--in and --label limit a role: --role is missing").WithHint("for example --role editor; carillon help access lists the built-in roles")
	}

	return r, nil
}

// explainCreate adds a hint to the error of a creation.
func explainCreate(f *factory.Factory, err error) error {
	fail := f.Explain(err)
	var remote *client.Error

	switch {
	case errors.As(err, &remote) && remote.ID != "" && errors.Is(err, task.ErrUnknown):
		fail.Hint = "its secret is lost: delete it with carillon token delete " + remote.ID + ", and create another"
	case fail.Field == "until" && fail.Hint == "":
		fail.Hint = "for example --until 30d"
	case strings.HasPrefix(fail.Field, "scope.role") && fail.Hint == "":
		fail.Hint = "carillon role list shows the roles"
	}

	return fail
}

// NoteCreated describes a new token to its creator, on the standard error.
func NoteCreated(ctx context.Context, f *factory.Factory, c *client.Client, t client.NewToken) {
	f.Note("created token %s of %s", t.ID, output.OneLine(t.Subject))
	f.Note("  may do:   %s", output.OneLine(scopeText(t.Token)))
	if len(t.CIDRs) > 0 {
		f.Note("  from:     %s", output.OneLine(strings.Join(t.CIDRs, ", ")))
	}
	f.Note("  expires:  %s", view.ExpirySentence(f, t.Until))

	f.Note("%s", "its secret is shown only now. Save it in FILE, which only you can read, and use it with one of:\n"+
		"  carillon --token-file FILE task list\n"+
		"  export CARILLON_TOKEN_FILE=FILE\n"+
		"  carillon config set NAME server="+strings.Join(c.Servers(), ",")+" token_file=FILE && carillon config use NAME")

	if !mayDoSomething(ctx, f, c, t.Subject) {
		f.Note("note: no binding that you may see gives %s any rights; give it some with: carillon access grant ROLE %s --in NAMESPACE", output.OneLine(t.Subject), output.OneLine(t.Subject))
	}
}

// mayDoSomething reports whether a subject has a binding, or that is not known.
func mayDoSomething(ctx context.Context, f *factory.Factory, c *client.Client, subject string) bool {
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	list, err := c.Bindings.List(ctx, subject)

	return err != nil || len(list) > 0
}
