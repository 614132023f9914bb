package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// namesByLoad are the names of the nodes that take runs and match, the least loaded
// first.
func (f *Fleet) namesByLoad(sel task.Selector, now time.Time) []string {
	found := f.Matching(sel, now)
	f.mu.Lock()
	slices.SortStableFunc(found, func(a, b *task.Node) int { return cmp.Compare(f.load(a), f.load(b)) })
	f.mu.Unlock()
	names := make([]string, len(found))
	for i, n := range found {
		names[i] = n.Name
	}
	return names
}

// pickNamed picks a node by its name, whatever its labels say by now, and counts a run
// as given to it; false if it is away, or takes none.
func (f *Fleet) pickNamed(name string, now time.Time) (*task.Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.nodes[name]
	if !ok || !f.fit(n, &Want{}, now) {
		return nil, false
	}
	f.given[name]++
	return n, true
}
