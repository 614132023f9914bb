package apply

import (
	"context"
	"errors"
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
	kept     map[selection.Ref][]string // the tasks in the files, with the names of their sources
	doomed   []client.Task              // the tasks to delete
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
	p.kept = map[selection.Ref][]string{}
	keep := func(s task.Spec) { p.kept[selection.Ref{Namespace: s.Namespace, Name: s.Name}] = s.After.Names() }
	for _, o := range r.Objects { // their errors were reported already
		keep(o.Spec)
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

			keep(o.Spec)

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

			if _, kept := p.kept[selection.Ref{Namespace: t.Namespace, Name: t.Name}]; !kept {
				p.doomed = append(p.doomed, t)
			}
		}
	}

	sortDependentsFirst(p.doomed)
	if err := p.checkSources(r); err != nil {
		return err
	}

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

// checkSources returns an error if a task in the files runs after one that is to be deleted. The server would refuse the deletion,
// but only after the files were applied.
func (p *pruner) checkSources(r *Operation) error {
	deleted := map[selection.Ref]bool{}
	for _, t := range p.doomed {
		deleted[selection.Ref{Namespace: t.Namespace, Name: t.Name}] = true
	}

	var problems []string
	for ref, sources := range p.kept {
		for _, source := range sources {
			if doomed := (selection.Ref{Namespace: ref.Namespace, Name: source}); deleted[doomed] {
				f := r.Files.Factory
				problems = append(problems, fmt.Sprintf("--prune would delete %s, but %s in the files runs after it", selection.Show(f, doomed), selection.Show(f, ref)))
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}

	fail := &failure.Error{Exit: failure.ExitConflict, Problem: failure.Problem{Code: client.CodeInUse, Message: slices.Min(problems)}}
	if more := len(problems) - 1; more > 0 {
		fail.Message += fmt.Sprintf(" (and %d more)", more)
	}

	return fail.WithHint("add the task to the files, or remove it from after")
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

	gone := map[selection.Ref]bool{}

	return batch.ForEach(ctx, r.Factory, p.doomed, func(t client.Task) error {
		ref := selection.Ref{Namespace: t.Namespace, Name: t.Name}

		var err error
		if r.dry {
			t, err = DryRunDelete(ctx, c, ref, client.DeleteOptions{Revision: t.Revision}, func(dependent selection.Ref) bool {
				_, kept := p.kept[dependent]
				return kept || gone[dependent] // checkSources has found that a task in the files does not run after it
			})
		} else {
			err = c.Tasks.Delete(ctx, t.Namespace, t.Name, t.Revision)
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", selection.Show(r.Files.Factory, ref), err)
		}

		gone[ref] = true
		t.Result = client.Deleted
		r.counts[client.Deleted]++

		return r.recordTask(t)
	})
}

// DryRunDelete asks the server whether a task would be deleted. gone reports whether a task does not run after it any more by then,
// because the same command deletes or changes that task first.
func DryRunDelete(ctx context.Context, c *client.Client, r selection.Ref, o client.DeleteOptions, gone func(dependent selection.Ref) bool) (client.Task, error) {
	would, err := c.Tasks.DryRunDeleteWith(ctx, r.Namespace, r.Name, o)

	var problem *client.Error
	if !errors.As(err, &problem) || problem.Code != client.CodeInUse {
		return would, err
	}

	source, failed := c.Tasks.Get(ctx, r.Namespace, r.Name)
	if failed != nil || slices.ContainsFunc(source.Dependents, func(d client.Dependent) bool { return !gone(selection.Ref{Namespace: r.Namespace, Name: d.Task}) }) {
		return would, err
	}
	o.Force = true // what remains to be checked

	return c.Tasks.DryRunDeleteWith(ctx, r.Namespace, r.Name, o)
}
