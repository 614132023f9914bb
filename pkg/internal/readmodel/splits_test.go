package readmodel

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// splitsOf asks all shards for the names of one in so many tasks.
func splitsOf(shards []*Index, every int, f Filter) []string {
	scan := NewScan(&Query{Filter: f, Splits: every}, "n1")
	for i, x := range shards {
		scan.Add(ShardAnswer{Shard: i}, x)
	}

	return scan.Answer().Splits
}

// The names divide all tasks into parts of similar sizes, also if a shard has fewer tasks than a part, and the tasks of
// each shard are in order.
func TestScan_SplitsTheNames(t *testing.T) {
	t.Parallel()
	const shards, every = 256, 50

	for _, perShard := range []int{20, 500} {
		all := make([]*Index, shards)
		for i := range all {
			all[i] = &Index{}
			for k := range perShard {
				all[i].Put(NoSlot, Row{Name: fmt.Sprintf("%s/t%06d-%03d", []string{"a", "b"}[k%2], k, i)}, Details{})
			}

			all[i].Remove(int32(i % perShard))
		}

		splits := splitsOf(all, every, Filter{})
		slices.Sort(splits)

		tasks := shards * perShard
		if got, want := len(splits), tasks/every; got < want/2 || got > 2*want {
			t.Errorf("%d names for %d tasks", got, tasks)
		}

		// Each tenth of the names has some.
		for tenth := range 10 {
			var names []string
			for _, x := range all {
				x.EachRow(0, func(r *Row) { names = append(names, r.Name) })
			}
			slices.Sort(names)

			from, _ := slices.BinarySearch(splits, names[tenth*len(names)/10])
			to, _ := slices.BinarySearch(splits, names[min((tenth+1)*len(names)/10, len(names)-1)])
			if to <= from {
				t.Errorf("%d tasks: none in tenth %d", tasks, tenth)
			}
		}

		for _, f := range []Filter{{Namespace: "b"}, {Within: []string{"b"}}} {
			some := splitsOf(all, every, f)
			if len(some) == 0 || slices.ContainsFunc(some, func(name string) bool { return !strings.HasPrefix(name, "b/") }) {
				t.Errorf("%+v: %q", f, some)
			}
		}
	}
}
