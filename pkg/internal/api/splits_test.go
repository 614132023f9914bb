package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// manySpecs is a cluster with 3,000 tasks in three namespaces, and an owner of all of them. counted is how many keys etcd
// has counted for reads of specs.
func manySpecs(t *testing.T) (w *world, names []string, owner *flaky, counted *atomic.Int64) {
	etcd := kvtest.Memory(t)
	w, counted = newWorldOn(t, etcd), &atomic.Int64{}

	var index readmodel.Index
	for _, ns := range []string{"alpha", "beta", "default"} {
		for i := range 1000 {
			name := fmt.Sprintf("%s/t%04d", ns, i)
			_, err := etcd.Put(t.Context(), w.store.Keys().Specs()+name, fmt.Sprintf(`{"namespace":%q,"name":%q}`, ns, name[len(ns)+1:]))
			must(t, err)
			index.Put(readmodel.NoSlot, readmodel.Row{Name: name}, readmodel.Details{}, nil)
			names = append(names, name)
		}
	}

	w.hookEtcd(func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		if err == nil && op.IsGet() && strings.HasPrefix(string(op.KeyBytes()), w.store.Keys().Specs()) {
			counted.Add(res.Get().Count)
		}

		return res, err
	})

	owner = &flaky{ask: func(_ context.Context, q *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) {
		scan := readmodel.NewScan(q, "node-a")
		scan.Add(readmodel.ShardAnswer{Shard: 3}, &index)
		return scan.Answer(), nil
	}}
	w.owners = map[string]ask{"node-a": owner.answer}
	w.fleet()

	return w, names, owner, counted
}

// etcd counts all keys of a range. A page by name must not cost more in a larger cluster.
func TestTasks_ByNameReadsShortRanges(t *testing.T) {
	w, names, owner, counted := manySpecs(t)

	for _, c := range []struct {
		query string
		want  []string
	}{
		{"", names},
		{"&q=name:beta/*", names[1000:2000]},
		{"&q=name:default/t07*", names[2700:2800]},
	} {
		var got []string
		for page := ""; ; {
			counted.Store(0)
			l, res := w.tasksPage("brief=true&limit=50" + c.query + page)
			if res.status != 200 || len(l.Items) != 50 || counted.Load() > 1500 {
				t.Fatalf("%q: etcd counted %d keys for %d tasks: %s", c.query, counted.Load(), len(l.Items), res.Detail)
			}

			for _, one := range l.Items {
				got = append(got, one.Namespace+"/"+one.Name)
			}

			if page = "&page=" + l.Next; l.Next == "" {
				break
			}
		}

		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %d tasks, want %d", c.query, len(got), len(c.want))
		}
	}

	if n := owner.asked.Load(); n != 1 {
		t.Errorf("the owner was asked %d times", n)
	}
}

// Without an owner, pages by name are complete, and only cost more.
func TestTasks_ByNameNeedsNoOwner(t *testing.T) {
	w, names, owner, _ := manySpecs(t)
	owner.fail(errors.New("on purpose"))

	for range 2 {
		l, res := w.tasksPage("brief=true&limit=5000")
		if len(l.Items) != len(names) || l.Next != "" {
			t.Errorf("%d tasks: %s", len(l.Items), res.Detail)
		}
	}

	// Nobody asks again at once.
	if n := owner.asked.Load(); n != 1 {
		t.Errorf("the owner was asked %d times", n)
	}
}

// The names that divide the tasks are only those that a caller may read, because the owner gets the rights of the caller.
func TestTasks_SplitsAreThoseOfTheCaller(t *testing.T) {
	w, names, owner, _ := manySpecs(t)
	answer := owner.ask
	var within [][]string
	owner.ask = func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		within = append(within, q.Filter.Within)
		return answer(ctx, q, without)
	}

	w.namespace(task.Namespace{Name: "alpha"})
	w.bind("user:eve", "viewer", "alpha", "default")
	eve := w.token("user:eve")

	for _, c := range []struct {
		who  string
		want int
	}{{eve, 2000}, {w.secret, len(names)}, {eve, 2000}} {
		w.secret = c.who
		if l, res := w.tasksPage("brief=true&limit=5000"); len(l.Items) != c.want {
			t.Errorf("%d tasks, want %d: %s", len(l.Items), c.want, res.Detail)
		}
	}

	if len(within) != 2 || !slices.Equal(within[0], []string{"alpha", "default"}) || within[1] != nil {
		t.Errorf("the owner was asked for %q", within)
	}
}
