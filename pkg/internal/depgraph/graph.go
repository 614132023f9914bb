// Package depgraph computes with the links between the tasks of one namespace: which task runs after which other one.
//
// A link leads from a source to its dependent. The package is pure: whoever has read the links, from etcd, from the API or from
// files, builds a Graph and asks it. Tasks are names. Every result is in a fixed order, whatever the order of the links.
//
// A stored graph has no cycle, because the API refuses the link that would close one. Files and damaged records may have some, so
// every function returns with a cycle, too.
package depgraph

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// Link says that a task runs after another one.
type Link struct {
	Source, Dependent string
	When              task.When // which ends of the source count
	Results           []string  // which results of the source the dependent gets
}

// Graph is a set of tasks and the links between them. Two tasks have at most one link in each direction.
type Graph struct {
	sources    map[string][]string // by dependent; every task of the graph is a key
	dependents map[string][]string // by source
	links      map[[2]string]Link  // by source and dependent
}

// New returns the graph with some links and the tasks that these connect.
func New(links ...Link) *Graph {
	g := &Graph{sources: map[string][]string{}, dependents: map[string][]string{}, links: map[[2]string]Link{}}
	for _, l := range links {
		g.Add(l)
	}

	return g
}

// LinksOf returns the links of a task with these sources.
func LinksOf(name string, sources task.Sources) []Link {
	links := make([]Link, len(sources))
	for i, s := range sources {
		links[i] = Link{Source: s.Task, Dependent: name, When: s.When, Results: s.Results}
	}

	return links
}

// AddTask adds a task, which needs no link.
func (g *Graph) AddTask(name string) {
	if _, has := g.sources[name]; !has {
		g.sources[name] = nil
	}
}

// Add adds a link and its tasks, or replaces the link between them.
func (g *Graph) Add(l Link) {
	g.AddTask(l.Source)
	g.AddTask(l.Dependent)

	key := [2]string{l.Source, l.Dependent}
	if _, has := g.links[key]; !has {
		g.sources[l.Dependent] = insertName(g.sources[l.Dependent], l.Source)
		g.dependents[l.Source] = insertName(g.dependents[l.Source], l.Dependent)
	}
	g.links[key] = l
}

// Remove removes the link between two tasks, if there is one. The tasks remain.
func (g *Graph) Remove(source, dependent string) {
	key := [2]string{source, dependent}
	if _, has := g.links[key]; !has {
		return
	}

	delete(g.links, key)
	g.sources[dependent] = removeName(g.sources[dependent], source)
	g.dependents[source] = removeName(g.dependents[source], dependent)
}

// insertName inserts a name into a sorted list that does not contain it.
func insertName(list []string, name string) []string {
	i, _ := slices.BinarySearch(list, name)
	return slices.Insert(list, i, name)
}

// removeName removes a name from a sorted list that contains it.
func removeName(list []string, name string) []string {
	i, _ := slices.BinarySearch(list, name)
	return slices.Delete(list, i, i+1)
}

// Has reports whether the graph contains a task.
func (g *Graph) Has(name string) bool {
	_, has := g.sources[name]
	return has
}

// Tasks returns the names of all tasks, sorted.
func (g *Graph) Tasks() []string { return slices.Sorted(maps.Keys(g.sources)) }

// Sources returns the direct sources of a task, sorted.
func (g *Graph) Sources(name string) []string { return slices.Clone(g.sources[name]) }

// Dependents returns the direct dependents of a task, sorted.
func (g *Graph) Dependents(name string) []string { return slices.Clone(g.dependents[name]) }

// Link returns the link between two tasks, or false if there is none.
func (g *Graph) Link(source, dependent string) (l Link, ok bool) {
	l, ok = g.links[[2]string{source, dependent}]
	return l, ok
}

// Links returns all links, sorted by source and dependent.
func (g *Graph) Links() []Link {
	var list []Link
	for _, source := range g.Tasks() {
		for _, dependent := range g.dependents[source] {
			list = append(list, g.links[[2]string{source, dependent}])
		}
	}

	return list
}

// Keep returns the graph with only some of the tasks, and the links between these.
func (g *Graph) Keep(keep func(name string) bool) *Graph {
	part := New()
	for name := range g.sources {
		if keep(name) {
			part.AddTask(name)
		}
	}

	for _, l := range g.links {
		if part.Has(l.Source) && part.Has(l.Dependent) {
			part.Add(l)
		}
	}

	return part
}

// Path returns a shortest path from a task to another one along the links, with both ends. It is nil if there is none. From a
// task to itself, it returns the path through other tasks.
func (g *Graph) Path(from, to string) []string {
	before := map[string]string{} // the task from which each one was reached
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range g.dependents[queue[0]] {
			if _, seen := before[next]; seen {
				continue
			}
			before[next] = queue[0]

			if next != to {
				queue = append(queue, next)
				continue
			}

			path := []string{to}
			for at := queue[0]; at != from; at = before[at] {
				path = append(path, at)
			}
			path = append(path, from)
			slices.Reverse(path)

			return path
		}
	}

	return nil
}

// Cycle returns a shortest cycle through a task, which is its first and last element. It is nil if there is none.
func (g *Graph) Cycle(name string) []string { return g.Path(name, name) }

// Cycles returns cycles such that each task which is part of a cycle can reach one of them, and is reached from it. So there is
// none if and only if the graph has no cycle. Each begins and ends with the same task.
func (g *Graph) Cycles() [][]string {
	var cycles [][]string
	done := map[string]bool{}

	// Only what is left after all layers were removed from both ends can be part of a cycle.
	for _, name := range g.cyclic() {
		if done[name] {
			continue
		}
		cycle := g.Cycle(name)
		if cycle == nil {
			continue
		}
		cycles = append(cycles, cycle)

		// The tasks that reach the cycle and are reached from it have the same cycles, or others connected with it.
		up, down := g.Upstream(name, 0), g.Downstream(name, 0)
		for other := range up {
			if _, both := down[other]; both {
				done[other] = true
			}
		}
	}

	return cycles
}

// cyclic returns the tasks that are part of a cycle or between two cycles, sorted.
func (g *Graph) cyclic() []string {
	_, behind := g.split(g.sources, g.dependents)
	_, before := g.split(g.dependents, g.sources)

	return slices.DeleteFunc(behind, func(name string) bool {
		_, both := slices.BinarySearch(before, name)
		return !both
	})
}

// Layers returns all tasks such that each is in a later layer than its sources, and as early as possible. A write that needs the
// sources of a task goes through the layers from the first to the last one, a deletion from the last to the first. Tasks that are
// part of a cycle, or behind one, are together in the last layer.
func (g *Graph) Layers() [][]string {
	layers, rest := g.split(g.sources, g.dependents)
	if len(rest) > 0 {
		layers = append(layers, rest)
	}

	return layers
}

// split returns the layers of the tasks, and those that are part of a cycle or behind one. before and after lead from each task to
// its neighbors.
func (g *Graph) split(before, after map[string][]string) (layers [][]string, rest []string) {
	open := make(map[string]int, len(g.sources)) // how many tasks before each one have no layer yet
	var layer []string
	for name := range g.sources {
		if open[name] = len(before[name]); open[name] == 0 {
			layer = append(layer, name)
		}
	}

	for len(layer) > 0 {
		slices.Sort(layer)
		layers = append(layers, layer)

		var next []string
		for _, name := range layer {
			delete(open, name)
			for _, other := range after[name] {
				if open[other]--; open[other] == 0 {
					next = append(next, other)
				}
			}
		}
		layer = next
	}

	return layers, slices.Sorted(maps.Keys(open))
}

// Depth returns the number of tasks of the longest chain. With a cycle, which has no longest chain, it is the number of tasks.
func (g *Graph) Depth() int {
	layers, rest := g.split(g.sources, g.dependents)
	if len(rest) > 0 {
		return len(g.sources)
	}

	return len(layers)
}

// DepthThrough returns the number of tasks of the longest chain that contains a task; 0 if the graph does not have it.
func (g *Graph) DepthThrough(name string) int {
	if !g.Has(name) {
		return 0
	}

	up, down := g.Upstream(name, 0), g.Downstream(name, 0)
	part := func(in map[string]int) int {
		return g.Keep(func(other string) bool { _, has := in[other]; return has }).Depth()
	}

	return part(up) + part(down) - 1
}

// Upstream returns a task and the tasks from which links lead to it, with the number of links between. levels limits this number;
// 0 means no limit.
func (g *Graph) Upstream(name string, levels int) map[string]int {
	return g.reach(g.sources, name, levels)
}

// Downstream is like Upstream for the tasks to which links lead from the task.
func (g *Graph) Downstream(name string, levels int) map[string]int {
	return g.reach(g.dependents, name, levels)
}

func (g *Graph) reach(next map[string][]string, name string, levels int) map[string]int {
	if !g.Has(name) {
		return nil
	}

	at := map[string]int{name: 0}
	for queue := []string{name}; len(queue) > 0; queue = queue[1:] {
		level := at[queue[0]] + 1
		if levels > 0 && level > levels {
			break
		}

		for _, other := range next[queue[0]] {
			if _, seen := at[other]; !seen {
				at[other] = level
				queue = append(queue, other)
			}
		}
	}

	return at
}

// Around returns the part of the graph that is upstream or downstream of a task, up to a number of levels; 0 means no limit.
func (g *Graph) Around(name string, levels int) *Graph {
	up, down := g.Upstream(name, levels), g.Downstream(name, levels)

	return g.Keep(func(other string) bool {
		_, above := up[other]
		_, below := down[other]
		return above || below
	})
}
