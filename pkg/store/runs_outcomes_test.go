package store_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// outcomeReads asks for tasks, from the beginning of their histories.
func outcomeReads(refs ...record.Ref) []store.OutcomeRead {
	reads := make([]store.OutcomeRead, len(refs))
	for i, ref := range refs {
		reads[i].Ref = ref
	}

	return reads
}

// Whatever has become of a history since it was read, the outcomes are those of a first reading.
func TestOutcomes_FindAgainWhatAFirstReadingFinds(t *testing.T) {
	t.Parallel()

	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
		s := store.New(etcd, kv.Direct(etcd), keys)
		refs := make([]record.Ref, 60) // more than a transaction reads
		for i := range refs {
			refs[i] = record.Ref{Namespace: "x", Name: fmt.Sprint("t", i), Shard: i % 3}
		}

		again := outcomeReads(refs...)
		again[0].Oldest = "/c/shards/other" // it is ignored
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

			want, err := s.Outcomes(t.Context(), outcomeReads(refs...), 4)
			ok(t, err)
			got, err := s.Outcomes(t.Context(), again, 4)
			ok(t, err)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: %+v, want %+v", seed, got, want)
			}
			for i, o := range got {
				again[i].Oldest = o.Oldest
			}
		}
	}
}

// A history that is read again is read from the place that the reading before has reached, and not from its beginning.
func TestOutcomes_ReadAgainOnlyTheEndOfAHistory(t *testing.T) {
	t.Parallel()
	w := newInboxWorld(t) // its client is its own, so that a hook sees only its reads
	for n := range 30 {
		w.putEnd(ref, n, task.Succeeded)
	}

	first, err := w.Outcomes(t.Context(), outcomeReads(ref), 10)
	ok(t, err)
	w.putEnd(ref, 30, task.Failed)

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
	again, err := w.Outcomes(t.Context(), []store.OutcomeRead{{Ref: ref, Oldest: first[0].Oldest}}, 10)
	ok(t, err)

	if len(from) != 3 || from[0] != w.keys.Ended(ref, tickRun(ref, 20).ID) {
		t.Errorf("it reads from %q", from)
	}
	if len(again[0].Runs) != 10 || again[0].Runs[0].State != "failed" || again[0].Oldest != w.keys.Ended(ref, tickRun(ref, 21).ID) {
		t.Errorf("got %+v", again[0])
	}
}

// The history of a failing task is not searched for a success if the owner of its shard has said that the task is failing.
func TestOutcomes_DoNotSearchWhatTheOwnerKnows(t *testing.T) {
	t.Parallel()
	w := newInboxWorld(t) // its client is its own, so that a hook sees only its reads
	for n := range 30 {
		w.putEnd(ref, n, task.Failed)
	}
	w.put(w.keys.DeadRun(ref, tickRun(ref, 1).ID), `{"state":"failed"}`)

	requests := 0
	w.etcd.KV = etcdhook.KV(w.etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		requests++
		return next(ctx, op)
	})

	for _, succeeded := range []bool{false, true} {
		if succeeded {
			// What the owner has said is older than the records, and settles only what they leave open.
			w.putEnd(ref, 30, task.Succeeded)
		}

		counts := map[bool]int{}
		for _, known := range []bool{false, true} {
			requests = 0
			list, err := w.Outcomes(t.Context(), []store.OutcomeRead{{Ref: ref, KnownFailing: known}}, 3)
			ok(t, err)

			if list[0].Failing == succeeded {
				t.Errorf("after a success (%t), with KnownFailing %t, failing is %t", succeeded, known, list[0].Failing)
			}
			counts[known] = requests
		}

		if saved := counts[false] - counts[true]; saved != 0 == succeeded {
			t.Errorf("after a success (%t), the owner's word saves %d requests", succeeded, saved)
		}
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
			list, err := s.Outcomes(t.Context(), outcomeReads(ref), wanted)
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

		list, err := s.Outcomes(t.Context(), []store.OutcomeRead{{Ref: ref, Oldest: oldest}}, n)
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

// A task is failing if it has a dead run whose create revision is above that of the last success, however many records
// there are, and in whatever order the ticks of the runs were.
func TestOutcomes_AFailingTask(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
		s := store.New(etcd, kv.Direct(etcd), keys)
		put := func(key, value string) {
			_, err := etcd.Put(t.Context(), key, value)
			ok(t, err)
		}

		const uid = "uid00001"
		start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		ended := func(state task.State) string {
			return string(record.EncodeEnded(task.Run{UID: uid, State: state, EndedAt: task.At(start)}))
		}

		// The revision of each record: the last success, and the dead runs.
		success, dead := int64(0), map[string]int64{}
		failing := func() bool {
			for _, created := range dead {
				if created > success {
					return true
				}
			}
			return false
		}

		for range 1 + r.IntN(60) {
			of := uid
			if r.IntN(8) == 0 {
				of = "uxd00001" // a deleted task of the same name
			}
			id := task.RunID(start.Add(time.Duration(r.IntN(100_000))*time.Second), of)

			switch what := r.IntN(20); {
			case what < 1:
				put(keys.Ended(ref, id), ended(task.Succeeded))
			case what < 2:
				put(keys.Late(ref, id, 7), ended(task.Succeeded))
			case what < 4:
				put(keys.Ended(ref, id), ended(task.Failed))
				put(keys.DeadRun(ref, id), ended(task.Failed))
			case what < 5 && r.IntN(3) == 0: // two runs end in one revision, one of which succeeds
				other := task.RunID(start.Add(200_000*time.Second), of)
				_, err := etcd.Txn(t.Context()).Then(clientv3.OpPut(keys.Ended(ref, id), ended(task.Failed)),
					clientv3.OpPut(keys.DeadRun(ref, id), ended(task.Failed)), clientv3.OpPut(keys.Ended(ref, other), ended(task.Succeeded))).Commit()
				ok(t, err)
			case what < 5 && len(dead) > 0: // a dismissal begins, and may end
				run := slices.Sorted(maps.Keys(dead))[r.IntN(len(dead))]
				put(keys.DeadRun(ref, run), ended(task.Failed))
				if r.IntN(2) == 0 {
					_, err := etcd.Delete(t.Context(), keys.DeadRun(ref, run))
					ok(t, err)
				}
			default:
				put(keys.Ended(ref, id), ended(task.Skipped))
			}

			// What the records say, read without any of the code under test.
			all, err := etcd.Get(t.Context(), "/c/", clientv3.WithPrefix())
			ok(t, err)
			success, dead = 0, map[string]int64{}
			for _, e := range all.Kvs {
				key := string(e.Key)
				run := key[strings.LastIndex(key, "/")+1:]
				switch {
				case !strings.Contains(key, "-uid0"):
				case strings.Contains(key, "/dead/"):
					dead[run] = e.CreateRevision
				case strings.Contains(string(e.Value), `"succeeded"`) && !strings.Contains(key, "~late~"):
					success = max(success, e.CreateRevision)
				}
			}
		}

		list, err := s.Outcomes(t.Context(), []store.OutcomeRead{{Ref: ref, UID: uid}}, 1)
		ok(t, err)
		if list[0].Failing != failing() {
			t.Errorf("seed %d: failing is %t; the last success is of %d, the dead runs are of %v", seed, list[0].Failing, success, dead)
		}

		list, err = s.Outcomes(t.Context(), []store.OutcomeRead{{Ref: ref, UID: uid, KnownFailing: failing()}}, 1)
		ok(t, err)
		if list[0].Failing != failing() {
			t.Errorf("seed %d: the owner says that failing is %t, and the reading says %t", seed, failing(), list[0].Failing)
		}
	}
}

// A run whose parts have begun does not wait, nor does a part. Parts are skipped, because there may be thousands.
func TestOutcomes_ARunThatWaits(t *testing.T) {
	t.Parallel()
	const uid = "uid00001"
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	id := func(i int) string { return task.RunID(start.Add(time.Duration(i)*time.Second), uid) }

	queued := func(s *store.Store, etcd *kv.Client, run string, w task.Waiting) {
		w.ID, w.UID = "", uid
		_, err := etcd.Put(t.Context(), s.Keys().Queued(ref, run), string(record.EncodeWaiting(w)))
		ok(t, err)
	}
	parent := task.Waiting{Run: task.Run{State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Count: 3}}}}
	waits := task.Waiting{Run: task.Run{State: task.Queued}}

	for name, tt := range map[string]struct {
		fill     func(put func(run string, w task.Waiting))
		waits    bool
		underWay []string
	}{
		"nothing":           {func(func(string, task.Waiting)) {}, false, nil},
		"a run":             {func(put func(string, task.Waiting)) { put(id(1), waits) }, true, nil},
		"of a deleted task": {func(put func(string, task.Waiting)) { put(task.RunID(start, "uxd0"), waits) }, false, nil},
		"a run with parts": {func(put func(string, task.Waiting)) {
			put(id(1), parent)
			for i := range 300 {
				put(task.PartID(id(1), i), waits)
			}
		}, false, []string{id(1)}},
		"a run behind one with parts": {func(put func(string, task.Waiting)) {
			put(id(1), parent)
			for i := range 100 {
				put(task.PartID(id(1), i), waits)
			}
			put(id(2), waits)
			put(id(3), parent)
		}, true, []string{id(1), id(3)}},
		"many runs": {func(put func(string, task.Waiting)) {
			for i := range 40 {
				put(id(i), waits)
			}
			put(id(40), parent)
		}, true, []string{id(40)}},
	} {
		t.Run(name, func(t *testing.T) {
			etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
			reads := &etcdhook.Reads{}
			s := store.New(etcd, kv.Direct(etcd), keys)
			tt.fill(func(run string, w task.Waiting) { queued(s, etcd, run, w) })

			etcd.KV = reads.KV(etcd.KV)
			list, err := s.Outcomes(t.Context(), []store.OutcomeRead{{Ref: ref, UID: uid}}, 1)
			ok(t, err)
			if list[0].Waits != tt.waits || !slices.Equal(list[0].UnderWay, tt.underWay) {
				t.Errorf("%+v, want %t and %q", list[0], tt.waits, tt.underWay)
			}
			if cost := reads.Take(); cost.Values > 60 {
				t.Errorf("etcd reads %+v", cost)
			}
		})
	}
}

// A workflow that was cancelled is dead, so that it can be retried, but its task is not failing because of it.
func TestOutcomes_CancelledDeadRunsAreNoFailures(t *testing.T) {
	const uid = "uid00001"
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	for name, tt := range map[string]struct {
		records []task.State // of runs that ended one after the other
		failing bool
	}{
		"cancelled":                         {[]task.State{task.Cancelled, task.Cancelled}, false},
		"failed, then cancelled":            {[]task.State{task.Failed, task.Cancelled, task.Cancelled}, true},
		"cancelled, then failed":            {[]task.State{task.Cancelled, task.Failed}, true},
		"failed, succeeded, then cancelled": {[]task.State{task.Failed, task.Succeeded, task.Cancelled}, false},
	} {
		etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
		s := store.New(etcd, kv.Direct(etcd), keys)
		for i, state := range tt.records {
			id := task.RunID(start.Add(time.Duration(i)*time.Second), uid)
			end := task.Run{UID: uid, State: state, EndedAt: task.At(start), Trigger: task.TriggerSchedule}
			_, err := etcd.Put(t.Context(), keys.Ended(ref, id), record.Encode(end))
			ok(t, err)
			if state != task.Succeeded {
				_, err = etcd.Put(t.Context(), keys.DeadRun(ref, id), string(record.EncodeWaiting(task.Waiting{Run: end})))
				ok(t, err)
			}
		}

		list, err := s.Outcomes(t.Context(), []store.OutcomeRead{{Ref: ref, UID: uid}}, 5)
		ok(t, err)
		if list[0].Failing != tt.failing {
			t.Errorf("%s: failing %t", name, list[0].Failing)
		}
	}
}
