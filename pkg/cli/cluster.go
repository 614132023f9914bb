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

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Aliases: []string{"nodes"}, Short: "The daemons that are present: what they run and own"}
	cmd.AddGroup(&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "change", Title: "Change:"})
	add(cmd, "look", a.nodeList(), a.nodeGet())
	add(cmd, "change", a.nodeDrain(), a.nodeCordon(), a.nodeResume())
	return cmd
}

func (a *app) nodeList() *cobra.Command {
	var watch bool
	var selector string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the nodes that are present",
		Long: "List the nodes that are present. STATE says what a node takes: one that is pressed is beyond a limit of its own\n" +
			"(max_load, min_memory_free, min_disk_free) and has no new runs meanwhile.",
		Example: "  carillon node list\n  carillon node list -o wide\n  carillon node list -w\n  carillon node list -l 'disk_free > 10Gi, load1 < 4'\n" +
			"  carillon node list --columns name,cpus,load,memory-free,disk-free",
		Args: args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := task.ParseSelector(selector)
			if err != nil {
				return task.Under("selector", err)
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			if watch {
				return a.watchNodes(cmd.Context(), c, "", wanted)
			}
			nodes, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			nodes = accepted(wanted, nodes)
			return output.EmitList(&a.Printer, nodes, func(n task.Node) string { return n.Name }, func(wide bool) *output.Table { return a.nodeGrid(nodes, wide) })
		},
	}
	bindWatch(cmd, &watch)
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "nodes whose labels and facts match, such as 'zone=a, disk_free > 10Gi'")
	return cmd
}

// accepted are the nodes that match.
func accepted(wanted task.Selector, nodes []task.Node) []task.Node {
	return slices.DeleteFunc(nodes, func(n task.Node) bool { return !wanted.Accepts(&n) })
}

func (a *app) nodeGrid(nodes []task.Node, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "STATE", "ROLES", "RUNNING", "SHARDS", "UP", "ADDRESS", "VERSION"}, Empty: "no node is present"}
	if wide {
		g.Headers = append(append(g.Headers, factHeads...), "WEIGHT", "INSTANCE", "LABELS")
	}
	for _, n := range nodes {
		row := []string{n.Name, a.nodeState(n), output.OneLine(strings.Join(n.Roles, ",")), fmt.Sprintf("%d/%d", n.Running, n.Slots),
			fmt.Sprint(n.Shards), a.upWords(n), output.OneLine(n.Address), output.OneLine(n.Version)}
		if wide {
			row = append(append(row, a.factCells(n.Facts)...), fmt.Sprint(n.Weight), output.OneLine(n.Instance), output.Labels(n.Labels))
		}
		g.AddRow(row...)
	}
	return g
}

func (a *app) nodeState(n task.Node) string {
	switch {
	case n.Unfit != "": // it owns no shards, whatever its state
		return a.Paint(output.Red, output.OneLine(n.State+", "+n.Unfit+pressedWords(n)))
	case len(n.Pressed) > 0:
		return a.Paint(output.Yellow, output.OneLine(n.State+pressedWords(n)))
	case n.State == task.NodeReady:
		return a.Paint(output.Green, n.State)
	}
	return a.Paint(output.Yellow, output.OneLine(n.State))
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

func (a *app) upWords(n task.Node) string {
	if n.StartedAt.IsZero() {
		return a.NoValue()
	}
	return output.Duration(max(a.Now().Sub(n.StartedAt.Time), 0))
}

func (a *app) nodeGet() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:               "get NODE",
		Short:             "Show a node",
		Example:           "  carillon node get db-1\n  carillon node get db-1 -w",
		Args:              args(1, 1, "the node's name"),
		ValidArgsFunction: a.completeNodes,
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			n, err := c.Node(cmd.Context(), words[0])
			if err != nil {
				return a.missingNode(cmd, c, words[0], err)
			}
			if watch {
				return a.watchNodes(cmd.Context(), c, n.Name, nil)
			}
			return output.EmitOne(&a.Printer, n, n.Name, func(d *output.Details) { a.describeNode(d, n) })
		},
	}
	bindWatch(cmd, &watch)
	return cmd
}

func (a *app) describeNode(d *output.Details, n task.Node) {
	d.Field("Name", "%s", n.Name)
	d.StyledField("State", a.nodeState(n)+unfitWords(n))
	d.Field("Roles", "%s", strings.Join(n.Roles, ", "))
	d.Field("Labels", "%s", output.Labels(n.Labels))
	d.Field("Running", "%d of %d slots", n.Running, n.Slots)
	d.Field("Shards", "%d, weight %d", n.Shards, n.Weight)
	a.describeFacts(d, n.Facts)
	d.Field("Address", "%s", n.Address)
	d.Field("Version", "%s", n.Version)
	d.Field("Instance", "%s, up %s", n.Instance, a.upWords(n))
	d.Field("Leases", "%s", strings.Join(n.Leases, ", "))
}

func (a *app) missingNode(cmd *cobra.Command, c *client.Client, name string, err error) error {
	if !errors.Is(err, task.ErrNotFound) {
		return err
	}
	f := a.explain(err)
	nodes, listed := c.Nodes(cmd.Context())
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	if near := task.Nearest(name, names); listed == nil && near != "" && near != name {
		f.Hint = "did you mean: " + near
	}
	return f
}

func (a *app) shardCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "shard", Aliases: []string{"shards"}, Short: "The shards: who owns which, and how far it has come"}
	var watch bool
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the shards with their owners",
		Long:    "List the shards with their owners. All ticks up to a shard's watermark are decided.",
		Example: "  carillon shard list\n  carillon shard list -o json | jq '.[] | select(.node == \"\")'",
		Args:    args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if watch {
				return a.watchShards(cmd.Context(), c)
			}
			shards, err := c.Shards(cmd.Context())
			if err != nil {
				return err
			}
			return output.EmitList(&a.Printer, shards, func(s task.Shard) string { return fmt.Sprint(s.ID) }, func(wide bool) *output.Table { return a.shardGrid(shards, wide) })
		},
	}
	bindWatch(list, &watch)
	cmd.AddCommand(list)
	return cmd
}

func (a *app) shardGrid(shards []task.Shard, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"SHARD", "NODE", "SINCE", "WATERMARK", "TASKS", "QUEUED"}, Empty: "no shards"}
	if wide {
		g.Headers = append(g.Headers, "FENCE", "BEFORE")
	}
	for _, s := range shards {
		watermark := a.NoValue()
		if s.Watermark.UnixMilli() > 0 {
			watermark = a.PastTime(s.Watermark, "UTC")
		}
		row := []string{fmt.Sprint(s.ID), cmp.Or(output.OneLine(s.Node), a.Paint(output.Red, "nobody")), a.PastTime(s.Since, "UTC"), watermark, fmt.Sprint(s.Tasks), fmt.Sprint(s.Queued)}
		if wide {
			var before []string
			for _, p := range s.Previous {
				before = append(before, output.OneLine(p.Node))
			}
			row = append(row, fmt.Sprint(s.Fence), cmp.Or(strings.Join(before, ", "), a.NoValue()))
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

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of this program and of the server",
		Example: "  carillon version\n  carillon version -o json",
		Args:    args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionInfo{Version: a.version(), Go: runtime.Version()}
			c, err := a.connectFor(min(lookLimit, a.timeout))
			var server client.Version
			if err == nil {
				server, err = c.Version(cmd.Context())
			}
			if err == nil {
				v.Server = &server
			}
			// A server that is away is no failure: the program's version is known.
			return output.EmitOne(&a.Printer, v, v.Version, func(d *output.Details) {
				d.Field("Client", "%s (%s)", v.Version, v.Go)
				if err != nil {
					a.Note("server: %s", output.OneLine(err.Error()))
					return
				}
				d.Field("Server", "%s (%s) on node %s, cluster %s", server.Version, server.Go, server.Node, server.Cluster)
			})
		},
	}
}

func (a *app) version() string {
	if a.Version != "" {
		return a.Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
