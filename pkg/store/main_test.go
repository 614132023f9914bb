package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// shared is one real etcd for all tests, and batch combines their requests, as in a daemon.
// Each test has a separate prefix.
var (
	shared *kv.Client
	batch  *kv.Batcher
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "50")
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		panic(err)
	}

	defer os.RemoveAll(dir)

	server, err := kvtest.Launch(dir, 0)
	if err != nil {
		panic(err)
	}

	if shared, err = kv.Dial(ctx, kv.Config{Endpoints: []string{server.Endpoint()}}); err != nil {
		panic(err)
	}

	batch = kv.NewBatcher(shared, kv.BatcherConfig{})
	batching, stop := context.WithCancel(context.Background())
	batched := make(chan error, 1)
	go func() { batched <- batch.Run(batching) }()
	code := m.Run()
	stop()

	if err := errors.Join(<-batched, shared.Close(), server.Close(), leaktest.Check()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}

	return code
}

const (
	node     = "n1"
	instance = "i1"
)

var (
	ref   = record.Ref{Namespace: "default", Name: "a", Shard: 3}
	noon  = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	retry = task.Retry{Attempts: 3, Factor: 2, On: []task.State{task.Failed, task.Lost}}
)

// world is a cluster below a separate prefix, with one node that owns shard 3.
type world struct {
	*testing.T
	*store.Store
	keys   record.Keys
	etcd   *kv.Client
	writes *unreliable
	fences store.Fences
}

var worlds atomic.Int32

// ownPrefix returns a prefix that no other test uses, not even a repetition of the same one.
func ownPrefix(t *testing.T) string {
	return fmt.Sprintf("/%s-%d", strings.NewReplacer("/", "-", " ", "_").Replace(t.Name()), worlds.Add(1))
}

func newWorld(t *testing.T) *world {
	t.Helper()
	keys := testKeys(t, ownPrefix(t))
	w := &world{T: t, keys: keys, etcd: shared, writes: &unreliable{}}
	w.Store = w.writes.store(keys)
	if _, made, err := w.Bootstrap(t.Context(), 8, noon, store.OpenAccess()); err != nil || !made {
		t.Fatalf("bootstrap: %v, %v", made, err)
	}

	w.fences.Node = w.register(node)
	w.fences.Owner = w.own(ref.Shard, node)

	return w
}

// other returns another store of the same cluster, whose writes all arrive.
func (w *world) other() *store.Store { return store.New(w.etcd, kv.Direct(w.etcd), w.keys) }

func (w *world) register(name string) kv.Fence {
	w.Helper()
	lease, err := w.etcd.Grant(w.Context(), 600)
	if err != nil {
		w.Fatal(err)
	}

	f, _, err := w.other().Register(w.Context(), task.Node{Name: name, Instance: instance, State: task.NodeReady}, lease.ID, w.clusterRecord())
	if err != nil {
		w.Fatal(err)
	}

	return f
}

// clusterRecord reads the record of the cluster, as before a join.
func (w *world) clusterRecord() store.ClusterRecord {
	w.Helper()
	p, err := w.other().Present(w.Context())
	if err != nil {
		w.Fatal(err)
	}

	return p.Record()
}

// own replaces an owner key, like a leader.
func (w *world) own(shard int, name string) kv.Fence {
	w.Helper()
	return kv.ModFence(w.keys.Owner(shard), w.put(w.keys.Owner(shard), `{"node":"`+name+`"}`))
}

func (w *world) put(key, value string) int64 {
	w.Helper()
	res, err := w.etcd.Put(w.Context(), key, value)
	if err != nil {
		w.Fatal(err)
	}

	return res.Header.Revision
}

func (w *world) del(key string) {
	w.Helper()
	if res, err := w.etcd.Delete(w.Context(), key); err != nil || res.Deleted != 1 {
		w.Fatalf("delete %s: %v, %v", key, res, err)
	}
}

// at returns the mod and create revisions of a key and its value; zero values if the key is absent.
func (w *world) at(key string) (mod, create int64, value string) {
	w.Helper()
	res, err := w.etcd.Get(w.Context(), key)
	if err != nil {
		w.Fatal(err)
	}

	if len(res.Kvs) == 0 {
		return 0, 0, ""
	}

	return res.Kvs[0].ModRevision, res.Kvs[0].CreateRevision, string(res.Kvs[0].Value)
}

func (w *world) exists(key string) bool {
	mod, _, _ := w.at(key)
	return mod > 0
}

// below lists the keys with a prefix, without the prefix.
func (w *world) below(prefix string) []string {
	w.Helper()
	res, err := w.etcd.Get(w.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		w.Fatal(err)
	}

	keys := []string{}
	for _, e := range res.Kvs {
		keys = append(keys, strings.TrimPrefix(string(e.Key), prefix))
	}

	return keys
}

// changes counts in how many revisions since rev a key was written and deleted.
func (w *world) changes(key string, rev int64) (puts, deletes int) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()

	now, err := w.etcd.Get(ctx, key)
	if err != nil {
		w.Fatal(err)
	}

	last := now.Header.Revision
	end := w.put(w.keys.Root()+"end", "")

	for r := range w.etcd.Watch(ctx, w.keys.Root(), clientv3.WithPrefix(), clientv3.WithRev(rev+1)) {
		for _, e := range r.Events {
			switch {
			case e.Kv.ModRevision == end:
				return puts, deletes
			case string(e.Kv.Key) == key && e.Kv.ModRevision <= last && e.Type == clientv3.EventTypeDelete:
				deletes++
			case string(e.Kv.Key) == key && e.Kv.ModRevision <= last:
				puts++
			}
		}
	}

	w.Fatal("the watch ended")

	return 0, 0
}

// mark returns the watermark of shard 3 and its mod revision.
func (w *world) mark() (record.Watermark, int64) {
	w.Helper()
	mod, _, value := w.at(w.keys.Watermark(ref.Shard))

	m, err := record.DecodeWatermark([]byte(value))
	if err != nil {
		w.Fatal(err)
	}

	return m, mod
}

// begin returns a commit that moves the watermark by a second.
func (w *world) begin() *store.Commit {
	w.Helper()
	m, mod := w.mark()
	m.Time = task.At(m.Time.Add(time.Second))
	return w.NewCommit(ref.Shard, w.fences, mod, m)
}

func (w *world) commit(c *store.Commit) int64 {
	w.Helper()
	rev, err := w.Commit(w.Context(), c)
	if err != nil {
		w.Fatalf("commit: %v", err)
	}

	return rev
}

// session returns the create revision of a node's key.
func (w *world) session(name string) int64 {
	_, create, _ := w.at(w.keys.Node(name))
	return create
}

func spec(r record.Ref) task.Task {
	t := task.Task{Spec: task.Defaults(), UID: "k3f9" + strings.Repeat("a", 12), Generation: 1}
	t.Name, t.Namespace, t.Schedule, t.Action.Noop = r.Name, r.Namespace, task.Schedules{"@daily"}, &task.Noop{}
	return t
}

func entry(t task.Task) task.Entry { return task.NewEntry(t, task.At(noon), task.At(noon)) }

// create creates a task.
func (w *world) create(r record.Ref) store.Stored {
	w.Helper()
	t := spec(r)
	if _, err := w.CreateTask(w.Context(), r, t, entry(t)); err != nil {
		w.Fatal(err)
	}

	return w.stored(r)
}

func (w *world) stored(r record.Ref) store.Stored {
	w.Helper()
	st, err := w.Task(w.Context(), r)
	if err != nil {
		w.Fatal(err)
	}

	return st
}

// tickRun returns the run of the n-th tick of a task.
func tickRun(r record.Ref, n int) task.Run {
	tick := noon.Add(time.Duration(n) * time.Minute)
	return task.Run{
		ID: task.RunID(tick, "k3f9"), Namespace: r.Namespace, Task: r.Name, Shard: r.Shard, UID: "k3f9" + strings.Repeat("a", 12),
		ScheduledTime: task.At(tick), State: task.Queued, Trigger: task.TriggerSchedule, Attempt: 1, CreatedAt: task.At(tick),
	}
}

func waiting(r record.Ref, n int) task.Waiting {
	w := task.Waiting{Run: tickRun(r, n), Env: map[string]string{"A": "b"}}
	w.Reason = task.ReasonManual
	return w
}

func assigned(r record.Ref, n int, name string) task.Assigned {
	a := task.Assigned{Run: tickRun(r, n), Instance: instance, Generation: 1, Action: task.Action{Noop: &task.Noop{}}, Retry: retry}
	a.State, a.Node = task.Dispatched, name
	return a
}

func ended(r record.Ref, n int, s task.State) task.Run {
	e := tickRun(r, n)
	e.State = s
	return e
}

// dispatch commits an attempt into a node's inbox and reads it.
func (w *world) dispatch(r record.Ref, n int, name string) record.Held {
	w.Helper()
	c := w.begin()
	dispatch(c, assigned(r, n, name), w.session(name))
	w.commit(c)

	return w.held(record.RunKey{Node: name, Ref: r, Run: tickRun(r, n).ID})
}

func (w *world) held(k record.RunKey) record.Held {
	w.Helper()
	h, _, err := w.Attempt(w.Context(), k)
	if err != nil {
		w.Fatal(err)
	}

	return h
}

// endOf returns the end of an attempt in the given state.
func endOf(h record.Held, s task.State) task.Run {
	end := h.Run
	end.State, end.EndedAt = s, task.At(noon.Add(time.Hour))
	return end
}

// nextOf returns the queue record of the attempt that follows an attempt with this end.
func nextOf(h record.Held, end task.Run) *task.Waiting {
	w := &task.Waiting{Run: h.Run, Env: h.Env}
	w.State, w.Reason, w.Attempt, w.Node, w.Token = task.Queued, task.ReasonRetry, h.Attempt+1, "", 0
	w.Attempts = append(w.Attempts, end.AsAttempt())
	return w
}

// nextOfUnsent is nextOf for an attempt that was not sent: it is counted, not listed.
func nextOfUnsent(h record.Held, end task.Run) *task.Waiting {
	w := nextOf(h, end)
	w.Reason, w.Attempts, w.NotBeforeBy = task.ReasonTarget, h.Attempts, task.NotBeforeByTarget
	w.Unsent = &task.Unsent{Count: h.UnsentCount() + 1, First: end.EndedAt, Last: end.EndedAt, Node: end.Node, Message: "refused"}
	return w
}

func is(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error %v, want %v", err, target)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errLost = errors.New("the connection broke")

// fate is what happens to one write.
type fate int

const (
	arrives fate = iota
	answerLost
	requestLost
	delayed  // no answer; the request is applied when release is called
	repeated // arrives, and again when release is called
	refused  // by etcd, before it was applied
)

// unreliable is a KV with a list of fates for the next writes. All later writes arrive.
type unreliable struct {
	mu    sync.Mutex
	fates []fate
	held  []func(context.Context) (kv.Result, error)
	sent  int
	// before, if set, is called before each write arrives.
	before func(n int)
}

// store returns a Store like that of a daemon, but with unreliable writes.
func (u *unreliable) store(keys record.Keys) *store.Store {
	return store.New(shared, writeLink{u, kv.Direct(shared)}, keys).Batching(writeLink{u, batch})
}

// writeLink is one of the two ways in which a Store sends writes.
type writeLink struct {
	u  *unreliable
	to kv.Committer
}

func (l writeLink) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return l.u.commit(ctx, func(ctx context.Context) (kv.Result, error) { return l.to.Commit(ctx, t) })
}

func (u *unreliable) next(fates ...fate) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fates, u.sent = fates, 0
}

func (u *unreliable) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sent
}

func (u *unreliable) commit(ctx context.Context, arrive func(context.Context) (kv.Result, error)) (kv.Result, error) {
	u.mu.Lock()
	what := arrives
	if len(u.fates) > 0 {
		what, u.fates = u.fates[0], u.fates[1:]
	}

	u.sent++
	n, before := u.sent, u.before

	if what == delayed || what == repeated {
		u.held = append(u.held, arrive)
	}
	u.mu.Unlock()

	if before != nil {
		before(n)
	}

	switch what {
	case answerLost:
		if _, err := arrive(ctx); err != nil {
			panic(err)
		}
		return kv.Result{}, errLost
	case requestLost, delayed:
		return kv.Result{}, errLost
	case refused:
		return kv.Result{}, errTooMany
	}

	return arrive(ctx)
}

// release applies the delayed writes and returns how many of them succeeded.
func (u *unreliable) release(ctx context.Context) (n int) {
	u.mu.Lock()
	held := u.held
	u.held = nil
	u.mu.Unlock()

	for _, arrive := range held {
		res, err := arrive(ctx)
		if err != nil {
			panic(err)
		}

		if res.Succeeded {
			n++
		}
	}

	return n
}

var clientPrefix = clientv3.WithPrefix()

func leaseID(id int64) clientv3.LeaseID { return clientv3.LeaseID(id) }

// dispatch adds the attempt of a run that has waited to a commit.
func dispatch(c *store.Commit, a task.Assigned, session int64) { c.Dispatch(&a, action(a), session) }

func claim(c *store.Commit, a task.Assigned, session int64) { c.Claim(&a, action(a), session) }

func action(a task.Assigned) string {
	b, err := json.Marshal(a.Action)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// putEntry adds the replacement of an entry to a commit.
func putEntry(c *store.Commit, ref record.Ref, e task.Entry, mod int64) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}

	var parts record.EntryParts
	if err := parts.Split(b); err != nil {
		panic(err)
	}

	c.PutEntry(ref.String(), parts, mod)
}

func testKeys(t interface{ Fatal(...any) }, prefix string) record.Keys {
	k, err := record.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}

	return k
}
