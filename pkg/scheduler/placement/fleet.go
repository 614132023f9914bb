// Package placement decides which node gets a run. A Fleet holds the nodes that are present, as they
// announce themselves, and how many attempts the shards of this node have assigned to each. A Want is what
// a run requires of its node: a selector, a strategy, a key for secrets.
//
// It guarantees that a run goes only to a node that runs tasks, matches the selector and is not suspected
// of having restarted. It does not guarantee a free slot: several schedulers choose independently, and a
// node hands back what it cannot start.
//
// It reads and writes no keys. The daemon sets the nodes of a Fleet (Set), and the shards report which
// attempts begin and end (Reserve, Occupy, Release).
package placement

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Fleet is the nodes as a scheduler sees them, and what it has assigned to them. All workers of a node
// share one. It is safe for concurrent use.
type Fleet struct {
	self  string     // name of this node
	local func() int // free slots of the own executor, which is more current than the own node record; nil if there is no executor

	mu      sync.Mutex
	nodes   map[string]*task.Node // by name; the nodes are never changed, only replaced
	able    map[string]*task.Node // those of nodes that accept runs
	taking  []*task.Node          // the same, ordered by name
	hashes  []uint64              // of the names of taking, with the same indexes
	given   [pools]map[string]int // attempts that our shards have assigned, by pool and node; no zeros
	suspect map[string]suspect    // by node, a session that a commit found to be over
}

// Pool is a kind of slots that each node has. Attempts of one pool do not delay those of the other.
type Pool uint8

const (
	// A node announces how many of these slots it has, and how many processes use them. No-ops count as well, although
	// they run no process.
	ProcessSlots Pool = iota
	// Each node has task.HTTPSlots of these, and does not announce how many are in use.
	HTTPSlots

	pools // the number of pools
)

// suspect is a session that is known to be over although the node's record still shows it.
type suspect struct {
	session int64 // create revision of the node's key
	until   time.Time
}

// Suspicion is how long a node is left out after a commit found that its session is not the one that is
// known. By then the mirror of the nodes has caught up.
const Suspicion = 3 * time.Second

// NewFleet returns an empty Fleet for the node self. local returns how many slots of the own executor are
// free; it may be nil.
func NewFleet(self string, local func() int) *Fleet {
	f := &Fleet{self: self, local: local, nodes: map[string]*task.Node{}, able: map[string]*task.Node{}, suspect: map[string]suspect{}}
	for pool := range f.given {
		f.given[pool] = map[string]int{}
	}

	return f
}

// Set replaces the nodes with those that are present now. Suspicions about sessions that have been replaced
// end.
func (f *Fleet) Set(nodes []task.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()

	clear(f.nodes)
	clear(f.able)

	f.taking, f.hashes = f.taking[:0], f.hashes[:0]
	for _, n := range nodes {
		f.nodes[n.Name] = &n
		if n.Takes() {
			f.able[n.Name] = &n
			f.taking = append(f.taking, &n)
		}
	}

	// Round-robin and hashes depend on the order of names, which is the same for all owners.
	slices.SortFunc(f.taking, func(a, b *task.Node) int { return strings.Compare(a.Name, b.Name) })

	for _, n := range f.taking {
		f.hashes = append(f.hashes, mixBits(hashFNV(n.Name)))
	}

	for name, s := range f.suspect {
		if n := f.nodes[name]; n == nil || n.Revision != s.session {
			delete(f.suspect, name)
		}
	}
}

// Present returns a node, and whether it is present. The node must not be changed.
func (f *Fleet) Present(name string) (*task.Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	n, ok := f.nodes[name]
	return n, ok
}

// Occupy counts an attempt on a node that Reserve has not counted.
func (f *Fleet) Occupy(node string, pool Pool) { f.addAssigned(node, pool, 1) }

// Release takes back one count of Reserve or Occupy: the attempt has ended, or was never created.
func (f *Fleet) Release(node string, pool Pool) { f.addAssigned(node, pool, -1) }

// Given returns a copy of how many attempts of a pool are counted on each node, without zeros.
func (f *Fleet) Given(pool Pool) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()

	return maps.Clone(f.given[pool])
}

// addAssigned changes the count of a node by the given number.
func (f *Fleet) addAssigned(node string, pool Pool, by int) {
	f.mu.Lock()
	defer f.mu.Unlock()

	given := f.given[pool]
	if given[node] += by; given[node] <= 0 {
		delete(given, node)
	}
}

// Suspect leaves a node out for a while, because a commit found that its session is not the one with which
// it was picked. It does nothing if the node is known with another session by now.
func (f *Fleet) Suspect(node string, session int64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[node]; n != nil && n.Revision == session {
		f.suspect[node] = suspect{session, now.Add(Suspicion)}
	}
}

// SuspectUntil returns when the first suspicion ends. It returns false if there is none.
func (f *Fleet) SuspectUntil(now time.Time) (until time.Time, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, s := range f.suspect {
		if s.until.After(now) && (!ok || s.until.Before(until)) {
			until, ok = s.until, true
		}
	}

	return until, ok
}

// nodeFits reports whether a node that accepts runs is not suspect and meets the requirements of w. The
// caller holds the lock.
func (f *Fleet) nodeFits(n *task.Node, w *Want, now time.Time) bool {
	if len(f.suspect) > 0 {
		if s, ok := f.suspect[n.Name]; ok {
			left := s.until.Sub(now)

			// More time left than Suspicion means that the clock was set back. Then the suspicion is
			// dropped.
			if s.session == n.Revision && left > 0 && left <= Suspicion {
				return false
			}
			delete(f.suspect, n.Name)
		}
	}

	if w.elsewhere && (n.Name == w.Avoid || !f.hasFreeSlot(n, w.Pool)) {
		return false
	}

	return (!w.Secret || n.HoldsKey()) && w.Selector.Accepts(n)
}

// nodeLoad returns the fraction of its slots that a node uses, as far as is known. The node reports its
// running attempts with a delay, so the higher of its report and our own count is used.
func (f *Fleet) nodeLoad(n *task.Node, pool Pool) float64 {
	if pool == HTTPSlots {
		return float64(f.given[pool][n.Name]) / task.HTTPSlots
	}
	return float64(max(f.given[pool][n.Name], n.Running)) / float64(max(n.Slots, 1))
}

// hasFreeSlot reports whether a node has a free slot, as far as is known.
func (f *Fleet) hasFreeSlot(n *task.Node, pool Pool) bool {
	given := f.given[pool][n.Name]

	switch {
	case pool == HTTPSlots:
		return given < task.HTTPSlots
	case n.Name == f.self && f.local != nil:
		return given < n.Slots && f.local() > 0
	}

	return max(given, n.Running) < n.Slots
}

// indexAfter returns the index in taking of the first node behind a name. It may be len(taking).
func (f *Fleet) indexAfter(name string) int {
	at, found := slices.BinarySearchFunc(f.taking, name, func(n *task.Node, name string) int { return strings.Compare(n.Name, name) })
	if found {
		at++
	}
	return at
}
