package token

import (
	"cmp"
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
