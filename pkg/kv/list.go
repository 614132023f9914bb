package kv

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// listPageSize is how many keys the first request of a list reads: about 1.5 MB of tasks.
	listPageSize = 1000
	// maxListPageSize is how many keys later requests read at most. With each request, etcd counts the keys up to the end of
	// the range, so reading a large range in small pages takes a time that grows with the square of its size.
	maxListPageSize = 8 * listPageSize
)

// pageSizes are how many keys the first page of a list has, and how many the others may have. Each has twice as many as the
// one before.
type pageSizes struct{ first, most int }

// Prefix returns the range of all keys that start with p. p should end in "/": the range of "test" also contains
// "test-1".
func Prefix(p string) (key, end string) {
	return p, clientv3.GetPrefixRangeEnd(p)
}

// List reads the range [key, end) in pages and returns its keys in order. All pages are read at one revision, which
// it returns: rev, or the current revision if rev is 0. An empty end means the single key.
//
// If rev is 0 and the revision is compacted away between two pages, List starts again, at most twice. If rev is set
// and compacted, the error is rpctypes.ErrCompacted.
func List(ctx context.Context, c clientv3.KV, key, end string, rev int64) ([]*mvccpb.KeyValue, int64, error) {
	var kvs []*mvccpb.KeyValue
	err := eachPage(ctx, c, key, end, rev, pageSizes{listPageSize, maxListPageSize}, func(b Batch) error {
		// Page 0 after other pages means that eachPage has started again.
		if rev = b.Revision; b.Page == 0 {
			kvs = b.KVs
		} else {
			kvs = append(kvs, b.KVs...)
		}

		return nil
	})

	if err != nil {
		return nil, 0, err
	}

	return kvs, rev, nil
}

// eachPage reads a range like List, but in pages of other sizes, and calls tell with each page as soon as it arrives. When it
// starts again after a compaction, it calls tell with page 0 again. If tell returns an error, eachPage stops and
// returns it.
func eachPage(ctx context.Context, c clientv3.KV, key, end string, rev int64, sizes pageSizes, tell func(Batch) error) error {
	const attempts = 3

	for i := 1; ; i++ {
		err := readPages(ctx, c, key, end, rev, sizes, tell)
		switch {
		case err == nil:
			return nil
		// The caller accepts any revision, so the next attempt reads at a newer one.
		case rev == 0 && i < attempts && errors.Is(err, rpctypes.ErrCompacted):
		default:
			return fmt.Errorf("list %q: %w", key, err)
		}
	}
}

// readPages makes one attempt of eachPage.
func readPages(ctx context.Context, c clientv3.KV, key, end string, rev int64, sizes pageSizes, tell func(Batch) error) error {
	size := sizes.first
	for n := 0; ; n++ {
		resp, err := c.Get(ctx, key, append(upTo(end), clientv3.WithRev(rev), clientv3.WithLimit(int64(size)))...)
		if err != nil {
			return err
		}

		// The first page determines the revision of all others.
		if rev == 0 {
			rev = resp.Header.Revision
		}

		// The next page begins with the smallest key after the last one.
		more := resp.More && len(resp.Kvs) > 0
		if more {
			key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}

		if err := tell(Batch{Reset: true, Page: n, More: more, KVs: resp.Kvs, Revision: rev}); err != nil || !more {
			return err
		}

		size = min(2*size, sizes.most)
	}
}

// upTo returns the option for the end of a range, or none for a single key. It must not pass an empty end to
// WithRange: the in-process client forwards that as a range without an end.
func upTo(end string) []clientv3.OpOption {
	if end == "" {
		return nil
	}
	return []clientv3.OpOption{clientv3.WithRange(end)}
}
