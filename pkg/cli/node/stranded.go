package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxChecked is how many tasks are checked for other nodes.
	maxChecked = 10_000
	// shownStranded is how many tasks are named that have no other node.
	shownStranded = 10
)

// noteStranded prints which tasks no node takes any more without some nodes, and so what would stop. It is additional: if it cannot
// find that out, it prints why.
func noteStranded(ctx context.Context, f *factory.Factory, c *client.Client, without []string) {
	nodes, err := c.Nodes.List(ctx)
	var namespaces []task.Namespace
	if err == nil {
		namespaces, err = c.Namespaces.List(ctx)
	}
	var tasks []client.Task
	if err == nil {
		tasks, err = c.Tasks.List(ctx, client.TaskListOptions{Brief: true, Limit: maxChecked})
	}
	if err != nil {
		f.Note("cannot find out which tasks have no other node: %s", output.OneLine(err.Error()))
		return
	}

	limits := map[string]*task.Namespace{} // whose selectors are joined to those of their tasks
	for i := range namespaces {
		limits[namespaces[i].Name] = &namespaces[i]
	}

	left := slices.DeleteFunc(slices.Clone(nodes), func(n task.Node) bool { return slices.Contains(without, n.Name) })
	var stranded []string
	for _, t := range tasks {
		target, needsKey := t.Target, t.Action.NeedsKey()
		target.Selector = access.JoinSelector(limits[t.Namespace], target.Selector)
		if len(target.Takers(left, needsKey)) == 0 && len(target.Takers(nodes, needsKey)) > 0 {
			stranded = append(stranded, t.Namespace+"/"+t.Name)
		}
	}

	if len(tasks) == maxChecked {
		f.Note("only %d tasks were checked for other nodes", maxChecked)
	}
	if len(stranded) == 0 {
		return
	}

	more := ""
	if rest := len(stranded) - shownStranded; rest > 0 {
		stranded, more = stranded[:shownStranded], fmt.Sprintf(" and %d more", rest)
	}
	f.Note("no other node takes the runs of %s%s: they wait", strings.Join(stranded, ", "), more)
}
