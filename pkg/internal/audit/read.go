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
)

// pin makes the present revision the one at which the audit reads.
func (a *audit) pin() error {
	at := a.Now()
	res, err := a.Store.Client().Get(a.ctx, a.keys.Cluster(), clientv3.WithCountOnly())
	if err != nil {
		return unavailable("read the present revision", err)
	}
	a.rev, a.at = res.Header.Revision, at
	return nil
}

// repin goes on at the present revision when the pinned one is compacted away.
// What two revisions do not agree on is suspected, and the second look clears it.
func (a *audit) repin() error {
	a.note("etcd was compacted meanwhile: the records were not all read at one revision")
	return a.pin()
}

// each calls f with every record below a prefix, a page at a time.
func (a *audit) each(prefix string, f func(*mvccpb.KeyValue) error) error {
	key, end := kv.Prefix(prefix)
	return a.eachIn(key, end, f)
}

func (a *audit) eachIn(key, end string, f func(*mvccpb.KeyValue) error) error {
	for {
		res, err := a.Store.Client().Get(a.ctx, key, clientv3.WithRange(end), clientv3.WithLimit(int64(a.Page)), clientv3.WithRev(a.rev))
		if errors.Is(err, rpctypes.ErrCompacted) {
			if err := a.repin(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return unavailable("read "+key, err)
		}
		a.progress(len(res.Kvs))
		for _, e := range res.Kvs {
			if err := f(e); err != nil {
				return err
			}
		}
		if !res.More || len(res.Kvs) == 0 {
			return nil
		}
		key = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
	}
}

const mostGets = 100 // in one transaction; etcd takes 128

// gets reads keys at a revision (0: the present one of the first read), and
// calls f with those that are there.
func (a *audit) gets(keys []string, rev int64, f func(*mvccpb.KeyValue), opts ...clientv3.OpOption) error {
	for chunk := range slices.Chunk(keys, mostGets) {
		ops := make([]clientv3.Op, len(chunk))
		for i, key := range chunk {
			ops[i] = clientv3.OpGet(key, append([]clientv3.OpOption{clientv3.WithRev(rev)}, opts...)...)
		}
		res, err := a.Store.Client().Txn(a.ctx).Then(ops...).Commit()
		if err != nil {
			return unavailable("read records", err)
		}
		if rev == 0 {
			rev = res.Header.Revision
		}
		for _, r := range res.Responses {
			for _, e := range r.GetResponseRange().Kvs {
				f(e)
			}
		}
	}
	return nil
}

// mods are the mod revisions of keys now, all at one revision; 0 of those that
// are absent.
func (a *audit) mods(keys []string) (map[string]int64, error) {
	now := map[string]int64{}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	const tries = 3
	for i := 1; ; i++ {
		clear(now)
		err := a.gets(keys, 0, func(e *mvccpb.KeyValue) { now[string(e.Key)] = e.ModRevision }, clientv3.WithKeysOnly())
		if err == nil || i == tries || !errors.Is(err, rpctypes.ErrCompacted) {
			return now, err
		}
	}
}

// get reads keys at the audit's revision.
func (a *audit) get(keys []string) (map[string]*mvccpb.KeyValue, error) {
	all := map[string]*mvccpb.KeyValue{}
	for {
		err := a.gets(keys, a.rev, func(e *mvccpb.KeyValue) { all[string(e.Key)] = e })
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return all, err
		}
		if err := a.repin(); err != nil {
			return nil, err
		}
	}
}

// ttl is how long a lease lasts yet, in seconds; negative if it has ended.
func (a *audit) ttl(ctx context.Context, lease int64) (left, granted int64, err error) {
	res, err := a.Store.Client().TimeToLive(ctx, clientv3.LeaseID(lease))
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return -1, 0, nil
	case err != nil:
		return 0, 0, unavailable("ask for a lease", err)
	}
	return res.TTL, res.GrantedTTL, nil
}

// ago spells how long before the audit's reading a time was.
func (a *audit) ago(t time.Time) string { return a.at.Sub(t).Round(time.Second).String() + " ago" }
