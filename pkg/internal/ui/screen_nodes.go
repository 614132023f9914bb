package ui

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

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
	Labels string
}

func loadNodes(ctx context.Context, r *Request) (any, error) {
	nodes, err := r.API.Nodes.List(ctx)
	if err != nil {
		return nil, err
	}

	var p nodesPage
	for _, n := range nodes {
		p.Nodes = append(p.Nodes, nodeRow{Node: n, Look: nodeLook(n), Words: nodeWords(n), Labels: labelsText(n.Labels)})
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

// nodeWords describes the state of a node, as the CLI does.
func nodeWords(n task.Node) string {
	words := []string{n.State}
	if n.Ineligible != "" {
		words = append(words, n.Ineligible)
	}
	if len(n.Blocked) > 0 {
		words = append(words, "blocked: "+strings.Join(n.Blocked, " "))
	}
	if len(n.IgnoredLabels) > 0 {
		words = append(words, "ignored: "+labelsText(n.IgnoredLabels))
	}

	return strings.Join(words, ", ")
}

// labelsText returns labels on one line, sorted by key.
func labelsText(labels map[string]string) string {
	words := make([]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, fmt.Sprintf("%s=%s", k, labels[k]))
	}
	return strings.Join(words, ", ")
}
