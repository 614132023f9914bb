package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/testkit/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
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

// The newest records of a history are those of all of it, however its runs are distributed, and etcd reads about as many
// values as are wanted.
func TestOutcomes_ReadFewRecordsOfLongHistories(t *testing.T) {
	t.Parallel()
	now := time.Now()
	every := func(d time.Duration) func(i int) time.Duration {
		return func(i int) time.Duration { return time.Duration(i) * d }
	}

	for name, age := range map[string]func(i int) time.Duration{
		"each second": every(time.Second),
		"each month":  every(30 * 24 * time.Hour),
		"bursts": func(i int) time.Duration {
			return time.Duration(i/50)*24*time.Hour + time.Duration(i%50)*time.Millisecond
		},
		"paused for a year":       func(i int) time.Duration { return 365*24*time.Hour + time.Duration(i)*time.Second },
		"once, long ago, and now": func(i int) time.Duration { return time.Duration(i*i*i) * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
			reads := &etcdhook.Reads{}
			etcd.KV = reads.KV(etcd.KV)
			s := store.New(etcd, kv.Direct(etcd), keys)

			const records, wanted = 1500, 5
			var newest []string
			for i := range records {
				id := task.RunID(now.Add(-age(i)), "uid00001")
				_, err := etcd.Put(t.Context(), keys.Ended(ref, id), `{"state":"succeeded"}`)
				ok(t, err)
				if i < wanted {
					newest = append(newest, id)
				}
			}

			reads.Take()
			list, err := s.Outcomes(t.Context(), []record.Ref{ref}, wanted)
			ok(t, err)
			cost := reads.Take()

			var got []string
			for _, run := range list[0].Runs {
				got = append(got, run.ID)
			}
			if !slices.Equal(got, newest) || list[0].Oldest != keys.Ended(ref, newest[wanted-1]) {
				t.Errorf("got %q from %s, want %q", got, list[0].Oldest, newest)
			}
			t.Logf("etcd reads %+v", cost)
			if cost.Values > 200 || cost.Requests > 18 {
				t.Errorf("etcd reads %+v for %d records of %d", cost, wanted, records)
			}
		})
	}
}

// Whatever the ids of the records are, and from wherever the reading begins, the newest records are found.
func TestOutcomes_FindTheNewestOfAnyHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
		s := store.New(etcd, kv.Direct(etcd), keys)

		at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		var all []string
		for range r.IntN(400) {
			at = at.Add(time.Duration(r.Int64N(int64(time.Millisecond) << r.IntN(30))))
			id := task.RunID(at, fmt.Sprintf("%08d", r.IntN(1000)))
			if seed%10 == 0 && r.IntN(9) == 0 {
				id = fmt.Sprint("no-time-", r.IntN(100))
			}

			all = append(all, id)
			_, err := etcd.Put(t.Context(), keys.Ended(ref, id), `{"state":"succeeded"}`)
			ok(t, err)
		}

		slices.Sort(all)
		all = slices.Compact(all)
		n := 3 + r.IntN(20)
		oldest := ""
		if len(all) > 0 && r.IntN(2) == 0 {
			oldest = keys.Ended(ref, all[r.IntN(len(all))])
		}

		list, err := s.OutcomesAfter(t.Context(), []record.Ref{ref}, []string{oldest}, n)
		ok(t, err)

		var got []string
		for _, run := range list[0].Runs {
			got = append(got, run.ID)
		}
		want := slices.Clone(all[max(0, len(all)-n):])
		slices.Reverse(want)
		if !slices.Equal(got, want) {
			t.Errorf("seed %d: %d of %d records from %q: got %q, want %q", seed, n, len(all), oldest, got, want)
		}
	}
}
