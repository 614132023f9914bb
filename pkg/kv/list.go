package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

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

// KeysPageSize is a size for pages without values: 3 to 5 MB.
const KeysPageSize = 32 << 10

// splitAfter is how many pages a range must still have before Pages looks for splits.
const splitAfter = 4

// Pages reads a range page by page.
//
// For each request, etcd counts the keys up to the end of the range, also those beyond the limit, which takes about half
// a microsecond for each. If every page were read up to the end of the range, the time for all pages would grow with the
// square of its size. So Pages ends its requests at splits: keys that divide the range into parts of similar sizes. The
// caller may know some (UseSplits). Otherwise, if a range that is read at one revision is long, Pages reads its keys
// first, many at a time and without values, and takes every n-th of them.
//
// Splits change only what a page costs. They may be out of date.
type Pages struct {
	client   clientv3.KV
	key, end string // the range that has not been read yet
	size     int
	opts     []clientv3.OpOption

	splits     []string // in order
	splitsIn   string   // what each split begins with, left out in splits
	firstAhead int      // up to which split a page reads at first: 1 is the next one

	// rest is at least the number of keys after the last split, if a request has counted them.
	rest int64
	done bool
}

// NewPages returns the pages of the range [key, end), or of a single key if end is empty. A page has at most size keys.
// opts are for each read, such as WithKeysOnly. They must not sort or filter.
func NewPages(c clientv3.KV, key, end string, size int, opts ...clientv3.OpOption) *Pages {
	return &Pages{client: c, key: key, end: end, size: size, opts: opts, firstAhead: 1}
}

// UseSplits sets keys, in order, that divide the range into parts of similar sizes. Each begins with prefix, which the
// elements of splits leave out. A page reads up to the split that is ahead splits away, and then on, in longer
// parts, if it has less than size keys.
func (p *Pages) UseSplits(prefix string, splits []string, ahead int) {
	p.splitsIn, p.splits, p.firstAhead = prefix, splits, max(ahead, 1)
}

// More reports whether there is another page. It may be empty if the splits are out of date.
func (p *Pages) More() bool { return !p.done }

// Next reads the next page at a revision, or at the current one if rev is 0, and returns the revision. Pass it to the
// following calls to read the whole range at one revision. After an error, Next can be called again.
func (p *Pages) Next(ctx context.Context, rev int64) (kvs []*mvccpb.KeyValue, at int64, err error) {
	// The splits that Pages finds belong to a revision. At others, there may be fewer keys between them, or more.
	if rev != 0 && p.rest > int64(splitAfter*p.size) && p.splitAfter(p.key, 1) == "" {
		if err := p.findSplits(ctx, rev); err != nil {
			return nil, 0, err
		}
	}

	// The position changes only if all requests of the page succeed.
	key, rest, more := p.key, p.rest, true
	for ahead := p.firstAhead; more && len(kvs) < p.size; ahead *= 2 {
		until := p.splitAfter(key, ahead)
		atEnd := until == ""
		if atEnd {
			until = p.end
		}

		res, err := p.get(ctx, key, until, rev, p.size-len(kvs), p.opts...)
		if err != nil {
			return nil, 0, err
		}

		// All parts of a page are read at the same revision. The header contains the latest revision, even if an older
		// one was asked for.
		if rev == 0 {
			rev = res.Header.Revision
		}

		kvs = append(kvs, res.Kvs...)

		switch {
		case res.More && len(res.Kvs) > 0:
			key = keyAfter(res.Kvs)
		case atEnd:
			more = false
		default:
			key = until
		}

		if atEnd {
			rest = res.Count - int64(len(res.Kvs))
		}
	}

	p.key, p.rest, p.done = key, rest, !more

	return kvs, rev, nil
}

// splitAfter returns the n-th split after a key, or an empty text if the range ends before.
func (p *Pages) splitAfter(key string, n int) string {
	if p.end == "" {
		return ""
	}

	// The splits up to the key are not needed again.
	first, found := slices.BinarySearchFunc(p.splits, key, func(split, key string) int {
		return compareJoined(p.splitsIn, split, key)
	})
	if found {
		first++
	}

	p.splits = p.splits[first:]
	if n > len(p.splits) {
		return ""
	}

	// A range with the end "\x00" has no upper bound.
	split := p.splitsIn + p.splits[n-1]
	if p.end != "\x00" && split >= p.end {
		return ""
	}

	return split
}

// findSplits reads the keys that come next without their values, and makes every size-th of them a split.
func (p *Pages) findSplits(ctx context.Context, rev int64) error {
	res, err := p.get(ctx, p.key, p.end, rev, max(KeysPageSize, splitAfter*p.size), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}

	p.splitsIn, p.splits, p.firstAhead, p.rest = "", nil, 1, 0
	for i := p.size; i < len(res.Kvs); i += p.size {
		p.splits = append(p.splits, string(res.Kvs[i].Key))
		p.rest = res.Count - int64(i)
	}

	return nil
}

// get reads the first keys of a range.
func (p *Pages) get(ctx context.Context, key, end string, rev int64, limit int, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	all := append(upTo(end), clientv3.WithRev(rev), clientv3.WithLimit(int64(limit)))
	return p.client.Get(ctx, key, append(all, opts...)...)
}

// compareJoined compares a+b with c, without joining them.
func compareJoined(a, b, c string) int {
	n := min(len(a), len(c))
	if a[:n] != c[:n] || n < len(a) {
		return cmp.Compare(a, c)
	}
	return cmp.Compare(b, c[n:])
}

// keyAfter returns the first key that can follow a page of keys.
func keyAfter(page []*mvccpb.KeyValue) string {
	return string(page[len(page)-1].Key) + "\x00"
}
