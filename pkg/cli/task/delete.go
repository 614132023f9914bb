package task

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
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
	verbCommand(f, cmd, true, func(d deleted) string { return selection.Name(f, d.Namespace, d.Name) },
		func(ctx context.Context, c *client.Client, r selection.Ref, _ bool) (deleted, error) {
			o := options
			o.Revision = int64(revision)
			err := c.Tasks.DeleteWith(ctx, r.Namespace, r.Name, o)

			var problem *client.Error
			if errors.As(err, &problem) && problem.Code == client.CodeInUse {
				err = f.Explain(err).WithHint("delete them first, or together with it; or delete it with --force")
			}

			return deleted{r.Namespace, r.Name, true}, err
		},
		func(r selection.Ref, _ deleted) string { return "deleted " + selection.Show(f, r) })

	remove := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		noteReceivers(cmd.Context(), f, words)

		// A selection by a pattern asks in any case.
		named := len(words) > 0 && !slices.ContainsFunc(words, selection.IsGlob) && !cmd.Flags().Changed("selector") && !cmd.Flags().Changed("dry-run")
		if named {
			if ok, err := askToDelete(cmd.Context(), f, words, options.Purge); !ok {
				return err
			}
		}

		return remove(cmd, words)
	}

	return revision.ofOne(cmd)
}

// deletionOrder lets tasks that are deleted together wait for their dependents, because a source with dependents cannot be deleted.
type deletionOrder struct {
	layer map[selection.Ref]int // a task is in a later layer than its sources

	mu   sync.Mutex
	open []int           // the number of tasks of each layer that are not deleted yet
	done []chan struct{} // closed when it is 0
}

// newDeletionOrder sorts tasks so that dependents come first. If links cannot be read, the order stays, and the server refuses what
// does not fit.
func newDeletionOrder(ctx context.Context, c *client.Client, refs []selection.Ref) *deletionOrder {
	o := &deletionOrder{layer: map[selection.Ref]int{}}
	read := map[string]bool{}
	for _, r := range refs {
		if len(refs) < 2 || read[r.Namespace] {
			continue
		}
		read[r.Namespace] = true

		g, err := c.Tasks.Graph(ctx, r.Namespace, client.GraphOptions{})
		if err != nil {
			continue
		}
		for i, names := range graphOf(g).Layers() {
			for _, name := range names {
				o.layer[selection.Ref{Namespace: r.Namespace, Name: name}] = i
			}
		}
	}

	slices.SortStableFunc(refs, func(a, b selection.Ref) int { return o.layer[b] - o.layer[a] })

	for _, r := range refs {
		for len(o.open) <= o.layer[r] {
			o.open, o.done = append(o.open, 0), append(o.done, make(chan struct{}))
		}
		o.open[o.layer[r]]++
	}
	for i, n := range o.open {
		if n == 0 {
			close(o.done[i])
		}
	}

	return o
}

// wait returns when the tasks in later layers than that of a task are deleted, or ctx has ended.
func (o *deletionOrder) wait(ctx context.Context, r selection.Ref) {
	for _, done := range o.done[o.layer[r]+1:] {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}

// finish is called after the deletion of a task, whether it succeeded or not.
func (o *deletionOrder) finish(r selection.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()

	at := o.layer[r]
	if o.open[at]--; o.open[at] == 0 {
		close(o.done[at])
	}
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
	if t, err := c.Tasks.Get(ctx, r.Namespace, r.Name); err == nil && t.Active > 0 {
		f.Note("%s of %s would be cancelled", output.Plural(int64(t.Active), "active run"), selection.Show(f, r))
	}
}
