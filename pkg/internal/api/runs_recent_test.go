package api_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// A list of the newest runs that may lag is made of what the owners remember, and does not read the keys of the histories.
// If they remember too few runs, the list is read from etcd, so it is the same.
func TestRuns_NewestAreThoseThatOwnersRemember(t *testing.T) {
	etcd := kvtest.Memory(t)
	w := newWorldOn(t, etcd)
	w.create("a", "@manual")
	w.create("b", "@manual")

	var index readmodel.Index
	index.NoteLoad(id(10, ""))
	for i := range 40 {
		name := []string{"a", "b"}[i%2]
		state := task.Succeeded
		if i%10 == 0 {
			state = task.Failed
		}
		w.ended(name, id(i, "aaaa"), state, nil)
		index.AddRun(readmodel.RunPlace{Task: "default/" + name, Run: id(i, "aaaa")})
	}

	var listed atomic.Int64
	w.hookEtcd(func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		etcdhook.Each(op, func(cmps []clientv3.Cmp, then, els []clientv3.Op) clientv3.Op {
			for _, o := range then {
				if o.IsGet() && len(o.RangeBytes()) > 0 && strings.Contains(string(o.KeyBytes()), "/history/") {
					listed.Add(1)
				}
			}
			return clientv3.OpTxn(cmps, then, els)
		})
		return next(ctx, op)
	})

	w.owners = map[string]ask{"node-a": func(_ context.Context, q *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) {
		scan := readmodel.NewScan(q, "node-a")
		for shard := range shards {
			x := &readmodel.Index{}
			if shard == 3 {
				x = &index
			}
			scan.Add(readmodel.ShardAnswer{Shard: shard, Owner: 1}, x)
		}
		return scan.Answer(), nil
	}}
	w.fleet()

	tick := func(minute int) time.Time { return time.Date(2026, 11, 20, 20, minute, 0, 0, time.UTC) }
	for _, c := range []struct {
		options client.RunListOptions
		memory  bool
	}{
		{client.RunListOptions{Limit: 10}, true},
		{client.RunListOptions{Limit: 10, Namespace: "default"}, true},
		{client.RunListOptions{Limit: 25}, true},
		{client.RunListOptions{Limit: 35}, false},
		{client.RunListOptions{Limit: 3, States: []task.State{task.Failed}}, false}, // the fourth one is not remembered
		{client.RunListOptions{Limit: 2, States: []task.State{task.Failed}}, true},
		{client.RunListOptions{Limit: 10, Until: tick(30)}, true},
		{client.RunListOptions{Limit: 20, Since: tick(20)}, true},
		{client.RunListOptions{Limit: 20, Since: tick(5), Until: tick(15)}, false},
	} {
		want, err := w.Runs.Page(t.Context(), c.options, "")
		must(t, err)

		c.options.Eventual = true
		listed.Store(0)
		got, err := w.Runs.Page(t.Context(), c.options, "")
		if err != nil || told(got.Items) != told(want.Items) || (got.Next != "") != (want.Next != "") {
			t.Errorf("%+v: %s, want %s, %v", c.options, told(got.Items), told(want.Items), err)
		}
		if fromMemory := listed.Load() == 0; fromMemory != c.memory {
			t.Errorf("%+v: %d ranges of histories were read", c.options, listed.Load())
		}
	}

	// All pages together have each run once.
	all := 0
	for page := ""; ; {
		l, err := w.Runs.Page(t.Context(), client.RunListOptions{Limit: 7, Eventual: true}, page)
		must(t, err)
		all += len(l.Items)
		if page = l.Next; page == "" {
			break
		}
	}
	if all != 40 {
		t.Errorf("%d runs on all pages", all)
	}
}

// A run may start after the inboxes were read, and before its record in the queue is. It is not left out.
func TestRuns_NewestHaveARunThatStartsMeanwhile(t *testing.T) {
	etcd := kvtest.Memory(t)
	w := newWorldOn(t, etcd)
	w.create("a", "@manual")
	w.ended("a", id(30, "aaaa"), task.Succeeded, nil)
	w.waiting("a", id(31, "aaaa"), nil)
	w.ended("a", id(32, "aaaa"), task.Succeeded, nil)

	var index readmodel.Index
	for _, minute := range []int{30, 31, 32} {
		index.AddRun(readmodel.RunPlace{Task: "default/a", Run: id(minute, "aaaa")})
	}

	inboxesRead, listing := make(chan struct{}), sync.Once{}
	w.hookEtcd(func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		if op.IsGet() && strings.Contains(string(op.KeyBytes()), "/runs/") {
			listing.Do(func() { close(inboxesRead) })
		}
		return res, err
	})

	w.owners = map[string]ask{"node-a": func(ctx context.Context, q *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) {
		select {
		case <-inboxesRead:
		case <-ctx.Done():
			return readmodel.NodeAnswer{}, ctx.Err()
		}

		w.active("node-a", "a", id(31, "aaaa"))
		if _, err := etcd.Delete(ctx, w.store.Keys().Queued(ref("default", "a"), id(31, "aaaa"))); err != nil {
			return readmodel.NodeAnswer{}, err
		}

		scan := readmodel.NewScan(q, "node-a")
		for shard := range shards {
			x := &readmodel.Index{}
			if shard == 3 {
				x = &index
			}
			scan.Add(readmodel.ShardAnswer{Shard: shard, Owner: 1}, x)
		}
		return scan.Answer(), nil
	}}
	w.fleet()

	got, err := w.Runs.Page(t.Context(), client.RunListOptions{Limit: 10, Eventual: true}, "")
	if want := "32:succeeded 31:running 30:succeeded"; err != nil || told(got.Items) != want {
		t.Errorf("%s, %v, want %s", told(got.Items), err, want)
	}
}

// An owner whose watch has heard nothing for long does not know the newest runs.
func TestRuns_NewestAreReadIfAnOwnerIsFarBehind(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@manual")
	w.ended("a", id(30, "aaaa"), task.Succeeded, nil)

	var age time.Duration
	w.owners = map[string]ask{"node-a": func(_ context.Context, q *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) {
		scan := readmodel.NewScan(q, "node-a")
		for shard := range shards {
			scan.Add(readmodel.ShardAnswer{Shard: shard, Owner: 1, AgeMS: age.Milliseconds()}, &readmodel.Index{})
		}
		return scan.Answer(), nil
	}}
	w.fleet()

	for _, c := range []struct {
		age  time.Duration
		want string
	}{{2 * time.Second, ""}, {time.Minute, "30:succeeded"}} {
		age = c.age
		got, err := w.Runs.Page(t.Context(), client.RunListOptions{Limit: 10, Eventual: true}, "")
		if err != nil || told(got.Items) != c.want {
			t.Errorf("%s behind: %q, %v, want %q", c.age, told(got.Items), err, c.want)
		}
	}
}

// A caller finds the run that it has just started, also if the owner of the shard does not know it yet.
func TestRuns_NewestHaveWhatTheCallerHasQueued(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@manual")

	var index readmodel.Index
	index.NoteApplied(1)
	w.owners = map[string]ask{"node-a": func(_ context.Context, q *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) {
		scan := readmodel.NewScan(q, "node-a")
		for shard := range shards {
			if index.HasApplied(q.MinRevisions[shard]) {
				scan.Add(readmodel.ShardAnswer{Shard: shard, Owner: 1}, &index)
			}
		}
		return scan.Answer(), nil
	}}
	w.fleet()

	run, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)

	got, err := w.Runs.Page(t.Context(), client.RunListOptions{Limit: 10, Eventual: true}, "")
	if err != nil || len(got.Items) != 1 || got.Items[0].ID != run.ID {
		t.Errorf("%s, %v, want the run %s", told(got.Items), err, run.ID)
	}
}
