package shard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// memoryFixture is a leader's memory over time.
type memoryFixture struct {
	*testing.T
	*memory
	now    time.Time
	lineup store.Lineup
	joins  int64
	notes  Notes
	again  time.Duration
}

func newMemoryFixture(t *testing.T) *memoryFixture {
	d := &memoryFixture{T: t, memory: newMemory(5*time.Second, 30*time.Second), now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), joins: 1000}
	return d
}

// come makes nodes present, each with a new session.
func (m *memoryFixture) come(names ...string) {
	for _, name := range names {
		m.leave(name)
		m.joins++
		m.lineup.Nodes = append(m.lineup.Nodes, task.Node{
			Name: name, State: task.NodeReady, Roles: []string{task.RoleScheduler}, Revision: m.joins, JoinedAt: task.At(m.now), Clock: task.At(m.now),
		})
	}
}

func (m *memoryFixture) leave(names ...string) {
	m.lineup.Nodes = slices.DeleteFunc(m.lineup.Nodes, func(n task.Node) bool { return slices.Contains(names, n.Name) })
}

// owns assigns the shards to nodes in turn, under fences that are newer than their sessions.
func (m *memoryFixture) owns(names ...string) {
	m.lineup.Owners = nil
	for i, name := range names {
		m.joins++
		m.lineup.Owners = append(m.lineup.Owners, record.Owner{Shard: i, Node: name, Fence: m.joins})
	}
}

func (m *memoryFixture) after(pause time.Duration) *memoryFixture {
	m.now = m.now.Add(pause)
	for i := range m.lineup.Nodes { // the nodes announce their clocks
		m.lineup.Nodes[i].Clock = task.At(m.now)
	}

	m.notes, m.again = m.recordLineup(m.now, m.lineup)
	return m
}

func (m *memoryFixture) want(newcomers string, hold bool) {
	m.Helper()
	var got []string
	for name := range m.notes.Newcomers {
		got = append(got, name)
	}

	slices.Sort(got)

	if s := strings.Join(got, " "); s != newcomers || m.notes.Hold != hold {
		m.Errorf("at %s newcomers are %q, want %q; hold is %t", m.now.Format(time.TimeOnly), s, newcomers, m.notes.Hold)
	}
}

func TestMemory_ANodeThatComesAndGoesWaitsLongerEachTime(t *testing.T) {
	d := newMemoryFixture(t)
	d.come("a", "b")
	d.owns("a", "a")
	d.after(0).want("", false) // the nodes that a leader sees first are not newcomers
	d.come("c")
	d.after(time.Second).want("", false) // a new node is not a newcomer either

	var waited []time.Duration
	for range 9 {
		d.leave("b")
		d.after(3 * time.Second)
		d.come("b")
		began := d.now

		for d.after(time.Millisecond); d.notes.Newcomers["b"]; d.after(d.again) {
			if d.again <= 0 || d.again > maxWait {
				t.Fatalf("look again in %s", d.again)
			}
		}

		waited = append(waited, d.now.Sub(began).Round(time.Second))
	}

	if got := fmt.Sprint(waited); got != "[0s 2s 4s 8s 16s 32s 1m0s 1m0s 1m0s]" {
		t.Errorf("its returns waited %s", got)
	}

	d.after(3 * time.Minute) // it stays
	d.come("b")
	d.after(time.Second).want("", false)
}

// The node is back before its absence had an effect: with another session, and with the shards that it had.
func TestMemory_WhoStillOwnsShardsIsNoNewcomer(t *testing.T) {
	d := newMemoryFixture(t)
	d.come("a", "b")
	d.owns("a", "b")
	d.after(0)

	for range 5 {
		d.come("b")
		d.after(time.Second).want("", false)
	}

	d.owns("a", "a") // now its absence has an effect
	d.come("b")
	d.after(time.Second).want("b", false)
}

func TestMemory_ANodeThatIsFitNowAndThenIsDamped(t *testing.T) {
	d := newMemoryFixture(t)
	d.come("a", "b")
	d.owns("a")
	d.after(0)

	for range 3 {
		d.lineup.Nodes[1].Ineligible = "clock"
		d.after(time.Second)
		d.lineup.Nodes[1].Ineligible = ""
		d.after(time.Second)
	}

	d.want("b", false)
}

func TestMemory_ForgetsWhoIsGoneForLong(t *testing.T) {
	d := newMemoryFixture(t)
	d.come("a", "b")
	d.after(0)
	d.leave("b")
	d.after(time.Second)
	d.after(11 * time.Minute)

	if len(d.nodes) != 1 {
		t.Errorf("it remembers %d nodes", len(d.nodes))
	}
}

func TestMemory_WhenMostVanishTogetherNothingMovesForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		owners string
		gone   string
		hold   bool
	}{
		"one of three":         {"a b c", "a", false},
		"two of three":         {"a b c", "a b", true},
		"all":                  {"a b c", "a b c", true},
		"one of two":           {"a b", "a", false},
		"the only one":         {"a", "a", false},
		"two of four":          {"a b c d", "a b", false},
		"three of four":        {"a b c d", "a b c", true},
		"who own nothing":      {"a", "b c d", false},
		"and one that is back": {"a b c d", "a b -d", true}, // its session is newer than its shards
		"all are back":         {"a b c", "-a -b -c", false},
		"half, of two":         {"a b", "a -b", true},
	} {
		d := newMemoryFixture(t)
		d.come("a", "b", "c", "d")
		d.owns(strings.Fields(c.owners)...)
		d.after(time.Hour).want("", false)

		for _, n := range strings.Fields(c.gone) {
			back := strings.HasPrefix(n, "-")
			d.leave(strings.TrimPrefix(n, "-"))
			if back {
				d.come(n[1:])
			}
		}

		d.after(time.Second)

		if d.notes.Hold != c.hold {
			t.Errorf("%s: hold is %t", name, d.notes.Hold)
		}

		if c.hold && d.again != d.grace {
			t.Errorf("%s: look again in %s", name, d.again)
		}

		if d.after(3 * time.Second); d.notes.Hold != c.hold {
			t.Errorf("%s: after 3 s hold is %t", name, d.notes.Hold)
		}

		if d.after(2 * time.Second); d.notes.Hold {
			t.Errorf("%s: held beyond the grace", name)
		}
	}
}

func TestMemory_NextOwnersHaveTheirTime(t *testing.T) {
	d := newMemoryFixture(t)
	d.come("a", "b", "c")
	d.owns("a", "b")
	d.lineup.Nodes[1].State, d.lineup.Nodes[1].HandoverWithin = task.NodeDraining, task.Duration(3*time.Second)
	d.lineup.Handovers = []record.Handover{{Shard: 0, To: "c", Revision: 1}, {Shard: 1, To: "c", Revision: 2}}
	late := func(want string) {
		t.Helper()
		if got := fmt.Sprint(d.notes.Late); got != want {
			t.Errorf("at %s late are %s, want %s", d.now.Format(time.TimeOnly), got, want)
		}
	}

	d.after(time.Second)
	late("map[]")

	if d.again != 3*time.Second {
		t.Errorf("look again in %s", d.again)
	}

	d.after(3 * time.Second)
	late("map[1:true]")
	d.lineup.Handovers[0].Ready, d.lineup.Handovers[0].Revision = 7, 3 // an answer does not restart the time
	d.after(27 * time.Second)
	late("map[0:true 1:true]")
	d.lineup.Handovers[0].To = "b" // another next owner does
	d.after(time.Second)
	late("map[1:true]")
	d.lineup.Handovers = nil
	d.after(time.Second)

	if len(d.handovers) != 0 {
		t.Error("it remembers handovers that are over")
	}
}
