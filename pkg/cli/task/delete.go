package task

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
)

// deleted is the JSON form of a deleted task.
type deleted struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Deleted   bool   `json:"deleted"`
}

// deleteCommand returns "carillon task delete".
func deleteCommand(f *factory.Factory) *cobra.Command {
	var revision revisionFlag
	var options client.DeleteOptions
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete tasks with their history",
		Long: "Delete tasks with their history and their waiting runs. Active runs are cancelled. Of a receiver of alerts, the command says\n" +
			"how many tasks name it. On a terminal, it asks first. carillon task undelete brings a task back for a week, without its\n" +
			"history; with --purge, it does not.\n\n" +
			"A task that others run after is deleted only together with them or with --force. With --force, they stay and run after\n" +
			"a new task of that name.",
		Example: `  carillon task delete nightly-backup
  carillon task delete 'tmp-*' --dry-run
  carillon task delete -l team=data --yes`,
	}
	revision.bindFlag(cmd)
	cmd.Flags().BoolVar(&options.Force, "force", false, "delete also tasks that others run after")
	cmd.Flags().BoolVar(&options.Purge, "purge", false, "keep no copy, so that the tasks cannot be undeleted")
	p := bindTasks(f, cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		options.Revision = int64(revision)
		noteReceivers(ctx, f, words)

		// A selection by a pattern asks in any case.
		named := len(words) > 0 && !slices.ContainsFunc(words, selection.IsGlob) && p.Selector == "" && !p.DryRun
		if named {
			if ok, err := askToDelete(ctx, f, words, options.Purge); !ok {
				return err
			}
		}

		c, refs, err := approvedTasks(f, cmd, words, *p, &options)
		if err != nil || c == nil {
			return err
		}

		gone, failed := deleteInOrder(ctx, f, c, "delete", refs, func(r selection.Ref) (deleted, string, error) {
			err := c.Tasks.DeleteWith(ctx, r.Namespace, r.Name, options)
			return deleted{r.Namespace, r.Name, true}, "deleted " + selection.Show(f, r), err
		})
		if err := output.EmitChanged(&f.Printer, gone, len(refs), func(d deleted) string { return selection.Name(f, d.Namespace, d.Name) }); err != nil {
			return err
		}

		return failed
	}

	return revision.ofOne(cmd)
}

// deleteInOrder calls do for each task, dependents before their sources, because a source that has dependents is not deleted. verb is
// what do does with the tasks.
func deleteInOrder[R any](ctx context.Context, f *factory.Factory, c *client.Client, verb string, refs []selection.Ref, do func(selection.Ref) (R, string, error)) ([]R, error) {
	order := depgraph.PlanDeletion(ctx, c.Tasks, refs, func(r selection.Ref) depgraph.Task { return depgraph.Task(r) })

	return batch.Run(ctx, f, verb, pastOf(verb), "task", refs, func(ctx context.Context, r selection.Ref) (R, string, error) {
		order.Wait(ctx, depgraph.Task(r))
		defer order.Finish(depgraph.Task(r))

		result, message, err := do(r)

		var problem *client.Error
		if errors.As(err, &problem) && problem.Code == client.CodeInUse {
			err = f.Explain(err).WithHint("delete them first, or together with it; or delete it with --force")
		}
		if err != nil {
			err = selection.ExplainMissing(ctx, f, c, r, err)
		}

		return result, message, err
	})
}

// dryRunDelete returns the tasks that would be deleted, and reports the others, as the deletion would.
func dryRunDelete(ctx context.Context, f *factory.Factory, c *client.Client, refs []selection.Ref, o client.DeleteOptions) ([]selection.Ref, error) {
	var mu sync.Mutex
	gone := map[selection.Ref]bool{} // the tasks that would be deleted by then

	return deleteInOrder(ctx, f, c, "check", refs, func(r selection.Ref) (selection.Ref, string, error) {
		would, err := apply.DryRunDelete(ctx, c, r, o, func(dependent selection.Ref) bool {
			mu.Lock()
			defer mu.Unlock()
			return gone[dependent]
		})
		if err != nil {
			return r, "", err
		}

		mu.Lock()
		defer mu.Unlock()
		gone[r] = true
		if len(refs) == 1 {
			noteCancelled(f, would)
		}

		return r, "", nil
	})
}

// maxNotedReceivers is how many named tasks noteReceivers looks at.
const maxNotedReceivers = 20

// noteReceivers prints how many tasks name the receivers of alerts among some tasks, because their alerts reach nobody after the deletion. It
// is additional, so its errors are ignored.
func noteReceivers(ctx context.Context, f *factory.Factory, words []string) {
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	c, err := f.Connect()
	if err != nil || len(words) > maxNotedReceivers {
		return
	}

	for _, word := range words {
		r, err := selection.ParseRef(f, word)
		if err != nil {
			continue // a glob, or an error that the deletion reports
		}
		t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
		if err != nil || t.Receiver == nil {
			continue
		}

		query := client.QueryTerm("notify", r.String())
		named, err := c.Tasks.Page(ctx, client.TaskListOptions{Query: query, Brief: true, Limit: 1}, "")
		if err == nil && named.Count != nil && *named.Count > 0 {
			f.Note("warning: alerts of %s reach %s no more: carillon task list -A %s", output.Plural(int64(*named.Count), "task"), selection.Show(f, r), query)
		}
	}
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
	if t, err := c.Tasks.Get(ctx, r.Namespace, r.Name); err == nil {
		noteCancelled(f, t)
	}
}

// noteCancelled prints how many runs of a task would be cancelled.
func noteCancelled(f *factory.Factory, t client.Task) {
	if t.Active > 0 {
		f.Note("%s of %s would be cancelled", output.Plural(int64(t.Active), "active run"), selection.Show(f, selection.Ref{Namespace: t.Namespace, Name: t.Name}))
	}
}
