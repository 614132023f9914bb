// Package etcdhook puts functions around the calls of an etcd client. Tests use it for faults of etcd and of the
// network, and for clients that break the protocol on purpose (package mutant). No part of a node imports it.
package etcdhook

import (
	"context"
	"slices"

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
