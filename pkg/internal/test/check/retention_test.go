package check

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// forget removes every event whose key contains part.
func (h hand) forget(part string) {
	h.events = slices.DeleteFunc(h.events, func(ev Event) bool { return strings.Contains(ev.Key, part) })
}

// another dispatches a second run of the task beside the active one.
func (h hand) another(tick float64) op { h.active = nil; return h.fires(tick) }

// asked returns the put that requests a cancel of the active attempt.
func (h hand) asked(reason string) op {
	h.active.CancelRequested, h.active.CancelReason = true, reason
	return op{h.keys.Run("a", h.ref, h.active.ID), withoutID(h.active.Assigned)}
}

func (h hand) freeze(namespace string) int64 {
	return h.txn(op{h.keys.Freezes(), task.Freezes{Holding: []task.Freeze{{Namespace: namespace, Since: h.time(), By: task.NewActor("ann")}}}})
}

// obeys makes node a announce the revision of the freezes that it has confirmed.
func (h hand) obeys(rev int64) {
	h.txn(op{h.keys.Node("a"), task.Node{Name: "a", Instance: h.sessions["a"], State: task.NodeReady, Roles: []string{task.RoleScheduler, task.RoleExecutor},
		Weight: 1, Clock: h.time(), Froze: rev}})
}

// Verifies: G21-G25
func TestCheck_Policies(t *testing.T) {
	deadline := func(e *task.Entry) { e.Deadline, e.Retry.Attempts = task.Duration(time.Second), 1 }
	starts := func(before, started float64) func(h hand) {
		return func(h hand) {
			h.until(1)
			op := h.fires(1)
			a := op.value.(task.Assigned)
			a.StartBefore = task.At(time.UnixMilli(h.at(before)))
			op.value, h.active.StartBefore = a, a.StartBefore
			h.sealed(op)
			h.until(started)
			h.done(task.Succeeded)
			h.sealed(h.none(2, started-0.5, int64(started-1.5), task.ReasonOverlap, started))
		}
	}

	policy := func(name string) func(*task.Entry) { return func(e *task.Entry) { e.Overlap, e.Queue.Limit = name, 1 } }
	two := func(e *task.Entry) { e.Overlap, e.MaxActive = task.OverlapAllow, 2 }
	turns(t, []turn{
		{"in time", "", deadline, starts(2, 2.5)},
		{"too late", "G22", deadline, starts(2, 3.5)},
		{"with a deadline of its own", "G22", deadline, starts(3, 2.5)},
		{"waits beyond it", "G22", deadline, func(h hand) {
			h.until(1)
			r := h.run(1)
			r.State, r.Reason, r.StartBefore = task.Queued, task.ReasonNoNode, task.At(time.UnixMilli(h.at(2)))
			h.sealed(h.waiting(h.simTask, task.Waiting{Run: r}))
			h.until(40)
			h.sealed(h.none(2, 40, 39, task.ReasonOverlap, 40))
		}},

		{"one waits", "", policy(task.OverlapQueue), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.waits(2, task.ReasonOverlap))
			h.until(3)
			h.sealed(h.not(3, task.Skipped, task.ReasonQueueFull))
		}},
		{"more wait than may", "G24", policy(task.OverlapQueue), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(3)
			h.sealed(h.waits(2, task.ReasonOverlap), h.waits(3, task.ReasonOverlap))
		}},
		{"does not wait", "G8", policy(task.OverlapQueue), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.another(2))
		}},
		{"does not wait for what is replaced", "G8", policy(task.OverlapReplace), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.another(2))
		}},
		{"two at once", "", two, func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.another(2))
		}},
		{"three at once", "G8", two, func(h hand) {
			for tick := range 3 {
				h.until(float64(tick + 1))
				h.sealed(h.another(float64(tick + 1)))
			}
		}},

		{"replaced", "", policy(task.OverlapReplace), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.asked(task.ReasonReplaced), h.waits(2, task.ReasonOverlap))
			h.done(task.Cancelled)
			id := task.RunID(time.UnixMilli(h.at(2)), h.simTask.entry.UID)
			h.sealed(op{h.keys.Queued(h.ref, id), nil}, h.fires(2))
			h.done(task.Succeeded)
		}},
		{"replaced by nothing", "G24", policy(task.OverlapReplace), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.sealed(h.asked(task.ReasonReplaced))
			h.done(task.Cancelled)
		}},
		{"replaced against the policy", "G24", policy(task.OverlapQueue), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.asked(task.ReasonReplaced), h.waits(2, task.ReasonOverlap))
			h.done(task.Cancelled)
		}},
		{"ends as replaced without having been asked", "G24", policy(task.OverlapReplace), func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(2)
			h.sealed(h.waits(2, task.ReasonOverlap))
			h.active.CancelReason = task.ReasonReplaced
			h.done(task.Cancelled)
		}},
	})
}

// Verifies: G21-G25
func TestCheck_Freezes(t *testing.T) {
	turns(t, []turn{
		{"a tick is skipped", "", nil, func(h hand) { h.freeze(""); h.until(1); h.sealed(h.not(1, task.Skipped, task.ReasonFrozen)) }},
		{"a tick fires", "G21", nil, func(h hand) { h.freeze(""); h.until(1); h.sealed(h.fires(1)) }},
		{"a tick of its namespace fires", "G21", nil, func(h hand) { h.freeze("default"); h.until(1); h.sealed(h.fires(1)) }},
		{"a tick of another namespace fires", "", nil, func(h hand) { h.freeze("other"); h.until(1); h.sealed(h.fires(1)) }},
		{"a tick waits", "G21", nil, func(h hand) { h.freeze(""); h.until(1); h.sealed(h.waits(1, task.ReasonFrozen)) }},
		{"what waits is started", "G21", nil, func(h hand) {
			h.manual(h.simTask)
			h.freeze("")
			w := h.queue[0]
			h.sealed(op{h.keys.Queued(h.ref, w.ID), nil}, h.dispatch(h.simTask, w.Run, "a"))
		}},
		{"a tick is skipped, and nothing is frozen", "G21", nil, func(h hand) { h.until(1); h.sealed(h.not(1, task.Skipped, task.ReasonFrozen)) }},
		{"a tick is skipped when all has thawed", "G21", nil, func(h hand) {
			h.freeze("")
			h.txn(op{h.keys.Freezes(), task.Freezes{Past: []task.Freeze{{Since: h.time(), Ended: h.time()}}}})
			h.until(1)
			h.sealed(h.not(1, task.Skipped, task.ReasonFrozen))
		}},
		{"what was started before goes on", "", nil, func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.running(h.simTask)
			h.obeys(h.freeze(""))
			h.until(1.5)
			h.active.StartedAt = task.At(time.UnixMilli(h.at(1)))
			h.txn(op{h.keys.Run("a", h.ref, h.active.ID), withoutID(h.active.Assigned)})
		}},
		{"a node starts what it has said it does not", "G21", nil, startsFrozen},
	})
}

// startsFrozen makes a node start a run half a second after it has confirmed a freeze.
func startsFrozen(h hand) {
	h.until(1)
	h.sealed(h.fires(1))
	h.obeys(h.freeze(""))
	h.until(1.5)
	h.active.StartedAt = h.time()
	h.running(h.simTask)
}

// A node whose clock jumps back after a start confirms a freeze with a time before that start.
func TestCheck_Skew(t *testing.T) {
	h := newHand(t, nil)
	startsFrozen(h)

	for skew, violations := range map[time.Duration]int{0: 1, 400 * time.Millisecond: 1, 500 * time.Millisecond: 0} {
		r := h.check(Options{Until: time.UnixMilli(h.now), Remembered: true, Skew: skew})
		if len(r.Violations) != violations {
			t.Errorf("with a skew of %v: %v", skew, r.Violations)
		}
	}
}

// A time from a period in which the node's clock was wrong proves nothing about a start. Other periods and other nodes
// do not matter.
func TestCheck_WrongClocks(t *testing.T) {
	h := newHand(t, nil)
	startsFrozen(h)

	confirmed, started := time.UnixMilli(h.at(1)), time.UnixMilli(h.at(1.5))
	period := func(node string, at time.Time) WrongClock {
		return WrongClock{Node: node, From: at.Add(-100 * time.Millisecond), To: at.Add(100 * time.Millisecond)}
	}

	for _, c := range []struct {
		name       string
		wrong      WrongClock
		violations int
	}{
		{"while it confirmed", period("a", confirmed), 0},
		{"while it started the run", period("a", started), 0},
		{"of another node", period("b", confirmed), 1},
		{"in between", period("a", confirmed.Add(250*time.Millisecond)), 1},
	} {
		r := h.check(Options{Until: time.UnixMilli(h.now), Remembered: true, WrongClocks: []WrongClock{c.wrong}})
		if len(r.Violations) != c.violations {
			t.Errorf("a wrong clock %s: %v", c.name, r.Violations)
		}
	}
}

// Verifies: G21-G25
func TestCheck_Remembered(t *testing.T) {
	fails := func(h hand) {
		h.until(1)
		h.sealed(h.fires(1))
		h.done(task.Failed)
	}

	once := func(e *task.Entry) { e.Retry.Attempts = 1 }
	again := func(h hand, gone bool) {
		dead := task.RunID(time.UnixMilli(h.at(1)), h.simTask.entry.UID)
		w := task.Waiting{Run: h.tickRun(h.simTask, h.now, task.TriggerManual, task.Queued)}
		w.ID, w.Owner, w.Reason, w.RetryOf = task.ManualRunID(time.UnixMilli(h.now), h.simTask.entry.UID), "", task.ReasonManual, dead

		ops := []op{h.waiting(h.simTask, w)}
		if gone {
			ops = append(ops, op{h.keys.DeadRun(h.ref, dead), nil})
		}

		h.txn(ops...)
	}

	dismiss := func(h hand) {
		key := h.keys.DeadRun(h.ref, task.RunID(time.UnixMilli(h.at(1)), h.simTask.entry.UID))
		h.txn(op{key, task.Run{UID: h.simTask.entry.UID, State: task.Failed, Requests: task.Requests{DismissedBy: task.NewActor("ann")}}})
		h.txn(op{key, nil})
	}

	recovers := func(h hand) {
		h.until(2)
		h.sealed(h.another(2))
		h.done(task.Succeeded)
	}

	allow := func(e *task.Entry) { e.Retry.Attempts, e.Overlap = 1, task.OverlapAllow }

	// recoversTwice records two successes in one revision.
	recoversTwice := func(h hand) {
		var ops []op
		for _, tick := range []float64{2, 3} {
			h.until(tick)
			h.sealed(h.another(tick))
			a := h.active

			r, late := a.Unpaused(), int64(0)
			r.State, r.Token, r.Node, r.StartedAt, r.EndedAt, r.LatenessMS = task.Succeeded, a.create, a.node, task.At(time.UnixMilli(h.at(tick))), task.At(time.UnixMilli(h.at(3))), &late
			ops = append(ops, op{h.keys.Run(a.node, h.ref, a.ID), nil}, h.ended(h.simTask, r))
		}

		h.active = nil
		h.txn(ops...)
	}

	goes := func(h hand) { h.txn(append(h.trim(2), h.chunk(1, ledger.Chunk{Spans: spans(2, 2, 1)}))...) }

	edit := func(h hand) {
		h.update(h.simTask, false, func() { h.simTask.entry.Timeout += task.Duration(time.Minute) })
	}

	over := func(e *task.Entry) {
		e.TTL, e.End, e.Retry.Attempts = task.Duration(4*time.Second), task.At(time.UnixMilli(simStart+1000)), 1
	}

	expires := func(h hand) { h.bury(h.simTask, tombstone{UID: h.simTask.entry.UID, DeletedAt: h.time(), Why: "ttl"}) }
	turns(t, []turn{
		{"among the dead", "", once, fails},
		{"not among the dead", "G25", once, func(h hand) { fails(h); h.forget("/dead/") }},
		{"among the dead, and not ended", "G25", once, func(h hand) {
			h.txn(op{h.keys.DeadRun(h.ref, "x"), task.Run{UID: h.simTask.entry.UID, State: task.Failed}})
		}},
		{"dismissed", "", once, func(h hand) { fails(h); dismiss(h) }},
		{"dismissed, and not dead before", "G25", once, func(h hand) { dismiss(h) }},
		{"dead twice", "G25", once, func(h hand) {
			fails(h)
			key := h.keys.DeadRun(h.ref, task.RunID(time.UnixMilli(h.at(1)), h.simTask.entry.UID))
			h.txn(op{key, json.RawMessage(h.kv[key].Value)})
		}},
		{"run again", "", once, func(h hand) { fails(h); again(h, true) }},
		{"run again, and dead yet", "G25", once, func(h hand) { fails(h); again(h, false) }},
		{"run again twice", "G25", once, func(h hand) { fails(h); again(h, true); again(h, true) }},

		{"the last success stays", "", once, func(h hand) { fails(h); recovers(h) }},
		{"the last success goes, and a run from before it is dead", "G25", once, func(h hand) { fails(h); recovers(h); goes(h) }},
		{"the last success goes, and the run from before it is dismissed", "", once, func(h hand) { fails(h); recovers(h); dismiss(h); goes(h) }},
		{"one of two last successes goes", "", allow, func(h hand) { fails(h); recoversTwice(h); goes(h) }},
		{"the last success goes, and an earlier one was written again", "G25", once, func(h hand) {
			h.runs(1, task.Succeeded)
			first := h.kv[h.keys.Ended(h.ref, task.RunID(time.UnixMilli(h.at(1)), h.simTask.entry.UID))]
			h.runs(2, task.Failed)
			h.runs(3, task.Succeeded)
			h.txn(op{first.Key, json.RawMessage(first.Value)})
			h.txn(append(h.trim(3), h.chunk(1, ledger.Chunk{Spans: spans(3, 3, 1)}))...)
		}},
		{"both of two last successes go", "G25", allow, func(h hand) {
			fails(h)
			recoversTwice(h)
			goes(h)
			h.txn(append(h.trim(3), h.chunk(1, ledger.Chunk{Spans: spans(2, 3, 2)}))...)
		}},
		{"an earlier success goes", "", once, func(h hand) {
			fails(h)
			recovers(h)
			h.until(3)
			h.sealed(h.another(3))
			h.done(task.Succeeded)
			goes(h)
		}},

		{"former versions are kept", "", nil, func(h hand) {
			for range 15 {
				edit(h)
			}
		}},
		{"a former version is not kept", "G25", nil, func(h hand) { edit(h); h.forget("/versions/") }},
		{"a former version is another", "G25", nil, func(h hand) {
			edit(h)
			i := h.find(t, 0, put("/versions/"))
			h.events[i].Value = json.RawMessage(`{"uid":"x","generation":1}`)
		}},
		{"a former version of what is not overwritten", "G25", nil, func(h hand) {
			h.txn(op{h.keys.Version(h.ref, 1), json.RawMessage(h.kv[h.keys.Spec(h.ref)].Value)})
		}},
		{"a former version is forgotten too soon", "G25", nil, func(h hand) { edit(h); edit(h); h.txn(op{h.keys.Version(h.ref, 1), nil}) }},
		{"deleted", "", nil, func(h hand) { edit(h); h.remove(h.simTask) }},
		{"deleted without a tombstone", "G25", nil, func(h hand) { h.remove(h.simTask); h.forget("/deleted/") }},
		{"deleted, and former versions stay", "G25", nil, func(h hand) {
			edit(h)
			h.remove(h.simTask)
			h.events = slices.DeleteFunc(h.events, func(ev Event) bool { return ev.Deleted && strings.Contains(ev.Key, "/versions/") })
		}},
		{"created anew", "", nil, func(h hand) { h.remove(h.simTask); h.sim.create("one", 0, 1, nil) }},
		{"undeleted", "", nil, func(h hand) { undeletes(h, func(*tombstone, *task.Task) {}) }},
		{"undeleted after its pause", "", nil, func(h hand) {
			undeletes(h, func(was *tombstone, is *task.Task) {
				was.Spec.Paused, was.Spec.PausedUntil = true, task.At(is.CreatedAt.Add(-time.Second))
			})
		}},
		{"undeleted without its pause", "G25", nil, func(h hand) { undeletes(h, func(was *tombstone, _ *task.Task) { was.Spec.Paused = true }) }},
		{"undeleted with other fields", "G25", nil, func(h hand) { undeletes(h, func(_ *tombstone, is *task.Task) { is.Timeout *= 2 }) }},
		{"undeleted with its former uid", "G25", nil, func(h hand) { undeletes(h, func(was *tombstone, is *task.Task) { is.UID = was.UID }) }},
		{"undeleted without a copy", "G25", nil, func(h hand) { undeletes(h, func(was *tombstone, _ *task.Task) { was.Spec = nil }) }},
		{"created anew beside its tombstone", "G25", nil, func(h hand) {
			h.remove(h.simTask)
			h.sim.create("one", 0, 1, nil)
			h.events = slices.DeleteFunc(h.events, func(ev Event) bool { return ev.Deleted && strings.Contains(ev.Key, "/deleted/") })
		}},

		{"deleted by its ttl", "", over, func(h hand) { fails(h); h.until(5); h.sealed(); expires(h) }},
		{"deleted by its ttl, after an end before its last tick", "", nil, func(h hand) {
			h.runs(1, task.Succeeded)
			h.until(2)
			h.sealed(h.not(2, task.Skipped, task.ReasonOverlap))
			h.update(h.simTask, true, func() {
				h.simTask.entry.End, h.simTask.entry.TTL = task.At(time.UnixMilli(h.at(1))), task.Duration(3*time.Second)
			})
			h.until(4)
			h.sealed()
			expires(h)
		}},
		{"deleted too soon by its ttl", "G25", over, func(h hand) { fails(h); h.until(2); h.sealed(); expires(h) }},
		{"deleted a second too soon by its ttl", "G25", over, func(h hand) { fails(h); h.until(4); h.sealed(); expires(h) }},
		{"deleted by its ttl with a tick to come", "G25", func(e *task.Entry) { e.TTL = task.Duration(time.Second) }, expires},
		{"deleted by a ttl that it has not", "G25", nil, expires},
		{"deleted by its ttl while it runs", "G25", over, func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			h.until(9)
			h.sealed()
			expires(h)
			h.done(task.Succeeded)
		}},
	})
}

// undeletes deletes the task of a story and undeletes it. change can alter the tombstone and the task that comes back.
func undeletes(h hand, change func(was *tombstone, is *task.Task)) {
	spec := task.Defaults()
	spec.Namespace, spec.Name, spec.Schedule, spec.Timeout = h.ref.Namespace, h.ref.Name, task.Schedules{"@daily"}, task.Duration(time.Minute)
	copied := spec
	was := tombstone{UID: h.simTask.entry.UID, DeletedAt: h.time(), DeletedBy: task.NewActor("ann"), Spec: &copied}
	is := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1, CreatedAt: h.time(), Change: task.ChangeUndeleted}
	change(&was, &is)

	h.bury(h.simTask, was)
	h.sim.create(h.ref.Name, h.ref.Shard, 1, func(e *task.Entry) { e.UID = is.UID })
	for i := len(h.events) - 1; i >= 0; i-- {
		if e := &h.events[i]; e.Key == h.keys.Spec(h.ref) {
			e.Value = json.RawMessage(record.Encode(is))
			return
		}
	}
}
