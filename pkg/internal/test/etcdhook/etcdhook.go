// Package etcdhook puts functions around the calls of an etcd client. Tests use it for faults of etcd and of the
// network. No part of a node imports it.
package etcdhook

import (
	"context"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Do is one call of a KV: a get, a put, a delete or a transaction.
type Do func(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error)

// KV returns a KV that passes every call except Compact and GetStream to call. That function may change the
// operation, answer it without etcd, or execute it with next any number of times.
func KV(kv clientv3.KV, call func(ctx context.Context, op clientv3.Op, next Do) (clientv3.OpResponse, error)) clientv3.KV {
	return wrapped{KV: kv, do: func(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
		return call(ctx, op, kv.Do)
	}}
}

// wrapped is a KV whose operations all go through do.
type wrapped struct {
	clientv3.KV
	do Do
}

func (w wrapped) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	return w.do(ctx, op)
}

func (w wrapped) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r, err := w.do(ctx, clientv3.OpGet(key, opts...))
	return r.Get(), err
}

func (w wrapped) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	r, err := w.do(ctx, clientv3.OpPut(key, value, opts...))
	return r.Put(), err
}

func (w wrapped) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	r, err := w.do(ctx, clientv3.OpDelete(key, opts...))
	return r.Del(), err
}

func (w wrapped) Txn(ctx context.Context) clientv3.Txn { return &txn{ctx: ctx, do: w.do} }

// txn collects a transaction until Commit. It stores the context because clientv3.KV receives it before the call.
type txn struct {
	ctx  context.Context
	do   Do
	cmps []clientv3.Cmp
	then []clientv3.Op
	els  []clientv3.Op
}

func (t *txn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cs...)
	return t
}

func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.els = append(t.els, ops...)
	return t
}

// Commit passes the transaction to do. The slices are clipped, so that an append in a hook does not change them.
func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	r, err := t.do(t.ctx, clientv3.OpTxn(slices.Clip(t.cmps), slices.Clip(t.then), slices.Clip(t.els)))
	return r.Txn(), err
}

// Writes reports whether an operation may write. A transaction may write if any operation in its branches does.
func Writes(op clientv3.Op) bool {
	if op.IsGet() {
		return false
	}
	if !op.IsTxn() {
		return true
	}

	_, then, els := op.Txn()
	return slices.ContainsFunc(then, Writes) || slices.ContainsFunc(els, Writes)
}

// Each returns an operation with every transaction in it rewritten, nested ones first. rewrite must return an
// operation that replaces the transaction.
func Each(op clientv3.Op, rewrite func(cmps []clientv3.Cmp, then, els []clientv3.Op) clientv3.Op) clientv3.Op {
	if !op.IsTxn() {
		return op
	}
	cmps, then, els := op.Txn()
	return rewrite(cmps, rewriteEach(then, rewrite), rewriteEach(els, rewrite))
}

// rewriteEach applies Each to a list of operations.
func rewriteEach(ops []clientv3.Op, rewrite func([]clientv3.Cmp, []clientv3.Op, []clientv3.Op) clientv3.Op) []clientv3.Op {
	done := make([]clientv3.Op, len(ops))
	for i, o := range ops {
		done[i] = Each(o, rewrite)
	}
	return done
}

// Reads counts the keys and values that etcd reads to answer a client. Tests compare the counts for stores of different sizes.
// Writes are not counted.
//
// etcd applies the limit of a range only if the answer is in the order of the keys, ascending. For any other order it reads
// the whole range, sorts it, and returns the first keys.
type Reads struct {
	mu    sync.Mutex
	total ReadCount
}

// ReadCount contains the counts of Reads.
type ReadCount struct {
	// Requests counts requests that read, and Ranges the gets in them.
	Requests, Ranges int64
	// Values counts the keys that etcd has read with their values, and Bytes the size of the values in its answers.
	Values, Bytes int64
	// Keys counts the keys that etcd has read without their values.
	Keys int64
}

// KV returns a KV whose reads are counted.
func (r *Reads) KV(kv clientv3.KV) clientv3.KV {
	return KV(kv, func(ctx context.Context, op clientv3.Op, next Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		if err == nil {
			r.add(op, res)
		}

		return res, err
	})
}

// Take returns the counts since the last call.
func (r *Reads) Take() ReadCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := r.total
	r.total = ReadCount{}

	return total
}

func (r *Reads) add(op clientv3.Op, res clientv3.OpResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()

	before := r.total.Ranges
	switch {
	case op.IsGet():
		r.total.addRange(op, (*etcdserverpb.RangeResponse)(res.Get()))
	case op.IsTxn():
		r.total.addTxn(op, (*etcdserverpb.TxnResponse)(res.Txn()))
	}

	if r.total.Ranges > before {
		r.total.Requests++
	}
}

func (c *ReadCount) addTxn(op clientv3.Op, res *etcdserverpb.TxnResponse) {
	_, ops, els := op.Txn()
	if !res.Succeeded {
		ops = els
	}

	for i, o := range ops {
		switch {
		case o.IsGet():
			c.addRange(o, res.Responses[i].GetResponseRange())
		case o.IsTxn():
			c.addTxn(o, res.Responses[i].GetResponseTxn())
		}
	}
}

func (c *ReadCount) addRange(op clientv3.Op, res *etcdserverpb.RangeResponse) {
	c.Ranges++
	if op.IsCountOnly() {
		return
	}

	read := int64(len(res.Kvs))
	if op.IsSortSet() {
		read = res.Count
	}

	if op.IsKeysOnly() {
		c.Keys += read
		return
	}

	c.Values += read
	for _, e := range res.Kvs {
		c.Bytes += int64(len(e.Value))
	}
}
