package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A full etcd accepts transactions that only delete, alone and in a shared request. So trims continue, and tasks can
// be deleted. Writes with puts are refused but not lost: a commit succeeds as soon as there is space.
//
// Verifies: G38
func TestFullEtcd_TakesTrimsAndDeletes(t *testing.T) {
	server := kvtest.StartWithQuota(t, 16<<20)
	etcd := server.Client()
	batching := kv.NewBatcher(etcd, kv.BatcherConfig{InFlight: 1})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = batching.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	keys, err := record.NewKeys("/full")
	ok(t, err)
	alone := store.New(etcd, kv.Direct(etcd), keys)
	w := &world{T: t, Store: alone.Batching(batching), keys: keys, etcd: etcd}
	_, _, err = w.Bootstrap(t.Context(), 8, noon, store.OpenAccess())
	ok(t, err)
	w.fences.Node = w.register(node)
	w.fences.Owner = w.own(ref.Shard, node)

	const tasks, records, keep = 40, 6, 2

	refs := make([]record.Ref, tasks)
	for i := range refs {
		refs[i] = record.Ref{Namespace: "default", Name: fmt.Sprintf("t%02d", i), Shard: ref.Shard}
		w.create(refs[i])

		for n := range records {
			c := w.begin()
			c.Record(refs[i], ended(refs[i], n, task.Missed))
			w.commit(c)
		}
	}

	for i := 0; ; i++ {
		// A few other errors are pauses of the machine.
		if _, err = etcd.Put(t.Context(), fmt.Sprintf("/junk/%d", i), strings.Repeat("x", 1<<18)); store.NoSpace(err) || err != nil && i > 200 {
			break
		}
	}

	if !store.NoSpace(err) {
		t.Fatal(err)
	}

	c := w.begin()
	committed := make(chan error, 1)
	go func() {
		_, err := w.Commit(t.Context(), c)
		committed <- err
	}()

	if _, err := w.CreateTask(t.Context(), ref, spec(ref), entry(spec(ref))); !store.NoSpace(err) {
		t.Errorf("a task was created in a full etcd: %v", err)
	}

	trim := func(s *store.Store, r record.Ref) error {
		past, err := s.History(t.Context(), r, false)
		if err != nil {
			return err
		}
		return s.TrimHistory(t.Context(), w.fences, r, slices.Concat(past[1:2], past[3:records]))
	}

	past, err := alone.History(t.Context(), refs[0], false)
	ok(t, err)
	_, created, _ := w.at(keys.Entry(refs[0]))
	fold := store.HistoryFold{Ref: refs[0], EntryCreate: created, Gone: past[:1], Put: []store.LedgerChunk{{ID: "1", Value: []byte("{}")}}}
	for _, s := range []*store.Store{alone, w.Store} {
		if err := s.FoldHistory(t.Context(), w.fences, fold); !store.NoSpace(err) {
			t.Errorf("a fold in a full etcd: %v", err)
		}
	}

	ok(t, trim(alone, refs[0]))
	var trims sync.WaitGroup

	for i, r := range refs[1:] { // the requests are few, because only one is in flight at a time, and contain others with puts
		trims.Go(func() {
			if err := trim(w.Store, r); err != nil {
				t.Errorf("trim %s: %v", r, err)
			}
		})

		trims.Go(func() {
			r := record.Ref{Namespace: "new", Name: fmt.Sprint(i), Shard: ref.Shard}
			if _, err := w.CreateTask(t.Context(), r, spec(r), entry(spec(r))); !store.NoSpace(err) {
				t.Errorf("create %s: %v", r, err)
			}
		})
	}

	trims.Wait()

	if left := len(w.below(keys.History(ref.Shard))); left != tasks*keep {
		t.Errorf("%d records are left, want %d", left, tasks*keep)
	}

	_, err = w.DeleteTask(t.Context(), w.stored(refs[0]))
	ok(t, err)
	both := []clientv3.Op{
		clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("/junk/0")}, nil), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("/junk/1")}, nil),
	}
	if res, err := etcd.Txn(t.Context()).Then(both...).Commit(); err != nil || !res.Succeeded {
		t.Errorf("deletes in one request: %v", err)
	}

	select {
	case err := <-committed:
		t.Fatalf("a commit came to an end in a full etcd: %v", err)
	default:
	}

	space, err := etcd.Delete(t.Context(), "/junk/", clientv3.WithPrefix())
	ok(t, err)
	_, err = etcd.Compact(t.Context(), space.Header.Revision, clientv3.WithCompactPhysical())
	ok(t, err)
	_, err = etcd.Defragment(t.Context(), server.Endpoint())
	ok(t, err)

	m := w.Members(t.Context(), time.Minute)
	if len(m) != 1 || m[0].Err != nil || fmt.Sprint(m[0].Alarms) != "[NOSPACE]" || m[0].Used() >= etcdadmin.FillingUp || m[0].Quota != 16<<20 {
		t.Errorf("%+v", m)
	}

	_, err = etcd.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	ok(t, err)
	ok(t, <-committed)
}

func TestSampleHistory_CountsSomeTasks(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	w.create(record.Ref{Namespace: "x", Name: "b", Shard: 6})

	for n := range 3 {
		c := w.begin()
		c.Record(ref, ended(ref, n, task.Missed))
		w.commit(c)
	}

	mine := ref.Namespace + "/" + ref.Name
	for _, c := range []struct {
		samples []store.HistorySample
		want    [2]int64
	}{
		{[]store.HistorySample{{Shard: ref.Shard}, {Shard: 6}}, [2]int64{2, 3}},
		{[]store.HistorySample{{Shard: ref.Shard}}, [2]int64{1, 3}},
		{[]store.HistorySample{{Shard: ref.Shard, From: mine}}, [2]int64{1, 3}},
		{[]store.HistorySample{{Shard: ref.Shard, To: mine}}, [2]int64{0, 0}},
		{[]store.HistorySample{{Shard: ref.Shard, From: mine + "0"}}, [2]int64{0, 0}},
		{[]store.HistorySample{{Shard: 1}}, [2]int64{0, 0}},
	} {
		tasks, records, err := w.SampleHistory(t.Context(), c.samples)
		if err != nil || [2]int64{tasks, records} != c.want {
			t.Errorf("%v: %d tasks, %d records, %v", c.samples, tasks, records, err)
		}
	}
}
