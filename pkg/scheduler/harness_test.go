package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "300")
	os.Exit(m.Run())
}

// A world is a cluster with one shard, shard 0. The test acts as the leader, the API, the nodes' executors
// and the clock.
type world struct {
	testing.TB
	ctx    context.Context
	dial   func() *kv.Client // returns another client of the world's etcd
	store  *store.Store      // used by everybody except the workers
	client *kv.Client        // of everybody except the workers
	etcd   *kv.Client        // of the workers
	term   kv.Fence

	mu       sync.Mutex
	now      time.Time
	sessions map[string]kv.Fence
	joins    int
	gap      *task.Gap // that of the sessions; nil: nothing was lost
	recorder *recorder.Recorder
}

// start is the time at which every story begins.
var start = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// sec returns the time s seconds after start.
func sec(s float64) time.Time {
	return start.Add(time.Duration(s * float64(time.Second)).Round(time.Microsecond))
}

// inVirtualTime runs a test in virtual time, which advances when all goroutines wait. It begins at start.
func inVirtualTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(start))
		test(t)
	})
}

// newWorld creates a cluster with nodes, on an etcd in memory. It may run in a synctest bubble.
func newWorld(t testing.TB, nodes ...string) *world {
	t.Helper()

	memory := kvmem.New(kvmem.Config{})
	t.Cleanup(memory.Close)

	return newWorldOn(t, "/t", func() *kv.Client { return kvtest.ClientOf(t, memory) }, nodes...)
}

// realWorlds starts a real etcd and returns a function that creates clusters on it.
func realWorlds(t testing.TB) func(t testing.TB, nodes ...string) *world {
	t.Helper()

	server := kvtest.StartServer(t)
	var prefixes atomic.Int64

	return func(t testing.TB, nodes ...string) *world {
		t.Helper()

		return newWorldOn(t, fmt.Sprintf("/t%d", prefixes.Add(1)), func() *kv.Client {
			c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{server.Endpoint()}})
			if err != nil {
				t.Fatal(err)
			}

			t.Cleanup(func() { _ = c.Close() })

			return c
		}, nodes...)
	}
}

func newWorldOn(t testing.TB, prefix string, dial func() *kv.Client, nodes ...string) *world {
	t.Helper()

	keys, err := record.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}

	// The workers and each recorder have their own clients. On a shared client, etcd's progress
	// notification of one watch may overtake the events of another watch that has not caught up.
	w := &world{
		TB: t, ctx: t.Context(), dial: dial, client: dial(), etcd: dial(), now: start, sessions: map[string]kv.Fence{},
	}
	w.store = store.New(w.client, kv.Direct(w.client), keys)

	if _, _, err := w.store.Bootstrap(w.ctx, 1, start, store.OpenAccess()); err != nil {
		t.Fatal(err)
	}

	leader := keys.Leader() + "1"
	w.term = kv.CreateFence(leader, w.put(leader, "test"))

	for _, n := range nodes {
		w.join(n)
	}

	return w
}

// judged records everything from now on, and has the checker judge it when the test ends.
func (w *world) judged() *world {
	w.Helper()
	w.record()
	w.Cleanup(func() { w.judge(check.Options{}) })

	return w
}

// record records everything from now on.
func (w *world) record() {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.Cleanup(cancel)
	r, err := recorder.Start(ctx, w.dial(), w.store.Keys())
	w.ok(err)
	w.recorder = r
}

func (w *world) judge(opts check.Options) check.Report {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if err := w.recorder.CatchUp(ctx); err != nil {
		if !errors.Is(err, recorder.ErrGap) { // on an overloaded machine, a watch may lose its place
			w.Error(err)
		}
		w.Logf("the history is not judged: %v", err)
		return check.Report{}
	}

	r := check.Check(w.store.Keys(), w.recorder.Events(), opts)
	if !r.OK() {
		w.Errorf("the history breaks promises:\n%s", r)
	}

	return r
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// at sets the clock, in seconds after the start.
func (w *world) at(s float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = sec(s)
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) put(key, value string) int64 {
	w.Helper()
	res, err := w.client.Put(w.ctx, key, value)
	w.ok(err)

	return res.Header.Revision
}

func (w *world) delete(key string) {
	w.Helper()
	_, err := w.client.Delete(w.ctx, key)
	w.ok(err)
}

// join makes a node present as a new instance. Labels have the form k=v.
func (w *world) join(node string, labels ...string) {
	w.Helper()
	w.joinAs(task.Node{Name: node, Slots: 1000, State: task.NodeReady, Roles: both}, labels...)
}

var both = []string{task.RoleScheduler, task.RoleExecutor}

func (w *world) joinAs(n task.Node, labels ...string) {
	w.Helper()

	if n.Instance == "" {
		w.joins++
		n.Instance = fmt.Sprintf("%s-%d", n.Name, w.joins)
	}

	n.Labels = map[string]string{"node": n.Name}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		n.Labels[k] = v
	}

	session, _, err := w.store.Register(w.ctx, n, 0, w.clusterRecord())
	w.ok(err)
	w.sessions[n.Name] = session
}

// clusterRecord reads the record of the cluster, as before a join.
func (w *world) clusterRecord() store.ClusterRecord {
	w.Helper()
	p, err := w.store.Present(w.ctx)
	w.ok(err)

	return p.Record()
}

// leave ends a node's session, as when its lease expires.
func (w *world) leave(node string) {
	w.Helper()
	w.delete(w.store.Keys().Node(node))
	delete(w.sessions, node)
}

// assign makes a node the owner of the shard, and returns its fences.
func (w *world) assign(node string) store.Fences {
	w.Helper()
	owners, err := w.store.Owners(w.ctx)
	w.ok(err)

	move := store.Move{To: node}
	if len(owners) > 0 {
		move.From = owners[0]
	}

	w.ok(w.store.Assign(w.ctx, w.term, []store.Move{move}, task.At(w.clock())))
	owners, err = w.store.Owners(w.ctx)
	w.ok(err)

	return store.Fences{Owner: w.store.OwnerFence(owners[0]), Node: w.sessions[node], Gap: w.gap}
}

// testWorker is a worker that the test drives: no goroutine decides by itself.
type testWorker struct {
	*worker
	world *world
	gate  *commitGate
	leave func()
	ctx   context.Context
	die   context.CancelFunc
}

// startOwner makes a node the owner. Its worker has not opened the shard yet.
func (w *world) startOwner(node string) *testWorker {
	w.Helper()
	return w.worker(node, w.assign(node))
}

// worker returns a worker of a node with the given fences.
func (w *world) worker(node string, f store.Fences) *testWorker {
	w.Helper()
	e, d := w.engine(node)
	h := &testWorker{worker: newWorker(e, 0, f), world: w, gate: d, leave: func() {}}
	h.ctx, h.die = context.WithCancel(w.ctx)
	d.die = h.die
	w.Cleanup(func() { h.die(); h.leave() })
	w.Cleanup(h.endsMatch)
	h.fleet()

	return h
}

func (w *world) engine(node string) (*Engine, *commitGate) {
	d := &commitGate{Committer: kv.Direct(w.etcd)}
	log := zap.NewNop()
	if testing.Verbose() {
		log = zaptest.NewLogger(w, zaptest.Level(zap.WarnLevel))
	}

	return New(Config{
		Node: node, Store: store.New(w.etcd, d, w.store.Keys()), Fleet: placement.NewFleet(node, func() int { return 1000 }),
		NextAttempt: executor.Next, Now: w.clock, Namespaces: openNamespaces, Logger: log,
	}), d
}

// openNamespaces is Config.Namespaces with open records.
func openNamespaces() Namespaces { return OpenNamespaces{} }

// work makes a node the owner. Its worker has loaded the shard.
func (w *world) work(node string) *testWorker {
	w.Helper()
	h := w.startOwner(node)
	h.open()

	return h
}

// open opens and loads the shard, and scans for active runs.
func (tw *testWorker) open() {
	tw.world.Helper()
	tw.world.ok(tw.load())
	tw.scan()
}

// load opens and loads the shard.
func (tw *testWorker) load() error {
	tw.leave()
	tw.discardState()

	mark, rev, err := tw.e.cfg.Store.Open(tw.world.ctx, 0, tw.state.fences)
	if err != nil {
		return err
	}

	tw.state.records.Watermark, tw.state.records.WatermarkRev = mark, rev
	tw.noteOpening(mark)
	f := background.StartFeed(tw.world.ctx, func(ctx context.Context, apply func(store.ShardBatch) error) {
		_ = tw.e.cfg.Store.FollowShard(ctx, 0, rev, apply)
	})

	tw.batches = f.Batches
	tw.leave = func() { f.Stop(); tw.leave = func() {} }

	return tw.worker.loadShard(tw.world.ctx, tw.batches)
}

// scan applies a scan for active runs.
func (tw *testWorker) scan() {
	tw.world.Helper()
	keys, _, err := tw.e.cfg.Store.ScanActive(tw.world.ctx)
	tw.world.ok(err)
	tw.world.ok(tw.applyScan(tw.world.ctx, keys))
}

// see applies everything that has happened in the shard so far.
func (tw *testWorker) see() {
	tw.world.Helper()
	// The watch delivers this key in order. It has no meaning to anybody else.
	rev := tw.world.put(tw.world.store.Keys().Shard(0)+"sync", "")
	for tw.state.applied < rev {
		select {
		case b := <-tw.batches:
			tw.world.ok(tw.applyBatch(b))
		case <-time.After(time.Minute):
			tw.world.Fatal("the watch does not tell")
		}
	}
}

// fleet updates the nodes that the worker knows.
func (tw *testWorker) fleet() {
	tw.world.Helper()
	nodes, err := tw.world.store.Nodes(tw.world.ctx)
	tw.world.ok(err)
	tw.e.cfg.Fleet.Set(nodes)
	tw.state.examineAll()
}

// decide applies everything that has happened, and runs a round at the given time.
func (tw *testWorker) decide(at float64) {
	tw.world.Helper()
	tw.see()
	tw.blind(at)
}

// blind runs a round without the events since the last call of see.
func (tw *testWorker) blind(at float64) {
	tw.world.Helper()
	tw.world.ok(tw.try(at))
}

// try is like blind, and returns the error of the round.
func (tw *testWorker) try(at float64) error {
	tw.world.Helper()
	tw.world.at(at)
	tw.planIsHarmless(at)
	err := tw.runRound(tw.ctx)
	tw.keepsCount()
	tw.rowsMatch()

	return err
}

// dies crashes the worker at a commit, which is lost.
func (tw *testWorker) dies(func() (kv.Result, error)) (kv.Result, error) {
	tw.die()
	return kv.Result{}, errCut
}

// diesAfter crashes the worker immediately after a commit was applied.
func (tw *testWorker) diesAfter(send func() (kv.Result, error)) (kv.Result, error) {
	defer tw.die()
	_, _ = send()
	return kv.Result{}, errCut
}

// A commitGate is between a worker and etcd. The tricks that a test passes to it apply to the worker's next
// commits, one after another.
type commitGate struct {
	kv.Committer
	mu      sync.Mutex
	tricks  []trick
	alter   func(kv.Txn) kv.Txn // changes each commit, unless it is nil
	commits int
	limit   int // commits after which the worker dies; 0: no limit
	die     func()
	held    []func() // requests in flight, to be delivered later
}

// A trick handles one commit. pass sends the commit on.
type trick func(pass func() (kv.Result, error)) (kv.Result, error)

func (c *commitGate) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	c.mu.Lock()
	c.commits++
	if c.limit > 0 && c.commits > c.limit {
		c.mu.Unlock()
		c.die()
		return kv.Result{}, errTooMany
	}

	var now trick
	if len(c.tricks) > 0 {
		now, c.tricks = c.tricks[0], c.tricks[1:]
	}
	c.mu.Unlock()

	if c.alter != nil {
		t = c.alter(t)
	}

	pass := func() (kv.Result, error) { return c.Committer.Commit(ctx, t) }

	if now == nil {
		return pass()
	}

	return now(pass)
}

func (c *commitGate) play(tricks ...trick) { c.tricks = append(c.tricks, tricks...) }

var (
	errCut     = errors.New("connection lost")
	errTooMany = errors.New("too many commits")

	clientPrefix = clientv3.WithPrefix()
)

// pass sends a commit on unchanged.
func pass(send func() (kv.Result, error)) (kv.Result, error) { return send() }

// appliedButLost applies the commit and loses the answer.
func appliedButLost(send func() (kv.Result, error)) (kv.Result, error) {
	if _, err := send(); err != nil {
		return kv.Result{}, err
	}
	return kv.Result{}, errCut
}

// lost loses the commit.
func lost(func() (kv.Result, error)) (kv.Result, error) { return kv.Result{}, errCut }

// refused refuses the commit with a definite answer.
func refused(func() (kv.Result, error)) (kv.Result, error) {
	return kv.Result{}, rpctypes.ErrTooManyRequests
}

// before returns a trick that calls f after the commit was decided and before it is sent.
func before(f func()) trick {
	return func(send func() (kv.Result, error)) (kv.Result, error) {
		f()
		return send()
	}
}

// delayed keeps a commit in flight and reports a lost connection.
func (c *commitGate) delayed(send func() (kv.Result, error)) (kv.Result, error) {
	c.held = append(c.held, func() { _, _ = send() })
	return kv.Result{}, errCut
}

// deliver delivers the commits that are in flight.
func (c *commitGate) deliver() {
	for _, f := range c.held {
		f()
	}
	c.held = nil
}

func ref(name string) record.Ref { return record.Ref{Namespace: "default", Name: name} }

// An option changes a task before it is written.
type option func(*task.Task)

func paused(t *task.Task) { t.Paused = true }
func requests(t *task.Task) {
	t.Action = task.Action{HTTP: &task.HTTP{URL: "http://svc.test/x", Method: "POST"}}
}
func allow(t *task.Task) { t.Overlap = task.OverlapAllow }
func every(d string) option {
	return func(t *task.Task) { t.Schedule = task.Schedules{"@every " + d} }
}
func cronned(expr string) option { return func(t *task.Task) { t.Schedule = task.Schedules{expr} } }
func retries(n int, wait time.Duration, on ...task.State) option {
	return func(t *task.Task) {
		t.Retry = task.Retry{Attempts: n, Backoff: task.Duration(wait), MaxBackoff: task.Duration(time.Hour), Factor: 1, On: on}
	}
}
func missed(policy string, limit int) option {
	return func(t *task.Task) { t.Missed.Policy, t.Missed.Limit = policy, limit }
}
func on(selector string) option { return func(t *task.Task) { t.Target.Selector = selector } }

// newTask returns a task that ticks every second unless options change that.
func (w *world) newTask(name string, now time.Time, opts ...option) (task.Task, task.Entry) {
	t := task.Task{Spec: task.Defaults(), UID: task.NewUID(), Generation: 1, CreatedAt: task.At(now), UpdatedAt: task.At(now)}
	t.Name, t.Schedule, t.Action = name, task.Schedules{"* * * * * *"}, task.Action{Noop: &task.Noop{}}

	for _, o := range opts {
		o(&t)
	}

	return t, task.NewEntry(t, task.At(now), task.At(start))
}

// create creates a task now.
func (w *world) create(name string, opts ...option) int64 {
	w.Helper()
	return w.createAt(w.clock(), name, opts...)
}

// createAt creates a task through an API whose clock shows the time now.
func (w *world) createAt(now time.Time, name string, opts ...option) int64 {
	w.Helper()
	t, e := w.newTask(name, now, opts...)
	rev, err := w.store.CreateTask(w.ctx, ref(name), t, e)
	w.ok(err)

	return rev
}

// createTogether creates tasks in one transaction, as group commit may do.
func (w *world) createTogether(now time.Time, names []string, opts ...option) {
	w.Helper()
	var ops []clientv3.Op
	for _, name := range names {
		t, e := w.newTask(name, now, opts...)
		spec, _ := json.Marshal(t)
		entry, _ := json.Marshal(e)
		ops = append(ops, clientv3.OpPut(w.store.Keys().Spec(ref(name)), string(spec)), clientv3.OpPut(w.store.Keys().Entry(ref(name)), string(entry)))
	}

	_, err := w.client.Txn(w.ctx).Then(ops...).Commit()
	w.ok(err)
}

// update changes a task. With from, its ticks start over now.
func (w *world) update(name string, from bool, opts ...option) {
	w.Helper()
	old, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	t := old.Task

	for _, o := range opts {
		o(&t)
	}

	t.Generation++
	since := old.Entry.From
	if from && since.Before(w.clock()) {
		since = task.At(w.clock())
	}

	e := task.NewEntry(t, since, old.Entry.Anchor)
	e.Own = old.Entry.Own
	_, err = w.store.UpdateTask(w.ctx, old, t, e)
	w.ok(err)
}

func (w *world) pause(name string) { w.Helper(); w.update(name, false, paused) }
func (w *world) resume(name string) {
	w.Helper()
	w.update(name, true, func(t *task.Task) { t.Paused = false })
}

func (w *world) remove(name string) {
	w.Helper()
	old, err := w.store.Revisions(w.ctx, ref(name))
	w.ok(err)
	_, err = w.store.DeleteTaskLeavingTombstone(w.ctx, old, record.Tombstone{UID: old.Task.UID, Generation: old.Task.Generation, DeletedAt: task.At(w.clock())})
	w.ok(err)
}

// trigger queues a manual run and returns its id.
func (w *world) trigger(name string) string {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	now := task.At(w.clock())
	id := task.ManualRunID(now.Time, st.Task.UID)
	_, err = w.store.Enqueue(w.ctx, st, task.Waiting{Run: task.Run{
		ID: id, Namespace: "default", Task: name, UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual,
	}})
	w.ok(err)

	return id
}

// active returns a task's attempts, the oldest run first.
func (w *world) active(name string) []record.Held {
	w.Helper()
	all, err := w.store.ActiveOf(w.ctx, ref(name))
	w.ok(err)
	slices.SortFunc(all, func(a, b record.Held) int { return strings.Compare(a.ID, b.ID) })

	return all
}

// finish ends a task's oldest attempt.
func (w *world) finish(name string, state task.State) {
	w.Helper()
	all := w.active(name)
	if len(all) == 0 {
		w.Fatalf("no run of %s is active", name)
	}

	w.end(all[0], state)
}

// usual holds the reasons with which attempts usually end, by state.
var usual = map[task.State]string{task.Failed: task.ReasonExit, task.TimedOut: task.ReasonTimeout, task.Cancelled: task.ReasonCancelled, task.Lost: task.ReasonShutdown}

// why returns the reason of an attempt's end.
func why(h record.Held, state task.State) string {
	if state == task.Cancelled && h.CancelReason != "" {
		return h.CancelReason
	}
	return usual[state]
}

func (w *world) end(h record.Held, state task.State) {
	w.Helper()
	end := h.Run
	end.State, end.EndedAt = state, task.At(w.clock())
	end.Reason = why(h, state)
	w.ok(w.store.Finish(w.ctx, h, end, executor.Next(h.Assigned, end, w.clock(), 0.5)))
}

// story describes a task's runs, the oldest first, one per line: the seconds after the start, the state and
// the reason. A range also has its last tick and its count.
func (w *world) story(name string) []string {
	w.Helper()
	return w.stories()[name]
}

// stories returns the stories of all tasks that have runs.
func (w *world) stories() map[string][]string {
	w.Helper()
	runs, err := w.store.ShardRuns(w.ctx, []int{0}, "")
	w.ok(err)
	active, err := w.store.Active(w.ctx)
	w.ok(err)

	for _, h := range active {
		runs = append(runs, h.Run)
	}

	slices.SortFunc(runs, func(a, b task.Run) int { return record.ByTime(b, a) })
	all := map[string][]string{}
	for _, r := range runs {
		all[r.Task] = append(all[r.Task], tell(r))
	}

	return all
}

func tell(r task.Run) string {
	line := fmt.Sprintf("+%g %s", r.ScheduledTime.Sub(start).Seconds(), r.State)
	if !r.Last.IsZero() {
		line = fmt.Sprintf("+%g..+%g %s %d", r.ScheduledTime.Sub(start).Seconds(), r.Last.Sub(start).Seconds(), r.State, r.Count)
	}

	if r.Trigger != task.TriggerSchedule {
		line += " " + r.Trigger
	}

	if r.Reason != "" && r.Reason != r.Trigger && (r.State == task.Cancelled || r.Reason != usual[r.State]) {
		line += " " + r.Reason
	}

	if r.Attempt > 1 {
		line += fmt.Sprintf(" #%d", r.Attempt)
	}

	return line
}

func (w *world) want(name string, lines ...string) {
	w.Helper()
	w.wantAll([]string{name}, lines...)
}

// wantAll checks that the given tasks have the same story.
func (w *world) wantAll(names []string, lines ...string) {
	w.Helper()
	all := w.stories()

	for _, name := range names {
		if got := all[name]; !slices.Equal(got, lines) {
			w.Errorf("the runs of %s:\n got  %s\n want %s", name, strings.Join(got, " | "), strings.Join(lines, " | "))
		}
	}
}

func (w *world) mark() record.Watermark {
	w.Helper()
	res, err := w.client.Get(w.ctx, w.store.Keys().Watermark(0))
	w.ok(err)
	m, err := record.DecodeWatermark(res.Kvs[0].Value)
	w.ok(err)

	return m
}

// wantMark checks the watermark: seconds after the start, and the last task.
func (w *world) wantMark(at float64, last string) {
	w.Helper()
	m := w.mark()
	if !m.Time.Equal(sec(at)) || m.Last != last {
		w.Errorf("the watermark is +%g %q, want +%g %q", m.Time.Sub(start).Seconds(), m.Last, at, last)
	}
}

// from returns a task's from, in seconds after the start.
func (w *world) from(name string) float64 { w.Helper(); return w.froms(name)[0] }

func (w *world) froms(names ...string) []float64 {
	w.Helper()
	refs := make([]record.Ref, len(names))
	for i, name := range names {
		refs[i] = ref(name)
	}

	entries, err := w.store.Entries(w.ctx, refs)
	w.ok(err)

	list := make([]float64, len(entries))
	for i, e := range entries {
		list[i] = e.From.Sub(start).Seconds()
	}

	return list
}

// eventually polls until cond holds.
func (w *world) eventually(what string, cond func() bool) {
	w.Helper()

	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("not in time: %s", what)
		}
	}
}
