package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freeze freezes the whole cluster and returns the present record.
func (w *world) freeze() store.FreezeRecord {
	w.Helper()
	old, err := w.Freezes(w.Context())
	ok(w.T, err)

	f, changed := old.Freeze(task.Freeze{Since: task.At(noon), By: task.NewActor("ann"), Reason: "a move"})
	if !changed {
		w.Fatal("the cluster is already frozen")
	}

	mod, err := w.SetFreezes(w.Context(), old, f)
	ok(w.T, err)
	r, err := w.Freezes(w.Context())
	ok(w.T, err)

	if r.Mod != mod || r.Revision < mod || !r.Of("any").By.Is("ann") {
		w.Fatalf("the record is %+v, written at %d", r, mod)
	}

	return r
}

func TestSetFreezes_OnlyOverTheOneThatWasRead(t *testing.T) {
	w := newWorld(t)
	old, err := w.Freezes(t.Context())
	if err != nil || old.Mod != 0 || old.Of("any") != nil {
		t.Fatalf("%+v, %v", old, err)
	}

	r := w.freeze()
	_, err = w.SetFreezes(t.Context(), old, task.Freezes{})
	is(t, err, task.ErrConflict)

	f, z, _ := r.Unfreeze("", task.At(noon.Add(time.Hour)), task.NewActor("bob"))
	if _, err = w.SetFreezes(t.Context(), r, f); err != nil || z.Reason != "a move" {
		t.Fatal(z, err)
	}

	if r, err = w.Freezes(t.Context()); err != nil || r.Of("any") != nil || !r.At("any", noon.Add(time.Minute)).EndedBy.Is("bob") {
		t.Errorf("%+v, %v", r, err)
	}
}

// An unreadable record may be a freeze of anything. To unfreeze everything repairs it.
func TestFreezes_ThatCannotBeReadStopEverything(t *testing.T) {
	w := newWorld(t)
	w.put(w.keys.Freezes(), "{")

	r, err := w.Freezes(t.Context())
	if err != nil || r.Of("any") == nil {
		t.Fatalf("%+v, %v", r, err)
	}

	f, _, _ := r.Unfreeze("", task.At(noon), task.NewActor("ann"))
	_, err = w.SetFreezes(t.Context(), r, f)
	ok(t, err)

	if r, err = w.Freezes(t.Context()); err != nil || r.Of("any") != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCommit_NoneSucceedsThatDoesNotKnowTheFreezes(t *testing.T) {
	w := newWorld(t)
	stale := w.begin()
	stale.Record(ref, ended(ref, 1, task.Skipped))
	r := w.freeze()
	_, err := w.Commit(t.Context(), stale)
	var conflict *store.Conflict
	if !errors.As(err, &conflict) || conflict.Freezes == nil || conflict.Freezes.Mod != r.Mod || conflict.Freezes.Of("any").Reason != "a move" || len(conflict.Records) > 0 {
		t.Fatalf("%+v, %v", conflict, err)
	}

	empty := w.begin() // a commit of a worker that decides nothing
	_, err = w.Commit(t.Context(), empty)
	is(t, err, task.ErrConflict)
	c := w.begin()
	c.Freezes = r.Mod
	w.commit(c)
	// The change of another record is not reported as a change of the freezes.
	c = w.begin()
	c.Freezes = r.Mod
	c.GuardEntry(ref.String(), 7)

	if _, err = w.Commit(t.Context(), c); !errors.As(err, &conflict) || conflict.Freezes != nil || len(conflict.Records) != 1 {
		t.Errorf("%+v, %v", conflict, err)
	}
}

// If a freeze comes between the read and the write of Open, it reads again.
func TestOpen_ComparesTheFreezes(t *testing.T) {
	w := newWorld(t)
	w.freeze()
	_, _, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)
	w.writes.next()
	w.writes.before = func(n int) {
		if n == 1 {
			w.put(w.keys.Freezes(), `{"holding":[]}`)
		}
	}

	_, rev, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)

	if _, mod := w.mark(); w.writes.count() != 2 || mod != rev {
		t.Errorf("%d commits; the watermark is of %d, and was opened at %d", w.writes.count(), mod, rev)
	}
}

type never struct{ *testing.T }

func (n never) Commit(context.Context, kv.Txn) (kv.Result, error) {
	n.Error("it goes with others")
	return kv.Result{}, errors.New("refused")
}

// All commits compare the record of freezes, so its write would delay a shared request.
func TestSetFreezes_GoesAlone(t *testing.T) {
	w := newWorld(t)
	w.Store = w.other().Batching(never{t})
	w.freeze()
}

func TestFollowFreezes_TellsWhatIsAndWhatChanges(t *testing.T) {
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	told := make(chan store.FreezeRecord)
	done := make(chan error, 1)
	go func() {
		done <- w.FollowFreezes(ctx, time.Minute, func(r store.FreezeRecord) error {
			select {
			case told <- r:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	if r := <-told; r.Mod != 0 || r.Revision == 0 || r.Of("any") != nil {
		t.Errorf("at first %+v", r)
	}

	now := w.freeze()
	if r := <-told; r.Mod != now.Mod || r.Of("any") == nil {
		t.Errorf("then %+v", r)
	}

	w.del(w.keys.Freezes())

	if r := <-told; r.Mod != 0 || r.Of("any") != nil {
		t.Errorf("in the end %+v", r)
	}

	stop()
	is(t, <-done, context.Canceled)
}
