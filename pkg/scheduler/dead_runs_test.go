package scheduler

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

func (w *world) dead(name string) (lines []string) {
	w.Helper()
	list, err := w.store.DeadRuns(w.ctx, ref(name))
	w.ok(err)

	for _, d := range list {
		lines = append(lines, tell(d.Run))
	}

	return lines
}

func TestDead_ALostRunWithoutAnotherAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("once", cronned("1 0 12 * * *"), on("node = n2"))
	w.create("again", cronned("1 0 12 * * *"), on("node = n2"), retries(2, time.Second, task.Lost))
	h.decide(1)
	w.leave("n2")
	h.fleet()
	h.decide(2)
	h.decide(200)
	w.want("once", "+1 lost node_lost")

	if got := w.dead("once"); len(got) != 1 || got[0] != "+1 lost node_lost" {
		t.Errorf("the dead runs of once are %q", got)
	}

	if got := w.dead("again"); len(got) != 0 {
		t.Errorf("a run that is tried again is dead: %q", got)
	}
}

// A finish that arrives after its task was deleted leaves a history record and the record of a dead run.
// Both are deleted.
func TestDead_OfATaskThatIsGoneIsDeleted(t *testing.T) {
	t.Parallel()

	for name, seen := range map[string]bool{"told by the watch": true, "between two owners": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2")
			h := w.work("n1")
			w.create("a", cronned("1 * * * * *"))
			w.create("b", cronned("1 * * * * *"))
			h.decide(1)
			w.remove("a")

			if !seen {
				h.die()
			}

			w.finish("a", task.Failed)
			w.finish("b", task.Failed)

			if len(w.dead("a")) != 1 || len(w.dead("b")) != 1 {
				t.Fatalf("dead are %q and %q", w.dead("a"), w.dead("b"))
			}

			if seen {
				h.decide(2)
			} else {
				h = w.work("n2")
				page, _, err := w.store.HistoryKeys(w.ctx, 0, "", nil)
				w.ok(err)
				w.ok(historyPage(page).reviewBy(w.ctx, h.worker))
				h.blind(3)
			}

			if len(w.dead("a")) != 0 || len(w.dead("b")) != 1 {
				t.Errorf("dead are %q and %q", w.dead("a"), w.dead("b"))
			}
		})
	}
}

func TestDead_TheNewestOfATaskStay(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", cronned("@manual"))
		h.see()
		st, err := w.store.Task(w.ctx, ref("a"))
		w.ok(err)
		id := func(i int) string { return task.RunID(sec(float64(i)), st.Task.UID) }
		bury := func(from, to int) {
			for i := from; i < to; i++ {
				w.put(w.store.Keys().DeadRun(ref("a"), id(i)), `{"uid":"`+st.Task.UID+`","scheduled_time":"2026-01-02T12:00:00.000Z","state":"failed","trigger":"schedule"}`)
			}
		}

		bury(0, store.KeepDead+60)
		h.see()
		ctx, cancel := context.WithCancel(w.ctx)
		defer cancel()

		done := make(chan error, 1)
		go func() { done <- h.e.trims.Run(ctx) }()
		bury(store.KeepDead+60, store.KeepDead+60+background.TrimAfter(store.KeepDead, 0))
		h.see()
		w.eventually("the oldest are gone", func() bool {
			res, err := w.client.Get(w.ctx, w.store.Keys().Dead(ref("a")), clientv3.WithPrefix(), clientv3.WithKeysOnly())
			w.ok(err)
			n := len(res.Kvs)
			return n < store.KeepDead+background.TrimAfter(store.KeepDead, 0) && string(res.Kvs[n-1].Key) == w.store.Keys().DeadRun(ref("a"), id(store.KeepDead+60+background.TrimAfter(store.KeepDead, 0)-1))
		})

		cancel()
		<-done
	})
}
