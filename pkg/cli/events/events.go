// Package events implements "carillon events".
package events

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// eventFlags contains the flags of the command.
type eventFlags struct {
	follow bool
	since  string
	task   string
	kinds  []string
	limit  int
}

// usualSince is the default age of the first event in a list.
const usualSince = time.Hour

// Command returns "carillon events".
func Command(f *factory.Factory) *cobra.Command {
	var o eventFlags
	cmd := &cobra.Command{
		Use:     "events",
		Aliases: []string{"event"},
		Short:   "Show what happened to tasks, runs, alerts, shards and nodes",
		Long: "Show the events of tasks, runs, alerts, shards, nodes and the cluster in order, and who caused them. With -f, the command\n" +
			"continues with new events, even when the server restarts. Events of shards, nodes and the cluster are shown only with\n" +
			"-A or if you name them in --kind.\n\n" +
			"Events exist as long as etcd keeps its revisions; carillon cluster status shows the oldest. If events are missing, the\n" +
			"command says so.",
		Example: `  carillon events
  carillon events -f
  carillon events --since 15m --task nightly-backup
  carillon events --since 2d --limit 20
  carillon events -f -A --kind shard,node
  carillon events --since 2026-11-20T22:00:00Z -o jsonl`,
		Args: factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return watchEvents(cmd.Context(), f, o) },
	}

	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "follow new events; starts now unless you set --since")
	cmd.Flags().StringVar(&o.since, "since", "", "start at this `TIME`, a duration ago such as 15m, or at an etcd revision (default 1h, with -f now)")
	cmd.Flags().StringVar(&o.task, "task", "", "show only events of this `TASK` and its runs")
	cmd.Flags().StringSliceVar(&o.kinds, "kind", nil, "show only events of these `KINDS`: "+strings.Join(task.EventKinds(), ", "))
	cmd.Flags().IntVar(&o.limit, "limit", 0, "show only the newest `N` events (default: all)")
	complete.RegisterFixed(cmd, "kind", task.EventKinds()...)
	_ = cmd.RegisterFlagCompletionFunc("limit", cobra.NoFileCompletions) // the flag exists
	_ = cmd.RegisterFlagCompletionFunc("task", complete.Tasks(f))        // the flag exists

	return cmd
}

// watchEvents prints or follows events.
func watchEvents(ctx context.Context, f *factory.Factory, o eventFlags) error {
	switch {
	case o.limit < 0:
		return failure.Usage("--limit %d: must be at least 1, or 0 for all", o.limit)
	case o.limit > 0 && o.follow:
		return failure.Usage("--limit cannot be used with -f, which has no newest event").WithHint("to begin later: --since")
	}

	opts, err := eventOptions(f, o)
	if err != nil {
		return err
	}

	c, err := f.Connect()
	if err != nil {
		return err
	}
	if !o.follow {
		return printEvents(f, o, newestEvents(c.Events.All(ctx, opts), o.limit), f.Format == output.FormatJSON)
	}

	opts.Lost = func(err error) {
		if err == nil {
			f.Note("the server is back")
			return
		}
		f.Note("waiting for the server: %s", err)
	}

	return printEvents(f, o, c.Events.Follow(ctx, opts), false)
}

// newestEvents returns the last n events, or all if n is 0. It ends with the first error.
func newestEvents(events iter.Seq2[task.Event, error], n int) iter.Seq2[task.Event, error] {
	if n == 0 {
		return events
	}

	return func(yield func(task.Event, error) bool) {
		var newest []task.Event // at most 2n, so that each is moved once
		for e, err := range events {
			if err != nil {
				yield(task.Event{}, err)
				return
			}
			if newest = append(newest, e); len(newest) == 2*n {
				newest = slices.Delete(newest, 0, n)
			}
		}

		for _, e := range newest[max(0, len(newest)-n):] {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// eventOptions converts the flags to options of the client.
func eventOptions(f *factory.Factory, o eventFlags) (client.EventOptions, error) {
	opts := client.EventOptions{Namespace: f.Scope(), Kinds: o.kinds}

	for _, k := range o.kinds {
		if !slices.Contains(task.EventKinds(), k) {
			e := failure.Usage("--kind %s: use %s", task.Quote(k), strings.Join(task.EventKinds(), ", "))
			if near := task.Nearest(k, task.EventKinds()); near != "" {
				e.Hint = "did you mean: --kind " + near
			}
			return opts, e
		}
	}

	if o.task != "" {
		r, err := selection.ParseRef(f, o.task)
		if err != nil {
			return opts, err
		}
		opts.Namespace, opts.Task = r.Namespace, r.Name
	}

	return opts, parseSince(f, o, &opts)
}

// parseSince parses --since: a revision, a duration, or a time.
func parseSince(f *factory.Factory, o eventFlags, opts *client.EventOptions) error {
	if o.since == "" {
		if !o.follow {
			opts.Since = f.Now().Add(-usualSince)
		}
		return nil
	}

	if p, err := task.ParsePlace(o.since); err == nil {
		if p.Index == task.Whole && p.Revision > 0 { // include the revision itself
			p.Revision--
		}
		opts.After = p.String()
		return nil
	}

	var err error
	opts.Since, err = f.ParseTime("since", o.since, f.Zone(output.ReaderZone), schedule.Past)

	return err
}

// printEvents prints events as they arrive. array prints them as one JSON array, which is possible only if they
// end.
func printEvents(f *factory.Factory, o eventFlags, events iter.Seq2[task.Event, error], array bool) error {
	list := []task.Event{}
	n := 0
	for e, err := range events {
		if err != nil {
			return err
		}

		n++

		switch {
		case array:
			list = append(list, e)
		case f.Format == output.FormatJSON:
			err = f.EmitJSON(e)
		case f.Format == output.FormatJSONL:
			err = f.EmitLines(1, func(int) ([]byte, error) { return output.CompactJSON(e) })

		case f.Format == output.FormatName:
			err = f.Print(e.ID + "\n")
		case f.Format == output.FormatYAML:
			if n > 1 {
				err = f.Print("---\n")
			}

			if err == nil {
				err = f.EmitYAML(1, func(int) any { return e })
			}

		default:
			err = printEvent(f, e, n == 1 && !f.NoHeaders)
		}

		if err != nil {
			return err
		}
	}

	if array {
		return f.EmitJSON(list)
	}

	if n == 0 && f.ForPeople() {
		what := "no events"
		if o.task != "" || len(o.kinds) > 0 {
			what = "no matching events"
		}
		f.Note("%s%s", what, selection.InScope(f))
	}

	return nil
}

// The columns have fixed widths, because lines are printed one by one.
var eventHeads = []string{"REVISION", "TIME", "KIND", "SUBJECT", "EVENT"}

// usualEvent returns cells of the usual widths. Its time has seconds, because they are not shown if they are zero.
func usualEvent(f *factory.Factory) []string {
	yesterday := task.At(f.Now().AddDate(0, 0, -1).Truncate(time.Minute).Add(59 * time.Second))
	return []string{"1234567890", f.ExactTime(yesterday, output.ReaderZone), "cluster", strings.Repeat("x", 28), "20060102T150405.000Z-abcd-efgh dispatched to node-1"}
}

// printEvent prints one event as a line, with headings above the first one.
func printEvent(f *factory.Factory, e task.Event, heads bool) error {
	g := &output.Table{Headers: eventHeads, Rows: [][]string{usualEvent(f), eventCells(f, e)}}
	if len(f.Columns) == 0 && f.Format != output.FormatWide {
		g.Headers, g.Rows[0], g.Rows[1] = g.Headers[1:], g.Rows[0][1:], g.Rows[1][1:]
	}

	g, err := f.SelectColumns(g)
	if err != nil {
		return err
	}

	l, rows := output.Lines{Headers: g.Headers, Usual: g.Rows[0]}, g.Rows[1:]
	if heads {
		rows = append([][]string{g.Headers}, rows...)
	}

	return f.Print(l.Format(&f.Printer, rows...))
}

// eventCells returns the cells of an event.
func eventCells(f *factory.Factory, e task.Event) []string {
	at := f.NoValue()
	if !e.Time.IsZero() {
		at = f.ExactTime(task.At(e.Time.Truncate(time.Second)), output.ReaderZone)
		if e.Approximate {
			at += "~"
		}
	}

	object := ""

	switch {
	case e.Task != "" && (f.AllNamespaces || e.Namespace != f.Namespace()):
		object = e.Namespace + "/" + e.Task
	case e.Task != "":
		object = e.Task
	case e.Secret != "" && (f.AllNamespaces || e.Namespace != f.Namespace()):
		object = e.Namespace + "/" + e.Secret
	case e.Secret != "":
		object = e.Secret
	case e.Kind == task.EventShard && e.Shard != nil:
		object = fmt.Sprint(*e.Shard)
	case e.Kind == task.EventNode:
		object = e.Node
	case e.Kind == task.EventCluster:
		object = e.Namespace
	}

	words := f.Plain(wording.EventText(e))
	if e.Kind == task.EventGap {
		words = f.Paint(output.Yellow, words)
	}

	return []string{e.ID, at, e.Kind, output.OneLine(cmp.Or(object, f.NoValue())), words}
}
