package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// fenceJudge judges who writes: each commit comes from the owner of its shard (G1), whose node is present (G2),
// and watermarks never move backward (G5).
type fenceJudge struct{ judge }

// checkOwners checks that a leader writes owner keys only in its own term (G2). The leader's write compares the
// election key, so that a leader of an earlier term cannot succeed. A key without a term was written by hand.
func (j *fenceJudge) checkOwners(d *delta) {
	for _, id := range slices.Sorted(maps.Keys(d.owners)) {
		o := d.owners[id]
		if o.Fence == 0 {
			j.addNote("the owner key of shard %d was deleted", id)
			continue
		}

		if o.Term == 0 || j.cluster.currentTerm() == o.Term {
			continue
		}

		j.addViolation("G2", j.keys.Owner(id), "the owner was written in term %d, but the term is %d", o.Term, j.cluster.currentTerm())
	}
}

// checkWatermarks checks every write of a watermark, and with it every commit. The shard must have an owner
// (G1) whose node is present (G2), and neither the time nor seen may decrease (G5).
//
// The first commit under a new fence or session must change nothing (G1). It rejects delayed writes of earlier
// workers, because every commit compares the watermark. Only what the owner loads after it is complete.
func (j *fenceJudge) checkWatermarks(d *delta) {
	for _, id := range slices.Sorted(maps.Keys(d.watermarks)) {
		m, s := d.watermarks[id], j.cluster.shardOf(id)
		switch {
		case m.deleted:
			j.addViolation("G5", m.key, "the watermark was deleted")
			continue
		case m.unreadable:
			continue
		// A watermark is created once, at time zero, with the cluster. If it were created again, ticks would be
		// decided a second time.
		case m.create == m.mod:
			if m.watermark.Time.UnixMilli() != 0 {
				j.addViolation("G5", m.key, "the watermark was created again, at %s", formatTime(m.watermark.Time.Time))
			}
			continue
		}

		j.requireOwner(d, id, m.key, "a commit")

		if !s.opened && !isOpening(s.watermark, m.watermark) {
			j.addViolation("G1", m.key, "the first commit under fence %d of node %q does not open the shard: it changes the watermark",
				s.owner.Fence, s.owner.Node)
		}

		if goesBack(s.watermark, m.watermark) {
			j.addViolation("G5", m.key, "the watermark goes back from %s to %s", describeWatermark(s.watermark), describeWatermark(m.watermark))
		}

		if m.watermark.Seen < s.watermark.Seen {
			j.addViolation("G5", m.key, "seen goes back from %d to %d", s.watermark.Seen, m.watermark.Seen)
		}

		// seen is a revision up to which the owner knows all entries. It cannot include the commit that writes
		// it.
		if m.watermark.Seen >= m.mod {
			j.addViolation("G5", m.key, "seen is %d, a revision that did not exist when this was written", m.watermark.Seen)
		}
	}
}

// requireOwner checks that the shard of a write has an owner, that the owner's node is present, and that neither
// changes in the same revision. A commit compares both keys, so it cannot share a revision with a change of them.
// what describes the write.
func (j *fenceJudge) requireOwner(d *delta, shard int, key, what string) {
	s := j.cluster.shardOf(shard)
	_, moved := d.owners[shard]
	switch node, present := j.cluster.nodes[s.owner.Node]; {
	case s.owner.Fence == 0 || s.owner.Node == "":
		j.addViolation("G1", key, "%s in a shard without an owner", what)
	case moved:
		j.addViolation("G1", key, "%s in the same revision that rewrites the shard's owner key", what)
	case !present:
		j.addViolation("G2", key, "%s while the owner's node %q is absent", what, s.owner.Node)
	default:
		if now, changed := d.nodes[s.owner.Node]; changed && (now == nil || now.create != node.create) {
			j.addViolation("G2", key, "%s in the same revision in which the session of node %q ends", what, s.owner.Node)
		}
	}
}

// isOpening reports whether a commit leaves the watermark's content as it is, as the empty commit does that
// opens a shard.
func isOpening(before, after record.Watermark) bool {
	return before.Time.Equal(after.Time.Time) && before.Last == after.Last && before.Seen == after.Seen
}

// goesBack reports whether a watermark moves backward. At equal times, the last task decides. An empty Last
// means that all tasks are decided at that time.
func goesBack(before, after record.Watermark) bool {
	switch {
	case !after.Time.Equal(before.Time.Time):
		return after.Time.Before(before.Time.Time)
	case after.Last == "":
		return false
	}

	return before.Last == "" || after.Last < before.Last
}

// describeWatermark formats a watermark for messages.
func describeWatermark(w record.Watermark) string {
	if w.Last == "" {
		return formatTime(w.Time.Time)
	}
	return formatTime(w.Time.Time) + " up to " + w.Last
}

// requireCommit checks that a change which only an owner may make is part of a commit of the shard, and not of
// the commit that opens the shard.
func (j *fenceJudge) requireCommit(d *delta, ref record.Ref, tick int64, key, what string) {
	m := d.watermarks[ref.Shard]
	switch {
	case m == nil || m.deleted || m.create == m.mod:
		j.breachTask("G1", ref, tick, key, "%s was written outside of a commit", what)
	case !j.cluster.shardOf(ref.Shard).opened:
		j.breachTask("G1", ref, tick, key, "%s was written by a commit that had to open the shard first", what)
	}
}

// checkNamedOwner checks that the owner that a run names is the node in the owner key.
func (j *fenceJudge) checkNamedOwner(r task.Run, ref record.Ref, key string) {
	if s := j.cluster.shardOf(ref.Shard); r.Owner != "" && r.Owner != s.owner.Node {
		j.breachTask("G1", ref, unixMS(r.ScheduledTime), key, "decided by node %q while the shard's owner is %q", r.Owner, s.owner.Node)
	}
}

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
