package sim

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// An edit without a comparison has a reason only if the last two edits of its task have compared, and failed. This also holds
// for transactions that share a request.
func TestEdits_NeedTwoFailures(t *testing.T) {
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}

	store := kvmem.New(kvmem.Config{})
	defer store.Close()
	c := store.Client(t.Context())
	a, b := record.Ref{Namespace: "sim", Name: "a", Shard: 1}, record.Ref{Namespace: "sim", Name: "b", Shard: 1}
	e := edits{failed: map[record.Ref]int{}, uncompared: map[int64]bool{}}

	var mod int64 // of the entries, and of the watermark
	edit := func(ref record.Ref, compares, succeeds bool) clientv3.Op {
		entry := clientv3.Compare(clientv3.ModRevision(keys.Entry(ref)), "=", mod)
		cmps := []clientv3.Cmp{entry}
		if !succeeds {
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(keys.Watermark(ref.Shard)), "=", 0))
		} else if compares {
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(keys.Watermark(ref.Shard)), ">", 0))
		}
		return clientv3.OpTxn(cmps, []clientv3.Op{clientv3.OpPut(keys.Spec(ref), "")}, nil)
	}

	send := func(ops ...clientv3.Op) bool {
		t.Helper()
		op := ops[0]
		if len(ops) > 1 {
			op = clientv3.OpTxn(nil, ops, nil)
		}

		r, err := c.Do(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		e.noteAnswer(keys, op, r)

		return e.wereUncompared(r.Txn().Header.Revision)
	}

	r, err := c.Do(t.Context(), clientv3.OpTxn(nil, []clientv3.Op{
		clientv3.OpPut(keys.Entry(a), ""), clientv3.OpPut(keys.Entry(b), ""), clientv3.OpPut(keys.Watermark(1), ""),
	}, nil))
	if err != nil {
		t.Fatal(err)
	}
	mod = r.Txn().Header.Revision

	const compares, succeeds = true, true
	if send(edit(a, !compares, succeeds)) {
		t.Error("an edit without a comparison, at once")
	}

	send(edit(a, compares, !succeeds))
	send(edit(b, compares, !succeeds))
	if send(edit(a, !compares, succeeds)) {
		t.Error("after one failure, and one of another task")
	}

	send(edit(a, compares, !succeeds), edit(b, compares, succeeds))
	send(edit(a, compares, !succeeds))
	if send(edit(a, compares, succeeds)) {
		t.Error("it has compared")
	}

	send(edit(a, compares, !succeeds), edit(b, compares, succeeds))
	send(edit(a, compares, !succeeds))
	if !send(edit(a, !compares, succeeds), edit(b, compares, succeeds)) {
		t.Error("two writes have failed, and this has no reason")
	}
	if send(edit(a, !compares, succeeds)) {
		t.Error("the edit after that has no reason")
	}
}
