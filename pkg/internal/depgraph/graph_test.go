package depgraph

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// graphOf returns the graph of a text such as "a>b b>c d". A name alone is a task without links.
func graphOf(text string) *Graph {
	g := New()
	for _, part := range strings.Fields(text) {
		names := strings.Split(part, ">")
		g.AddTask(names[0])
		for i := range names[1:] {
			g.Add(Link{Source: names[i], Dependent: names[i+1]})
		}
	}

	return g
}

// pathText returns a path as "a>b>a".
func pathText(path []string) string { return strings.Join(path, ">") }

// layerText returns layers as "a b|c".
func layerText(layers [][]string) string {
	texts := make([]string, len(layers))
	for i, l := range layers {
		texts[i] = strings.Join(l, " ")
	}

	return strings.Join(texts, "|")
}

func TestGraph(t *testing.T) {
	chain := make([]string, task.MaxChain)
	for i := range chain {
		chain[i] = fmt.Sprintf("t%03d", i)
	}

	for _, tt := range []struct {
		graph, layers, cycles string
		depth                 int
	}{
		{"", "", "", 0},
		{"a", "a", "", 1},
		{"a>b", "a|b", "", 2},
		{"b>a", "b|a", "", 2},
		{"a>b>c a>c", "a|b|c", "", 3},
		{"a>b a>c b>d c>d", "a|b c|d", "", 3}, // a diamond is no cycle
		{"a>b c>d x", "a c x|b d", "", 2},
		{"a>b>a", "a b", "a>b>a", 2},
		{"a>b>c>a x>a c>y", "x|a b c y", "a>b>c>a", 5},
		{"a>a", "a", "a>a", 1},
		{"a>b>a c>d>c", "a b c d", "a>b>a c>d>c", 4},
		{"a>b>a b>m>c c>d>c", "a b c d m", "a>b>a c>d>c", 5}, // m is between two cycles, but part of none
		{"a>b>c>a b>d>a", "a b c d", "a>b>c>a", 4},           // two cycles that share a link count as one
		{pathText(chain), strings.Join(chain, "|"), "", task.MaxChain},
	} {
		g := graphOf(tt.graph)

		var cycles []string
		for _, c := range g.Cycles() {
			cycles = append(cycles, pathText(c))
		}

		if got := layerText(g.Layers()); got != tt.layers {
			t.Errorf("%s: layers %s, want %s", tt.graph, got, tt.layers)
		}
		if got := strings.Join(cycles, " "); got != tt.cycles {
			t.Errorf("%s: cycles %s, want %s", tt.graph, got, tt.cycles)
		}
		if got := g.Depth(); got != tt.depth {
			t.Errorf("%s: depth %d, want %d", tt.graph, got, tt.depth)
		}
	}
}

func TestGraph_PathsAndDepthThroughATask(t *testing.T) {
	g := graphOf("a>b>c>d a>d x>c y")

	for _, tt := range []struct{ got, want any }{
		{pathText(g.Path("a", "d")), "a>d"}, // the shortest
		{pathText(g.Path("b", "d")), "b>c>d"},
		{g.Path("d", "a"), []string(nil)},
		{g.Path("a", "a"), []string(nil)},
		{g.Path("none", "a"), []string(nil)},
		{g.Cycle("a"), []string(nil)},
		{pathText(graphOf("a>b>c>a").Cycle("b")), "b>c>a>b"},
		{g.DepthThrough("b"), 4},
		{g.DepthThrough("x"), 3},
		{g.DepthThrough("y"), 1},
		{g.DepthThrough("none"), 0},
		{g.Upstream("c", 0), map[string]int{"c": 0, "b": 1, "x": 1, "a": 2}},
		{g.Upstream("c", 1), map[string]int{"c": 0, "b": 1, "x": 1}},
		{g.Downstream("a", 0), map[string]int{"a": 0, "b": 1, "d": 1, "c": 2}},
		{g.Downstream("a", 1), map[string]int{"a": 0, "b": 1, "d": 1}},
		{g.Downstream("none", 0), map[string]int(nil)},
		{graphOf("a>b>a").Downstream("a", 0), map[string]int{"a": 0, "b": 1}},
		{g.Around("b", 1).Tasks(), []string{"a", "b", "c"}},
		{g.Around("x", 0).Tasks(), []string{"c", "d", "x"}},
		{g.Around("y", 2).Tasks(), []string{"y"}},
		{g.Sources("d"), []string{"a", "c"}},
		{g.Dependents("a"), []string{"b", "d"}},
	} {
		if !reflect.DeepEqual(tt.got, tt.want) {
			t.Errorf("got %v, want %v", tt.got, tt.want)
		}
	}
}

func TestGraph_ReplacesAndRemovesLinks(t *testing.T) {
	g := New(LinksOf("b", task.Sources{{Task: "a", When: task.WhenFailed}, {Task: "x", Results: []string{"rows"}}})...)
	g.Add(Link{Source: "a", Dependent: "b", When: task.WhenEnded})

	want := []Link{{"a", "b", task.WhenEnded, nil}, {"x", "b", "", []string{"rows"}}}
	if got := g.Links(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	g.Remove("a", "b")
	g.Remove("b", "a") // there is none
	if got := g.Links(); !reflect.DeepEqual(got, want[1:]) {
		t.Errorf("after a link was removed: got %v, want %v", got, want[1:])
	}
	if _, ok := g.Link("a", "b"); ok || !g.Has("a") || len(g.Dependents("a")) > 0 {
		t.Error("a link that was removed is still there, or its task is not")
	}
}

func TestMermaid(t *testing.T) {
	g := graphOf("import>end alone")
	g.Add(Link{Source: "import", Dependent: `a"b#c`, When: task.WhenFailed})
	g.Add(Link{Source: "import", Dependent: "z", When: task.WhenSucceeded})

	want := `flowchart LR
  t0["a#quot;b#35;c"]
  t1["alone"]
  t2["end"]
  t3["import"]
  t4["z"]
  t3 -->|failed| t0
  t3 --> t2
  t3 --> t4
`
	if got := g.Mermaid(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestGraph_Properties compares the results for random graphs, most of which have cycles, with a search that is too simple to be
// wrong.
func TestGraph_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
		link := rapid.Custom(func(t *rapid.T) Link {
			return Link{Source: name.Draw(t, "source"), Dependent: name.Draw(t, "dependent")}
		})
		links := rapid.SliceOfN(link, 0, 14).Draw(t, "links")
		g := New(links...)

		// reaches[a][b]: a path leads from a to b.
		reaches := map[string]map[string]bool{}
		for _, n := range g.Tasks() {
			reaches[n] = map[string]bool{}
		}
		for _, l := range links {
			reaches[l.Source][l.Dependent] = true
		}
		for _, k := range g.Tasks() {
			for _, i := range g.Tasks() {
				for _, j := range g.Tasks() {
					reaches[i][j] = reaches[i][j] || reaches[i][k] && reaches[k][j]
				}
			}
		}

		isPath := func(path []string) bool {
			for i := range path[1:] {
				if _, ok := g.Link(path[i], path[i+1]); !ok {
					return false
				}
			}
			return len(path) > 1
		}

		cyclic := false
		for _, a := range g.Tasks() {
			cyclic = cyclic || reaches[a][a]

			for _, b := range g.Tasks() {
				if path := g.Path(a, b); (path != nil) != reaches[a][b] || path != nil && (!isPath(path) || path[0] != a || path[len(path)-1] != b) {
					t.Fatalf("path from %s to %s: %v", a, b, path)
				}
				if _, down := g.Downstream(a, 0)[b]; down != (a == b || reaches[a][b]) {
					t.Fatalf("downstream of %s: %s is %t", a, b, down)
				}
				if _, up := g.Upstream(b, 0)[a]; up != (a == b || reaches[a][b]) {
					t.Fatalf("upstream of %s: %s is %t", b, a, up)
				}
			}
		}

		// Each task that is part of a cycle is connected with one of the cycles, and each of them is one.
		cycles := g.Cycles()
		if (len(cycles) > 0) != cyclic {
			t.Fatalf("cycles %v of a graph that has some: %t", cycles, cyclic)
		}
		for _, c := range cycles {
			if !isPath(c) || c[0] != c[len(c)-1] {
				t.Fatalf("%v is no cycle", c)
			}
		}
		for _, a := range g.Tasks() {
			if reaches[a][a] && !slices.ContainsFunc(cycles, func(c []string) bool { return reaches[a][c[0]] && reaches[c[0]][a] }) {
				t.Fatalf("%s is part of a cycle that is not connected with any of %v", a, cycles)
			}
		}

		// Layers contain each task once, after its sources, unless there is a cycle before it.
		layerOf := map[string]int{}
		for i, layer := range g.Layers() {
			for _, n := range layer {
				if _, twice := layerOf[n]; twice {
					t.Fatalf("%s is in two layers", n)
				}
				layerOf[n] = i
			}
		}
		if !slices.Equal(slices.Sorted(maps.Keys(layerOf)), g.Tasks()) {
			t.Fatalf("layers %v of tasks %v", g.Layers(), g.Tasks())
		}
		behindCycle := func(n string) bool {
			return slices.ContainsFunc(g.Tasks(), func(a string) bool { return reaches[a][a] && (a == n || reaches[a][n]) })
		}
		for _, l := range g.Links() {
			if !behindCycle(l.Dependent) && layerOf[l.Source] >= layerOf[l.Dependent] {
				t.Fatalf("%s is not in an earlier layer than %s: %v", l.Source, l.Dependent, g.Layers())
			}
		}

		// The longest chain through any task is the depth.
		if !cyclic {
			deepest := 0
			for _, n := range g.Tasks() {
				deepest = max(deepest, g.DepthThrough(n))
			}
			if deepest != g.Depth() || deepest != len(g.Layers()) {
				t.Fatalf("depth %d, and %d through the deepest task", g.Depth(), deepest)
			}
		}
	})
}
