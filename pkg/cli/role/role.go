// Package role implements "carillon role": list, create, update and delete roles, which are named lists of what is allowed.
package role

import (
	"cmp"
	"context"
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

// Command returns "carillon role".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "role",
		Aliases: []string{"roles"},
		Short:   "Manage roles: lists of what is allowed",
		Long: "Manage roles. A role is a list of rules that allow something; nothing denies. It has no effect until carillon access\n" +
			"grant gives it to subjects. \"carillon help access\" lists the built-in roles, the verbs and the kinds of objects.",
	}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "View:"}, &cobra.Group{ID: "change", Title: "Change:"})
	factory.AddGroup(cmd, "look", listCommand(f), getCommand(f))
	factory.AddGroup(cmd, "change", createCommand(f), updateCommand(f), deleteCommand(f))

	return cmd
}

// roles are roles as commands name them.
var roles = batch.Named[task.Role]{
	Kind: "role", Name: func(r task.Role) string { return r.Name },
	List: func(ctx context.Context, c *client.Client) ([]task.Role, error) { return c.Roles.List(ctx) },
	Get: func(ctx context.Context, c *client.Client, name string) (task.Role, error) {
		return c.Roles.Get(ctx, name)
	},
	Delete:    func(ctx context.Context, c *client.Client, name string) error { return c.Roles.Delete(ctx, name, 0) },
	Permanent: func(r task.Role) bool { return r.BuiltIn },
}

// writtenRoles are roles as commands create and change them.
var writtenRoles = batch.Written[task.Role, client.RoleChange]{
	Named: roles,
	Put: func(ctx context.Context, c *client.Client, r task.Role, as client.Writing) (client.RoleChange, error) {
		r, err := c.Roles.Put(ctx, r, as)
		return client.RoleChange{Role: r}, err
	},
	DryRun: func(ctx context.Context, c *client.Client, r task.Role, as client.Writing) (client.RoleChange, error) {
		return c.Roles.DryRunPut(ctx, r, as)
	},
	Outcome: func(a client.RoleChange) (int64, *client.Change) { return a.Revision, a.DryRun },
	Next:    func(name string) string { return "carillon access grant " + name + " SUBJECT --in NAMESPACE" },
}

func listCommand(f *factory.Factory) *cobra.Command {
	return batch.BindList(f, &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List roles, the built-in ones first",
		Example: "  carillon role list\n  carillon role list -o wide",
	}, roles, func(list []task.Role, wide bool) *output.Table { return roleTable(f, list, wide) })
}

func roleTable(f *factory.Factory, list []task.Role, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "TYPE", "DESCRIPTION"}, Empty: "no roles"}
	if wide {
		g.Headers = append(g.Headers, "RULES", "UPDATED", "BY")
	}

	for _, r := range list {
		row := []string{r.Name, typeText(r), output.OneLine(r.Description)}
		if wide {
			rules := make([]string, len(r.Rules))
			for i, rule := range r.Rules {
				rules[i] = view.RuleText(rule)
			}
			row = append(row, strings.Join(rules, " "), f.PastTime(r.UpdatedAt, output.ReaderZone), view.ActorCell(f, r.UpdatedBy))
		}
		g.AddRow(row...)
	}

	return g
}

func typeText(r task.Role) string {
	if r.BuiltIn {
		return "built-in"
	}
	return "own"
}

func getCommand(f *factory.Factory) *cobra.Command {
	return batch.BindGet(f, &cobra.Command{
		Use:     "get NAME",
		Short:   "Show a role, its rules, and the bindings that use it",
		Example: "  carillon role get editor\n  carillon role get editor -o yaml",
		Args:    factory.Args(1, 1, "the role's name"), ValidArgsFunction: complete.At(complete.Roles(f), nil),
	}, roles, func(ctx context.Context, c *client.Client, d *output.Details, r task.Role) {
		describeRole(f, d, r, bindingsOf(ctx, f, c, r))
	})
}

// bindingsOf returns the names of the bindings of a role that the caller may see; none if that is not known.
func bindingsOf(ctx context.Context, f *factory.Factory, c *client.Client, r task.Role) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	list, _ := c.Bindings.List(ctx, "")
	for _, b := range list {
		if b.Role == r.Name && b.RoleUID == r.UID {
			names = append(names, b.Name)
		}
	}

	return names
}

func describeRole(f *factory.Factory, d *output.Details, r task.Role, bindings []string) {
	d.Field("Name", "%s", r.Name)
	d.Field("Type", "%s", typeText(r))
	d.Field("Description", "%s", r.Description)
	d.Field("Bindings", "%s", strings.Join(bindings, ", "))
	d.Field("Created", "%s", view.ChangedText(f, r.CreatedAt, r.CreatedBy))
	d.Field("Updated", "%s", view.ChangedText(f, r.UpdatedAt, r.UpdatedBy))
	d.Field("Revision", "%s", view.RevisionText(r.Revision))
	d.Section("Allows", f.RenderIndented(view.RulesTable(r.Rules)))
}

// roleFlags are the flags of create and update.
type roleFlags struct {
	rules       []string
	description string
	dryRun      bool
}

func (r *roleFlags) defineFlags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&r.rules, "rule", nil, "allow these verbs on these kinds of objects, as `VERBS:KINDS` or VERBS:KINDS:LABELS; may be repeated")
	cmd.Flags().StringVar(&r.description, "description", "", "`TEXT` that describes the role")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "validate the change on the server and print it, without making it")
	complete.Register(cmd, "rule", complete.Rules)
}

// parseRules reads the rules of --rule.
func parseRules(texts []string) ([]task.Rule, error) {
	var rules []task.Rule
	for _, text := range texts {
		parts := strings.SplitN(text, ":", 3)
		if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
			return nil, failure.Usage("--rule %s: is not VERBS:KINDS", task.Quote(text)).WithHint("for example --rule read,trigger:tasks,runs or --rule update:tasks:env=dev")
		}

		r := task.Rule{Verbs: strings.Split(parts[0], ","), Objects: strings.Split(parts[1], ",")}
		if len(parts) == 3 {
			var err error
			if r.Labels, err = factory.ParseLabels("rule", strings.Split(parts[2], ",")); err != nil {
				return nil, err
			}
		}

		rules = append(rules, r)
	}

	return rules, nil
}

func createCommand(f *factory.Factory) *cobra.Command {
	var o roleFlags
	cmd := &cobra.Command{
		Use:   "create NAME --rule VERBS:KINDS",
		Short: "Create a role",
		Long: "Create a role. Each --rule allows its verbs on its kinds of objects; * means all. Labels limit a rule to tasks\n" +
			"that have all of them, and to their runs.",
		Example: `  carillon role create deployer --rule read:tasks,runs --rule create,update:tasks
  carillon role create on-call --rule read,output,trigger,cancel,retry:tasks,runs --description 'Who is on call'
  carillon role create dev-editor --rule read,output:tasks,runs --rule create,update,delete:tasks:env=dev`,
		Args: factory.Args(1, 1, "the role's name"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(o.rules) == 0 {
				return failure.Usage("role create: --rule is missing").WithHint("for example --rule read,trigger:tasks,runs; carillon help access lists verbs and kinds")
			}

			rules, err := parseRules(o.rules)
			if err != nil {
				return err
			}

			c, err := f.Connect()
			if err != nil {
				return err
			}

			r := task.Role{Name: words[0], Description: o.description, Rules: rules}

			return writtenRoles.Write(cmd.Context(), f, c, r, client.Writing{Create: true}, o.dryRun)
		},
	}
	o.defineFlags(cmd)

	return cmd
}

func updateCommand(f *factory.Factory) *cobra.Command {
	var o roleFlags
	var revision int64
	cmd := &cobra.Command{
		Use:   "update NAME [--rule VERBS:KINDS]",
		Short: "Change the rules or the description of a role",
		Long: "Change a role. The rules of --rule replace all rules of the role, in every binding that it has. You must have all\n" +
			"that the new rules give.",
		Example: `  carillon role update deployer --rule read:tasks,runs --rule create,update,delete:tasks
  carillon role update deployer --rule read,update:tasks --dry-run
  carillon role update on-call --description 'Who is on call this week'`,
		Args: factory.Args(1, 1, "the role's name"), ValidArgsFunction: complete.At(complete.OwnRoles(f), nil),
	}
	o.defineFlags(cmd)
	cmd.Flags().Int64Var(&revision, "revision", 0, "change the role only if it is at this revision, `REV` in carillon role get")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if !slices.ContainsFunc([]string{"rule", "description"}, cmd.Flags().Changed) {
			return failure.Usage("role update: nothing to change; use --rule or --description")
		}

		rules, err := parseRules(o.rules)
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		before, err := roles.Find(cmd.Context(), f, c, words[0])
		if err != nil {
			return err
		}
		if before.BuiltIn {
			return failure.Usage("%s is a built-in role, which cannot be changed", before.Name).WithHint("create a role of your own with: carillon role create")
		}

		r := before
		if cmd.Flags().Changed("description") {
			r.Description = o.description
		}
		if len(rules) > 0 {
			r.Rules = rules
		}

		// Replace only the version that was read, so that no other change is lost.
		as := client.Writing{Revision: cmp.Or(revision, before.Revision)}

		return writtenRoles.Write(cmd.Context(), f, c, r, as, o.dryRun)
	}

	return cmd
}

func deleteCommand(f *factory.Factory) *cobra.Command {
	return batch.BindDelete(f, &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete roles that nothing uses",
		Long: "Delete roles. A role that a binding or the scope of a token uses cannot be deleted. A role that is created later with\n" +
			"the same name is another role.",
		Example:           "  carillon role delete deployer\n  carillon role delete 'tmp-*' --dry-run",
		ValidArgsFunction: complete.OwnRoles(f),
	}, "delete", "deleted", roles)
}
