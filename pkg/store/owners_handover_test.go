package store_test

import (
	"context"
	"testing"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func (w *world) handovers() []record.Handover {
	w.Helper()
	l, err := w.Lineup(w.Context())
	ok(w.T, err)

	return l.Handovers
}

func TestHandover_IsPreparedAnsweredAndEndsWithTheMove(t *testing.T) {
	w := newWorld(t)
	term, session := w.lead("n1"), w.fences.Node

	list := make([]record.Handover, 150) // more than one transaction
	for i := range list {
		list[i] = record.Handover{Shard: 1000 + i, To: node}
	}

	ok(t, w.Prepare(t.Context(), term, list, task.At(noon)))
	all := w.handovers()
	if len(all) != 150 {
		t.Fatalf("%d handovers", len(all))
	}

	h := all[149]
	if h.Shard != 1149 || h.To != node || h.Ready != 0 || !h.Since.Equal(noon) || h.Revision == 0 {
		t.Errorf("the handover is %+v", h)
	}

	ok(t, w.TellReady(t.Context(), session, h))
	is(t, w.TellReady(t.Context(), session, h), task.ErrConflict) // the handover has been replaced

	h = w.handovers()[149]
	if h.To != node || h.Ready != session.CreateRevision || !h.Since.Equal(noon) {
		t.Errorf("answered, it is %+v", h)
	}

	is(t, w.TellReady(t.Context(), kv.CreateFence(session.Key, session.CreateRevision+1), all[0]), task.ErrConflict)
	is(t, w.Prepare(t.Context(), term, []record.Handover{{Shard: 1149, To: "n3", Revision: all[149].Revision}}, task.At(noon)), task.ErrConflict)
	is(t, w.Assign(t.Context(), term, []store.Move{{From: record.Owner{Shard: 1149}, To: node, Handover: all[149].Revision}}, task.At(noon)), task.ErrConflict)
	ok(t, w.Assign(t.Context(), term, []store.Move{{From: record.Owner{Shard: 1149}, To: node, Handover: h.Revision}}, task.At(noon)))

	if l := w.handovers(); len(l) != 149 || l[148].Shard != 1148 {
		t.Error("the handover is still there")
	}

	l, err := w.Lineup(t.Context())
	ok(t, err)

	if o := l.Owners[len(l.Owners)-1]; o.Shard != 1149 || o.Node != node || len(l.Nodes) != 1 {
		t.Errorf("the lineup is %+v, %+v", o, l.Nodes)
	}

	is(t, w.Withdraw(t.Context(), term, []record.Handover{{Shard: 1148, Revision: 1}}), task.ErrConflict)
	w.put(w.keys.Handover(1000), "{") // an unreadable record names no node, and can be withdrawn

	if h := w.handovers()[0]; h.To != "" || h.Revision == 0 {
		t.Errorf("an unreadable handover is %+v", h)
	}

	ok(t, w.Withdraw(t.Context(), term, w.handovers()))

	if n := len(w.handovers()); n != 0 {
		t.Errorf("%d are left", n)
	}

	w.del(term.Key)
	is(t, w.Prepare(t.Context(), term, list, task.At(noon)), task.ErrFenced)
	is(t, w.Withdraw(t.Context(), term, list), task.ErrFenced)

	if n := len(w.handovers()); n != 0 {
		t.Error("it wrote after its term")
	}
}

// A standby receives changes of the watermark as long as it requests them.
func TestShadowShard_TellsOfTheWatermarkUntilItIsNotWanted(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	marks := make(chan bool, 1)
	wanted := func() bool {
		select {
		case <-marks:
			return false
		default:
			return true
		}
	}

	batches := follow(t, func(ctx context.Context, apply func(store.ShardBatch) error) error {
		return w.FollowStandbyShard(ctx, ref.Shard, wanted, apply)
	})

	any := func(store.ShardBatch) bool { return true }
	if b := next(t, batches, any); !b.Reset || !b.First || len(b.Events) != 2 {
		t.Fatalf("the load is %+v", b)
	}

	_, rev, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)

	if b := next(t, batches, any); b.Reset || b.Revision != rev || len(b.Events) != 0 {
		t.Errorf("the opening at %d is delivered as %+v", rev, b)
	}

	marks <- true // once
	_, rev, err = w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)
	_, last, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)

	if b := next(t, batches, any); b.Revision == rev || b.Revision > last {
		t.Errorf("an unwanted watermark is delivered: %+v", b)
	}
}
