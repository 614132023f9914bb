package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// pruner deletes tasks that are no longer in the files. The user is asked before anything is sent. Nothing is
// deleted unless all tasks were applied.
type pruner struct {
	on       bool
	selector string
	kept     map[selection.Ref]bool // the tasks in the files
	doomed   []client.Task          // the tasks to delete
}

// bindFlags declares the flags of pruning.
func (p *pruner) bindFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.on, "prune", false, "delete tasks that match -l but are not in the files")
	cmd.Flags().StringVarP(&p.selector, "selector", "l", "", "with --prune: delete only tasks whose labels match this `SELECTOR`, such as team=data")
}

// checkFlags checks the flags of pruning.
func (p *pruner) checkFlags(cmd *cobra.Command, paths []string) error {
	switch {
	case !p.on && cmd.Flags().Changed("selector"):
		return failure.Usage("-l only limits what --prune deletes, and has no effect without it").WithHint("add --prune, or remove -l")
	case !p.on:
		return nil
	case p.selector == "":
		return failure.Usage("--prune requires -l, which limits the tasks that it can delete").WithHint("for example: --prune -l team=data")
	case slices.Contains(paths, "-"):
		return failure.Usage("--prune cannot read tasks from standard input")
	}

	_, err := task.ParseSelector(p.selector)
	return task.Under("selector", err)
}

// Prune has Deliver delete the tasks that match a selector and are not in the files.
func (op *Operation) Prune(selector string) {
	op.prune = &pruner{on: true, selector: selector}
	op.prune.keepApplied(op)
}

// keepApplied records the tasks in the files. A file that cannot be read is an error, because its tasks must
// not be deleted.
func (p *pruner) keepApplied(r *Operation) {
	p.kept = map[selection.Ref]bool{}
	for _, o := range r.Objects { // their errors were reported already
		p.kept[selection.Ref{Namespace: o.Spec.Namespace, Name: o.Spec.Name}] = true
	}

	for _, file := range r.streams {
		r.streamFile(file, func(o manifest.Object, err error) bool {
			if err == nil {
				err = r.checkTask(o)
			}

			if err != nil {
				r.reportError(err)
				return true
			}

			p.kept[selection.Ref{Namespace: o.Spec.Namespace, Name: o.Spec.Name}] = true

			return true
		})
	}
}

// findAndConfirm finds the tasks to delete, and asks for confirmation.
func (p *pruner) findAndConfirm(ctx context.Context, r *Operation, c *client.Client) error {
	if len(p.kept) == 0 {
		return (&failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeUsage, Message: "the files contain no tasks: --prune would delete every task that matches " + p.selector}}).
			WithHint("to delete them all: carillon task delete -l %s", p.selector)
	}

	for _, ns := range p.prunedNamespaces(r) {
		for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Namespace: ns, Query: client.QueryTerm("selector", p.selector), Complete: true}) {
			if err != nil {
				return err
			}

			if !p.kept[selection.Ref{Namespace: t.Namespace, Name: t.Name}] {
				p.doomed = append(p.doomed, t)
			}
		}
	}

	sortDependentsFirst(p.doomed)

	if r.dry || len(p.doomed) == 0 {
		return nil
	}

	names := make([]string, len(p.doomed))
	for i, t := range p.doomed {
		names[i] = selection.TaskName(r.Files.Factory, t)
	}

	_, err := r.Confirm(ctx, "delete", "task", names, true, false, true)

	return err
}

// prunedNamespaces returns the namespaces in which tasks are deleted; "" means all.
func (p *pruner) prunedNamespaces(r *Operation) []string {
	if r.AllNamespaces || r.Scoped {
		return []string{r.Scope()}
	}

	list := map[string]bool{}
	for k := range p.kept {
		list[k.Namespace] = true
	}

	return slices.Sorted(maps.Keys(list))
}

// deleteUnchanged deletes the tasks if everything was applied. It deletes a task only if it has not changed
// since it was found.
func (p *pruner) deleteUnchanged(ctx context.Context, r *Operation, c *client.Client) error {
	if len(r.codes) > 0 {
		if len(p.doomed) > 0 && r.ForPeople() {
			r.Note("deleted nothing, because some tasks were not applied")
		}
		return nil
	}

	return batch.ForEach(ctx, r.Factory, p.doomed, func(t client.Task) error {
		if !r.dry {
			if err := c.Tasks.Delete(ctx, t.Namespace, t.Name, t.Revision); err != nil {
				return fmt.Errorf("delete %s: %w", selection.TaskName(r.Files.Factory, t), err)
			}
		} else {
			t.DryRun = &client.Change{Result: client.Deleted, Fields: []client.FieldChange{}}
		}

		t.Result = client.Deleted
		r.counts[client.Deleted]++
		return r.recordTask(t)
	})
}
