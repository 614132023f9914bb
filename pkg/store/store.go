package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// Store reads and writes one cluster's records. It is safe for concurrent use.
type Store struct {
	etcd   *kv.Client
	writes kv.Committer // of tasks, runs and shards
	alone  kv.Committer // of nodes, owners, tokens and the cluster
	keys   Keys
	format *formats
}

// New makes a Store. All conditional writes go through writes.
func New(etcd *kv.Client, writes kv.Committer, keys Keys) *Store {
	return (&Store{etcd: etcd, writes: writes, alone: writes, keys: keys}).Understanding(NewestFormat)
}

// Batching is the same Store, with the many small writes of tasks, runs and
// shards through batch. Leased keys never go that way, as a lease that has ended
// fails a whole request; nor do the rare writes that others compare all the time.
func (s *Store) Batching(batch kv.Committer) *Store {
	b := *s
	b.writes = batch
	return &b
}

// Keys are the store's keys.
func (s *Store) Keys() Keys { return s.keys }

// Client is the etcd client, for the mirrors that follow whole prefixes.
func (s *Store) Client() *kv.Client { return s.etcd }

// write commits a transaction that is not settled here: an error after which
// nobody knows is task.ErrUnknown.
func (s *Store) write(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return write(ctx, s.writes, t)
}

// writeAlone is write for what never shares a request.
func (s *Store) writeAlone(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return write(ctx, s.alone, t)
}

func write(ctx context.Context, c kv.Committer, t kv.Txn) (kv.Result, error) {
	res, err := c.Commit(ctx, t)
	switch {
	case err == nil:
		return res, nil
	case kv.Unknown(err):
		return res, fmt.Errorf("%w: %w", task.ErrUnknown, err)
	}
	return res, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
}

// get reads with linearizable consistency. An error is task.ErrUnavailable.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	res, err := s.etcd.Get(ctx, key, opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return res, nil
}

// getOne reads one key; nil if it is not there.
func (s *Store) getOne(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	res, err := s.get(ctx, key)
	if err != nil || len(res.Kvs) == 0 {
		return nil, err
	}
	return res.Kvs[0], nil
}

// getAll reads everything below a prefix, in pages, all at the newest revision.
func (s *Store) getAll(ctx context.Context, prefix string, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	return s.getAllAt(ctx, prefix, 0, opts...)
}

// getAllAt is getAll at a revision (0: the newest).
func (s *Store) getAllAt(ctx context.Context, prefix string, rev int64, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	const page = 2000
	var all []*mvccpb.KeyValue
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		o := append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev)}, opts...)
		res, err := s.get(ctx, from, o...)
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

func absent(key string) clientv3.Cmp {
	return kv.CreateIs(key, 0)
}

func unchanged(key string, modRevision int64) clientv3.Cmp {
	return kv.ModIs(key, modRevision)
}

func below(prefix string) clientv3.OpOption {
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

func (a *again) pause(ctx context.Context) error {
	a.wait = min(max(2*a.wait, 20*time.Millisecond), time.Second)
	t := time.NewTimer(a.wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Bootstrap returns the cluster's record and makes it first if there is none,
// with the watermark of every shard at time zero. Of several nodes that start
// together one makes it, and all get the same. made tells the one. From then on
// the store writes by it; ErrFormat if this version cannot read what is there.
func (s *Store) Bootstrap(ctx context.Context, shards int, now time.Time) (c task.Cluster, made bool, err error) {
	mine := s.newCluster(shards, now)
	var wait again
	for {
		e, err := s.getOne(ctx, s.keys.Cluster())
		if err != nil {
			return c, false, fmt.Errorf("read the cluster's record: %w", err)
		}
		if e != nil {
			r, err := DecodeCluster(e)
			if err == nil {
				err = s.Obey(r)
			}
			return r.Cluster, err == nil && r.ID == mine.ID, err
		}
		err = s.makeCluster(ctx, mine)
		if errors.Is(err, task.ErrUnknown) { // what is there by now tells
			err = wait.pause(ctx)
		}
		if err != nil {
			return c, false, fmt.Errorf("make the cluster's record: %w", err)
		}
	}
}

// makeCluster writes the watermarks and then the cluster's record, unless there
// is one by now.
func (s *Store) makeCluster(ctx context.Context, c task.Cluster) error {
	none := absent(s.keys.Cluster())
	const chunk = 60 // etcd takes 128 operations, nested ones included
	for first := 0; first < c.Shards; first += chunk {
		t := kv.Txn{If: []clientv3.Cmp{none}}
		for id := first; id < min(first+chunk, c.Shards); id++ {
			key := s.keys.Watermark(id)
			zero := encode(Watermark{Time: task.At(time.UnixMilli(0)), Nonce: task.NewUID()})
			t.Then = append(t.Then, clientv3.OpTxn([]clientv3.Cmp{absent(key)}, []clientv3.Op{clientv3.OpPut(key, zero)}, nil))
		}
		if _, err := s.writeAlone(ctx, t); err != nil {
			return err
		}
	}
	_, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{none}, Then: []clientv3.Op{clientv3.OpPut(s.keys.Cluster(), encode(c))}})
	return err
}
