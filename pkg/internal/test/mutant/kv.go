package mutant

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/store/record"
)

type keysOf = record.Keys

// injector puts a mutant into the client of a node.
type injector = func(node string, c *clientv3.Client)

// txn is a transaction, or one of several that share a request as nested transactions.
type txn struct {
	If         []clientv3.Cmp // the comparisons
	Then, Else []clientv3.Op
}

// editedTxns returns op with every transaction in it edited, including op itself.
func editedTxns(op clientv3.Op, edit func(txn) txn) clientv3.Op {
	return etcdhook.Each(op, func(cmps []clientv3.Cmp, then, els []clientv3.Op) clientv3.Op {
		t := edit(txn{cmps, then, els})
		return clientv3.OpTxn(t.If, t.Then, t.Else)
	})
}

// putsKey reports whether t itself, without its nested transactions, puts a key that wanted accepts.
func (t txn) putsKey(wanted func(key string) bool) bool {
	for _, op := range t.Then {
		if op.IsPut() && wanted(string(op.KeyBytes())) {
			return true
		}
	}

	return false
}

// editTransactions returns a mutant that edits each transaction before it is sent.
func editTransactions(edit func(k keysOf, t txn) txn) func(k keysOf) injector {
	return func(k keysOf) injector {
		return func(_ string, c *clientv3.Client) {
			c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
				return next(ctx, editedTxns(op, func(t txn) txn { return edit(k, t) }))
			})
		}
	}
}

// editReads returns a KV that edits the answers to reads outside of transactions.
func editReads(kv clientv3.KV, edit func(op clientv3.Op, resp *clientv3.GetResponse)) clientv3.KV {
	return etcdhook.KV(kv, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		r, err := next(ctx, op)
		if err == nil && op.IsGet() {
			edit(op, r.Get())
		}
		return r, err
	})
}

// successResponses returns the answer that etcd would give if all ops had succeeded at the revision in the header. Nested
// transactions get an empty header, as in etcd.
func successResponses(ops []clientv3.Op, header *pb.ResponseHeader) []*pb.ResponseOp {
	out := make([]*pb.ResponseOp, len(ops))
	for i, op := range ops {
		switch {
		case op.IsTxn():
			_, then, _ := op.Txn()
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{
				Header: &pb.ResponseHeader{}, Succeeded: true, Responses: successResponses(then, &pb.ResponseHeader{})}}}
		case op.IsPut():
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: header}}}
		case op.IsDelete():
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Header: header, Deleted: 1}}}
		default:
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Header: header}}}
		}
	}

	return out
}
