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
			if namesOne(words) && p.Selector == "" && since == "" {
				f.AboutTask(t.Timezone)
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
