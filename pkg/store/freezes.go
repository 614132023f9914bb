package store

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Freezes reads and writes which freezes hold (freezes). Every commit of an owner
// compares this key: once SetFreezes has returned, none is decided without the freeze.
type Freezes struct{ *conn }

// FreezeRecord is the record of the freezes as it was read.
type FreezeRecord struct {
	task.Freezes
	Mod      int64 // mod revision of its key; 0: there is none, and nothing is frozen
	Revision int64 // it was so at this revision
}

// unreadableFreezes is what a record means that cannot be read: nobody knows what
// is to stand still, so all does.
const unreadableFreezes = "the record of freezes cannot be read; unfreeze the cluster to write it anew"

func freezeRecord(e *mvccpb.KeyValue, rev int64) FreezeRecord {
	r := FreezeRecord{Revision: rev}

	if e == nil {
		return r
	}

	f, err := record.Decode[task.Freezes](e.Value)
	if err != nil {
		f = task.Freezes{Holding: []task.Freeze{{Reason: unreadableFreezes}}}
	}

	r.Freezes, r.Mod = f, e.ModRevision

	return r
}

// Freezes reads which freezes hold.
func (s Freezes) Freezes(ctx context.Context) (FreezeRecord, error) {
	res, err := s.readKey(ctx, s.keys.Freezes())
	if err != nil {
		return FreezeRecord{}, fmt.Errorf("read the freezes: %w", err)
	}

	var e *mvccpb.KeyValue
	if len(res.Kvs) > 0 {
		e = res.Kvs[0]
	}

	return freezeRecord(e, res.Header.Revision), nil
}

// SetFreezes writes the freezes over those that were read as old, and returns the
// record's mod revision: no commit of any owner succeeds from then on that does not
// know them. task.ErrConflict if the record has changed.
func (s Freezes) SetFreezes(ctx context.Context, old FreezeRecord, f task.Freezes) (int64, error) {
	key := s.keys.Freezes()
	t := kv.Txn{If: []clientv3.Cmp{isUnchanged(key, old.Mod)}, Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(f))}}

	// Alone: what all commits compare would have each request wait for it.
	res, err := s.writeAlone(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return 0, fmt.Errorf("write the freezes: %w", err)
	}

	return res.Revision, nil
}

// FollowFreezes calls apply with the freezes as they are now, then whenever they
// change, until ctx ends or apply returns an error. Every relist, about, it reads
// them again: a watch is a hint. What it tells first was read after it was called.
func (s Freezes) FollowFreezes(ctx context.Context, relist time.Duration, apply func(FreezeRecord) error) error {
	cfg := kv.FollowConfig{Key: s.keys.Freezes(), Name: "freezes", Apart: true, Relist: relist}
	return kv.Follow(ctx, s.etcd, cfg, func(b kv.Batch) error {
		var last *mvccpb.KeyValue

		switch {
		case b.Reset && len(b.KVs) > 0:
			last = b.KVs[0]
		case b.Reset:
		case len(b.Events) == 0:
			return nil
		default:
			if e := b.Events[len(b.Events)-1]; e.Type != clientv3.EventTypeDelete {
				last = e.Kv
			}
		}

		return apply(freezeRecord(last, b.Revision))
	})
}
