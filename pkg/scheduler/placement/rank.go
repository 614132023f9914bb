package placement

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Rank returns the names of the nodes that take runs and match, the best first by the
// strategy of w: the first n are for a run that has a part on each of n nodes. What
// is full comes last, but for hash, as with Reserve. Nothing is counted as given.
func (f *Fleet) Rank(w Want, now time.Time) []string {
	type ranked struct {
		name string
		by   float64 // the least is the best
	}
	f.mu.Lock()
	var free, full []ranked
	turn := f.indexOfTurn(&w)

	for i, n := range f.taking {
		by := f.rankNode(&w, i, turn)
		switch {
		case by < 0 || !f.nodeFits(n, &w, now):
		case w.Strategy == task.StrategyHash || f.hasFreeSlot(n):
			free = append(free, ranked{n.Name, by})
		default:
			full = append(full, ranked{n.Name, by})
		}
	}
	f.mu.Unlock()

	var names []string
	for _, list := range [][]ranked{free, full} {
		// Of those that are alike any may be first: else all tasks would begin with the same.
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.by, b.by) })

		for _, r := range list {
			names = append(names, r.name)
		}
	}

	return names
}

// rankNode is how far behind the best the i-th of those that take runs is, by a strategy;
// less than 0: it gets none. turn is whose turn it is.
func (f *Fleet) rankNode(w *Want, i, turn int) float64 {
	n := f.taking[i]

	switch w.Strategy {
	case task.StrategyRoundRobin:
		return float64((i - turn + len(f.taking)) % len(f.taking))
	case task.StrategyRandom:
		return 0
	case task.StrategyWeighted: // who is drawn first, each by its weight (Efraimidis and Spirakis 2006)
		return rand.ExpFloat64() / float64(max(n.Weight, 1))
	case task.StrategyLeastLoaded:
		return f.nodeLoad(n) + machineUse(n)
	case task.StrategyHash:
		return float64(math.MaxUint64 - mixBits(hashFNV(w.Key)^f.hashes[i]))
	case task.StrategyFirst:
		return float64(slices.Index(w.Order, n.Name))
	}

	return f.nodeLoad(n)
}

// ReserveNamed picks a node by its name, whatever its labels say by now, and counts a run
// as given to it; false if it is away, or takes none, or none with secrets if this has some.
func (f *Fleet) ReserveNamed(name string, secret bool, now time.Time) (*task.Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	n, ok := f.able[name]
	if !ok || !f.nodeFits(n, &Want{Secret: secret}, now) {
		return nil, false
	}

	f.given[name]++

	return n, true
}
