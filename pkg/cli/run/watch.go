package run

import (
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// watchRuns implements run list -w.
func watchRuns(ctx context.Context, f *factory.Factory, c *client.Client, filter client.RunListOptions, z view.Zones) error {
	selector, err := task.ParseSelector(filter.Selector)
	if err != nil {
		return task.Under("selector", err)
	}

	w := &watch.List[task.Run]{Factory: f, Client: c, Events: client.EventOptions{Namespace: filter.Namespace, Task: filter.Task, Kinds: []string{task.EventRun}}}
	w.Affects = func(e task.Event) (string, bool) { return e.Namespace + "/" + e.Task + "/" + e.Run, true }
	w.Key = func(r task.Run) string { return r.Namespace + "/" + r.Task + "/" + r.ID }
	w.Read = func(ctx context.Context, limit int) ([]task.Run, error) {
		all := filter
		if limit > 0 && (all.Limit == 0 || limit < all.Limit) {
			all.Limit = limit
		}
		return c.Runs.List(ctx, all)
	}

	w.Reread = func(ctx context.Context, keys []string) ([]task.Run, error) {
		list := make([]*task.Run, len(keys))
		err := batch.Parallel(ctx, len(keys), func(i int) error {
			part := strings.SplitN(keys[i], "/", 3)
			r, err := c.Runs.Get(ctx, part[0], part[1], part[2])
			listed := err == nil && matchesFilter(filter, r)
			if listed && selector != nil { // a run has no labels, so those of its task are read
				var owner client.Task
				owner, err = c.Tasks.Get(ctx, part[0], part[1])
				listed = err == nil && selector.Matches(owner.Labels)
			}

			if listed {
				list[i] = &r
			}

			if err != nil && failure.IsUnreachable(err) {
				return err
			}

			return nil // any other error means that the run is gone
		})

		var found []task.Run
		for _, r := range list {
			if r != nil {
				found = append(found, *r)
			}
		}

		return found, err
	}

	w.Table = func(list []task.Run, wide bool) *output.Table { return view.RunTable(f, list, true, wide, z) }
	w.Name, w.Comparable = selection.RunName, func(r task.Run) any { return r }
	w.Removed = func(key string) any {
		part := strings.SplitN(key, "/", 3)
		return watch.Removed{Namespace: part[0], Name: part[1], ID: part[2], Left: true}
	}

	return w.Run(ctx)
}

// matchesFilter reports whether a run matches a filter, with the same rules as the server.
func matchesFilter(f client.RunListOptions, r task.Run) bool {
	states := f.States
	if f.State != "" {
		states = append(slices.Clone(states), f.State)
	}

	return (f.Parts || f.Node != "" || !task.IsPart(r.ID)) && (len(states) == 0 || slices.Contains(states, r.State)) && (f.Node == "" || r.Node == f.Node) &&
		(f.Since.IsZero() || !r.ScheduledTime.Before(f.Since)) && (f.Until.IsZero() || r.ScheduledTime.Before(f.Until))
}

// watchRun implements run get -w. It ends with the run.
func watchRun(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run, zone string) error {
	w := &watch.List[task.Run]{Factory: f, Client: c, Events: client.EventOptions{Namespace: r.Namespace, Task: r.Task, Kinds: []string{task.EventRun}}}
	w.Affects = func(e task.Event) (string, bool) { return "", e.Run == r.ID }
	w.Read = func(ctx context.Context, _ int) ([]task.Run, error) {
		now, err := c.Runs.Get(ctx, r.Namespace, r.Task, r.ID)
		return []task.Run{now}, err
	}

	w.Table = func(list []task.Run, wide bool) *output.Table {
		return view.RunTable(f, list, true, wide, view.Zones{"": zone})
	}

	w.Page = func(list []task.Run) string {
		d := &output.Details{Printer: &f.Printer}
		describeRun(f, d, list[0], zone)
		return d.String()
	}

	w.Key, w.Name, w.Comparable = selection.RunName, selection.RunName, func(r task.Run) any { return r }
	w.Removed = func(key string) any { return watch.Removed{ID: key, Left: true} }
	w.Done = func(list []task.Run) bool { return len(list) == 1 && list[0].State.Final() }
	w.Moving = func(list []task.Run) bool { return len(list) == 1 && list[0].State.Active() } // the progress of an active run changes without events

	return w.Run(ctx)
}
