package api_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A deleted task comes back as it was, with its pause, as a new task whose ticks begin now.
func TestUndelete_BringsTheTaskBackWithItsPause(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	was := w.create("a", "0 3 * * *")
	_, err := w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Reason: "the disk is full", Until: task.At(w.clock.now().Add(48 * time.Hour))}, 0)
	must(t, err)
	was, err = w.Tasks.Get(ctx, "default", "a")
	must(t, err)
	must(t, w.Tasks.Delete(ctx, "default", "a", 0))

	w.clock.advance(24 * time.Hour)
	list, err := w.Tasks.ListDeleted(ctx, "default")
	if err != nil || len(list) != 1 || list[0].Name != "a" || list[0].UID != was.UID || list[0].Spec == nil || list[0].Spec.PauseReason != "the disk is full" ||
		!list[0].Until.Equal(list[0].DeletedAt.Add(7*24*time.Hour)) {
		t.Fatalf("%+v, %v", list, err)
	}

	got, err := w.Tasks.Undelete(ctx, "default", "a")
	must(t, err)
	if diff := task.Differences(was.Spec, got.Spec); len(diff) > 0 || !got.Paused || got.UID == was.UID || got.Generation != 1 || got.Change != task.ChangeUndeleted || !got.CreatedAt.Equal(w.clock.now()) {
		t.Errorf("%v: %+v", diff, got)
	}
	if list, err := w.Tasks.ListDeleted(ctx, "default"); err != nil || len(list) > 0 {
		t.Errorf("the tombstone remains: %+v, %v", list, err)
	}

	if _, err := w.Tasks.Undelete(ctx, "default", "a"); !errors.Is(err, task.ErrExists) {
		t.Errorf("a task that exists: %v", err)
	}
}

// A pause whose end has passed in the meantime is over.
func TestUndelete_EndsAPauseThatIsOver(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "0 3 * * *")
	_, err := w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Until: task.At(w.clock.now().Add(time.Hour))}, 0)
	must(t, err)
	must(t, w.Tasks.Delete(ctx, "default", "a", 0))
	w.clock.advance(2 * time.Hour)

	if got, err := w.Tasks.Undelete(ctx, "default", "a"); err != nil || got.Paused {
		t.Errorf("%+v, %v", got, err)
	}
}

// What cannot come back is refused with the reason.
func TestUndelete_Refuses(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	refused := func(name string, status int, part string) {
		t.Helper()
		_, err := w.Tasks.Undelete(ctx, "default", name)
		var e *client.Error
		if !errors.As(err, &e) || e.Status != status || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", name, err)
		}
	}

	refused("nothing", http.StatusNotFound, "was not deleted within the last week")

	w.create("purged", "@daily")
	must(t, w.Tasks.Purge(ctx, "default", "purged", 0))
	refused("purged", http.StatusNotFound, "without a copy: it was purged")

	// The leader's limit for ledgers is 0 above 75 % of etcd's quota: deletions make room.
	w.create("full", "@daily")
	none := task.Duration(0)
	w.changeCluster(func(c *task.Cluster) { c.LedgerLimit = &none })
	must(t, w.Tasks.Delete(ctx, "default", "full", 0))
	refused("full", http.StatusNotFound, "above 75 % of its quota")
	w.changeCluster(func(c *task.Cluster) { c.LedgerLimit = nil })

	// A task of that name takes the place of the deleted one.
	w.create("again", "@daily")
	must(t, w.Tasks.Delete(ctx, "default", "again", 0))
	w.create("again", "@hourly")
	refused("again", http.StatusConflict, "exists")
	must(t, w.Tasks.Delete(ctx, "default", "again", 0))
	if got, err := w.Tasks.Undelete(ctx, "default", "again"); err != nil || got.Schedule[0] != "@hourly" {
		t.Errorf("%+v, %v", got, err)
	}

	// Older versions leave tombstones without a copy.
	w.put(w.store.Keys().Tombstone(record.Ref{Namespace: "default", Name: "old"}), record.Tombstone{UID: "x", DeletedAt: task.At(w.clock.now()), DeletedBy: task.NewActor("ann")})
	refused("old", http.StatusNotFound, "was deleted at")
}

// changeCluster changes the cluster's record in etcd.
func (w *world) changeCluster(change func(*task.Cluster)) {
	w.t.Helper()
	key := w.store.Keys().Cluster()
	res, err := w.etcd.Get(w.t.Context(), key)
	must(w.t, err)
	var c task.Cluster
	if len(res.Kvs) > 0 {
		c, err = record.Decode[task.Cluster](res.Kvs[0].Value)
		must(w.t, err)
	}
	change(&c)
	_, err = w.etcd.Txn(w.t.Context()).Then(clientv3.OpPut(key, record.Encode(c))).Commit()
	must(w.t, err)
}
