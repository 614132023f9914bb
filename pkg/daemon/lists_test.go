package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
	"github.com/carillonhq/carillon/pkg/task"
)

// Lists are read without pause while one of three nodes is killed and another one drained. The tasks do not change, so
// each list must contain exactly those of the shards that it does not name as missing (G30).
//
// Verifies: G30
func TestLists_NameWhatIsMissingWhenNodesGo(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits

	c := newCluster(t, "--shards", "12", "--lease-ttl", "3s")
	names := []string{"n1", "n2", "n3"}
	for _, n := range names {
		c.start(n)
	}

	var specs []task.Spec
	for i := range 60 {
		s := task.Defaults()
		s.Name, s.Namespace, s.Schedule = fmt.Sprintf("t%02d", i), "default", task.Schedules{"@manual"}
		s.Action.Noop, s.Paused = &task.Noop{}, i%3 == 0
		specs = append(specs, s)
	}
	for r, err := range c.client("n1").Tasks.ApplyAll(t.Context(), slices.Values(specs), client.BatchOptions{}) {
		if err != nil || r.Error != nil {
			t.Fatal(err, r.Error)
		}
	}
	c.balanced(names...)

	// From here on, the owners know all tasks.
	r := &listReader{cluster: c}
	r.waitComplete("n1")
	r.lists = nil

	// n1 survives. n2 answers until it is gone.
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for _, n := range []string{"n1", "n2"} {
		cl := c.client(n)
		readers.Go(func() { r.readLists(ctx, cl, n) })
	}

	c.nodes["n3"].signal(syscall.SIGKILL)
	r.waitComplete("n1")
	c.nodes["n2"].signal(syscall.SIGTERM)
	r.waitComplete("n1")
	stop()
	readers.Wait()

	r.judge()
}

// listReader reads lists, and keeps what it is shown.
type listReader struct {
	*cluster

	mu    sync.Mutex
	asked int
	lists []listcheck.List
}

// read reads a list of all tasks, or of paused ones, and keeps it. The owners are asked each time.
func (r *listReader) read(ctx context.Context, cl *client.Client, node string) (listcheck.List, error) {
	r.mu.Lock()
	r.asked++
	n := r.asked
	r.mu.Unlock()

	// Equal questions get the same answer for a second, so no two are equal.
	o := client.TaskListOptions{Namespace: "default", Query: fmt.Sprintf("name~t,z%d", n), Brief: true}
	l := listcheck.List{Asker: "the reader of " + node, Filter: listcheck.All, ByName: true, Asked: time.Now()}
	if n%3 == 0 {
		o.Query, l.Filter = o.Query+" state:paused", listcheck.Paused
	}

	o.Info = func(i client.ListInfo) {
		l.AsOf, l.Count, l.Missing, l.Collecting = i.AsOf.Time, *i.Count, i.Missing, i.Collecting != nil
	}

	tasks, err := cl.Tasks.List(ctx, o)
	l.Shown = time.Now()
	for _, one := range tasks {
		l.Names = append(l.Names, one.Namespace+"/"+one.Name)
	}

	if err == nil {
		r.mu.Lock()
		r.lists = append(r.lists, l)
		r.mu.Unlock()
	}

	return l, err
}

// readLists reads lists until ctx ends or the node does not answer any more.
func (r *listReader) readLists(ctx context.Context, cl *client.Client, node string) {
	for clock.Sleep(ctx, 30*time.Millisecond) {
		_, err := r.read(ctx, cl, node)
		var problem *client.Error
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, task.ErrUnavailable) || errors.As(err, &problem) && problem.Code == client.CodeBusy:
			continue // no node has answered, or this one is gone
		case err != nil:
			r.t.Errorf("a list by %s: %v", node, err)
			return
		}
	}
}

// waitComplete waits until a list contains all tasks.
func (r *listReader) waitComplete(node string) {
	r.t.Helper()
	cl := r.client(node)

	eventually(r.t, func() error {
		l, err := r.read(r.t.Context(), cl, node)
		want := map[listcheck.Filter]int{listcheck.All: 60, listcheck.Paused: 20}[l.Filter]
		if err == nil && (len(l.Missing) > 0 || l.Count != want) {
			err = fmt.Errorf("a list without the shards %v has %d tasks", l.Missing, l.Count)
		}

		return err
	})
}

// judge judges all lists by the history of etcd.
func (r *listReader) judge() {
	r.t.Helper()

	// Nothing has changed since the first list was read.
	h := listcheck.NewHistory(r.keys, r.recorder.Events(), func(int64) time.Time { return r.lists[0].Asked.Add(-time.Hour) }, nil)
	complete := 0

	for i := range r.lists {
		for _, v := range h.CheckList(&r.lists[i]) {
			r.t.Error(v)
		}
		if len(r.lists[i].Missing) == 0 {
			complete++
		}
	}

	r.t.Logf("%d lists, %d complete", len(r.lists), complete)
	if complete == 0 || complete == len(r.lists) {
		r.t.Errorf("%d of %d lists are complete; the test shows nothing", complete, len(r.lists))
	}
}
