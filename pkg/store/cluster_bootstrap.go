package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// FirstAccess are the access records with which a cluster begins. Nothing else ever creates
// an administrator by itself: an empty list of tokens in an existing cluster stays empty.
type FirstAccess struct {
	Namespaces []task.Namespace
	Bindings   []task.Binding
	Tokens     []record.Token
}

// OpenNamespace is a namespace whose tasks may be everything: for a cluster of one person.
func OpenNamespace(name string) task.Namespace {
	return task.Namespace{Name: name, RunAs: []string{"*"}, Groups: []string{"*"}, Shell: true, EnvFiles: []string{"*"}}
}

// OpenAccess is the access of a cluster of one person, and of tests: the namespace default is
// open, and nobody has a token.
func OpenAccess() FirstAccess {
	return FirstAccess{Namespaces: []task.Namespace{OpenNamespace("default")}}
}

// Bootstrap returns the cluster's record. If there is none, it creates it together with the
// first access records, after the watermark of every shard at time zero. If several nodes start
// together, one of them creates the record, and made is true for that one; all return the same.
// From then on, the store writes in the record's format. It returns ErrFormat if this version
// cannot read that format.
func (s Cluster) Bootstrap(ctx context.Context, shards int, now time.Time, first FirstAccess) (c task.Cluster, made bool, err error) {
	mine := s.newCluster(shards, now)
	var wait conflictBackoff

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

		err = s.makeCluster(ctx, mine, first, now)
		// After a failed comparison or an unknown outcome, read the record: its id shows who
		// created it.
		if errors.Is(err, task.ErrUnknown) {
			err = wait.waitBackoff(ctx)
		}

		if err != nil {
			return c, false, fmt.Errorf("create the cluster's record: %w", err)
		}
	}
}

// HasAccessRecords reports whether the cluster has the fence of the access records, which was created together with its
// record. A cluster without it was created by a version without access control, or somebody has deleted it. Then no node
// knows who may do what.
func (s Cluster) HasAccessRecords(ctx context.Context) (bool, error) {
	fence, err := s.getOne(ctx, s.keys.Fence())
	if err != nil {
		return false, fmt.Errorf("read the fence of the access records: %w", err)
	}

	return fence != nil, nil
}

// makeCluster writes the watermarks and then, in one transaction, the record of the cluster, the
// fence and the first access records, unless the cluster's record exists by now. The record comes
// last, so that a cluster with a record has all its watermarks: a shard without one counts as
// damaged. A watermark that exists is not replaced, because a replaced one would let ticks be
// decided again (G3).
func (s Cluster) makeCluster(ctx context.Context, c task.Cluster, first FirstAccess, now time.Time) error {
	none := isAbsent(s.keys.Cluster())
	const chunk = 60 // etcd allows 128 operations, including nested ones
	for first := 0; first < c.Shards; first += chunk {
		t := kv.Txn{If: []clientv3.Cmp{none}}
		for id := first; id < min(first+chunk, c.Shards); id++ {
			key := s.keys.Watermark(id)
			zero := record.Encode(record.Watermark{Time: task.At(time.UnixMilli(0)), Nonce: task.NewUID()})
			t.Then = append(t.Then, clientv3.OpTxn([]clientv3.Cmp{isAbsent(key)}, []clientv3.Op{clientv3.OpPut(key, zero)}, nil))
		}

		if _, err := s.writeAlone(ctx, t); err != nil {
			return err
		}
	}

	t := kv.Txn{If: []clientv3.Cmp{none}, Then: []clientv3.Op{
		clientv3.OpPut(s.keys.Cluster(), record.Encode(c)),
		clientv3.OpPut(s.keys.Fence(), record.Encode(record.Fence{Writes: []record.FenceWrite{{At: task.At(now)}}})),
		s.putTokenChanges(),
	}}
	for _, n := range first.Namespaces {
		t.Then = append(t.Then, clientv3.OpPut(s.keys.Namespace(n.Name), record.Encode(n)))
	}
	for _, b := range first.Bindings {
		t.Then = append(t.Then, clientv3.OpPut(s.keys.Binding(b.Name), record.Encode(b)))
	}
	for _, token := range first.Tokens {
		t.Then = append(t.Then, clientv3.OpPut(s.keys.Token(token.ID), record.Encode(token)))
	}

	_, err := s.writeAlone(ctx, t)

	return err
}
