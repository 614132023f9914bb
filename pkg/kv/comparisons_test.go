package kv_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// A comparison counts wherever in a transaction it is, and however the transaction is sent.
func TestTxn_EveryComparisonCounts(t *testing.T) {
	t.Parallel()
	s := kvtest.StartServer(t)
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
