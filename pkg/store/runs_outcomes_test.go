package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/testkit/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Whatever has become of a history since it was read, the outcomes are those of a first reading.
func TestOutcomesAfter_FindsWhatAFirstReadingFinds(t *testing.T) {
	t.Parallel()

	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
		s := store.New(etcd, kv.Direct(etcd), keys)
		refs := make([]record.Ref, 60) // more than a transaction reads
		for i := range refs {
			refs[i] = record.Ref{Namespace: "x", Name: fmt.Sprint("t", i), Shard: i % 3}
		}

		oldest := make([]string, len(refs))
		oldest[0] = "/c/shards/other" // it is ignored
		for range 4 {
			for range r.IntN(300) {
				ref, run := refs[r.IntN(8)], tickRun(ref, r.IntN(20)).ID
				key := keys.Ended(ref, run)
				if r.IntN(4) == 0 {
					key = keys.Late(ref, run, int64(r.IntN(3)))
				}
				if r.IntN(3) == 0 {
					_, err := etcd.Delete(t.Context(), key)
					ok(t, err)
				} else {
					_, err := etcd.Put(t.Context(), key, `{"state":"succeeded"}`)
					ok(t, err)
				}
			}

			want, err := s.Outcomes(t.Context(), refs, 4)
			ok(t, err)
			got, err := s.OutcomesAfter(t.Context(), refs, oldest, 4)
			ok(t, err)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: %+v, want %+v", seed, got, want)
			}
			for i, o := range got {
				oldest[i] = o.Oldest
			}
		}
	}
}

// A history that is read again is read from the place that the reading before has reached, and not from its beginning.
func TestOutcomesAfter_ReadsOnlyTheEndOfAHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for n := range 30 {
		w.putEnded(ref, n, "succeeded")
	}

	first, err := w.Outcomes(t.Context(), []record.Ref{ref}, 10)
	ok(t, err)
	w.putEnded(ref, 30, "failed")

	var from []string
	w.etcd.KV = etcdhook.KV(w.etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if op.IsTxn() {
			_, reads, _ := op.Txn()
			for _, r := range reads {
				from = append(from, string(r.KeyBytes()))
			}
		}

		return next(ctx, op)
	})
	again, err := w.OutcomesAfter(t.Context(), []record.Ref{ref}, []string{first[0].Oldest}, 10)
	ok(t, err)

	if len(from) != 3 || from[0] != w.keys.Ended(ref, tickRun(ref, 20).ID) {
		t.Errorf("it reads from %q", from)
	}
	if len(again[0].Runs) != 10 || again[0].Runs[0].State != "failed" || again[0].Oldest != w.keys.Ended(ref, tickRun(ref, 21).ID) {
		t.Errorf("got %+v", again[0])
	}
}
