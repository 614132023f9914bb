package restore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
	"github.com/carillonhq/carillon/pkg/task"
)

// goneAll in the list of nodes that are gone stands for all of them.
const goneAll = "all"

// CheckNodes checks that no node of the lost cluster decides ticks. Each node of the backup must answer that it has no session with
// etcd. A node that does not answer may have lost its connection to this host only, and go on, so it counts as alive unless it is in
// gone: then somebody has made sure that it is off, and stays off. self is the node of this host, which the caller has proved to be stopped.
//
// A node with a session is refused even if it is in gone.
func CheckNodes(ctx context.Context, asker *peerhistory.Asker, c *Content, self string, gone []string) error {
	for _, name := range gone {
		if name != goneAll && !slices.ContainsFunc(c.Nodes, func(n task.Node) bool { return n.Name == name }) {
			return task.Invalid(task.CodeBadValue, "gone", "%s is no node of the backup; its nodes are %s", task.Quote(name), nodeNames(c.Nodes))
		}
	}

	others := slices.DeleteFunc(slices.Clone(c.Nodes), func(n task.Node) bool { return n.Name == self })
	addresses := make([]string, len(others))
	for i, n := range others {
		addresses[i] = n.Address
	}

	var alive, silent, reasons []string
	for i, a := range asker.AskAll(ctx, addresses) {
		name := others[i].Name
		switch {
		case a.Err == nil && a.Cluster != c.Cluster.ID:
			a.Err = fmt.Errorf("a node of cluster %s answers at %s", a.Cluster, a.Address)
		case a.Err == nil && a.Session:
			alive = append(alive, name)
		}

		if a.Err != nil && !slices.Contains(gone, name) && !slices.Contains(gone, goneAll) {
			silent, reasons = append(silent, name), append(reasons, a.Err.Error())
		}
	}

	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(alive) > 0:
		return fmt.Errorf("the cluster is not lost: nodes that have a session with etcd: %s. After the restore, tasks would run in both clusters; stop the agents first, "+
			"until no majority of etcd is left", strings.Join(alive, ", "))
	case len(silent) > 0:
		return fmt.Errorf("cannot find out whether the cluster still runs: no answer from %s (%s). A node that is only cut off would run tasks beside "+
			"the restored cluster. Start its agent, which may stay without etcd, or switch its host off for good and add --gone %s", strings.Join(silent, ", "),
			strings.Join(reasons, "; "), strings.Join(silent, ","))
	}

	return nil
}

func nodeNames(nodes []task.Node) string {
	if len(nodes) == 0 {
		return "not in it"
	}

	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}

	return strings.Join(names, ", ")
}
