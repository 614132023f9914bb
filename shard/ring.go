package shard

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Of returns the shard of a task, in a cluster with the given number of shards. It must never change,
// because it determines where the records of existing tasks are.
func Of(namespace, name string, shards int) int {
	return int(xxhash.Sum64String(namespace+"/"+name) % uint64(shards))
}

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
