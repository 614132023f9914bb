package shard

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func drawMembers(t *rapid.T, label string) []Member {
	n := rapid.IntRange(1, 12).Draw(t, label)
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{Name: fmt.Sprintf("n%d", i), Weight: rapid.IntRange(1, 4).Draw(t, "weight")}
	}

	return members
}

// The expected figures are computed here independently, from the definition of the guarantee.
//
// Verifies: G15
func TestPlan_GivesFairSharesAndMovesNoMoreThanItMust(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.IntRange(1, 300).Draw(t, "shards")
		members := drawMembers(t, "members")

		current := map[int]string{}
		for id := range shards { // any assignment, including nodes that are gone and shards without an owner
			if who := rapid.IntRange(-2, len(members)+1).Draw(t, "owner"); who >= 0 {
				current[id] = fmt.Sprintf("n%d", who)
			}
		}

		plan := Plan(shards, current, members)
		total := 0
		for _, m := range members {
			total += m.Weight
		}

		had, has, moved := map[string]int{}, map[string]int{}, 0
		for id := range shards {
			if plan[id] == "" {
				t.Fatalf("shard %d has no owner", id)
			}
			has[plan[id]]++
		}

		present := map[string]bool{}
		for _, m := range members {
			present[m.Name] = true
		}

		for id, node := range current {
			if present[node] {
				had[node]++
				if plan[id] != node {
					moved++
				}
			}
		}

		if len(plan) != shards {
			t.Fatalf("%d shards are planned, there are %d", len(plan), shards)
		}

		must, odd, wouldUse := 0, shards, 0
		for _, m := range members {
			down := shards * m.Weight / total
			up := (shards*m.Weight + total - 1) / total
			if n := has[m.Name]; n < down || n > up {
				t.Fatalf("%s has %d shards; its share is %d to %d", m.Name, n, down, up)
			}

			odd -= down
			must += max(0, had[m.Name]-down)

			if had[m.Name] > down && up > down {
				wouldUse++
			}
		}

		if least := must - min(odd, wouldUse); moved != least {
			t.Fatalf("%d shards moved from nodes that are present, %d would do", moved, least)
		}
	})
}

// A node that has too many shards keeps those for which the ring prefers it. Otherwise a node that comes
// back would get other shards than it had.
func TestPlan_MovesWhatTheRingPrefersElsewhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const shards = 64
		members := drawMembers(t, "members")

		current := map[int]string{}
		for id := range shards {
			current[id] = fmt.Sprintf("n%d", rapid.IntRange(0, len(members)-1).Draw(t, "owner"))
		}

		plan, ring := Plan(shards, current, members), NewRing(members)
		prefers := func(id int, node string) (is bool) {
			ring.Prefer(id, func(first string) bool {
				is = first == node
				return true
			})
			return is
		}

		lost := map[string]int{} // by node, a shard that it has lost although the ring prefers it
		for id, node := range current {
			if plan[id] != node && prefers(id, node) {
				lost[node] = id
			}
		}

		for id, node := range current {
			if preferred, ok := lost[node]; ok && plan[id] == node && !prefers(id, node) {
				t.Fatalf("%s loses shard %d, for which the ring prefers it, and keeps shard %d", node, preferred, id)
			}
		}
	})
}

func TestPlan_IsTheSameWhateverTheOrderOfMembers(t *testing.T) {
	a := Plan(256, nil, []Member{{"a", 1}, {"b", 2}, {"c", 1}})
	b := Plan(256, nil, []Member{{"c", 1}, {"b", 2}, {"a", 1}})
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Fatal("two leaders would plan differently")
	}
}

func TestPlan_ChangesNothingWhenNothingChanged(t *testing.T) {
	members := []Member{{"a", 1}, {"b", 1}, {"c", 3}}
	first := Plan(256, nil, members)
	if second := Plan(256, first, members); fmt.Sprint(first) != fmt.Sprint(second) {
		t.Fatal("a plan of a plan differs")
	}
}

func TestPlan_WithoutMembersLeavesAllAsItIs(t *testing.T) {
	if plan := Plan(256, map[int]string{1: "a"}, nil); plan != nil {
		t.Fatalf("planned %v without members", plan)
	}
}

func TestOf_NeverChanges(t *testing.T) {
	for name, want := range map[string]int{"backup": 224, "tick": 56, "nightly-backup": 209} {
		if got := Of("default", name, 256); got != want {
			t.Errorf("Of(default, %s) = %d, was %d: stored records would be lost", name, got, want)
		}
	}
}

// One of several nodes is gone, and its shards move.
func BenchmarkPlan(b *testing.B) {
	for _, c := range []struct{ shards, nodes int }{{256, 3}, {4096, 20}, {4096, 500}} {
		b.Run(fmt.Sprintf("%d shards, %d nodes", c.shards, c.nodes), func(b *testing.B) {
			members := make([]Member, c.nodes)
			for i := range members {
				members[i] = Member{fmt.Sprintf("node-%d", i), 1}
			}

			current := Plan(c.shards, nil, members)
			b.ReportAllocs()

			for b.Loop() {
				Plan(c.shards, current, members[1:])
			}
		})
	}
}
