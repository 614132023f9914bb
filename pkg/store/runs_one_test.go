package store_test

import (
	"errors"
	"fmt"
	"testing"

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
