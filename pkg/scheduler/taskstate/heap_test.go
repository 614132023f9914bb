package taskstate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// check fails if h does not have the heap property, or if a task does not have its index.
func (h Heap) check(t interface{ Fatalf(string, ...any) }) {
	for i, s := range h {
		if int(s.At) != i {
			t.Fatalf("task %s records index %d, but is at %d", s.FullName(), s.At, i)
		}

		if i > 0 && h.Less(i, (i-1)/2) {
			t.Fatalf("at %d the heap is out of order", i)
		}
	}
}

func TestHeap_GivesTasksByTimeThenName(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var h Heap
		all := make([]*Task, 12)
		for i := range all {
			all[i] = &Task{Text: fmt.Sprintf("t%02d", i), NameLen: 3, At: -1}
		}

		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			s := rapid.SampledFrom(all).Draw(rt, "task")
			next := int64(0)
			if n := rapid.IntRange(0, 4).Draw(rt, "next"); n > 0 {
				next = int64(n) * 1000
			}

			h.Set(s, next)
			h.check(rt)
		}

		until := int64(rapid.IntRange(0, 5).Draw(rt, "until")) * 1000
		due, last := 0, all[len(all)-1]
		for _, s := range all {
			if s.At >= 0 && s.Next <= until {
				due++
			}
		}

		if n := len(h.UpTo(until)); n != due {
			rt.Fatalf("%d tasks are due, %d listed", due, n)
		}

		if found := h.AnyUpTo(until, func(s *Task) bool { return s == last }); found != (last.At >= 0 && last.Next <= until) {
			rt.Fatalf("%s, which ticks next at %d, is found: %t", last.FullName(), last.Next, found)
		}

		var want []*Task
		for _, s := range all {
			if (s.At >= 0) == (s.Next == 0) {
				rt.Fatalf("task %s is at %d and ticks next at %d", s.FullName(), s.At, s.Next)
			}

			if s.At >= 0 {
				want = append(want, s)
			}
		}

		slices.SortFunc(want, func(a, b *Task) int {
			return cmp.Or(cmp.Compare(a.Next, b.Next), strings.Compare(a.FullName(), b.FullName()))
		})

		for _, s := range want {
			if h[0] != s {
				rt.Fatalf("the heap gives %s, not %s", h[0].FullName(), s.FullName())
			}
			h.Set(s, 0)
			h.check(rt)
		}
	})
}

// The decision of a tick: the first task of a shard moves to its next tick.
func BenchmarkHeap(b *testing.B) {
	for _, n := range []int{100, 4000, 1_000_000} { // few tasks; a million in 256 shards; a million in one shard
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var h Heap

			for i := range n {
				text := fmt.Sprintf("t%07d", i)
				h.Set(&Task{Text: text, NameLen: uint16(len(text)), At: -1}, int64(1+rand.IntN(3600))*1000)
			}

			b.ReportAllocs()

			for b.Loop() {
				h.Set(h[0], h[0].Next+time.Hour.Milliseconds())
			}
		})
	}
}
