package executor

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestExecutor_RunsAndRecords(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	token := n.assign("r1", "echo out; echo $CARILLON_FENCING_TOKEN >@token; exit 3", func(a *task.Assigned) {
		a.ScheduledTime = task.At(time.Now().Add(-2 * time.Second))
	})

	n.assign("r2", "", noop)
	r := n.ended("r1")
	if r.State != task.Failed || r.Reason != task.ReasonExit || *r.ExitCode != 3 || r.OutputTail != "out\n" || r.OutputBytes != 4 || r.Token != token {
		t.Errorf("got %+v", r)
	}

	if r.Node != "n1" || *r.LatenessMS < 1990 || *r.LatenessMS > 300_000 || r.StartedAt.IsZero() || r.EndedAt.Before(r.StartedAt.Time) {
		t.Errorf("got node %s, lateness %d, %s to %s", r.Node, *r.LatenessMS, r.StartedAt, r.EndedAt)
	}

	if got := n.began("token"); int64(got) != token {
		t.Errorf("the process got token %d, want %d", got, token)
	}

	if got := executortest.ReadOutput(t, n.Spool(), "r1"); got != "out\n" {
		t.Errorf("output %q", got)
	}

	if r := n.ended("r2"); r.State != task.Succeeded || r.StartedAt.IsZero() || r.LatenessMS == nil || r.ExitCode != nil {
		t.Errorf("got %+v", r)
	}

	if got := value(n.metrics.ended.WithLabelValues("process", "failed")); got != 1 {
		t.Errorf("%v failed attempts counted", got)
	}

	executortest.Eventually(t, "all slots are free", func() bool { return n.Free() == 4 })
}

// Verifies: G10
func TestExecutor_NothingStartsBeforeTheFirstJoin(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.assign("r1", "echo $$ >@r1")
	time.Sleep(50 * time.Millisecond) // time for an incorrect executor to fail

	if n.exists("r1") || n.Running() != 0 {
		t.Fatal("started without a session")
	}

	_, before := n.inbox("r1")
	n.join()
	n.ended("r1")

	// The attempt was there before the join, so it was adopted before it started.
	res, err := n.etcd.Get(t.Context(), n.keys.Run("n1", ref, "r1"), clientv3.WithRev(n.revision()-1))
	if err != nil || len(res.Kvs) != 1 || res.Kvs[0].ModRevision == before {
		t.Errorf("not adopted: %v, %v", res, err)
	}
}

func TestExecutor_SlotsAndOrder(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 1 })
	n.join()
	n.assign("first", "echo $$ >@first; while ! test -e @go; do sleep 0.01; done")
	n.began("first")

	for i, age := range []int{1, 3, 2} {
		n.assign(fmt.Sprint("r", i), fmt.Sprintf("echo %d >>@order", age), func(a *task.Assigned) {
			a.ScheduledTime = task.At(a.ScheduledTime.Add(time.Duration(-age) * time.Minute))
		})
	}

	n.assign("noop", "", noop) // a no-op needs no slot
	n.ended("noop")
	executortest.Eventually(t, "three wait", func() bool { return value(n.metrics.waiting) == 3 })

	if n.Free() != 0 || n.Running() != 1 {
		t.Errorf("%d free, %d running", n.Free(), n.Running())
	}

	n.touch("go")

	for i := range 3 {
		n.ended(fmt.Sprint("r", i))
	}

	if b, _ := os.ReadFile(n.file("order")); string(b) != "3\n2\n1\n" {
		t.Errorf("started in the order %q, want the oldest first", b)
	}

	executortest.Eventually(t, "the slot is free", func() bool { return n.Free() == 1 })
}

func TestExecutor_Cancel(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 1 })
	n.join()
	retried := func(a *task.Assigned) { a.Retry.Attempts = 5 }
	n.assign("runs", "echo $$ >@runs; exec sleep 300", retried)
	pid := n.began("runs")
	n.assign("waits", "echo $$ >@waits", retried)
	executortest.Eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })

	n.change("waits", cancelled)

	r := n.ended("waits")
	if r.State != task.Cancelled || r.Reason != task.ReasonCancelled || !r.CancelledBy.Is("someone") || !r.StartedAt.IsZero() || n.exists("waits") {
		t.Errorf("got %+v", r)
	}

	n.change("runs", cancelled)
	r = n.ended("runs")
	if r.State != task.Cancelled || r.Signal != "SIGTERM" || !r.CancelledBy.Is("someone") || executortest.Alive(pid) {
		t.Errorf("got %+v", r)
	}

	if n.waits("runs") != nil || n.waits("waits") != nil {
		t.Error("a cancelled run waits for a retry")
	}
}

func TestExecutor_CancelOfTheMomentOfFailureStopsTheRetry(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()

	// The process itself writes the cancel as its last action, so the executor cannot see it in time.
	for i := range 10 {
		run := fmt.Sprint("r", i)
		n.assign(run, "echo $$ >@"+run+"; while ! test -e @go"+run+"; do :; done; exit 1", func(a *task.Assigned) { a.Retry.Attempts = 2 })
		n.began(run)
		go n.touch("go" + run)
		n.cancelIfThere(run)
		executortest.Eventually(t, "an end", func() bool { return n.history(run) != nil || n.waits(run) != nil })
	}
}

func TestExecutor_Retry(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	token := n.assign("r1", "exit 7", func(a *task.Assigned) {
		a.Retry = task.Retry{Attempts: 2, Backoff: task.Duration(time.Minute), Factor: 1, MaxBackoff: task.Duration(time.Hour), On: []task.State{task.Failed}}
		a.Env = map[string]string{"X": "1"}
	})

	var w *task.Waiting
	executortest.Eventually(t, "the next attempt waits", func() bool { w = n.waits("r1"); return w != nil })

	if w.Attempt != 2 || w.State != task.Queued || w.Reason != task.ReasonRetry || w.Env["X"] != "1" || w.LatenessMS == nil || w.ExitCode != nil {
		t.Errorf("got %+v", w)
	}

	if wait := time.Until(w.NotBefore.Time); wait < 30*time.Second || wait > time.Minute {
		t.Errorf("it waits for %s", wait)
	}

	if len(w.Attempts) != 1 || w.Attempts[0].Token != token || *w.Attempts[0].ExitCode != 7 || w.Attempts[0].Node != "n1" {
		t.Errorf("attempts %+v", w.Attempts)
	}

	if a, _ := n.inbox("r1"); a != nil || n.history("r1") != nil {
		t.Error("it is in the inbox or in the history, too")
	}
}

// Verifies: G19
func TestExecutor_UnreadableRecordHurtsOnlyItself(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()

	key := n.keys.Run("n1", ref, "poison")
	if _, err := n.etcd.Put(t.Context(), key, "{"); err != nil {
		t.Fatal(err)
	}

	n.assign("good", "true")
	n.ended("good")
	executortest.Eventually(t, "the alarm", func() bool { return value(n.metrics.unreadable) == 1 })
	n.assign("poison", "true") // a readable record replaces the damaged one

	if r := n.ended("poison"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}

	if got := value(n.metrics.unreadable); got != 0 {
		t.Errorf("%v are unreadable", got)
	}

	n.assign("unknown", "", func(a *task.Assigned) { a.Action = task.Action{} })

	if r := n.ended("unknown"); r.State != task.Failed || r.Reason != task.ReasonStart {
		t.Errorf("got %+v", r)
	}
}

// Verifies: G20
func TestExecutor_Drain(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 2 })
	n.join()
	n.assign("ends", "echo $$ >@ends; while ! test -e @go; do sleep 0.01; done")
	n.assign("stays", "echo $$ >@stays; trap '' TERM; while :; do sleep 0.01; done",
		func(a *task.Assigned) { a.KillGrace = task.Duration(50 * time.Millisecond); a.Retry.Attempts = 2 })

	n.began("ends")
	pid := n.began("stays")
	n.assign("waits", "echo $$ >@waits")
	executortest.Eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Drain(ctx) }()
	var w *task.Waiting
	executortest.Eventually(t, "the unstarted one is handed back", func() bool { w = n.waits("waits"); return w != nil })

	if w.Reason != task.ReasonHandBack || w.Attempt != 1 || len(w.Attempts) != 0 {
		t.Errorf("got %+v", w)
	}

	n.assign("new", "echo $$ >@new")
	executortest.Eventually(t, "a new one is handed back", func() bool { return n.waits("new") != nil })
	n.touch("go")

	if r := n.ended("ends"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}

	if !executortest.Alive(pid) {
		t.Error("killed before the drain's end")
	}

	cancel()

	if err := <-done; err != nil {
		t.Error(err)
	}

	if w = n.waits("stays"); executortest.Alive(pid) || w == nil || w.Attempts[0].Reason != task.ReasonShutdown || w.Attempts[0].Signal != "SIGKILL" {
		t.Errorf("got %+v", w)
	}

	if n.exists("new") || n.exists("waits") {
		t.Error("started while draining")
	}

	n.Resume()
	n.assign("after", "true")

	if r := n.ended("after"); r.State != task.Succeeded {
		t.Errorf("after the drain: %+v", r)
	}
}

func TestExecutor_StopsAtOnce(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	n.assign("r1", "echo $$ >@r1; exec sleep 300")
	n.assign("r2", "setsid sh -c 'echo $$ >@r2; exec sleep 300' & wait")
	pids := []int{n.began("r1"), n.began("r2")}
	n.stop()

	for _, pid := range pids {
		if executortest.Alive(pid) {
			t.Errorf("process %d outlived the executor", pid)
		}
	}

	if r := n.history("r1"); r == nil || r.State != task.Failed || r.Reason != task.ReasonShutdown {
		t.Errorf("got %+v", r)
	}

	if err := n.Drain(t.Context()); err == nil {
		t.Error("a stopped executor drains")
	}

	executortest.NoChildren(t)
}

func TestNew_Refuses(t *testing.T) {
	for _, c := range []Config{{}, {Node: "n", Instance: "i", Dir: "/x", Inbox: &store.Store{}}} {
		if e, err := New(c); err == nil {
			t.Errorf("made %v of %+v", e, c)
		}
	}
}

func TestExecutor_ManyNoops(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.MaxUnfinished = 50; c.Finishers = 8 })
	const all = 500
	for i := range all {
		n.assign("r"+strconv.Itoa(i), "", noop)
	}

	n.join()
	executortest.Eventually(t, "all have ended", func() bool {
		return value(n.metrics.ended.WithLabelValues("noop", "succeeded")) == all && value(n.metrics.unrecorded) == 0
	})

	res, err := n.etcd.Get(t.Context(), n.keys.HistoryOf(ref), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || res.Count != all {
		t.Errorf("%d records, %v", res.Count, err)
	}
}
