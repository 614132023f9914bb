package shard

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Of is the shard of a task, of a cluster with the given number of shards. It
// must never change: records lie where it says.
func Of(namespace, name string, shards int) int {
	return int(xxhash.Sum64String(namespace+"/"+name) % uint64(shards))
}

// pointsPerWeight is how many points of the ring one unit of weight has: enough
// that the arcs of a few nodes differ by some ten percent only. The rest is
// Plan's, which counts.
const pointsPerWeight = 64

type point struct {
	hash uint64
	node int // index into Ring.nodes
}

// Ring is a consistent hash of nodes: when one comes or goes, the order in
// which a shard prefers the others stays.
type Ring struct {
	nodes  []Member
	points []point
}

// Member is a node that may own shards. Weight is its part against the others; at least 1.
type Member struct {
	Name   string
	Weight int
}

// NewRing makes a ring of members, in whatever order they come.
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

// Prefer calls try with the members in the order in which shard prefers them,
// until try returns true or all were tried.
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
