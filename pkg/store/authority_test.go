package store_test

import "testing"

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
