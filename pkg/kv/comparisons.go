package kv

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// clientv3 copies each comparison of a transaction by reflection. That costs more than creating the comparison, and a
// commit has about a hundred of them. Therefore a transaction passes through clientv3 without its comparisons, which
// travel in the context. The interceptor below clientv3 adds them again before the transaction is sent.

// comparisons are the comparisons of a transaction (own), and of each transaction in its Then (nested, by the index
// of the operation). Transactions that are nested more deeply, or in Else, keep theirs.
type comparisons struct {
	own    []clientv3.Cmp
	nested [][]clientv3.Cmp
}

// deduplicateOps moves the comparisons of a transaction, and of the transactions among its operations, into c. It
// returns the operations without comparisons. It does not modify then.
func (c *comparisons) deduplicateOps(cmps []clientv3.Cmp, then []clientv3.Op) []clientv3.Op {
	c.own = cmps
	for i := range then {
		if !then[i].IsTxn() {
			continue
		}

		// Copy the slice before the first change, because it belongs to the caller.
		if c.nested == nil {
			c.nested, then = make([][]clientv3.Cmp, len(then)), append([]clientv3.Op(nil), then...)
		}

		own, yes, no := then[i].Txn()
		c.nested[i], then[i] = own, clientv3.OpTxn(nil, yes, no)
	}

	return then
}

// addTo adds the comparisons to the request that clientv3 has built.
func (c *comparisons) addTo(to *pb.TxnRequest) {
	to.Compare = compareMessages(c.own)
	for i, cmps := range c.nested {
		if cmps != nil {
			to.Success[i].GetRequestTxn().Compare = compareMessages(cmps)
		}
	}
}

// compareMessages returns the protobuf messages of the comparisons without copying them.
func compareMessages(cmps []clientv3.Cmp) []*pb.Compare {
	list := make([]*pb.Compare, len(cmps))
	for i := range cmps {
		list[i] = cmps[i].GetCompare()
	}
	return list
}

// comparisonsKey is the key under which a context carries the comparisons of a transaction.
type comparisonsKey struct{}

// restoring is the gRPC client that clientv3 uses. It adds the comparisons to each transaction that passes it.
type restoring struct{ pb.KVClient }

func (r restoring) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	if c, ok := ctx.Value(comparisonsKey{}).(*comparisons); ok {
		c.addTo(in)
	}
	return r.KVClient.Txn(ctx, in, opts...)
}

// restoringKV is a clientv3.KV that uses restoring. Only boundTxn relies on its type.
type restoringKV struct{ clientv3.KV }

// NewKV returns a KV that sends its requests through below, and adds the comparisons of each transaction again. A
// client that has one when it is passed to Wrap does not copy its comparisons.
func NewKV(below pb.KVClient, c *clientv3.Client) clientv3.KV {
	return restoringKV{clientv3.NewKVFromKVClient(restoring{below}, c)}
}
