package state

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
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

func TestTask_TargetDown(t *testing.T) {
	t.Parallel()
	const uid = "abcdefghijklmnop"
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	own, former := task.RunID(now, uid), task.RunID(now, "zzzzzzzzzzzzzzzz")
	unsent := &task.Unsent{Count: 1}
	waits := func(id, reason string, u *task.Unsent) *Activity {
		return &Activity{Queue: []*Waiting{{Waiting: task.Waiting{Run: task.Run{ID: id, State: task.Queued, Reason: reason, Attempt: 2, Unsent: u}}}}}
	}
	probes := func(id string, left time.Duration) *Activity {
		return &Activity{Active: []*Attempt{{Run: id, ProbeUntil: now.Add(left).UnixMilli()}}}
	}

	for _, c := range []struct {
		name     string
		activity *Activity
		process  bool
		down     bool
		until    time.Duration // after now; 0: no time
	}{
		{name: "idle"},
		{name: "a run waits for its target", activity: waits(own, task.ReasonTarget, unsent), down: true},
		{name: "a part waits for its target", activity: waits(task.PartID(own, 3), task.ReasonTarget, unsent), down: true},
		{name: "a run of a deleted task waits for its target", activity: waits(former, task.ReasonTarget, unsent)},
		{name: "the task does not send requests any more", activity: waits(own, task.ReasonTarget, unsent), process: true},
		{name: "a tick waits because of another run", activity: waits(own, task.ReasonTarget, nil)},
		{name: "a retry that counts waits", activity: waits(own, task.ReasonRetry, unsent)},
		{name: "an attempt tries the target again", activity: probes(own, 30*time.Second), down: true, until: 30 * time.Second},
		{name: "an attempt has tried the target for long", activity: probes(own, 0)},
		{name: "an attempt of another kind", activity: &Activity{Active: []*Attempt{{Run: own}}}},
		{name: "the clock was set back", activity: probes(own, time.Hour)},
	} {
		job := &Task{Text: "default/a" + uid, NameLen: 9, UIDLen: uint8(len(uid)), Present: true, Policy: &Policy{}, Activity: c.activity}
		job.SetHTTP(!c.process)

		down, until := job.TargetDown(now.UnixMilli())
		if down != c.down || c.until == 0 && until != 0 || c.until != 0 && until != now.Add(c.until).UnixMilli() {
			t.Errorf("%s: %t until %d", c.name, down, until-now.UnixMilli())
		}
	}
}

// For a task with a ttl, many ends are read, but a long history does not delay the worker.
func TestHistoryReader_ReadsABoundedNumberOfEnds(t *testing.T) {
	t.Parallel()
	s := NewHistoryReader(&Task{Policy: &Policy{PolicyFields: &PolicyFields{TTL: 1000}}}, 1, make([]store.ShardEvent, task.MaxKeep))

	for want := 1; ; want *= 4 {
		page := s.Wants(want)
		if len(page) == 0 {
			break
		}
		s.ends = append(s.ends, make([]End, len(page))...)
	}

	if len(s.ends) != MaxEndsRead {
		t.Errorf("%d records are read, want %d", len(s.ends), MaxEndsRead)
	}
}
