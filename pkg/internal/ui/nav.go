package ui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// navPart is the part of every page with the navigation.
const navPart = "nav"

// counts are the numbers of the navigation.
type counts struct {
	known       bool
	board       task.Board // without its lists
	attention   int        // what needs a human
	ofCluster   int        // of these, problems of the cluster
	everything  bool       // the viewer reads all namespaces
	readsFleet  bool       // and the nodes
	readsStatus bool       // and the cluster
}

// countsEvery is how long the counts of the navigation are used.
const countsEvery = 2 * time.Second

// boardOptions are those with which all pages read the board. So a page and its navigation share one.
var boardOptions = client.BoardOptions{Span: nowSpan, Limit: nowListed}

// countsFor returns the counts for the rights of a request. They are not known while the board cannot be read.
func (s *Server) countsFor(ctx context.Context, q *Request) counts {
	fresh := func(at time.Time) bool {
		age := q.Now.Sub(at)
		return age >= 0 && age < countsEvery
	}

	c, err := s.counts.get(ctx, q, fresh, func(ctx context.Context) (counts, error) {
		board, err := q.API.Board.Get(ctx, boardOptions)
		if err != nil {
			return counts{}, err
		}

		problems := overview.Problems(&board)
		c := counts{known: true, board: board, attention: overview.Attention(problems), ofCluster: overview.Attention(overview.OfCluster(problems)), everything: q.ReadsEverything()}
		nodes := board.Nodes
		c.board.BoardLists, c.board.Nodes = task.BoardLists{}, nodes
		c.readsFleet, _ = q.May("read", "nodes", "")
		c.readsStatus, _ = q.May("read", "cluster", "")

		return c, nil
	})
	if err != nil {
		return counts{}
	}

	return c
}

// Nav returns the navigation.
func (v *View) Nav() []NavItem {
	var items []NavItem
	for _, e := range navigation {
		screen := v.server.screenNamed(e.screen)
		if screen == nil {
			continue
		}

		path, _ := v.Link(screen.Pattern)
		item := NavItem{Name: e.screen, Label: e.label, Path: path, Key: e.key, Current: v.screen.Nav == e.screen}
		if v.counts.known {
			item.Count, item.Alert = v.counts.text(e.screen)
		}
		items = append(items, item)
	}

	return items
}

// OtherNode is another node that serves pages.
type OtherNode struct{ Name, Address string }

// mostOtherNodes is the maximum number of nodes to which a page leads when its own does not answer.
const mostOtherNodes = 4

// OtherNodes returns other nodes that serve this page, for viewers who may read nodes. There are none behind a proxy, whose
// address browsers use for all nodes.
func (v *View) OtherNodes() []OtherNode {
	if !v.counts.known || !v.counts.readsFleet || v.server.Origin != "" {
		return nil
	}

	var others []OtherNode
	for _, n := range v.counts.board.Nodes {
		if n.Name != v.server.Node && n.Address != "" && slices.Contains(n.Roles, task.RoleAPI) {
			others = append(others, OtherNode{n.Name, n.Address})
		}
	}
	slices.SortFunc(others, func(a, b OtherNode) int { return strings.Compare(a.Name, b.Name) })

	return others[:min(len(others), mostOtherNodes)]
}

// screenNamed returns a screen by its name; nil if there is none.
func (s *Server) screenNamed(name string) *Screen {
	for i := range s.list {
		if s.list[i].Name == name {
			return &s.list[i]
		}
	}
	return nil
}

// text returns the count of a screen, and whether it needs attention.
func (c *counts) text(screen string) (text string, alert bool) {
	b := &c.board
	switch screen {
	case "now":
		if c.attention > 0 {
			return wording.Grouped(c.attention), true
		}
	case "tasks":
		if c.everything {
			return c.tasksText(), false
		}
	case "runs":
		return wording.Grouped(b.ActiveCount + b.WaitingCount), false
	case "nodes":
		if c.readsFleet {
			return c.nodesText()
		}
	case "shards":
		if c.readsStatus {
			return fmt.Sprintf("%d/%d", b.ShardsOwned, b.ShardCount), b.ShardsOwned < b.ShardCount
		}
	case "health":
		if c.ofCluster > 0 && c.readsStatus {
			return wording.Grouped(c.ofCluster), true
		}
	}

	return "", false
}

// tasksText returns the number of tasks; with a plus sign if some shards have not answered.
func (c *counts) tasksText() string {
	text := wording.Grouped(c.board.Tasks)
	if len(c.board.Missing) > 0 {
		text += "+"
	}
	return text
}

// nodesText returns the number of nodes; of those that are ready, if some are not.
func (c *counts) nodesText() (text string, alert bool) {
	ready := 0
	for _, n := range c.board.Nodes {
		if n.State == task.NodeReady && n.Ineligible == "" && len(n.Blocked) == 0 && !n.Silent {
			ready++
		}
	}

	if all := len(c.board.Nodes); ready < all {
		return fmt.Sprintf("%d/%d", ready, all), true
	}

	return wording.Grouped(ready), false
}
