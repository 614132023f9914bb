package boots_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/boots"
	"github.com/carillonhq/carillon/pkg/daemon/leaderterm/leadertest"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// world is a cluster on an etcd in memory, in virtual time. The test registers nodes, and a Watcher runs while the world leads.
type world struct {
	*leadertest.World
	writes  *crashing
	watcher *boots.Watcher
	changed wake.Signal

	mu         sync.Mutex
	nodes      map[string]task.Node
	freezes    task.Freezes
	freezesMod int64 // the mod revision of the record of freezes, as far as the watcher knows
	namespaces map[string]*task.Namespace
	ignored    string // a label that no node may have
	fence      int64  // the mod revision of the access fence, as far as the watcher knows
}

// crashing is an etcd at one of whose writes the leader dies, or of which it gets no answer, or before which something else is written.
type crashing struct {
	kv.Committer
	before func() // what happens before the next write; may be nil
	at     int    // the number of the write, from 1; 0: none
	how    string
	leader func()
	number int
}

const (
	diesBefore = "dies before"
	diesAfter  = "dies after"
	lostBefore = "request lost"
	lostAfter  = "answer lost"
)

func (c *crashing) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if before := c.before; before != nil {
		c.before = nil
		before()
	}
	if c.number++; c.number != c.at {
		return c.Committer.Commit(ctx, t)
	}

	var res kv.Result
	var err error
	if c.how == diesAfter || c.how == lostAfter {
		res, err = c.Committer.Commit(ctx, t)
	}
	if c.how == diesBefore || c.how == diesAfter {
		c.leader()
		return res, context.Canceled
	}

	return kv.Result{}, errors.Join(err, context.DeadlineExceeded)
}

// inWorld runs a story in virtual time.
func inWorld(t *testing.T, story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{writes: &crashing{}, changed: wake.NewSignal(), nodes: map[string]task.Node{}, namespaces: map[string]*task.Namespace{"default": {}, "db": {Nodes: "role = db"}}}
		w.World = leadertest.New(t, func(etcd kv.Committer) kv.Committer {
			w.writes.Committer = etcd
			return w.writes
		})
		w.writes.leader = w.Kill
		fence, err := w.Etcd.Get(w.Context(), w.Keys.Fence())
		w.Must(err)
		w.fence = fence.Kvs[0].ModRevision

		w.watcher = boots.New(boots.Config{
			Store: w.Store, Task: w.Ref, Now: time.Now, Logger: zap.NewNop(), MayWrite: func() error { return nil },
			Subscribe: func(s wake.Signal) func() {
				w.changed = s
				return func() {}
			},
			Nodes: func() []task.Node {
				w.mu.Lock()
				defer w.mu.Unlock()
				var list []task.Node
				for _, n := range w.nodes {
					list = append(list, n)
				}
				slices.SortFunc(list, func(a, b task.Node) int { return strings.Compare(a.Name, b.Name) })
				return list
			},
			Access: func() (boots.Access, int64) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w, w.fence
			},
			Freezes: func() (*task.Freezes, int64) {
				w.mu.Lock()
				defer w.mu.Unlock()
				f := w.freezes
				return &f, w.freezesMod
			},
		})

		w.lead()
		story(w)
	})
}

func (w *world) LimitNode(n task.Node) task.Node {
	if _, has := n.Labels[w.ignored]; has {
		n.Labels = nil
	}
	return n
}

func (w *world) Namespace(name string) *task.Namespace {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.namespaces[name]
}

// set changes the world while the watcher runs.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// lead ends the present term, and begins another one.
func (w *world) lead() {
	w.Helper()
	w.Lead(w.watcher.Run)
	synctest.Wait()
}

// wait lets the watcher look at the nodes.
func (w *world) wait() {
	w.changed.Send()
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// join registers a node, or registers it again.
func (w *world) join(name, boot string, labels ...string) {
	w.Helper()
	n := task.Node{Name: name, BootID: boot, Roles: []string{task.RoleExecutor}, State: task.NodeReady, Labels: map[string]string{}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	n.Revision = w.Put(w.Keys.Node(name), boot)

	w.mu.Lock()
	w.nodes[name] = n
	w.mu.Unlock()
	w.wait()
}

// leave removes a node.
func (w *world) leave(name string) {
	w.mu.Lock()
	delete(w.nodes, name)
	w.mu.Unlock()
	w.wait()
}

// addTask creates a task that runs at boot.
func (w *world) addTask(name string, change func(t *task.Task)) {
	w.AddTask(name, task.BootSchedule, change)
}

// runs returns the runs of a task as "node boot", with the reason if they were skipped.
func (w *world) runs(name string) []string {
	w.Helper()
	list, err := w.Store.Runs(w.Context(), w.RefOf(name))
	w.Must(err)

	var words []string
	for _, r := range list {
		text := r.TargetNode + " " + r.BootID
		if r.State != task.Queued {
			text += " " + string(r.State) + " " + r.Reason
		}
		if !r.CreatedBy.Is(task.CreatedByCarillon) || r.Trigger != task.TriggerManual {
			w.Errorf("run %s was created by %q, trigger %s", r.ID, r.CreatedBy, r.Trigger)
		}
		words = append(words, text)
	}
	slices.Sort(words)

	return words
}

// expect fails unless a task has these runs.
func (w *world) expect(name string, want ...string) {
	w.Helper()
	if got := w.runs(name); !slices.Equal(got, want) {
		w.Errorf("%s has the runs %q, not %q", name, got, want)
	}
}

// Verifies: G62
func TestBoots_GiveEachTaskOneRun(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.addTask("default/warm", nil)
		w.addTask("default/other", func(t *task.Task) { t.Schedule = task.Schedules{task.ManualSchedule} })
		w.join("n1", "b1")
		w.join("n2", "b2")
		w.expect("default/warm", "n1 b1", "n2 b2")

		// Neither a restart of the daemon, nor a lost session, nor another leader is a boot.
		w.join("n1", "b1")
		w.lead()
		w.wait()
		w.expect("default/warm", "n1 b1", "n2 b2")

		w.join("n1", "b3")
		w.expect("default/warm", "n1 b1", "n1 b3", "n2 b2")
		w.expect("default/other")

		// A host that does not say when it has booted never boots.
		w.join("n3", "")
		w.expect("default/warm", "n1 b1", "n1 b3", "n2 b2")
	})
}

// The watch of a new leader may still have a node as it was before its last boot. That is no boot, and the last boot is not another one
// when the watch has caught up.
//
// Verifies: G62
func TestBoots_IgnoreFormerRegistrations(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.addTask("default/warm", nil)
		w.join("n1", "b1")
		former := w.nodes["n1"]
		w.join("n1", "b2")
		last := w.nodes["n1"]

		for _, seen := range []task.Node{former, last} {
			w.mu.Lock()
			w.nodes["n1"] = seen
			w.mu.Unlock()
			w.lead()
			w.wait()
			w.expect("default/warm", "n1 b1", "n1 b2")
		}
	})
}

func TestBoots_RunTasksThatRanAtBootBefore(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.join("n1", "b1")
		w.addTask("default/new", nil)
		w.addTask("default/edited", func(t *task.Task) { t.Schedule = task.Schedules{task.ManualSchedule} })
		w.Edit("default/edited", func(t *task.Task) { t.Schedule = task.Schedules{task.BootSchedule} })
		w.join("n1", "b1") // its daemon has restarted
		w.expect("default/new")
		w.expect("default/edited")

		w.Edit("default/new", func(t *task.Task) { t.Schedule = task.Schedules{"@daily"} })
		w.join("n1", "b2")
		w.expect("default/new")
		w.expect("default/edited", "n1 b2")
	})
}

func TestBoots_ObeyTargetNamespaceAndPolicies(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.addTask("default/selected", func(t *task.Task) { t.Target.Selector = "role = db" })
		w.addTask("default/ordered", func(t *task.Task) { t.Target.Strategy, t.Target.Order = task.StrategyFirst, []string{"n2"} })
		w.addTask("db/limited", nil)
		w.addTask("gone/limited", nil)
		w.addTask("default/paused", func(t *task.Task) { t.Paused = true })
		w.addTask("default/shadow", func(t *task.Task) { t.Shadow = true })
		w.addTask("frozen/task", nil)
		w.addTask("default/deadline", func(t *task.Task) { t.Deadline = task.Duration(time.Minute) })
		w.namespaces["frozen"] = &task.Namespace{}
		w.freezes.Holding = []task.Freeze{{Namespace: "frozen"}}

		w.join("n1", "b1", "role", "db")
		w.join("n2", "b2", "role", "web")
		w.ignored = "role"
		w.join("n3", "b3", "role", "db") // which it may not have

		w.expect("default/selected", "n1 b1")
		w.expect("default/ordered", "n2 b2")
		w.expect("db/limited", "n1 b1")
		w.expect("gone/limited")
		w.expect("default/paused")
		w.expect("default/shadow", "n1 b1 skipped shadow", "n2 b2 skipped shadow", "n3 b3 skipped shadow")
		w.expect("frozen/task", "n1 b1 skipped frozen", "n2 b2 skipped frozen", "n3 b3 skipped frozen")

		// Without a deadline, runs wait for a day: nodes may never return.
		for name, want := range map[string]time.Duration{"deadline": time.Minute, "selected": 24 * time.Hour} {
			list, err := w.Store.Runs(w.Context(), w.Ref("default", name))
			if err != nil || len(list) == 0 {
				t.Fatal(name, list, err)
			}
			for _, r := range list {
				if r.StartBefore.Sub(r.CreatedAt.Time) != want {
					t.Errorf("run %s of %s must start before %s", r.ID, name, r.StartBefore)
				}
			}
		}
	})
}

// A task is paused or resumed while the leader decides which tasks run. What counts is the task when the boot is recorded.
//
// Verifies: G62
func TestBoots_CompareTheTasksTheyDecideFrom(t *testing.T) {
	t.Parallel()
	for paused, want := range map[bool][]string{true: nil, false: {"n1 b1"}} {
		inWorld(t, func(w *world) {
			w.addTask("default/warm", func(t *task.Task) { t.Paused = !paused })
			w.writes.before = func() { w.Edit("default/warm", func(t *task.Task) { t.Paused = paused }) }

			w.join("n1", "b1")
			w.expect("default/warm", want...)
		})
	}
}

// readHook is an etcd in which something is written after the next list of the tasks that run at boot.
type readHook struct {
	clientv3.KV
	prefix string
	after  func() // may be nil
}

func (h *readHook) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	res, err := h.KV.Get(ctx, key, opts...)
	if after := h.after; after != nil && strings.HasPrefix(key, h.prefix) {
		h.after = nil
		after()
	}

	return res, err
}

// A task is deleted, and another one gets its name, while the leader reads the tasks that run at boot. The new one is younger than the boot.
//
// Verifies: G62
func TestBoots_ReadTheTasksAtOneRevision(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.addTask("default/warm", nil)
		w.Etcd.KV = &readHook{KV: w.Etcd.KV, prefix: w.Keys.BootTasks(), after: func() {
			st, err := w.Store.Revisions(w.Context(), w.RefOf("default/warm"))
			w.Must(err)
			_, err = w.Store.DeleteTaskLeavingTombstone(w.Context(), st, record.Tombstone{})
			w.Must(err)
			w.addTask("default/warm", nil)
		}}

		w.join("n1", "b1")
		w.expect("default/warm")
	})
}

// A freeze has ended before the node joins, but the watch of the leader is late. The run is not skipped.
//
// Verifies: G62
func TestBoots_CompareTheFreezes(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.addTask("default/warm", nil)
		frozen := w.Put(w.Keys.Freezes(), "frozen")
		w.set(func() { w.freezes.Holding, w.freezesMod = []task.Freeze{{Namespace: "default"}}, frozen })
		ended := w.Put(w.Keys.Freezes(), "ended")
		w.join("n1", "b1")
		w.expect("default/warm")

		w.set(func() { w.freezes.Holding, w.freezesMod = nil, ended })
		w.wait()
		w.expect("default/warm", "n1 b1")
	})
}

// The limits of a namespace have changed before the node joins, but the watch of the leader is late.
//
// Verifies: G62
func TestBoots_CompareTheAccessRecords(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.addTask("db/limited", nil)
		changed := w.Put(w.Keys.Fence(), "changed")
		w.join("n1", "b1")
		w.expect("db/limited")

		w.set(func() { w.namespaces["db"], w.fence = &task.Namespace{}, changed })
		w.wait()
		w.expect("db/limited", "n1 b1")
	})
}

// The leader dies at each of its writes, or gets no answer. Each task has one run, and a task that was deleted has none.
//
// Verifies: G62
func TestBoots_SurviveTheLeader(t *testing.T) {
	t.Parallel()
	const tasks = 2*store.MaxBootTasks + 1

	for _, how := range []string{diesBefore, diesAfter, lostBefore, lostAfter} {
		for write := range 3 {
			t.Run(fmt.Sprintf("%s, write %d", how, write+1), func(t *testing.T) {
				t.Parallel()
				inWorld(t, func(w *world) {
					for i := range tasks {
						w.addTask(fmt.Sprintf("default/t%03d", i), nil)
					}

					w.writes.at, w.writes.how = w.writes.number+write+1, how
					w.join("n1", "b1")
					w.lead()
					w.wait()

					for i := range tasks {
						w.expect(fmt.Sprintf("default/t%03d", i), "n1 b1")
					}
				})
			})
		}
	}
}

func TestBoots_ForgetNodesThatAreGone(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		known := func() (names []string) {
			list, err := w.Store.Boots(w.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range list {
				names = append(names, b.Node)
			}
			return names
		}

		w.addTask("default/warm", nil)
		w.join("n1", "b1")
		w.join("n2", "b2")
		w.leave("n2")

		for range 29 { // n1 is there all the time
			time.Sleep(24 * time.Hour)
			w.wait()
		}
		if got := known(); !slices.Equal(got, []string{"n1", "n2"}) {
			t.Errorf("after 29 days: %v", got)
		}

		time.Sleep(25 * time.Hour)
		w.wait()
		if got := known(); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("after 30 days: %v", got)
		}
		w.expect("default/warm", "n1 b1", "n2 b2")
	})
}

// The key that names a task among those that run at boot follows its entry, and is deleted with the task.
func TestBoots_TasksAreThoseWithTheSchedule(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		keys := func() (names []string) {
			res, err := w.Etcd.Get(w.Context(), w.Keys.BootTasks(), clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range res.Kvs {
				names = append(names, strings.TrimPrefix(string(e.Key), w.Keys.BootTasks()))
			}
			return names
		}
		expect := func(want ...string) {
			t.Helper()
			if got := keys(); !slices.Equal(got, want) {
				t.Errorf("%q run at boot, not %q", got, want)
			}
		}

		w.addTask("default/a", nil)
		w.addTask("default/b", func(t *task.Task) { t.Schedule = task.Schedules{"@hourly"} })
		expect("default/a")

		w.Edit("default/b", func(t *task.Task) { t.Schedule = task.Schedules{task.BootSchedule} })
		w.Edit("default/a", func(t *task.Task) { t.Timezone = "Europe/Berlin" })
		expect("default/a", "default/b")

		bulk := func(name, schedule string) {
			t.Helper()
			ref := w.Ref("default", name)
			st, err := w.Store.Task(w.Context(), ref)
			change := store.Change{New: &store.Stored{Ref: ref}}
			if err == nil {
				change.Old, change.New.Task = &st, st.Task
			} else {
				change.New.Task = task.Task{Spec: task.Defaults(), UID: task.NewUID()}
				change.New.Task.Namespace, change.New.Task.Name, change.New.Task.Action = "default", name, task.Action{Noop: &task.Noop{}}
			}
			change.New.Task.Schedule = task.Schedules{schedule}
			change.New.Entry = task.NewEntry(change.New.Task, task.At(time.Now()), task.At(time.Now()))
			if _, _, err := w.Store.ChangeTasks(w.Context(), []store.Change{change}); err != nil {
				t.Fatal(err)
			}
		}
		bulk("c", task.BootSchedule)
		bulk("b", "@daily")
		expect("default/a", "default/c")

		st, err := w.Store.Revisions(w.Context(), w.Ref("default", "a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Store.DeleteTaskLeavingTombstone(w.Context(), st, record.Tombstone{}); err != nil {
			t.Fatal(err)
		}
		expect("default/c")
	})
}
