package shard

import (
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Changes are what a leader has to write so that the assignment becomes that of
// the Plan.
type Changes struct {
	// AtOnce are shards that nobody fires now, or of which nobody can be told ahead; Loaded those that their next owner
	// has loaded; Forced those whose next owner has had its time.
	AtOnce, Loaded, Forced []store.Move
	// Prepare are handovers to be written, in the place of others maybe; Withdraw
	// those that are not wanted any more.
	Prepare, Withdraw []record.Handover
}

// Notes are what a leader knows of its fleet beyond what it reads.
type Notes struct {
	// Hold: most nodes have vanished together, and nothing is to move yet.
	Hold bool
	// Newcomers get no shards yet: they have come and gone too often.
	Newcomers map[string]bool
	// Late are the shards whose next owners have had their time to load them.
	Late map[int]bool
}

// maxWeight bounds what a node's record may say: the ring grows with it.
const maxWeight = 1000

// Moves says what is to be written. A shard whose owner fires on is handed over:
// its next owner loads it first. All others move at once. A plan that is
// carried out in part, in whatever order, is planned again as it was: Plan gives
// shards away in the order of their numbers, each to the first node with room.
func Moves(shards int, l store.Lineup, notes Notes) (c Changes) {
	if notes.Hold {
		return c
	}

	nodes := map[string]task.Node{}
	var members, newcomers []Member
	for _, n := range l.Nodes {
		nodes[n.Name] = n
		switch m := (Member{n.Name, min(n.Weight, maxWeight)}); {
		case !n.Owns():
		case notes.Newcomers[n.Name]:
			newcomers = append(newcomers, m)
		default:
			members = append(members, m)
		}
	}

	if len(members) == 0 {
		members = newcomers // better than nobody
	}

	owners := make([]record.Owner, shards)
	current := map[int]string{}

	for id := range owners {
		owners[id].Shard = id
	}

	for _, o := range l.Owners {
		if 0 <= o.Shard && o.Shard < shards { // others are not ours to mend
			owners[o.Shard] = o
			current[o.Shard] = o.Node
		}
	}

	handovers := make([]record.Handover, shards)
	for _, h := range l.Handovers {
		if h.Shard < 0 || h.Shard >= shards {
			c.Withdraw = append(c.Withdraw, h)
			continue
		}
		handovers[h.Shard] = h
	}

	plan := Plan(shards, current, members)

	for id := range shards {
		o, h := owners[id], handovers[id]
		to, planned := plan[id]
		move := store.Move{From: o, To: to, Handover: h.Revision}

		from, present := nodes[o.Node]
		switch {
		case !planned || to == o.Node:
			if h.Revision != 0 {
				c.Withdraw = append(c.Withdraw, h)
			}
		case !present || !from.Fires():
			c.AtOnce = append(c.AtOnce, move)
		case h.To != to:
			c.Prepare = append(c.Prepare, record.Handover{Shard: id, To: to, Revision: h.Revision})
		case h.Ready != 0 && h.Ready == nodes[to].Revision:
			c.Loaded = append(c.Loaded, move)
		case notes.Late[id]:
			c.Forced = append(c.Forced, move)
		}
	}

	return c
}
