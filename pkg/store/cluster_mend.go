package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// Seen is a key and the state in which it was read.
type Seen struct {
	Key string
	Mod int64 // mod revision; 0: the key was absent
}

// MostMended is how many keys one call of DeleteSeen may have, including those that it only
// compares: half of what etcd allows in a transaction.
const MostMended = 64

// DeleteSeen deletes the keys gone, in one transaction, if they and the keys beside are as they
// were read. Otherwise it returns task.ErrConflict and deletes nothing. It is for records that
// no component manages any more, not for records of a shard with an owner.
func (s Cluster) DeleteSeen(ctx context.Context, gone []Seen, beside ...Seen) error {
	var t kv.Txn
	for _, k := range gone {
		if k.Mod == 0 {
			return fmt.Errorf("delete %s: %w: it did not exist", k.Key, task.ErrConflict)
		}
		t.If = append(t.If, isUnchanged(k.Key, k.Mod))
		t.Then = append(t.Then, clientv3.OpDelete(k.Key))
	}

	for _, k := range beside {
		t.If = append(t.If, isUnchanged(k.Key, k.Mod))
	}

	res, err := s.writeAlone(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("delete %d records: %w", len(gone), err)
	}

	return nil
}
