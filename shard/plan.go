package shard

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
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

	// Round all shares down. The remaining shards are the odd ones.
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

// Of returns the shard of a task, in a cluster with the given number of shards.
func Of(namespace, name string, shards int) int { return record.ShardOf(namespace, name, shards) }

// pointsPerWeight is how many points one unit of weight has on the ring. With 64, the arcs of a few nodes
// differ by some ten percent. Plan evens that out, because it counts shards.
const pointsPerWeight = 64

// point is one of the positions of a node on the ring.
type point struct {
	hash uint64
	node int // index into Ring.nodes
}

// Ring is a consistent hash of nodes. When a node comes or goes, the order in which a shard prefers the
// other nodes stays the same.
type Ring struct {
	nodes  []Member // ordered by name
	points []point  // ordered by hash
}

// Member is a node that may own shards. Weight is its share relative to the other members; less than 1
// counts as 1.
type Member struct {
	Name   string
	Weight int
}

// NewRing returns a ring of members. Their order does not matter.
func NewRing(members []Member) *Ring {
	r := &Ring{nodes: slices.Clone(members)}
	slices.SortFunc(r.nodes, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })

	for i, m := range r.nodes {
		for p := range max(m.Weight, 1) * pointsPerWeight {
			r.points = append(r.points, point{xxhash.Sum64String(m.Name + "#" + strconv.Itoa(p)), i})
		}
	}

	slices.SortFunc(r.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.node, b.node))
	})

	return r
}

// Prefer calls try with the names of the members in the order in which the shard prefers them, until try
// returns true or all were tried.
func (r *Ring) Prefer(shard int, try func(node string) bool) {
	h := xxhash.Sum64String("shard/" + strconv.Itoa(shard))
	start, _ := slices.BinarySearchFunc(r.points, h, func(p point, h uint64) int { return cmp.Compare(p.hash, h) })

	tried := make([]bool, len(r.nodes))
	for i := range r.points {
		p := r.points[(start+i)%len(r.points)]
		if tried[p.node] {
			continue
		}

		tried[p.node] = true
		if try(r.nodes[p.node].Name) {
			return
		}
	}
}
