package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// history returns the record of an ended run of a task, or nil if there is none.
func (w *world) history(r record.Ref, id string) *task.Run {
	w.Helper()
	mod, _, value := w.at(w.keys.Ended(r, id))
	if mod == 0 {
		return nil
	}

	run, err := record.DecodeEnded(record.ShardKey{Kind: record.KindEnded, Ref: r, Run: id}, []byte(value))
	if err != nil {
		w.Fatal(err)
	}

	return &run
}

func (w *world) queued(r record.Ref, id string) *task.Waiting {
	w.Helper()
	mod, _, value := w.at(w.keys.Queued(r, id))
	if mod == 0 {
		return nil
	}

	wait, err := record.DecodeWaiting(record.ShardKey{Kind: record.KindQueued, Ref: r, Run: id}, []byte(value))
	if err != nil {
		w.Fatal(err)
	}

	return &wait
}

// late returns the late results of a task.
func (w *world) late(r record.Ref) (late []string) {
	for _, key := range w.below(w.keys.HistoryOf(r)) {
		if k, ok := w.keys.ParseShard(w.keys.HistoryOf(r) + key); ok && k.Late {
			late = append(late, key)
		}
	}

	return late
}

// lose declares an attempt lost, like the owner of its shard. The node is absent during that write and present again
// afterwards.
func (w *world) lose(h record.Held, next *task.Waiting) {
	w.Helper()

	if h.Node == node {
		w.Fatal("the owner would fence itself")
	}

	w.del(w.keys.Node(h.Node))
	c := w.begin()
	c.EndLost(h, endOf(h, task.Lost), next)
	w.commit(c)
	w.register(h.Node)
}

// redispatch moves a run from the queue to an inbox.
func (w *world) redispatch(r record.Ref, id, name string) record.Held {
	w.Helper()
	mod, _, _ := w.at(w.keys.Queued(r, id))
	q := w.queued(r, id)
	a := assigned(r, 0, name)
	a.Run = q.Run
	a.State, a.Node = task.Dispatched, name
	c := w.begin()
	c.Dequeue(r, id, mod)
	dispatch(c, a, w.session(name))
	w.commit(c)

	return w.held(record.RunKey{Node: name, Ref: r, Run: id})
}

func newInbox(t *testing.T) (*world, record.Held) {
	w := newWorld(t)
	w.register("n2")
	w.create(ref)

	return w, w.dispatch(ref, 1, "n2")
}

func TestFinish_MovesAnAttemptToHistory(t *testing.T) {
	w, h := newInbox(t)
	end := endOf(h, task.Succeeded)
	ok(t, w.Finish(t.Context(), h, end, nil))

	got := w.history(ref, h.ID)
	if len(w.below(w.keys.Runs())) != 0 || got == nil || got.State != task.Succeeded || got.Token != h.Create || got.ID != h.ID || got.Node != "n2" {
		t.Errorf("the record is %+v, the inboxes have %v", got, w.below(w.keys.Runs()))
	}

	ok(t, w.Finish(t.Context(), h, end, nil)) // a repeated finish

	if late := w.late(ref); len(late) != 0 {
		t.Errorf("late: %v", late)
	}
}

func TestFinish_QueuesTheNextAttempt(t *testing.T) {
	w, h := newInbox(t)
	end := endOf(h, task.Failed)
	ok(t, w.Finish(t.Context(), h, end, nextOf(h, end)))

	q := w.queued(ref, h.ID)
	if q == nil || q.Attempt != 2 || len(q.Attempts) != 1 || q.Attempts[0].Token != h.Create || w.history(ref, h.ID) != nil || len(w.below(w.keys.Runs())) != 0 {
		t.Fatalf("waits %+v", q)
	}

	ok(t, w.Finish(t.Context(), h, end, nextOf(h, end)))
	second := w.redispatch(ref, h.ID, "n2")
	if second.Create <= h.Create || second.Attempt != 2 {
		t.Errorf("the token went from %d to %d", h.Create, second.Create)
	}
}

// A cancel arrives while an attempt fails. The run must not be retried.
func TestFinish_WithARetryLosesAgainstACancel(t *testing.T) {
	w, h := newInbox(t)
	_, err := w.CancelActive(t.Context(), h, task.NewActor("me"))
	ok(t, err)
	end := endOf(h, task.Failed)
	is(t, w.Finish(t.Context(), h, end, nextOf(h, end)), task.ErrConflict)

	if w.queued(ref, h.ID) != nil || !w.exists(w.keys.Run("n2", ref, h.ID)) {
		t.Fatal("it wrote all the same")
	}

	now := w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID})
	if !now.CancelRequested || !now.CancelledBy.Is("me") || now.Create != h.Create {
		t.Fatalf("the cancel is gone: %+v", now)
	}

	ok(t, w.Finish(t.Context(), h, endOf(h, task.Cancelled), nil)) // a final end compares only the token

	if got := w.history(ref, h.ID); got == nil || got.State != task.Cancelled {
		t.Errorf("the record is %+v", got)
	}
}

// Verifies: G12
func TestFinish_AfterALossIsRecordedAsLate(t *testing.T) {
	for name, c := range map[string]struct {
		retried bool // the owner retries the lost attempt
		retry   bool // the node would retry the failed attempt
	}{"for good": {false, false}, "a retry waits": {true, false}, "against a retry of its own": {true, true}, "lost for good, would retry": {false, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, h := newInbox(t)

			var next *task.Waiting
			if c.retried {
				next = nextOf(h, endOf(h, task.Lost))
			}

			w.lose(h, next)
			before, queued := w.history(ref, h.ID), w.queued(ref, h.ID)

			end, mine := endOf(h, task.Failed), (*task.Waiting)(nil)
			if c.retry {
				mine = nextOf(h, end)
			}

			for range 2 { // a repeated late result is recorded once
				is(t, w.Finish(t.Context(), h, end, mine), store.ErrLate)
			}

			if fmt.Sprint(w.history(ref, h.ID)) != fmt.Sprint(before) || fmt.Sprint(w.queued(ref, h.ID)) != fmt.Sprint(queued) {
				t.Error("the outcome changed")
			}

			if (before != nil) == c.retried || (queued != nil) != c.retried {
				t.Errorf("lost as %+v, %+v", before, queued)
			}

			mod, _, value := w.at(w.keys.Late(ref, h.ID, h.Create))
			late, err := record.DecodeEnded(record.ShardKey{Ref: ref, Run: h.ID}, []byte(value))
			if mod == 0 || err != nil || late.State != task.Failed || late.Token != h.Create || len(w.late(ref)) != 1 {
				t.Errorf("late: %+v, %v of %v", late, err, w.late(ref))
			}
		})
	}
}

func TestFinish_OfTheLostAttemptWhileItsSuccessorRuns(t *testing.T) {
	w, h := newInbox(t)
	w.register("n3")
	w.lose(h, nextOf(h, endOf(h, task.Lost)))
	second := w.redispatch(ref, h.ID, "n2") // with the same key
	is(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil), store.ErrLate)

	if now := w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID}); now.Mod != second.Mod {
		t.Error("it touched its successor")
	}

	ok(t, w.Finish(t.Context(), second, endOf(second, task.Succeeded), nil))
	// The result is late even if the next attempt has ended in the same state.
	is(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil), store.ErrLate)

	if got := w.history(ref, h.ID); got == nil || got.Token != second.Create || len(w.late(ref)) != 1 {
		t.Errorf("the record is %+v, late %v", got, w.late(ref))
	}
}

// Verifies: G12
func TestFinish_LostBySelfAndByTheOwnerIsOneOutcome(t *testing.T) {
	w, h := newInbox(t)
	w.lose(h, nil)
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Lost), nil))

	if late := w.late(ref); len(late) != 0 {
		t.Errorf("late: %v", late)
	}
}

func TestFinish_IsSettledByItsToken(t *testing.T) {
	for _, fates := range [][]fate{{answerLost}, {requestLost}, {delayed}, {requestLost, answerLost, requestLost}, {answerLost, refused}, {refused}} {
		for _, retries := range []bool{false, true} {
			t.Run(fmt.Sprint(fates, retries), func(t *testing.T) {
				t.Parallel()
				w, h := newInbox(t)
				end := endOf(h, task.Failed)
				var next *task.Waiting
				key := w.keys.Ended(ref, h.ID)
				if retries {
					next, key = nextOf(h, end), w.keys.Queued(ref, h.ID)
				}

				_, before := w.mark()
				w.writes.next(fates...)
				ok(t, w.Finish(t.Context(), h, end, next))

				if n := w.writes.release(t.Context()); n != 0 {
					t.Errorf("%d late copies changed something", n)
				}

				if puts, _ := w.changes(key, before); puts != 1 || len(w.late(ref)) != 0 {
					t.Errorf("%d records, late %v", puts, w.late(ref))
				}
			})
		}
	}
}

// The answer to the first copy is lost, and the run moves before the second copy is sent. The record that contains
// the token may be anywhere.
func TestFinish_FindsItsFirstCopyWhereverTheRunIsBy(t *testing.T) {
	for name, moveOn := range map[string]func(w *world, h record.Held){
		"in the queue": func(w *world, h record.Held) {},
		"on the same node": func(w *world, h record.Held) {
			w.redispatch(ref, h.ID, "n2")
		},
		"on another node": func(w *world, h record.Held) {
			w.redispatch(ref, h.ID, "n3")
		},
		"ended": func(w *world, h record.Held) {
			second := w.redispatch(ref, h.ID, "n3")
			if err := w.other().Finish(w.Context(), second, endOf(second, task.Succeeded), nil); err != nil {
				w.Error(err)
			}
		},
		"in the queue for the third time": func(w *world, h record.Held) {
			second := w.redispatch(ref, h.ID, "n3")
			end := endOf(second, task.Failed)
			if err := w.other().Finish(w.Context(), second, end, nextOf(second, end)); err != nil {
				w.Error(err)
			}
		},
	} {
		for kind, follow := range map[string]func(record.Held, task.Run) *task.Waiting{"": nextOf, ", unsent": nextOfUnsent} {
			t.Run(name+kind, func(t *testing.T) {
				w, h := newInbox(t)
				w.register("n3")
				w.dispatch(ref, 2, "n3") // another tick of the same task
				end := endOf(h, task.Failed)
				w.writes.next(answerLost)
				w.writes.before = func(n int) {
					if n == 2 {
						w.writes.before = nil
						moveOn(w, h)
					}
				}

				if err := w.Finish(t.Context(), h, end, follow(h, end)); err != nil || len(w.late(ref)) != 0 {
					t.Errorf("%v; late %v", err, w.late(ref))
				}
			})
		}
	}
}

// An attempt was declared lost. Its own end, that nothing was sent, comes late, and changes nothing.
func TestFinish_UnsentAfterALossIsRecordedAsLate(t *testing.T) {
	w, h := newInbox(t)
	w.lose(h, nextOf(h, endOf(h, task.Lost)))

	end := endOf(h, task.Failed)
	if err := w.Finish(t.Context(), h, end, nextOfUnsent(h, end)); !errors.Is(err, store.ErrLate) {
		t.Errorf("the finish returns %v", err)
	}
	if q := w.queued(ref, h.ID); len(w.late(ref)) != 1 || q == nil || q.Unsent != nil || q.Attempts[0].State != task.Lost {
		t.Errorf("late %v, the run is %+v", w.late(ref), q)
	}
}

func TestFinish_NamesItsTokenWhateverItsCallerSays(t *testing.T) {
	w, h := newInbox(t)
	end := endOf(h, task.Failed)
	end.Token = 0
	w.writes.next(answerLost)
	ok(t, w.Finish(t.Context(), h, end, nil))

	if got := w.history(ref, h.ID); got.Token != h.Create {
		t.Errorf("the record is %+v", got)
	}
}

func TestFinish_AfterTheTaskWasDeletedLeavesNoLateRecord(t *testing.T) {
	w, h := newInbox(t)
	w.lose(h, nil)
	_, err := w.DeleteTask(t.Context(), w.stored(ref))
	ok(t, err)
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil))

	if left := w.below(w.keys.HistoryOf(ref)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A node that was cut off for a long time finds no record of its own finish any more. That does not prove that the
// attempt was declared lost.
func TestFinish_WhoseRecordWasTrimmedLeavesNoLateRecord(t *testing.T) {
	w, h := newInbox(t)
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil))
	past, err := w.History(t.Context(), ref, false)
	ok(t, err)
	_, err = shared.Delete(t.Context(), w.keys.Ended(ref, h.ID))
	ok(t, err)
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil))

	if left := w.below(w.keys.HistoryOf(ref)); len(past) != 1 || len(left) != 0 {
		t.Errorf("there were %d records; left: %v", len(past), left)
	}
}

func TestFinish_TriesUntilItsTimeEnds(t *testing.T) {
	w, h := newInbox(t)
	w.withinASecond(func(ctx context.Context) error {
		return w.Finish(ctx, h, endOf(h, task.Failed), nil)
	}, context.DeadlineExceeded, task.ErrUnknown)
}

func TestHandBack_QueuesAnUnstartedAttemptAgain(t *testing.T) {
	w, h := newInbox(t)
	ok(t, w.HandBack(t.Context(), h))

	q := w.queued(ref, h.ID)
	if q == nil || q.Reason != task.ReasonHandBack || q.State != task.Queued || q.Attempt != 1 || q.Node != "" || q.Token != 0 || len(q.Attempts) != 0 {
		t.Fatalf("waits %+v", q)
	}

	is(t, w.HandBack(t.Context(), h), task.ErrConflict)
	second := w.redispatch(ref, h.ID, "n2")
	is(t, w.HandBack(t.Context(), h), task.ErrConflict)

	if now := w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID}); now.Mod != second.Mod || now.Attempt != 1 || now.Create <= h.Create {
		t.Errorf("the attempt is %+v", now)
	}
}

func TestHandBack_LosesAgainstACancel(t *testing.T) {
	w, h := newInbox(t)
	_, err := w.CancelActive(t.Context(), h, task.NewActor("me"))
	ok(t, err)
	is(t, w.HandBack(t.Context(), h), task.ErrConflict)
	is(t, w.HandBack(t.Context(), w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID})), task.ErrConflict)

	if w.queued(ref, h.ID) != nil {
		t.Error("a cancelled run waits")
	}
}

func TestHandBack_UnknownIsSaidSo(t *testing.T) {
	w, h := newInbox(t)
	w.writes.next(answerLost)
	is(t, w.HandBack(t.Context(), h), task.ErrUnknown)
	is(t, w.HandBack(t.Context(), h), task.ErrConflict)

	if w.queued(ref, h.ID) == nil {
		t.Error("it does not wait")
	}
}

func TestRewrite_ChangesWhatIsKnownAndKeepsTheToken(t *testing.T) {
	w, h := newInbox(t)
	session := kv.CreateFence(w.keys.Node("n2"), w.session("n2"))
	h.State, h.StartedAt = task.Running, task.At(noon)
	mod, err := w.Rewrite(t.Context(), session, h)
	ok(t, err)

	now := w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID})
	if now.Mod != mod || mod <= h.Mod || now.Create != h.Create || now.State != task.Running || !now.StartedAt.Equal(noon) {
		t.Errorf("the attempt is %+v at %d", now, mod)
	}

	_, err = w.Rewrite(t.Context(), session, h)
	is(t, err, task.ErrConflict)
	_, err = w.CancelActive(t.Context(), now, task.NewActor("me"))
	ok(t, err)
	_, err = w.Rewrite(t.Context(), session, now)
	is(t, err, task.ErrConflict)

	w.del(w.keys.Node("n2"))
	w.register("n2")

	now = w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID})
	if !now.CancelRequested {
		t.Error("the cancel was overwritten")
	}

	_, err = w.Rewrite(t.Context(), session, now)
	is(t, err, task.ErrFenced)
	ok(t, w.Finish(t.Context(), now, endOf(now, task.Cancelled), nil))
	_, err = w.Rewrite(t.Context(), kv.CreateFence(w.keys.Node("n2"), w.session("n2")), now)
	is(t, err, task.ErrConflict)

	if w.exists(w.keys.Run("n2", ref, h.ID)) {
		t.Error("an ended attempt is back")
	}
}

func TestEndLost_RecordsOrRetries(t *testing.T) {
	w, h := newInbox(t)
	w.lose(h, nil)

	if got := w.history(ref, h.ID); got == nil || got.State != task.Lost || got.Token != h.Create || len(w.below(w.keys.Runs())) != 0 {
		t.Errorf("the record is %+v", got)
	}

	h = w.dispatch(ref, 2, "n2")
	w.lose(h, nextOf(h, endOf(h, task.Lost)))

	if q := w.queued(ref, h.ID); q == nil || q.Attempt != 2 || w.history(ref, h.ID) != nil {
		t.Errorf("waits %+v", q)
	}
}

func TestAskCancel_AndCancelActive(t *testing.T) {
	w, h := newInbox(t)
	c := w.begin()
	c.AskCancel(h, task.NewActor("owner"), task.ReasonReplaced)
	w.commit(c)

	now := w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID})
	if !now.CancelRequested || !now.CancelledBy.Is("owner") || now.CancelReason != task.ReasonReplaced || now.Create != h.Create {
		t.Errorf("the attempt is %+v", now)
	}

	_, err := w.CancelActive(t.Context(), h, task.NewActor("me"))
	is(t, err, task.ErrConflict)
	run, err := w.CancelActive(t.Context(), now, task.NewActor("me")) // a cancel is requested already
	ok(t, err)

	if !run.CancelledBy.Is("owner") {
		t.Errorf("cancelled by %q", run.CancelledBy)
	}

	w.writes.next(answerLost)
	h = w.dispatchOther()
	w.writes.next(answerLost)
	_, err = w.CancelActive(t.Context(), h, task.NewActor("me"))
	is(t, err, task.ErrUnknown)
}

func (w *world) dispatchOther() record.Held { return w.dispatch(ref, 7, "n2") }

func TestCleared_MayBeSaidMoreThanOnce(t *testing.T) {
	w := newWorld(t)
	before, err := w.etcd.Leases(t.Context())
	ok(t, err)

	if dead, err := w.Cleared(t.Context(), "i9"); dead || err != nil {
		t.Fatalf("%v, %v", dead, err)
	}

	w.writes.next(refused)
	is(t, w.PutCleared(t.Context(), "i9", task.At(noon)), task.ErrUnavailable)

	for range 2 {
		ok(t, w.PutCleared(t.Context(), "i9", task.At(noon)))
	}

	if dead, err := w.Cleared(t.Context(), "i9"); !dead || err != nil {
		t.Fatalf("%v, %v", dead, err)
	}

	if dead, _ := w.Cleared(t.Context(), "i"); dead {
		t.Error("a neighbour is cleared")
	}

	res, err := w.etcd.Get(t.Context(), w.keys.Cleared("i9"))
	ok(t, err)
	left, err := w.etcd.TimeToLive(t.Context(), leaseID(res.Kvs[0].Lease))
	ok(t, err)

	if left.TTL < 47*3600 || left.GrantedTTL > 49*3600 {
		t.Errorf("it goes in %d s", left.TTL)
	}

	leases, err := w.etcd.Leases(t.Context())
	ok(t, err)

	n := 0
	for _, l := range leases.Leases {
		if slices.Contains(before.Leases, l) {
			continue
		}

		if ttl, err := w.etcd.TimeToLive(t.Context(), l.ID); err == nil && ttl.GrantedTTL == left.GrantedTTL {
			n++
		}
	}

	if n != 1 {
		t.Errorf("%d leases for it", n)
	}
}

// follow returns the batches with which run calls apply, until the test ends.
func follow[B any](t *testing.T, run func(ctx context.Context, apply func(B) error) error) <-chan B {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	batches := make(chan B, 1000)
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, func(b B) error { batches <- b; return nil })
	}()

	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})

	return batches
}

// next returns the next batch for which counts returns true.
func next[B any](t *testing.T, batches <-chan B, counts func(B) bool) B {
	t.Helper()
	deadline := time.After(time.Minute)

	for {
		select {
		case b := <-batches:
			if counts(b) {
				return b
			}
		case <-deadline:
			t.Fatal("no batch came")
		}
	}
}

func TestFollowInbox_TellsOfOneNodesAttempts(t *testing.T) {
	w, h := newInbox(t)
	w.register("n2-1")
	w.dispatch(ref, 2, "n2-1")
	w.put(w.keys.Inbox("n2")+"x", "{}")     // not the key of a record
	w.put(w.keys.Run("n2", ref, "zz"), "{") // an unreadable record
	batches := follow(t, func(ctx context.Context, apply func(store.InboxBatch) error) error {
		return w.FollowInbox(ctx, "n2", 0, apply)
	})

	counts := func(b store.InboxBatch) bool { return !b.Replayed && (b.Reset || len(b.Events) > 0) }
	b := next(t, batches, counts)
	if !b.Reset || len(b.Events) != 3 || b.Events[0].Err != nil || !sameHeld(*b.Events[0].Held, h) ||
		!errors.Is(b.Events[1].Err, task.ErrInvalid) || b.Events[1].Held != nil || !errors.Is(b.Events[2].Err, task.ErrInvalid) {
		t.Fatalf("the inbox is delivered as %+v", b)
	}

	_, err := w.CancelActive(t.Context(), h, task.NewActor("me"))
	ok(t, err)

	b = next(t, batches, counts)
	if b.Reset || len(b.Events) != 1 || !b.Events[0].CancelRequested || b.Events[0].Create != h.Create || b.Events[0].Mod <= h.Mod || b.Revision != b.Events[0].Mod {
		t.Fatalf("a cancel is delivered as %+v", b)
	}

	w.dispatch(ref, 3, "n2-1")
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Cancelled), nil))

	b = next(t, batches, counts)
	if ev := b.Events[0]; len(b.Events) != 1 || !ev.Deleted || ev.Held != nil || ev.Mod != b.Revision || ev.Key != w.keys.Run("n2", ref, h.ID) {
		t.Fatalf("an end is delivered as %+v", b)
	}
}

func sameHeld(a, b record.Held) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}
