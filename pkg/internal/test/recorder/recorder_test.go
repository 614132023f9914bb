package recorder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func testKeys(t testing.TB) record.Keys {
	t.Helper()
	keys, err := record.NewKeys("/test")
	if err != nil {
		t.Fatal(err)
	}

	return keys
}

func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)

	return ctx
}

func write(t testing.TB, c *kv.Client, key string, value any) int64 {
	t.Helper()
	res, err := c.Put(limited(t), key, fmt.Sprint(value))
	if err != nil {
		t.Fatal(err)
	}

	return res.Header.Revision
}

func TestRecorder_KeepsEveryRevision(t *testing.T) {
	c, keys := kvtest.Start(t), testKeys(t)
	write(t, c, "/test/a", 1)
	write(t, c, "/test-1/a", "a neighbour's")

	r, err := Start(limited(t), c, keys)
	if err != nil {
		t.Fatal(err)
	}

	write(t, c, "/test/a", 2)

	if _, err := c.Delete(limited(t), "/test/a"); err != nil {
		t.Fatal(err)
	}

	if _, err := c.Txn(limited(t)).Then(clientv3.OpPut("/test/b", "1"), clientv3.OpPut("/test/c", "2")).Commit(); err != nil {
		t.Fatal(err)
	}

	write(t, c, "/elsewhere", "a revision that does not concern the recorder")
	events, err := r.Stop(limited(t))
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprintf("%s=%s listed=%t deleted=%t", e.Key, e.Value, e.Listed, e.Deleted))
	}

	want := []string{
		"/test/a=1 listed=true deleted=false", "/test/a=2 listed=false deleted=false", "/test/a= listed=false deleted=true",
		"/test/b=1 listed=false deleted=false", "/test/c=2 listed=false deleted=false",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	var file bytes.Buffer
	if err := Save(&file, events); err != nil {
		t.Fatal(err)
	}

	var loaded []check.Event
	for dec := json.NewDecoder(&file); dec.More(); {
		var e check.Event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		loaded = append(loaded, e)
	}

	if !reflect.DeepEqual(events, loaded) {
		t.Errorf("saved %v, read %v", events, loaded)
	}
}

// gate is a unix socket in front of etcd's that can be shut.
type gate struct {
	endpoint, to string
	mu           sync.Mutex
	shut         bool
	open         []net.Conn
}

func newGate(t testing.TB, endpoint string) *gate {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gate")

	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}

	g := &gate{endpoint: "unix://" + path, to: strings.TrimPrefix(endpoint, "unix://")}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}

			if out := g.admit(in); out != nil {
				wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
				wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
			}
		}
	})

	t.Cleanup(func() {
		_ = l.Close()
		g.setShut(true)
		wg.Wait()
	})

	return g
}

func (g *gate) admit(in net.Conn) net.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.shut {
		_ = in.Close()
		return nil
	}

	out, err := net.Dial("unix", g.to)
	if err != nil {
		_ = in.Close()
		return nil
	}

	g.open = append(g.open, in, out)

	return out
}

// setShut shuts the gate, which closes all connections, or opens it.
func (g *gate) setShut(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.shut = shut
	for _, c := range g.open {
		_ = c.Close()
	}

	g.open = nil
}

// behindGate returns a recorder whose connection to etcd can be cut, and a client whose connection cannot.
func behindGate(t *testing.T) (*Recorder, *gate, *kv.Client) {
	t.Helper()
	server := kvtest.StartServer(t)
	g := newGate(t, server.Endpoint())

	through, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{g.endpoint}})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = through.Close() })
	write(t, server.Client(), "/test/n", 0)

	r, err := Start(limited(t), through, testKeys(t))
	if err != nil {
		t.Fatal(err)
	}

	return r, g, server.Client()
}

func TestRecorder_ResumesWhereItWasCutOff(t *testing.T) {
	r, g, c := behindGate(t)

	for round := range 3 {
		write(t, c, "/test/n", round)
		g.setShut(true)

		for i := range 20 {
			write(t, c, "/test/n", 100*round+i)
		}

		g.setShut(false)
	}

	if err := r.WaitFor(limited(t), write(t, c, "/test/n", "last")); err != nil {
		t.Fatal(err)
	}

	events, err := r.Stop(limited(t))
	if err != nil {
		t.Fatal(err)
	}

	for i := range events {
		if want := events[0].Revision + int64(i); events[i].Revision != want || events[i].Listed != (i == 0) {
			t.Fatalf("event %d is of revision %d, want %d", i, events[i].Revision, want)
		}
	}

	if want := 1 + 3*21 + 1; len(events) != want {
		t.Errorf("%d events, want %d", len(events), want)
	}
}

func TestRecorder_SaysSoIfRevisionsAreGone(t *testing.T) {
	r, g, c := behindGate(t)
	if err := r.WaitFor(limited(t), write(t, c, "/test/n", 1)); err != nil {
		t.Fatal(err)
	}

	g.setShut(true)
	write(t, c, "/test/n", 2)

	rev := write(t, c, "/test/n", 3)
	if _, err := c.Compact(limited(t), rev); err != nil {
		t.Fatal(err)
	}

	g.setShut(false)

	if err := r.WaitFor(limited(t), rev); !errors.Is(err, ErrGap) {
		t.Errorf("the error is %v, want ErrGap", err)
	}

	if _, err := r.Stop(limited(t)); !errors.Is(err, ErrGap) {
		t.Errorf("Stop says %v, want ErrGap", err)
	}
}

func TestRecorder_OutlivesARestartOfEtcd(t *testing.T) {
	server := kvtest.StartServer(t)
	c := server.Client()

	r, err := Start(limited(t), c, testKeys(t))
	if err != nil {
		t.Fatal(err)
	}

	write(t, c, "/test/n", 1)
	server.Restart()
	write(t, server.Dial(), "/test/n", 2)

	events, err := r.Stop(limited(t))
	if err != nil || len(events) != 2 {
		t.Errorf("%d events, want 2: %v", len(events), err)
	}
}

// The checker accepts what package store writes. So both agree on the format of records.
func TestCheck_PassesWhatTheStoreWrites(t *testing.T) {
	c, keys := kvtest.Start(t), testKeys(t)
	ctx := limited(t)

	r, err := Start(ctx, c, keys)
	if err != nil {
		t.Fatal(err)
	}

	writeWithStore(t, ctx, c, keys)
	events, err := r.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}

	report := check.Check(keys, events, check.Options{Until: atTick.Add(4 * time.Second), Ended: true})
	if !report.OK() || report.Summary.Ticks != 4 || report.Summary.Ended[task.Succeeded] != 2 || report.Summary.Skipped[task.ReasonOverlap] != 2 {
		t.Error(report)
	}
}

var atTick = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// writeWithStore decides four ticks of a task: run, skipped, run with a retry after a failed attempt, skipped.
func writeWithStore(t *testing.T, ctx context.Context, c *kv.Client, keys record.Keys) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	s := store.New(c, kv.Direct(c), keys)
	_, _, err := s.Bootstrap(ctx, 1, atTick, store.OpenAccess())
	must(err)
	term := write(t, c, keys.Leader()+"1f", "a")
	lease, err := c.Grant(ctx, 60)
	must(err)
	there, err := s.Present(ctx)
	must(err)
	node, _, err := s.Register(ctx, task.Node{Name: "a", Instance: "a1", State: task.NodeReady, Roles: []string{task.RoleExecutor}}, lease.ID, there.Record())
	must(err)
	must(s.Assign(ctx, kv.CreateFence(keys.Leader()+"1f", term), []store.Move{{To: "a"}}, task.At(atTick)))
	owners, err := s.Owners(ctx)
	must(err)
	fences := store.Fences{Owner: kv.ModFence(keys.Owner(0), owners[0].Fence), Node: node}
	mark, known, err := s.Open(ctx, 0, fences)
	must(err)

	ref := record.Ref{Namespace: "default", Name: "one"}
	spec := task.Defaults()
	spec.Name, spec.Schedule, spec.Retry.Attempts = "one", task.Schedules{"* * * * * *"}, 2
	one := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1}
	entry := task.NewEntry(one, task.At(atTick), task.At(atTick))
	created, err := s.CreateTask(ctx, ref, one, entry)
	must(err)

	commit := func(tick time.Time, change func(*store.Commit)) {
		t.Helper()
		mark.Time, mark.Seen = task.At(tick), created
		cm := s.NewCommit(0, fences, known, mark)
		cm.GuardEntry(ref.String(), created)
		change(cm)
		known, err = s.Commit(ctx, cm)
		must(err)
	}

	decided := func(tick time.Time, state task.State) task.Run {
		return task.Run{
			ID: task.RunID(tick, one.UID), UID: one.UID, Namespace: ref.Namespace, Task: ref.Name, ScheduledTime: task.At(tick), State: state,
			Trigger: task.TriggerSchedule, Owner: "a", CreatedAt: task.At(tick), Attempt: 1,
		}
	}

	dispatch := func(cm *store.Commit, r task.Run) {
		r.State, r.Node = task.Dispatched, "a"
		cm.Dispatch(&task.Assigned{Run: r, Instance: "a1", Generation: 1, Retry: entry.Retry}, `{"noop":{}}`, node.CreateRevision)
	}

	held := func() record.Held {
		t.Helper()
		all, err := s.Active(ctx)
		must(err)

		if len(all) != 1 {
			t.Fatalf("%d active attempts, want 1", len(all))
		}

		return all[0]
	}

	for i := range 2 {
		tick := atTick.Add(time.Duration(2*i+1) * time.Second)
		commit(tick, func(cm *store.Commit) { dispatch(cm, decided(tick, "")) })
		h := held()
		h.State = task.Running
		h.Mod, err = s.Rewrite(ctx, node, h)
		must(err)
		skipped := decided(tick.Add(time.Second), task.Skipped)
		skipped.Reason = task.ReasonOverlap
		commit(tick.Add(time.Second), func(cm *store.Commit) { cm.Record(ref, skipped) })

		end := h.Run
		if i == 1 {
			end.State, end.Reason = task.Failed, task.ReasonExit
			next := task.Waiting{Run: h.Run}
			next.State, next.Reason, next.Attempts = task.Queued, task.ReasonRetry, []task.Attempt{end.AsAttempt()}
			must(s.Finish(ctx, h, end, &next))
			again, err := s.Runs(ctx, ref)
			must(err)
			retry := again[1] // the newest is the skipped tick
			retry.Attempt = 2
			queued, err := c.Get(ctx, keys.Queued(ref, retry.ID))
			must(err)
			commit(tick.Add(time.Second), func(cm *store.Commit) {
				cm.Dequeue(ref, retry.ID, queued.Kvs[0].ModRevision)
				dispatch(cm, retry)
			})

			h = held()
			end = h.Run
		}

		end.State = task.Succeeded
		must(s.Finish(ctx, h, end, nil))
	}
}

// forgetful is a Watcher that omits the first event of a key and still reports that everything was delivered.
type forgetful struct {
	clientv3.Watcher
	key  string
	once sync.Once
}

func (f *forgetful) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := f.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for res := range in {
			var kept []*clientv3.Event
			for _, ev := range res.Events {
				forget := false
				if string(ev.Kv.Key) == f.key {
					f.once.Do(func() { forget = true })
				}

				if !forget {
					kept = append(kept, ev)
				}
			}

			if len(res.Events) > 0 && len(kept) == 0 {
				continue
			}

			res.Events = kept
			select {
			case out <- res:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out
}

// Verifies: G13
func TestRecorder_RecordsAnewWhatAWatchLeftOut(t *testing.T) {
	server, keys := kvtest.StartServer(t), testKeys(t)
	c := server.Dial()
	c.Watcher = &forgetful{Watcher: c.Watcher, key: "/test/b"}

	r, err := Start(limited(t), c, keys)
	if err != nil {
		t.Fatal(err)
	}

	write(t, server.Client(), "/test/a", 1)

	if err := r.CatchUp(limited(t)); err != nil {
		t.Fatal(err)
	}

	early := r.Events()

	for _, key := range []string{"b", "c"} {
		write(t, server.Client(), "/test/"+key, 1)
	}

	events, err := r.Stop(limited(t))
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, e := range events {
		got = append(got, e.Key)
	}

	if strings.Join(got, " ") != "/test/a /test/b /test/c" || len(early) != 1 {
		t.Errorf("recorded %v, and %d early", got, len(early))
	}
}

// stubborn is a Watcher that always omits the events of a key.
type stubborn struct{ clientv3.Watcher }

func (s stubborn) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return (&forgetful{Watcher: s.Watcher, key: "/test/b"}).Watch(ctx, key, opts...)
}

func TestRecorder_SaysThatItHasAGapIfAWatchGoesOnLeavingOut(t *testing.T) {
	server, keys := kvtest.StartServer(t), testKeys(t)
	c := server.Dial()
	c.Watcher = stubborn{c.Watcher}

	r, err := Start(limited(t), c, keys)
	if err != nil {
		t.Fatal(err)
	}

	write(t, server.Client(), "/test/b", 1)

	if _, err := r.Stop(limited(t)); !errors.Is(err, ErrGap) {
		t.Errorf("got %v", err)
	}
}
