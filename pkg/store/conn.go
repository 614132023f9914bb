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

// conn is the connection that the parts of a Store share, with the reads and writes that all of
// them need.
type conn struct {
	etcd   *kv.Client
	writes kv.Committer // for records of tasks, runs, shards and secrets; may combine writes in one request
	alone  kv.Committer // for nodes, owners, freezes, tokens and the cluster; sends each write separately
	keys   record.Keys
	format *formats // shared by all Stores that Batching derives from one

	authority Authority // on whose behalf it writes; nil: the node's own
}

// writeTxn commits a transaction once. An error that leaves the outcome open wraps
// task.ErrUnknown; any other error wraps task.ErrUnavailable, and nothing was written.
func (s *conn) writeTxn(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return s.commit(ctx, s.writes, t)
}

// writeAlone is like writeTxn for a transaction that must not share a request with others.
func (s *conn) writeAlone(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return s.commit(ctx, s.alone, t)
}

func (s *conn) commit(ctx context.Context, c kv.Committer, t kv.Txn) (kv.Result, error) {
	if s.authority != nil {
		return s.commitAs(ctx, c, t)
	}
	return commitWrite(ctx, c, t)
}

// commitWrite commits t through c and classifies the error. Comparisons that do not hold are no
// error: the caller checks Result.Succeeded.
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

// readKey reads a key or a range. The read is linearizable. Its error wraps
// task.ErrUnavailable.
func (s *conn) readKey(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	res, err := s.etcd.Get(ctx, key, opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return res, nil
}

// getOne reads one key. It returns nil if the key is absent.
func (s *conn) getOne(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	res, err := s.readKey(ctx, key)
	if err != nil || len(res.Kvs) == 0 {
		return nil, err
	}
	return res.Kvs[0], nil
}

// getAll reads all keys with a prefix in pages. All pages are read at one revision, which it
// returns.
func (s *conn) getAll(ctx context.Context, prefix string, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	return s.getAllAt(ctx, prefix, 0, opts...)
}

// getAllAt is like getAll, but reads at a given revision. 0 means the current one.
func (s *conn) getAllAt(ctx context.Context, prefix string, rev int64, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	return s.getRange(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), rev, opts...)
}

// rangePage is how many keys getRange reads in one request, with their values.
const rangePage = 2000

// getRange is like getAllAt for the keys from one key until before another.
func (s *conn) getRange(ctx context.Context, from, end string, rev int64, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	size := rangePage
	if op := clientv3.OpGet(from, opts...); op.IsKeysOnly() {
		size = kv.KeysPageSize
	}

	var all []*mvccpb.KeyValue
	pages := kv.NewPages(s.etcd, from, end, size, opts...)
	for pages.More() {
		page, at, err := s.nextPage(ctx, pages, rev)
		if err != nil {
			return nil, 0, err
		}

		// The first page determines the revision of the others.
		all, rev = append(all, page...), at
	}

	return all, rev, nil
}

// nextPage reads the next page at a revision; 0 means the current one. Its error wraps
// task.ErrUnavailable.
func (s *conn) nextPage(ctx context.Context, pages *kv.Pages, rev int64) (page []*mvccpb.KeyValue, at int64, err error) {
	page, at, err = pages.Next(ctx, rev)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return page, at, nil
}

// keyAfter returns the first key that can follow a page of keys.
func keyAfter(page []*mvccpb.KeyValue) string {
	return string(page[len(page)-1].Key) + "\x00"
}

// isAbsent is a comparison that holds if the key does not exist.
func isAbsent(key string) clientv3.Cmp {
	return kv.CreateIs(key, 0)
}

// isUnchanged is a comparison that holds if the key still has this mod revision. 0 means that
// the key must be absent.
func isUnchanged(key string, modRevision int64) clientv3.Cmp {
	return kv.ModIs(key, modRevision)
}

// withPrefix is the option that extends a read or a deletion to all keys with the prefix.
func withPrefix(prefix string) clientv3.OpOption {
	return clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix))
}

// readAt returns the key that the n-th operation of a transaction has read, or nil if the key
// is absent. If the operation is a range read, it returns the first key.
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

// conflictBackoff is the pause between attempts of a write. It doubles from 20 ms up to a second.
type conflictBackoff struct{ wait time.Duration }

// waitBackoff waits before the next attempt. It returns the error of ctx if that ends first.
func (a *conflictBackoff) waitBackoff(ctx context.Context) error {
	a.wait = min(max(2*a.wait, 20*time.Millisecond), time.Second)
	if !clock.Sleep(ctx, a.wait) {
		return context.Cause(ctx)
	}

	return nil
}

// sweepPage is how many tombstones a sweep reads at a time. Those of them that are old are
// deleted in one transaction, which compares that none of them has been written since.
const sweepPage = 100

// sweepOld deletes the keys with a prefix for which old returns true. It reads about most keys at one revision,
// beginning after the key after, which is empty for the first call. next is the key after which
// the following call should begin, or empty if the last key has been reached.
func (s *conn) sweepOld(ctx context.Context, prefix, after string, most int, old func(*mvccpb.KeyValue) bool) (removed int, next string, err error) {
	pages := kv.NewPages(s.etcd, max(prefix, after+"\x00"), clientv3.GetPrefixRangeEnd(prefix), sweepPage)
	rev := int64(0)

	for looked := 0; looked < most; looked += sweepPage {
		page, at, err := s.nextPage(ctx, pages, rev)
		if err != nil {
			return removed, next, fmt.Errorf("look for old tombstones: %w", err)
		}
		rev = at

		n, err := s.removeOld(ctx, page, old)
		removed += n
		if err != nil {
			return removed, next, err
		}
		if !pages.More() {
			return removed, "", nil
		}

		next = string(page[len(page)-1].Key)
	}

	return removed, next, nil
}

// removeOld deletes those of the keys for which old returns true, in one transaction, and
// returns their number. If one of them was written meanwhile, it deletes none of them.
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
	// A key was written meanwhile. The next sweep deletes the others.
	if !res.Succeeded {
		return 0, nil
	}

	return len(t.Then), nil
}

// eachKey reads keys, 100 in each request, and calls f for each of them in order. e is nil if
// the key is absent. Keys of different requests may be read at different revisions.
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

// eachOf is like eachKey for callers that also need the revision of the read.
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

// NoSpace reports whether an error of this package was caused by an etcd that has exceeded its
// quota. The write may have been applied nevertheless.
func NoSpace(err error) bool {
	return kv.NoSpace(err)
}
