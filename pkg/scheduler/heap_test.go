package scheduler

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

// check fails if the heap is none, or a task does not know its place.
func (h dueHeap) check(t interface{ Fatalf(string, ...any) }) {
	for i, s := range h {
		if int(s.at) != i {
			t.Fatalf("task %s believes to be at %d, it is at %d", s.fullName(), s.at, i)
		}
		if i > 0 && h.Less(i, (i-1)/2) {
			t.Fatalf("at %d the heap is out of order", i)
		}
	}
}

func TestHeap_GivesTasksByTimeThenName(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var h dueHeap
		all := make([]*taskState, 12)
		for i := range all {
			all[i] = &taskState{text: fmt.Sprintf("t%02d", i), name: 3, at: -1}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			s := rapid.SampledFrom(all).Draw(rt, "task")
			next := int64(0)
			if n := rapid.IntRange(0, 4).Draw(rt, "next"); n > 0 {
				next = sec(float64(n)).UnixMilli()
			}
			h.set(s, next)
			h.check(rt)
		}
		until := sec(float64(rapid.IntRange(0, 5).Draw(rt, "until"))).UnixMilli()
		due, last := 0, all[len(all)-1]
		for _, s := range all {
			if s.at >= 0 && s.next <= until {
				due++
			}
		}
		if n := len(h.upTo(until)); n != due || h.countUpTo(until) != due {
			rt.Fatalf("%d tasks are due, %d listed, %d counted", due, n, h.countUpTo(until))
		}
		if found := h.anyUpTo(until, func(s *taskState) bool { return s == last }); found != (last.at >= 0 && last.next <= until) {
			rt.Fatalf("%s, which ticks next at %d, is found: %t", last.fullName(), last.next, found)
		}
		var want []*taskState
		for _, s := range all {
			if (s.at >= 0) == (s.next == 0) {
				rt.Fatalf("task %s is at %d and ticks next at %d", s.fullName(), s.at, s.next)
			}
			if s.at >= 0 {
				want = append(want, s)
			}
		}
		slices.SortFunc(want, func(a, b *taskState) int {
			return cmp.Or(cmp.Compare(a.next, b.next), strings.Compare(a.fullName(), b.fullName()))
		})
		for _, s := range want {
			if h[0] != s {
				rt.Fatalf("the heap gives %s, not %s", h[0].fullName(), s.fullName())
			}
			h.set(s, 0)
			h.check(rt)
		}
	})
}

// A tick decided: the first of a shard's tasks moves on.
func BenchmarkHeap(b *testing.B) {
	for _, n := range []int{100, 4000, 1_000_000} { // few; a million in 256 shards; in one
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var h dueHeap
			for i := range n {
				text := fmt.Sprintf("t%07d", i)
				h.set(&taskState{text: text, name: uint16(len(text)), at: -1}, sec(float64(rand.IntN(3600))).UnixMilli())
			}
			b.ReportAllocs()
			for b.Loop() {
				h.set(h[0], h[0].next+time.Hour.Milliseconds())
			}
		})
	}
}
