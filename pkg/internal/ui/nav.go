package ui

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// navPart is the part of every page with the navigation.
const navPart = "nav"

// counts are the numbers of the navigation.
type counts struct {
	known       bool
	board       task.Board
	everything  bool // the viewer reads all namespaces
	readsFleet  bool // and the nodes
	readsStatus bool // and the cluster
}

// countsEvery is how long the counts of the navigation are used.
const countsEvery = 2 * time.Second

// countsCache keeps the counts of viewers with the same rights.
type countsCache struct {
	mu  sync.Mutex
	all map[access.Digest]*cachedCounts
}

// cachedCounts are the counts for some rights. The mutex is held while they are read, so that they are read once.
type cachedCounts struct {
	mu     sync.Mutex
	at     time.Time
	counts counts
}

// entry returns the cached counts for some rights, and forgets those that nobody uses.
func (c *countsCache) entry(d access.Digest, now time.Time) *cachedCounts {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.all == nil {
		c.all = map[access.Digest]*cachedCounts{}
	}
	if e := c.all[d]; e != nil {
		return e
	}

	for d, e := range c.all {
		if e.mu.TryLock() {
			if now.Sub(e.at) > 10*countsEvery {
				delete(c.all, d)
			}
			e.mu.Unlock()
		}
	}

	e := &cachedCounts{}
	c.all[d] = e

	return e
}

// countsFor returns the counts for the rights of a request. They are not known while the board cannot be read.
func (s *Server) countsFor(ctx context.Context, q *Request) counts {
	before := s.Access.View()
	rights := s.rightsOf(before, q.caller)

	e := s.counts.entry(rights, q.Now)
	e.mu.Lock()
	defer e.mu.Unlock()

	if age := q.Now.Sub(e.at); age >= 0 && age < countsEvery && !e.at.IsZero() {
		return e.counts
	}

	board, err := q.API.Board.Get(ctx, client.BoardOptions{Span: time.Minute, Limit: 1})
	if err != nil {
		return counts{}
	}

	c := counts{known: true, board: board, everything: q.ReadsEverything()}
	c.readsFleet, _ = q.May("read", "nodes", "")
	c.readsStatus, _ = q.May("read", "cluster", "")

	// Others with the same rights may see them only if the rights were the same all the time.
	if after := s.Access.View(); after.Fence == before.Fence && s.rightsOf(after, q.caller) == rights {
		e.at, e.counts = q.Now, c
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
		if n := b.FailingCount + b.OverdueCount + b.AwayCount + len(b.Stuck); n > 0 {
			return wording.Grouped(n), true
		}
	case "tasks":
		if c.everything {
			return wording.Grouped(b.Tasks), false
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
		if n := len(b.Warnings); n > 0 && c.readsStatus {
			return wording.Grouped(n), true
		}
	}

	return "", false
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
