package api_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestStatus_CountsEntriesThatNobodyCanRead(t *testing.T) {
	w := newWorld(t)

	for name, n := range map[string]int{"a": 2, "b": 0, "c": 1} {
		w.put(w.store.Keys().Node(name), task.Node{Name: name, State: task.NodeReady, Format: 3, Unreadable: n})
	}

	if st, err := w.Cluster.Status(t.Context()); err != nil || st.Unreadable != 3 {
		t.Errorf("got %d, %v", st.Unreadable, err)
	}
}
