package executor

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// queueModel does what a targetQueue does, by looking at all attempts each time.
type queueModel struct {
	slots   int
	waiting []*targetEntry
	running []*targetEntry
	unsent  map[string]int
	probes  map[string]*targetEntry
}

// held returns how many slots a target holds.
func (m *queueModel) held(target string) (n int) {
	for _, e := range m.running {
		if e.target == target {
			n++
		}
	}

	return n
}

// mayStart reports whether an attempt that waits may start now.
func (m *queueModel) mayStart(e *targetEntry) bool {
	held, free := m.held(e.target), m.slots-len(m.running)
	if m.probes[e.target] != nil || held >= e.limit || free == 0 {
		return false
	}

	return held == 0 || held < free-m.slots/reservedPart
}

// next returns the oldest attempt that may start.
func (m *queueModel) next() (next *targetEntry) {
	for _, e := range m.waiting {
		if m.mayStart(e) && (next == nil || cmp.Or(e.due.Compare(next.due), cmp.Compare(e.token, next.token)) < 0) {
			next = e
		}
	}

	return next
}

// start gives an attempt a slot.
func (m *queueModel) start(e *targetEntry) {
	m.waiting = without(m.waiting, e)
	m.running = append(m.running, e)
	if m.unsent[e.target] >= openAfter {
		m.probes[e.target] = e
	}
}

// end frees the slot of an attempt and returns how many end with it.
func (m *queueModel) end(e *targetEntry, outcome targetOutcome) (down []*targetEntry) {
	m.running = without(m.running, e)
	probe := m.probes[e.target] == e
	if probe {
		delete(m.probes, e.target)
	}

	switch outcome {
	case targetSent:
		m.sent(e)
	case targetUnsent:
		m.unsent[e.target]++
		for _, w := range slices.Clone(m.waiting) {
			if probe && w.target == e.target {
				down = append(down, w)
				m.waiting = without(m.waiting, w)
			}
		}
	}

	return down
}

// sent notes that something was sent to the target of an attempt.
func (m *queueModel) sent(e *targetEntry) {
	delete(m.unsent, e.target)
	delete(m.probes, e.target)
}

// states returns the number of targets by the state of their circuit.
func (m *queueModel) states() (n [targetStates]int) {
	seen := map[string]bool{}
	for _, e := range slices.Concat(m.waiting, m.running) {
		seen[e.target] = true
	}
	for name, count := range m.unsent {
		seen[name] = seen[name] || count > 0
	}

	for name := range seen {
		switch {
		case m.probes[name] != nil:
			n[targetHalfOpen]++
		case m.unsent[name] >= openAfter:
			n[targetOpen]++
		default:
			n[targetClosed]++
		}
	}

	return n
}

func without(s []*targetEntry, e *targetEntry) []*targetEntry {
	return slices.DeleteFunc(slices.Clone(s), func(o *targetEntry) bool { return o == e })
}

// Verifies: G54
func TestTargetQueue_DoesWhatANaiveModelDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 24).Draw(t, "slots")
		q := newTargetQueue(slots)
		m := &queueModel{slots: slots, unsent: map[string]int{}, probes: map[string]*targetEntry{}}
		var all []*targetEntry
		token := int64(0)

		pick := func(from []*targetEntry) *targetEntry {
			if len(from) == 0 {
				t.Skip("there is none")
			}
			return from[rapid.IntRange(0, len(from)-1).Draw(t, "which")]
		}

		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				token++
				e := &targetEntry{
					target: rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "target"), token: token,
					limit: rapid.SampledFrom([]int{1, 2, 5, 100}).Draw(t, "limit"), due: time.Unix(int64(rapid.IntRange(0, 5).Draw(t, "due")), 0),
				}
				all = append(all, e)
				q.Add(e)
				m.waiting = append(m.waiting, e)
			},
			"add again": func(t *rapid.T) { q.Add(pick(m.waiting)) },
			"remove": func(t *rapid.T) {
				e := pick(m.waiting)
				q.Remove(e)
				q.Remove(e)
				m.waiting = without(m.waiting, e)
			},
			"remove what does not wait": func(t *rapid.T) { q.Remove(pick(m.running)) },
			"next": func(t *rapid.T) {
				got, want := q.Next(), m.next()
				if got != want {
					t.Fatalf("got %+v, want %+v", got, want)
				}
				if got != nil {
					m.start(got)
				}
			},
			"sent": func(t *rapid.T) {
				e := pick(m.running)
				q.Sent(e)
				m.sent(e)
			},
			"end": func(t *rapid.T) {
				e := pick(m.running)
				outcome := rapid.SampledFrom([]targetOutcome{targetUnsent, targetUnsent, targetUnsent, targetUnsent, targetUnsent, targetUnsent, targetUnknown, targetSent}).Draw(t, "outcome")
				got, want := q.End(e, outcome), m.end(e, outcome)
				slices.SortFunc(want, func(a, b *targetEntry) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.token, b.token)) })
				if !slices.Equal(got, want) {
					t.Fatalf("%d end with it, want %d", len(got), len(want))
				}
			},
			"": func(t *rapid.T) {
				if q.used != len(m.running) || q.states != m.states() {
					t.Fatalf("%d slots are in use, want %d; targets %v, want %v", q.used, len(m.running), q.states, m.states())
				}
				if n := len(q.targets); n != q.states[targetClosed]+q.states[targetOpen]+q.states[targetHalfOpen] {
					t.Fatalf("%d targets are kept, and %v are counted", n, q.states)
				}
			},
		})
	})
}

// start starts up to n attempts.
func (q *targetQueue) start(n int) (started []*targetEntry) {
	for range n {
		e := q.Next()
		if e == nil {
			break
		}
		started = append(started, e)
	}

	return started
}

// Verifies: G54
func TestTargetQueue_StuckTargetsLeaveSlotsForOthers(t *testing.T) {
	for _, stuck := range []int{1, 2, 6, 20} {
		for _, together := range []bool{true, false} {
			q := newTargetQueue(task.HTTPSlots)
			for i := range 600 * stuck {
				name := i % stuck
				if !together {
					name = i / 600 // one target after the other fills what it can get
				}
				q.Add(&targetEntry{target: fmt.Sprint("stuck", name), limit: task.HTTPSlots, token: int64(i)})
			}
			q.start(task.HTTPSlots)

			free, least := q.slots-q.used, q.slots/(stuck+1)
			if !together {
				least = q.slots/reservedPart - stuck
			}
			if free < least {
				t.Errorf("%d stuck targets leave %d slots, want at least %d (together: %v)", stuck, free, least, together)
			}

			fast := &targetEntry{target: "fast", limit: 100, due: time.Now()}
			q.Add(fast)
			if q.Next() != fast {
				t.Errorf("%d stuck targets delay another one", stuck)
			}
		}
	}
}

// Verifies: G54
func TestTargetQueue_LimitOfOneTaskDoesNotDelayOthers(t *testing.T) {
	q := newTargetQueue(10)
	first, alone, third := &targetEntry{target: "a", limit: 5, token: 1}, &targetEntry{target: "a", limit: 1, token: 2}, &targetEntry{target: "a", limit: 5, token: 3}
	for _, e := range []*targetEntry{first, alone, third} {
		q.Add(e)
	}

	if got := q.start(3); !slices.Equal(got, []*targetEntry{first, third}) {
		t.Errorf("%d started, want the two whose limit allows it", len(got))
	}

	q.End(first, targetSent)
	if q.Next() != nil {
		t.Error("an attempt with the limit 1 started beside another")
	}

	q.End(third, targetSent)
	if q.Next() != alone {
		t.Error("it does not start")
	}
}

// The story of a target that goes down and comes back.
//
// Verifies: G54
func TestTargetQueue_Circuit(t *testing.T) {
	q := newTargetQueue(10)
	token := int64(0)
	add := func() *targetEntry {
		token++
		e := &targetEntry{target: "a", limit: 100, token: token}
		q.Add(e)

		return e
	}
	is := func(what string, s targetState) {
		t.Helper()
		if q.states[s] != 1 {
			t.Fatalf("%s: targets %v", what, q.states)
		}
	}

	for range openAfter {
		is("before", q.stateOf(add()))
		q.End(q.Next(), targetUnsent)
	}
	is("after three unsent ends", targetOpen)

	probe := add()
	second, third := add(), add()
	if q.Next() != probe || q.Next() != nil {
		t.Fatal("more than the probe started")
	}
	is("while the probe is in progress", targetHalfOpen)

	if down := q.End(probe, targetUnsent); !slices.Equal(down, []*targetEntry{second, third}) {
		t.Fatalf("%d attempts end with the probe", len(down))
	}
	is("after the probe", targetOpen)

	// A probe that ends before it tries, because its run is cancelled, says nothing.
	probe, second = add(), add()
	q.Next()
	if down := q.End(probe, targetUnknown); len(down) > 0 || q.Next() != second {
		t.Fatal("the next one is not the probe")
	}
	is("with another probe", targetHalfOpen)

	// Its first byte is enough; its response may take an hour.
	third = add()
	q.Sent(second)
	is("after something was sent", targetClosed)
	if q.Next() != third {
		t.Error("the others still wait")
	}

	q.End(third, targetSent)
	q.End(second, targetSent)
	if len(q.targets) > 0 {
		t.Errorf("it is kept: %v", q.targets)
	}
}

// stateOf returns the state of the target of an attempt that waits.
func (q *targetQueue) stateOf(e *targetEntry) targetState { return e.to.state() }

// Verifies: G54
func TestTargetQueue_ForgetsTargetsThatNobodyNeeds(t *testing.T) {
	q := newTargetQueue(2)
	for i := range maxIdleTargets + 5 {
		e := &targetEntry{target: fmt.Sprint(i), limit: 1}
		q.Add(e)
		q.End(q.Next(), targetUnsent)
	}

	if len(q.targets) != maxIdleTargets || q.idle.Len() != maxIdleTargets || q.targets["4"] != nil || q.targets["5"] == nil {
		t.Errorf("%d targets are kept", len(q.targets))
	}

	// One that is needed again is not forgotten before others.
	q.Add(&targetEntry{target: "5", limit: 1})
	if q.idle.Len() != maxIdleTargets-1 || q.targets["5"] == nil {
		t.Error("a target that is needed counts as idle")
	}
}

func TestTargetOf(t *testing.T) {
	for url, want := range map[string]string{
		"https://API.corp/orders":                  "https://api.corp:443",
		"http://api.corp/orders/${run.id}?a=${x}":  "http://api.corp:80",
		"http://api.corp?at=${run.scheduled_time}": "http://api.corp:80",
		"https://api.corp:8443":                    "https://api.corp:8443",
		"http://[FD00::1]/":                        "http://[fd00::1]:80",
		"secret:slack/url":                         "default/secret:slack/url",
	} {
		if got := targetOf("default", &task.HTTP{URL: url}); got != want {
			t.Errorf("%s: got %q, want %q", url, got, want)
		}
	}
}

func BenchmarkTargetQueue(b *testing.B) {
	for _, targets := range []int{1, 10_000} {
		b.Run(fmt.Sprint("targets=", targets), func(b *testing.B) {
			q := newTargetQueue(task.HTTPSlots)
			for i := range 50_000 {
				q.Add(&targetEntry{target: fmt.Sprint(i % targets), limit: 100, token: int64(i)})
			}
			running := q.start(task.HTTPSlots)
			token := int64(50_000)

			for i := 0; b.Loop(); i++ {
				e := running[i%len(running)]
				q.End(e, targetSent)
				token++
				e.token = token
				q.Add(e)
				if running[i%len(running)] = q.Next(); running[i%len(running)] == nil {
					b.Fatal("none may start")
				}
			}
		})
	}
}
