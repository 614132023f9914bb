package task

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// watchTask implements task get -w.
func watchTask(f *factory.Factory, cmd *cobra.Command, c *client.Client, words []string, p selection.Flags) error {
	l := listFlags{Flags: p, words: words, sort: client.SortName}

	if (len(words) > 0) == (p.Selector != "") {
		return failure.Usage("no task given; name one or more tasks, or use -l")
	}
	if err := l.checkFlags(); err != nil {
		return err
	}

	o, err := listOptions(f, l)
	if err == nil {
		err = areThere(cmd.Context(), f, c, words)
	}

	if err != nil {
		return err
	}

	w := watchedTasks(f, c, o, l)
	if namesOne(words) {
		table := w.Table
		w.Table = func(list []client.Task, wide bool) *output.Table {
			if len(list) == 1 {
				f.AboutTask(list[0].Timezone)
			}
			return table(list, wide)
		}
		w.Page = func(list []client.Task) string {
			f.AboutTask(list[0].Timezone)
			d := &output.Details{Printer: &f.Printer}
			describeTask(f, cmd, c, d, list[0])
			return d.String()
		}
	}

	return w.Run(cmd.Context())
}

// watchedTasks returns a list that follows the changes of tasks. o are the options for l.
func watchedTasks(f *factory.Factory, c *client.Client, o client.TaskListOptions, l listFlags) *watch.List[client.Task] {
	w := &watch.List[client.Task]{Factory: f, Client: c, Events: client.EventOptions{Namespace: o.Namespace, Kinds: []string{task.EventTask, task.EventRun}}}
	w.Affects = func(e task.Event) (string, bool) {
		r := selection.Ref{Namespace: e.Namespace, Name: e.Task}
		return r.String(), len(l.words) == 0 || slices.ContainsFunc(l.words, func(word string) bool { return selection.Matches(f, word, r) })
	}

	var info client.ListInfo // of the last read
	listed := 0
	w.Read = func(ctx context.Context, limit int) ([]client.Task, error) {
		all := o
		if limit > 0 && (all.Limit == 0 || limit < all.Limit) {
			all.Limit = limit
		}

		var read client.ListInfo
		all.Info = read.Include
		list, err := c.Tasks.List(ctx, all)
		if err == nil {
			info, listed = read, len(list)
		}

		return list, err
	}
	w.Footer = func() string { return view.OwnersText(info, listed, f.ForPeople()) }

	// Tasks are read by name from etcd, which costs little and is current. Whether they match a selector or are in a
	// state is decided here. The terms of a query and the order are known only to the owners of the shards.
	byOwners := l.Selector != "" || l.failing || l.paused || l.query != "" || l.sort != client.SortName || slices.ContainsFunc(l.words, selection.IsGlob)
	if byOwners {
		w.Rescan, w.Partial = f.RescanEvery, l.query != ""
	}
	selector, _ := task.ParseSelector(l.Selector) // it was checked before

	w.Reread = func(ctx context.Context, keys []string) ([]client.Task, error) {
		var list []client.Task
		for some := range slices.Chunk(keys, 100) { // keys are part of the URL, whose length is limited
			found, err := c.Tasks.List(ctx, client.TaskListOptions{Query: client.QueryTerm("name", some...), Recent: o.Recent, Brief: o.Brief})
			if err != nil {
				return nil, err
			}

			list = append(list, slices.DeleteFunc(found, func(t client.Task) bool {
				return selector != nil && !selector.Matches(t.Labels) || l.failing && t.State != client.TaskFailing || l.paused && !t.Paused
			})...)
		}

		return list, nil
	}

	w.Table = func(list []client.Task, wide bool) *output.Table {
		g := taskTable(f, list, wide)
		if o.Query != "" {
			g.Empty = "no task matches " + output.OneLine(o.Query)
		}
		return g
	}
	w.Name = func(t client.Task) string { return selection.TaskName(f, t) }
	w.Key = func(t client.Task) string { return t.Namespace + "/" + t.Name }
	w.Comparable = func(t client.Task) any { t.LeftMS = 0; return t }
	w.Removed = func(key string) any {
		ns, name, _ := strings.Cut(key, "/")
		return watch.Removed{Namespace: ns, Name: name, Left: true}
	}

	return w
}
