package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// administrator writes on behalf of root on a host, which needs no access records but the fence. It reads the fence
// before each attempt, so that it never loses to a change that it has not seen.
type administrator struct {
	etcd      *kv.Client
	keys      record.Keys
	operation string

	mu   sync.Mutex
	late []task.AuditRecord
}

// Authorize implements store.Authority.
func (a *administrator) Authorize(ctx context.Context, _ *store.Proof) (store.Proof, error) {
	r, err := a.etcd.Get(ctx, a.keys.Fence())
	if err != nil {
		return store.Proof{}, err
	}

	return store.Proof{Fence: r.Kvs[0].ModRevision}, nil
}

// Record implements store.Authority.
func (a *administrator) Record() task.AuditRecord {
	return task.AuditRecord{ID: record.NewAuditID(time.Now()), Time: task.At(time.Now()), Subject: "unix:root", Operation: a.operation}
}

// GrantsAccess implements store.Authority.
func (*administrator) GrantsAccess() bool { return true }

// Committed implements store.Authority.
func (*administrator) Committed([]int, int64) {}

// Late implements store.Authority.
func (a *administrator) Late(r task.AuditRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late = append(a.late, r)
}

// takeLate returns the late records so far, as "operation: change kind name, …", and forgets them. Each must be marked
// late and name the revision of its change.
func (a *administrator) takeLate(t *testing.T) (list []string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()

	for _, r := range a.late {
		if !r.Late || r.Revision == 0 {
			t.Errorf("not marked late, or without its revision: %+v", r)
		}

		var objects []string
		for _, o := range r.Objects {
			objects = append(objects, o.Change+" "+o.Kind+" "+o.Name)
		}

		list = append(list, r.Operation+": "+strings.Join(objects, ", "))
	}
	a.late = nil

	return list
}

// A full etcd accepts deletions only: revoking a token and deleting a task work, without their audit records, which the
// node keeps. Everything that must put a record is refused and changes nothing: disabling a user, changing a binding,
// and cancelling a run, because a waiting run gets a record of its end, and an attempt is asked to end by its own record.
// No run is dispatched meanwhile either, since a commit puts the watermark.
//
// Verifies: G38
func TestFullEtcd_TakesRevocationsAndDeletionsOfCallers(t *testing.T) {
	etcd := kvtest.StartWithQuota(t, 16<<20).Client()

	batching := kv.NewBatcher(etcd, kv.BatcherConfig{InFlight: 1})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = batching.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })

	keys := testKeys(t, "/full")
	alone := store.New(etcd, kv.Direct(etcd), keys)
	w := &world{T: t, Store: alone.Batching(batching), keys: keys, etcd: etcd}
	first := store.OpenAccess()
	first.Tokens = []record.Token{{Token: task.Token{ID: "t1", Subject: "user:ann"}}, {Token: task.Token{ID: "t2", Subject: "user:bob"}}}
	_, _, err := w.Bootstrap(t.Context(), 8, noon, first)
	ok(t, err)
	w.fences.Node = w.register(node)
	w.fences.Owner = w.own(ref.Shard, node)

	admin := &administrator{etcd: etcd, keys: keys}
	as := func(operation string) *store.Store {
		admin.operation = operation
		return w.As(admin)
	}

	other := record.Ref{Namespace: "default", Name: "other", Shard: ref.Shard}
	st := w.create(ref)
	w.create(other)
	active := w.dispatch(ref, 1, node)
	_, err = w.Enqueue(t.Context(), st, waiting(ref, 2))
	ok(t, err)
	created, err := etcd.Get(t.Context(), keys.Token("t1"))
	ok(t, err)

	for i := 0; ; i++ {
		if _, err = etcd.Put(t.Context(), fmt.Sprintf("/junk/%d", i), strings.Repeat("x", 1<<18)); store.NoSpace(err) || err != nil && i > 200 {
			break
		}
	}
	if !store.NoSpace(err) {
		t.Fatal(err)
	}

	// Refused, and nothing changes.
	before := w.all()
	for what, write := range map[string]func() error{
		"disable a user":     func() error { return as("disable").DisableSubject(t.Context(), "user:ann", noon) },
		"delete a namespace": func() error { return as("x").DeleteNamespace(t.Context(), "none", 0, store.FreezeRecord{}, noon) }, // puts the fence
		"create a token":     func() error { return as("x").CreateToken(t.Context(), record.Token{Token: task.Token{ID: "t3"}}) },
		"record an intent":   func() error { return as("drain-node").RecordIntent(t.Context()) },
		"cancel an active run": func() error {
			_, err := as("cancel-run").CancelActive(t.Context(), active, task.NewActor("ann"))
			return err
		},
		"cancel a waiting run": func() error {
			_, err := as("cancel-run").CancelQueued(t.Context(), ref, tickRun(ref, 2).ID, task.NewActor("ann"), noon)
			return err
		},
	} {
		if err := write(); !store.NoSpace(err) {
			t.Errorf("%s: %v, want that there is no space", what, err)
		}
	}
	// The node of the attempt can be asked instead: that the caller may do so can be proved without a write.
	ok(t, as("cancel-run").ProveCancel(t.Context(), active))
	ended := active
	ended.ID = tickRun(ref, 3).ID
	is(t, as("cancel-run").ProveCancel(t.Context(), ended), task.ErrConflict)

	if after := w.all(); !slices.Equal(before, after) {
		t.Errorf("a refused write has changed something:\n%q\n%q", before, after)
	}
	if late := admin.takeLate(t); late != nil {
		t.Errorf("refused writes have audit records: %q", late)
	}

	// Made, and recorded by the node.
	ok(t, as("delete-token").DeleteToken(t.Context(), "t1", created.Kvs[0].CreateRevision))
	if late := admin.takeLate(t); !slices.Equal(late, []string{"delete-token: delete token t1"}) {
		t.Errorf("of the deleted token %q", late)
	}
	is(t, as("delete-token").DeleteToken(t.Context(), "t1", created.Kvs[0].CreateRevision), task.ErrConflict)

	_, err = as("delete-task").DeleteTaskLeavingTombstone(t.Context(), w.stored(other), record.Tombstone{UID: "x", DeletedBy: task.NewActor("ann")})
	ok(t, err)
	_, err = as("delete-task").DeleteTask(t.Context(), w.stored(ref)) // with the run that waits
	ok(t, err)
	if late := admin.takeLate(t); !slices.Equal(late, []string{"delete-task: delete task other", "delete-task: delete task a"}) {
		t.Errorf("of the deleted tasks %q", late)
	}

	for _, left := range w.all() {
		if strings.Contains(left, "t1") || strings.Contains(left, "/queue/") || strings.Contains(left, keys.Specs()) || strings.HasPrefix(left, keys.AuditRecords()) {
			t.Errorf("%s is left", left)
		}
	}
}

// all returns the keys of the cluster with their mod revisions.
func (w *world) all() (list []string) {
	w.Helper()
	r, err := w.etcd.Get(w.Context(), w.keys.Root(), clientv3.WithPrefix())
	ok(w.T, err)

	slices.SortFunc(r.Kvs, func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
	for _, e := range r.Kvs {
		list = append(list, fmt.Sprintf("%s@%d", e.Key, e.ModRevision))
	}

	return list
}
