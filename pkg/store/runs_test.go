package store_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run is found wherever its record is, also if its node is absent, and never mixed up with a neighbor.
func TestRunByID_IsFoundWhereverItIs(t *testing.T) {
	t.Parallel()
	w := newInboxWorld(t)
	r := record.Ref{Namespace: "x", Name: "a", Shard: 1}
	other := record.Ref{Namespace: "x", Name: "ab", Shard: 1}
	w.putNode("n1", 1)
	w.putNode("n2", 0)

	const parent = "20261120T200100.000Z-aaaa"
	value := func(state task.State, node string) string {
		return record.Encode(task.Run{State: state, Node: node, Attempt: 1})
	}

	places := map[string]func(r record.Ref, id string) string{
		"queue":   w.keys.Queued,
		"ended":   w.keys.Ended,
		"present": func(r record.Ref, id string) string { return w.keys.Run("n2", r, id) },
		"absent":  func(r record.Ref, id string) string { return w.keys.Run("gone", r, id) },
		"nowhere": nil,
	}

	i := 0
	for at, key := range places {
		for _, id := range []string{task.PartID(parent, i), fmt.Sprintf("20261120T200200.000Z-aaa%d", i)} {
			if key != nil {
				w.put(key(r, id), value(task.Running, "at "+at))
			}

			// These are no records of the run.
			w.put(w.keys.Queued(other, id), value(task.Queued, "other"))
			w.put(w.keys.Queued(r, id+"0"), value(task.Queued, "other"))
			w.put(w.keys.Run("n1", r, id+"0"), value(task.Queued, "other"))
			w.put(w.keys.Late(r, id, 7), value(task.Failed, "late"))

			got, err := w.RunByID(t.Context(), r, id)
			switch {
			case key == nil && !errors.Is(err, task.ErrNotFound):
				t.Errorf("%s: found %+v, %v", at, got, err)
			case key != nil && (err != nil || got.ID != id || got.Task != "a" || got.State != task.Running):
				t.Errorf("%s: %+v, %v", at, got, err)
			}
		}
		i++
	}
}

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
