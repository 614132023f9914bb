package token

import (
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
	if r.Until, err = f.ParseEnd("until", o.until); err != nil {
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

// NoteCreated tells a person about a new token, on the standard error.
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
		"  carillon config set NAME server="+c.Server()+" token_file=FILE && carillon config use NAME")

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
