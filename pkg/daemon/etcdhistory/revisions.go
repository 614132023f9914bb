package etcdhistory

import (
	"context"
	"fmt"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Revisions compares the revision of each answer from etcd with the highest revision that was seen
// before the request. A lower one proves that etcd was restored from an older
// snapshot, because revisions never go back otherwise. So the first answer detects it,
// before the node writes to a history that it does not know. The methods may be called from any goroutine.
type Revisions struct {
	seen  atomic.Int64          // the highest revision that was seen
	lower atomic.Pointer[error] // the first lower revision, as an error; nil: none
	found chan struct{}         // closed when lower is set
}

// NewRevisions returns Revisions that begin with the highest one that former processes have seen.
func NewRevisions(seen int64) *Revisions {
	r := &Revisions{found: make(chan struct{})}
	r.seen.Store(seen)
	return r
}

// observeAnswer compares the revision of an answer with asked, the highest one that had been seen when the
// request was sent. Concurrent requests may be answered in any order, so later observations do not count.
func (r *Revisions) observeAnswer(asked, revision int64) {
	if revision < asked {
		err := fmt.Errorf("etcd is at revision %d, but this node has seen revision %d: etcd was restored from an older snapshot", revision, asked)
		if r.lower.CompareAndSwap(nil, &err) {
			close(r.found)
		}
		return
	}

	for seen := r.seen.Load(); revision > seen && !r.seen.CompareAndSwap(seen, revision); seen = r.seen.Load() {
	}
}

// Seen returns the highest revision that was seen.
func (r *Revisions) Seen() int64 { return r.seen.Load() }

// ObserveKV returns kv with an observation of the revision of each answer.
func (r *Revisions) ObserveKV(kv clientv3.KV) clientv3.KV { return seenKV{kv, r} }

// WentBack returns an error if etcd was found to have gone back.
func (r *Revisions) WentBack() error {
	if err := r.lower.Load(); err != nil {
		return *err
	}
	return nil
}

// seenKV observes the revision of each answer.
type seenKV struct {
	clientv3.KV
	*Revisions
}

// Get reads. The answer to a serializable read may come from a member that lags behind, so its revision proves nothing.
func (s seenKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	asked := s.seen.Load()
	res, err := s.KV.Get(ctx, key, opts...)
	if err == nil && !clientv3.OpGet(key, opts...).IsSerializable() {
		s.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}

// Put writes.
func (s seenKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	asked := s.seen.Load()
	res, err := s.KV.Put(ctx, key, val, opts...)
	if err == nil {
		s.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}

// Delete deletes.
func (s seenKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	asked := s.seen.Load()
	res, err := s.KV.Delete(ctx, key, opts...)
	if err == nil {
		s.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}

// Txn begins a transaction.
func (s seenKV) Txn(ctx context.Context) clientv3.Txn { return seenTxn{s.KV.Txn(ctx), s.Revisions} }

// seenTxn is a transaction of a seenKV.
type seenTxn struct {
	clientv3.Txn
	*Revisions
}

func (t seenTxn) If(cs ...clientv3.Cmp) clientv3.Txn  { return seenTxn{t.Txn.If(cs...), t.Revisions} }
func (t seenTxn) Then(op ...clientv3.Op) clientv3.Txn { return seenTxn{t.Txn.Then(op...), t.Revisions} }
func (t seenTxn) Else(op ...clientv3.Op) clientv3.Txn { return seenTxn{t.Txn.Else(op...), t.Revisions} }

// Commit sends the transaction.
func (t seenTxn) Commit() (*clientv3.TxnResponse, error) {
	asked := t.seen.Load()
	res, err := t.Txn.Commit()
	if err == nil {
		t.observeAnswer(asked, res.Header.GetRevision())
	}

	return res, err
}
