package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// conn is the connection that the parts of a Store share: the way to etcd, and what
// each of them needs to read and to write, whatever the records are.
type conn struct {
	etcd   *kv.Client
	writes kv.Committer // of tasks, runs and shards
	alone  kv.Committer // of nodes, owners, tokens and the cluster
	keys   record.Keys
	format *formats
}

// writeTxn commits a transaction that is not settled here: an error after which
// nobody knows is task.ErrUnknown.
func (s *conn) writeTxn(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return commitWrite(ctx, s.writes, t)
}

// writeAlone is write for what never shares a request.
func (s *conn) writeAlone(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return commitWrite(ctx, s.alone, t)
}

func commitWrite(ctx context.Context, c kv.Committer, t kv.Txn) (kv.Result, error) {
	res, err := c.Commit(ctx, t)
	switch {
	case err == nil:
		return res, nil
	case kv.Unknown(err):
		return res, fmt.Errorf("%w: %w", task.ErrUnknown, err)
	}

	return res, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
}

// readKey reads with linearizable consistency. An error is task.ErrUnavailable.
func (s *conn) readKey(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	res, err := s.etcd.Get(ctx, key, opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return res, nil
}

// getOne reads one key; nil if it is not there.
func (s *conn) getOne(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	res, err := s.readKey(ctx, key)
	if err != nil || len(res.Kvs) == 0 {
		return nil, err
	}
	return res.Kvs[0], nil
}

// getAll reads everything below a prefix, in pages, all at the newest revision.
func (s *conn) getAll(ctx context.Context, prefix string, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	return s.getAllAt(ctx, prefix, 0, opts...)
}

// getAllAt is getAll at a revision (0: the newest).
func (s *conn) getAllAt(ctx context.Context, prefix string, rev int64, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	const page = 2000
	var all []*mvccpb.KeyValue
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		o := append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev)}, opts...)
		res, err := s.readKey(ctx, from, o...)
		if err != nil {
			return nil, 0, err
		}

		if rev == 0 {
			rev = res.Header.Revision
		}

		all = append(all, res.Kvs...)

		if !res.More || len(res.Kvs) == 0 {
			return all, rev, nil
		}

		from = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
	}
}

func isAbsent(key string) clientv3.Cmp {
	return kv.CreateIs(key, 0)
}

func isUnchanged(key string, modRevision int64) clientv3.Cmp {
	return kv.ModIs(key, modRevision)
}

func withPrefix(prefix string) clientv3.OpOption {
	return clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix))
}

// readAt is the n-th response of a transaction, as a read of one key.
func readAt(res kv.Result, n int) *mvccpb.KeyValue {
	if n >= len(res.Responses) {
		return nil
	}

	r := res.Responses[n].GetResponseRange()
	if r == nil || len(r.Kvs) == 0 {
		return nil
	}

	return r.Kvs[0]
}

// again waits a little before something is tried again, longer each time up to
// a second; it returns the context's error if that ends first.
type again struct{ wait time.Duration }

func (a *again) waitBackoff(ctx context.Context) error {
	a.wait = min(max(2*a.wait, 20*time.Millisecond), time.Second)
	if !clock.Sleep(ctx, a.wait) {
		return context.Cause(ctx)
	}

	return nil
}

// sweepPage is how many tombstones a sweep reads at once; it deletes those that
// are old, each if nobody has written it since, in one transaction.
const sweepPage = 100

// sweepOld removes what is old of what is below a prefix.
func (s *conn) sweepOld(ctx context.Context, prefix, after string, most int, old func(*mvccpb.KeyValue) bool) (removed int, next string, err error) {
	from := max(prefix, after+"\x00")
	for looked := 0; looked < most; looked += sweepPage {
		res, err := s.readKey(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(sweepPage))
		if err != nil {
			return removed, next, fmt.Errorf("look for old tombstones: %w", err)
		}

		n, err := s.removeOld(ctx, res.Kvs, old)
		removed += n
		if err != nil {
			return removed, next, err
		}
		if !res.More || len(res.Kvs) == 0 {
			return removed, "", nil
		}

		next = string(res.Kvs[len(res.Kvs)-1].Key)
		from = next + "\x00"
	}

	return removed, next, nil
}

func (s *conn) removeOld(ctx context.Context, found []*mvccpb.KeyValue, old func(*mvccpb.KeyValue) bool) (int, error) {
	var t kv.Txn
	for _, e := range found {
		if !old(e) {
			continue
		}

		key := string(e.Key)
		t.If = append(t.If, isUnchanged(key, e.ModRevision))
		t.Then = append(t.Then, clientv3.OpDelete(key))
	}

	if len(t.Then) == 0 {
		return 0, nil
	}

	res, err := s.writeTxn(ctx, t)
	if err != nil {
		return 0, fmt.Errorf("remove old tombstones: %w", err)
	}
	if !res.Succeeded { // one was written meanwhile: the next sweep sees to the others
		return 0, nil
	}

	return len(t.Then), nil
}

// eachKey reads keys, many in one request, and calls f for each, in order; with nil
// for one that is not there.
func (s *conn) eachKey(ctx context.Context, keys []string, f func(i int, e *mvccpb.KeyValue)) error {
	i := 0
	return s.eachOf(ctx, keys, func(r *etcdserverpb.RangeResponse) {
		var e *mvccpb.KeyValue
		if len(r.Kvs) > 0 {
			e = r.Kvs[0]
		}

		f(i, e)
		i++
	})
}

// eachOf is eachKey for who wants to know the revision, too.
func (s *conn) eachOf(ctx context.Context, keys []string, f func(*etcdserverpb.RangeResponse)) error {
	for chunk := range slices.Chunk(keys, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, key := range chunk {
			ops[i] = clientv3.OpGet(key)
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}

		for _, r := range res.Responses {
			f(r.GetResponseRange())
		}
	}

	return nil
}

// NoSpace reports whether an error of this package came of etcd being over its
// quota. Such a write may have been applied all the same.
func NoSpace(err error) bool {
	return kv.NoSpace(err)
}
