package kv_test

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

func TestFence(t *testing.T) {
	c := kvtest.Memory(t)
	created := put(t, c, "k", "1")
	mod, create := kv.ModFence("k", created), kv.CreateFence("k", created)

	// expect evaluates the fence in etcd and with Holds.
	expect := func(state string, f kv.Fence, want bool) {
		t.Helper()
		res, err := kv.Direct(c).Commit(t.Context(), kv.Txn{If: []clientv3.Cmp{f.Compare()}})
		if err != nil {
			t.Fatal(err)
		}

		resp, err := c.Get(t.Context(), f.Key)
		if err != nil {
			t.Fatal(err)
		}

		var found *mvccpb.KeyValue
		if len(resp.Kvs) > 0 {
			found = resp.Kvs[0]
		}

		if res.Succeeded != want || f.Holds(found) != want {
			t.Errorf("%s: %+v: etcd says %v, Holds %v, want %v", state, f, res.Succeeded, f.Holds(found), want)
		}
	}

	zero, both := kv.Fence{Key: "k"}, kv.Fence{Key: "k", ModRevision: created, CreateRevision: created}

	expect("created", mod, true)
	expect("created", create, true)
	expect("created", both, false)
	expect("created", zero, false)
	put(t, c, "k", "1")
	expect("rewritten with the same value", mod, false)
	expect("rewritten with the same value", create, true)

	if _, err := c.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}

	expect("deleted", mod, false)
	expect("deleted", create, false)
	expect("deleted", zero, false)
	put(t, c, "k", "1")
	expect("created again", mod, false)
	expect("created again", create, false)

	if create.Holds(&mvccpb.KeyValue{Key: []byte("other"), CreateRevision: created}) {
		t.Error("a fence holds for another key")
	}
}

func TestModIsAndCreateIs_AreEtcdsOwnComparisons(t *testing.T) {
	for _, c := range []struct{ ours, theirs clientv3.Cmp }{
		{kv.ModIs("k", 7), clientv3.Compare(clientv3.ModRevision("k"), "=", 7)},
		{kv.ModIs("k", 0), clientv3.Compare(clientv3.ModRevision("k"), "=", 0)},
		{kv.CreateIs("k", 7), clientv3.Compare(clientv3.CreateRevision("k"), "=", 7)},
	} {
		if ours, theirs := c.ours.GetCompare(), c.theirs.GetCompare(); !proto.Equal(ours, theirs) {
			t.Errorf("%v, want %v", ours, theirs)
		}
	}
}

func BenchmarkComparisons(b *testing.B) {
	for name, f := range map[string]func(string, int64) clientv3.Cmp{
		"kv":     kv.ModIs,
		"client": func(k string, rev int64) clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision(k), "=", rev) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := int64(1); b.Loop(); i++ {
				_ = f("/carillon/shards/0042/tasks/default/nightly-backup", i)
			}
		})
	}
}

// A comparison counts wherever in a transaction it is, and however the transaction is sent.
func TestTxn_EveryComparisonCounts(t *testing.T) {
	t.Parallel()
	s := embeddedtest.StartServer(t)
	yes, no := kv.ModIs("absent", 0), kv.ModIs("absent", 1)
	put := func(key string) clientv3.Op { return clientv3.OpPut(key, "") }
	nested := func(holds clientv3.Cmp, key string) clientv3.Op {
		return clientv3.OpTxn([]clientv3.Cmp{yes, holds}, []clientv3.Op{put(key)}, []clientv3.Op{put("not-" + key)})
	}

	for how, c := range map[string]*kv.Client{"grpc": s.Client(), "in process": s.InProcess()} {
		for what, x := range map[string]struct {
			txn  kv.Txn
			want []string
		}{
			"own, holds":     {kv.Txn{If: []clientv3.Cmp{yes, yes}, Then: []clientv3.Op{put("a")}, Else: []clientv3.Op{put("b")}}, []string{"a"}},
			"own, does not":  {kv.Txn{If: []clientv3.Cmp{yes, no}, Then: []clientv3.Op{put("a")}, Else: []clientv3.Op{put("b")}}, []string{"b"}},
			"none":           {kv.Txn{Then: []clientv3.Op{put("a")}}, []string{"a"}},
			"nested in then": {kv.Txn{If: []clientv3.Cmp{yes}, Then: []clientv3.Op{put("a"), nested(yes, "b"), nested(no, "c")}}, []string{"a", "b", "not-c"}},
			"nested in else": {kv.Txn{If: []clientv3.Cmp{no}, Then: []clientv3.Op{nested(yes, "a")}, Else: []clientv3.Op{nested(yes, "b"), nested(no, "c")}}, []string{"b", "not-c"}},
			"nested twice": {kv.Txn{Then: []clientv3.Op{
				clientv3.OpTxn([]clientv3.Cmp{yes}, []clientv3.Op{nested(yes, "a"), nested(no, "b")}, nil),
				clientv3.OpTxn([]clientv3.Cmp{no}, nil, []clientv3.Op{nested(yes, "c"), nested(no, "d")}),
			}}, []string{"a", "c", "not-b", "not-d"}},
		} {
			if _, err := kv.Direct(c).Commit(t.Context(), x.txn); err != nil {
				t.Fatalf("%s, %s: %v", how, what, err)
			}

			res, err := c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				t.Fatal(err)
			}

			if !sameKeys(res, x.want) {
				t.Errorf("%s, %s: wrote %v, want %v", how, what, res.Kvs, x.want)
			}

			if _, err := c.Delete(t.Context(), "", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func sameKeys(res *clientv3.GetResponse, want []string) bool {
	for i, e := range res.Kvs {
		if i >= len(want) || string(e.Key) != want[i] {
			return false
		}
	}

	return len(res.Kvs) == len(want)
}
