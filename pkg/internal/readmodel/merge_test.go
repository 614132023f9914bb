package readmodel

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// fleet is a cluster in which shards move: each node has the rows of some shards, as they were when it became their
// owner, and the newest owner of a shard has its current rows.
type fleet struct {
	shards int
	now    [][]Row // the current rows, by shard
	nodes  map[string]map[int]owned
}

// owned is what a node knows of a shard.
type owned struct {
	owner int64
	rows  []Row
}

// drawFleet draws a cluster. Former owners may still believe that they own a shard, with rows that are out of date.
func drawFleet(t *rapid.T) fleet {
	f := fleet{shards: rapid.IntRange(1, 6).Draw(t, "shards"), nodes: map[string]map[int]owned{}}
	names := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "nodes")]
	for _, n := range names {
		f.nodes[n] = map[int]owned{}
	}

	revision := int64(0)
	for shard := range f.shards {
		var rows []Row
		for range rapid.IntRange(0, 3).Draw(t, "owners") {
			rows = drawRows(t, shard)
			revision++
			f.nodes[rapid.SampledFrom(names).Draw(t, "owner")][shard] = owned{revision, rows}
		}
		f.now = append(f.now, rows) // nil if the shard has no owner
	}

	return f
}

// drawRows draws the rows of a shard. The name of a task determines its shard.
func drawRows(t *rapid.T, shard int) []Row {
	rows := make([]Row, rapid.IntRange(0, 5).Draw(t, "rows"))
	for i := range rows {
		rows[i] = Row{Name: fmt.Sprintf("ns/t%d-%d", i, shard), Next: rapid.Int64Range(0, 4).Draw(t, "next"), Flags: Flags(rapid.IntRange(0, 15).Draw(t, "flags"))}
	}

	return rows
}

// ask answers a query as a node does.
func (f *fleet) ask(node string, q *Query, without []int) NodeAnswer {
	first, a := NewFirst(q), NodeAnswer{Node: node}
	for shard := range f.shards {
		o, owns := f.nodes[node][shard]
		if !owns || slices.Contains(without, shard) {
			continue
		}

		var x Index
		for _, r := range o.rows {
			x.Put(NoSlot, r, Details{}, nil)
		}
		a.Shards = append(a.Shards, ShardAnswer{Shard: shard, Owner: o.owner, Counts: x.Scan(q, shard, first)})
	}

	a.Places, a.More = first.Sorted(), first.More

	return a
}

// An answer that names no missing shard has exactly the first places and the counts of all current rows, and one that
// names some has those of the other shards. Answers of former owners, in any order, change nothing.
//
// Verifies: G30
func TestMerge_IsNeverWrongAndComplete(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		q := &Query{Order: rapid.SampledFrom([]Order{ByName, ByNext}).Draw(t, "order"), Limit: rapid.IntRange(0, 8).Draw(t, "limit")}
		if rapid.Bool().Draw(t, "second page") {
			q.After = &Place{Key: rapid.Int64Range(0, 3).Draw(t, "key"), Name: "ns/t2-1"}
		}

		// Some nodes do not answer, neither to the first question nor to the second.
		var answers []NodeAnswer
		for _, node := range slices.Sorted(maps.Keys(f.nodes)) {
			if rapid.IntRange(0, 4).Draw(t, "answers") > 0 {
				answers = append(answers, f.ask(node, q, nil))
			}
		}

		lost := Superseded(answers)
		for i, a := range answers {
			if shards := lost[a.Node]; len(shards) > 0 && rapid.IntRange(0, 3).Draw(t, "answers again") > 0 {
				answers[i] = f.ask(a.Node, q, shards)
			}
		}

		page := Merge(q, f.shards, rapid.Permutation(answers).Draw(t, "order of answers"))
		f.check(t, q, answers, page)
	})
}

// check compares a page with the rows of the newest owner that has answered for each shard.
func (f *fleet) check(t *rapid.T, q *Query, answers []NodeAnswer, page Page) {
	first := NewFirst(q)
	var counts Counts

	for shard, rows := range f.now {
		missing := slices.Contains(page.Missing, shard)
		best := int64(0)
		for _, a := range answers {
			if o, owns := f.nodes[a.Node][shard]; owns && slices.ContainsFunc(a.Shards, func(s ShardAnswer) bool { return s.Shard == shard }) && o.owner > best {
				best, rows = o.owner, o.rows
			}
		}

		switch {
		case best == 0 && !missing:
			t.Fatalf("nobody has answered for shard %d, but it is not missing: %+v", shard, page)
		case missing:
			continue
		}

		for i := range rows {
			counts.add(&rows[i], q.Now)
			first.Offer(Place{Key: q.Order.key(&rows[i]), Name: rows[i].Name, Shard: shard, Failing: rows[i].Flags.Has(Failing)})
		}
	}

	want := first.Sorted()
	if !slices.Equal(page.Places, want) && len(page.Places)+len(want) > 0 {
		t.Fatalf("got %+v, want %+v; missing %v, answers %+v", page.Places, want, page.Missing, answers)
	}
	if page.Counts != counts || page.More != first.More {
		t.Fatalf("got %+v, more %t, want %+v, more %t", page.Counts, page.More, counts, first.More)
	}
}

// A malformed answer of another node that lists a shard twice does not change the counts.
func TestMerge_CountsAShardOnce(t *testing.T) {
	t.Parallel()

	shard := ShardAnswer{Shard: 1, Owner: 7, Rows: 3, Unread: 1, Counts: Counts{Tasks: 3}}
	page := Merge(&Query{}, 2, []NodeAnswer{{Node: "a", Shards: []ShardAnswer{shard, shard, {Shard: 0, Owner: 5, Rows: 2, Counts: Counts{Tasks: 2}}}}})

	if page.Counts.Tasks != 5 || page.Rows != 5 || page.Unread != 1 || len(page.Missing) != 0 {
		t.Errorf("%+v", page)
	}
}

func TestPage_SaysHowMuchIsCollected(t *testing.T) {
	t.Parallel()

	for _, c := range []struct{ rows, unread, want int }{{0, 0, 100}, {10, 0, 100}, {1000, 1, 99}, {100, 38, 62}, {3, 3, 0}} {
		if got := (&Page{Rows: c.rows, Unread: c.unread}).Collected(); got != c.want {
			t.Errorf("%d of %d unread: %d, want %d", c.unread, c.rows, got, c.want)
		}
	}
}
