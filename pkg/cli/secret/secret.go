// Package secret implements "carillon secret": secrets, and the keys that encrypt them. Values are read from
// files, standard input or a prompt, and are never printed.
package secret

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
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon secret".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "secret",
		Aliases: []string{"secrets"},
		Short:   "Manage encrypted secrets for tasks",
		Long: "Manage secrets, which tasks use in env_from, stdin and HTTP requests. A node encrypts the values before it stores them,\n" +
			"with a key that only nodes have. Carillon never shows them again: not in this program, the API, logs or history. Pass\n" +
			"values on standard input or in files, because other users of the host can read a command line.",
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "View:"}, &cobra.Group{ID: "change", Title: "Change:"})
	factory.AddGroup(cmd, "look", listCommand(f), getCommand(f))
	factory.AddGroup(cmd, "change", setCommand(f), deleteCommand(f), rotateCommand(f))
	factory.AddGroup(cmd, "change", hostCommands(f)...)

	return cmd
}

// listCommand returns "carillon secret list".
func listCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List secrets with the names of their keys",
		Example: "  carillon secret list\n  carillon secret list -A -o wide",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			list, err := c.Secrets.List(cmd.Context(), f.Scope())
			if err != nil {
				return err
			}

			return output.EmitList(&f.Printer, list, func(s task.Secret) string { return secretName(f, s) }, func(wide bool) *output.Table { return secretGrid(f, list, wide) })
		},
	}
}

// secretName returns the name of a secret as it can be typed on this command line.
func secretName(f *factory.Factory, s task.Secret) string {
	if f.AllNamespaces || s.Namespace != f.Namespace() {
		return s.Namespace + "/" + s.Name
	}
	return s.Name
}

// secretGrid returns the table of secrets.
func secretGrid(f *factory.Factory, list []task.Secret, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "KEYS", "GENERATION", "UPDATED", "BY"}, Empty: "no secrets" + selection.InScope(f)}
	if wide {
		g.Headers = append(g.Headers, "KEY ID", "CHANGE")
	}

	for _, s := range list {
		row := []string{secretName(f, s), output.OneLine(strings.Join(s.Keys, ",")), fmt.Sprint(s.Generation), f.PastTime(s.UpdatedAt, output.ReaderZone), view.ActorCell(f, s.UpdatedBy)}
		if wide {
			row = append(row, output.OneLine(s.KeyID), s.Change)
		}
		g.AddRow(row...)
	}

	return g
}

// getCommand returns "carillon secret get".
func getCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get NAME",
		Short:   "Show a secret without its values",
		Example: "  carillon secret get db",
		Args:    factory.Args(1, 1, "the secret's name"), ValidArgsFunction: complete.At(completeSecrets(f), nil),
	}
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, r, err := connectWithName(f, words[0])
		if err != nil {
			return err
		}

		s, err := c.Secrets.Get(cmd.Context(), r.Namespace, r.Name)
		if err != nil {
			return err
		}

		return output.EmitOne(&f.Printer, s, secretName(f, s), func(d *output.Details) {
			d.Field("Name", "%s", secretName(f, s))
			d.Field("Keys", "%s", strings.Join(s.Keys, ", "))
			d.Field("Encrypted", "with key %s", s.KeyID)
			d.Field("Unreadable on", "%s", strings.Join(nodesWithoutKey(cmd.Context(), c, s.KeyID), ", "))
			d.Field("Generation", "%d, %s %s by %s", s.Generation, s.Change, f.PastTime(s.UpdatedAt, output.ReaderZone), cmp.Or(s.UpdatedBy.String(), f.NoValue()))
			d.Field("Created", "%s", f.PastTime(s.CreatedAt, output.ReaderZone))
		})
	}

	return cmd
}

// connectWithName parses a name and returns a client.
func connectWithName(f *factory.Factory, word string) (*client.Client, selection.Ref, error) {
	r, err := selection.ParseRef(f, word)
	if err != nil {
		return nil, r, err
	}

	c, err := f.Connect()
	return c, r, err
}

// deleteCommand returns "carillon secret delete".
func deleteCommand(f *factory.Factory) *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete secrets",
		Long: "Delete secrets. From then on, attempts of tasks that use a deleted secret fail before they start: on a terminal, the\n" +
			"command names these tasks and asks; --dry-run names them, too. Carillon keeps a record of who deleted the secret, and\n" +
			"when. Nobody can bring its values back.",
		Example: "  carillon secret delete db --dry-run\n  carillon secret delete db billing/stripe",
		Args:    factory.Args(1, -1, "the secret's name"), ValidArgsFunction: completeSecrets(f),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, without doing it")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if ok, err := confirmDelete(cmd.Context(), f, words, dryRun); !ok {
			return err
		}

		return eachSecret(cmd.Context(), f, words, func(ctx context.Context, c *client.Client, r selection.Ref) error {
			if err := c.Secrets.Delete(ctx, r.Namespace, r.Name); err != nil {
				return err
			}
			return reportDone(f, "deleted secret %s", selection.Show(f, r))
		})
	}

	return cmd
}

// confirmDelete names the tasks that use some secrets: in a dry run, and on a terminal, where it asks. It reports whether to delete the
// secrets.
func confirmDelete(ctx context.Context, f *factory.Factory, words []string, dryRun bool) (bool, error) {
	_, isTerminal := f.Terminal(f.In)
	asks := isTerminal && !f.NoInput && !f.Yes
	if !dryRun && !asks {
		return true, nil
	}

	c, err := f.Connect()
	if err != nil {
		return false, err
	}
	var names []string
	for _, word := range words {
		r, err := selection.ParseRef(f, word)
		if err != nil {
			return false, err
		}

		names = append(names, selection.Show(f, r))

		// A role can allow to delete secrets, and not to read them. Then whether the secret exists shows only when it is deleted.
		readable, err := mayRead(ctx, c, "secrets", r.Namespace)
		if err != nil {
			return false, err
		}
		if readable || dryRun {
			if _, err := c.Secrets.Get(ctx, r.Namespace, r.Name); err != nil {
				return false, err
			}
		}

		noteUses(ctx, f, c, r)
	}

	if dryRun {
		return f.Confirm(ctx, "delete", "secret", names, false, true, false)
	}

	return f.Ask(ctx, "delete secret "+strings.Join(names, ", ")+"? Nobody can bring the values back.", len(names), false)
}

// mayRead reports whether the user may read a kind of object. It asks, because a refused request is logged.
func mayRead(ctx context.Context, c *client.Client, kind, namespace string) (bool, error) {
	d, err := c.Access.Can(ctx, client.Question{Verb: "read", Kind: kind, Namespace: namespace})
	return d.Allowed, err
}

const (
	// maxUses is how many tasks of a namespace are searched for uses of a secret.
	maxUses = 10_000
	// shownUses is how many tasks are named that use a secret.
	shownUses = 10
)

// noteUses prints which tasks use a secret. It is additional, so it prints why it does not know, and does not fail.
func noteUses(ctx context.Context, f *factory.Factory, c *client.Client, r selection.Ref) {
	tasks, err := c.Tasks.List(ctx, client.TaskListOptions{Namespace: r.Namespace, Brief: true, Limit: maxUses})
	if err != nil {
		f.Note("cannot find out which tasks use %s: %s", selection.Show(f, r), output.OneLine(err.Error()))
		return
	}

	var uses []string
	for _, t := range tasks {
		if slices.Contains(t.Action.SecretNames(), r.Name) {
			uses = append(uses, selection.Show(f, selection.Ref{Namespace: t.Namespace, Name: t.Name}))
		}
	}

	if len(tasks) == maxUses {
		f.Note("only the first %d tasks of namespace %s were checked", maxUses, r.Namespace)
	}
	if len(uses) == 0 {
		return
	}

	more := ""
	if rest := len(uses) - shownUses; rest > 0 {
		uses, more = uses[:shownUses], fmt.Sprintf(" and %d more", rest)
	}
	f.Note("without %s, attempts of %s%s fail", selection.Show(f, r), strings.Join(uses, ", "), more)
}

// reportDone prints what was done for people, or the name for programs.
func reportDone(f *factory.Factory, format, name string) error {
	if f.Format == output.FormatName {
		return f.Print(name + "\n")
	}

	if f.ForPeople() {
		f.Say(format, name)
		return nil
	}

	return output.EmitOne(&f.Printer, map[string]string{"name": name}, name, nil)
}

// eachSecret calls do for each named secret.
func eachSecret(ctx context.Context, f *factory.Factory, words []string, do func(context.Context, *client.Client, selection.Ref) error) error {
	c, err := f.Connect()
	if err != nil {
		return err
	}

	return batch.ForEach(ctx, f, words, func(word string) error {
		r, err := selection.ParseRef(f, word)
		if err != nil {
			return err
		}
		return do(ctx, c, r)
	})
}

// rotateCommand returns "carillon secret rotate".
func rotateCommand(f *factory.Factory) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "rotate NAME... | --all",
		Short: "Re-encrypt secrets with the first key of a node",
		Long: "Re-encrypt secrets with the first key of the node that answers. Secrets that already use this key do not change. When\n" +
			"all secrets use it, you can remove the old key with carillon secret key remove.",
		Example: "  carillon secret rotate db\n  carillon secret rotate --all -A",
		Args:    factory.Args(0, -1, ""), ValidArgsFunction: completeSecrets(f),
	}
	cmd.Flags().BoolVar(&all, "all", false, "all secrets of the namespace, or of all namespaces with -A")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()

		if all == (len(words) > 0) {
			return failure.Usage("secret rotate: give either names of secrets or --all").WithHint("%s", cmd.UseLine())
		}

		if all {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			list, err := c.Secrets.List(ctx, f.Scope())
			if err != nil {
				return err
			}

			for _, s := range list {
				words = append(words, s.Namespace+"/"+s.Name)
			}
		}

		var rotated []task.Secret
		err := eachSecret(ctx, f, words, func(ctx context.Context, c *client.Client, r selection.Ref) error {
			before, err := c.Secrets.Get(ctx, r.Namespace, r.Name)
			if err != nil {
				return err
			}

			s, err := c.Secrets.Rotate(ctx, r.Namespace, r.Name)
			if err != nil {
				return err
			}

			rotated = append(rotated, s)

			if s.Generation == before.Generation {
				f.Say("secret %s already uses key %s", selection.Show(f, r), s.KeyID)
			} else {
				f.Say("rotated secret %s from key %s to %s", selection.Show(f, r), before.KeyID, s.KeyID)
			}

			return nil
		})

		if len(rotated) > 0 {
			if c, err := f.Connect(); err == nil {
				noteLacking(ctx, f, c, rotated...)
			}
		}

		if f.ForPeople() || err != nil {
			return err
		}

		return output.EmitList(&f.Printer, rotated, func(s task.Secret) string { return secretName(f, s) }, nil)
	}

	return cmd
}

// nodesWithoutKey returns the executors that have keys for secrets, but not the one with this id. Attempts on
// them cannot read what it encrypts. It returns nothing if the nodes cannot be read.
func nodesWithoutKey(ctx context.Context, c *client.Client, id string) (names []string) {
	nodes, _ := c.Nodes.List(ctx)
	for _, n := range nodes {
		if n.Has(task.RoleExecutor) && len(n.SecretKeys) > 0 && !slices.Contains(n.SecretKeys, id) {
			names = append(names, n.Name)
		}
	}

	return names
}

// noteLacking prints a note about nodes that cannot read secrets, once for each key.
func noteLacking(ctx context.Context, f *factory.Factory, c *client.Client, secrets ...task.Secret) {
	told := map[string]bool{}
	for _, s := range secrets {
		if told[s.KeyID] {
			continue
		}

		told[s.KeyID] = true
		if names := nodesWithoutKey(ctx, c, s.KeyID); len(names) > 0 {
			f.Note("note: attempts on %s cannot use it: key %s is not on these nodes yet", output.OneLine(strings.Join(names, ", ")), s.KeyID)
		}
	}
}

// completeSecrets completes names of secrets.
func completeSecrets(f *factory.Factory) complete.Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return complete.Matching(complete.Live(f, cmd, "secrets", func(ctx context.Context, c *client.Client) (offers []complete.Offer, err error) {
			list, err := c.Secrets.List(ctx, f.Scope())
			for _, s := range list {
				offers = append(offers, complete.Offer{Word: secretName(f, s), About: output.OneLine(strings.Join(s.Keys, ", "))})
			}
			return offers, err
		}), done, typed)
	}
}
