package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestLedger_ReadsWhatBelongsToOneTask(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Ledger(t.Context(), ref); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("of a task that does not exist: %v", err)
	}

	w.create(ref)
	neighbour := record.Ref{Namespace: ref.Namespace, Name: ref.Name + "-1", Shard: ref.Shard}
	w.put(w.keys.LedgerChunk(neighbour, "20261101T000000.000Z"), "another")
	if l, err := w.Ledger(t.Context(), ref); err != nil || len(l.Chunks) != 0 {
		t.Errorf("of a task without runs: %+v, %v", l, err)
	}

	w.put(w.keys.LedgerChunk(ref, "20261102T000000.000Z"), "second")
	w.put(w.keys.LedgerChunk(ref, "20261101T000000.000Z"), "first")
	first := w.putEnded(ref, 0, task.Succeeded)
	w.putEnded(ref, 1, task.Failed)

	l, err := w.Ledger(t.Context(), ref)
	ok(t, err)
	if !slices.EqualFunc(l.Chunks, []string{"first", "second"}, func(b []byte, s string) bool { return string(b) == s }) || l.Task.Name != ref.Name {
		t.Errorf("%q, task %q", l.Chunks, l.Task.Name)
	}

	// A trim after the ledger was read does not hide what it has moved.
	w.del(w.keys.Ended(ref, first))
	var ids []string
	if _, _, err := w.EachEnded(t.Context(), ref, l.Revision, time.Time{}, func(r *task.Run) { ids = append(ids, r.ID) }); err != nil || len(ids) != 2 || ids[0] != first {
		t.Errorf("at the revision of the ledger: %q, %v", ids, err)
	}
}
