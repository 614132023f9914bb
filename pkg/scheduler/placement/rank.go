package placement

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

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
