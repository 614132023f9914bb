package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Verifies: G7
func TestCommit_ChangesBetweenDecisionAndCommitWin(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name   string
		change func(w *world)
		want   []string // the runs of the changed task
		after  []string // its runs a second later
	}{
		{"pause", func(w *world) { w.pause("a") }, nil, nil},
		{"delete", func(w *world) { w.remove("a") }, nil, nil},
		{"delete and create again", func(w *world) { w.remove("a"); w.create("a", allow) }, nil, []string{"+2 dispatched"}},
		{"other schedule", func(w *world) { w.update("a", true, cronned("*/2 * * * * *")) }, nil, []string{"+2 dispatched"}},
		{"other policy", func(w *world) { w.update("a", false, on("role = db")) },
			[]string{"+1 queued no_matching_node"}, []string{"+1 queued no_matching_node", "+2 queued no_matching_node"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", allow)
			w.create("b", allow)
			h.see()
			h.gate.play(before(func() { c.change(w) }))
			h.blind(1)
			w.want("a", c.want...)
			w.want("b", "+1 dispatched")
			h.decide(2)
			w.want("a", c.after...)
			w.want("b", "+1 dispatched", "+2 dispatched")
		})
	}
}

// Verifies: G7
func TestCommit_ChangesBetweenDecisionAndCatchUpWin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	w.create("b", allow)
	h.see()
	h.gate.play(before(func() { w.pause("a") }), before(func() { w.resume("a") }))
	h.blind(5)
	w.want("a")
	w.want("b", "+1..+4 missed 4 came_to_light_late", "+5 dispatched")
	h.decide(6)
	w.want("a", "+6 dispatched")
}

// A tick that was on time is late under the task's new policy. That takes effect in the same round,
// although no task was behind when the round began.
func TestCommit_ChangeThatPutsATaskBehindWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")

	for _, name := range []string{"a", "b"} {
		w.create(name, cronned("1 0 12 * * *"), allow, missed(task.MissedSkip, 1))
	}

	h.see()
	h.gate.play(before(func() {
		w.update("a", false, func(t *task.Task) { t.Missed.Grace = task.Duration(time.Second) })
	}))

	h.blind(3)
	w.want("a", "+1 missed came_to_light_late")
	w.want("b", "+1 dispatched")
}

func TestCommit_CancelOfAWaitingRunWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("@manual"))
	id := w.trigger("a")
	h.see()
	h.gate.play(before(func() {
		_, err := w.store.CancelQueued(w.ctx, ref("a"), id, task.NewActor("me"), w.clock())
		w.ok(err)
	}))

	h.blind(1)
	w.want("a", "+0 cancelled manual cancelled_by_user")
	h.decide(2)
	w.want("a", "+0 cancelled manual cancelled_by_user")
}

// A task that changes all the time must not delay the other tasks of its shard.
//
// Verifies: G19
func TestCommit_RecordThatFailsTwiceGoesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("b", allow)
	w.create("a", allow)
	w.create("c", allow)
	h.see()
	touch := before(func() { w.update("b", false, func(t *task.Task) { t.Timeout += task.Duration(time.Second) }) })
	var then map[string][]string
	h.gate.play(touch, touch, pass, before(func() { then = w.stories(); w.update("b", false) }))
	h.blind(1)

	if len(then["a"]) != 1 || len(then["b"]) != 0 || len(then["c"]) != 1 {
		t.Errorf("before b fails for the third time there is %q", then)
	}

	h.blind(1.05) // its next turn is 100 ms after the failure
	w.want("b")
	h.blind(1.1)

	for _, name := range []string{"a", "b", "c"} {
		w.want(name, "+1 dispatched")
	}

	if n := h.state.records.TaskNamed("default/b").FailedCommits; n != 0 {
		t.Errorf("after it went through, %d failures are counted", n)
	}

	h.decide(2)
	w.wantMark(2, "")
}

// The watch delivers events of what a failed commit has read already. These must not reset the count of
// failures.
func TestCommit_RecordThatFailsInEachRoundGoesAloneToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	h.see()
	touch := before(func() { w.update("a", false) })
	h.gate.play(touch, touch, h.dies)
	_ = h.try(1)
	h.see()

	if n := h.state.records.TaskNamed("default/a").FailedCommits; n != 2 {
		t.Errorf("%d failures are counted, it failed twice", n)
	}
}

// Verifies: G3
func TestCommit_UnknownOutcomeIsNeverDecidedTwice(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name string
		do   []trick
	}{
		{"applied, answer lost", []trick{appliedButLost}},
		{"lost", []trick{lost}},
		{"lost twice, then applied and lost", []trick{lost, lost, appliedButLost}},
		{"applied, then refused", []trick{appliedButLost, refused}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", allow)
			w.create("b")
			w.trigger("b")
			h.see()
			h.gate.play(c.do...)
			h.blind(1)
			h.decide(2)
			w.want("a", "+1 dispatched", "+2 dispatched")
			w.want("b", "+0 queued manual", "+1 dispatched", "+2 skipped overlap")
		})
	}
}

// Verifies: G2
func TestCommit_OfACrashedWorkerThatArrivesLateIsVoid(t *testing.T) {
	t.Parallel()

	for _, when := range []string{"before the next opens", "after the next opened", "after the next decided"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t, "n1", "n2").judged()
			w.create("a", allow)
			w.create("b", allow)
			h := w.work("n1")
			h.gate.play(func(send func() (kv.Result, error)) (kv.Result, error) { h.die(); return h.gate.delayed(send) })

			if err := h.try(1); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}

			// The same node continues under the same fences, so only the opening rejects the late commit.
			if when == "before the next opens" {
				h.gate.deliver()
			}

			next := w.worker("n1", h.state.fences)
			next.open()

			if when == "after the next opened" {
				h.gate.deliver()
			}

			next.decide(1.1)
			w.finish("a", task.Succeeded) // its key is free again
			w.finish("b", task.Succeeded)
			h.gate.deliver()
			next.decide(2)
			w.want("a", "+1 succeeded", "+2 dispatched")
			w.want("b", "+1 succeeded", "+2 dispatched")
		})
	}
}

func TestCommit_RefusedIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	w.create("m", cronned("@manual"))
	w.trigger("m")
	h.see()
	h.gate.play(refused)
	h.blind(1)
	w.want("a")

	if d := h.sleepFor(); d > time.Second {
		t.Errorf("sleeps for %s", d)
	}

	if h.e.cfg.Fleet.Given(placement.ProcessSlots)["n1"] != 0 {
		t.Errorf("%d runs are counted as given", h.e.cfg.Fleet.Given(placement.ProcessSlots)["n1"])
	}

	h.blind(1.3)
	w.want("a", "+1 dispatched")
	w.want("m", "+0 dispatched manual")
}

func TestWorker_StopsWhenFenced(t *testing.T) {
	t.Parallel()

	for name, fence := range map[string]func(w *world){
		"moved":        func(w *world) { w.assign("n2") },
		"back again":   func(w *world) { w.assign("n2"); w.assign("n1") },
		"session over": func(w *world) { w.leave("n1") },
		"next session": func(w *world) { w.leave("n1"); w.join("n1") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1", "n2").judged()
			w.create("a")
			h := w.work("n1")
			h.gate.play(before(func() { fence(w) }))

			if err := h.try(1); !errors.Is(err, task.ErrFenced) {
				t.Errorf("a round after it was fenced: %v", err)
			}

			w.want("a")

			if err := h.load(); !errors.Is(err, task.ErrFenced) {
				t.Errorf("an opening after it was fenced: %v", err)
			}
		})
	}
}

func TestWorker_StrangersWatermarkLeadsToANewLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", allow)
	h := w.work("n1")
	other := w.worker("n1", h.state.fences)
	other.open()

	if err := h.try(1); !errors.Is(err, store.ErrMoved) {
		t.Errorf("a round: %v", err)
	}

	w.want("a")
}

func TestWorker_MissingWatermarkIsDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	w.create("a", allow)
	h := w.work("n1")
	w.delete(w.store.Keys().Watermark(0))

	if err := h.try(1); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a round: %v", err)
	}

	if err := h.load(); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("an opening: %v", err)
	}

	w.want("a")
}

// Verifies: G19
func TestWorker_UnreadableEntryHoldsUpNothingAndMends(t *testing.T) {
	t.Parallel()
	good := func(change option) func(w *world) {
		return func(w *world) { w.update("a", false, change) }
	}

	for name, spoil := range map[string]func(w *world){
		"garbage":         func(w *world) { w.put(w.store.Keys().Entry(ref("a")), "{garbage") },
		"nothing":         func(w *world) { w.put(w.store.Keys().Entry(ref("a")), "{}") },
		"no schedule":     good(cronned("61 * * * * *")),
		"no zone":         good(func(t *task.Task) { t.Timezone = "Europe/Nowhere" }),
		"no selector":     good(on("role = = db")),
		"no overlap":      good(func(t *task.Task) { t.Overlap = "sometimes" }),
		"negative limit":  good(missed(task.MissedAll, -1)),
		"negative keep":   good(func(t *task.Task) { t.History.Keep = -1 }),
		"no action":       good(func(t *task.Task) { t.Action = task.Action{} }),
		"absurd retries":  good(retries(1<<30, time.Second, task.Failed)),
		"huge":            good(func(t *task.Task) { t.Action = hugeAction }),
		"unknown policy":  good(missed("perhaps", 1)),
		"absurd uid":      good(func(t *task.Task) { t.UID = strings.Repeat("u", 256+3) }),
		"absurd version":  good(func(t *task.Task) { t.Generation = 1 << 32 }),
		"negative window": good(func(t *task.Task) { t.Missed.Window = -1 }),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("a", allow)
			w.create("b", allow)
			h.see()
			st, err := w.store.Task(w.ctx, ref("a"))
			w.ok(err)
			h.gate.play(before(func() { spoil(w) }))
			h.bounded(t, 1)
			h.decide(2)
			h.decide(15) // the task is behind
			w.want("a")
			w.want("b", "+1 dispatched", "+2 dispatched", "+3..+14 missed 12 came_to_light_late", "+15 dispatched")
			now, err := w.store.Revisions(w.ctx, ref("a"))
			w.ok(err)
			now.Ref = ref("a")
			_, err = w.store.UpdateTask(w.ctx, now, st.Task, task.NewEntry(st.Task, task.At(sec(15)), st.Entry.Anchor))
			w.ok(err)
			h.decide(16)
			w.want("a", "+16 dispatched")
		})
	}
}

var hugeAction = func() task.Action {
	p := &task.Process{}
	for range 10 {
		p.Command = append(p.Command, string(make([]byte, 60<<10)))
	}

	for i := range p.Command {
		b := []byte(p.Command[i])
		for j := range b {
			b[j] = 'x'
		}
		p.Command[i] = string(b)
	}

	return task.Action{Process: p}
}()

func TestWorker_ReloadsWhenTheWatchHasAGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	h.e.cfg.Store = gap{h.e.cfg.Store}
	w.ok(h.load())

	if err := h.applyBatch(<-h.batches); !errors.Is(err, errReload) {
		t.Errorf("a second Reset is taken: %v", err)
	}
}

// gap is a store whose watches miss events after the first load.
type gap struct{ Store }

func (g gap) FollowShard(_ context.Context, _ int, rev int64, apply func(store.ShardBatch) error) error {
	if err := apply(store.ShardBatch{Reset: true, First: true, Revision: rev}); err != nil {
		return err
	}
	return apply(store.ShardBatch{Reset: true, First: true, Revision: rev + 1})
}

// A failed commit has read the current state of a task. Events of its earlier states are still on their
// way.
func TestCommit_OlderEventsDoNotUndoWhatALostCommitHasRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", allow)
	h.see()
	w.update("a", false, func(t *task.Task) { t.Timeout = task.Duration(time.Second) })
	w.pause("a")
	h.blind(1)

	now := *h.state.records.TaskNamed("default/a")
	if now.Fires() {
		t.Fatal("the pause is not known")
	}

	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)
	between := st.Entry
	between.Paused = false
	h.applyToShard(store.ShardBatch{Revision: now.Mod - 1, Events: []store.ShardEvent{{
		ShardKey: record.ShardKey{Kind: record.KindEntry, Ref: ref("a")}, Task: "default/a", Mod: now.Mod - 1, Create: now.Create, Value: written(between),
	}}})
	commits := h.gate.commits
	h.blind(2)

	if h.state.records.TaskNamed("default/a").Fires() || h.gate.commits != commits {
		t.Error("an older event has resumed the task")
	}

	h.decide(3)
	w.want("a")
}

// The end of a part was written by somebody else, and the watch has not delivered it. The commit that records
// the part as lost fails. The owner applies the end that it finds.
func TestConflict_EndOfAPartThatIsNotKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", cronned("1 0 12 * * *"), parts(2))
	w.create("b", cronned("4 2 12 * * *"), allow) // +124
	h.decide(1)
	w.end(w.part("a", 0), task.Succeeded)
	part := w.part("a", 1)
	w.delete(w.store.Keys().Run("n1", ref("a"), part.ID))
	h = w.work("n1") // does not know the part
	h.decide(2)
	h.see()

	end := part.Run
	end.State = task.Succeeded
	w.put(w.store.Keys().Ended(ref("a"), part.ID), string(record.EncodeEnded(end)))

	commits := h.gate.commits
	h.blind(124)
	w.want("a", "+1 succeeded")
	w.want("b", "+124 dispatched")

	if n := h.gate.commits - commits; n > 4 {
		t.Errorf("it took %d commits", n)
	}

	h.decide(125)
	w.want("a", "+1 succeeded")
}

// comparing returns a function for commitGate.alter. It makes the commits for some tasks compare something that
// the worker does not know, such as a key of a later version.
func comparing(unknown clientv3.Cmp, of func(name string) bool) func(kv.Txn) kv.Txn {
	return func(t kv.Txn) kv.Txn {
		for _, cmp := range t.If {
			if _, name, ok := strings.Cut(string(cmp.KeyBytes()), "/default/"); ok && of(name) {
				t.If = append(slices.Clip(t.If), unknown)
				break
			}
		}

		return t
	}
}

// Commits for a task fail because of something that this worker cannot learn. The other tasks must not notice.
//
// Verifies: G19
func TestConflict_OfUnknownCauseHoldsUpOnlyItsTask(t *testing.T) {
	t.Parallel()

	for name, absent := range map[string]func(foreign string) clientv3.Cmp{
		"a key":   func(key string) clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision(key), "=", 0) },
		"a range": func(key string) clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision(key), "<", 1).WithPrefix() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")

			var others, stuck []string
			for i := range 20 {
				name := fmt.Sprintf("o%02d", i)
				others = append(others, name)
				w.create(name, allow)
			}

			for i := range 15 {
				name := fmt.Sprintf("a%02d", i)
				stuck = append(stuck, name)
				w.create(name, allow)
			}

			foreign := w.store.Keys().Shard(0) + "zz/later/feature"
			w.put(foreign, "x")
			h.gate.alter = comparing(absent(foreign), func(name string) bool { return slices.Contains(stuck, name) })
			h.see()
			h.blind(1)

			for _, name := range others {
				w.want(name, "+1 dispatched")
			}

			for s := 2.0; s <= 60; s++ {
				commits := h.gate.commits
				h.blind(s)

				if got := w.story(others[0]); len(got) != int(s) {
					t.Fatalf("at +%g: %q", s, got)
				}
				if n := h.gate.commits - commits; n > len(stuck)+1 {
					t.Fatalf("at +%g: %d commits", s, n)
				}
			}

			w.want(stuck[0])

			var counted dto.Metric
			w.ok(h.e.metrics.SetAside.Write(&counted))
			if n := counted.GetCounter().GetValue(); n != float64(len(stuck)) {
				t.Errorf("%g tasks are counted, want %d", n, len(stuck))
			}

			// What makes the commits fail ends. Each tick gets its outcome.
			w.delete(foreign)
			h.blind(66)
			w.wantAll(stuck, "+1..+65 missed 65 came_to_light_late", "+66 dispatched")

			h.decide(67)
			w.wantMark(67, "")
			w.want(stuck[0], "+1..+65 missed 65 came_to_light_late", "+66 dispatched", "+67 dispatched")
		})
	}
}

// conflictMutants break what a worker does after a conflict.
var conflictMutants = map[string]func(s *shardState, p *plan, c *store.Conflict, now time.Time) error{
	"": (*shardState).applyConflict,
	"conflict-unapplied": func(s *shardState, p *plan, c *store.Conflict, now time.Time) error {
		s.applyAbandoned(p)
		s.countFailedCommits(p, c)
		return s.setAsideConflicting(p, now)
	},
	"failures-uncounted": func(s *shardState, p *plan, c *store.Conflict, now time.Time) error {
		s.applyAbandoned(p)
		s.takeConflict(p, c, now)
		return nil
	},
	"never-set-aside": func(s *shardState, p *plan, c *store.Conflict, now time.Time) error {
		s.applyAbandoned(p)
		s.takeConflict(p, c, now)
		s.countFailedCommits(p, c)
		return nil
	},
	"tick-passed": func(s *shardState, p *plan, c *store.Conflict, now time.Time) error {
		err := s.applyConflict(p, c, now)
		for t := range s.aside.retryAt {
			t.Next = 0 // the watermark does not wait for it
		}

		return err
	},
}

// Each mutant leaves something undecided that is decided without it: what a foreign writer has ended, the tick of
// a task that shares a commit with a foreign key, or the tick of the task that was set aside.
//
// Verifies: G19
func TestConflict_MutantsAreCaught(t *testing.T) {
	t.Parallel()

	for name, apply := range conflictMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("a", cronned("1 0 12 * * *"), parts(2))
			w.create("b", cronned("4 2 12 * * *"), allow) // +124
			w.create("c", cronned("4 2 12 * * *"), allow)
			h.decide(1)
			w.end(w.part("a", 0), task.Succeeded)
			part := w.part("a", 1)
			w.delete(w.store.Keys().Run("n1", ref("a"), part.ID))
			h = w.work("n1")
			h.decide(2)
			h.see()

			end := part.Run
			end.State = task.Succeeded
			w.put(w.store.Keys().Ended(ref("a"), part.ID), string(record.EncodeEnded(end)))
			foreign := w.store.Keys().Shard(0) + "zz/later/feature"
			w.put(foreign, "x")
			h.gate.alter = comparing(clientv3.Compare(clientv3.ModRevision(foreign), "=", 0), func(name string) bool { return name == "c" })

			// The watch is silent. Ten commits are as many as may fail in a round.
			decide := func(at float64) {
				w.at(at)
				h.state.examineAll()

				for range maxConflictsPerRound {
					p := h.planRound(sec(at))
					if p.commit.Empty() {
						h.state.applyAbandoned(p)
						return
					}

					rev, err := h.e.cfg.Store.Commit(h.ctx, p.commit)
					var conflict *store.Conflict
					if errors.As(err, &conflict) {
						w.ok(apply(&h.state, p, conflict, sec(at)))
						continue
					}

					w.ok(err)
					h.state.applyCommitted(p, rev)
				}
			}

			decide(124)
			caught := !slices.Equal(w.story("a"), []string{"+1 succeeded"}) || !slices.Equal(w.story("b"), []string{"+124 dispatched"})

			w.delete(foreign)
			decide(125)
			h = w.work("n1")
			h.decide(126)
			caught = caught || !slices.Equal(w.story("c"), []string{"+124 dispatched"})

			if caught != (name != "") {
				t.Errorf("caught: %t. a: %q, b: %q, c: %q", caught, w.story("a"), w.story("b"), w.story("c"))
			}
		})
	}
}

// A worker that does not know yet that it was replaced may give a tick a second outcome, in one commit with
// the end of its run. etcd rejects such a transaction before it compares anything. The worker must open its
// shard again, and not retry forever.
func TestConflict_TwoOutcomesOfATickInOneCommit(t *testing.T) {
	t.Parallel()

	for name, first := range map[string]trick{"at once": pass, "after an unknown outcome": lost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			w.create("a", queues(1, task.DropOldest))
			h := w.work("n1")
			h.decide(1)
			other := w.worker("n1", h.state.fences)
			other.open()
			other.decide(2)
			w.want("a", "+1 dispatched", "+2 queued overlap")
			h.gate.play(first)
			h.see()

			if err := h.try(20); !errors.Is(err, store.ErrMoved) {
				t.Errorf("the round of the former worker: %v", err)
			}

			other.decide(20)
			w.want("a", "+1 dispatched", "+2 skipped dropped", "+3..+19 missed 17 came_to_light_late", "+20 queued overlap")
		})
	}
}
