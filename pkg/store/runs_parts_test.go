package store_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The record of the end of a part is deleted soon after its run has ended. Then the record of the run shows that the
// part was declared lost.
func TestFinish_OfALostPartOfARunThatHasEndedIsRecordedAsLate(t *testing.T) {
	w, parent := newInbox(t)
	a := assigned(ref, 1, "n2")
	a.ID, a.Trigger, a.PartCount = task.PartID(parent.ID, 0), task.TriggerPart, 1
	c := w.begin()
	dispatch(c, a, w.session("n2"))
	w.commit(c)
	h := w.held(record.RunKey{Node: "n2", Ref: ref, Run: a.ID})
	w.lose(h, nil)
	lost := w.history(ref, h.ID)
	c = w.begin()
	end := endOf(parent, task.Failed)
	end.Fan = &task.Fan{Count: 1, Need: 1, Parts: []task.Part{lost.AsPart()}}
	c.Record(ref, end)
	w.commit(c)
	w.del(w.keys.Ended(ref, h.ID))

	is(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil), store.ErrLate)

	if late := w.late(ref); len(late) != 1 {
		t.Errorf("late: %v", late)
	}

	// A record of the run with the same end comes from an earlier copy of this finish.
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Lost), nil))
}
