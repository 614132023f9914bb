package check

import (
	"maps"
	"slices"
	"strings"
)

// placementJudge judges which nodes own which shards. No more shards move than must (G15). At the end each shard
// has an owner (G16), and nothing is left of drained nodes (G20).
//
// It counts how many shards have moved and how many were allowed to: for each node that joins or leaves its share
// of the shards, and a quarter more. Whenever no shard is misplaced any more, both counts return to zero, so that
// an unused allowance does not cover a later move.
type placementJudge struct {
	judge
	allowed float64 // how many shards may move
	moved   int     // how many have moved
}

// moveRoom is the factor by which the shards that move may exceed a node's share (G15).
const moveRoom = 1.25

// checkMoves counts the shards that a revision moves. Nodes that join or leave in the same revision add to the
// allowance first.
func (j *placementJudge) checkMoves(d *delta) {
	if !j.opts.Moves {
		return
	}

	j.allowMoves(d)

	for _, id := range slices.Sorted(maps.Keys(d.owners)) {
		before, after := j.cluster.shardOf(id).owner, d.owners[id]
		switch {
		case after.Fence == 0, after.Term != j.cluster.currentTerm():
			j.allowed += moveRoom // not written by the leader, which may correct it
			continue
		case before.Node == "" || before.Node == after.Node:
			continue
		}

		if j.moved++; float64(j.moved) > j.allowed {
			j.addViolation("G15", j.keys.Owner(id), "shard %d moves from %q to %q: %d have moved since the last balanced state, at most %.0f were necessary",
				id, before.Node, after.Node, j.moved, j.allowed)
			j.allowed = float64(j.moved)
		}
	}
}

// allowMoves adds the shares of the nodes that begin or cease to be able to own shards.
func (j *placementJudge) allowMoves(d *delta) {
	for _, name := range slices.Sorted(maps.Keys(d.nodes)) {
		before, now := j.cluster.nodes[name], d.nodes[name]
		owns := now != nil && now.canOwn
		again := owns && before.canOwn && before.create != now.create // it left and joined again in one revision
		if before.canOwn == owns && !again {
			continue
		}

		weight, all := before.weight, 0
		if owns {
			weight = now.weight
		}

		for other, n := range j.cluster.nodes {
			if n.canOwn && other != name {
				all += n.weight
			}
		}

		total := j.cluster.totalShards()
		share := (total*weight + all + weight - 1) / max(all+weight, 1)
		j.allowed += moveRoom * float64(max(share, j.cluster.ownedShards(name)))
	}
}

// misplacedShards returns how many shards must move as things are: shards without a node that may own them, and
// those that a node has above its share, or lacks.
func (j *placementJudge) misplacedShards() int {
	all := 0
	for _, n := range j.cluster.nodes {
		if n.canOwn {
			all += n.weight
		}
	}

	if all == 0 {
		return len(j.cluster.shards)
	}

	// homeless counts shards without an owner, or whose owner is not present or may not own shards.
	owned, homeless := map[string]int{}, 0
	for _, s := range j.cluster.shards {
		if j.cluster.nodes[s.owner.Node].canOwn {
			owned[s.owner.Node]++
		} else {
			homeless++
		}
	}

	// Each node's share is rounded up when it has more, and rounded down when it has less. Every homeless shard and
	// every shard above a share must move. If shares are lacking, at least that many must move, too.
	total, above, below := j.cluster.totalShards(), 0, 0
	for name, n := range j.cluster.nodes {
		if n.canOwn {
			above += max(0, owned[name]-(total*n.weight+all-1)/all)
			below += max(0, total*n.weight/all-owned[name])
		}
	}

	return max(homeless+above, below)
}

// allowMisplaced allows the moves that are pending when the history begins.
func (j *placementJudge) allowMisplaced() { j.allowed = moveRoom * float64(j.misplacedShards()) }

// forgetUnusedMoves resets the counts when no shard is misplaced.
func (j *placementJudge) forgetUnusedMoves(d *delta) {
	if j.opts.Moves && len(d.owners)+len(d.nodes) > 0 && j.misplacedShards() == 0 {
		j.allowed, j.moved = 0, 0
	}
}

// checkEndOwners checks, with Options.Settled, that every shard has an owner that is present (G16).
func (j *placementJudge) checkEndOwners() {
	if !j.opts.Settled {
		return
	}

	for id := range j.cluster.totalShards() {
		s := j.cluster.shardOf(id)
		if _, present := j.cluster.nodes[s.owner.Node]; s.owner.Node == "" || !present {
			j.addViolation("G16", j.keys.Owner(id), "at the end, shard %d has no present owner (recorded: %q)", id, s.owner.Node)
		}
	}
}

// checkDrainedNodes checks that no key, shard or candidacy of a drained node is left (G20).
func (j *placementJudge) checkDrainedNodes() {
	for _, node := range j.opts.Gone {
		for _, key := range slices.Sorted(maps.Keys(j.cluster.liveKeys)) {
			if key == j.keys.Node(node) || strings.HasPrefix(key, j.keys.Inbox(node)) {
				j.addViolation("G20", key, "node %s was drained, but this remains", node)
			}
		}

		for id, s := range j.cluster.shards {
			if s.owner.Node == node {
				j.addViolation("G20", j.keys.Owner(id), "node %s was drained, but owns shard %d", node, id)
			}
		}

		for _, key := range slices.Sorted(maps.Keys(j.cluster.leaders)) {
			if j.cluster.leaders[key].node == node {
				j.addViolation("G20", key, "node %s was drained, but is still a candidate for leader", node)
			}
		}
	}
}
