package taskstate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Tasks behave like a map, whether or not the hashes of their names collide.
func TestTasks_AreLikeAMap(t *testing.T) {
	t.Parallel()

	for name, hash := range map[string]func(string) uint64{
		"usual hashes": nil,
		"collisions":   func(name string) uint64 { return uint64(len(name)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				l := Tasks{hash: hash}
				want := map[string]*Task{}
				name := rapid.StringMatching(`[ab]/[ab]{1,2}`)

				t.Repeat(map[string]func(*rapid.T){
					"put": func(t *rapid.T) {
						n := name.Draw(t, "name")
						text := n + rapid.SampledFrom([]string{"", "uid"}).Draw(t, "rest")
						want[n] = &Task{Text: text, NameLen: uint16(len(n))}
						l.Put(want[n])
					},
					"put again": func(t *rapid.T) {
						n := name.Draw(t, "name")
						if have := want[n]; have != nil {
							have.Text = strings.Clone(n) + "another"
							l.Put(have)
						}
					},
					"delete": func(t *rapid.T) {
						n := name.Draw(t, "name")
						l.Delete(n)
						delete(want, n)
					},
					"": func(t *rapid.T) {
						n := name.Draw(t, "name")
						if got := l.Get(n); got != want[n] {
							t.Fatalf("%s is %v, want %v", n, got, want[n])
						}

						got := slices.SortedFunc(l.All(), ByName)
						if !slices.Equal(got, slices.SortedFunc(maps.Values(want), ByName)) || l.Len() != len(want) {
							t.Fatalf("there are %d: %v, want %v", l.Len(), got, want)
						}
					},
				})
			})
		})
	}
}

// A loop over all tasks may delete them, and may stop early.
func TestTasks_CanBeDeletedWhileVisited(t *testing.T) {
	t.Parallel()
	l := Tasks{hash: func(string) uint64 { return 0 }}

	for _, n := range []string{"a/a", "a/b", "a/c"} {
		l.Put(&Task{Text: n, NameLen: 3})
	}

	for range l.All() {
		break
	}

	for visited := range l.All() {
		l.Delete(visited.FullName())
	}

	if l.Len() != 0 {
		t.Errorf("%d tasks are left", l.Len())
	}
}
