package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// node is an executor on a real etcd, and the hands to feed it.
type node struct {
	*Executor
	t     testing.TB
	etcd  *kv.Client
	store *store.Store
	keys  store.Keys
	dir   string // for the attempts' files
	stop  func()

	renewed atomic.Pointer[time.Time] // the session's last renewal; nil: just now
}

func newNode(t testing.TB, etcd *kv.Client, change ...func(*Config)) *node {
	t.Helper()
	keys, err := store.NewKeys("/carillon")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, etcd: etcd, store: store.New(etcd, kv.Direct(etcd), keys), keys: keys, dir: t.TempDir()}
	cfg := Config{Node: "n1", Instance: "i1", Slots: 4, Dir: t.TempDir(), Inbox: n.store, Registerer: prometheus.NewRegistry()}
	if _, bench := t.(*testing.B); !bench {
		cfg.Logger = zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))
	}
	for _, f := range change {
		f(&cfg)
	}
	if n.Executor, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stopped := false
	n.stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(n.stop)
	// The entry, without which a late result is not kept.
	n.put(keys.Entry(ref), task.Entry{UID: "u"})
	return n
}

var ref = store.Ref{Namespace: "default", Name: "job"}

func (n *node) put(key string, v any) int64 {
	n.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		n.t.Fatal(err)
	}
	res, err := n.etcd.Put(n.t.Context(), key, string(b))
	if err != nil {
		n.t.Fatal(err)
	}
	return res.Header.Revision
}

// join writes a new node key and tells the executor.
func (n *node) join() kv.Fence {
	n.t.Helper()
	key := n.keys.Node("n1")
	if _, err := n.etcd.Delete(n.t.Context(), key); err != nil {
		n.t.Fatal(err)
	}
	f := kv.CreateFence(key, n.put(key, task.Node{Instance: "i1"}))
	at := n.renewed.Load()
	n.Joined(Session{Fence: f, LastRenewal: func() time.Time {
		if at != nil {
			return *at
		}
		return time.Now()
	}})
	return f
}

// assign puts an attempt into the inbox, and returns its token. In a shell line
// @name is a file of the node's own.
func (n *node) assign(run, line string, change ...func(*task.Assigned)) int64 {
	n.t.Helper()
	a := assigned(run, &task.Process{Shell: strings.ReplaceAll(line, "@", n.dir+"/")})
	for _, f := range change {
		f(&a)
	}
	return n.put(n.keys.Run("n1", ref, run), a)
}

func noop(a *task.Assigned) { a.Action = task.Action{Noop: &task.Noop{}} }

// change rewrites a record of the inbox, as the API does for a cancel.
func (n *node) change(run string, f func(*task.Assigned)) int64 {
	n.t.Helper()
	a, _ := n.inbox(run)
	if a == nil {
		n.t.Fatalf("run %s is not in the inbox", run)
	}
	f(a)
	return n.put(n.keys.Run("n1", ref, run), *a)
}

func cancelled(a *task.Assigned) { a.CancelRequested, a.CancelledBy = true, "someone" }

// read returns a record, and its mod revision; nil if it is not there.
func read[T any](n *node, key string) (*T, int64) {
	n.t.Helper()
	res, err := n.etcd.Get(n.t.Context(), key)
	if err != nil {
		n.t.Fatal(err)
	}
	if len(res.Kvs) == 0 {
		return nil, 0
	}
	v := new(T)
	if err := json.Unmarshal(res.Kvs[0].Value, v); err != nil {
		n.t.Fatal(err)
	}
	return v, res.Kvs[0].ModRevision
}

func (n *node) inbox(run string) (*task.Assigned, int64) {
	return read[task.Assigned](n, n.keys.Run("n1", ref, run))
}
func (n *node) waits(run string) *task.Waiting {
	w, _ := read[task.Waiting](n, n.keys.Queued(ref, run))
	return w
}
func (n *node) history(run string) *task.Run {
	r, _ := read[task.Run](n, n.keys.Ended(ref, run))
	return r
}

// ended waits for a run's record.
func (n *node) ended(run string) task.Run {
	n.t.Helper()
	var r *task.Run
	eventually(n.t, "the end of "+run, func() bool { r = n.history(run); return r != nil })
	if a, _ := n.inbox(run); a != nil {
		n.t.Errorf("%s is still in the inbox", run)
	}
	return *r
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

func (n *node) exists(name string) bool {
	_, err := os.Stat(n.file(name))
	return err == nil
}

// began waits for a process that writes its number to a file.
func (n *node) began(name string) int { return pidIn(n.t, n.file(name)) }

func TestExecutor_RunsAndRecords(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.join()
	token := n.assign("r1", "echo out; echo $CARILLON_FENCING_TOKEN >@token; exit 3", func(a *task.Assigned) {
		a.ScheduledTime = task.At(time.Now().Add(-2 * time.Second))
	})
	n.assign("r2", "", noop)
	r := n.ended("r1")
	if r.State != task.Failed || r.Reason != task.ReasonExit || *r.ExitCode != 3 || r.OutputTail != "out\n" || r.OutputBytes != 4 || r.Token != token {
		t.Errorf("got %+v", r)
	}
	if r.Node != "n1" || *r.LatenessMS < 1990 || *r.LatenessMS > 20_000 || r.StartedAt.IsZero() || r.EndedAt.Before(r.StartedAt.Time) {
		t.Errorf("got node %s, lateness %d, %s to %s", r.Node, *r.LatenessMS, r.StartedAt, r.EndedAt)
	}
	if got := n.began("token"); int64(got) != token {
		t.Errorf("the process got token %d, want %d", got, token)
	}
	if got := readOutput(t, n.Spool(), "r1"); got != "out\n" {
		t.Errorf("output %q", got)
	}
	if r := n.ended("r2"); r.State != task.Succeeded || r.StartedAt.IsZero() || r.LatenessMS == nil || r.ExitCode != nil {
		t.Errorf("got %+v", r)
	}
	if got := value(n.metrics.ended.WithLabelValues("failed")); got != 1 {
		t.Errorf("%v failed attempts counted", got)
	}
	if got, want := n.Free(), 4; got != want {
		t.Errorf("%d slots are free, want %d", got, want)
	}
}

func TestExecutor_NothingStartsBeforeTheFirstJoin(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.assign("r1", "echo $$ >@r1")
	time.Sleep(50 * time.Millisecond) // time to do wrong
	if n.exists("r1") || n.Running() != 0 {
		t.Fatal("started without a session")
	}
	_, before := n.inbox("r1")
	n.join()
	n.ended("r1")
	// It was there before the join: an adoption came first.
	res, err := n.etcd.Get(t.Context(), n.keys.Run("n1", ref, "r1"), clientv3.WithRev(n.revision()-1))
	if err != nil || len(res.Kvs) != 1 || res.Kvs[0].ModRevision == before {
		t.Errorf("not adopted: %v, %v", res, err)
	}
}

func (n *node) revision() int64 {
	n.t.Helper()
	res, err := n.etcd.Get(n.t.Context(), n.keys.Root())
	if err != nil {
		n.t.Fatal(err)
	}
	return res.Header.Revision
}

func TestExecutor_SlotsAndOrder(t *testing.T) {
	n := newNode(t, kvtest.Start(t), func(c *Config) { c.Slots = 1 })
	n.join()
	n.assign("first", "echo $$ >@first; while ! test -e @go; do sleep 0.01; done")
	n.began("first")
	for i, age := range []int{1, 3, 2} {
		n.assign(fmt.Sprint("r", i), fmt.Sprintf("echo %d >>@order", age), func(a *task.Assigned) {
			a.ScheduledTime = task.At(a.ScheduledTime.Add(time.Duration(-age) * time.Minute))
		})
	}
	n.assign("noop", "", noop) // needs no slot
	n.ended("noop")
	eventually(t, "three wait", func() bool { return value(n.metrics.waiting) == 3 })
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
	eventually(t, "the slot is free", func() bool { return n.Free() == 1 })
}

func (n *node) touch(name string) {
	n.t.Helper()
	if err := os.WriteFile(n.file(name), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func TestExecutor_Cancel(t *testing.T) {
	n := newNode(t, kvtest.Start(t), func(c *Config) { c.Slots = 1 })
	n.join()
	retried := func(a *task.Assigned) { a.Retry.Attempts = 5 }
	n.assign("runs", "echo $$ >@runs; exec sleep 300", retried)
	pid := n.began("runs")
	n.assign("waits", "echo $$ >@waits", retried)
	eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })

	n.change("waits", cancelled)
	r := n.ended("waits")
	if r.State != task.Cancelled || r.Reason != task.ReasonCancelled || r.CancelledBy != "someone" || !r.StartedAt.IsZero() || n.exists("waits") {
		t.Errorf("got %+v", r)
	}
	n.change("runs", cancelled)
	r = n.ended("runs")
	if r.State != task.Cancelled || r.Signal != "SIGTERM" || r.CancelledBy != "someone" || alive(pid) {
		t.Errorf("got %+v", r)
	}
	if n.waits("runs") != nil || n.waits("waits") != nil {
		t.Error("a cancelled run waits for a retry")
	}
}

func TestExecutor_CancelOfTheMomentOfFailureStopsTheRetry(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.join()
	// The cancel is written where the executor cannot see it in time: by the process's own last act.
	for i := range 10 {
		run := fmt.Sprint("r", i)
		n.assign(run, "echo $$ >@"+run+"; while ! test -e @go"+run+"; do :; done; exit 1", func(a *task.Assigned) { a.Retry.Attempts = 2 })
		n.began(run)
		go n.touch("go" + run)
		n.cancelIfThere(run)
		eventually(t, "an end", func() bool { return n.history(run) != nil || n.waits(run) != nil })
	}
}

// cancelIfThere cancels as the API does: if the record is the one that was read.
func (n *node) cancelIfThere(run string) {
	n.t.Helper()
	a, mod := n.inbox(run)
	if a == nil {
		return
	}
	cancelled(a)
	b, _ := json.Marshal(a)
	key := n.keys.Run("n1", ref, run)
	res, err := n.etcd.Txn(n.t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", mod)).Then(clientv3.OpPut(key, string(b))).Commit()
	if err != nil {
		n.t.Fatal(err)
	}
	if !res.Succeeded {
		return
	}
	r := n.ended(run)
	if w := n.waits(run); w != nil {
		n.t.Errorf("%s was cancelled, and waits for a retry: %+v", run, w)
	}
	if r.CancelledBy != "someone" {
		n.t.Errorf("got %+v", r)
	}
}

func TestExecutor_Retry(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.join()
	token := n.assign("r1", "exit 7", func(a *task.Assigned) {
		a.Retry = task.Retry{Attempts: 2, Backoff: task.Duration(time.Minute), Factor: 1, MaxBackoff: task.Duration(time.Hour), On: []task.State{task.Failed}}
		a.Env = map[string]string{"X": "1"}
	})
	var w *task.Waiting
	eventually(t, "the next attempt waits", func() bool { w = n.waits("r1"); return w != nil })
	if w.Attempt != 2 || w.State != task.Queued || w.Reason != task.ReasonRetry || w.Env["X"] != "1" || w.LatenessMS == nil || w.ExitCode != nil {
		t.Errorf("got %+v", w)
	}
	if wait := w.NotBefore.Sub(time.Now()); wait < 30*time.Second || wait > time.Minute {
		t.Errorf("it waits for %s", wait)
	}
	if len(w.Attempts) != 1 || w.Attempts[0].Token != token || *w.Attempts[0].ExitCode != 7 || w.Attempts[0].Node != "n1" {
		t.Errorf("attempts %+v", w.Attempts)
	}
	if a, _ := n.inbox("r1"); a != nil || n.history("r1") != nil {
		t.Error("it is in the inbox or in the history, too")
	}
}

func TestExecutor_AdoptsAfterARejoin(t *testing.T) {
	n := newNode(t, kvtest.Start(t), func(c *Config) { c.Slots = 1 })
	n.join()
	n.assign("runs", "echo $$ >>@runs; while ! test -e @go; do sleep 0.01; done")
	pid := n.began("runs")
	n.assign("waits", "echo $$ >>@waits")
	eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })
	fence := n.join()
	for _, run := range []string{"runs", "waits"} {
		eventually(t, run+" is adopted", func() bool { _, mod := n.inbox(run); return mod > fence.CreateRevision })
	}
	if a, _ := n.inbox("runs"); a.State != task.Running || a.StartedAt.IsZero() {
		t.Errorf("got %+v", a.Run)
	}
	if !alive(pid) {
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
	n := newNode(t, kvtest.Start(t))
	n.join()
	n.assign("r1", "while ! test -e @go; do sleep 0.01; done")
	eventually(t, "it is marked as running", func() bool { a, _ := n.inbox("r1"); return a.State == task.Running })
	n.change("r1", cancelled) // with the mark's revision as base
	if r := n.ended("r1"); r.State != task.Cancelled {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_KillsWhatIsGone(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.join()
	token := n.assign("r1", "trap '' TERM; echo $$ >@r1; while :; do sleep 0.01; done")
	pid := n.began("r1")
	// Its shard's owner declares it lost.
	a, _ := n.inbox("r1")
	end := LostEnd(*a, token, time.Now())
	b, _ := json.Marshal(end)
	_, err := n.etcd.Txn(t.Context()).Then(clientv3.OpDelete(n.keys.Run("n1", ref, "r1")), clientv3.OpPut(n.keys.Ended(ref, "r1"), string(b))).Commit()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is dead", func() bool { return !alive(pid) })
	eventually(t, "nothing runs", func() bool { return n.Running() == 0 })
	if r := n.history("r1"); r.State != task.Lost {
		t.Errorf("the outcome changed to %s", r.State)
	}
}

func TestExecutor_LateResultIsKeptBeside(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.join()
	token := n.assign("r1", "echo $$ >@r1; trap 'exit 0' TERM; while ! test -e @go; do sleep 0.01; done")
	n.began("r1")
	// As it comes: the watch is slower than the end. The record goes at the moment of the end.
	a, _ := n.inbox("r1")
	w := Next(*a, LostEnd(*a, token, time.Now()), time.Now(), 0)
	if w != nil {
		t.Fatal("a lost attempt is retried without `lost` in on")
	}
	n.put(n.keys.Ended(ref, "r1"), LostEnd(*a, token, time.Now()))
	n.touch("go")
	if _, err := n.etcd.Delete(t.Context(), n.keys.Run("n1", ref, "r1")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is settled", func() bool { return n.Running() == 0 && value(n.metrics.unrecorded) == 0 })
	if r := n.history("r1"); r.State != task.Lost && r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_AnotherInstancesAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		prove  func(*node)
	}{
		"cleared":    {func(*Config) {}, func(n *node) { n.put(n.keys.Cleared("i0"), struct{}{}) }},
		"told":       {func(c *Config) { c.Dead = func(i string) bool { return i == "i0" } }, func(*node) {}},
		"after long": {func(c *Config) { c.LostAfter = time.Second }, func(*node) {}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, kvtest.Start(t), c.change)
			other := func(a *task.Assigned) { a.Instance = "i0" }
			again := func(a *task.Assigned) { a.Retry.Attempts, a.Retry.On = 2, []task.State{task.Lost} }
			token := n.assign("once", "echo $$ >@once", other)
			n.assign("again", "echo $$ >@again", other, again)
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
			eventually(t, "the next attempt waits", func() bool { w = n.waits("again"); return w != nil })
			if len(w.Attempts) != 1 || w.Attempts[0].State != task.Lost || w.Attempt != 2 {
				t.Errorf("got %+v", w)
			}
			if n.exists("once") || n.exists("again") {
				t.Error("started")
			}
		})
	}
}

func TestExecutor_Silence(t *testing.T) {
	n := newNode(t, kvtest.Start(t), func(c *Config) { c.LostAfter = 4 * time.Second }) // the deadline is at 3 s
	last := time.Now()
	n.renewed.Store(&last)
	n.join()
	n.assign("mine", "echo $$ >@mine; while ! test -e @go; do sleep 0.01; done")
	n.assign("others", "echo $$ >@others; exec sleep 300", func(a *task.Assigned) { a.Replaceable = true })
	mine, others := n.began("mine"), n.began("others")
	eventually(t, "the replaceable one is dead", func() bool { return !alive(others) })
	if took := time.Since(last); took < 2900*time.Millisecond || took > 4*time.Second {
		t.Errorf("killed after %s of silence", took)
	}
	if !alive(mine) {
		t.Error("an attempt that nobody may replace was killed")
	}
	if r := n.ended("others"); r.State != task.Lost || r.Reason != task.ReasonNodeLost {
		t.Errorf("got %+v", r)
	}
	n.assign("late", "echo $$ >@late")
	eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })
	time.Sleep(50 * time.Millisecond) // time to do wrong
	if n.exists("late") {
		t.Error("started after the node's deadline")
	}
	n.renewed.Store(nil)
	n.join()
	n.ended("late")
	n.touch("go")
	if r := n.ended("mine"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_EtcdAway(t *testing.T) {
	server := kvtest.StartServer(t)
	n := newNode(t, server.Client())
	n.join()
	n.assign("ends", "echo $$ >@ends; while ! test -e @down; do sleep 0.01; done")
	n.assign("lasts", "echo $$ >@lasts; while ! test -e @go; do sleep 0.01; done")
	n.began("ends")
	pid := n.began("lasts")
	server.Stop()
	n.touch("down")
	eventually(t, "one ends", func() bool { return n.Running() == 1 })
	if got := value(n.metrics.unrecorded); got != 1 {
		t.Errorf("%v ends are unrecorded, want 1", got)
	}
	if n.Free() != 3 {
		t.Errorf("%d slots are free, want 3: the process has ended", n.Free())
	}
	server.Restart()
	if r := n.ended("ends"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
	if !alive(pid) {
		t.Error("killed because etcd was away")
	}
	n.touch("go")
	if r := n.ended("lasts"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
}

func TestExecutor_UnreadableRecordHurtsOnlyItself(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.join()
	key := n.keys.Run("n1", ref, "poison")
	if _, err := n.etcd.Put(t.Context(), key, "{"); err != nil {
		t.Fatal(err)
	}
	n.assign("good", "true")
	n.ended("good")
	eventually(t, "the alarm", func() bool { return value(n.metrics.unreadable) == 1 })
	n.assign("poison", "true") // mended
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

func TestExecutor_Drain(t *testing.T) {
	n := newNode(t, kvtest.Start(t), func(c *Config) { c.Slots = 2 })
	n.join()
	n.assign("ends", "echo $$ >@ends; while ! test -e @go; do sleep 0.01; done")
	n.assign("stays", "echo $$ >@stays; trap '' TERM; while :; do sleep 0.01; done",
		func(a *task.Assigned) { a.KillGrace = task.Duration(50 * time.Millisecond); a.Retry.Attempts = 2 })
	n.began("ends")
	pid := n.began("stays")
	n.assign("waits", "echo $$ >@waits")
	eventually(t, "one waits", func() bool { return value(n.metrics.waiting) == 1 })

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Drain(ctx) }()
	var w *task.Waiting
	eventually(t, "the unstarted one is handed back", func() bool { w = n.waits("waits"); return w != nil })
	if w.Reason != task.ReasonHandBack || w.Attempt != 1 || len(w.Attempts) != 0 {
		t.Errorf("got %+v", w)
	}
	n.assign("new", "echo $$ >@new")
	eventually(t, "a new one is handed back", func() bool { return n.waits("new") != nil })
	n.touch("go")
	if r := n.ended("ends"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
	if !alive(pid) {
		t.Error("killed before the drain's end")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if w = n.waits("stays"); alive(pid) || w == nil || w.Attempts[0].Reason != task.ReasonShutdown || w.Attempts[0].Signal != "SIGKILL" {
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
	server := kvtest.StartServer(t)
	n := newNode(t, server.Client())
	n.join()
	n.assign("r1", "echo $$ >@r1; exec sleep 300")
	n.assign("r2", "setsid sh -c 'echo $$ >@r2; exec sleep 300' & wait")
	pids := []int{n.began("r1"), n.began("r2")}
	n.stop()
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d outlived the executor", pid)
		}
	}
	if r := n.history("r1"); r == nil || r.State != task.Failed || r.Reason != task.ReasonShutdown {
		t.Errorf("got %+v", r)
	}
	if err := n.Drain(t.Context()); err == nil {
		t.Error("a stopped executor drains")
	}
	noChildren(t)
}

func TestExecutor_WithGuardian(t *testing.T) {
	dir := t.TempDir()
	g := NewGuardian(guardianConfig(dir))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	n := newNode(t, kvtest.Start(t), func(c *Config) { c.Guardian, c.Dir = g, dir })
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
	covered := func(id int) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, w := range g.watch.wards {
			return len(g.watch.wards) == 1 && w.Session == id && w.Pid > 0
		}
		return false
	}
	eventually(t, "the guardian knows the session", func() bool { return covered(2) })
	if err := syscall.Kill(pidIn(t, filepath.Join(dir, "guardian.lock")), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another guardian", func() bool { return value(g.restarts) == 1 })
	n.touch("go")
	n.ended("lasts")
	n.stop()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(g.watch.wards) != 0 {
		t.Errorf("the guardian still watches %v", g.watch.wards)
	}
}

func TestExecutor_TokenThatCameAndWentIsNeverStarted(t *testing.T) {
	n := newNode(t, kvtest.Start(t))
	n.join()
	token := n.assign("r1", "echo $$ >>@r1")
	n.ended("r1")
	eventually(t, "it is forgotten", func() bool {
		got := make(chan int, 1)
		n.tell(func() { got <- len(n.all) })
		return <-got == 0
	})
	// The same creation again, as after a restore of etcd from an older snapshot.
	a := assigned("r1", &task.Process{Shell: "echo $$ >>" + n.file("r1")})
	a.Shard = 0
	n.tell(func() {
		ev := store.InboxEvent{Held: store.Held{Assigned: a, Mod: token, Create: token}, Key: n.keys.Run("n1", ref, "r1")}
		n.see(ev, n.floor)
	})
	n.assign("r2", "true")
	n.ended("r2")
	eventually(t, "it is settled", func() bool {
		got := make(chan bool, 1)
		n.tell(func() { got <- n.settledAll() })
		return <-got
	})
	if b, _ := os.ReadFile(n.file("r1")); strings.Count(string(b), "\n") != 1 {
		t.Errorf("started %d times", strings.Count(string(b), "\n"))
	}
}

func TestNew_Refuses(t *testing.T) {
	for _, c := range []Config{{}, {Node: "n", Instance: "i", Dir: "/x", Inbox: &store.Store{}}} {
		if e, err := New(c); err == nil {
			t.Errorf("made %v of %+v", e, c)
		}
	}
}

func TestExecutor_ManyNoops(t *testing.T) {
	n := newNode(t, kvtest.Start(t), func(c *Config) { c.MaxUnfinished = 50; c.Finishers = 8 })
	const all = 500
	for i := range all {
		n.assign("r"+strconv.Itoa(i), "", noop)
	}
	n.join()
	eventually(t, "all have ended", func() bool {
		return value(n.metrics.ended.WithLabelValues("succeeded")) == all && value(n.metrics.unrecorded) == 0
	})
	res, err := n.etcd.Get(t.Context(), n.keys.HistoryOf(ref), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || res.Count != all {
		t.Errorf("%d records, %v", res.Count, err)
	}
}

// instant is an inbox whose writes succeed at once, for what the executor itself
// costs.
type instant struct {
	Inbox
	batches  chan store.InboxBatch
	finished atomic.Int64
}

func (i *instant) FollowInbox(ctx context.Context, _ string, apply func(store.InboxBatch) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-i.batches:
			if err := apply(b); err != nil {
				return err
			}
		}
	}
}

func (i *instant) Finish(context.Context, store.Held, task.Run, *task.Waiting) error {
	i.finished.Add(1)
	return nil
}

func BenchmarkExecutor(b *testing.B) {
	for name, action := range map[string]task.Action{"noop": {Noop: &task.Noop{}}, "true": {Process: &task.Process{Command: []string{"/bin/true"}}}} {
		for _, guarded := range []bool{false, true} {
			if guarded && name == "noop" {
				continue
			}
			b.Run(fmt.Sprintf("%s/guardian=%v", name, guarded), func(b *testing.B) { benchmarkExecutor(b, action, guarded) })
		}
	}
}

func benchmarkExecutor(b *testing.B, action task.Action, guarded bool) {
	in := &instant{batches: make(chan store.InboxBatch)}
	cfg := Config{Node: "n1", Instance: "i1", Slots: 16, Dir: b.TempDir(), Inbox: in}
	ctx, cancel := context.WithCancel(context.Background())
	guardian := make(chan error, 1)
	if guarded {
		cfg.Guardian = NewGuardian(guardianConfig(cfg.Dir))
		go func() { guardian <- cfg.Guardian.Run(ctx) }()
	} else {
		guardian <- nil
	}
	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { done <- e.Run(running) }()
	e.Joined(Session{Fence: kv.CreateFence("n", 1), LastRenewal: time.Now})
	in.batches <- store.InboxBatch{Reset: true, Revision: 1}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; {
		rev := int64(2 + 2*i)
		var put, gone store.InboxBatch
		for range min(100, b.N-i) {
			a := assigned("r"+strconv.Itoa(i), nil)
			a.Action, a.ScheduledTime = action, task.At(time.Now())
			put.Events = append(put.Events, store.InboxEvent{Held: store.Held{Assigned: a, Mod: rev, Create: rev}, Key: a.ID})
			gone.Events = append(gone.Events, store.InboxEvent{Deleted: true, Held: store.Held{Mod: rev + 1}, Key: a.ID})
			i++
		}
		put.Revision, gone.Revision = rev, rev+1
		in.batches <- put
		for in.finished.Load() < int64(i) { // as a real inbox: gone when finished
			time.Sleep(100 * time.Microsecond)
		}
		in.batches <- gone
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	stop()
	cancel()
	if err := errors.Join(<-done, <-guardian); err != nil {
		b.Error(err)
	}
}

// value is what a counter or a gauge says.
func value(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		panic(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}
