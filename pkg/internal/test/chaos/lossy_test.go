package chaos_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lossyKV loses answers of writes that took effect, and fails writes that take effect later. A TCP proxy could not
// do this, because all calls share one connection.
type lossyKV struct {
	clientv3.KV
	controls *controls
}

var errNoAnswer = status.Error(codes.Unavailable, "chaos: no answer came")

// lossy makes a write. Its error is the network's, not one of etcd's.
func lossy[T any](ctx context.Context, c *controls, write func(context.Context) (T, error)) (T, error) {
	var none T
	now, _ := c.get()
	switch roll := rand.IntN(100); {
	case roll < now.LoseAnswers:
		if _, err := write(ctx); err != nil {
			return none, err
		}
		return none, errNoAnswer
	case roll < now.LoseAnswers+now.DelayWrites:
		late := context.WithoutCancel(ctx)
		time.AfterFunc(rand.N(now.DelayBy), func() { _, _ = write(late) })
		return none, errNoAnswer
	}

	return write(ctx)
}

func (k lossyKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return lossy(ctx, k.controls, func(ctx context.Context) (*clientv3.PutResponse, error) { return k.KV.Put(ctx, key, val, opts...) })
}

func (k lossyKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return lossy(ctx, k.controls, func(ctx context.Context) (*clientv3.DeleteResponse, error) { return k.KV.Delete(ctx, key, opts...) })
}

func (k lossyKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if op.IsGet() {
		return k.KV.Do(ctx, op)
	}

	if op.IsTxn() {
		cmps, then, els := op.Txn()
		r, err := k.Txn(ctx).If(cmps...).Then(then...).Else(els...).Commit()
		return r.OpResponse(), err
	}

	return lossy(ctx, k.controls, func(ctx context.Context) (clientv3.OpResponse, error) { return k.KV.Do(ctx, op) })
}

func (k lossyKV) Txn(ctx context.Context) clientv3.Txn { return &lossyTxn{kv: k, ctx: ctx} }

// lossyTxn collects a transaction until Commit.
type lossyTxn struct {
	kv        lossyKV
	ctx       context.Context
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
}

func (t *lossyTxn) If(cmps ...clientv3.Cmp) clientv3.Txn { t.cmps = cmps; return t }
func (t *lossyTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.then = ops; return t }
func (t *lossyTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.els = ops; return t }

func (t *lossyTxn) Commit() (*clientv3.TxnResponse, error) {
	if !writes(t.then) && !writes(t.els) {
		return t.kv.KV.Txn(t.ctx).If(t.cmps...).Then(t.then...).Else(t.els...).Commit()
	}

	cmps, then, els := t.cmps, t.then, t.els
	if now, _ := t.kv.controls.get(); now.DelayWrites > 0 { // the caller may reuse its memory
		cmps, then, els = cloneCmps(cmps), cloneOps(then), cloneOps(els)
	}

	return lossy(t.ctx, t.kv.controls, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return t.kv.KV.Txn(ctx).If(cmps...).Then(then...).Else(els...).Commit()
	})
}

func cloneCmps(cmps []clientv3.Cmp) []clientv3.Cmp {
	cmps = slices.Clone(cmps)
	for i := range cmps {
		cmps[i] = cmps[i].Clone()
	}
	return cmps
}

func cloneOps(ops []clientv3.Op) []clientv3.Op {
	ops = slices.Clone(ops)
	for i := range ops {
		if ops[i].IsTxn() {
			cmps, then, els := ops[i].Txn()
			ops[i] = clientv3.OpTxn(cloneCmps(cmps), cloneOps(then), cloneOps(els))
			continue
		}

		ops[i].WithKeyBytes(bytes.Clone(ops[i].KeyBytes()))
		ops[i].WithValueBytes(bytes.Clone(ops[i].ValueBytes()))
		ops[i].WithRangeBytes(bytes.Clone(ops[i].RangeBytes()))
	}

	return ops
}

func writes(ops []clientv3.Op) bool {
	for _, op := range ops {
		if op.IsPut() || op.IsDelete() {
			return true
		}

		if op.IsTxn() {
			if _, then, els := op.Txn(); writes(then) || writes(els) {
				return true
			}
		}
	}

	return false
}

// stallingWatcher has watches that stall while everything else continues.
type stallingWatcher struct {
	clientv3.Watcher
	controls *controls
}

func telling(c control) bool { return !c.StallWatches }

func (w stallingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	out := make(chan clientv3.WatchResponse)

	if !w.controls.until(ctx.Done(), telling) {
		close(out)
		return out
	}

	in := w.Watcher.Watch(ctx, key, opts...)
	go func() {
		defer close(out)
		for r := range in {
			if !w.controls.until(ctx.Done(), telling) {
				return
			}

			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out
}
