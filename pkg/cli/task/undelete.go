package task

import (
	"context"
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
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// notUndeleted says what does not come back.
const notUndeleted = "history, versions, ledger, dead runs and waiting runs did not come back"

// undeleteCommand returns "carillon task undelete".
func undeleteCommand(f *factory.Factory) *cobra.Command {
	var p selection.Flags
	var since string
	cmd := &cobra.Command{
		Use:   "undelete TASK... | -l SELECTOR | --deleted-since TIME",
		Short: "Bring back deleted tasks",
		Long: "Create tasks again that were deleted within the last week, as they were then: a paused task is paused. They have ticks\n" +
			"from now on. Their history, versions, ledgers, dead runs and waiting runs do not come back. carillon task deleted lists\n" +
			"the tasks.\n\n" +
			"A task cannot come back if it was deleted with --purge or by its ttl, if a task of that name exists or was created since,\n" +
			"or if etcd used more than 75 % of its quota at the deletion. Use a backup or a task file then.",
		Example: `  carillon task undelete report
  carillon task undelete --deleted-since 2h -n billing --dry-run
  carillon task undelete -l team=data 'web-*' --yes`,
		ValidArgsFunction: completeDeleted(f),
	}
	p.Bind(cmd, true)
	cmd.Flags().StringVar(&since, "deleted-since", "", "bring back all tasks that were deleted after this `TIME`, such as 2h or 18:00 in your time zone (see help times)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "selector", "deleted-since"); err != nil {
			return err
		}
		if len(words) == 0 && p.Selector == "" && since == "" {
			return failure.Usage("no task given; name a task or a glob, or use -l or --deleted-since").WithHint("carillon task deleted lists deleted tasks")
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}
		refs, broad, err := deletedTasks(cmd.Context(), f, c, words, p.Selector, since)
		if err != nil {
			return err
		}

		names := make([]string, len(refs))
		for i, r := range refs {
			names[i] = selection.Show(f, r)
		}
		if ok, err := f.Confirm(cmd.Context(), "undelete", "task", names, broad, p.DryRun, false); !ok {
			return err
		}

		changed, failed := batch.Run(cmd.Context(), f, "undelete", "undeleted", "task", refs, func(ctx context.Context, r selection.Ref) (client.Task, string, error) {
			t, err := c.Tasks.Undelete(ctx, r.Namespace, r.Name)
			if err != nil {
				return t, "", err
			}
			return t, "undeleted " + selection.Show(f, r) + view.NextText(f, t), nil
		})
		if len(changed) > 0 && f.ForPeople() {
			f.SayNext(notUndeleted)
		}
		if err := output.EmitChanged(&f.Printer, changed, len(refs), func(t client.Task) string { return selection.TaskName(f, t) }); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// deletedTasks returns the tasks to undelete: those named, and those deleted ones that match. broad reports whether not all
// were named.
func deletedTasks(ctx context.Context, f *factory.Factory, c *client.Client, words []string, selector, since string) (refs []selection.Ref, broad bool, err error) {
	if f.AllNamespaces {
		return nil, false, failure.Usage("undelete works on one namespace; use -n instead of -A")
	}

	if selector == "" && since == "" && !slices.ContainsFunc(words, selection.IsGlob) {
		for _, word := range words {
			r, err := selection.ParseRef(f, word)
			if err != nil {
				return nil, false, err
			}
			refs = append(refs, r)
		}
		return refs, false, nil
	}

	labels, err := task.ParseSelector(selector)
	if err != nil {
		return nil, false, err
	}
	after, err := f.ParseTime("deleted-since", since, f.Zone(output.ReaderZone), schedule.Past)
	if err != nil {
		return nil, false, err
	}
	list, err := c.Tasks.ListDeleted(ctx, f.Namespace())
	if err != nil {
		return nil, false, err
	}

	for _, d := range list {
		named := len(words) == 0 || slices.ContainsFunc(words, func(w string) bool {
			return selection.Matches(f, w, selection.Ref{Namespace: d.Namespace, Name: d.Name})
		})
		if d.Spec != nil && named && labels.Matches(d.Spec.Labels) && !d.DeletedAt.Before(after) {
			refs = append(refs, selection.Ref{Namespace: d.Namespace, Name: d.Name})
		}
	}

	return refs, true, nil
}

// completeDeleted completes names of tasks that can be undeleted.
func completeDeleted(f *factory.Factory) complete.Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		offers := complete.Live(f, cmd, "deleted tasks", func(ctx context.Context, c *client.Client) (offers []complete.Offer, err error) {
			list, err := c.Tasks.ListDeleted(ctx, f.Namespace())
			for _, d := range list {
				if d.Spec != nil {
					offers = append(offers, complete.Offer{Word: d.Name, About: "deleted " + f.PastTime(d.DeletedAt, output.ReaderZone)})
				}
			}
			return offers, err
		})

		return complete.Matching(offers, done, typed)
	}
}

// deletedCommand returns "carillon task deleted".
func deletedCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "deleted",
		Short: "List deleted tasks",
		Long: "List the tasks of a namespace that were deleted within the last week, and until when carillon task undelete brings them\n" +
			"back. A task without that time cannot come back: it was purged, deleted by its ttl, or deleted while etcd was nearly full.",
		Example:           "  carillon task deleted\n  carillon task deleted -n billing -o json",
		Args:              factory.Args(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.AllNamespaces {
				return failure.Usage("deleted lists one namespace; use -n instead of -A")
			}
			c, err := f.Connect()
			if err != nil {
				return err
			}
			list, err := c.Tasks.ListDeleted(cmd.Context(), f.Namespace())
			if err != nil {
				return err
			}

			return output.EmitList(&f.Printer, list, func(d client.DeletedTask) string { return d.Name }, func(bool) *output.Table {
				g := &output.Table{Headers: []string{"NAME", "DELETED", "BY", "SCHEDULE", "UNTIL"}, Empty: "no deleted tasks" + selection.InScope(f)}
				for _, d := range list {
					plan, until := f.NoValue(), f.NoValue()
					if d.Spec != nil {
						plan, until = output.OneLine(strings.Join(d.Spec.Schedule, ", ")), f.FutureTime(d.Until, output.ReaderZone)
					}
					by := d.DeletedBy.String()
					if by == "" {
						by = d.Why
					}
					g.AddRow(d.Name, f.PastTime(d.DeletedAt, output.ReaderZone), output.OneLine(by), plan, until)
				}

				return g
			})
		},
	}
}

// copyCommand returns "carillon task copy".
func copyCommand(f *factory.Factory) *cobra.Command {
	var to string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "copy TASK NAME",
		Short: "Create a task like another one",
		Long: "Create a task with the settings of another one: all fields of carillon task export, also a pause. History, runs, versions,\n" +
			"counts and secrets are not copied. H in a schedule gets other values, because they follow from the name.",
		Example: `  carillon task copy report report-eu
  carillon task copy report report --to-namespace staging
  carillon task copy billing/report report-eu --dry-run`,
		Args:              factory.Args(2, 2, "the name of the task or of the copy"),
		ValidArgsFunction: complete.Task(f),
	}
	cmd.Flags().StringVar(&to, "to-namespace", "", "create the copy in the namespace with this `NAME` (default: that of the task)")
	_ = cmd.RegisterFlagCompletionFunc("to-namespace", complete.Namespaces(f)) // the flag exists
	bindDryRun(cmd, &dryRun)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "to-namespace"); err != nil {
			return err
		}
		from, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}
		name := selection.Ref{Namespace: from.Namespace, Name: words[1]}
		if to != "" {
			name.Namespace = to
		}
		if err := task.CheckName("name", name.Name); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}
		t, err := c.Tasks.Get(cmd.Context(), from.Namespace, from.Name)
		if err != nil {
			return selection.ExplainMissing(cmd.Context(), f, c, from, err)
		}

		spec := t.Spec
		spec.Namespace, spec.Name = name.Namespace, name.Name
		write := c.Tasks.Create
		if dryRun {
			write = c.Tasks.DryRunCreate
		}
		made, err := write(cmd.Context(), name.Namespace, spec)
		if err != nil {
			return err
		}

		selection.PrintWarnings(f, made)
		if dryRun {
			return wouldBe(f, made)
		}

		f.Say("created %s%s", selection.Show(f, name), view.NextText(f, made))
		notes := []string{"history, runs, versions and counts are not copied"}
		if name.Namespace != from.Namespace {
			notes = append(notes, "secrets that it uses must exist in namespace "+name.Namespace)
		}
		if slices.ContainsFunc(spec.Schedule, hasHash) {
			notes = append(notes, "H has other values than in "+selection.Show(f, from))
		}
		if f.ForPeople() {
			f.SayNext("%s", strings.Join(notes, "; "))
		}

		return output.EmitChanged(&f.Printer, []client.Task{made}, 1, func(t client.Task) string { return selection.TaskName(f, t) })
	}

	return cmd
}

// hasHash reports whether a field of a cron expression is H, or contains it in a list. Names such as THU contain no H in that sense.
func hasHash(schedule string) bool {
	fields := strings.FieldsFunc(schedule, func(r rune) bool { return r == ' ' || r == ',' })
	return slices.ContainsFunc(fields, func(field string) bool { return strings.HasPrefix(field, "H") })
}

// askToDelete asks on a terminal before a task is deleted that was named, and says how it comes back. Without a terminal, as in
// scripts, it asks nothing.
func askToDelete(ctx context.Context, f *factory.Factory, words []string, purge bool) (bool, error) {
	if _, tty := f.Terminal(f.In); !tty || f.NoInput || f.Yes {
		return true, nil
	}

	for _, word := range words {
		r, err := selection.ParseRef(f, word)
		if err != nil {
			return false, err
		}
		noteActive(ctx, f, r)
	}

	question := "delete " + strings.Join(words, ", ") + " with its history? carillon task undelete brings the task back for a week."
	if len(words) > 1 {
		question = "delete " + output.Plural(int64(len(words)), "task") + " with their history? carillon task undelete brings tasks back for a week."
	}
	if purge {
		question = "delete " + strings.Join(words, ", ") + " for good?"
	}

	return f.Ask(ctx, question, 1, false)
}

// noteActive prints how many runs of a task would be cancelled. It is additional, so its errors are ignored.
func noteActive(ctx context.Context, f *factory.Factory, r selection.Ref) {
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	c, err := f.Connect()
	if err != nil {
		return
	}
	if t, err := c.Tasks.Get(ctx, r.Namespace, r.Name); err == nil && t.Active > 0 {
		f.Note("%s of %s would be cancelled", output.Plural(int64(t.Active), "active run"), selection.Show(f, r))
	}
}
