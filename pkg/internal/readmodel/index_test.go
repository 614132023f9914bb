package readmodel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// A random sequence of changes leaves an index with the rows and counts that a map would have.
func TestIndex_HoldsWhatWasPut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var x Index
		rows, until := map[int32]Row{}, map[int32]int64{}
		made := 0
		some := func() int32 {
			if len(rows) == 0 {
				return NoSlot
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(rows))).Draw(t, "slot")
		}
		row := func() Row {
			made++
			return Row{Name: fmt.Sprintf("default/t%d", made), Flags: anyFlags(t), Active: uint16(made % 3)}
		}

		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				r, end := row(), rapid.Int64Range(0, 3).Draw(t, "until")
				slot := x.Put(NoSlot, r, Details{PausedUntil: end}, nil)
				if _, taken := rows[slot]; taken {
					t.Fatalf("slot %d has a row already", slot)
				}
				rows[slot], until[slot] = r, end
			},
			"replace": func(*rapid.T) {
				if slot := some(); slot != NoSlot {
					r, end := row(), rapid.Int64Range(0, 3).Draw(t, "until")
					if got := x.Put(slot, r, Details{PausedUntil: end}, nil); got != slot {
						t.Fatalf("slot %d became %d", slot, got)
					}
					rows[slot], until[slot] = r, end
				}
			},
			"change": func(*rapid.T) {
				if slot := some(); slot != NoSlot {
					r := row()
					x.Change(slot, func(old *Row) { *old = r })
					rows[slot] = r
				}
			},
			"remove": func(*rapid.T) {
				slot := some()
				x.Remove(slot)
				delete(rows, slot)
				delete(until, slot)
			},
			"": func(t *rapid.T) {
				var size Size
				for slot, r := range rows {
					if got := x.Row(slot); got.Name != r.Name || got.Flags != r.Flags {
						t.Fatalf("slot %d has %+v, want %+v", slot, got, r)
					}
					if r.Flags.Has(Gone) {
						continue
					}

					size.Rows++
					if !r.Flags.Has(History) {
						size.Unread++
					}
					if r.Flags.Has(Unreadable) {
						size.Unreadable++
					}
					if r.Flags.Has(Failing) {
						size.Failing++
					}
				}

				if got := x.Size(); got != size {
					t.Fatalf("its size is %+v, want %+v", got, size)
				}

				now := rapid.Int64Range(0, 4).Draw(t, "now")
				var want, all []string
				for slot, r := range rows {
					if end := until[slot]; end != 0 && end <= now {
						r.Flags &^= Paused
					}
					if !r.Flags.Has(Gone) {
						want = append(want, fmt.Sprint(r))
					}
					all = append(all, fmt.Sprint(r, until[slot]))
				}

				var got, gotAll []string
				x.EachRow(now, func(r *Row) { got = append(got, fmt.Sprint(*r)) })
				x.each(now, true, func(r *Row, d *Details, _ *task.Alerts) {
					if d == nil {
						d = &Details{}
					}
					gotAll = append(gotAll, fmt.Sprint(*r, d.PausedUntil))
				})

				for _, list := range [][]string{want, all, got, gotAll} {
					slices.Sort(list)
				}
				if !slices.Equal(got, want) || !slices.Equal(gotAll, all) {
					t.Fatalf("at %d it has %v and with rows of tasks that are gone %v, want %v and %v", now, got, gotAll, want, all)
				}
			},
		})

		// Details without a row would be those of another task later.
		if len(x.details) > len(rows) {
			t.Fatalf("%d details of %d rows", len(x.details), len(rows))
		}
	})
}

// Scans run while the owner changes the index. Each sees every task that is not changed exactly once, and never a row
// that is half of one and half of another.
func TestIndex_ScansWhileItChanges(t *testing.T) {
	t.Parallel()
	var x Index
	const steady, moving = 3 * chunkRows, 2 * chunkRows
	var slots []int32

	for i := range steady + moving {
		slot := x.Put(NoSlot, Row{Name: fmt.Sprintf("default/t%04d", i), Next: 7, LastEnd: 7}, Details{}, nil)
		if i >= steady {
			slots = append(slots, slot)
		}
	}

	ended := make(chan struct{})
	var scans sync.WaitGroup

	for range 4 {
		scans.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}

				q := Query{Limit: steady + moving, Now: 5}
				first := NewFirst(&q)
				counts := x.Scan(&q, 1, first)
				names := map[string]int{}
				for _, p := range first.Sorted() {
					names[p.Name]++
				}

				for i := range steady {
					if n := names[fmt.Sprintf("default/t%04d", i)]; n != 1 {
						t.Errorf("task %d was seen %d times", i, n)
						return
					}
				}

				if counts.Tasks < steady || counts.Tasks > steady+moving {
					t.Errorf("%d tasks", counts.Tasks)
				}

				x.EachRow(0, func(r *Row) {
					if r.Next != r.LastEnd {
						t.Errorf("a torn row: %+v", *r)
					}
				})
			}
		})
	}

	for i := range 20_000 {
		at := i % len(slots)
		switch {
		case slots[at] == NoSlot:
			slots[at] = x.Put(NoSlot, Row{Name: fmt.Sprintf("default/t%04d", steady+at), Flags: Paused | History}, Details{PausedUntil: 3}, nil)
		case i%3 == 0:
			x.Remove(slots[at])
			slots[at] = NoSlot
		default:
			x.Change(slots[at], func(r *Row) { r.Next++; r.LastEnd++ })
		}
	}

	close(ended)
	scans.Wait()
}

// A tick is overdue from two seconds after it was due, which is after its time if it is delayed by jitter.
func TestRow_IsOverdueTwoSecondsAfterItsTickWasDue(t *testing.T) {
	t.Parallel()
	tick := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

	for _, delay := range []time.Duration{0, 20 * time.Second, time.Hour} {
		r := Row{Next: tick.UnixMilli(), Delay: Milliseconds(delay)}
		if at := tick.Add(delay + OverdueAfter).UnixMilli(); r.isOverdue(at) || !r.isOverdue(at+1) || r.Due() != tick.Add(delay).UnixMilli() {
			t.Errorf("delayed by %s, it is not overdue %s later", delay, OverdueAfter)
		}
	}

	if r := (Row{Delay: 1}); r.isOverdue(tick.UnixMilli()) || r.Due() != 0 {
		t.Error("a task without a tick is overdue")
	}
}

// splitsOf asks all shards for every n-th name.
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
				all[i].Put(NoSlot, Row{Name: fmt.Sprintf("%s/t%06d-%03d", []string{"a", "b"}[k%2], k, i)}, Details{}, nil)
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
