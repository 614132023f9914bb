package kv

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// page is how many keys one request reads: some 1.5 MB of tasks.
const page = 1000

// Prefix returns the range of all keys that start with p. A prefix ends in "/": "test" also reaches "test-1".
func Prefix(p string) (key, end string) {
	return p, clientv3.GetPrefixRangeEnd(p)
}

// List reads [key, end) in pages, all at one revision, which it returns: rev, or the newest if rev is 0. An empty end
// means the one key; the keys come in order. If the revision is compacted away while it reads the newest, it starts
// again; if rev itself is gone, the error is rpctypes.ErrCompacted.
func List(ctx context.Context, c clientv3.KV, key, end string, rev int64) ([]*mvccpb.KeyValue, int64, error) {
	var kvs []*mvccpb.KeyValue
	err := eachPage(ctx, c, key, end, rev, page, func(b Batch) error {
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

// eachPage is List, save that it tells of each page, of size keys at most, as it comes. If it starts again then with
// page 0. It ends with tell's error.
func eachPage(ctx context.Context, c clientv3.KV, key, end string, rev int64, size int, tell func(Batch) error) error {
	const attempts = 3

	for i := 1; ; i++ {
		err := readPages(ctx, c, key, end, rev, size, tell)
		switch {
		case err == nil:
			return nil
		case rev == 0 && i < attempts && errors.Is(err, rpctypes.ErrCompacted):
		default:
			return fmt.Errorf("list %q: %w", key, err)
		}
	}
}

func readPages(ctx context.Context, c clientv3.KV, key, end string, rev int64, size int, tell func(Batch) error) error {
	for n := 0; ; n++ {
		resp, err := c.Get(ctx, key, append(upTo(end), clientv3.WithRev(rev), clientv3.WithLimit(int64(size)))...)
		if err != nil {
			return err
		}

		if rev == 0 {
			rev = resp.Header.Revision
		}

		more := resp.More && len(resp.Kvs) > 0
		if more {
			key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}

		if err := tell(Batch{Reset: true, Page: n, More: more, KVs: resp.Kvs, Revision: rev}); err != nil || !more {
			return err
		}
	}
}

// upTo is the option for a range's end; none for the one key. An empty end must not be given as such: the in-process
// client hands it on as a range that has no end.
func upTo(end string) []clientv3.OpOption {
	if end == "" {
		return nil
	}
	return []clientv3.OpOption{clientv3.WithRange(end)}
}
