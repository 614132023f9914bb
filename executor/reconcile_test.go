package executor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// The watch of the inbox loses a new attempt, a cancel, and the deletion of a record. The next list applies all of
// them, and the one after that counts them.
func TestExecutor_FindsWhatItsWatchHasLost(t *testing.T) {
	etcd := newEtcd(t)
	deaf := kvtest.Deafen(etcd)
	n := newNode(t, etcd)
	n.reread, n.patience = 500*time.Millisecond, 300*time.Millisecond
	n.join()
	n.assign("cancelled", "echo $$ >@cancelled; exec sleep 300")
	n.assign("gone", "echo $$ >@gone; exec sleep 300")
	n.began("cancelled")
	gone := n.began("gone")
	inbox := n.keys.Inbox("n1")
	marked := func(run string) bool { a, _ := n.inbox(run); return a != nil && a.State == task.Running }
	executortest.Eventually(t, "both are marked", func() bool { return marked("cancelled") && marked("gone") })
	deaf.Drop(func(key string) bool { return strings.HasPrefix(key, inbox) })
	n.assign("new", "echo $$ >@new")
	n.change("cancelled", cancelled)

	if _, err := etcd.Delete(t.Context(), n.keys.Run("n1", ref, "gone")); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "three lost events", func() bool { return deaf.Dropped() >= 3 })
	n.began("new")

	if r := n.ended("cancelled"); r.State != task.Cancelled {
		t.Errorf("got %+v", r)
	}

	executortest.Eventually(t, "the process whose record is gone is dead", func() bool { return !executortest.Alive(gone) })
	executortest.Eventually(t, "the count", func() bool { return value(n.metrics.repairs) >= 3 })

	if got := value(n.metrics.kills.WithLabelValues("gone")); got != 1 {
		t.Errorf("%v kills of what was gone", got)
	}
}

// Lists during many changes do not report lost events.
func TestExecutor_FindsNothingWhileItsWatchIsWell(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.reread = 50 * time.Millisecond
	n.join()

	for i := range 300 {
		n.assign(fmt.Sprint("r", i), "", noop)
		if i%40 == 0 {
			n.join()
		}
	}

	for i := range 300 {
		n.ended(fmt.Sprint("r", i))
	}

	if got := value(n.metrics.repairs); got != 0 {
		t.Errorf("%v repairs", got)
	}
}
