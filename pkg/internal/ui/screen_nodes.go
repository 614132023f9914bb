package ui

import (
	"context"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
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

const (
	doDrain  = "drain"
	doCordon = "cordon"
	// nodeRuns is the maximum number of active runs of a node that its page shows.
	nodeRuns = 50
)

// nodeScreen shows a node, as "carillon node get" does, with its runs, and drains or cordons it.
func nodeScreen() Screen {
	const pattern = "/ui/nodes/{node}"

	return Screen{
		Name: "node", Pattern: pattern, Nav: "nodes",
		Title:   func(v *View) string { return v.Value("node") },
		Load:    loadNode,
		Command: nodeCommand,
		Parts:   []Part{{Name: "head"}, {Name: "facts"}, {Name: "runs", Hold: true}},
		Actions: []Action{
			{Pattern: pattern + "/drain", Run: changeNode((*client.NodesService).Drain, "draining %s: its shards and waiting runs move to other nodes")},
			{Pattern: pattern + "/cordon", Run: changeNode((*client.NodesService).Cordon, "cordoned %s: it gets no new runs")},
			{Pattern: pattern + "/resume", Run: changeNode((*client.NodesService).Resume, "resumed %s")},
		},
	}
}

// nodePage is what the screen shows.
type nodePage struct {
	Node    nodeRow
	May     bool // the viewer may drain, cordon and resume it
	Drained bool // it drains, and nothing is left on it
	Stuck   bool // it drains, but no other node can own its shards
	Facts   []setting
	Panel   *nodePanel
	Runs    []task.Run
	More    bool // there are more runs
	Hidden  bool // the viewer may not read runs
}

// nodePanel is the form that drains or cordons a node, with what that would move.
type nodePanel struct {
	Drain bool
	Moves []shardMove // where its shards would go
	Taken int         // how many slots other nodes have free
	Left  string      // why something would not move; ""
}

// shardMove is another node with the shards that it owns, and would own.
type shardMove struct {
	Name      string
	Now, Then int
}

func loadNode(ctx context.Context, r *Request) (any, error) {
	name := r.Value("node")
	n, err := r.API.Nodes.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	nodes, err := r.API.Nodes.List(ctx)
	if err != nil {
		return nil, err
	}

	board, _ := r.API.Board.Get(ctx, boardOptions)
	p := nodePage{Node: nodeRowOf(n, board), Facts: nodeFacts(n)}
	if p.May, err = r.May("operate", "nodes", ""); err != nil {
		return nil, err
	}
	p.Panel = nodePanelOf(r.Query.Get("do"), n, nodes, p.May)

	if n.State == task.NodeDraining {
		p.Drained = n.Shards+n.Running == 0
		p.Stuck = n.Shards > 0 && len(movesOf(n, nodes)) == 0
	}

	// Who reads nodes may not be allowed to read runs.
	p.Runs, err = r.API.Runs.List(ctx, client.RunListOptions{Node: name, States: []task.State{task.Dispatched, task.Running, task.Paused}, Limit: nodeRuns + 1})
	switch {
	case isForbidden(err):
		p.Hidden = true
	case err != nil:
		return nil, err
	case len(p.Runs) > nodeRuns:
		p.Runs, p.More = p.Runs[:nodeRuns], true
	}

	return p, nil
}

// nodePanelOf returns the form that a page shows; nil if it shows none.
func nodePanelOf(do string, n task.Node, nodes []task.Node, may bool) *nodePanel {
	if !may || (do != doDrain && do != doCordon) {
		return nil
	}

	p := &nodePanel{Drain: do == doDrain, Moves: movesOf(n, nodes)}
	executors := 0
	for _, other := range nodes {
		if other.Name != n.Name && other.Takes() {
			executors++
			p.Taken += max(other.Slots-other.Running, 0)
		}
	}

	switch {
	case p.Drain && n.Shards > 0 && len(p.Moves) == 0:
		p.Left = "No other node can own shards now. The drain waits until one can, and this node goes on scheduling meanwhile."
	case executors == 0:
		p.Left = "No other node accepts runs now. Due runs wait until one does."
	}

	return p
}

// movesOf estimates where the shards of a node would go: each node that can own shards has a part of them that corresponds
// to its weight. The leader decides, and moves no other shards.
func movesOf(n task.Node, nodes []task.Node) []shardMove {
	shards, weights := n.Shards, 0
	for _, other := range nodes {
		if other.Name != n.Name && other.Owns() {
			shards += other.Shards
			weights += max(other.Weight, 1)
		}
	}

	var moves []shardMove
	for _, other := range nodes {
		if other.Name == n.Name || !other.Owns() {
			continue
		}
		part := max(other.Weight, 1)
		then := (shards*part + weights/2) / weights
		shards, weights = shards-then, weights-part
		moves = append(moves, shardMove{Name: other.Name, Now: other.Shards, Then: max(then, other.Shards)})
	}

	return moves
}

// nodeFacts are the details of a node in the words of "carillon node get".
func nodeFacts(n task.Node) []setting {
	var list settings
	list.add("Labels", strings.ReplaceAll(wording.Labels(n.Labels), ",", ", ")+wording.IgnoredText(n))
	list.add("Weight", fmt.Sprint(n.Weight))
	if n.StateBy != nil && n.State != task.NodeReady {
		list.add("State set by", n.StateBy.Name())
	}

	fact := func(name string) string { return wording.FactText(n.Facts, name) }
	free := func(name, of string) string {
		if fact(of) == "" {
			return ""
		}
		return fact(name) + " free of " + fact(of)
	}
	list.add("CPUs", fact(task.FactCPUs))
	if one := fact(task.FactLoad1); one != "" {
		list.add("Load", one+", "+fact(task.FactLoad5)+", "+fact(task.FactLoad15))
	}
	list.add("Memory", free(task.FactMemoryFree, task.FactMemory))
	list.add("Disk", free(task.FactDiskFree, task.FactDisk))

	list.add("Address", n.Address)
	list.add("API", n.APIError)
	list.add("Version", n.Version)
	list.addCode("Instance", n.Instance)
	list.addCode("Leases", strings.Join(n.Leases, ", "))

	return list
}

// changeNode returns an action that changes the state of a node.
func changeNode(change func(*client.NodesService, context.Context, string) (task.Node, error), message string) func(context.Context, *Request) (Done, error) {
	return func(ctx context.Context, r *Request) (Done, error) {
		n, err := change(r.API.Nodes, ctx, r.Value("node"))
		if err != nil {
			return Done{}, err
		}

		to, err := link("/ui/nodes/{}", nil, []any{n.Name})

		return Done{To: to, Message: fmt.Sprintf(message, n.Name)}, err
	}
}

// nodeCommand returns the command line that shows the same, or does the same as the form.
func nodeCommand(v *View) []string {
	verb := "get"
	if do := v.Query.Get("do"); do == doDrain || do == doCordon {
		verb = do
	}
	return []string{"carillon", "node", verb, v.Value("node")}
}
