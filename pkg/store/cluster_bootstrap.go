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

// Bootstrap returns the cluster's record and makes it first if there is none,
// with the watermark of every shard at time zero. Of several nodes that start
// together one makes it, and all get the same. made tells the one. From then on
// the store writes by it; ErrFormat if this version cannot read what is there.
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
		if errors.Is(err, task.ErrUnknown) { // what is there by now tells
			err = wait.waitBackoff(ctx)
		}

		if err != nil {
			return c, false, fmt.Errorf("make the cluster's record: %w", err)
		}
	}
}

// makeCluster writes the watermarks and then the cluster's record, unless there
// is one by now.
func (s Cluster) makeCluster(ctx context.Context, c task.Cluster) error {
	none := isAbsent(s.keys.Cluster())
	const chunk = 60 // etcd takes 128 operations, nested ones included
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
