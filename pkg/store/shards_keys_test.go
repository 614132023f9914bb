package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// walkingKV is a KV that counts the keys that etcd visits to answer reads: all up to the end of each range.
type walkingKV struct {
	clientv3.KV
	visited int64
}

func (w *walkingKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	res, err := w.KV.Get(ctx, key, opts...)
	if err == nil {
		w.visited += res.Count
	}

	return res, err
}

// putAll puts keys with an empty record.
func putAll(t *testing.T, c *kv.Client, keys []string) {
	t.Helper()

	for some := range slices.Chunk(keys, 100) {
		var ops []clientv3.Op
		for _, key := range some {
			ops = append(ops, clientv3.OpPut(key, "{}"))
		}

		_, err := kv.Direct(c).Commit(t.Context(), kv.Txn{Then: ops})
		ok(t, err)
	}
}

func TestShardKeys_VisitEachKeyAboutOnce(t *testing.T) {
	c := kvtest.Memory(t)
	walk := &walkingKV{KV: c.KV}
	c.KV = walk
	keys := testKeys(t, "/t")
	s := store.New(c, kv.Direct(c), keys)

	const tasks = 10_000
	var all []string
	for i := range tasks {
		all = append(all, keys.Entry(record.Ref{Namespace: "team", Name: fmt.Sprintf("job-%05d", i)}))
	}
	putAll(t, c, all)

	list, _, err := s.ShardKeys(t.Context(), 0)
	ok(t, err)

	if len(list) != tasks || walk.visited > 2*tasks {
		t.Errorf("listed %d keys and visited %d", len(list), walk.visited)
	}
}

func TestHistoryKeys_PagesVisitEachKeyAboutOnce(t *testing.T) {
	c := kvtest.Memory(t)
	walk := &walkingKV{KV: c.KV}
	c.KV = walk
	keys := testKeys(t, "/t")
	s := store.New(c, kv.Direct(c), keys)

	const tasks, runs = 1000, 10
	var all, splits []string
	for i := range tasks {
		ref := record.Ref{Namespace: "team", Name: fmt.Sprintf("job-%05d", i)}
		if i%10 == 9 {
			splits = append(splits, ref.String())
		}

		all = append(all, keys.DeadRun(ref, "20261120T220500.000Z-dead"))
		for j := range runs {
			all = append(all, keys.Ended(ref, fmt.Sprintf("20261120T22%02d00.000Z-k3f9", j)))
		}
	}
	slices.Sort(all)
	putAll(t, c, all)

	for _, c := range []struct {
		what    string
		splits  []string
		visited int64
	}{
		{"without splits", nil, 10 * tasks * runs},
		{"with splits", splits, 3 * tasks * runs},
	} {
		walk.visited = 0
		var got []string
		for after := ""; ; {
			page, next, err := s.HistoryKeys(t.Context(), 0, after, c.splits)
			ok(t, err)

			for _, ev := range page {
				got = append(got, ev.Key)
			}

			if after = next; next == "" {
				break
			}
		}

		if !slices.Equal(got, all) || walk.visited > c.visited {
			t.Errorf("%s: listed %d of %d keys and visited %d", c.what, len(got), len(all), walk.visited)
		}
	}
}
