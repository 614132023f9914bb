package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A write on behalf of a caller takes effect once, even if the network delivers it again after its effect is gone: a
// manual run was dispatched and has left the queue, a task was deleted.
func TestAs_IsNotRepeatedByASecondDelivery(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	caller := w.As(&administrator{etcd: w.etcd, keys: w.keys})
	run := waiting(ref, 2)
	other := ref
	other.Name = "other"

	w.writes.next(repeated, repeated)
	_, err := caller.Enqueue(t.Context(), st, run)
	ok(t, err)
	_, err = caller.CreateTask(t.Context(), other, spec(other), entry(spec(other)))
	ok(t, err)

	w.del(w.keys.Queued(ref, run.ID))
	w.del(w.keys.Spec(other))
	w.del(w.keys.Entry(other))

	if n := w.writes.release(t.Context()); n != 0 || w.exists(w.keys.Queued(ref, run.ID)) || w.exists(w.keys.Spec(other)) {
		t.Errorf("%d writes took effect twice", n)
	}
}

// tokenHolder is a caller with a token. It is not authorised again when its proof does not hold.
type tokenHolder struct {
	administrator
	proof store.Proof
}

var errNotAuthorized = errors.New("the rights are gone")

// Authorize implements store.Authority.
func (h *tokenHolder) Authorize(_ context.Context, lost *store.Proof) (store.Proof, error) {
	if lost != nil {
		return store.Proof{}, errNotAuthorized
	}
	return h.proof, nil
}

// A cancel that no write can compare anything for is refused as a write would be: if the fence, the token, the labels or
// the attempt have changed.
//
// Verifies: G38
func TestProveCancel_ComparesWhatAWriteWould(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	active := w.dispatch(ref, 1, node)
	fence := w.put(w.keys.Fence(), "{}")
	w.put(w.keys.Token("t1"), "{}")
	_, created, _ := w.at(w.keys.Token("t1"))

	good := store.Proof{Fence: fence, Token: "t1", TokenCreated: created, Specs: map[record.Ref]int64{ref: st.Task.Revision}}
	before := w.all()

	for name, c := range map[string]struct {
		proof func(*store.Proof)
		held  func(*record.Held)
		want  error
	}{
		"all as it was":            {},
		"the fence has changed":    {proof: func(p *store.Proof) { p.Fence-- }, want: errNotAuthorized},
		"the token was deleted":    {proof: func(p *store.Proof) { p.Token = "t2" }, want: errNotAuthorized},
		"the token is another one": {proof: func(p *store.Proof) { p.TokenCreated-- }, want: errNotAuthorized},
		"the task was changed":     {proof: func(p *store.Proof) { p.Specs = map[record.Ref]int64{ref: 1} }, want: task.ErrConflict},
		"another attempt":          {held: func(h *record.Held) { h.Create++ }, want: task.ErrConflict},
		"the attempt has ended":    {held: func(h *record.Held) { h.ID = "none" }, want: task.ErrConflict},
	} {
		proof, held := good, active
		if c.proof != nil {
			c.proof(&proof)
		}
		if c.held != nil {
			c.held(&held)
		}

		if err := w.As(&tokenHolder{proof: proof}).ProveCancel(t.Context(), held); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}

	if after := w.all(); !slices.Equal(before, after) {
		t.Errorf("something was written:\n%q\n%q", before, after)
	}
}

// labelReader is an administrator whose rights depended on the labels of a task at a revision.
type labelReader struct {
	*administrator
	specs map[record.Ref]int64
}

func (l *labelReader) Authorize(ctx context.Context, lost *store.Proof) (store.Proof, error) {
	p, err := l.administrator.Authorize(ctx, lost)
	p.Specs = l.specs
	return p, err
}

// An intent whose comparisons fail is not written, so what it precedes must not happen.
func TestRecordIntent_ReportsThatItWasNotWritten(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	caller := &labelReader{&administrator{etcd: w.etcd, keys: w.keys}, map[record.Ref]int64{ref: st.Task.Revision}}
	ok(t, w.As(caller).RecordIntent(t.Context()))

	caller.specs[ref]--
	if err := w.As(caller).RecordIntent(t.Context()); !errors.Is(err, task.ErrConflict) {
		t.Errorf("the labels have changed: %v", err)
	}
}
