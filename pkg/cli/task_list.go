package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) taskList() *cobra.Command {
	var p pick
	var order string
	var limit int
	cmd := &cobra.Command{
		Use:     "list [GLOB...]",
		Aliases: []string{"ls"},
		Short:   "List tasks: when they run next, how they fared",
		Example: `  carillon task list
  carillon task list -A --sort next
  carillon task list -l team=data -o json
  carillon task list 'nightly-*' -o name`,
		ValidArgsFunction: a.completeTasks,
	}
	p.bind(cmd, false)
	cmd.Flags().StringVar(&order, "sort", "name", "name, next or last")
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many (0: all)")
	completeFixed(cmd, "sort", "name", "next", "last")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if limit < 0 {
			return usage("--limit %d: must not be negative", limit)
		}
		less, ok := orders[order]
		if !ok {
			return usage("--sort %s: use name, next or last", quote(order))
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		list, err := a.listed(cmd, c, words, p)
		if err != nil {
			return err
		}
		slices.SortStableFunc(list, less)
		if limit > 0 && len(list) > limit {
			list = list[:limit]
		}
		a.noteFrozen(cmd.Context(), c, a.scope())
		return emitList(a, list, a.taskName, func(wide bool) *grid { return a.taskGrid(list, wide) })
	}
	return cmd
}

// listed reads the tasks that a list is of: all, or those that match.
func (a *app) listed(cmd *cobra.Command, c *client.Client, words []string, p pick) ([]client.Task, error) {
	if _, err := task.ParseSelector(p.selector); err != nil {
		return nil, task.Under("selector", err)
	}
	list, err := c.List(cmd.Context(), client.ListOptions{Namespace: a.scope(), Selector: p.selector})
	if err != nil || len(words) == 0 {
		return list, err
	}
	all := make([]ref, len(list))
	for i, t := range list {
		all[i] = ref{t.Namespace, t.Name}
	}
	wanted := map[ref]bool{}
	for _, word := range words {
		found, err := a.matching(word, all)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			if !slices.Contains(all, r) {
				return nil, a.missing(cmd.Context(), c, r, &client.Error{Status: 404, Code: client.CodeNotFound,
					Message: "task " + quote(a.show(r)) + " does not exist"})
			}
			wanted[r] = true
		}
	}
	return slices.DeleteFunc(list, func(t client.Task) bool { return !wanted[ref{t.Namespace, t.Name}] }), nil
}

var orders = map[string]func(x, y client.Task) int{
	"name": func(x, y client.Task) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	},
	"next": func(x, y client.Task) int { return cmp.Compare(nextOrNever(x), nextOrNever(y)) },
	"last": func(x, y client.Task) int { return cmp.Compare(lastMillis(y), lastMillis(x)) },
}

func nextOrNever(t client.Task) int64 {
	if t.Next.IsZero() {
		return 1 << 62
	}
	return t.Next.UnixMilli()
}

func lastMillis(t client.Task) int64 {
	if t.LastRun == nil {
		return 0
	}
	return lastSeen(*t.LastRun).UnixMilli()
}

func (a *app) taskGrid(list []client.Task, wide bool) *grid {
	g := &grid{empty: "no tasks" + a.inScope()}
	if a.allNamespaces {
		g.heads = append(g.heads, "NAMESPACE")
	}
	g.heads = append(g.heads, "NAME", "SCHEDULE", "NEXT", "LEFT", "LAST", "RESULT")
	if wide {
		g.heads = append(g.heads, "NODE", "OVERLAP", "LABELS", "REVISION", "DESCRIPTION")
	}
	for _, t := range list {
		var row []string
		if a.allNamespaces {
			row = append(row, t.Namespace)
		}
		row = append(row, t.Name, scheduleWords(t.Spec))
		row = append(row, a.nextCells(t)...)
		row = append(row, a.lastCells(t)...)
		if wide {
			node := ""
			if t.LastRun != nil {
				node = t.LastRun.Node
			}
			row = append(row, node, t.Overlap, labelWords(t.Labels), fmt.Sprint(t.Revision), oneLine(t.Description))
		}
		g.add(row...)
	}
	return g
}

func (a *app) inScope() string {
	if a.allNamespaces {
		return ""
	}
	return " in namespace " + a.namespace()
}

// scheduleWords is a schedule and, unless it is UTC, where it counts.
func scheduleWords(s task.Spec) string {
	words := oneLine(strings.Join(s.Schedule, ", "))
	if s.Timezone == "" || s.Timezone == "UTC" {
		return words
	}
	return words + " " + strings.ReplaceAll(oneLine(s.Timezone[strings.LastIndex(s.Timezone, "/")+1:]), "_", " ")
}

// nextCells are NEXT and LEFT.
func (a *app) nextCells(t client.Task) []string {
	switch {
	case t.Paused:
		return []string{a.paint(yellow, a.pausedWords(t)), a.none()}
	case t.Next.IsZero() && manual(t.Spec):
		return []string{"when triggered", a.none()}
	case t.NoNext != "":
		return []string{"no more ticks", a.none()}
	case t.Next.IsZero():
		return []string{a.none(), a.none()}
	}
	return []string{a.coming(t.Next, t.Timezone), a.left(t.Next)}
}

// lastCells are LAST and RESULT.
func (a *app) lastCells(t client.Task) []string {
	if t.LastRun == nil {
		return []string{a.none(), a.none()}
	}
	r := *t.LastRun
	last := a.gone(lastSeen(r), t.Timezone)
	if !r.State.Active() && r.State != task.Queued {
		if d := took(r, a.now()); d >= 0 {
			last += ", " + span(d)
		}
	}
	return []string{last, a.result(r)}
}

func labelWords(labels map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k+"="+labels[k])
	}
	return oneLine(strings.Join(words, ","))
}

// lastSeen is the last thing that is known to have happened to a run.
func lastSeen(r task.Run) task.Time {
	for _, t := range []task.Time{r.EndedAt, r.StartedAt, r.DispatchedAt, r.CreatedAt, r.Last} {
		if !t.IsZero() {
			return t
		}
	}
	return r.ScheduledTime
}

// took is how long an attempt has run, up to now if it still does; negative if
// it has not started.
func took(r task.Run, now time.Time) time.Duration {
	switch {
	case r.StartedAt.IsZero():
		return -1
	case r.EndedAt.IsZero():
		return max(now.Sub(r.StartedAt.Time), 0)
	}
	return max(r.EndedAt.Sub(r.StartedAt.Time), 0)
}
