package placement

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Want is what a run requires of its node. The zero value is any node, with the auto strategy.
type Want struct {
	Selector task.Selector
	Strategy string   // one of task.Strategies; "" is auto
	Key      string   // for the hash strategy
	Order    []string // names of nodes, for the first strategy
	// Last is the node that had the last run, or "" if there was none or it is not known. Round-robin
	// continues after it, sticky stays with it.
	Last string
	// Pool is whose slots the run takes.
	Pool Pool
	// Secret means that the run needs a secret, so nodes without a key for secrets are left out.
	Secret bool
	// Avoid is the node on which the last attempt failed, or "" for a first attempt. The run goes there
	// again only if no other matching node has a free slot, or if the strategy is sticky.
	Avoid string

	// elsewhere restricts the choice to nodes that are not Avoid and have a free slot.
	elsewhere bool
}

// Reserve chooses a node for a run, by its strategy, among those that accept runs and match, and counts the
// run as assigned to it. Release takes the count back. Reserve returns false if there is no such node. It
// remembers nothing else: what a strategy must know about earlier runs is in the Want. The returned node
// must not be changed.
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

	f.given[w.Pool][n.Name]++

	return n, true
}

// pickElsewhere chooses another node for a run whose last attempt failed, by the same strategy. It returns
// nil if there is none, or if the run does not avoid a node. The caller holds the lock, as for all pick and
// draw functions.
func (f *Fleet) pickElsewhere(w *Want, now time.Time) *task.Node {
	if w.Avoid == "" || w.Strategy == task.StrategySticky {
		return nil
	}

	w.elsewhere = true
	n := f.pickNode(w, now)
	w.elsewhere = false

	return n
}

// pickNode chooses a node by the strategy of w, or returns nil. It prefers nodes with a free slot, except
// with hash and sticky.
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

// pickOwnOrLessLoaded chooses the own node if it has a free slot, otherwise the less loaded of two. The own
// node starts a run without waiting for another node's watch.
func (f *Fleet) pickOwnOrLessLoaded(w *Want, now time.Time) *task.Node {
	if n := f.able[f.self]; n != nil && f.local != nil && f.nodeFits(n, w, now) && f.hasFreeSlot(n, w.Pool) {
		return n
	}
	return f.ofTwo(w, now)
}

// ofTwo chooses the less loaded of two matching nodes drawn at random (the power of two choices,
// Mitzenmacher 2001). Choosing the least loaded of all would send the runs of all schedulers to the same
// node.
func (f *Fleet) ofTwo(w *Want, now time.Time) *task.Node {
	a := f.drawFitting(w, now, nil)
	if a == nil {
		return nil
	}
	if b := f.drawFitting(w, now, a); b != nil && f.nodeLoad(b, w.Pool) < f.nodeLoad(a, w.Pool) {
		return b
	}

	return a
}

// drawFitting chooses a matching node other than but at random, each with the same probability. It returns
// nil if there is none.
func (f *Fleet) drawFitting(w *Want, now time.Time, but *task.Node) *task.Node {
	// Draw a few times first. That is enough where most nodes match.
	const tries = 4
	for range min(tries, len(f.taking)) {
		if n := f.taking[rand.IntN(len(f.taking))]; n != but && f.nodeFits(n, w, now) {
			return n
		}
	}

	// Then visit all nodes, and choose one of those that match by reservoir sampling.
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

// pickNext chooses the next matching node after the last one, in the order of names, that has a free slot.
// If none has one, it chooses the next matching node.
func (f *Fleet) pickNext(w *Want, now time.Time) *task.Node {
	from := f.indexOfTurn(w)
	var full *task.Node
	for i := range f.taking {
		n := f.taking[(from+i)%len(f.taking)]
		switch {
		case !f.nodeFits(n, w, now):
		case f.hasFreeSlot(n, w.Pool):
			return n
		case full == nil:
			full = n
		}
	}

	return full
}

// indexOfTurn returns the index in taking at which round-robin begins. Without a last node it is random, so
// that tasks which begin at the same time do not all begin with the same node.
func (f *Fleet) indexOfTurn(w *Want) int {
	if w.Last == "" && len(f.taking) > 0 {
		return rand.IntN(len(f.taking))
	}
	return f.indexAfter(w.Last)
}

// pickRandom chooses a matching node at random. It draws a few, and visits all nodes only if none of those
// has a free slot.
func (f *Fleet) pickRandom(w *Want, now time.Time) *task.Node {
	const tries = 4
	for range min(tries, len(f.taking)) {
		if n := f.taking[rand.IntN(len(f.taking))]; f.nodeFits(n, w, now) && f.hasFreeSlot(n, w.Pool) {
			return n
		}
	}

	return f.drawWeighted(w, now, func(*task.Node) float64 { return 1 })
}

// drawWeighted chooses a node at random, with a probability proportional to its weight, among those with a
// free slot. If none has one, it chooses among all that match.
func (f *Fleet) drawWeighted(w *Want, now time.Time, weight func(*task.Node) float64) *task.Node {
	var drawn, full *task.Node
	var sum, sumFull float64

	for _, n := range f.taking {
		if !f.nodeFits(n, w, now) {
			continue
		}

		of, to := &sum, &drawn
		if !f.hasFreeSlot(n, w.Pool) {
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

// leastLoaded chooses the node with the lowest load, and one of several at random.
func (f *Fleet) leastLoaded(w *Want, now time.Time) *task.Node {
	var best *task.Node
	var least float64
	alike := 0
	for _, n := range f.taking {
		if !f.nodeFits(n, w, now) {
			continue
		}

		load := f.nodeLoad(n, w.Pool) + machineUse(n)
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

// machineUse returns the fraction of a node's machine that is in use, in coarse steps. Nodes report their
// load only now and then. With exact values, all runs of some seconds would go to the one node whose last
// report was slightly lower.
func machineUse(n *task.Node) float64 {
	load, known := n.Facts.Fact(task.FactLoad1)
	if !known || n.Facts.CPUs == 0 {
		return 0
	}

	const steps = 4
	return math.Floor(steps*load/float64(max(n.Facts.CPUs, n.Facts.HostCPUs))) / steps
}

// pickFirst chooses the first node of the given order that has a free slot. If none has one, it chooses the
// first that matches.
func (f *Fleet) pickFirst(w *Want, now time.Time) *task.Node {
	var full *task.Node
	for _, name := range w.Order {
		n := f.able[name]
		switch {
		case n == nil || !f.nodeFits(n, w, now):
		case f.hasFreeSlot(n, w.Pool):
			return n
		case full == nil:
			full = n
		}
	}

	return full
}

// pickByHash chooses the node with the highest score for the key (rendezvous hashing, Thaler and
// Ravishankar 1996). Each key has its own order of nodes, so when a node goes, only its keys move. All
// owners compute the same result.
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

// hashFNV is FNV-1a. It must never change, because runs would move to other nodes.
func hashFNV(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mixBits spreads the bits of h (the finalizer of SplitMix64). It must never change either.
func mixBits(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Rank returns the names of the nodes that accept runs and match, the best first by the strategy of w. The
// first n are for a run that has a part on each of n nodes. Nodes without a free slot come last, except
// with the hash strategy, as in Reserve. Nothing is counted as assigned.
func (f *Fleet) Rank(w Want, now time.Time) []string {
	type ranked struct {
		name string
		by   float64 // lower is better
	}
	f.mu.Lock()
	var free, full []ranked
	turn := f.indexOfTurn(&w)

	for i, n := range f.taking {
		by := f.rankNode(&w, i, turn)
		switch {
		case by < 0 || !f.nodeFits(n, &w, now):
		case w.Strategy == task.StrategyHash || f.hasFreeSlot(n, w.Pool):
			free = append(free, ranked{n.Name, by})
		default:
			full = append(full, ranked{n.Name, by})
		}
	}
	f.mu.Unlock()

	var names []string
	for _, list := range [][]ranked{free, full} {
		// Shuffle first, so that equal nodes are in random order. Otherwise all tasks would begin with the
		// same node.
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.by, b.by) })

		for _, r := range list {
			names = append(names, r.name)
		}
	}

	return names
}

// rankNode returns how good the i-th node of taking is for a strategy: lower is better, and a negative
// value excludes the node. turn is the index at which round-robin begins.
func (f *Fleet) rankNode(w *Want, i, turn int) float64 {
	n := f.taking[i]

	switch w.Strategy {
	case task.StrategyRoundRobin:
		return float64((i - turn + len(f.taking)) % len(f.taking))
	case task.StrategyRandom:
		return 0
	case task.StrategyWeighted:
		// Weighted random order without replacement (Efraimidis and Spirakis 2006).
		return rand.ExpFloat64() / float64(max(n.Weight, 1))
	case task.StrategyLeastLoaded:
		return f.nodeLoad(n, w.Pool) + machineUse(n)
	case task.StrategyHash:
		return float64(math.MaxUint64 - mixBits(hashFNV(w.Key)^f.hashes[i]))
	case task.StrategyFirst:
		// A node that is not in the order has index -1 and is excluded.
		return float64(slices.Index(w.Order, n.Name))
	}

	return f.nodeLoad(n, w.Pool)
}

// ReserveNamed chooses the node with the given name, whatever its labels are by now, and counts a run as
// assigned to it. Of w, only Pool and Secret apply. It returns false if the node is absent or accepts no runs, or if the
// run needs a secret and the node has no key for secrets.
func (f *Fleet) ReserveNamed(name string, w Want, now time.Time) (*task.Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	n, ok := f.able[name]
	if !ok || !f.nodeFits(n, &Want{Pool: w.Pool, Secret: w.Secret}, now) {
		return nil, false
	}

	f.given[w.Pool][name]++

	return n, true
}
