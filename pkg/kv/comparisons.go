package kv

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// clientv3 clones each comparison of a transaction, by reflection, which costs more than to make it, and a commit has a
// hundred of them. So a transaction passes through it without any, and gets them back right before it is sent.

// comparisons are those of a transaction, and of the transactions in its Then, by their place.
type comparisons struct {
	own    []clientv3.Cmp
	nested [][]clientv3.Cmp
}

// deduplicateOps returns a transaction's operations without the comparisons of those that are transactions, which c keeps.
func (c *comparisons) deduplicateOps(cmps []clientv3.Cmp, then []clientv3.Op) []clientv3.Op {
	c.own = cmps
	for i := range then {
		if !then[i].IsTxn() {
			continue
		}

		if c.nested == nil {
			c.nested, then = make([][]clientv3.Cmp, len(then)), append([]clientv3.Op(nil), then...)
		}

		own, yes, no := then[i].Txn()
		c.nested[i], then[i] = own, clientv3.OpTxn(nil, yes, no)
	}

	return then
}

func (c *comparisons) giveBack(to *pb.TxnRequest) {
	to.Compare = compareMessages(c.own)
	for i, cmps := range c.nested {
		if cmps != nil {
			to.Success[i].GetRequestTxn().Compare = compareMessages(cmps)
		}
	}
}

func compareMessages(cmps []clientv3.Cmp) []*pb.Compare {
	list := make([]*pb.Compare, len(cmps))
	for i := range cmps {
		list[i] = cmps[i].GetCompare()
	}
	return list
}

type comparisonsKey struct{}

// restoring is the client below clientv3's: what passes it is a whole transaction again.
type restoring struct{ pb.KVClient }

func (r restoring) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	if c, ok := ctx.Value(comparisonsKey{}).(*comparisons); ok {
		c.giveBack(in)
	}
	return r.KVClient.Txn(ctx, in, opts...)
}

// restoringKV is clientv3's KV with that below it.
type restoringKV struct{ clientv3.KV }

func newRestoringKV(below pb.KVClient, c *clientv3.Client) clientv3.KV {
	return restoringKV{clientv3.NewKVFromKVClient(restoring{below}, c)}
}
