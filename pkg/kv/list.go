package kv

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listPageSize is how many keys each request of a list reads: about 3 MB of tasks.
const listPageSize = 2000

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
	err := eachPage(ctx, c, key, end, rev, listPageSize, func(b Batch) error {
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

// eachPage reads a range like List, but in pages of another size, and calls tell with each page as soon as it arrives. When it
// starts again after a compaction, it calls tell with page 0 again. If tell returns an error, eachPage stops and
// returns it.
func eachPage(ctx context.Context, c clientv3.KV, key, end string, rev int64, size int, tell func(Batch) error) error {
	const attempts = 3

	for i := 1; ; i++ {
		err := readPages(ctx, c, key, end, rev, size, tell)
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
func readPages(ctx context.Context, c clientv3.KV, key, end string, rev int64, size int, tell func(Batch) error) error {
	pages := NewPages(c, key, end, size)
	for n := 0; pages.More(); n++ {
		kvs, at, err := pages.Next(ctx, rev)
		if err != nil {
			return err
		}

		// The first page determines the revision of all others.
		rev = at

		if err := tell(Batch{Reset: true, Page: n, More: pages.More(), KVs: kvs, Revision: rev}); err != nil {
			return err
		}
	}

	return nil
}

// upTo returns the option for the end of a range, or none for a single key. It must not pass an empty end to
// WithRange: the in-process client forwards that as a range without an end.
func upTo(end string) []clientv3.OpOption {
	if end == "" {
		return nil
	}
	return []clientv3.OpOption{clientv3.WithRange(end)}
}
