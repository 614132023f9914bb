package executor

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// newEtcd starts an in-memory etcd. Its revisions, which become tokens, are higher than those of all earlier ones.
func newEtcd(t testing.TB) *kv.Client {
	t.Helper()

	memory := kvmem.New(kvmem.Config{Revision: executortest.NewToken(), MinTTL: 1})
	t.Cleanup(memory.Close)

	return kvtest.ClientOf(t, memory)
}

// node is an executor on an in-memory etcd, with methods to control it. join writes a new node key and reports the
// session to the executor. assign puts an attempt into the inbox and returns its token; in its shell line, @name
// stands for a file in the node's directory. change rewrites an inbox record, as the API does for a cancel. inbox
// returns a record and its mod revision, or nil if it does not exist. ended waits for the record of a run's end.
// began waits for a process that writes its number to a file.
type node struct {
	*Executor
	t     testing.TB
	etcd  *kv.Client
	store *store.Store
	keys  record.Keys
	dir   string // for files of the attempts
	stop  func()

	renewed atomic.Pointer[time.Time] // the last renewal of all sessions; nil: now
}

func newNode(t testing.TB, etcd *kv.Client, change ...func(*Config)) *node {
	t.Helper()
	keys, err := record.NewKeys("/carillon")
	if err != nil {
		t.Fatal(err)
	}

	n := &node{t: t, etcd: etcd, store: store.New(etcd, kv.Direct(etcd), keys), keys: keys, dir: t.TempDir()}
	cfg := Config{Node: "n1", Instance: "i1", Slots: 4, Dir: t.TempDir(), Inbox: n.store, Registerer: prometheus.NewRegistry()}
	if _, bench := t.(*testing.B); !bench {
		cfg.Logger = zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))
	}

	cfg.freeze, cfg.emptyLimit = freezePatiently, time.Minute // the machine may be busy

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
	// The entry of the task. Without it, a late result is not kept.
	n.put(keys.Entry(ref), task.Entry{UID: "u"})

	return n
}

var ref = record.Ref{Namespace: "default", Name: "job"}

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

func (n *node) join() kv.Fence {
	n.t.Helper()
	key := n.keys.Node("n1")
	f := kv.CreateFence(key, n.recreate(key))
	n.Joined(Session{Fence: f, LastRenewal: func() time.Time {
		if at := n.renewed.Load(); at != nil {
			return *at
		}
		return time.Now()
	}})

	return f
}

func (n *node) assign(run, line string, change ...func(*task.Assigned)) int64 {
	n.t.Helper()
	a := executortest.Assigned(run, &task.Process{Shell: strings.ReplaceAll(line, "@", n.dir+"/")})

	for _, f := range change {
		f(&a)
	}

	return n.put(n.keys.Run("n1", ref, run), a)
}

// runnerFunc is an AttemptRunner.
type runnerFunc func(process.Attempt, *process.Orders) process.Result

func (f runnerFunc) RunAttempt(a process.Attempt, o *process.Orders) process.Result { return f(a, o) }

func noop(a *task.Assigned) { a.Action = task.Action{Noop: &task.Noop{}} }

// lostAfter returns a change that sets lost_after in an attempt's record.
func lostAfter(d time.Duration) func(*task.Assigned) {
	return func(a *task.Assigned) { a.LostAfter = task.Duration(d) }
}

// change changes a record and keeps what the executor writes at the same time.
func (n *node) change(run string, f func(*task.Assigned)) {
	n.t.Helper()

	for {
		a, mod := n.inbox(run)
		if a == nil {
			n.t.Fatalf("run %s is not in the inbox", run)
		}

		f(a)

		if n.putIf(n.keys.Run("n1", ref, run), mod, *a) {
			return
		}
	}
}

// sees waits until the loop's state of a run satisfies is.
func (n *node) sees(run, what string, is func(*attempt) bool) {
	n.t.Helper()
	executortest.Eventually(n.t, run+" "+what, func() bool {
		got := make(chan bool, 1)
		n.callInLoop(func() {
			a := n.byKey[n.keys.Run("n1", ref, run)]
			got <- a != nil && is(a)
		})

		return <-got
	})
}

// freezePatiently freezes a tree and retries, because the machine may be busy.
func freezePatiently(tr *proctree.Tree) error {
	err := tr.Freeze()
	for end := time.Now().Add(executortest.Patience); err != nil && time.Now().Before(end); {
		err = tr.Freeze()
	}
	return err
}

func cancelled(a *task.Assigned) { a.CancelRequested, a.CancelledBy = true, task.NewActor("someone") }

// get reads a key, and retries if etcd takes too long to answer.
func (n *node) get(key string) *clientv3.GetResponse {
	n.t.Helper()

	for end := time.Now().Add(executortest.Patience); ; {
		res, err := n.etcd.Get(n.t.Context(), key)
		if err == nil {
			return res
		}

		if n.t.Context().Err() != nil || time.Now().After(end) {
			n.t.Fatal(err)
		}
	}
}

func read[T any](n *node, key string) (*T, int64) {
	n.t.Helper()
	res := n.get(key)
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
	a, mod := read[task.Assigned](n, n.keys.Run("n1", ref, run))
	if a != nil && a.KillGrace == 0 { // records omit the default
		a.KillGrace = task.Defaults().KillGrace
	}
	return a, mod
}
func (n *node) waits(run string) *task.Waiting {
	w, _ := read[task.Waiting](n, n.keys.Queued(ref, run))
	return w
}
func (n *node) history(run string) *task.Run {
	r, _ := read[task.Run](n, n.keys.Ended(ref, run))
	return r
}

func (n *node) ended(run string) task.Run {
	n.t.Helper()
	var r *task.Run
	executortest.Eventually(n.t, "the end of "+run, func() bool { r = n.history(run); return r != nil })

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

func (n *node) began(name string) int { return executortest.PIDIn(n.t, n.file(name)) }

func (n *node) revision() int64 {
	n.t.Helper()
	return n.get(n.keys.Root()).Header.Revision
}

func (n *node) touch(name string) {
	n.t.Helper()
	if err := os.WriteFile(n.file(name), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// putIf overwrites a value if its mod revision is unchanged, and reports whether it did.
func (n *node) putIf(key string, mod int64, v any) bool {
	n.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		n.t.Fatal(err)
	}

	res, err := n.etcd.Txn(n.t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", mod)).Then(clientv3.OpPut(key, string(b))).Commit()
	if err != nil {
		n.t.Fatal(err)
	}

	return res.Succeeded
}

// cancelIfThere cancels as the API does: only if the record is unchanged since it was read.
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

	if !r.CancelledBy.Is("someone") {
		n.t.Errorf("got %+v", r)
	}
}

// value returns the value of a counter or a gauge.
func value(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		panic(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}
