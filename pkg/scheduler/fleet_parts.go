package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// matching are the names of the nodes that take runs and match, the least loaded
// first.
func (f *Fleet) matching(sel task.Selector, now time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*task.Node
	for _, name := range f.taking {
		if n := f.nodes[name]; f.fit(n, sel, now) {
			found = append(found, n)
		}
	}
	slices.SortFunc(found, func(a, b *task.Node) int {
		return cmp.Or(cmp.Compare(f.load(a), f.load(b)), cmp.Compare(a.Name, b.Name))
	})
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
	if !ok || !f.fit(n, nil, now) {
		return nil, false
	}
	f.given[name]++
	return n, true
}
