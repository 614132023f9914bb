package readmodel

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
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
			return Row{Name: fmt.Sprintf("default/t%d", made), Flags: Flags(rapid.IntRange(0, 15).Draw(t, "flags")), Active: uint16(made % 3)}
		}

		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				r, end := row(), rapid.Int64Range(0, 3).Draw(t, "until")
				slot := x.Put(NoSlot, r, end)
				if _, taken := rows[slot]; taken {
					t.Fatalf("slot %d has a row already", slot)
				}
				rows[slot], until[slot] = r, end
			},
			"replace": func(*rapid.T) {
				if slot := some(); slot != NoSlot {
					r, end := row(), rapid.Int64Range(0, 3).Draw(t, "until")
					if got := x.Put(slot, r, end); got != slot {
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
				known, all := x.Collected()
				wantKnown := 0

				for slot, r := range rows {
					if got := x.Row(slot); got.Name != r.Name || got.Flags != r.Flags {
						t.Fatalf("slot %d has %+v, want %+v", slot, got, r)
					}
					if r.Flags.Has(History) {
						wantKnown++
					}
				}

				if known != wantKnown || all != len(rows) {
					t.Fatalf("%d of %d are collected, want %d of %d", known, all, wantKnown, len(rows))
				}

				now := rapid.Int64Range(0, 4).Draw(t, "now")
				var want []string
				for slot, r := range rows {
					if end := until[slot]; end != 0 && end <= now {
						r.Flags &^= Paused
					}
					want = append(want, fmt.Sprint(r))
				}

				var got []string
				x.EachRow(now, func(r *Row) { got = append(got, fmt.Sprint(*r)) })
				slices.Sort(want)
				slices.Sort(got)

				if !slices.Equal(got, want) {
					t.Fatalf("at %d it has %v, want %v", now, got, want)
				}
			},
		})

		// A pause without a row would be that of another task later.
		if len(x.pausedUntil) > len(rows) {
			t.Fatalf("%d pauses of %d rows", len(x.pausedUntil), len(rows))
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
		slot := x.Put(NoSlot, Row{Name: fmt.Sprintf("default/t%04d", i), Next: 7, LastEnd: 7}, 0)
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
			slots[at] = x.Put(NoSlot, Row{Name: fmt.Sprintf("default/t%04d", steady+at), Flags: Paused | History}, 3)
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

func TestRow_IsOverdueWhenItsTickIsCertainlyDue(t *testing.T) {
	t.Parallel()
	tick := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	jittered := func(expr string) *schedule.Schedule {
		s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{expr}, Timezone: "UTC", Jitter: task.Duration(time.Minute)}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	for _, c := range []struct {
		schedule *schedule.Schedule
		next     int64
		after    time.Duration // the tick becomes overdue this long after its time
	}{
		{nil, tick.UnixMilli(), OverdueAfter},
		{jittered("@hourly"), tick.UnixMilli(), OverdueAfter + time.Minute},
		{jittered("@every 20s"), tick.UnixMilli(), OverdueAfter + 20*time.Second}, // due before the next tick
	} {
		r := Row{Next: c.next, Schedule: c.schedule}
		if at := tick.Add(c.after).UnixMilli(); r.isOverdue(at) || !r.isOverdue(at+1) {
			t.Errorf("%+v: not overdue %s after its time", c, c.after)
		}
	}

	if r := (Row{}); r.isOverdue(tick.UnixMilli()) {
		t.Error("a task without a tick is overdue")
	}
}
