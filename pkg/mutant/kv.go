package mutant

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// txn is a transaction on its way to etcd.
type txn struct {
	If         []clientv3.Cmp
	Then, Else []clientv3.Op
}

// send passes a transaction on.
type send func(ctx context.Context, t txn) (*clientv3.TxnResponse, error)

// tampered is a KV whose transactions go through txn and whose reads go through
// read; nil: as they are.
type tampered struct {
	clientv3.KV
	txn  func(ctx context.Context, t txn, next send) (*clientv3.TxnResponse, error)
	read func(op clientv3.Op, resp *clientv3.GetResponse)
}

func (k tampered) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := k.KV.Get(ctx, key, opts...)
	if err == nil && k.read != nil {
		k.read(clientv3.OpGet(key, opts...), resp)
	}
	return resp, err
}

func (k tampered) Txn(ctx context.Context) clientv3.Txn {
	if k.txn == nil {
		return k.KV.Txn(ctx)
	}
	return &collected{ctx: ctx, kv: k}
}

// collected is a clientv3.Txn that is sent as a whole. It keeps the context, as
// that interface demands.
type collected struct {
	ctx context.Context
	kv  tampered
	t   txn
}

func (c *collected) If(cs ...clientv3.Cmp) clientv3.Txn {
	c.t.If = append(c.t.If, cs...)
	return c
}

func (c *collected) Then(ops ...clientv3.Op) clientv3.Txn {
	c.t.Then = append(c.t.Then, ops...)
	return c
}

func (c *collected) Else(ops ...clientv3.Op) clientv3.Txn {
	c.t.Else = append(c.t.Else, ops...)
	return c
}

func (c *collected) Commit() (*clientv3.TxnResponse, error) {
	return c.kv.txn(c.ctx, c.t, func(ctx context.Context, t txn) (*clientv3.TxnResponse, error) {
		return c.kv.KV.Txn(ctx).If(t.If...).Then(t.Then...).Else(t.Else...).Commit()
	})
}

// each returns t with every transaction in it, itself included, edited. A request
// of the Batcher is a transaction of transactions.
func (t txn) each(edit func(txn) txn) txn {
	t.Then, t.Else = eachOf(t.Then, edit), eachOf(t.Else, edit)
	return edit(t)
}

func eachOf(ops []clientv3.Op, edit func(txn) txn) []clientv3.Op {
	out := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		if out[i] = op; op.IsTxn() {
			var in txn
			in.If, in.Then, in.Else = op.Txn()
			in = in.each(edit)
			out[i] = clientv3.OpTxn(in.If, in.Then, in.Else)
		}
	}
	return out
}

// puts reports whether t itself, or what is in it, puts a key that is wanted.
func (t txn) puts(wanted func(key string) bool) bool {
	for _, op := range t.Then {
		if op.IsPut() && wanted(string(op.KeyBytes())) {
			return true
		}
	}
	return false
}

// transactions is a mutant that edits transactions.
func transactions(edit func(k keysOf, t txn) txn) func(k keysOf) func(string, *clientv3.Client) {
	return func(k keysOf) func(string, *clientv3.Client) {
		return func(_ string, c *clientv3.Client) {
			c.KV = tampered{KV: c.KV, txn: func(ctx context.Context, t txn, next send) (*clientv3.TxnResponse, error) {
				return next(ctx, t.each(func(t txn) txn { return edit(k, t) }))
			}}
		}
	}
}

// done is the answer to ops that have all succeeded at a revision.
func done(ops []clientv3.Op, header *pb.ResponseHeader) []*pb.ResponseOp {
	out := make([]*pb.ResponseOp, len(ops))
	for i, op := range ops {
		switch {
		case op.IsTxn():
			_, then, _ := op.Txn()
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{
				Header: &pb.ResponseHeader{}, Succeeded: true, Responses: done(then, &pb.ResponseHeader{})}}}
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
