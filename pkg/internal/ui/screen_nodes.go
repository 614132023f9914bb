package ui

import (
	"context"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// nodesScreen lists the nodes, as "carillon node list" does.
func nodesScreen() Screen {
	return Screen{
		Name: "nodes", Pattern: "/ui/nodes", Nav: "nodes",
		Title:   func(*View) string { return "Nodes" },
		Load:    loadNodes,
		Command: func(*View) []string { return []string{"carillon", "node", "list", "-o", "wide"} },
		Parts:   []Part{{Name: "nodes"}},
	}
}

// nodesPage is what the screen shows.
type nodesPage struct {
	Nodes []nodeRow
}

// nodeRow is a node in the list.
type nodeRow struct {
	task.Node
	Look   string // whose looks the state has
	Words  string // "ready, blocked: load1"
	Why    string // why it owns no shards
	Labels string
}

func loadNodes(ctx context.Context, r *Request) (any, error) {
	nodes, err := r.API.Nodes.List(ctx)
	if err != nil {
		return nil, err
	}

	var p nodesPage
	for _, n := range nodes {
		p.Nodes = append(p.Nodes, nodeRow{Node: n, Look: nodeLook(n), Words: wording.NodeState(n), Why: strings.TrimPrefix(wording.IneligibleText(n), ": "), Labels: wording.Labels(n.Labels)})
	}

	return p, nil
}

// nodeLook returns whose looks the state of a node has: that of its state, unless something keeps it from working.
func nodeLook(n task.Node) string {
	switch {
	case n.Ineligible != "":
		return string(task.Failed)
	case len(n.Blocked)+len(n.IgnoredLabels) > 0:
		return task.NodeCordoned
	}
	return n.State
}
