package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "secret",
		Aliases: []string{"secrets"},
		Short:   "Values that only a task's own process sees",
		Long: "Values for tasks' env_from. They are encrypted by a node, under a key that only nodes hold, before they are stored,\n" +
			"and are never told again: not by this program, the API, logs or history. Give them on the standard input or in\n" +
			"files, since others on the host can read a command line.",
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "change", Title: "Change:"})
	add(cmd, "look", a.secretList(), a.secretGet())
	add(cmd, "change", a.secretSet(), a.secretDelete(), a.secretRotate(), a.secretKey())
	return cmd
}

func (a *app) secretList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List secrets: their names and those of their values",
		Example: "  carillon secret list\n  carillon secret list -A -o wide",
		Args:    args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			list, err := c.Secrets(cmd.Context(), a.scope())
			if err != nil {
				return err
			}
			return output.EmitList(&a.Printer, list, a.secretName, func(wide bool) *output.Table { return a.secretGrid(list, wide) })
		},
	}
}

// secretName is how a secret is named on this command line.
func (a *app) secretName(s task.Secret) string {
	if a.allNamespaces || s.Namespace != a.namespace() {
		return s.Namespace + "/" + s.Name
	}
	return s.Name
}

func (a *app) secretGrid(list []task.Secret, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "KEYS", "GENERATION", "UPDATED", "BY"}, Empty: "no secrets" + a.inScope()}
	if wide {
		g.Headers = append(g.Headers, "KEY ID", "CHANGE")
	}
	for _, s := range list {
		row := []string{a.secretName(s), output.OneLine(strings.Join(s.Keys, ",")), fmt.Sprint(s.Generation), a.PastTime(s.UpdatedAt, output.ReaderZone), cmp.Or(output.OneLine(task.ActorName(s.UpdatedBy)), a.NoValue())}
		if wide {
			row = append(row, output.OneLine(s.KeyID), s.Change)
		}
		g.AddRow(row...)
	}
	return g
}

func (a *app) secretGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get NAME",
		Short:   "Tell all of a secret but its values",
		Example: "  carillon secret get db",
		Args:    args(1, 1, "the secret's name"), ValidArgsFunction: a.completeSecret,
	}
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, r, err := a.connectFor1(words[0])
		if err != nil {
			return err
		}
		s, err := c.Secret(cmd.Context(), r.namespace, r.name)
		if err != nil {
			return err
		}
		return output.EmitOne(&a.Printer, s, a.secretName(s), func(d *output.Details) {
			d.Field("Name", "%s", a.secretName(s))
			d.Field("Keys", "%s", strings.Join(s.Keys, ", "))
			d.Field("Encrypted", "under key %s", s.KeyID)
			d.Field("Not for", "%s", strings.Join(lacking(cmd.Context(), c, s.KeyID), ", "))
			d.Field("Generation", "%d, %s %s by %s", s.Generation, s.Change, a.PastTime(s.UpdatedAt, output.ReaderZone), cmp.Or(s.UpdatedBy, a.NoValue()))
			d.Field("Created", "%s", a.PastTime(s.CreatedAt, output.ReaderZone))
		})
	}
	return cmd
}

// connectFor1 is connect, for a command about one thing with a name.
func (a *app) connectFor1(word string) (*client.Client, ref, error) {
	r, err := a.ref(word)
	if err != nil {
		return nil, r, err
	}
	c, err := a.connect()
	return c, r, err
}

func (a *app) secretDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete secrets",
		Long: "Delete secrets. Attempts of tasks that name one fail before they start, from then on. What is remembered of it is who\n" +
			"deleted it, and when.",
		Example: "  carillon secret delete db\n  carillon secret delete db billing/stripe",
		Args:    args(1, -1, "the secret's name"), ValidArgsFunction: a.completeSecrets,
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.eachSecret(cmd.Context(), words, func(ctx context.Context, c *client.Client, r ref) error {
				if err := c.DeleteSecret(ctx, r.namespace, r.name); err != nil {
					return err
				}
				return a.done("deleted secret %s", a.show(r))
			})
		},
	}
}

// done tells a person what was done, and a program the name of it.
func (a *app) done(format, name string) error {
	if a.Format == output.FormatName {
		return a.Print(name + "\n")
	}
	if a.ForPeople() {
		a.Say(format, name)
		return nil
	}
	return output.EmitOne(&a.Printer, map[string]string{"name": name}, name, nil)
}

func (a *app) eachSecret(ctx context.Context, words []string, do func(context.Context, *client.Client, ref) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	return together(ctx, a, words, func(word string) error {
		r, err := a.ref(word)
		if err != nil {
			return err
		}
		return do(ctx, c, r)
	})
}

func (a *app) secretRotate() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "rotate NAME... | --all",
		Short: "Encrypt secrets anew, under the first key of a node",
		Long: "Encrypt secrets anew, under the first key of the node that answers; those that are under it already stay as they are.\n" +
			"When all are, the former key can go: carillon secret key remove.",
		Example: "  carillon secret rotate db\n  carillon secret rotate --all -A",
		Args:    args(0, -1, ""), ValidArgsFunction: a.completeSecrets,
	}
	cmd.Flags().BoolVar(&all, "all", false, "all secrets of the namespace, or with -A of all")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		if all == (len(words) > 0) {
			return failure.Usage("secret rotate: either the names of secrets or --all").WithHint("%s", cmd.UseLine())
		}
		if all {
			c, err := a.connect()
			if err != nil {
				return err
			}
			list, err := c.Secrets(ctx, a.scope())
			if err != nil {
				return err
			}
			for _, s := range list {
				words = append(words, s.Namespace+"/"+s.Name)
			}
		}
		var rotated []task.Secret
		err := a.eachSecret(ctx, words, func(ctx context.Context, c *client.Client, r ref) error {
			before, err := c.Secret(ctx, r.namespace, r.name)
			if err != nil {
				return err
			}
			s, err := c.RotateSecret(ctx, r.namespace, r.name)
			if err != nil {
				return err
			}
			rotated = append(rotated, s)
			if s.Generation == before.Generation {
				a.Say("secret %s is under key %s already", a.show(r), s.KeyID)
			} else {
				a.Say("rotated secret %s from key %s to %s", a.show(r), before.KeyID, s.KeyID)
			}
			return nil
		})
		if len(rotated) > 0 {
			if c, err := a.connect(); err == nil {
				a.noteLacking(ctx, c, rotated...)
			}
		}
		if a.ForPeople() || err != nil {
			return err
		}
		return output.EmitList(&a.Printer, rotated, a.secretName, nil)
	}
	return cmd
}

// lacking are the nodes that hold keys for secrets, and not the one with this id:
// attempts on them cannot have what is encrypted under it. None if that is not known.
func lacking(ctx context.Context, c *client.Client, id string) (names []string) {
	nodes, _ := c.Nodes(ctx)
	for _, n := range nodes {
		if n.Has(task.RoleExecutor) && len(n.SecretKeys) > 0 && !slices.Contains(n.SecretKeys, id) {
			names = append(names, n.Name)
		}
	}
	return names
}

// noteLacking tells of nodes for which secrets are not, once for each of their keys.
func (a *app) noteLacking(ctx context.Context, c *client.Client, secrets ...task.Secret) {
	told := map[string]bool{}
	for _, s := range secrets {
		if told[s.KeyID] {
			continue
		}
		told[s.KeyID] = true
		if names := lacking(ctx, c, s.KeyID); len(names) > 0 {
			a.Note("note: attempts on %s cannot have it: key %s is not there yet", output.OneLine(strings.Join(names, ", ")), s.KeyID)
		}
	}
}

// completeSecrets offers the names of secrets that are not on the line yet.
func (a *app) completeSecrets(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return begun(a.live(cmd, "secrets", func(ctx context.Context, c *client.Client) (offers []offer, err error) {
		list, err := c.Secrets(ctx, a.scope())
		for _, s := range list {
			offers = append(offers, offer{a.secretName(s), output.OneLine(strings.Join(s.Keys, ", "))})
		}
		return offers, err
	}), done, typed)
}

// completeSecret is completeSecrets for a command that takes one.
func (a *app) completeSecret(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(done) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeSecrets(cmd, done, typed)
}
