package check

import (
	"maps"
	"slices"
)

// moves counts how many shards have moved, and how many may have: for each node
// that comes or goes its share, and a quarter more (G15). When the shards lie as
// they should, what was not used is forgotten.
type moves struct {
	may  float64
	done int
}

const moveRoom = 1.25

// judgeMoves counts the shards that a revision moves, and what the nodes that
// come and go with it allow.
func (c *checker) judgeMoves(d *delta) {
	if !c.opts.Moves {
		return
	}
	c.allowMoves(d)
	for _, id := range slices.Sorted(maps.Keys(d.owners)) {
		before, after := c.shard(id).owner, d.owners[id]
		switch {
		case after.Fence == 0, after.Term != c.term():
			c.moves.may += moveRoom // by a stranger: the leader may put it right
			continue
		case before.Node == "" || before.Node == after.Node:
			continue
		}
		if c.moves.done++; float64(c.moves.done) > c.moves.may {
			c.breach("G15", c.keys.Owner(id), "shard %d moves from %q to %q: %d have moved since the shards lay well, and %.0f had to at most",
				id, before.Node, after.Node, c.moves.done, c.moves.may)
			c.moves.may = float64(c.moves.done)
		}
	}
}

// allowMoves adds what the nodes that come and go allow.
func (c *checker) allowMoves(d *delta) {
	for _, name := range slices.Sorted(maps.Keys(d.nodes)) {
		before, now := c.nodes[name], d.nodes[name]
		owns := now != nil && now.owns
		again := owns && before.owns && before.create != now.create // it left and joined in one revision
		if before.owns == owns && !again {
			continue
		}
		weight, all := before.weight, 0
		if owns {
			weight = now.weight
		}
		for other, n := range c.nodes {
			if n.owns && other != name {
				all += n.weight
			}
		}
		total := max(c.cluster, len(c.shards))
		share := (total*weight + all + weight - 1) / max(all+weight, 1)
		c.moves.may += moveRoom * float64(max(share, c.owned(name)))
	}
}

func (c *checker) owned(node string) int {
	n := 0
	for _, s := range c.shards {
		if s.owner.Node == node {
			n++
		}
	}
	return n
}

// misplaced is how many shards have to move as things are: those whose node may
// not have them, and what a node has above its share, or lacks of it.
func (c *checker) misplaced() int {
	all := 0
	for _, n := range c.nodes {
		if n.owns {
			all += n.weight
		}
	}
	if all == 0 {
		return len(c.shards)
	}
	owned, homeless := map[string]int{}, 0
	for _, s := range c.shards {
		if c.nodes[s.owner.Node].owns {
			owned[s.owner.Node]++
		} else {
			homeless++
		}
	}
	total, above, below := max(c.cluster, len(c.shards)), 0, 0
	for name, n := range c.nodes {
		if n.owns {
			above += max(0, owned[name]-(total*n.weight+all-1)/all)
			below += max(0, total*n.weight/all-owned[name])
		}
	}
	return max(homeless+above, below)
}

// listMoves allows what the first list, taken in the middle of something, wants.
func (c *checker) listMoves() { c.moves.may = moveRoom * float64(c.misplaced()) }

// settleMoves forgets what was allowed and not used, when the shards lie well.
func (c *checker) settleMoves(d *delta) {
	if c.opts.Moves && len(d.owners)+len(d.nodes) > 0 && c.misplaced() == 0 {
		c.moves = moves{}
	}
}
