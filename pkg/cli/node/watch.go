package node

import (
	"context"
	"slices"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/watch"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

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
