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

// Bootstrap returns the record of the cluster. If there is none, it creates the record first,
// with the watermark of every shard at time zero. If several nodes start together, one of them
// creates the record, and all get the same one; made is true for that node. From then on, the
// store writes the format of the record. Bootstrap returns ErrFormat if this version cannot
// read the existing records.
func (s Cluster) Bootstrap(ctx context.Context, shards int, now time.Time) (c task.Cluster, made bool, err error) {
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
		// After a failed comparison or an unknown outcome, read the record: its id shows who
		// created it.
		if errors.Is(err, task.ErrUnknown) {
			err = wait.waitBackoff(ctx)
		}

		if err != nil {
			return c, false, fmt.Errorf("make the cluster's record: %w", err)
		}
	}
}

// makeCluster writes the watermarks and then the record of the cluster, unless the record
// exists by now. The record comes last, so that a cluster with a record has all its watermarks:
// a shard without one counts as damaged. A watermark that exists is not replaced, because a
// replaced one would let ticks be decided again (G3).
func (s Cluster) makeCluster(ctx context.Context, c task.Cluster) error {
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

	_, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{none}, Then: []clientv3.Op{clientv3.OpPut(s.keys.Cluster(), record.Encode(c))}})

	return err
}
