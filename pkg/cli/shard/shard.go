// Package shard implements "carillon shard": the owners of shards and their watermarks.
// It is small because each noun of the command line has a package of its own.
package shard

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon shard".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "shard", Aliases: []string{"shards"}, Short: "Show the shards and their owners"}
	var follow bool
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List shards with their owners",
		Long:    "List shards with their owners. All ticks up to the watermark of a shard have been decided.",
		Example: "  carillon shard list\n  carillon shard list -o json | jq '.[] | select(.node == \"\")'",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}
			if follow {
				return watchShards(cmd.Context(), f, c)
			}

			shards, err := c.Shards.List(cmd.Context())
			if err != nil {
				return err
			}

			return output.EmitList(&f.Printer, shards, func(s task.Shard) string { return fmt.Sprint(s.ID) }, func(wide bool) *output.Table { return shardTable(f, shards, wide) })
		},
	}

	watch.BindFlag(list, &follow)
	cmd.AddCommand(list)

	return cmd
}

// shardTable returns the table of shards.
func shardTable(f *factory.Factory, shards []task.Shard, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"SHARD", "NODE", "SINCE", "WATERMARK", "TASKS", "QUEUED"}, Empty: "no shards"}
	if wide {
		g.Headers = append(g.Headers, "FENCE", "PREVIOUS OWNER")
	}

	for _, s := range shards {
		watermark := f.NoValue()
		if s.Watermark.UnixMilli() > 0 {
			watermark = f.PastTime(s.Watermark, output.ReaderZone)
		}

		row := []string{fmt.Sprint(s.ID), cmp.Or(output.OneLine(s.Node), f.Paint(output.Red, "nobody")), f.PastTime(s.Since, output.ReaderZone), watermark, fmt.Sprint(s.Tasks), fmt.Sprint(s.Queued)}
		if wide {
			var before []string
			for _, p := range s.Previous {
				before = append(before, output.OneLine(p.Node))
			}
			row = append(row, fmt.Sprint(s.Fence), cmp.Or(strings.Join(before, ", "), f.NoValue()))
		}

		g.AddRow(row...)
	}

	return g
}

// watchShards implements shard list -w. Progress of the watermark does not count as a change.
func watchShards(ctx context.Context, f *factory.Factory, c *client.Client) error {
	w := &watch.List[task.Shard]{Factory: f, Client: c, Events: client.EventOptions{Kinds: []string{task.EventShard}}}
	w.Affects = func(task.Event) (string, bool) { return "", true }
	w.Read = func(ctx context.Context, _ int) ([]task.Shard, error) { return c.Shards.List(ctx) }
	w.Table, w.Key = func(shards []task.Shard, wide bool) *output.Table { return shardTable(f, shards, wide) }, func(s task.Shard) string { return fmt.Sprint(s.ID) }
	w.Name = w.Key
	w.Comparable = func(s task.Shard) any { s.Watermark, s.Tasks, s.Queued = task.Time{}, 0, 0; return s }
	w.Removed = func(key string) any { return watch.Removed{Name: key, Left: true} }

	return w.Run(ctx)
}
