package api_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// manyEntries is a cluster with 800 tasks in each shard, and an owner that knows their numbers. counted is how many keys
// etcd has counted.
func manyEntries(t *testing.T) (w *world, owner *flaky, counted *atomic.Int64) {
	etcd := kvtest.Memory(t)
	w, counted = newWorldOn(t, etcd), &atomic.Int64{}
	w.sizes(t, etcd, 800)

	add := func(r *etcdserverpb.RangeResponse) { counted.Add(r.GetCount()) }
	w.hookEtcd(func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		switch {
		case err != nil:
		case op.IsGet():
			counted.Add(res.Get().Count)
		case op.IsTxn():
			for _, r := range res.Txn().Responses {
				add(r.GetResponseRange())
			}
		}

		return res, err
	})

	owner = &flaky{ask: func(_ context.Context, q *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) {
		scan := readmodel.NewScan(q, "node-a")
		for shard := range shards {
			scan.Add(readmodel.ShardAnswer{Shard: shard, Owner: 1, Rows: 800}, &readmodel.Index{})
		}
		return scan.Answer(), nil
	}}
	w.owners = map[string]ask{"node-a": owner.answer}
	w.fleet()

	return w, owner, counted
}

// sizes writes entries of some tasks into each shard.
func (w *world) sizes(t *testing.T, etcd clientv3.KV, tasks int) {
	t.Helper()
	for shard := range shards {
		for i := range tasks {
			_, err := etcd.Put(t.Context(), fmt.Sprintf("%sdefault/t%04d", w.store.Keys().Entries(shard), i), "{}")
			must(t, err)
		}
	}
}

// etcd counts all keys of a range, and writes wait meanwhile. The owners of the shards know the numbers of tasks.
func TestCounts_CostNoMoreInALargeCluster(t *testing.T) {
	w, _, counted := manyEntries(t)

	// The status contains a sample of some 1,000 tasks.
	for path, most := range map[string]int64{"/v1/cluster": 2000, "/v1/shards": 100, "/v1/board": 100} {
		counted.Store(0)
		if res := w.do(request{method: "GET", path: path}); res.status != 200 || counted.Load() > most {
			t.Errorf("%s: etcd counted %d keys: %d %s", path, counted.Load(), res.status, res.Detail)
		}
	}

	if st := w.status(); st.Tasks != 800*shards {
		t.Errorf("%d tasks", st.Tasks)
	}

	list, err := w.Shards.List(t.Context())
	must(t, err)
	for _, s := range list {
		if s.Tasks != 800 {
			t.Errorf("shard %d has %d tasks", s.ID, s.Tasks)
		}
	}
}

// etcd counts the tasks of shards for which nobody answers.
func TestCounts_NeedNoOwner(t *testing.T) {
	w, owner, counted := manyEntries(t)
	owner.fail(errors.New("on purpose"))

	if st := w.status(); st.Tasks != 800*shards || counted.Load() < 800*shards {
		t.Errorf("%d tasks; etcd counted %d keys", st.Tasks, counted.Load())
	}
}
