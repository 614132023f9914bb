// Package node implements "carillon node": it lists, shows, drains, cordons and resumes nodes.
package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon node".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Aliases: []string{"nodes"}, Short: "Show and drain nodes"}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "View:"}, &cobra.Group{ID: "change", Title: "Change:"})
	factory.AddGroup(cmd, "look", listCommand(f), getCommand(f))
	factory.AddGroup(cmd, "change", drainCommand(f), cordonCommand(f), resumeCommand(f), limitCommand(f))

	return cmd
}

// listCommand returns "carillon node list".
func listCommand(f *factory.Factory) *cobra.Command {
	var follow bool
	var selector string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List nodes",
		Long: "List the nodes that are online. STATE shows whether a node accepts runs. A node that is blocked is over one of\n" +
			"its own limits (max_load, min_memory_free, min_disk_free) and gets no new runs until it is below the limit again.\n" +
			"\"ignored\" names labels that the node announces and that do not count; see carillon node limit.",
		Example: "  carillon node list\n  carillon node list -o wide\n  carillon node list -w\n  carillon node list -l 'disk_free > 10Gi, load1 < 4'\n" +
			"  carillon node list --columns name,cpus,load,memory-free,disk-free",
		Args: factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := task.ParseSelector(selector)
			if err != nil {
				return task.Under("selector", err)
			}

			c, err := f.Connect()
			if err != nil {
				return err
			}
			if follow {
				return watchNodes(cmd.Context(), f, c, "", wanted)
			}

			nodes, err := c.Nodes.List(cmd.Context())
			if err != nil {
				return err
			}

			nodes = matchingNodes(wanted, nodes)

			return output.EmitList(&f.Printer, nodes, func(n task.Node) string { return n.Name }, func(wide bool) *output.Table { return nodeTable(f, nodes, wide) })
		},
	}

	watch.BindFlag(cmd, &follow)
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "select nodes whose labels and facts match this `SELECTOR`, such as 'zone=a, disk_free > 10Gi'")

	return cmd
}

// matchingNodes returns the nodes that match a selector.
func matchingNodes(wanted task.Selector, nodes []task.Node) []task.Node {
	return slices.DeleteFunc(nodes, func(n task.Node) bool { return !wanted.Accepts(&n) })
}

// nodeTable returns the table of nodes.
func nodeTable(f *factory.Factory, nodes []task.Node, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "STATE", "ROLES", "RUNNING", "SHARDS", "UP", "ADDRESS", "VERSION"}, Empty: "no nodes are online"}
	if wide {
		g.Headers = append(append(g.Headers, factHeads...), "WEIGHT", "INSTANCE", "LABELS")
	}

	for _, n := range nodes {
		row := []string{n.Name, nodeState(f, n), output.OneLine(strings.Join(n.Roles, ",")), fmt.Sprintf("%d/%d", n.Running, n.Slots),
			fmt.Sprint(n.Shards), uptimeText(f, n), output.OneLine(n.Address), output.OneLine(n.Version)}
		if wide {
			row = append(append(row, factCells(f, n.Facts)...), fmt.Sprint(n.Weight), output.OneLine(n.Instance), output.Labels(n.Labels)+wording.IgnoredText(n))
		}

		g.AddRow(row...)
	}

	return g
}

// nodeState describes the state of a node.
func nodeState(f *factory.Factory, n task.Node) string {
	color := output.Yellow
	switch {
	case n.Ineligible != "": // it owns no shards, whatever its state is
		color = output.Red
	case len(n.Blocked)+len(n.IgnoredLabels) == 0 && n.State == task.NodeReady:
		color = output.Green
	}

	return f.Paint(color, wording.NodeState(n))
}

// uptimeText returns how long the node's process has been running.
func uptimeText(f *factory.Factory, n task.Node) string {
	if n.StartedAt.IsZero() {
		return f.NoValue()
	}
	return task.Duration(max(f.Now().Sub(n.StartedAt.Time), 0)).Approximate()
}

// getCommand returns "carillon node get".
func getCommand(f *factory.Factory) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:               "get NODE",
		Short:             "Show a node",
		Example:           "  carillon node get db-1\n  carillon node get db-1 -w",
		Args:              factory.Args(1, 1, "the node's name"),
		ValidArgsFunction: complete.Nodes(f),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			n, err := c.Nodes.Get(cmd.Context(), words[0])
			if err != nil {
				return missingNode(f, cmd, c, words[0], err)
			}
			if follow {
				return watchNodes(cmd.Context(), f, c, n.Name, nil)
			}

			return output.EmitOne(&f.Printer, n, n.Name, func(d *output.Details) { describeNode(f, d, n) })
		},
	}

	watch.BindFlag(cmd, &follow)

	return cmd
}

// describeNode adds the details of a node.
func describeNode(f *factory.Factory, d *output.Details, n task.Node) {
	d.Field("Name", "%s", n.Name)
	state := nodeState(f, n)
	if why := wording.IneligibleText(n.Ineligible); why != "" {
		state += ": " + output.OneLine(why)
	}
	d.StyledField("State", state)
	d.Field("Roles", "%s", strings.Join(n.Roles, ", "))
	d.Field("Labels", "%s%s", output.Labels(n.Labels), wording.IgnoredText(n))
	d.Field("Running", "%d of %d slots", n.Running, n.Slots)
	d.Field("Shards", "%d, weight %d", n.Shards, n.Weight)
	describeFacts(f, d, n.Facts)
	d.Field("Address", "%s", n.Address)
	d.Field("Version", "%s", n.Version)
	d.Field("Instance", "%s, up %s", n.Instance, uptimeText(f, n))
	d.Field("Leases", "%s", strings.Join(n.Leases, ", "))
}

// missingNode adds a similar name to the error for a node that does not exist.
func missingNode(f *factory.Factory, cmd *cobra.Command, c *client.Client, name string, err error) error {
	if !errors.Is(err, task.ErrNotFound) {
		return err
	}

	fail := f.Explain(err)
	nodes, listed := c.Nodes.List(cmd.Context())
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}

	if near := task.Nearest(name, names); listed == nil && near != "" && near != name {
		fail.Hint = "did you mean: " + near
	}

	return fail
}

// factHeads are the headings of the columns with a node's facts.
var factHeads = []string{"CPUS", "LOAD", "MEMORY", "MEMORY FREE", "DISK", "DISK FREE"}

// factCells returns the cells of these columns.
func factCells(f *factory.Factory, facts *task.Facts) []string {
	cells := make([]string, len(factHeads))
	for i, name := range []string{task.FactCPUs, task.FactLoad1, task.FactMemory, task.FactMemoryFree, task.FactDisk, task.FactDiskFree} {
		if cells[i] = view.FactText(facts, name); cells[i] == "" {
			cells[i] = f.NoValue()
		}
	}

	return cells
}

// describeFacts adds the facts of a node to its details.
func describeFacts(f *factory.Factory, d *output.Details, facts *task.Facts) {
	d.Field("CPUs", "%s", view.FactText(facts, task.FactCPUs))

	if one := view.FactText(facts, task.FactLoad1); one != "" {
		d.Field("Load", "%s, %s, %s", one, view.FactText(facts, task.FactLoad5), view.FactText(facts, task.FactLoad15))
	}

	free := func(name, of string) string {
		if view.FactText(facts, of) == "" {
			return ""
		}
		return fmt.Sprintf("%s free of %s", view.FactText(facts, name), view.FactText(facts, of))
	}

	d.Field("Memory", "%s", free(task.FactMemoryFree, task.FactMemory))
	d.Field("Disk", "%s", free(task.FactDiskFree, task.FactDisk))
}

// watchNodes implements node list -w, and node get -w if name is set.
func watchNodes(ctx context.Context, f *factory.Factory, c *client.Client, name string, wanted task.Selector) error {
	w := &watch.List[task.Node]{Factory: f, Client: c, Events: client.EventOptions{Kinds: []string{task.EventNode, task.EventShard}}}
	w.Affects = func(task.Event) (string, bool) { return "", true }
	w.Read = func(ctx context.Context, _ int) ([]task.Node, error) {
		nodes, err := c.Nodes.List(ctx)
		return slices.DeleteFunc(matchingNodes(wanted, nodes), func(n task.Node) bool { return name != "" && n.Name != name }), err
	}

	if name != "" {
		w.Page = func(list []task.Node) string {
			d := &output.Details{Printer: &f.Printer}
			describeNode(f, d, list[0])
			return d.String()
		}
	}

	w.Table, w.Name, w.Key = func(nodes []task.Node, wide bool) *output.Table { return nodeTable(f, nodes, wide) }, func(n task.Node) string { return n.Name }, func(n task.Node) string { return n.Name }
	w.Comparable = func(n task.Node) any { n.Clock, n.Member, n.Facts = task.Time{}, nil, nil; return n }
	w.Removed = func(key string) any { return watch.Removed{Name: key, Left: true} }

	return w.Run(ctx)
}
