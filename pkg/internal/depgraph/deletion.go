package depgraph

import (
	"context"
	"slices"
	"sync"

	"github.com/carillonhq/carillon/pkg/client"
)

// OfAnswer returns the tasks and links in an answer of the API.
func OfAnswer(answer client.Graph) *Graph {
	g := New()
	for _, t := range answer.Tasks {
		g.AddTask(t.Name)
	}
	for _, l := range answer.Links {
		g.Add(Link{Source: l.Source, Dependent: l.Dependent, When: l.When, Results: l.Results})
	}

	return g
}

// Task names a task of any namespace.
type Task struct{ Namespace, Name string }

// Deletion has tasks that are deleted together, several at a time, wait for their dependents, because the API refuses to delete a
// source that has dependents.
type Deletion struct {
	layer map[Task]int // a task is in a later layer than its sources

	mu   sync.Mutex
	open []int           // the number of tasks of each layer whose deletion has not ended
	done []chan struct{} // closed when it is 0
}

// PlanDeletion reads the links between tasks, and sorts the list such that dependents come first. nameOf returns the task of an
// element. If links cannot be read, the order stays, and the API refuses what does not fit.
func PlanDeletion[T any](ctx context.Context, api *client.TasksService, list []T, nameOf func(T) Task) *Deletion {
	d := &Deletion{layer: map[Task]int{}}
	read := map[string]bool{}
	for _, item := range list {
		namespace := nameOf(item).Namespace
		if len(list) < 2 || read[namespace] {
			continue
		}
		read[namespace] = true

		answer, err := api.Graph(ctx, namespace, client.GraphOptions{})
		if err != nil {
			continue
		}
		for i, names := range OfAnswer(answer).Layers() {
			for _, name := range names {
				d.layer[Task{namespace, name}] = i
			}
		}
	}

	slices.SortStableFunc(list, func(a, b T) int { return d.layer[nameOf(b)] - d.layer[nameOf(a)] })

	for _, item := range list {
		at := d.layer[nameOf(item)]
		for len(d.open) <= at {
			d.open, d.done = append(d.open, 0), append(d.done, make(chan struct{}))
		}
		d.open[at]++
	}
	for i, n := range d.open {
		if n == 0 {
			close(d.done[i])
		}
	}

	return d
}

// Wait returns when the deletions of all tasks in later layers than that of t have ended, or ctx has. The tasks must be started in
// the order of the list. Otherwise those that wait may take all places from those for which they wait.
func (d *Deletion) Wait(ctx context.Context, t Task) {
	for _, done := range d.done[d.layer[t]+1:] {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}

// Finish is called when the deletion of a task has ended, whether it succeeded or not.
func (d *Deletion) Finish(t Task) {
	d.mu.Lock()
	defer d.mu.Unlock()

	at := d.layer[t]
	if d.open[at]--; d.open[at] == 0 {
		close(d.done[at])
	}
}
