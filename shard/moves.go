package shard

import (
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Changes are the writes by which a leader carries out a Plan.
type Changes struct {
	// AtOnce are shards whose ticks nobody decides now. Loaded are those that their next owner has
	// preloaded. Forced are those whose next owner has not done so in time.
	AtOnce, Loaded, Forced []store.Move
	// Prepare are handovers to write, possibly in place of others. Withdraw are those that are not wanted
	// any more.
	Prepare, Withdraw []record.Handover
}

// Notes are what a leader remembers about the nodes, beyond what it reads.
type Notes struct {
	// Hold means that most nodes have disappeared together, and nothing must move yet.
	Hold bool
	// Newcomers get no shards yet, because they have come and gone too often.
	Newcomers map[string]bool
	// Late are the shards whose next owners have not loaded them in time.
	Late map[int]bool
}

// maxWeight limits the weight of a node, because the size of the ring grows with it.
const maxWeight = 1000

// Moves returns what a leader must write. A shard whose owner still decides ticks is handed over: its next
// owner loads it first. All other shards move at once. If only a part of the result is written, in any
// order, the next call continues with the same plan: Plan assigns shards in the order of their numbers,
// each to the first node with room.
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
		// A node that comes and goes is better than none.
		members = newcomers
	}

	owners := make([]record.Owner, shards)
	current := map[int]string{}

	for id := range owners {
		owners[id].Shard = id
	}

	for _, o := range l.Owners {
		// Ignore owner keys of shards that do not exist.
		if 0 <= o.Shard && o.Shard < shards {
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
			// The shard stays where it is, so a handover is not wanted any more.
			if h.Revision != 0 {
				c.Withdraw = append(c.Withdraw, h)
			}
		case !present || !from.Fires():
			// The owner is gone or decides no ticks, so there is no reason to wait.
			c.AtOnce = append(c.AtOnce, move)
		case h.To != to:
			// There is no handover to the planned node yet.
			c.Prepare = append(c.Prepare, record.Handover{Shard: id, To: to, Revision: h.Revision})
		case h.Ready != 0 && h.Ready == nodes[to].Revision:
			// The next owner has answered under its current session. An answer under an earlier session
			// does not count, because the process that gave it may be gone.
			c.Loaded = append(c.Loaded, move)
		case notes.Late[id]:
			// The next owner has not answered in time.
			c.Forced = append(c.Forced, move)
		}
	}

	return c
}
