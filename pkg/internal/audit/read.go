package audit

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// reader reads the cluster's records at one revision, a page at a time.
type reader struct {
	store    *store.Store
	keys     record.Keys
	now      func() time.Time
	page     int // records in one read
	progress *progress
	notes    *notes

	revision int64     // at which it reads; 0: each read at the current revision
	at       time.Time // when that revision was current, by the local clock
}

// newReader returns a reader without a pinned revision.
func newReader(au Auditor, progress *progress, notes *notes) *reader {
	return &reader{store: au.Store, keys: au.Store.Keys(), now: au.Now, page: au.Page, progress: progress, notes: notes}
}

// pinRevision pins the current revision for all further reads.
func (r *reader) pinRevision(ctx context.Context) error {
	// Read the clock before the revision: what is late by this clock was late at the revision.
	at := r.now()
	res, err := r.store.Client().Get(ctx, r.keys.Cluster(), clientv3.WithCountOnly())
	if err != nil {
		return unavailableError("read the current revision", err)
	}

	r.revision, r.at = res.Header.Revision, at

	return nil
}

// repinRevision continues at the current revision when the pinned one was compacted. Differences between the two
// revisions may become suspects. The second read does not confirm them.
func (r *reader) repinRevision(ctx context.Context) error {
	r.notes.addNote("etcd was compacted during the audit: not all records were read at the same revision")
	return r.pinRevision(ctx)
}

// eachRecord calls check with every record below a prefix, a page at a time.
func (r *reader) eachRecord(ctx context.Context, prefix string, check checkFunc) error {
	key, end := kv.Prefix(prefix)
	return r.eachInRange(ctx, key, end, check)
}

// eachKey is eachRecord without the values.
func (r *reader) eachKey(ctx context.Context, prefix string, check checkFunc) error {
	key, end := kv.Prefix(prefix)
	return r.eachInRange(ctx, key, end, check, clientv3.WithKeysOnly())
}

// eachInRange calls check with every record from key up to end, exclusive, a page at a time. opts are for each read.
func (r *reader) eachInRange(ctx context.Context, key, end string, check checkFunc, opts ...clientv3.OpOption) error {
	pages := kv.NewPages(r.store.Client(), key, end, r.page, opts...)

	for pages.More() {
		page, _, err := pages.Next(ctx, r.revision)

		// Continue at the current revision from the same key.
		if errors.Is(err, rpctypes.ErrCompacted) {
			if err := r.repinRevision(ctx); err != nil {
				return err
			}
			continue
		}

		if err != nil {
			return unavailableError("read "+key, err)
		}

		r.progress.addRecords(len(page))

		for _, e := range page {
			if err := check(ctx, e); err != nil {
				return err
			}
		}
	}

	return nil
}

// maxGets is how many keys one transaction reads. etcd allows 128 operations.
const maxGets = 100

// getAt reads keys at a revision, and calls found with the records that exist. With revision 0 it reads all of them
// at the revision of the first transaction.
func (r *reader) getAt(ctx context.Context, revision int64, keys []string, found func(*mvccpb.KeyValue), opts ...clientv3.OpOption) error {
	for chunk := range slices.Chunk(keys, maxGets) {
		ops := make([]clientv3.Op, len(chunk))
		for i, key := range chunk {
			ops[i] = clientv3.OpGet(key, append([]clientv3.OpOption{clientv3.WithRev(revision)}, opts...)...)
		}

		res, err := r.store.Client().Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return unavailableError("read records", err)
		}

		if revision == 0 {
			revision = res.Header.Revision
		}

		for _, part := range res.Responses {
			for _, e := range part.GetResponseRange().Kvs {
				found(e)
			}
		}
	}

	return nil
}

// modRevisions returns the current mod revisions of keys, all at one revision. Absent keys are not in the map.
func (r *reader) modRevisions(ctx context.Context, keys []string) (map[string]int64, error) {
	now := map[string]int64{}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))

	// The revision of the first transaction can be compacted before the last one. Then start again.
	const tries = 3

	for i := 1; ; i++ {
		clear(now)
		err := r.getAt(ctx, 0, keys, func(e *mvccpb.KeyValue) { now[string(e.Key)] = e.ModRevision }, clientv3.WithKeysOnly())
		if err == nil || i == tries || !errors.Is(err, rpctypes.ErrCompacted) {
			return now, err
		}
	}
}

// readKeys reads keys at the pinned revision.
func (r *reader) readKeys(ctx context.Context, keys ...string) (map[string]*mvccpb.KeyValue, error) {
	all := map[string]*mvccpb.KeyValue{}
	for {
		err := r.getAt(ctx, r.revision, keys, func(e *mvccpb.KeyValue) { all[string(e.Key)] = e })
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return all, err
		}
		if err := r.repinRevision(ctx); err != nil {
			return nil, err
		}
	}
}

// leaseTTL returns the remaining seconds of a lease; negative if it has ended.
func (r *reader) leaseTTL(ctx context.Context, lease int64) (int64, error) {
	res, err := r.store.Client().TimeToLive(ctx, clientv3.LeaseID(lease))
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return -1, nil
	case err != nil:
		return 0, unavailableError("ask for a lease", err)
	}

	return res.TTL, nil
}

// timeSince returns how long before the pinned revision a time was.
func (r *reader) timeSince(t time.Time) time.Duration { return r.at.Sub(t) }

// formatAgo formats how long before the pinned revision a time was.
func (r *reader) formatAgo(t time.Time) string {
	return r.timeSince(t).Round(time.Second).String() + " ago"
}
