package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// listPopulation is a population with a past. What is known of a task follows from its number, so the number of tasks
// that match a filter is known without asking anybody. The first tasks fire each second and have no labels.
//
//	of 1,000 tasks: 20 paused, 5 failing, 5 with failures that were dismissed, 10 never ran, 1 running; the others succeeded
type listPopulation struct {
	population
	shards int
	holder task.Node // the node in whose inbox the running tasks are
}

// teams is the number of namespaces of the tasks that do not fire.
const teams = 20

// teamNamespace returns the namespace of task i, which does not fire.
func teamNamespace(i int) string { return fmt.Sprintf("team-%02d", i%teams) }

// listNamespaces returns all namespaces.
func listNamespaces() []string {
	all := []string{benchNamespace}
	for i := range teams {
		all = append(all, teamNamespace(i))
	}

	return all
}

func (p listPopulation) isFiring(i int) bool    { return i < p.firing }
func (p listPopulation) isPaused(i int) bool    { return !p.isFiring(i) && i%50 == 3 }
func (p listPopulation) isFailing(i int) bool   { return !p.isFiring(i) && i%200 == 110 }
func (p listPopulation) isDismissed(i int) bool { return !p.isFiring(i) && i%200 == 112 }
func (p listPopulation) isRunning(i int) bool   { return !p.isFiring(i) && i%1000 == 120 }
func (p listPopulation) neverRan(i int) bool    { return !p.isFiring(i) && i%200 >= 130 && i%200 < 132 }

// failuresOf returns how many runs of task i have failed in a row.
func (p listPopulation) failuresOf(i int) int {
	if p.isFailing(i) || p.isDismissed(i) {
		return 1 + i/200%5
	}
	return 0
}

// durationOf returns how long the last run of task i took, and latenessOf how late it started, in ms.
func (p listPopulation) durationOf(i int) int64 { return int64(1000 + i*7919%600_000) }
func (p listPopulation) latenessOf(i int) int64 { return int64(i * 104_729 % 30_000) }

// makeTask returns the spec and the entry of task i.
func (p listPopulation) makeTask(i int) (task.Task, task.Entry) {
	t, e := p.population.makeTask(i)
	if p.isFiring(i) {
		return t, e
	}

	t.Namespace, t.Paused = teamNamespace(i), p.isPaused(i)

	return t, task.NewEntry(t, e.From, e.Anchor)
}

// writeTask writes task i with its past.
func (p listPopulation) writeTask(ctx context.Context, s *store.Store, ops *putCollector, i int) error {
	t, e := p.makeTask(i)
	ref := refOf(t.Namespace, t.Name, p.shards)
	if _, err := s.CreateTask(ctx, ref, t, e); err != nil || p.isFiring(i) {
		return err
	}

	if p.isRunning(i) {
		run, err := p.activeRun(s.Keys(), ref, t, e)
		if err != nil {
			return err
		}

		*ops = append(*ops, run)
	}

	if p.neverRan(i) {
		return nil
	}

	// The runs have ended within the last day.
	ended := p.origin.Add(-time.Minute - time.Duration(i*611_953%86_400_000)*time.Millisecond)
	failures := p.failuresOf(i)

	for n := range max(failures, 1) {
		h, end := p.pastRun(i, ref, t, e, ended.Add(-time.Duration(n)*time.Minute))
		if failures > 0 {
			end.State = task.Failed
			// The last failure of a failing task is a dead run. A run that somebody has cancelled does not become one.
			h.CancelRequested = n > 0 || p.isDismissed(i)
		}

		if err := s.Finish(ctx, h, end, nil); err != nil {
			return err
		}
	}

	return nil
}

// pastRun returns an attempt of task i and its end.
func (p listPopulation) pastRun(i int, ref record.Ref, t task.Task, e task.Entry, ended time.Time) (record.Held, task.Run) {
	started := ended.Add(-time.Duration(p.durationOf(i)) * time.Millisecond)
	tick := task.At(started.Add(-time.Duration(p.latenessOf(i)) * time.Millisecond))
	held := record.Held{Assigned: p.attemptOf(ref, t, e, tick)}

	end := held.Run
	end.State, end.StartedAt, end.EndedAt, end.LatenessMS = task.Succeeded, task.At(started), task.At(ended), new(p.latenessOf(i))

	return held, end
}

// activeRun returns a put of a run into the inbox of the holder, where it stays.
func (p listPopulation) activeRun(keys record.Keys, ref record.Ref, t task.Task, e task.Entry) (clientv3.Op, error) {
	a := p.attemptOf(ref, t, e, task.At(p.origin))
	action, err := json.Marshal(a.Action)

	return clientv3.OpPut(keys.Run(a.Node, ref, a.ID), string(record.EncodeAssigned(&a, string(action)))), err
}

// attemptOf returns an attempt of a tick, on the holder.
func (p listPopulation) attemptOf(ref record.Ref, t task.Task, e task.Entry, tick task.Time) task.Assigned {
	return task.Assigned{
		Run: task.Run{
			ID: task.RunID(tick.Time, t.UID), UID: t.UID, Namespace: t.Namespace, Task: t.Name, Shard: ref.Shard, ScheduledTime: tick, State: task.Dispatched,
			Trigger: task.TriggerSchedule, Node: p.holder.Name, Owner: p.holder.Name, Attempt: 1, CreatedAt: tick, DispatchedAt: tick,
		},
		Instance: p.holder.Instance, Generation: 1, Action: e.Action, KillGrace: e.KillGrace, Retry: e.Retry,
	}
}
