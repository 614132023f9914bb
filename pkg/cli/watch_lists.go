package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// watchTask is task get -w.
func (a *app) watchTask(cmd *cobra.Command, c *client.Client, words []string, p pick) error {
	l := listing{pick: p, words: words, sort: client.SortName}
	if (len(words) > 0) == (p.selector != "") {
		return failure.Usage("which task? name one, or several, or use -l")
	}
	if err := l.check(); err != nil {
		return err
	}
	o, err := a.listOptions(l)
	if err == nil {
		err = a.areThere(cmd.Context(), c, words)
	}
	if err != nil {
		return err
	}
	w := a.watchedTasks(c, o)
	if len(words) == 1 && !isGlob(words[0]) {
		w.page = func(list []client.Task) string {
			d := &output.Details{Printer: &a.Printer}
			a.describe(cmd, c, d, list[0])
			return d.String()
		}
	}
	return w.run(cmd.Context())
}

// watchTasks is task list -w.
func (a *app) watchTasks(ctx context.Context, c *client.Client, o client.ListOptions) error {
	return a.watchedTasks(c, o).run(ctx)
}

func (a *app) watchedTasks(c *client.Client, o client.ListOptions) *watched[client.Task] {
	w := &watched[client.Task]{app: a, c: c, events: client.EventOptions{Namespace: o.Namespace, Kinds: []string{task.EventTask, task.EventRun}}}
	w.about = func(e task.Event) (string, bool) {
		r := ref{e.Namespace, e.Task}
		return r.String(), len(o.Names) == 0 || slices.ContainsFunc(o.Names, func(n string) bool { return a.matches(n, r) })
	}
	w.list = func(ctx context.Context, limit int) ([]client.Task, error) {
		all := o
		if limit > 0 && (all.Limit == 0 || limit < all.Limit) {
			all.Limit = limit
		}
		return a.listed(ctx, c, all)
	}
	w.fresh = func(ctx context.Context, keys []string) ([]client.Task, error) {
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
	w.draw, w.name = a.taskGrid, a.taskName
	w.key = func(t client.Task) string { return t.Namespace + "/" + t.Name }
	w.still = func(t client.Task) any { t.LeftMS = 0; return t }
	w.gone = func(key string) any {
		ns, name, _ := strings.Cut(key, "/")
		return left{Namespace: ns, Name: name, Left: true}
	}
	return w
}

// left tells programs that something is in a list no more: it was deleted, or does
// not match any longer.
type left struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ID        string `json:"id,omitempty"`
	Left      bool   `json:"left_list"`
}

// watchRuns is run list -w.
func (a *app) watchRuns(ctx context.Context, c *client.Client, f client.RunFilter, z zones) error {
	selector, err := task.ParseSelector(f.Selector)
	if err != nil {
		return task.Under("selector", err)
	}

	w := &watched[task.Run]{app: a, c: c, events: client.EventOptions{Namespace: f.Namespace, Task: f.Task, Kinds: []string{task.EventRun}}}
	w.about = func(e task.Event) (string, bool) { return e.Namespace + "/" + e.Task + "/" + e.Run, true }
	w.key = func(r task.Run) string { return r.Namespace + "/" + r.Task + "/" + r.ID }
	w.list = func(ctx context.Context, limit int) ([]task.Run, error) {
		all := f
		if limit > 0 && (all.Limit == 0 || limit < all.Limit) {
			all.Limit = limit
		}
		return c.ListRuns(ctx, all)
	}
	w.fresh = func(ctx context.Context, keys []string) ([]task.Run, error) {
		list := make([]*task.Run, len(keys))
		err := parallel(ctx, len(keys), func(i int) error {
			part := strings.SplitN(keys[i], "/", 3)
			r, err := c.Run(ctx, part[0], part[1], part[2])
			listed := err == nil && wanted(f, r)
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
	w.draw = func(list []task.Run, wide bool) *output.Table { return a.runGrid(list, true, wide, z) }
	w.name, w.still = runName, func(r task.Run) any { return r }
	w.gone = func(key string) any {
		part := strings.SplitN(key, "/", 3)
		return left{Namespace: part[0], Name: part[1], ID: part[2], Left: true}
	}
	return w.run(ctx)
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
func (a *app) watchRun(ctx context.Context, c *client.Client, r task.Run, zone string) error {
	w := &watched[task.Run]{app: a, c: c, events: client.EventOptions{Namespace: r.Namespace, Task: r.Task, Kinds: []string{task.EventRun}}}
	w.about = func(e task.Event) (string, bool) { return "", e.Run == r.ID }
	w.list = func(ctx context.Context, _ int) ([]task.Run, error) {
		now, err := c.Run(ctx, r.Namespace, r.Task, r.ID)
		return []task.Run{now}, err
	}
	w.draw = func(list []task.Run, wide bool) *output.Table { return a.runGrid(list, true, wide, zones{"": zone}) }
	w.page = func(list []task.Run) string {
		d := &output.Details{Printer: &a.Printer}
		a.describeRun(d, list[0], zone)
		return d.String()
	}
	w.key, w.name, w.still = runName, runName, func(r task.Run) any { return r }
	w.gone = func(key string) any { return left{ID: key, Left: true} }
	w.over = func(list []task.Run) bool { return len(list) == 1 && list[0].State.Final() }
	w.moves = func(list []task.Run) bool { return len(list) == 1 && list[0].State.Active() } // how far it is
	return w.run(ctx)
}

// watchNodes is node list -w, or node get -w of one.
func (a *app) watchNodes(ctx context.Context, c *client.Client, name string, wanted task.Selector) error {
	w := &watched[task.Node]{app: a, c: c, events: client.EventOptions{Kinds: []string{task.EventNode, task.EventShard}}}
	w.about = func(task.Event) (string, bool) { return "", true }
	w.list = func(ctx context.Context, _ int) ([]task.Node, error) {
		nodes, err := c.Nodes(ctx)
		return slices.DeleteFunc(accepted(wanted, nodes), func(n task.Node) bool { return name != "" && n.Name != name }), err
	}
	if name != "" {
		w.page = func(list []task.Node) string {
			d := &output.Details{Printer: &a.Printer}
			a.describeNode(d, list[0])
			return d.String()
		}
	}
	w.draw, w.name, w.key = a.nodeGrid, func(n task.Node) string { return n.Name }, func(n task.Node) string { return n.Name }
	w.still = func(n task.Node) any { n.Clock, n.Member, n.Facts = task.Time{}, nil, nil; return n }
	w.gone = func(key string) any { return left{Name: key, Left: true} }
	return w.run(ctx)
}

// watchShards is shard list -w. A shard that only goes on firing does not change.
func (a *app) watchShards(ctx context.Context, c *client.Client) error {
	w := &watched[task.Shard]{app: a, c: c, events: client.EventOptions{Kinds: []string{task.EventShard}}}
	w.about = func(task.Event) (string, bool) { return "", true }
	w.list = func(ctx context.Context, _ int) ([]task.Shard, error) { return c.Shards(ctx) }
	w.draw, w.key = a.shardGrid, func(s task.Shard) string { return fmt.Sprint(s.ID) }
	w.name = w.key
	w.still = func(s task.Shard) any { s.Watermark, s.Tasks, s.Queued = task.Time{}, 0, 0; return s }
	w.gone = func(key string) any { return left{Name: key, Left: true} }
	return w.run(ctx)
}
