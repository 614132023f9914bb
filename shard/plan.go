package shard

import (
	"maps"
	"slices"
)

// Plan computes which node owns each shard. current is the present assignment. A shard that is missing
// there, or whose node is not a member, has no owner. Plan returns nil if there are no members; then
// nothing changes.
//
// Each member gets its share by weight, rounded down or up. A shard stays where it is unless its node has
// more than its share, and as few shards as possible move (G15). The ring determines where a shard goes
// that must move. The result depends on the arguments only, so every leader computes the same.
func Plan(shards int, current map[int]string, members []Member) map[int]string {
	if len(members) == 0 {
		return nil
	}

	p := newPlanner(shards, members)
	owned := map[string][]int{}
	var homeless []int
	for id := range shards {
		if node := current[id]; p.member[node] {
			owned[node] = append(owned[node], id)
		} else {
			homeless = append(homeless, id)
		}
	}

	// Shares are rounded down, and the shards that are left over are given to nodes one by one. A node that
	// already has more than its rounded share gets one of them first: otherwise it would give up a shard
	// only for another node to get it.
	for _, node := range p.names {
		if len(owned[node]) > p.floor[node] {
			p.takeSurplus(node)
		}
	}

	plan := make(map[int]string, shards)
	for _, node := range p.names {
		// Take away from each node what exceeds its share.
		keep, rest := p.splitOwned(node, owned[node])
		for _, id := range keep {
			plan[id] = node
		}

		p.count[node] = len(keep)
		homeless = append(homeless, rest...)
	}

	// Assign all shards without an owner, in the order of their numbers, each to the first node on the ring
	// with room. So a plan that was carried out in part leads to the same plan again.
	slices.Sort(homeless)

	for _, id := range homeless {
		p.ring.Prefer(id, func(node string) bool {
			if !p.hasRoom(node) {
				return false
			}

			plan[id] = node
			p.count[node]++

			return true
		})
	}

	return plan
}

// planner holds the counts of Plan.
type planner struct {
	names   []string        // of the members, sorted
	member  map[string]bool // by name
	floor   map[string]int  // share of each node, rounded down
	broken  map[string]bool // nodes whose share is not a whole number, so that it may be rounded up
	surplus int             // shards that are left over when all shares are rounded down
	extra   map[string]bool // nodes that have one of these
	count   map[string]int  // shards assigned to each node so far
	ring    *Ring
}

// newPlanner computes the shares of the members.
func newPlanner(shards int, members []Member) *planner {
	p := &planner{
		member: map[string]bool{}, floor: map[string]int{}, broken: map[string]bool{},
		extra: map[string]bool{}, count: map[string]int{}, ring: NewRing(members),
	}
	total := 0
	for _, m := range members {
		total += max(m.Weight, 1)
	}

	// Round all shares down. What is left over are the odd shards.
	p.surplus = shards
	for _, m := range members {
		p.member[m.Name] = true
		p.floor[m.Name] = shards * max(m.Weight, 1) / total
		p.broken[m.Name] = shards*max(m.Weight, 1)%total != 0
		p.surplus -= p.floor[m.Name]
	}

	p.names = slices.Sorted(maps.Keys(p.member))

	return p
}

// takeSurplus assigns one of the left-over shards to node. It returns false if none is left, or if the node may
// not have one.
func (p *planner) takeSurplus(node string) bool {
	if p.surplus == 0 || !p.broken[node] || p.extra[node] {
		return false
	}

	p.surplus--
	p.extra[node] = true

	return true
}

// maxShards returns how many shards node may have now.
func (p *planner) maxShards(node string) int {
	if p.extra[node] {
		return p.floor[node] + 1
	}
	return p.floor[node]
}

// hasRoom reports whether node may have one more shard. It may assign a left-over shard to the node.
func (p *planner) hasRoom(node string) bool {
	return p.count[node] < p.maxShards(node) || p.takeSurplus(node)
}

// splitOwned divides the shards of a node into those that it keeps and those that exceed its share. It
// gives up first the shards for which the ring prefers another node.
func (p *planner) splitOwned(node string, owned []int) (keep, rest []int) {
	most := p.maxShards(node)
	if len(owned) <= most {
		return owned, nil
	}

	// Keep the shards for which the ring prefers this node before the others.
	var others []int
	for _, id := range owned {
		first := ""
		p.ring.Prefer(id, func(n string) bool { first = n; return true })

		if first == node {
			keep = append(keep, id)
		} else {
			others = append(others, id)
		}
	}

	keep = append(keep, others...)

	return keep[:most], keep[most:]
}
