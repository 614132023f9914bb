package cli

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func nodeCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Aliases: []string{"nodes"}, Short: "The daemons that are present: what they run and own"}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "change", Title: "Change:"})
	factory.AddGroup(cmd, "look", nodeList(f), nodeGet(f))
	factory.AddGroup(cmd, "change", nodeDrain(f), nodeCordon(f), nodeResume(f))
	return cmd
}

func nodeList(f *factory.Factory) *cobra.Command {
	var follow bool
	var selector string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the nodes that are present",
		Long: "List the nodes that are present. STATE says what a node takes: one that is pressed is beyond a limit of its own\n" +
			"(max_load, min_memory_free, min_disk_free) and has no new runs meanwhile.",
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
			nodes, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			nodes = accepted(wanted, nodes)
			return output.EmitList(&f.Printer, nodes, func(n task.Node) string { return n.Name }, func(wide bool) *output.Table { return nodeGrid(f, nodes, wide) })
		},
	}
	watch.BindFlag(cmd, &follow)
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "nodes whose labels and facts match, such as 'zone=a, disk_free > 10Gi'")
	return cmd
}

// accepted are the nodes that match.
func accepted(wanted task.Selector, nodes []task.Node) []task.Node {
	return slices.DeleteFunc(nodes, func(n task.Node) bool { return !wanted.Accepts(&n) })
}

func nodeGrid(f *factory.Factory, nodes []task.Node, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "STATE", "ROLES", "RUNNING", "SHARDS", "UP", "ADDRESS", "VERSION"}, Empty: "no node is present"}
	if wide {
		g.Headers = append(append(g.Headers, factHeads...), "WEIGHT", "INSTANCE", "LABELS")
	}
	for _, n := range nodes {
		row := []string{n.Name, nodeState(f, n), output.OneLine(strings.Join(n.Roles, ",")), fmt.Sprintf("%d/%d", n.Running, n.Slots),
			fmt.Sprint(n.Shards), upWords(f, n), output.OneLine(n.Address), output.OneLine(n.Version)}
		if wide {
			row = append(append(row, factCells(f, n.Facts)...), fmt.Sprint(n.Weight), output.OneLine(n.Instance), output.Labels(n.Labels))
		}
		g.AddRow(row...)
	}
	return g
}

func nodeState(f *factory.Factory, n task.Node) string {
	switch {
	case n.Unfit != "": // it owns no shards, whatever its state
		return f.Paint(output.Red, output.OneLine(n.State+", "+n.Unfit+pressedWords(n)))
	case len(n.Pressed) > 0:
		return f.Paint(output.Yellow, output.OneLine(n.State+pressedWords(n)))
	case n.State == task.NodeReady:
		return f.Paint(output.Green, n.State)
	}
	return f.Paint(output.Yellow, output.OneLine(n.State))
}

// pressedWords say what is beyond a limit of the node's own.
func pressedWords(n task.Node) string {
	if len(n.Pressed) == 0 {
		return ""
	}
	return ", pressed: " + strings.Join(n.Pressed, " ")
}

// unfitWords say why a node owns no shards.
func unfitWords(n task.Node) string {
	switch n.Unfit {
	case "":
		return ""
	case task.UnfitClock:
		return ": owns no shards, as its clock jumped, or differs from that of other nodes"
	case task.UnfitStalled:
		return ": owns no shards for a while, as it did not decide what was due"
	case task.UnfitRestored:
		return ": owns no shards, as etcd was restored from an older snapshot"
	}
	return ": owns no shards"
}

func upWords(f *factory.Factory, n task.Node) string {
	if n.StartedAt.IsZero() {
		return f.NoValue()
	}
	return output.Duration(max(f.Now().Sub(n.StartedAt.Time), 0))
}

func nodeGet(f *factory.Factory) *cobra.Command {
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
			n, err := c.Node(cmd.Context(), words[0])
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

func describeNode(f *factory.Factory, d *output.Details, n task.Node) {
	d.Field("Name", "%s", n.Name)
	d.StyledField("State", nodeState(f, n)+unfitWords(n))
	d.Field("Roles", "%s", strings.Join(n.Roles, ", "))
	d.Field("Labels", "%s", output.Labels(n.Labels))
	d.Field("Running", "%d of %d slots", n.Running, n.Slots)
	d.Field("Shards", "%d, weight %d", n.Shards, n.Weight)
	describeFacts(f, d, n.Facts)
	d.Field("Address", "%s", n.Address)
	d.Field("Version", "%s", n.Version)
	d.Field("Instance", "%s, up %s", n.Instance, upWords(f, n))
	d.Field("Leases", "%s", strings.Join(n.Leases, ", "))
}

func missingNode(f *factory.Factory, cmd *cobra.Command, c *client.Client, name string, err error) error {
	if !errors.Is(err, task.ErrNotFound) {
		return err
	}
	fail := f.Explain(err)
	nodes, listed := c.Nodes(cmd.Context())
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	if near := task.Nearest(name, names); listed == nil && near != "" && near != name {
		fail.Hint = "did you mean: " + near
	}
	return fail
}

func shardCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "shard", Aliases: []string{"shards"}, Short: "The shards: who owns which, and how far it has come"}
	var follow bool
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the shards with their owners",
		Long:    "List the shards with their owners. All ticks up to a shard's watermark are decided.",
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
			shards, err := c.Shards(cmd.Context())
			if err != nil {
				return err
			}
			return output.EmitList(&f.Printer, shards, func(s task.Shard) string { return fmt.Sprint(s.ID) }, func(wide bool) *output.Table { return shardGrid(f, shards, wide) })
		},
	}
	watch.BindFlag(list, &follow)
	cmd.AddCommand(list)
	return cmd
}

func shardGrid(f *factory.Factory, shards []task.Shard, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"SHARD", "NODE", "SINCE", "WATERMARK", "TASKS", "QUEUED"}, Empty: "no shards"}
	if wide {
		g.Headers = append(g.Headers, "FENCE", "BEFORE")
	}
	for _, s := range shards {
		watermark := f.NoValue()
		if s.Watermark.UnixMilli() > 0 {
			watermark = f.PastTime(s.Watermark, "UTC")
		}
		row := []string{fmt.Sprint(s.ID), cmp.Or(output.OneLine(s.Node), f.Paint(output.Red, "nobody")), f.PastTime(s.Since, "UTC"), watermark, fmt.Sprint(s.Tasks), fmt.Sprint(s.Queued)}
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

// versionInfo is what version prints: this program, and what answers.
type versionInfo struct {
	Version string          `json:"version"`
	Go      string          `json:"go"`
	Server  *client.Version `json:"server"`
}

func versionCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of this program and of the server",
		Example: "  carillon version\n  carillon version -o json",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionInfo{Version: version(f), Go: runtime.Version()}
			c, err := f.ConnectFor(min(f.LookupTimeout, f.Timeout))
			var server client.Version
			if err == nil {
				server, err = c.Version(cmd.Context())
			}
			if err == nil {
				v.Server = &server
			}
			// A server that is away is no failure: the program's version is known.
			return output.EmitOne(&f.Printer, v, v.Version, func(d *output.Details) {
				d.Field("Client", "%s (%s)", v.Version, v.Go)
				if err != nil {
					f.Note("server: %s", output.OneLine(err.Error()))
					return
				}
				d.Field("Server", "%s (%s) on node %s, cluster %s", server.Version, server.Go, server.Node, server.Cluster)
			})
		},
	}
}

func version(f *factory.Factory) string {
	if f.Version != "" {
		return f.Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
