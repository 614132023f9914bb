package placement

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Want is what a run asks of the node that is to have it. The zero value is any
// node, by strategy auto.
type Want struct {
	Selector task.Selector
	Strategy string   // of task.Strategies; "" is auto
	Key      string   // of hash
	Order    []string // of first
	// Last is the node that had the run before: round-robin goes on after it, sticky
	// stays with it. "" if there was none, or nobody knows.
	Last   string
	Secret bool // it reads one: nodes without a key for secrets are left out
	// Avoid is the node on which the attempt before failed. The run goes there again only if no other
	// node that matches has a free slot, or if the strategy is sticky. "" for a first attempt.
	Avoid string

	// elsewhere restricts the choice to nodes that are not Avoid and have a free slot.
	elsewhere bool
}

// Reserve chooses the node for a run, by its strategy, among those that take runs and
// match, and counts the run as given to it; Release gives it back. false if there is
// none. It remembers nothing else: what a strategy has to know of former runs is in
// the Want. The node is not to be changed.
func (f *Fleet) Reserve(w Want, now time.Time) (*task.Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	n := f.pickElsewhere(&w, now)
	if n == nil {
		n = f.pickNode(&w, now)
	}

	if n == nil {
		return nil, false
	}

	f.given[n.Name]++

	return n, true
}

// pickElsewhere chooses another node for a run whose last attempt failed, by the same strategy. Nil
// means that there is none, or that the run does not ask for one.
func (f *Fleet) pickElsewhere(w *Want, now time.Time) *task.Node {
	if w.Avoid == "" || w.Strategy == task.StrategySticky {
		return nil
	}

	w.elsewhere = true
	n := f.pickNode(w, now)
	w.elsewhere = false

	return n
}

func (f *Fleet) pickNode(w *Want, now time.Time) *task.Node {
	switch w.Strategy {
	case task.StrategyRoundRobin:
		return f.pickNext(w, now)
	case task.StrategyRandom:
		return f.pickRandom(w, now)
	case task.StrategyWeighted:
		return f.drawWeighted(w, now, func(n *task.Node) float64 { return float64(max(n.Weight, 1)) })

	case task.StrategyLeastLoaded:
		return f.leastLoaded(w, now)
	case task.StrategyHash:
		return f.pickByHash(w, now)
	case task.StrategyFirst:
		return f.pickFirst(w, now)
	case task.StrategySticky:
		if n := f.able[w.Last]; n != nil && f.nodeFits(n, w, now) {
			return n
		}
		return f.ofTwo(w, now)
	}

	return f.pickOwnOrLessLoaded(w, now)
}

// pickOwnOrLessLoaded is the own node if it has a free slot, else the less loaded of two.
func (f *Fleet) pickOwnOrLessLoaded(w *Want, now time.Time) *task.Node {
	if n := f.able[f.self]; n != nil && f.local != nil && f.nodeFits(n, w, now) && f.given[n.Name] < n.Slots && f.local() > 0 {
		return n
	}
	return f.ofTwo(w, now)
}

// ofTwo is the less loaded of two matching nodes drawn at random (the power of two
// choices, Mitzenmacher 2001).
func (f *Fleet) ofTwo(w *Want, now time.Time) *task.Node {
	a := f.drawFitting(w, now, nil)
	if a == nil {
		return nil
	}
	if b := f.drawFitting(w, now, a); b != nil && f.nodeLoad(b) < f.nodeLoad(a) {
		return b
	}

	return a
}

// drawFitting chooses a node that fits at random, but not one; each is as likely as any
// other.
func (f *Fleet) drawFitting(w *Want, now time.Time, but *task.Node) *task.Node {
	const tries = 4 // enough where most nodes fit
	for range min(tries, len(f.taking)) {
		if n := f.taking[rand.IntN(len(f.taking))]; n != but && f.nodeFits(n, w, now) {
			return n
		}
	}

	var drawn *task.Node
	found := 0
	for _, n := range f.taking {
		if n != but && f.nodeFits(n, w, now) {
			if found++; rand.IntN(found) == 0 {
				drawn = n
			}
		}
	}

	return drawn
}

// pickNext is the node after the last one, in the order of names, that has a free slot;
// if none has, the next one all the same.
func (f *Fleet) pickNext(w *Want, now time.Time) *task.Node {
	from := f.indexOfTurn(w)
	var full *task.Node
	for i := range f.taking {
		n := f.taking[(from+i)%len(f.taking)]
		switch {
		case !f.nodeFits(n, w, now):
		case f.hasFreeSlot(n):
			return n
		case full == nil:
			full = n
		}
	}

	return full
}

// indexOfTurn is the place of the node whose turn it is. Without a last one it is anyone's:
// tasks that begin together do not all begin with the same node.
func (f *Fleet) indexOfTurn(w *Want) int {
	if w.Last == "" && len(f.taking) > 0 {
		return rand.IntN(len(f.taking))
	}
	return f.indexAfter(w.Last)
}

// pickRandom is a node at random: of many it draws a few, and looks at all only if none
// of those has a free slot.
func (f *Fleet) pickRandom(w *Want, now time.Time) *task.Node {
	const tries = 4
	for range min(tries, len(f.taking)) {
		if n := f.taking[rand.IntN(len(f.taking))]; f.nodeFits(n, w, now) && f.hasFreeSlot(n) {
			return n
		}
	}

	return f.drawWeighted(w, now, func(*task.Node) float64 { return 1 })
}

// drawWeighted is a node at random, each by its weight, of those with a free slot; if none
// has one, of all.
func (f *Fleet) drawWeighted(w *Want, now time.Time, weight func(*task.Node) float64) *task.Node {
	var drawn, full *task.Node
	var sum, sumFull float64

	for _, n := range f.taking {
		if !f.nodeFits(n, w, now) {
			continue
		}

		of, to := &sum, &drawn
		if !f.hasFreeSlot(n) {
			of, to = &sumFull, &full
		}

		if *of += weight(n); rand.Float64()**of < weight(n) {
			*to = n
		}
	}

	if drawn == nil {
		return full
	}

	return drawn
}

// leastLoaded is the node with the least load; among several, one at random.
func (f *Fleet) leastLoaded(w *Want, now time.Time) *task.Node {
	var best *task.Node
	var least float64
	alike := 0
	for _, n := range f.taking {
		if !f.nodeFits(n, w, now) {
			continue
		}

		load := f.nodeLoad(n) + machineUse(n)
		switch {
		case best == nil || load < least:
			best, least, alike = n, load, 1
		case load == least:
			if alike++; rand.IntN(alike) == 0 {
				best = n
			}
		}
	}

	return best
}

// machineUse is how much of a node's machine is in use, in coarse steps: its load is told
// now and then, and all runs of some seconds are not to go to the one node that was
// idler by a hair.
func machineUse(n *task.Node) float64 {
	load, known := n.Facts.Fact(task.FactLoad1)
	if !known || n.Facts.CPUs == 0 {
		return 0
	}

	const steps = 4
	return math.Floor(steps*load/float64(max(n.Facts.CPUs, n.Facts.HostCPUs))) / steps
}

// pickFirst is the first of the order that has a free slot; if none has, the first that
// takes runs.
func (f *Fleet) pickFirst(w *Want, now time.Time) *task.Node {
	var full *task.Node
	for _, name := range w.Order {
		n := f.able[name]
		switch {
		case n == nil || !f.nodeFits(n, w, now):
		case f.hasFreeSlot(n):
			return n
		case full == nil:
			full = n
		}
	}

	return full
}

// pickByHash is the node with the highest score for the key: each key has an order of
// nodes of its own, and only what a node had moves when it goes (rendezvous hashing,
// Thaler and Ravishankar 1996). All owners compute the same.
func (f *Fleet) pickByHash(w *Want, now time.Time) *task.Node {
	var best *task.Node
	var most uint64
	key := hashFNV(w.Key)

	for i, n := range f.taking {
		if score := mixBits(key ^ f.hashes[i]); (best == nil || score > most) && f.nodeFits(n, w, now) {
			best, most = n, score
		}
	}

	return best
}

// hashFNV is FNV-1a. It must never change: runs would move.
func hashFNV(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mixBits spreads the bits of h (the finaliser of SplitMix64).
func mixBits(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
