package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestExecutor_AdoptsAfterARejoin(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 1 })
	n.join()
	n.assign("runs", "echo $$ >>@runs; while ! test -e @go; do sleep 0.01; done")
	pid := n.began("runs")
	n.sees("runs", "has started", func(a *attempt) bool { return !a.startedAt.IsZero() }) // the file may appear before that
	n.assign("waits", "echo $$ >>@waits")
	executortest.Eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })
	fence := n.join()

	for _, run := range []string{"runs", "waits"} {
		executortest.Eventually(t, run+" is adopted", func() bool { _, mod := n.inbox(run); return mod > fence.CreateRevision })
	}

	if a, _ := n.inbox("runs"); a.State != task.Running || a.StartedAt.IsZero() {
		t.Errorf("got %+v", a.Run)
	}

	if !executortest.Alive(pid) {
		t.Error("it did not go on")
	}

	n.touch("go")

	if r := n.ended("runs"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}

	n.ended("waits")

	for _, run := range []string{"runs", "waits"} {
		if b, _ := os.ReadFile(n.file(run)); strings.Count(string(b), "\n") != 1 {
			t.Errorf("%s was started %d times", run, strings.Count(string(b), "\n"))
		}
	}
}

func TestExecutor_MarksWhatLasts(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	n.assign("r1", "while ! test -e @go; do sleep 0.01; done")
	executortest.Eventually(t, "it is marked as running", func() bool { a, _ := n.inbox("r1"); return a.State == task.Running })
	n.change("r1", cancelled) // it compares the revision of the mark

	if r := n.ended("r1"); r.State != task.Cancelled {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_KillsWhatIsGone(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	token := n.assign("r1", "trap '' TERM; echo $$ >@r1; while :; do sleep 0.01; done")
	pid := n.began("r1")
	// The owner of its shard declares it lost.
	a, _ := n.inbox("r1")
	end := LostEnd(*a, token, time.Now())
	b, _ := json.Marshal(end)

	_, err := n.etcd.Txn(t.Context()).Then(clientv3.OpDelete(n.keys.Run("n1", ref, "r1")), clientv3.OpPut(n.keys.Ended(ref, "r1"), string(b))).Commit()
	if err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "the process is dead", func() bool { return !executortest.Alive(pid) })
	executortest.Eventually(t, "nothing runs", func() bool { return n.Running() == 0 })

	if r := n.history("r1"); r.State != task.Lost {
		t.Errorf("the outcome changed to %s", r.State)
	}
}

// deaf is an inbox whose watch stops delivering events.
type deaf struct {
	Inbox
	on atomic.Bool
}

func (d *deaf) FollowInbox(ctx context.Context, node string, relist time.Duration, apply func(store.InboxBatch) error) error {
	return d.Inbox.FollowInbox(ctx, node, relist, func(b store.InboxBatch) error {
		if d.on.Load() {
			return nil
		}
		return apply(b)
	})
}

// Verifies: G12
func TestExecutor_LateResultIsKeptBeside(t *testing.T) {
	d := &deaf{}
	n := newNode(t, newEtcd(t), func(c *Config) { d.Inbox, c.Inbox = c.Inbox, d })
	n.join()
	token := n.assign("r1", "echo $$ >@r1; while ! test -e @go; do sleep 0.01; done; exit 4")
	n.began("r1")
	d.on.Store(true) // it ends before the node learns that it was declared lost
	a, _ := n.inbox("r1")
	n.put(n.keys.Ended(ref, "r1"), LostEnd(*a, token, time.Now()))

	if _, err := n.etcd.Delete(t.Context(), n.keys.Run("n1", ref, "r1")); err != nil {
		t.Fatal(err)
	}

	n.touch("go")
	var late *task.Run
	executortest.Eventually(t, "the late result", func() bool {
		late, _ = read[task.Run](n, n.keys.Late(ref, "r1", token))
		return late != nil
	})

	if late.State != task.Failed || *late.ExitCode != 4 {
		t.Errorf("got %+v", late)
	}

	if r := n.history("r1"); r.State != task.Lost {
		t.Errorf("the outcome changed to %s", r.State)
	}
}

func TestExecutor_SuccessorWaitsForTheEndOfTheOneBefore(t *testing.T) {
	release := make(chan struct{})
	n := newNode(t, newEtcd(t))
	n.runners[task.KindProcess] = runnerFunc(func(a process.Attempt, o *process.Orders) process.Result {
		r := n.runner.RunAttempt(a, o)
		<-release // prevents the old attempt from ending
		return r
	})

	n.join()
	n.assign("r1", "echo $$ >@old; exec sleep 300")
	pid := n.began("old")

	if _, err := n.etcd.Delete(t.Context(), n.keys.Run("n1", ref, "r1")); err != nil {
		t.Fatal(err)
	}

	n.assign("r1", "echo $$ >@new", func(a *task.Assigned) { a.Attempt = 2 })
	executortest.Eventually(t, "the old process is dead", func() bool { return !executortest.Alive(pid) })
	time.Sleep(50 * time.Millisecond) // time for an incorrect executor to fail

	if n.exists("new") {
		t.Error("the next attempt began before the one before had ended")
	}

	close(release)

	if r := n.ended("r1"); r.State != task.Succeeded || r.Attempt != 2 {
		t.Errorf("got %+v", r)
	}
}

// Verifies: G9
func TestExecutor_EachTokenStartsOnceThroughRejoins(t *testing.T) {
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 3 })
	n.join()

	const all = 40
	for i := range all {
		n.assign(fmt.Sprint("r", i), "echo $CARILLON_RUN_ID $CARILLON_FENCING_TOKEN >>@log; sleep 0.02")
		if i%4 == 0 {
			n.join()
		}
	}

	for i := range all {
		n.ended(fmt.Sprint("r", i))
	}

	b, err := os.ReadFile(n.file("log"))
	if err != nil {
		t.Fatal(err)
	}

	seen := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if seen[line] {
			t.Errorf("started twice: %s", line)
		}
		seen[line] = true
	}

	if len(seen) != all {
		t.Errorf("%d attempts were started, want %d", len(seen), all)
	}
}

func TestExecutor_AnotherInstancesAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		after  time.Duration // lost_after in the records
		prove  func(*node)
	}{
		"cleared":    {func(*Config) {}, 0, func(n *node) { n.put(n.keys.Cleared("i0"), struct{}{}) }},
		"told":       {func(c *Config) { c.Dead = func(i string) bool { return i == "i0" } }, 0, func(*node) {}},
		"after long": {func(*Config) {}, time.Second, func(*node) {}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, newEtcd(t), c.change)
			other := func(a *task.Assigned) { a.Instance = "i0" }
			again := func(a *task.Assigned) { a.Retry.Attempts, a.Retry.On = 2, []task.State{task.Lost} }
			token := n.assign("once", "echo $$ >@once", other, lostAfter(c.after))
			n.assign("again", "echo $$ >@again", other, again, lostAfter(c.after))
			joined := time.Now()
			n.join()

			if name == "cleared" {
				n.assign("mine", "true")
				n.ended("mine")
				if a, _ := n.inbox("once"); a == nil {
					t.Fatal("ended as lost although nothing is proved")
				}
			}

			c.prove(n)
			r := n.ended("once")
			if r.State != task.Lost || r.Reason != task.ReasonNodeLost || r.Token != token {
				t.Errorf("got %+v", r)
			}

			if took := time.Since(joined); name == "after long" && took < time.Second {
				t.Errorf("lost after %s", took)
			}

			var w *task.Waiting
			executortest.Eventually(t, "the next attempt waits", func() bool { w = n.waits("again"); return w != nil })

			if len(w.Attempts) != 1 || w.Attempts[0].State != task.Lost || w.Attempt != 2 {
				t.Errorf("got %+v", w)
			}

			if n.exists("once") || n.exists("again") {
				t.Error("started")
			}
		})
	}
}

// Verifies: G17
func TestExecutor_Silence(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	soon := lostAfter(4 * time.Second) // killed after 3 s of silence
	n.assign("one", "echo $$ >@one; exec sleep 300", soon)
	n.assign("again", "echo $$ >@again; exec sleep 300", soon, func(a *task.Assigned) { a.Retry.Attempts, a.Retry.On = 2, []task.State{task.Lost} })
	one, again := n.began("one"), n.began("again")
	last := time.Now() // the silence begins here, because the start may have taken some time
	n.renewed.Store(&last)
	n.sees("one", "is of a silent session", func(*attempt) bool { return n.session.renewals.seen.Equal(last) })
	renewal := n.lastRenewal()
	deadline := renewal + 3*time.Second

	since := time.Since(last) // read before the other clock, so that the sum is not too early
	if latest := proctree.BootTime() - since; renewal > latest {
		t.Errorf("the last renewal is recorded %s too late", renewal-latest)
	}

	executortest.Eventually(t, "both are dead", func() bool { return !executortest.Alive(one) && !executortest.Alive(again) })

	if early := deadline - proctree.BootTime(); early > 0 {
		t.Errorf("killed %s before the deadline", early)
	}

	if r := n.ended("one"); r.State != task.Lost || r.Reason != task.ReasonNodeLost {
		t.Errorf("got %+v", r)
	}

	var w *task.Waiting
	executortest.Eventually(t, "the next attempt waits", func() bool { w = n.waits("again"); return w != nil })

	if len(w.Attempts) != 1 || w.Attempts[0].State != task.Lost {
		t.Errorf("got %+v", w)
	}

	n.assign("late", "echo $$ >@late", soon)
	executortest.Eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })
	time.Sleep(50 * time.Millisecond) // time for an incorrect executor to fail

	if n.exists("late") {
		t.Error("started after the node's deadline")
	}

	n.renewed.Store(nil)
	n.join()
	n.ended("late")
}

// lastRenewal returns when the latest session was last renewed on CLOCK_BOOTTIME, as the executor has stored it.
func (n *node) lastRenewal() (at time.Duration) {
	known := make(chan struct{})
	n.callInLoop(func() {
		at = time.Duration(n.session.renewed.Load())
		close(known)
	})

	<-known

	return at
}

// Each attempt has the lost_after in its own record, which its owner uses, too. The cluster's setting may have
// changed between two attempts.
//
// Verifies: G17
func TestExecutor_SilenceIsBorneByTheRecordOfEachAttempt(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	n.assign("short", "echo $$ >@short; exec sleep 300", lostAfter(4*time.Second))
	n.assign("long", "echo $$ >@long; exec sleep 300", lostAfter(24*time.Hour))
	n.assign("usual", "echo $$ >@usual; exec sleep 300")
	short, long, usual := n.began("short"), n.began("long"), n.began("usual")

	silent := func(d time.Duration) {
		last := time.Now().Add(-d)
		n.renewed.Store(&last)
	}

	silent(4 * time.Second)
	n.ended("short")
	n.assign("late", "echo $$ >@late", lostAfter(4*time.Second))
	n.assign("noop", "", noop, lostAfter(4*time.Second))
	n.assign("other", "true", lostAfter(time.Hour))
	n.ended("other")

	if executortest.Alive(short) || !executortest.Alive(long) || !executortest.Alive(usual) {
		t.Errorf("after 4 s of silence: of 4s alive %t, of 24h %t, of the default %t", executortest.Alive(short), executortest.Alive(long), executortest.Alive(usual))
	}

	if a, _ := n.inbox("noop"); n.exists("late") || a == nil {
		t.Error("an attempt started that is about to be declared lost")
	}

	silent(2 * time.Minute)
	n.ended("usual")

	if !executortest.Alive(long) {
		t.Error("after 2 min of silence the attempt of 24 h is dead")
	}

	silent(24 * time.Hour)

	if r := n.ended("long"); r.State != task.Lost || executortest.Alive(long) {
		t.Errorf("got %+v", r)
	}

	n.renewed.Store(nil) // etcd is available again
	n.ended("late")
	n.ended("noop")
}

// Verifies: G18
func TestExecutor_EtcdAway(t *testing.T) {
	server := kvtest.StartServer(t)
	n := newNode(t, server.Client())
	n.join()
	ends, lasts := fmt.Sprint("ends-", executortest.NewToken()), fmt.Sprint("lasts-", executortest.NewToken())
	n.assign(ends, "echo $$ >@ends; while ! test -e @down; do sleep 0.01; done")
	n.assign(lasts, "echo $$ >@lasts; while ! test -e @go; do sleep 0.01; done")
	n.began("ends")
	pid := n.began("lasts")
	server.Stop()
	n.touch("down")
	executortest.Eventually(t, "one ends", func() bool { return n.Running() == 1 })
	executortest.Eventually(t, "one end is unrecorded", func() bool { return value(n.metrics.unrecorded) == 1 })
	executortest.Eventually(t, "its slot is free: the process has ended", func() bool { return n.Free() == 3 })
	server.Restart()

	if r := n.ended(ends); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}

	if !executortest.Alive(pid) {
		t.Error("killed because etcd was away")
	}

	n.touch("go")

	if r := n.ended(lasts); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_WithGuardian(t *testing.T) {
	dir := t.TempDir()
	registry := prometheus.NewRegistry()
	cfg := guardiantest.Config(dir)
	cfg.Registerer = registry
	g := guardian.NewClient(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	n := newNode(t, newEtcd(t), func(c *Config) { c.Guardian, c.Dir = g, dir })
	n.join()

	for i := range 20 {
		n.assign(fmt.Sprint("r", i), "exit 0")
	}

	for i := range 20 {
		n.ended(fmt.Sprint("r", i))
	}

	n.assign("lasts", "echo $$ >@lasts; while ! test -e @go; do sleep 0.01; done")
	n.began("lasts")
	n.join()
	// watched returns what the guardian knows: the attempts, and the last renewal of the second session.
	watched := func() (attempts map[uint64]guardian.Attempt, renewed time.Duration) {
		attempts = map[uint64]guardian.Attempt{}
		for _, x := range guardiantest.Heard(t, dir) {
			if x == (guardian.Message{}) { // the Hello to another guardian, which has no attempts yet
				clear(attempts)
			}

			if x.Attempt != nil {
				attempts[x.Attempt.ID] = *x.Attempt
			}

			delete(attempts, x.End)

			if x.Session != nil && x.Session.ID == 2 {
				renewed = x.Session.Renewed
			}
		}

		return attempts, renewed
	}

	executortest.Eventually(t, "the guardian knows the session", func() bool {
		attempts, _ := watched()
		for _, a := range attempts {
			return len(attempts) == 1 && a.Session == 2 && a.Pid > 0
		}
		return false
	})

	deadline := func() time.Duration { _, renewed := watched(); return renewed }
	first := deadline()
	executortest.Eventually(t, "the guardian is told of a renewal", func() bool { return deadline() > first })

	if err := syscall.Kill(executortest.PIDIn(t, filepath.Join(dir, "guardian.lock")), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "another guardian", func() bool {
		families, err := registry.Gather()
		executortest.Must(t, err)
		return slices.ContainsFunc(families, func(f *dto.MetricFamily) bool {
			return f.GetName() == "carillon_guardian_restarts_total" && f.GetMetric()[0].GetCounter().GetValue() == 1
		})
	})

	n.touch("go")
	n.ended("lasts")
	n.stop()
	cancel()

	if err := <-done; err != nil {
		t.Error(err)
	}

	if left, _ := watched(); len(left) != 0 {
		t.Errorf("the guardian still watches %v", left)
	}
}

// Verifies: G9
func TestExecutor_TokenThatCameAndWentIsNeverStarted(t *testing.T) {
	n := newNode(t, newEtcd(t))
	n.join()
	token := n.assign("r1", "echo $$ >>@r1")
	n.ended("r1")
	executortest.Eventually(t, "it is forgotten", func() bool {
		got := make(chan int, 1)
		n.callInLoop(func() { got <- len(n.all) })
		return <-got == 0
	})

	// A record with the same create revision appears again, as after a restore of etcd from an older snapshot.
	a := executortest.Assigned("r1", &task.Process{Shell: "echo $$ >>" + n.file("r1")})
	a.Shard = 0
	n.callInLoop(func() {
		ev := store.InboxEvent{Held: &record.Held{Assigned: a, Mod: token, Create: token}, Mod: token, Key: n.keys.Run("n1", ref, "r1")}
		n.applyRecord(&ev, n.floor)
	})

	n.assign("r2", "true")
	n.ended("r2")
	executortest.Eventually(t, "it is settled", func() bool {
		got := make(chan bool, 1)
		n.callInLoop(func() { got <- n.settledAll() })
		return <-got
	})

	if b, _ := os.ReadFile(n.file("r1")); strings.Count(string(b), "\n") != 1 {
		t.Errorf("started %d times", strings.Count(string(b), "\n"))
	}
}

// failingFinishInbox is an inbox that accepts no results while on is set.
type failingFinishInbox struct {
	Inbox
	on atomic.Bool
}

func (f *failingFinishInbox) Finish(ctx context.Context, h record.Held, end task.Run, next *task.Waiting) error {
	if f.on.Load() {
		return task.ErrUnavailable
	}
	return f.Inbox.Finish(ctx, h, end, next)
}

// A cancel arrives after the end of the attempt, and before the end is recorded.
func TestExecutor_RecordsACancelThatComesAfterTheEnd(t *testing.T) {
	b := &failingFinishInbox{}
	n := newNode(t, newEtcd(t), func(c *Config) { b.Inbox, c.Inbox = c.Inbox, b })
	b.on.Store(true)
	n.join()
	again := func(a *task.Assigned) { a.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Failed}} }
	n.assign("fails", "exit 3", again)
	executortest.Eventually(t, "its end waits", func() bool { return value(n.metrics.unrecorded) == 1 })
	n.change("fails", cancelled)
	known := func() bool {
		got := make(chan bool, 1)
		n.callInLoop(func() { got <- n.byKey[n.keys.Run("n1", ref, "fails")].CancelRequested })
		return <-got
	}

	executortest.Eventually(t, "the cancel is known", known)
	b.on.Store(false)

	if r := n.ended("fails"); r.State != task.Failed || !r.CancelledBy.Is("someone") {
		t.Errorf("got %+v", r)
	}

	if w := n.waits("fails"); w != nil {
		t.Errorf("a cancelled run waits for a retry: %+v", w)
	}
}

// An attempt failed and would be retried, but was declared lost meanwhile. The owner has already decided what
// follows.
func TestExecutor_LateFailureQueuesNothing(t *testing.T) {
	b := &failingFinishInbox{}
	n := newNode(t, newEtcd(t), func(c *Config) { b.Inbox, c.Inbox = c.Inbox, b })
	b.on.Store(true)
	n.join()
	token := n.assign("fails", "exit 3", func(a *task.Assigned) {
		a.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Failed}}
	})

	executortest.Eventually(t, "its end waits", func() bool { return value(n.metrics.unrecorded) == 1 })
	a, _ := n.inbox("fails")
	n.put(n.keys.Ended(ref, "fails"), LostEnd(*a, token, time.Now()))

	if _, err := n.etcd.Delete(t.Context(), n.keys.Run("n1", ref, "fails")); err != nil {
		t.Fatal(err)
	}

	gone := func() bool {
		got := make(chan bool, 1)
		n.callInLoop(func() { got <- n.byKey[n.keys.Run("n1", ref, "fails")] == nil })
		return <-got
	}

	executortest.Eventually(t, "it is known to be gone", gone)
	b.on.Store(false)
	executortest.Eventually(t, "the late result", func() bool {
		late, _ := read[task.Run](n, n.keys.Late(ref, "fails", token))
		return late != nil
	})

	executortest.Eventually(t, "the count", func() bool { return value(n.metrics.late) == 1 })

	if r := n.history("fails"); r.State != task.Lost || n.waits("fails") != nil {
		t.Errorf("got %+v, waiting %+v", r, n.waits("fails"))
	}
}
