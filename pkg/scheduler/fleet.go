package scheduler

import (
	"math/rand/v2"
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
	taking  []string              // names of the nodes that take runs
	given   map[string]int        // attempts of our shards by node
	suspect map[string]suspect    // sessions that a commit found to be over
}

type suspect struct {
	session int64
	until   time.Time
}

// suspicion is how long a node is left out whose session a commit found to be
// another than the one known: by then the mirror has caught up.
const suspicion = 3 * time.Second

// NewFleet makes a Fleet as node self sees it. local tells how many slots of the
// own executor are free.
func NewFleet(self string, local func() int) *Fleet {
	return &Fleet{self: self, local: local, nodes: map[string]*task.Node{}, given: map[string]int{}, suspect: map[string]suspect{}}
}

// Set replaces the nodes by those that are present now.
func (f *Fleet) Set(nodes []task.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.nodes)
	f.taking = f.taking[:0]
	for _, n := range nodes {
		f.nodes[n.Name] = &n
		if n.Takes() {
			f.taking = append(f.taking, n.Name)
		}
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

// Give counts an attempt that went to a node; Take one that ended there.
func (f *Fleet) Give(node string) { f.count(node, 1) }

// Take counts an attempt that ended.
func (f *Fleet) Take(node string) { f.count(node, -1) }

func (f *Fleet) count(node string, by int) {
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
		f.suspect[node] = suspect{session, now.Add(suspicion)}
	}
}

// Suspected tells when the first suspicion ends; false if there is none.
func (f *Fleet) Suspected(now time.Time) (until time.Time, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.suspect {
		if s.until.After(now) && (!ok || s.until.Before(until)) {
			until, ok = s.until, true
		}
	}
	return until, ok
}

// Pick chooses the node for a run and counts the run as given to it: the own
// node if it matches and has a free slot, else the less loaded of two matching
// ones drawn at random (the power of two choices, Mitzenmacher 2001). false if
// no node that takes runs matches.
func (f *Fleet) Pick(sel task.Selector, now time.Time) (*task.Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.pick(sel, now)
	if ok {
		f.given[n.Name]++
	}
	return n, ok
}

func (f *Fleet) pick(sel task.Selector, now time.Time) (*task.Node, bool) {
	if n, ok := f.nodes[f.self]; ok && f.local != nil && f.fit(n, sel, now) && f.given[n.Name] < n.Slots && f.local() > 0 {
		return n, true
	}
	a, ok := f.draw(sel, now, "")
	if !ok {
		return nil, false
	}
	if b, ok := f.draw(sel, now, a.Name); ok && f.load(b) < f.load(a) {
		return b, true
	}
	return a, true
}

// draw chooses a node that fits at random, but not one; each is as likely as
// any other.
func (f *Fleet) draw(sel task.Selector, now time.Time, but string) (*task.Node, bool) {
	const tries = 4 // enough where most nodes fit
	for range min(tries, len(f.taking)) {
		if n := f.nodes[f.taking[rand.IntN(len(f.taking))]]; n.Name != but && f.fit(n, sel, now) {
			return n, true
		}
	}
	var drawn *task.Node
	found := 0
	for _, name := range f.taking {
		if n := f.nodes[name]; name != but && f.fit(n, sel, now) {
			if found++; rand.IntN(found) == 0 {
				drawn = n
			}
		}
	}
	return drawn, found > 0
}

func (f *Fleet) fit(n *task.Node, sel task.Selector, now time.Time) bool {
	if len(f.suspect) == 0 {
		return n.Takes() && sel.Matches(n.Labels)
	}
	if s, ok := f.suspect[n.Name]; ok {
		left := s.until.Sub(now)
		if s.session == n.Revision && left > 0 && left <= suspicion { // more: the clock was set back
			return false
		}
		delete(f.suspect, n.Name)
	}
	return n.Takes() && sel.Matches(n.Labels)
}

func (f *Fleet) load(n *task.Node) float64 {
	return float64(max(f.given[n.Name], n.Running)) / float64(max(n.Slots, 1))
}
