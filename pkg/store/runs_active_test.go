package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// inboxWorld is an etcd with nodes and attempts, and nothing else.
type inboxWorld struct {
	*testing.T
	*store.Store
	etcd *kv.Client
	keys record.Keys
}

func newInboxWorld(t *testing.T) *inboxWorld {
	etcd, keys := kvtest.Memory(t), testKeys(t, "/c")
	return &inboxWorld{t, store.New(etcd, kv.Direct(etcd), keys), etcd, keys}
}

// put writes a key.
func (w *inboxWorld) put(key, value string) {
	w.Helper()
	_, err := w.etcd.Put(w.Context(), key, value)
	ok(w.T, err)
}

// putEnd writes the record of a run that ended at its tick.
func (w *inboxWorld) putEnd(r record.Ref, n int, state task.State) {
	w.Helper()
	run := tickRun(r, n)
	run.State, run.EndedAt = state, run.ScheduledTime
	w.put(w.keys.Ended(r, run.ID), string(record.EncodeEnded(run)))
}

// putNode makes a node present. It says that its inbox has some attempts.
func (w *inboxWorld) putNode(name string, running int) {
	w.Helper()
	w.put(w.keys.Node(name), record.Encode(task.Node{Name: name, Running: running, Roles: []string{task.RoleExecutor}}))
}

// texts describes the keys of attempts, in order.
func texts(keys []record.RunKey) (list []string) {
	for _, k := range keys {
		list = append(list, fmt.Sprint(k.Node, " ", k.Ref, " ", k.Run))
	}
	slices.Sort(list)

	return list
}

// The result is that of a scan of all inboxes, whichever nodes are present and whatever they say about their inboxes.
func TestActiveKeysOf_FindsWhatAScanFinds(t *testing.T) {
	t.Parallel()

	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newInboxWorld(t)
		tasks := make([]record.Ref, 60) // more ranges than fewRanges, with most seeds
		for i := range tasks {
			tasks[i] = record.Ref{Namespace: []string{"x", "x-y"}[i%2], Name: fmt.Sprint("t", i/2), Shard: i % 3}
		}

		for _, node := range []string{"a", "a-b", "a.b", "a0", "b", "c", "z"} {
			if r.IntN(2) == 0 {
				w.putNode(node, r.IntN(6))
			} else if r.IntN(2) == 0 {
				w.put(w.keys.Node(node), record.Encode(task.Node{Name: node, Roles: []string{task.RoleAPI}})) // it was an executor
			}
			for i := range r.IntN(40) {
				w.put(w.keys.Run(node, tasks[r.IntN(len(tasks))], fmt.Sprint("run-", i)), "{}")
			}
		}

		w.put(w.keys.Node("unreadable"), "{")
		w.put(w.keys.Run("unreadable", tasks[0], "r"), "{}")

		all, _, err := w.ScanActive(t.Context())
		ok(t, err)

		for _, n := range []int{0, 1, 2, 5, 10, 60} {
			refs := tasks[:n]
			var want []record.RunKey
			for _, k := range all {
				if slices.Contains(refs, k.Ref) {
					want = append(want, k.RunKey)
				}
			}

			got, err := w.ActiveKeysOf(t.Context(), refs)
			ok(t, err)
			if !slices.Equal(texts(got), texts(want)) {
				t.Fatalf("seed %d, %d tasks: %q, want %q", seed, n, texts(got), texts(want))
			}
		}

		held, err := w.ActiveOf(t.Context(), tasks[0])
		ok(t, err)
		every, err := w.Active(t.Context())
		ok(t, err)

		is := func(h record.Held) string { return h.Node + " " + h.Ref().String() + " " + h.ID }
		var one, want []string
		for _, h := range held {
			one = append(one, is(h))
		}
		for _, h := range every {
			if h.Ref() == tasks[0] {
				want = append(want, is(h))
			}
		}

		slices.Sort(one)
		slices.Sort(want)
		if !slices.Equal(one, want) {
			t.Fatalf("seed %d: %q, want %q", seed, one, want)
		}
	}
}

// However many runs are active, reading those of a few tasks makes etcd count few keys.
func TestActiveKeysOf_DoesNotReadAllInboxes(t *testing.T) {
	t.Parallel()
	w := newInboxWorld(t)
	few := []record.Ref{{Namespace: "x", Name: "a"}, {Namespace: "x", Name: "b", Shard: 1}, {Namespace: "x", Name: "c", Shard: 2}}

	for i := range 4 {
		node := fmt.Sprint("n", i)
		w.putNode(node, 250*(i%2)) // half of them have not yet announced as many
		for k := range 250 {
			w.put(w.keys.Run(node, record.Ref{Namespace: "x", Name: fmt.Sprint("other", k), Shard: k % 5}, "r"), "{}")
		}
	}
	w.put(w.keys.Run("n2", few[1], "r"), "{}")
	w.put(w.keys.Run("absent", few[2], "r"), "{}")

	returned, requests := 0, 0
	w.etcd.KV = etcdhook.KV(w.etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		if requests++; err == nil && op.IsTxn() {
			for _, r := range res.Txn().Responses {
				returned += len(r.GetResponseRange().Kvs)
			}
		}

		return res, err
	})

	got, err := w.ActiveKeysOf(t.Context(), few)
	ok(t, err)

	if want := []string{"absent x/c r", "n2 x/b r"}; !slices.Equal(texts(got), want) {
		t.Errorf("%q, want %q", texts(got), want)
	}
	if returned > 20 || requests > 6 {
		t.Errorf("%d keys in %d requests", returned, requests)
	}

	returned, requests = 0, 0
	if _, err = w.ActiveOf(t.Context(), few[0]); err != nil || returned > 5 || requests > 4 {
		t.Errorf("%d keys in %d requests, %v", returned, requests, err)
	}

}

// Whatever is active is read with two requests: the nodes, and their inboxes together with the gaps between them. Nodes
// that do not execute tasks cost no range.
func TestActiveKeysOf_ReadsFewRangesInTwoRequests(t *testing.T) {
	t.Parallel()
	w := newInboxWorld(t)
	at := record.Ref{Namespace: "x", Name: "a"}

	for i := range 9 {
		w.putNode(fmt.Sprint("executor", i), 1)
	}
	for i := range 50 {
		name := fmt.Sprint("api", i)
		w.put(w.keys.Node(name), record.Encode(task.Node{Name: name, Roles: []string{task.RoleAPI, task.RoleScheduler}}))
	}
	w.put(w.keys.Run("executor7", at, "r"), "{}")

	var reads etcdhook.Reads
	w.etcd.KV = reads.KV(w.etcd.KV)

	got, err := w.ActiveKeysOf(t.Context(), []record.Ref{at})
	ok(t, err)
	if n := reads.Take(); len(got) != 1 || n.Requests != 2 || n.Ranges > 1+9+10 {
		t.Errorf("%q with %+v", texts(got), n)
	}

	// A node that was an executor has left a run in its inbox.
	w.put(w.keys.Run("api7", at, "s"), "{}")
	got, err = w.ActiveKeysOf(t.Context(), []record.Ref{at})
	ok(t, err)
	if want := []string{"api7 x/a s", "executor7 x/a r"}; !slices.Equal(texts(got), want) {
		t.Errorf("%q, want %q", texts(got), want)
	}
}

// The attempts of a task and the run with an id cost one request more than the list of the nodes.
func TestActiveOf_ReadsAllInboxesInOneRequest(t *testing.T) {
	t.Parallel()
	w := newInboxWorld(t)
	at := record.Ref{Namespace: "x", Name: "a"}
	for i := range 20 {
		w.putNode(fmt.Sprint("n", i), 1)
	}
	w.put(w.keys.Run("n7", at, "20261120T200100.000Z-aaaa"), "{}")

	var reads etcdhook.Reads
	w.etcd.KV = reads.KV(w.etcd.KV)

	held, err := w.ActiveOf(t.Context(), at)
	ok(t, err)
	if n := reads.Take(); len(held) != 1 || n.Requests != 2 {
		t.Errorf("%d attempts with %+v", len(held), n)
	}

	_, err = w.RunByID(t.Context(), at, "20261120T200100.000Z-aaaa")
	ok(t, err)
	if n := reads.Take(); n.Requests != 3 {
		t.Errorf("a run by its id: %+v", n)
	}
}
