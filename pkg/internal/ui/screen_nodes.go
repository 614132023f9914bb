package ui

import (
	"context"
	"strings"

	"github.com/carillonhq/carillon/pkg/callgroup"
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
	Labels []string
	Late   *int64 // how late it decided ticks in the last minute, in milliseconds; nil if it decided none
	Silent bool   // it schedules, but did not answer
}

func loadNodes(ctx context.Context, r *Request) (any, error) {
	var nodes []task.Node
	var board task.Board
	var err error
	callgroup.Run(
		func() { nodes, err = r.API.Nodes.List(ctx) },
		// The board only adds how late nodes are, so the list is shown without it, too.
		func() { board, _ = r.API.Board.Get(ctx, boardOptions) },
	)
	if err != nil {
		return nil, err
	}

	var p nodesPage
	for _, n := range nodes {
		p.Nodes = append(p.Nodes, nodeRowOf(n, board))
	}

	return p, nil
}

// nodeRowOf returns a node as the list shows it.
func nodeRowOf(n task.Node, board task.Board) nodeRow {
	row := nodeRow{
		Node: n, Look: nodeLook(n), Words: wording.NodeState(n), Labels: strings.Split(wording.Labels(n.Labels), ","),
		Why: wording.IneligibleText(n.Ineligible),
	}

	for _, b := range board.Nodes {
		if b.Name != n.Name {
			continue
		}
		row.Silent = b.Silent
		if b.Recent.Fired > 0 {
			row.Late = &b.Recent.P99MS
		}
	}

	return row
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
