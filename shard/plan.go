package shard

import (
	"maps"
	"slices"
)

// Plan says which node is to own each shard. current is the assignment as it
// is; a shard that is not in it, or whose node is not a member, is homeless. It
// returns nil if there are no members: then all stays as it is.
//
// Each member gets its fair share by weight, rounded down or up. A shard stays
// where it is unless its node has more than its share; as few move as can be.
// Where a shard goes that must move, the ring says. The result is the same
// wherever it is computed.
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

	// Who has more than its share already keeps one of the odd shards: each
	// that goes to another node would be a move for nothing.
	for _, node := range p.names {
		if len(owned[node]) > p.floor[node] {
			p.takeOdd(node)
		}
	}

	plan := make(map[int]string, shards)
	for _, node := range p.names {
		keep, rest := p.splitOwned(node, owned[node])
		for _, id := range keep {
			plan[id] = node
		}

		p.count[node] = len(keep)
		homeless = append(homeless, rest...)
	}

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

// planner holds what Plan counts.
type planner struct {
	names  []string
	member map[string]bool
	floor  map[string]int  // the share, rounded down
	broken map[string]bool // the share is no whole number: it may be rounded up
	odd    int             // shards left when all shares are rounded down
	extra  map[string]bool // who has one of them
	count  map[string]int
	ring   *Ring
}

func newPlanner(shards int, members []Member) *planner {
	p := &planner{
		member: map[string]bool{}, floor: map[string]int{}, broken: map[string]bool{},
		extra: map[string]bool{}, count: map[string]int{}, ring: NewRing(members),
	}
	total := 0
	for _, m := range members {
		total += max(m.Weight, 1)
	}

	p.odd = shards
	for _, m := range members {
		p.member[m.Name] = true
		p.floor[m.Name] = shards * max(m.Weight, 1) / total
		p.broken[m.Name] = shards*max(m.Weight, 1)%total != 0
		p.odd -= p.floor[m.Name]
	}

	p.names = slices.Sorted(maps.Keys(p.member))

	return p
}

// takeOdd gives node one of the odd shards, if it may have one and one is left.
func (p *planner) takeOdd(node string) bool {
	if p.odd == 0 || !p.broken[node] || p.extra[node] {
		return false
	}

	p.odd--
	p.extra[node] = true

	return true
}

func (p *planner) maxShards(node string) int {
	if p.extra[node] {
		return p.floor[node] + 1
	}
	return p.floor[node]
}

// hasRoom reports whether node may have one shard more.
func (p *planner) hasRoom(node string) bool {
	return p.count[node] < p.maxShards(node) || p.takeOdd(node)
}

// splitOwned divides what node owns into what it keeps and what is too much: it
// parts first with what the ring would rather see elsewhere.
func (p *planner) splitOwned(node string, owned []int) (keep, rest []int) {
	most := p.maxShards(node)
	if len(owned) <= most {
		return owned, nil
	}

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
