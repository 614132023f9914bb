package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var errTooMany = rpctypes.ErrTooManyRequests

func TestCommit_WritesAllAtOneRevision(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	queued := waiting(ref, 1)
	_, err := w.Enqueue(t.Context(), st, queued)
	ok(t, err)
	queuedMod, _, _ := w.at(w.keys.Queued(ref, queued.ID))
	st.Entry.Generation = 7
	c := w.begin()
	putEntry(c, ref, st.Entry, st.EntryMod)
	dispatch(c, assigned(ref, 1, node), w.fences.Node.CreateRevision)
	c.Dequeue(ref, queued.ID, queuedMod)
	c.Enqueue(ref, waiting(ref, 2))
	c.Record(ref, ended(ref, 3, task.Skipped))
	want := c.Watermark
	rev := w.commit(c)

	for _, key := range []string{w.keys.Entry(ref), w.keys.Run(node, ref, queued.ID), w.keys.Queued(ref, tickRun(ref, 2).ID),
		w.keys.Ended(ref, tickRun(ref, 3).ID), w.keys.Watermark(ref.Shard)} {
		if mod, _, _ := w.at(key); mod != rev {
			t.Errorf("%s is of revision %d, want %d", key, mod, rev)
		}
	}

	if w.exists(w.keys.Queued(ref, queued.ID)) {
		t.Error("the run still waits")
	}

	mark, mod := w.mark()
	if mod != rev || mark != c.Watermark || mark.Nonce == want.Nonce || !mark.Time.Equal(want.Time.Time) {
		t.Errorf("the watermark is %+v at %d, want %+v with a new nonce", mark, mod, want)
	}

	h := w.held(record.RunKey{Node: node, Ref: ref, Run: queued.ID})
	if h.Create != rev || h.Token != rev || h.Mod != rev || h.Node != node || h.Instance != instance || h.Ref() != ref || h.ID != queued.ID {
		t.Errorf("the attempt is %+v", h)
	}

	if got := w.stored(ref); got.Entry.Generation != 7 || got.EntryMod != rev {
		t.Errorf("the entry is %+v at %d", got.Entry, got.EntryMod)
	}

	if c.Empty() || !w.NewCommit(3, w.fences, rev, mark).Empty() {
		t.Error("a commit with a record is empty, or one without is not")
	}
}

// Verifies: G2
func TestCommit_StopsWhenFenced(t *testing.T) {
	for name, fence := range map[string]func(w *world){
		"owner rewritten for another": func(w *world) { w.own(ref.Shard, "n2") },
		"owner rewritten for itself":  func(w *world) { w.own(ref.Shard, node) },
		"owner deleted":               func(w *world) { w.del(w.keys.Owner(ref.Shard)) },
		"session gone":                func(w *world) { w.del(w.keys.Node(node)) },
		"session another":             func(w *world) { w.del(w.keys.Node(node)); w.register(node) },
		"both, and the watermark moved": func(w *world) {
			w.own(ref.Shard, "n2")
			w.put(w.keys.Watermark(ref.Shard), `{"time":"2026-01-01T00:00:00.000Z","nonce":"theirs"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.begin()
			c.Record(ref, ended(ref, 1, task.Skipped))
			fence(w)
			_, before := w.mark()
			_, err := w.Commit(t.Context(), c)
			is(t, err, task.ErrFenced)

			if _, after := w.mark(); after != before || len(w.below(w.keys.History(ref.Shard))) != 0 {
				t.Error("it wrote all the same")
			}

			_, _, err = w.Open(t.Context(), ref.Shard, w.fences)
			is(t, err, task.ErrFenced)
		})
	}
}

func TestCommit_AnAnnouncementIsNoNewSession(t *testing.T) {
	w := newWorld(t)
	c := w.begin()
	lease, err := w.etcd.Grant(t.Context(), 600)
	ok(t, err)
	ok(t, w.Announce(t.Context(), w.fences.Node, task.Node{Name: node, Instance: instance, Running: 3}, lease.ID))
	w.commit(c)
}

func TestCommit_WithoutFencesWritesNothing(t *testing.T) {
	w := newWorld(t)
	m, mod := w.mark()

	for _, f := range []store.Fences{
		{Owner: kv.Fence{Key: w.keys.Owner(ref.Shard)}, Node: w.fences.Node},
		{Owner: w.fences.Owner, Node: kv.Fence{Key: w.keys.Node("nobody")}},
	} {
		_, err := w.Commit(t.Context(), w.NewCommit(ref.Shard, f, mod, m))
		is(t, err, task.ErrFenced)
	}

	if _, after := w.mark(); after != mod {
		t.Error("it wrote all the same")
	}
}

func TestCommit_SaysWhenTheWatermarkIsAnothers(t *testing.T) {
	w := newWorld(t)
	c := w.begin()
	c.Record(ref, ended(ref, 1, task.Skipped))
	w.commit(w.begin())
	_, err := w.Commit(t.Context(), c)
	is(t, err, store.ErrMoved)
	if errors.Is(err, task.ErrConflict) {
		t.Error("a moved watermark is a conflict: the worker would decide again with what it knows")
	}

	if len(w.below(w.keys.History(ref.Shard))) != 0 {
		t.Error("it wrote all the same")
	}
}

func TestCommit_AMissingWatermarkIsDamage(t *testing.T) {
	w := newWorld(t)
	c := w.begin()
	w.del(w.keys.Watermark(ref.Shard))
	_, err := w.Commit(t.Context(), c)
	is(t, err, store.ErrDamaged)
	_, _, err = w.Open(t.Context(), ref.Shard, w.fences)
	is(t, err, store.ErrDamaged)

	if w.exists(w.keys.Watermark(ref.Shard)) {
		t.Fatal("it was made anew: ticks would be decided twice")
	}

	w.put(w.keys.Watermark(ref.Shard), `{"time":"tomorrow"}`)
	_, _, err = w.Open(t.Context(), ref.Shard, w.fences)
	is(t, err, task.ErrInvalid)
}

// Each operation compares what its writer knew. The conflict contains the present state.
func TestCommit_AConflictTellsTheNewValue(t *testing.T) {
	other := record.Ref{Namespace: "default", Name: "b", Shard: 3}
	type setup struct {
		*world
		st     store.Stored
		queued task.Waiting
		qmod   int64
		held   record.Held
	}
	id := tickRun(ref, 1).ID
	gone := func(s setup) string { return s.keys.Node("n2") }
	for name, c := range map[string]struct {
		build  func(s setup, c *store.Commit)
		change func(s setup)
		record func(s setup) string // returns the key that the conflict must name
		check  func(t *testing.T, ev store.ShardEvent)
		runs   bool
		node   string
		// unknown means that the key has a form that the store does not know.
		unknown bool
	}{
		"entry changed": {
			build:  func(s setup, c *store.Commit) { c.GuardEntry(ref.String(), s.st.EntryMod) },
			change: func(s setup) { s.update(s.st, func(e *task.Entry) { e.Paused = true }) },
			record: func(s setup) string { return s.keys.Entry(ref) },
			check: func(t *testing.T, ev store.ShardEvent) {
				entry, err := record.DecodeEntry(ev.Value)
				if err != nil || ev.Kind != record.KindEntry || ev.Task != ref.String() || !entry.Paused || ev.Deleted || ev.Create == 0 || ev.Create == ev.Mod {
					t.Errorf("the conflict contains %+v", ev)
				}
			},
		},
		"entry to be written changed": {
			build:  func(s setup, c *store.Commit) { putEntry(c, ref, s.st.Entry, s.st.EntryMod) },
			change: func(s setup) { s.update(s.st, func(e *task.Entry) { e.Paused = true }) },
			record: func(s setup) string { return s.keys.Entry(ref) },
		},
		"entry deleted": {
			build: func(s setup, c *store.Commit) { c.GuardEntry(ref.String(), s.st.EntryMod) },
			change: func(s setup) {
				if _, err := s.DeleteTask(s.Context(), s.st); err != nil {
					s.Fatal(err)
				}
			},
			record: func(s setup) string { return s.keys.Entry(ref) },
			check: func(t *testing.T, ev store.ShardEvent) {
				if !ev.Deleted || ev.Ref != ref {
					t.Errorf("the conflict contains %+v", ev)
				}
			},
		},
		"entry unreadable": {
			build:  func(s setup, c *store.Commit) { c.GuardEntry(ref.String(), s.st.EntryMod) },
			change: func(s setup) { s.put(s.keys.Entry(ref), "{") },
			record: func(s setup) string { return s.keys.Entry(ref) },
			check: func(t *testing.T, ev store.ShardEvent) {
				if string(ev.Value) != "{" || ev.Kind != record.KindEntry {
					t.Errorf("the conflict contains %+v", ev)
				}
			},
		},
		"waiting run taken": {
			build:  func(s setup, c *store.Commit) { c.Dequeue(ref, s.queued.ID, s.qmod) },
			change: func(s setup) { s.cancelQueued(ref, s.queued.ID) },
			record: func(s setup) string { return s.keys.Queued(ref, s.queued.ID) },
		},
		"waiting run to be rewritten changed": {
			build:  func(s setup, c *store.Commit) { c.Requeue(ref, s.queued, s.qmod) },
			change: func(s setup) { s.put(s.keys.Queued(ref, s.queued.ID), `{"reason":"handed_back"}`) },
			record: func(s setup) string { return s.keys.Queued(ref, s.queued.ID) },
			check: func(t *testing.T, ev store.ShardEvent) {
				if waiting, err := record.DecodeWaiting(ev.ShardKey, ev.Value); err != nil || waiting.Reason != task.ReasonHandBack || ev.Run != waiting.ID {
					t.Errorf("the conflict contains %+v", ev)
				}
			},
		},
		"waiting run is there already": {
			build:  func(s setup, c *store.Commit) { c.Enqueue(ref, waiting(ref, 9)) },
			change: func(s setup) { s.put(s.keys.Queued(ref, tickRun(ref, 9).ID), `{}`) },
			record: func(s setup) string { return s.keys.Queued(ref, tickRun(ref, 9).ID) },
		},
		"record to purge changed": {
			build: func(s setup, c *store.Commit) { c.Purge(s.keys.Ended(ref, id), 1) },
			change: func(s setup) {
				s.put(s.keys.Ended(ref, id), `{}`)
			},
			record: func(s setup) string { return s.keys.Ended(ref, id) },
		},
		"run exists": {
			build: func(s setup, c *store.Commit) { dispatch(c, assigned(ref, 5, "n2"), s.session("n2")) },
			change: func(s setup) {
				s.put(s.keys.Run("n2", ref, tickRun(ref, 5).ID), `{}`)
			},
			runs: true,
		},
		"node has another session": {
			build:  func(s setup, c *store.Commit) { dispatch(c, assigned(ref, 5, "n2"), s.session("n2")) },
			change: func(s setup) { s.del(gone(s)); s.register("n2") },
			node:   "n2",
		},
		"node is gone": {
			build:  func(s setup, c *store.Commit) { dispatch(c, assigned(ref, 5, "n2"), s.session("n2")) },
			change: func(s setup) { s.del(gone(s)) },
			node:   "n2",
		},
		"lost attempt's node is back": {
			build:  func(s setup, c *store.Commit) { c.EndLost(s.held, endOf(s.held, task.Lost), nil) },
			change: func(s setup) {},
			node:   "n2",
		},
		"lost attempt was rewritten": {
			build:  func(s setup, c *store.Commit) { c.EndLost(s.held, endOf(s.held, task.Lost), nil) },
			change: func(s setup) { s.del(gone(s)); s.put(s.keys.Run("n2", ref, s.held.ID), `{}`) },
			runs:   true,
		},
		"key that is neither a record nor an attempt": {
			build:   func(s setup, c *store.Commit) { c.Purge(s.keys.Shard(0)+"later/feature", 1) },
			change:  func(s setup) {},
			unknown: true,
		},
		"attempt to cancel ended": {
			build:  func(s setup, c *store.Commit) { c.AskCancel(s.held, task.NewActor("me"), "") },
			change: func(s setup) { s.del(s.keys.Run("n2", ref, s.held.ID)) },
			runs:   true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup{world: newWorld(t)}
			s.register("n2")
			s.st = s.create(ref)
			s.queued = waiting(ref, 1)
			_, err := s.Enqueue(t.Context(), s.st, s.queued)
			ok(t, err)
			s.qmod, _, _ = s.at(s.keys.Queued(ref, s.queued.ID))
			s.held = s.dispatch(ref, 4, "n2")

			com := s.begin()
			com.Record(other, ended(other, 1, task.Skipped))
			com.Subject = 7
			c.build(s, com)
			c.change(s)
			_, before := s.mark()
			_, err = s.Commit(t.Context(), com)
			is(t, err, task.ErrConflict)

			var conflict *store.Conflict
			if !errors.As(err, &conflict) {
				t.Fatalf("%v is no *Conflict", err)
			}

			if c.record == nil != (len(conflict.Records) == 0) || c.runs != (len(conflict.Runs) == 1) || (c.node != "") != (len(conflict.Nodes) == 1) {
				t.Fatalf("the conflict is %+v", conflict)
			}

			if isNode := c.node != ""; isNode != (len(conflict.Subjects) == 0) || !isNode && !slices.Equal(conflict.Subjects, []int{7}) || conflict.Empty() {
				t.Errorf("the conflict has subjects %d", conflict.Subjects)
			}

			if c.record != nil && conflict.Records[0].Key != c.record(s) || c.node != "" && conflict.Nodes[0] != c.node {
				t.Fatalf("the conflict is %+v", conflict)
			}

			if c.record != nil {
				mod, create, _ := s.at(c.record(s))
				if mod == 0 { // it is absent at the revision of the read
					mod = conflict.Records[0].Mod
				}

				if conflict.Records[0].Mod == 0 || conflict.Records[0].Mod != mod || conflict.Records[0].Create != create {
					t.Errorf("the conflict has revisions %d, %d, want %d, %d", conflict.Records[0].Mod, conflict.Records[0].Create, mod, create)
				}
			}

			if c.check != nil {
				c.check(t, conflict.Records[0])
			}

			if _, after := s.mark(); before != after || s.exists(s.keys.Ended(other, tickRun(other, 1).ID)) {
				t.Error("it wrote a part")
			}
		})
	}
}

func (w *world) update(old store.Stored, change func(*task.Entry)) {
	w.Helper()
	e := old.Entry
	change(&e)

	if _, err := w.UpdateTask(w.Context(), old, old.Task, e); err != nil {
		w.Fatal(err)
	}
}

func (w *world) cancelQueued(r record.Ref, id string) {
	w.Helper()
	if _, err := w.CancelQueued(w.Context(), r, id, task.NewActor("me"), noon); err != nil {
		w.Fatal(err)
	}
}

// However often a request or its answer is lost, a commit is applied once, and its writer knows that.
//
// Verifies: G3
func TestCommit_IsSettledByItsNonce(t *testing.T) {
	for _, fates := range [][]fate{
		{answerLost}, {requestLost}, {delayed},
		{answerLost, requestLost}, {requestLost, answerLost}, {requestLost, requestLost, answerLost}, {delayed, delayed},
		{answerLost, refused}, {requestLost, refused}, {delayed, refused, answerLost},
	} {
		t.Run(fmt.Sprint(fates), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.begin()
			dispatch(c, assigned(ref, 1, node), w.fences.Node.CreateRevision)
			_, before := w.mark()
			w.writes.next(fates...)
			rev := w.commit(c)

			if again := w.writes.release(t.Context()); again != 0 {
				t.Errorf("%d late copies changed something", again)
			}

			if want := map[bool]string{true: store.OutcomeApplied, false: store.OutcomeNotFound}[slices.Contains(fates, answerLost)]; c.ResolvedAs != want {
				t.Errorf("settled as %q, want %q", c.ResolvedAs, want)
			}

			mark, mod := w.mark()
			if mod != rev || mark != c.Watermark {
				t.Errorf("the watermark is %+v at %d; the commit says %+v at %d", mark, mod, c.Watermark, rev)
			}

			if puts, _ := w.changes(w.keys.Watermark(ref.Shard), before); puts != 1 {
				t.Errorf("%d commits", puts)
			}

			if puts, _ := w.changes(w.keys.Run(node, ref, tickRun(ref, 1).ID), before); puts != 1 {
				t.Errorf("%d dispatches", puts)
			}

			w.fences.Node = kv.CreateFence(w.keys.Node(node), w.session(node))
			if _, err := w.Commit(t.Context(), w.NewCommit(ref.Shard, w.fences, rev, mark)); err != nil {
				t.Errorf("the next commit: %v", err)
			}
		})
	}
}

// The first copy is in flight while the second is sent, and arrives immediately before it.
func TestCommit_TheFirstCopyMayArriveLast(t *testing.T) {
	w := newWorld(t)
	c := w.begin()
	dispatch(c, assigned(ref, 1, node), w.fences.Node.CreateRevision)
	w.writes.next(delayed)
	arrived := 0
	w.writes.before = func(n int) {
		if n == 2 {
			arrived = w.writes.release(t.Context())
		}
	}

	_, before := w.mark()
	rev := w.commit(c)
	mark, mod := w.mark()
	if arrived != 1 || mod != rev || mark != c.Watermark {
		t.Errorf("%d copies arrived; the watermark is %+v at %d, the commit says %+v at %d", arrived, mark, mod, c.Watermark, rev)
	}

	if puts, _ := w.changes(w.keys.Run(node, ref, tickRun(ref, 1).ID), before); puts != 1 {
		t.Errorf("%d dispatches", puts)
	}
}

// A nonce of another writer is never mistaken for the writer's own, no matter what happened to its copies.
func TestCommit_AfterAnUnknownOutcomeASuccessorsWatermarkIsNotOurs(t *testing.T) {
	for name, fates := range map[string][]fate{"applied": {answerLost}, "not applied": {requestLost}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.begin()
			w.writes.next(fates...)
			w.writes.before = func(n int) {
				if n != 2 {
					return
				}

				next := store.Fences{Owner: w.own(ref.Shard, "n2"), Node: w.register("n2")}
				if _, _, err := w.other().Open(t.Context(), ref.Shard, next); err != nil {
					t.Error(err)
				}
			}

			_, err := w.Commit(t.Context(), c)
			is(t, err, task.ErrFenced)
		})
	}

	t.Run("opened again under the same fences", func(t *testing.T) {
		w := newWorld(t)
		c := w.begin()
		w.writes.next(requestLost)
		w.writes.before = func(n int) {
			if n == 2 {
				if _, _, err := w.other().Open(t.Context(), ref.Shard, w.fences); err != nil {
					t.Error(err)
				}
			}
		}

		_, err := w.Commit(t.Context(), c)
		is(t, err, store.ErrMoved)
	})
}

func TestCommit_RefusedAtOnceWroteNothing(t *testing.T) {
	w := newWorld(t)
	w.writes.next(refused)
	_, err := w.Commit(t.Context(), w.begin())
	is(t, err, task.ErrUnavailable)
	if errors.Is(err, task.ErrUnknown) || w.writes.count() != 1 {
		t.Errorf("%v after %d writes", err, w.writes.count())
	}
}

func TestCommit_IsUnknownWhenItsTimeEnds(t *testing.T) {
	w := newWorld(t)
	w.withinASecond(func(ctx context.Context) error {
		_, err := w.Commit(ctx, w.begin())
		return err
	}, task.ErrUnknown)
}

// withinASecond calls do with a deadline of one second while all writes are lost. There must be at least two writes,
// but only a few, and the error must be one of want. If the machine is paused for that long, there is no second
// write. Then it tries again with more time.
func (w *world) withinASecond(do func(context.Context) error, want ...error) {
	w.Helper()

	for seconds := 1; ; seconds *= 4 {
		ctx, cancel := context.WithTimeout(w.Context(), time.Duration(seconds)*time.Second)
		w.writes.next(slices.Repeat([]fate{requestLost}, 1000)...)
		err := do(ctx)
		cancel()

		n := w.writes.count()
		if n < 2 && seconds < 60 {
			continue
		}

		for _, target := range want {
			is(w.T, err, target)
		}

		if n < 2 || n > 10*seconds {
			w.Errorf("%d writes in %d s", n, seconds)
		}

		return
	}
}

// A slow worker has a write in flight when its successor opens the shard in the same session. The fences alone would
// not reject that write.
//
// Verifies: G1
func TestOpen_EndsADelayedWriteOfAnEarlierWorker(t *testing.T) {
	w := newWorld(t)
	c := w.begin()
	dispatch(c, assigned(ref, 1, node), w.fences.Node.CreateRevision)
	ctx, cancel := context.WithCancel(t.Context())
	w.writes.next(delayed)
	w.writes.before = func(int) { cancel() }
	_, err := w.Commit(ctx, c)
	is(t, err, task.ErrUnknown)
	w.writes.before = nil

	before, _ := w.mark()
	mark, rev, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)

	if stored, mod := w.mark(); mod != rev || stored != mark || !mark.Time.Equal(before.Time.Time) || mark.Seen != before.Seen || mark.Nonce == before.Nonce {
		t.Errorf("opened with %+v at %d; there is %+v at %d", mark, rev, stored, mod)
	}

	if n := w.writes.release(t.Context()); n != 0 || len(w.below(w.keys.Runs())) != 0 {
		t.Fatal("the earlier worker's write arrived after the open")
	}
}

func TestOpen_TakesWhatADelayedWriteLeft(t *testing.T) {
	w := newWorld(t)
	c := w.begin()
	dispatch(c, assigned(ref, 1, node), w.fences.Node.CreateRevision)
	want := c.Watermark.Time
	ctx, cancel := context.WithCancel(t.Context())
	w.writes.next(delayed)
	w.writes.before = func(n int) {
		if n == 1 {
			cancel()
		} else {
			w.writes.release(t.Context()) // after Open has read and before it writes
		}
	}

	_, err := w.Commit(ctx, c)
	is(t, err, task.ErrUnknown)
	mark, rev, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)

	if stored, mod := w.mark(); mod != rev || stored != mark || !mark.Time.Equal(want.Time) {
		t.Errorf("opened with %+v at %d; there is %+v at %d, the delayed write's time is %s", mark, rev, stored, mod, want)
	}
}

func TestOpen_IsSettledByItsNonce(t *testing.T) {
	for _, fates := range [][]fate{{answerLost}, {requestLost}, {delayed}, {answerLost, answerLost}} {
		w := newWorld(t)
		w.writes.next(fates...)
		mark, rev, err := w.Open(t.Context(), ref.Shard, w.fences)
		ok(t, err)
		w.writes.release(t.Context())

		if stored, mod := w.mark(); mod != rev || stored != mark {
			t.Errorf("%v: opened with %+v at %d; there is %+v at %d", fates, mark, rev, stored, mod)
		}

		w.etcd.Delete(t.Context(), w.keys.Root(), clientPrefix)
	}
}

// The claim of a tick does not compare that the key of its run is absent. Every writer that could have put that key
// has also changed something that the claim compares.
func TestCommit_ClaimWritesOverNoAttempt(t *testing.T) {
	build := func(w *world, entryMod int64) *store.Commit {
		c := w.begin()
		c.GuardEntry(ref.String(), entryMod)
		claim(c, assigned(ref, 1, node), w.fences.Node.CreateRevision)

		return c
	}

	for name, c := range map[string]struct {
		others func(w *world, entryMod int64) int64 // another writer claims the tick and returns the revision
		want   error
	}{
		"the same worker once more": {func(w *world, mod int64) int64 { return w.commit(build(w, mod)) }, store.ErrMoved},
		"its successor on the same node": {func(w *world, mod int64) int64 {
			_, _, err := w.Open(t.Context(), ref.Shard, w.fences)
			ok(t, err)
			return w.commit(build(w, mod))
		}, store.ErrMoved},
		"another owner": {func(w *world, mod int64) int64 {
			was := w.fences
			defer func() { w.fences = was }()

			w.fences.Owner = w.own(ref.Shard, node)
			return w.commit(build(w, mod))
		}, task.ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			mod := w.create(ref).EntryMod
			late := build(w, mod)
			rev := c.others(w, mod)
			_, err := w.Commit(t.Context(), late)
			is(t, err, c.want)

			if now, create, _ := w.at(w.keys.Run(node, ref, tickRun(ref, 1).ID)); now != rev || create != rev {
				t.Errorf("the attempt of revision %d is of %d now, created at %d", rev, now, create)
			}
		})
	}
}

// etcd accepts 128 operations and 1.5 MiB. It must accept every commit that Fits allows, with the sizes that the
// scheduler estimates. Fits must also allow commits of a useful size.
func TestCommit_WhatFitsIsAccepted(t *testing.T) {
	const tick = 0 // room is requested for one tick
	long := record.Ref{Namespace: strings.Repeat("n", 128), Name: strings.Repeat("t", 128), Shard: 3}
	big := strings.Repeat("a", task.MaxArg)
	kinds := map[string]struct {
		records, bytes int
		atLeast        int
		add            func(w *world, c *store.Commit, n int)
	}{
		"ticks that run": {tick, 2048, 115, func(w *world, c *store.Commit, n int) {
			c.GuardEntry(record.Ref{Namespace: "default", Name: fmt.Sprint("t", n), Shard: 3}.String(), 0)
			claim(c, assigned(ref, n, node), w.fences.Node.CreateRevision)
		}},
		"ticks that run on other nodes": {tick, 2048, 58, func(w *world, c *store.Commit, n int) {
			c.GuardEntry(record.Ref{Namespace: "default", Name: fmt.Sprint("t", n), Shard: 3}.String(), 0)
			claim(c, assigned(ref, n, fmt.Sprint("x", n)), w.session(fmt.Sprint("x", n)))
		}},
		"skipped": {tick, 2048, 55, func(w *world, c *store.Commit, n int) {
			c.GuardEntry(ref.String(), 0)
			c.Record(ref, ended(ref, n, task.Skipped))
		}},
		"queued": {1, 2048, 55, func(w *world, c *store.Commit, n int) {
			c.GuardEntry(ref.String(), 0)
			c.Enqueue(ref, waiting(ref, n))
		}},
		"taken from the queue": {2, 2048, 25, func(w *world, c *store.Commit, n int) {
			mod := w.put(w.keys.Queued(ref, tickRun(ref, n).ID), "{}")
			c.GuardEntry(ref.String(), 0)
			c.Dequeue(ref, tickRun(ref, n).ID, mod)
			dispatch(c, assigned(ref, n, node), w.fences.Node.CreateRevision)
		}},
		"rewritten in the queue": {1, 2048, 50, func(w *world, c *store.Commit, n int) {
			c.Requeue(ref, waiting(ref, n), w.put(w.keys.Queued(ref, tickRun(ref, n).ID), "{}"))
		}},
		"caught up": {3, 4096, 20, func(w *world, c *store.Commit, n int) {
			r := record.Ref{Namespace: "default", Name: fmt.Sprint("t", n), Shard: 3}
			putEntry(c, r, entry(spec(r)), 0)
			c.Record(r, ended(r, n, task.Missed))
			dispatch(c, assigned(r, n+1, node), w.fences.Node.CreateRevision)
		}},
		"lost, and tried again": {2, 4096, 25, func(w *world, c *store.Commit, n int) {
			h := record.Held{Assigned: assigned(ref, n, "gone"), Mod: w.put(w.keys.Run("gone", ref, tickRun(ref, n).ID), "{}")}
			next := waiting(ref, n)
			c.EndLost(h, task.Run{}, &next)
		}},
		"lost": {2, 4096, 25, func(w *world, c *store.Commit, n int) {
			h := record.Held{Assigned: assigned(ref, n, "gone"), Mod: w.put(w.keys.Run("gone", ref, tickRun(ref, n).ID), "{}")}
			c.EndLost(h, endOf(h, task.Lost), nil)
		}},
		"asked to end": {1, 4096, 50, func(w *world, c *store.Commit, n int) {
			h := record.Held{Assigned: assigned(ref, n, "gone"), Mod: w.put(w.keys.Run("gone", ref, tickRun(ref, n).ID), "{}")}
			c.AskCancel(h, task.NewActor("me"), "")
		}},
		"purged": {1, 256, 50, func(w *world, c *store.Commit, n int) {
			c.Purge(w.keys.Ended(ref, tickRun(ref, n).ID), w.put(w.keys.Ended(ref, tickRun(ref, n).ID), "{}"))
		}},
		"long names": {2, 2048, 20, func(w *world, c *store.Commit, n int) {
			c.GuardEntry(long.String(), 0)
			dispatch(c, assigned(long, n, node), w.fences.Node.CreateRevision)
		}},
		"big actions": {tick, 2048 + 2*task.MaxArg, 7, func(w *world, c *store.Commit, n int) {
			a := assigned(ref, n, node)
			a.Action = task.Action{Process: &task.Process{Command: []string{big, big[1:]}}}
			dispatch(c, a, w.fences.Node.CreateRevision)
		}},
		// The estimate of the scheduler does not include the environment of a manual run, which
		// may be as large as an action.
		"big environments": {1, 2048, 8, func(w *world, c *store.Commit, n int) {
			a := assigned(ref, n, node)
			a.Env = map[string]string{"A": big, "B": big}
			dispatch(c, a, w.fences.Node.CreateRevision)
		}},
	}

	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)

			if strings.Contains(name, "other nodes") {
				for n := range 130 {
					w.put(w.keys.Node(fmt.Sprint("x", n)), "{}")
				}
			}

			c, n := w.begin(), 0
			fits := func() bool {
				if k.records == tick {
					return c.FitsTick(0, k.bytes)
				}
				return c.Fits(k.records, k.bytes)
			}

			for ; fits(); n++ {
				k.add(w, c, n)
			}

			if n < k.atLeast {
				t.Errorf("only %d fit", n)
			}

			w.commit(c)
		})
	}
}

// Commits of many shards share requests. A commit that is fenced does not affect the others.
func TestCommit_SharesRequestsAndNotFailures(t *testing.T) {
	w := newWorld(t)
	const all = 8
	var wg sync.WaitGroup

	for id := range all {
		owner := w.own(id, node)

		if id%3 == 1 {
			w.own(id, "n2")
		}

		wg.Go(func() {
			mark, known, err := w.Open(t.Context(), id, store.Fences{Owner: owner, Node: w.fences.Node})
			r := record.Ref{Namespace: "default", Name: "a", Shard: id}

			for n := range 5 {
				if err != nil {
					break
				}

				c := w.NewCommit(id, store.Fences{Owner: owner, Node: w.fences.Node}, known, mark)
				dispatch(c, assigned(r, n, node), w.fences.Node.CreateRevision)

				if known, err = w.Commit(t.Context(), c); err == nil {
					if res, err := w.etcd.Get(t.Context(), w.keys.Watermark(id)); err != nil || res.Kvs[0].ModRevision != known {
						t.Errorf("shard %d: the commit says revision %d, there is %v: %v", id, known, res, err)
					}
				}

				mark = c.Watermark
			}

			if fenced := id%3 == 1; fenced != errors.Is(err, task.ErrFenced) || !fenced && err != nil {
				t.Errorf("shard %d: %v", id, err)
			}
		})
	}

	wg.Wait()

	if n := len(w.below(w.keys.Inbox(node))); n != 5*5 {
		t.Errorf("%d attempts, want 25", n)
	}
}
