package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

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

// watchTask is task get -w.
func watchTask(f *factory.Factory, cmd *cobra.Command, c *client.Client, words []string, p selection.Flags) error {
	l := listing{Flags: p, words: words, sort: client.SortName}
	if (len(words) > 0) == (p.Selector != "") {
		return failure.Usage("which task? name one, or several, or use -l")
	}
	if err := l.check(); err != nil {
		return err
	}
	o, err := listOptions(f, l)
	if err == nil {
		err = areThere(cmd.Context(), f, c, words)
	}
	if err != nil {
		return err
	}
	w := watchedTasks(f, c, o)
	if len(words) == 1 && !selection.IsGlob(words[0]) {
		w.Page = func(list []client.Task) string {
			d := &output.Details{Printer: &f.Printer}
			describe(f, cmd, c, d, list[0])
			return d.String()
		}
	}
	return w.Run(cmd.Context())
}

// watchTasks is task list -w.
func watchTasks(ctx context.Context, f *factory.Factory, c *client.Client, o client.ListOptions) error {
	return watchedTasks(f, c, o).Run(ctx)
}

func watchedTasks(f *factory.Factory, c *client.Client, o client.ListOptions) *watch.List[client.Task] {
	w := &watch.List[client.Task]{Factory: f, Client: c, Events: client.EventOptions{Namespace: o.Namespace, Kinds: []string{task.EventTask, task.EventRun}}}
	w.Affects = func(e task.Event) (string, bool) {
		r := selection.Ref{Namespace: e.Namespace, Name: e.Task}
		return r.String(), len(o.Names) == 0 || slices.ContainsFunc(o.Names, func(n string) bool { return selection.Matches(f, n, r) })
	}
	w.Read = func(ctx context.Context, limit int) ([]client.Task, error) {
		all := o
		if limit > 0 && (all.Limit == 0 || limit < all.Limit) {
			all.Limit = limit
		}
		return listTasks(ctx, f, c, all)
	}
	w.Reread = func(ctx context.Context, keys []string) ([]client.Task, error) {
		var list []client.Task
		for some := range slices.Chunk(keys, 100) { // they are in the query
			part := o
			part.Namespace, part.Names, part.Sort, part.Limit = "", some, client.SortName, 0
			found, err := c.List(ctx, part)
			if err != nil {
				return nil, err
			}
			list = append(list, found...)
		}
		return list, nil
	}
	w.Table, w.Name = func(list []client.Task, wide bool) *output.Table { return taskGrid(f, list, wide) }, func(t client.Task) string { return selection.TaskName(f, t) }
	w.Key = func(t client.Task) string { return t.Namespace + "/" + t.Name }
	w.Comparable = func(t client.Task) any { t.LeftMS = 0; return t }
	w.Removed = func(key string) any {
		ns, name, _ := strings.Cut(key, "/")
		return watch.Removed{Namespace: ns, Name: name, Left: true}
	}
	return w
}

// watchRuns is run list -w.
func watchRuns(ctx context.Context, f *factory.Factory, c *client.Client, filter client.RunFilter, z view.Zones) error {
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
		return c.ListRuns(ctx, all)
	}
	w.Reread = func(ctx context.Context, keys []string) ([]task.Run, error) {
		list := make([]*task.Run, len(keys))
		err := batch.Parallel(ctx, len(keys), func(i int) error {
			part := strings.SplitN(keys[i], "/", 3)
			r, err := c.Run(ctx, part[0], part[1], part[2])
			listed := err == nil && wanted(filter, r)
			if listed && selector != nil { // a run has no labels: ask its task
				var owner client.Task
				owner, err = c.Get(ctx, part[0], part[1])
				listed = err == nil && selector.Matches(owner.Labels)
			}
			if listed {
				list[i] = &r
			}
			if err != nil && failure.IsUnreachable(err) {
				return err
			}
			return nil // it is gone
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

// wanted reports whether a filter lets a run pass, as the server says it.
func wanted(f client.RunFilter, r task.Run) bool {
	states := f.States
	if f.State != "" {
		states = append(slices.Clone(states), f.State)
	}
	return (f.Parts || f.Node != "" || !task.IsPart(r.ID)) && (len(states) == 0 || slices.Contains(states, r.State)) && (f.Node == "" || r.Node == f.Node) &&
		(f.Since.IsZero() || !r.ScheduledTime.Before(f.Since)) && (f.Until.IsZero() || r.ScheduledTime.Before(f.Until))
}

// watchRun is run get -w: it ends when the run does.
func watchRun(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run, zone string) error {
	w := &watch.List[task.Run]{Factory: f, Client: c, Events: client.EventOptions{Namespace: r.Namespace, Task: r.Task, Kinds: []string{task.EventRun}}}
	w.Affects = func(e task.Event) (string, bool) { return "", e.Run == r.ID }
	w.Read = func(ctx context.Context, _ int) ([]task.Run, error) {
		now, err := c.Run(ctx, r.Namespace, r.Task, r.ID)
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
	w.Moving = func(list []task.Run) bool { return len(list) == 1 && list[0].State.Active() } // how far it is
	return w.Run(ctx)
}

// watchNodes is node list -w, or node get -w of one.
func watchNodes(ctx context.Context, f *factory.Factory, c *client.Client, name string, wanted task.Selector) error {
	w := &watch.List[task.Node]{Factory: f, Client: c, Events: client.EventOptions{Kinds: []string{task.EventNode, task.EventShard}}}
	w.Affects = func(task.Event) (string, bool) { return "", true }
	w.Read = func(ctx context.Context, _ int) ([]task.Node, error) {
		nodes, err := c.Nodes(ctx)
		return slices.DeleteFunc(accepted(wanted, nodes), func(n task.Node) bool { return name != "" && n.Name != name }), err
	}
	if name != "" {
		w.Page = func(list []task.Node) string {
			d := &output.Details{Printer: &f.Printer}
			describeNode(f, d, list[0])
			return d.String()
		}
	}
	w.Table, w.Name, w.Key = func(nodes []task.Node, wide bool) *output.Table { return nodeGrid(f, nodes, wide) }, func(n task.Node) string { return n.Name }, func(n task.Node) string { return n.Name }
	w.Comparable = func(n task.Node) any { n.Clock, n.Member, n.Facts = task.Time{}, nil, nil; return n }
	w.Removed = func(key string) any { return watch.Removed{Name: key, Left: true} }
	return w.Run(ctx)
}

// watchShards is shard list -w. A shard that only goes on firing does not change.
func watchShards(ctx context.Context, f *factory.Factory, c *client.Client) error {
	w := &watch.List[task.Shard]{Factory: f, Client: c, Events: client.EventOptions{Kinds: []string{task.EventShard}}}
	w.Affects = func(task.Event) (string, bool) { return "", true }
	w.Read = func(ctx context.Context, _ int) ([]task.Shard, error) { return c.Shards(ctx) }
	w.Table, w.Key = func(shards []task.Shard, wide bool) *output.Table { return shardGrid(f, shards, wide) }, func(s task.Shard) string { return fmt.Sprint(s.ID) }
	w.Name = w.Key
	w.Comparable = func(s task.Shard) any { s.Watermark, s.Tasks, s.Queued = task.Time{}, 0, 0; return s }
	w.Removed = func(key string) any { return watch.Removed{Name: key, Left: true} }
	return w.Run(ctx)
}
