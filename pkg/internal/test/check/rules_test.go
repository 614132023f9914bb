package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// calm is a cluster of eight shards and two nodes with a task in each of the first two shards, after some time
// without faults.
func calm(t testing.TB) (s *sim, one, two *simTask) {
	s = newSim(t, 8, "a", "b")
	one, two = s.create("one", 0, 1, nil), s.create("two", 1, 1, nil)
	s.work(3)

	return s, one, two
}

// work makes all shards decide and all runs end, each second.
func (s *sim) work(seconds int) {
	for range seconds {
		s.pass(1)
		s.tick()
	}
}

func (s *sim) tick() {
	for id := range len(s.owners) {
		s.round(id)
	}

	for _, t := range s.tasks {
		if t.active != nil {
			s.finish(t, task.Succeeded)
		}
	}
}

// demanding returns the strictest options, which a cluster without faults satisfies.
func (s *sim) demanding() Options {
	return Options{Until: time.UnixMilli(s.now), Converge: DefaultConverge, Lateness: time.Second, Moves: true, Settled: true, Remembered: true}
}

// only checks that a report has violations, and all of one guarantee. If promise is "", it must have none.
func only(t *testing.T, r []Violation, promise string) {
	t.Helper()

	if promise == "" && len(r) > 0 {
		t.Errorf("nothing is wrong: %v", r)
	}

	if promise != "" && (len(r) == 0 || slices.ContainsFunc(r, func(v Violation) bool { return v.Promise != promise })) {
		t.Errorf("not caught as %s alone: %v", promise, r)
	}
}

// Verifies: G15, G16, G19, G20
func TestCheck_DemandsWhatOptionsSay(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		happen        func(s *sim, one, two *simTask, o *Options)
	}{
		{"nothing", "", func(*sim, *simTask, *simTask, *Options) {}},

		{"a node joins, and takes its share", "", func(s *sim, _, _ *simTask, _ *Options) {
			s.join("c")
			s.move("c", 0, 2)
			s.work(2)
		}},
		{"a node joins, and takes far more than its share", "G15", func(s *sim, _, _ *simTask, _ *Options) {
			s.join("c")
			s.move("c", 0, 1, 2, 3, 4)
			s.work(2)
		}},
		{"shards move, and nobody came or went", "G15", func(s *sim, _, _ *simTask, _ *Options) {
			s.move("b", 2)
			s.work(1)
		}},
		{"what an earlier join allowed is not kept", "G15", func(s *sim, _, _ *simTask, _ *Options) {
			for _, n := range []string{"c", "d"} { // c may get 4 shards, and gets 2
				s.join(n)
				if n == "c" {
					s.move("c", 0, 1)
					s.move("a", 3) // a has 4 shards, b 2, c 2
				}
			}

			s.move("b", 0, 1, 2, 4, 6)
		}},
		{"a node goes, and its shards move", "", func(s *sim, _, _ *simTask, _ *Options) {
			s.crash("a", "b")
			s.work(2)
		}},
		{"a node goes, and others' shards move, too", "G15", func(s *sim, _, _ *simTask, _ *Options) {
			s.join("c")
			s.move("c", 0, 2)
			s.crash("a", "b")
			s.move("c", 1, 3, 5, 7)
			s.work(1)
		}},
		{"a stranger takes a shard, and the leader gives it back", "", func(s *sim, _, _ *simTask, _ *Options) {
			s.txn(op{s.keys.Owner(3), record.Owner{Node: "a"}})
			s.move("b", 3)
			s.work(1)
		}},

		{"a shard that nothing happened to is late", "G15", func(s *sim, _, _ *simTask, _ *Options) {
			s.pass(2.5)
			s.tick()
		}},
		{"a shard that moved is late", "", func(s *sim, _, _ *simTask, _ *Options) {
			s.pass(2.5)
			s.txn(op{s.keys.Node("b"), nil})
			s.join("b")
			s.crash("a", "b")

			for id := 1; id < 8; id += 2 {
				s.open(id)
			}

			s.tick()
		}},
		{"a shard that moved to one who was there is late", "", func(s *sim, _, two *simTask, _ *Options) {
			for range 3 {
				s.pass(1)
				s.round(1)
				s.finish(two, task.Succeeded)
			}

			s.crash("a", "b")
			s.tick()
		}},
		{"a shard is late while something is broken", "", func(s *sim, _, _ *simTask, o *Options) {
			o.Faults = []Fault{{From: time.UnixMilli(s.now), To: time.UnixMilli(s.now + 2000)}}
			s.pass(2.5)
			s.tick()
		}},
		{"others are late because of a record that cannot be read", "G19", func(s *sim, one, two *simTask, _ *Options) {
			bad := one.ref
			bad.Name = "bad"
			s.txn(op{s.keys.Spec(bad), "x"}, op{s.keys.Entry(bad), json.RawMessage(`[]`)})

			for range 2 {
				s.pass(1)
				s.round(1)
				s.finish(two, task.Succeeded)
			}

			s.pass(0.5)
			s.round(0)
		}},

		{"nothing is decided for long after a fault has healed", "G16", func(s *sim, _, _ *simTask, o *Options) {
			o.Faults = []Fault{{From: time.UnixMilli(s.now), To: time.UnixMilli(s.now + 5000)}}
			s.pass(30)
			s.tick()
		}},
		{"all is decided soon after the last of several faults", "", func(s *sim, _, _ *simTask, o *Options) {
			o.Faults = []Fault{{From: time.UnixMilli(s.now + 24_000), To: time.UnixMilli(s.now + 40_000)}, {From: time.UnixMilli(s.now), To: time.UnixMilli(s.now + 5000)}}
			s.pass(50)
			s.tick()
		}},
		{"a shard has no owner at the end", "G16", func(s *sim, _, _ *simTask, o *Options) { o.Until = time.Time{}; s.txn(op{s.keys.Owner(5), nil}) }},
		{"a shard's owner is absent at the end", "G16", func(s *sim, _, _ *simTask, o *Options) { o.Until = time.Time{}; s.txn(op{s.keys.Node("b"), nil}) }},

		{"a node was drained", "", func(s *sim, _, _ *simTask, o *Options) {
			o.Gone = []string{"a"}
			s.crash("a", "b")
			s.txn(op{s.keys.Leader() + "1f", nil})
			s.work(1)
		}},
		{"a node was drained, and is a candidate yet", "G20", func(s *sim, _, _ *simTask, o *Options) {
			o.Gone = []string{"a"}
			s.crash("a", "b")
			s.events = append(s.events, s.raw(s.keys.Leader()+"2f", "a"))
			s.work(1)
		}},
		{"a node was drained, and its key is there yet", "G20", func(s *sim, _, _ *simTask, o *Options) {
			o.Gone = []string{"a"}
			s.crash("a", "b")
			s.work(1)
			s.txn(op{s.keys.Node("a"), task.Node{Instance: "a-z"}})
		}},
		{"a node was drained, and an attempt is in its inbox yet", "G20", func(s *sim, one, _ *simTask, o *Options) {
			o.Gone = []string{"a"}
			s.pass(1)

			for id := range 8 {
				s.round(id)
			}

			s.finish(s.tasks[1], task.Succeeded)
			s.crash("a", "b")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, one, two := calm(t)
			o := s.demanding()
			c.happen(s, one, two, &o)

			if !o.Until.IsZero() {
				o.Until = time.UnixMilli(s.now)
			}

			only(t, s.check(o).Violations, c.promise)
		})
	}
}

// move gives shards to a node, which opens them.
func (s *sim) move(node string, shards ...int) {
	for _, id := range shards {
		s.assign(id, node)
		s.open(id)
	}
}

// raw is a put of a value that is not JSON.
func (s *sim) raw(key, value string) Event {
	s.rev++
	return Event{Revision: s.rev, ModRevision: s.rev, CreateRevision: s.rev, Key: key, Value: []byte(value)}
}

// Two runs that an earlier policy allowed to be active together may both continue.
//
// Verifies: G8
func TestCheck_OverlapThatWasAllowedIsNone(t *testing.T) {
	both := func(t *testing.T) (*sim, *simTask, *simRun, *simRun) {
		s := newSim(t, 1, "a")
		one := s.create("one", 0, 1, func(e *task.Entry) { e.Overlap = task.OverlapAllow })
		s.pass(1)
		s.round(0)
		first := one.active
		one.active = nil
		s.pass(1)
		s.round(0)
		second := one.active
		s.update(one, false, func() { one.entry.Overlap = task.OverlapSkip })
		one.active = first
		s.finish(one, task.Failed) // waits for its next attempt
		one.active = second
		s.finish(one, task.Failed)

		return s, one, first, second
	}

	s, one, _, _ := both(t)
	s.round(0) // the first run is retried while the second waits

	if one.active == nil || one.active.Attempt != 2 {
		t.Fatal("no second attempt")
	}

	only(t, s.check(Options{}).Violations, "")

	s.pass(1) // a third run is not allowed
	tick := s.tickRun(one, s.now-s.now%1000, task.TriggerSchedule, "")
	w := s.marks[0]
	w.Time = s.time()
	s.commit(0, w, s.dispatch(one, tick, "a"))
	only(t, s.check(Options{}).Violations, "G8")
}

// A run that was handed back counts as active, although nothing of it has run: it continues beside another one that was
// allowed, and no other run starts beside it.
//
// Verifies: G8
func TestCheck_OverlapOfWhatWasHandedBack(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, func(e *task.Entry) { e.Overlap = task.OverlapAllow })
	s.pass(1)
	s.round(0)
	first := one.active
	one.active = nil
	s.pass(1)
	s.round(0)
	second := one.active
	s.update(one, false, func() { one.entry.Overlap = task.OverlapQueue })
	one.active = first
	s.finish(one, task.Failed) // waits for its next attempt
	one.active = second
	s.handBack(one)
	s.round(0) // what was handed back starts again

	if one.active == nil || one.active.ID != second.ID {
		t.Fatal("the run that was handed back has not started again")
	}

	only(t, s.check(Options{}).Violations, "")

	s.handBack(one)
	s.pass(1) // a third run is not allowed
	tick := s.tickRun(one, s.now-s.now%1000, task.TriggerSchedule, "")
	w := s.marks[0]
	w.Time = s.time()
	s.commit(0, w, s.dispatch(one, tick, "a"))
	only(t, s.check(Options{}).Violations, "G8")
}

// Verifies: G8
func TestCheckProbeLog_GoesByThePolicyOfTheTime(t *testing.T) {
	for policy, promise := range map[string]string{task.OverlapAllow: "", task.OverlapSkip: "G8"} {
		s := newSim(t, 1, "a")
		one := s.create("one", 0, 1, func(e *task.Entry) { e.Overlap = policy })
		var first, second *simRun
		for _, r := range []**simRun{&first, &second} {
			one.active = nil
			s.pass(1)
			s.round(0)
			*r = one.active
		}

		other := map[string]string{task.OverlapAllow: task.OverlapSkip, task.OverlapSkip: task.OverlapAllow}[policy]
		s.update(one, false, func() { one.entry.Overlap = other })
		log := probeLog("START", first, "START", second, "END", first, "END", second)
		only(t, CheckProbeLog(strings.NewReader(log), s.keys, s.events), promise)
		// Tokens may start in another order only if both runs may be active together.
		log = probeLog("START", second, "END", second, "START", first, "END", first)
		only(t, CheckProbeLog(strings.NewReader(log), s.keys, s.events), strings.Replace(promise, "G8", "G11", 1))
	}
}

func TestCheckProbeLog_TheLaterDispatchCounts(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, func(e *task.Entry) { e.Overlap = task.OverlapAllow })
	s.pass(1)
	s.round(0)
	first := one.active
	s.update(one, false, func() { one.entry.Overlap = task.OverlapSkip })
	one.active = nil // as if its owner did not know the run
	s.pass(1)
	s.round(0)

	second := one.active
	for _, log := range []string{
		probeLog("START", first, "START", second, "END", first, "END", second),
		probeLog("START", second, "START", first, "END", first, "END", second),
	} {
		got := slices.DeleteFunc(CheckProbeLog(strings.NewReader(log), s.keys, s.events), func(v Violation) bool { return v.Promise == "G11" })
		only(t, got, "G8")
	}
}

// A retry belongs to a run that became active before the run that a later policy allows beside it. So their tokens
// may start in any order.
func TestCheckProbeLog_RetryBesideARunThatIsAllowedLater(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, func(e *task.Entry) { e.Retry = task.Retry{Attempts: 3, On: []task.State{task.Failed}} })
	s.pass(1)
	s.round(0)
	first := *one.active
	s.finish(one, task.Failed)
	s.update(one, false, func() { one.entry.Overlap = task.OverlapAllow })
	s.pass(1)
	tick := s.tickRun(one, s.now-s.now%1000, task.TriggerSchedule, "")
	w := s.marks[0]
	w.Time = s.time()
	s.commit(0, w, s.dispatch(one, tick, "a"))
	beside := one.active
	one.active = nil
	s.round(0)

	retry := one.active
	if retry.ID != first.ID || retry.create < beside.create {
		t.Fatalf("want a retry of %s after %s: %s", first.ID, beside.ID, retry.ID)
	}

	log := probeLog("START", &first, "END", &first, "START", retry, "START", beside, "END", beside, "END", retry)
	only(t, CheckProbeLog(strings.NewReader(log), s.keys, s.events), "")
}

// The runs of a deleted task do not count for a task that is created under its name.
func TestCheckProbeLog_TaskCreatedAgain(t *testing.T) {
	s := newSim(t, 1, "a")
	run := func() *simRun {
		one := s.create("one", 0, 1, nil)
		s.pass(1)
		s.round(0)
		r := one.active
		s.remove(one)

		return r
	}

	former, next := run(), run()
	log := probeLog("START", former, "START", next, "END", next, "END", former)
	only(t, CheckProbeLog(strings.NewReader(log), s.keys, s.events), "")
	log = probeLog("START", next, "START", former, "END", former, "END", next)
	only(t, CheckProbeLog(strings.NewReader(log), s.keys, s.events), "")
}

// probeLog returns the lines of a probe log. Its arguments are words and attempts in turn.
func probeLog(of ...any) string {
	var b strings.Builder

	for i := 0; i < len(of); i += 2 {
		r := of[i+1].(*simRun)
		fmt.Fprintf(&b, "%s %s %d %d now 4711\n", of[i], r.ID, r.Attempt, r.create)
	}

	return b.String()
}

// Verifies: G9-G11, G17
func TestCheckProbeLog_JudgesAttemptsThatWereLost(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, nil)
	s.pass(1)
	s.round(0)
	lost := one.active
	s.lose(one)
	s.pass(1)
	s.round(0)
	next := one.active
	s.finish(one, task.Succeeded)

	for _, c := range []struct {
		name, log, promise string
	}{
		{"killed in time", probeLog("START", lost, "BEAT", lost, "START", next, "END", next), ""},
		{"ended, and then declared lost", probeLog("START", lost, "END", lost, "START", next, "END", next), ""},
		{"lives on", probeLog("START", lost, "START", next, "BEAT", lost, "END", next), "G17"},
		{"ends later", probeLog("START", lost, "START", next, "END", next, "END", lost), "G17"},
		{"starts later", probeLog("START", next, "END", next, "START", lost), "G9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := CheckProbeLog(strings.NewReader(c.log), s.keys, s.events)
			got = slices.DeleteFunc(got, func(v Violation) bool { return v.Promise == "G8" || v.Promise == "G11" }) // other rules detect the same defect
			only(t, got, c.promise)
		})
	}
}

// Verifies: G12
func TestCheck_CatchesALateResultOfWhatWasNotLost(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, nil)
	s.pass(1)
	s.round(0)
	r := one.active
	late := func() {
		run := r.Run
		run.ID, run.State, run.Token = "", task.Succeeded, r.create
		s.txn(op{s.keys.Late(one.ref, r.ID, r.create), run})
	}

	s.lose(one)
	late()
	only(t, s.check(Options{}).Violations, "")

	for i, ev := range s.events {
		if (strings.Contains(ev.Key, "/history/") || strings.Contains(ev.Key, "/dead/")) && !strings.Contains(ev.Key, "~late~") {
			s.events[i].Value = []byte(strings.NewReplacer(`"state":"lost"`, `"state":"failed"`, task.ReasonNodeLost, task.ReasonExit).Replace(string(ev.Value)))
		}
	}

	only(t, s.check(Options{}).Violations, "G12")
}

// Verifies: G13
func TestCheckAcknowledged(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, nil)
	s.update(one, false, func() { one.entry.Timeout = task.Duration(time.Minute) })
	changed := s.rev
	s.manual(one)
	run := one.queue[0].ID
	s.pass(1)
	s.round(0)
	gone := s.create("gone", 0, 1, nil)
	s.remove(gone)
	again := s.create("gone", 0, 1, nil)
	ack := func(t *simTask, rev int64) Acknowledged {
		return Acknowledged{Namespace: "default", Name: t.ref.Name, Revision: rev, UID: t.entry.UID}
	}

	good := []Acknowledged{
		ack(one, one.create), ack(one, changed), ack(gone, gone.create), ack(again, again.create),
		{Namespace: "default", Name: "one", Run: run},
		{Namespace: "default", Name: "gone", Deleted: true, Revision: gone.create, UID: gone.entry.UID},
	}
	only(t, CheckAcknowledged(s.keys, s.events, good), "")

	for _, bad := range []Acknowledged{
		ack(one, changed+1), ack(gone, again.create),
		{Namespace: "default", Name: "two", Revision: one.create},
		{Namespace: "default", Name: "one", Run: run + "x"},
		{Namespace: "default", Name: "one", Run: run, Cancelled: true},
		{Namespace: "default", Name: "one", Deleted: true, Revision: one.create},
		{Namespace: "default", Name: "gone", Deleted: true, Revision: again.create},
	} {
		if lost := CheckAcknowledged(s.keys, s.events, append(slices.Clone(good), bad)); len(lost) != 1 {
			t.Errorf("%+v: %v", bad, lost)
		}
	}

	// A write that etcd has lost.
	var without []Event
	for _, ev := range s.events {
		if ev.Revision != changed {
			without = append(without, ev)
		}
	}

	only(t, CheckAcknowledged(s.keys, without, good), "G13")
}
