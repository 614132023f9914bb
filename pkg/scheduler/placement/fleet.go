// Package placement decides which node gets a run. A Fleet is the nodes that are present, as their
// owners announce them, and how many attempts the shards of this node have given to each. A Want is
// what a run asks of its node: a selector, a strategy, a key for secrets.
//
// It guarantees that a run goes only to a node that takes runs, matches the selector and is not
// suspected of having restarted. It does not guarantee that the node has a free slot: several
// schedulers choose without asking each other, and the node hands back what it cannot start.
//
// It reads and writes no keys. The daemon tells a Fleet of the nodes (Set), and the shards tell it
// which attempts begin and end (Reserve, Occupy, Release).
package placement

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Fleet is the nodes as a scheduler sees them, and what it has given them to
// do. All workers of a node share one.
type Fleet struct {
	self  string
	local func() int // free slots of the own executor; nil if it has none

	mu      sync.Mutex
	nodes   map[string]*task.Node // never changed
	able    map[string]*task.Node // those that take runs
	taking  []*task.Node          // they, in the order of their names
	hashes  []uint64              // of their names
	given   map[string]int        // attempts of our shards by node
	suspect map[string]suspect    // sessions that a commit found to be over
}

type suspect struct {
	session int64
	until   time.Time
}

// suspicion is how long a node is left out whose session a commit found to be
// another than the one known: by then the mirror has caught up.
const Suspicion = 3 * time.Second

// NewFleet makes a Fleet as node self sees it. local tells how many slots of the
// own executor are free.
func NewFleet(self string, local func() int) *Fleet {
	return &Fleet{self: self, local: local, nodes: map[string]*task.Node{}, able: map[string]*task.Node{}, given: map[string]int{}, suspect: map[string]suspect{}}
}

// Set replaces the nodes by those that are present now.
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

// Present returns a node that is present.
func (f *Fleet) Present(name string) (*task.Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	n, ok := f.nodes[name]
	return n, ok
}

// Occupy counts an attempt that a node has, and that Reserve has not counted.
func (f *Fleet) Occupy(node string) { f.addAssigned(node, 1) }

// Release gives back what Reserve or Occupy has counted: the attempt has ended, or was never made.
func (f *Fleet) Release(node string) { f.addAssigned(node, -1) }

// Given returns how many attempts are counted at each node that has some.
func (f *Fleet) Given() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()

	return maps.Clone(f.given)
}

func (f *Fleet) addAssigned(node string, by int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given[node] += by; f.given[node] <= 0 {
		delete(f.given, node)
	}
}

// Suspect leaves a node out for a while: a commit found that its session is
// another than the one that was known when it was picked.
func (f *Fleet) Suspect(node string, session int64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[node]; n != nil && n.Revision == session {
		f.suspect[node] = suspect{session, now.Add(Suspicion)}
	}
}

// SuspectUntil tells when the first suspicion ends; false if there is none.
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

// nodeFits reports whether a node that takes runs is not suspect, and matches.
func (f *Fleet) nodeFits(n *task.Node, w *Want, now time.Time) bool {
	if len(f.suspect) > 0 {
		if s, ok := f.suspect[n.Name]; ok {
			left := s.until.Sub(now)
			if s.session == n.Revision && left > 0 && left <= Suspicion { // more: the clock was set back
				return false
			}
			delete(f.suspect, n.Name)
		}
	}

	if w.elsewhere && (n.Name == w.Avoid || !f.hasFreeSlot(n)) {
		return false
	}

	return (!w.Secret || n.HoldsKey()) && w.Selector.Accepts(n)
}

// nodeLoad is which part of its slots a node has taken, as far as is known.
func (f *Fleet) nodeLoad(n *task.Node) float64 {
	return float64(max(f.given[n.Name], n.Running)) / float64(max(n.Slots, 1))
}

// hasFreeSlot reports whether a node has a free slot, as far as is known.
func (f *Fleet) hasFreeSlot(n *task.Node) bool {
	if n.Name == f.self && f.local != nil {
		return f.given[n.Name] < n.Slots && f.local() > 0
	}
	return max(f.given[n.Name], n.Running) < n.Slots
}

// indexAfter is the place of the first node that takes runs behind a name.
func (f *Fleet) indexAfter(name string) int {
	at, found := slices.BinarySearchFunc(f.taking, name, func(n *task.Node, name string) int { return strings.Compare(n.Name, name) })
	if found {
		at++
	}
	return at
}
