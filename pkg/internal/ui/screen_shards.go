package ui

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// ownerColors is the number of colors of owners. Beyond it, colors are used again, and the letters differ.
	ownerColors = 8
	// shownMoves is the number of moves that the page lists.
	shownMoves = 8
	// movedTogether is the time within which shards with the same old and new owner count as one move.
	movedTogether = 2 * time.Second
)

// shardsScreen shows who owns the shards, as "carillon shard list" does.
func shardsScreen() Screen {
	return Screen{
		Name: "shards", Pattern: "/ui/shards", Nav: "shards",
		Title:   func(*View) string { return "Shards" },
		Load:    loadShards,
		Command: func(*View) []string { return []string{"carillon", "shard", "list", "-o", "wide"} },
		Parts:   []Part{{Name: "owners"}, {Name: "cells"}, {Name: "moves"}},
		Every:   2 * time.Second, // each rendering reads the records of all shards
	}
}

// shardsPage is what the screen shows.
type shardsPage struct {
	Count   int
	Owned   int
	Unowned []int
	Absent  int // shards whose owner is not online
	Owners  []shardOwner
	Cells   []shardCell
	Moves   []shardsMoved
}

// shardOwner is a node that owns shards.
type shardOwner struct {
	Name   string
	Absent bool   // it is not online
	Letter string // its sign in the cells
	Color  int
	Shards int
	Tasks  int
	Queued int
}

// shardCell is a shard.
type shardCell struct {
	task.Shard
	Letter string // of its owner; "!" if it has none
	Color  int    // of its owner; -1 if that is not online
	Absent bool   // its owner is not online
	Title  string
	Before string // its previous owner
}

// shardsMoved is a move of shards from one node to another.
type shardsMoved struct {
	From, To string
	At       task.Time // of the last one
	Shards   []int
	first    time.Time
}

func loadShards(ctx context.Context, r *Request) (any, error) {
	var shards []task.Shard
	var nodes []task.Node
	var err, noNodes error
	callgroup.Run(
		func() { shards, err = r.API.Shards.List(ctx) },
		func() { nodes, noNodes = r.API.Nodes.List(ctx) },
	)
	if err != nil {
		return nil, err
	}

	p := shardsPage{Count: len(shards), Owners: shardOwners(shards), Moves: shardMoves(shards)}
	// Who reads the cluster may not be allowed to read nodes. Then all owners count as online.
	if noNodes == nil {
		for i, o := range p.Owners {
			p.Owners[i].Absent = !slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Name == o.Name })
		}
	}

	for _, s := range shards {
		// Watermarks move all the time. The page changes only when facts do.
		s.Watermark = task.Time{}
		cell := shardCell{Shard: s, Letter: "!", Color: -1}
		if len(s.Previous) > 0 {
			cell.Before = s.Previous[0].Node
		}

		i := slices.IndexFunc(p.Owners, func(o shardOwner) bool { return o.Name == s.Node })
		switch {
		case i < 0:
			p.Unowned = append(p.Unowned, s.ID)
		case p.Owners[i].Absent:
			cell.Letter, cell.Absent = p.Owners[i].Letter, true
			p.Absent++
		default:
			cell.Letter, cell.Color = p.Owners[i].Letter, p.Owners[i].Color
			p.Owned++
		}
		cell.Title = cellTitle(cell)
		p.Cells = append(p.Cells, cell)
	}

	return p, nil
}

// shardOwners returns the owners in the order of their names, each with a letter and a color.
func shardOwners(shards []task.Shard) []shardOwner {
	owners := map[string]*shardOwner{}
	for _, s := range shards {
		if s.Node == "" {
			continue
		}

		o := owners[s.Node]
		if o == nil {
			o = &shardOwner{Name: s.Node}
			owners[s.Node] = o
		}
		o.Shards++
		o.Tasks += s.Tasks
		o.Queued += s.Queued
	}

	var list []shardOwner
	for i, name := range slices.Sorted(maps.Keys(owners)) {
		o := owners[name]
		o.Letter, o.Color = ownerLetter(i), i%ownerColors
		list = append(list, *o)
	}

	return list
}

// ownerLetter returns the sign of an owner: A to Z, then AA, AB and so on.
func ownerLetter(i int) string {
	letter := string(rune('A' + i%26))
	if i < 26 {
		return letter
	}
	return ownerLetter(i/26-1) + letter
}

// cellTitle describes a shard on one line. It is without counts, so that the cells change only when shards move.
func cellTitle(c shardCell) string {
	title := fmt.Sprintf("shard %d: %s", c.ID, cmp.Or(c.Node, "nobody"))
	if c.Absent {
		title += ", which is not online"
	}
	if c.Node != "" {
		title += fmt.Sprintf(", fence %d, since %s", c.Fence, c.Since.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	if c.Before != "" {
		title += ", before " + c.Before
	}

	return title
}

// shardMoves returns the latest moves, the newest first. Shards that moved together are one.
func shardMoves(shards []task.Shard) []shardsMoved {
	var moved []task.Shard
	for _, s := range shards {
		if s.Node != "" && len(s.Previous) > 0 && s.Previous[0].Node != s.Node {
			moved = append(moved, s)
		}
	}
	slices.SortStableFunc(moved, func(a, b task.Shard) int { return b.Since.Compare(a.Since.Time) })

	var moves []shardsMoved
	for _, s := range moved {
		i := slices.IndexFunc(moves, func(m shardsMoved) bool {
			return m.From == s.Previous[0].Node && m.To == s.Node && m.first.Sub(s.Since.Time) <= movedTogether
		})
		if i >= 0 {
			moves[i].Shards, moves[i].first = append(moves[i].Shards, s.ID), s.Since.Time
			continue
		}
		if len(moves) == shownMoves {
			break
		}
		moves = append(moves, shardsMoved{From: s.Previous[0].Node, To: s.Node, At: s.Since, Shards: []int{s.ID}, first: s.Since.Time})
	}

	return moves
}

// Named names the shards of a move, or the first of them.
func (m shardsMoved) Named() string {
	const most = 6
	slices.Sort(m.Shards)

	text := ""
	for i, id := range m.Shards[:min(len(m.Shards), most)] {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(id)
	}
	if n := len(m.Shards) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}

	return text
}

// Plural returns a number with its noun: "1 shard", "2 shards".
func (*View) Plural(n int, noun string) string { return countText(n, noun) }

// LoadedAt is the time of what the page shows.
func (v *View) LoadedAt() task.Time { return task.At(v.Now) }
