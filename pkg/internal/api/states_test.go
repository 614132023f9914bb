package api_test

import (
	"context"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// withEngine returns a world with one node that owns all shards: a real engine decides and answers. The test acts as the
// node's executor.
func withEngine(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	ctx := t.Context()

	present, err := w.store.Present(ctx)
	must(t, err)
	n := task.Node{Name: "node-a", Instance: "i-node-a", Slots: 100, State: task.NodeReady, Roles: []string{task.RoleScheduler, task.RoleExecutor}, Labels: map[string]string{}}
	session, _, err := w.store.Register(ctx, n, 0, present.Record())
	must(t, err)

	leader := w.store.Keys().Leader() + "1"
	res, err := w.etcd.Put(ctx, leader, "test")
	must(t, err)
	moves := make([]store.Move, shards)
	for id := range moves {
		moves[id].From.Shard, moves[id].To = id, n.Name
	}
	must(t, w.store.Assign(ctx, kv.CreateFence(leader, res.Header.Revision), moves, task.At(w.clock.now())))
	owners, err := w.store.Owners(ctx)
	must(t, err)

	fleet := placement.NewFleet(n.Name, func() int { return n.Slots })
	nodes, err := w.store.Nodes(ctx)
	must(t, err)
	fleet.Set(nodes)

	engine := scheduler.New(scheduler.Config{
		Node: n.Name, Store: w.store, Fleet: fleet, NextAttempt: executor.Next, Now: w.clock.now, Logger: zap.NewNop(),
		Cluster:    func() task.Cluster { return w.cluster },
		Namespaces: func() scheduler.Namespaces { return scheduler.OpenNamespaces{} },
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = engine.Run(ctx) }()
	for _, o := range owners {
		go func() {
			_ = engine.Work(ctx, o.Shard, store.Fences{Owner: w.store.OwnerFence(o), Node: session})
		}()
	}
	t.Cleanup(func() { stop(); <-ended })

	w.owners = map[string]ask{"engine": engine.Ask}
	w.Client = w.client(w.serve("engine"))

	return w
}

// run triggers a task, and ends its run in a state.
func (w *world) run(name string, state task.State) string {
	w.t.Helper()
	ctx := w.t.Context()
	triggered, err := w.Tasks.Trigger(ctx, "default", name, nil)
	must(w.t, err)

	eventually(w.t, func() bool {
		held, err := w.store.ActiveOf(ctx, ref("default", name))
		must(w.t, err)
		if len(held) == 0 {
			return false
		}

		w.clock.advance(1)
		end := held[0].Run
		end.State, end.Reason, end.StartedAt, end.EndedAt = state, task.ReasonExit, task.At(w.clock.now()), task.At(w.clock.now())
		must(w.t, w.store.Finish(ctx, held[0], end, executor.Next(held[0].Assigned, end, w.clock.now(), 0.5)))

		return true
	})

	return triggered.ID
}

// Lists, counts, the board and the task itself agree on whether a task is failing: from the end of a run that failed until
// a later run succeeds, or each such run is dismissed or started again.
//
// Verifies: G30
func TestStates_AFailingTaskIsFailingEverywhere(t *testing.T) {
	w, ctx := withEngine(t), t.Context()
	w.make("f", "@manual", nil)
	w.make("fine", "@manual", nil)
	w.run("fine", task.Succeeded)

	limit := 10 // equal questions get the same answer for a second
	failing := func(want bool) {
		t.Helper()
		names := []string{}
		if want {
			names = append(names, "f")
		}

		var listed, onBoard []string
		var count, counted int
		eventually(t, func() bool {
			limit++
			page, err := w.Tasks.Page(ctx, client.TaskListOptions{Query: "state:failing", Limit: limit}, "")
			must(t, err)
			b, err := w.Board.Get(ctx, client.BoardOptions{Limit: limit})
			must(t, err)

			listed, onBoard, count, counted = []string{}, []string{}, *page.Count, b.FailingCount
			for _, item := range page.Items {
				listed = append(listed, item.Name)
				if item.State != client.TaskFailing {
					return false // the list is older than the records of its tasks
				}
			}
			for _, f := range b.Failing {
				onBoard = append(onBoard, f.Task)
			}

			return slices.Equal(listed, names) && slices.Equal(onBoard, names) && count == len(names) && counted == len(names)
		})

		got, err := w.Tasks.Get(ctx, "default", "f")
		must(t, err)
		if is := got.State == client.TaskFailing; is != want {
			t.Errorf("the task is %s", got.State)
		}
	}

	failing(false)
	one, two := w.run("f", task.Failed), w.run("f", task.TimedOut)
	failing(true)

	// A task is failing until both failures are dismissed.
	must(t, second(w.Runs.Dismiss(ctx, "default", "f", two)))
	failing(true)
	b, err := w.Board.Get(ctx, client.BoardOptions{Limit: limit})
	must(t, err)
	if b.Failing[0].Run != one {
		t.Errorf("the board shows run %s, want %s, which is left", b.Failing[0].Run, one)
	}

	must(t, second(w.Runs.Dismiss(ctx, "default", "f", one)))
	failing(false)

	// A cancelled run changes nothing, a success does.
	three := w.run("f", task.Lost)
	w.run("f", task.Cancelled)
	failing(true)
	w.run("f", task.Succeeded)
	failing(false)

	// The failure from before the success is of no importance, whatever becomes of it.
	must(t, second(w.Runs.Dismiss(ctx, "default", "f", three)))
	failing(false)

	// A failure that is started again.
	four := w.run("f", task.Failed)
	failing(true)
	must(t, second(w.Runs.Retry(ctx, "default", "f", four)))
	failing(false)
}
