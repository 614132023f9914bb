package kv

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/carillonhq/carillon/pkg/clock"
)

// bound adds deadlines to calls.
type bound struct{ timeout time.Duration }

// withDeadline returns ctx with the deadline, unless ctx already has an earlier one.
func (b bound) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.timeout)
}

// boundKV is a KV whose calls have deadlines. It repeats reads, and never writes (see Unknown).
type boundKV struct {
	clientv3.KV
	bound
}

func (b boundKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return b.KV.Put(ctx, key, val, opts...)
}

func (b boundKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return retryUntilFinal(ctx, func() (*clientv3.GetResponse, error) { return b.KV.Get(ctx, key, opts...) })
}

// GetStream reads a range in chunks. Its deadline applies to the whole stream, so List is the better way to read a
// large range.
func (b boundKV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	ctx, cancel := b.withDeadline(ctx)
	in, err := b.KV.GetStream(ctx, key, opts...)
	if err != nil {
		cancel()
		return nil, err
	}

	out := make(chan clientv3.RangeStreamResponse)
	go func() {
		defer cancel()
		defer close(out)
		for r := range in {
			select {
			case out <- r:
			case <-ctx.Done():
				// The sender does not check the context, so the rest has to be received.
				for range in {
				}
				return
			}
		}
	}()

	return out, nil
}

func (b boundKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return b.KV.Delete(ctx, key, opts...)
}

func (b boundKV) Compact(ctx context.Context, rev int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return b.KV.Compact(ctx, rev, opts...)
}

// Do repeats the operation only if it is a read.
func (b boundKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()

	if op.IsGet() {
		return retryUntilFinal(ctx, func() (clientv3.OpResponse, error) { return b.KV.Do(ctx, op) })
	}

	return b.KV.Do(ctx, op)
}

// Txn starts a transaction. It is sent once, even if it contains only reads.
func (b boundKV) Txn(ctx context.Context) clientv3.Txn {
	return &boundTxn{ctx: ctx, kv: b.KV, bound: b.bound}
}

// boundTxn collects the parts of a transaction. The deadline starts at Commit. The context is stored because clientv3
// passes it to Txn, before Commit.
type boundTxn struct {
	bound
	ctx  context.Context
	kv   clientv3.KV
	cmps []clientv3.Cmp
	then []clientv3.Op
	els  []clientv3.Op
}

func (t *boundTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.cmps = appendOrTake(t.cmps, cs)
	return t
}

func (t *boundTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = appendOrTake(t.then, ops)
	return t
}

func (t *boundTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.els = appendOrTake(t.els, ops)
	return t
}

// appendOrTake appends b to a. If a is nil, it returns b without a copy, because an operation is a quarter of a
// kilobyte. The result is clipped, so that a later append does not write into the caller's array.
func appendOrTake[T any](a, b []T) []T {
	if a == nil {
		return slices.Clip(b)
	}
	return append(a, b...)
}

// Commit sends the transaction once.
func (t *boundTxn) Commit() (*clientv3.TxnResponse, error) {
	ctx, cancel := t.withDeadline(t.ctx)
	defer cancel()

	// Pass the comparisons around clientv3, which would copy each of them (see comparisons.go).
	if below, ok := t.kv.(restoringKV); ok {
		var c comparisons
		then := c.deduplicateOps(t.cmps, t.then)
		return below.Txn(context.WithValue(ctx, comparisonsKey{}, &c)).Then(then...).Else(t.els...).Commit()
	}

	return t.kv.Txn(ctx).If(t.cmps...).Then(t.then...).Else(t.els...).Commit()
}

// boundLease is a Lease whose calls have deadlines, except KeepAlive, which is a stream. It repeats calls that are
// idempotent.
type boundLease struct {
	clientv3.Lease
	bound
}

// Grant repeats the call while etcd is unavailable. A lease that was granted by an attempt whose answer was lost
// expires without further action.
func (b boundLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return retryUntilFinal(ctx, func() (*clientv3.LeaseGrantResponse, error) { return b.Lease.Grant(ctx, ttl) })
}

func (b boundLease) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return retryUntilFinal(ctx, func() (*clientv3.LeaseRevokeResponse, error) { return b.Lease.Revoke(ctx, id) })
}

func (b boundLease) TimeToLive(ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return retryUntilFinal(ctx, func() (*clientv3.LeaseTimeToLiveResponse, error) { return b.Lease.TimeToLive(ctx, id, opts...) })
}

func (b boundLease) Leases(ctx context.Context) (*clientv3.LeaseLeasesResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return retryUntilFinal(ctx, func() (*clientv3.LeaseLeasesResponse, error) { return b.Lease.Leases(ctx) })
}

// KeepAliveOnce is not repeated: the session decides when it renews its lease again.
func (b boundLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	ctx, cancel := b.withDeadline(ctx)
	defer cancel()
	return b.Lease.KeepAliveOnce(ctx, id)
}

// retryUntilFinal makes a call until it succeeds, fails with an error that is not transient, or ctx ends. In the last
// case it returns the last error of the call, which is more informative than that of ctx. It is only for calls that
// are idempotent.
func retryUntilFinal[T any](ctx context.Context, call func() (T, error)) (T, error) {
	wait := backoff{first: 20 * time.Millisecond, most: 500 * time.Millisecond}

	for {
		resp, err := call()
		if err == nil || !isTransient(err) || !wait.sleep(ctx) {
			return resp, err
		}
	}
}

// isTransient reports whether a read should be repeated after err. A stale token is transient, because the client has
// renewed it by then.
func isTransient(err error) bool {
	return grpcCode(err) == codes.Unavailable ||
		errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// backoff is a pause that doubles each time, with jitter. The first pause is about first, and none is longer than
// about most.
type backoff struct {
	first, most time.Duration
	next        time.Duration // 0 before the first pause
}

// sleep waits, and reports whether the full time has passed. It returns false if ctx has ended.
func (b *backoff) sleep(ctx context.Context) bool {
	wait := max(b.next, b.first)
	b.next = min(2*wait, b.most)

	return clock.Sleep(ctx, clock.Jitter(wait))
}

// reset makes the next pause the first one again.
func (b *backoff) reset() { b.next = 0 }
