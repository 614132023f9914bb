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

// Freezes reads and writes the record of the freezes that are in force (freezes). Every commit
// of an owner compares this key. So once SetFreezes has returned, no commit that was decided
// without the freeze succeeds (G21).
type Freezes struct{ *conn }

// FreezeRecord is the record of the freezes as it was read.
type FreezeRecord struct {
	task.Freezes
	Mod      int64 // mod revision of the key; 0: the key is absent, and nothing is frozen
	Revision int64 // the revision of the store at which this was the state
}

// unreadableFreezes is the reason of the freeze that replaces a record which cannot be read. It
// freezes the whole cluster, because it is unknown which tasks must not run.
const unreadableFreezes = "the record of freezes cannot be read; unfreeze the cluster to write it again"

// freezeRecord decodes the record e, which is nil if it is absent.
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

// Freezes reads the freezes that are in force.
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

// SetFreezes replaces the freezes old by f, and returns the mod revision of the record. From
// that revision on, no commit of any owner succeeds unless its writer knows these freezes. It
// returns task.ErrConflict if the record has changed since old was read.
func (s Freezes) SetFreezes(ctx context.Context, old FreezeRecord, f task.Freezes) (int64, error) {
	key := s.keys.Freezes()
	t := kv.Txn{If: []clientv3.Cmp{isUnchanged(key, old.Mod)}, Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(f))}}

	// Every commit compares this key, so in a Batcher the write would conflict with all of
	// them, and every request would wait for it.
	res, err := s.writeAlone(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return 0, fmt.Errorf("write the freezes: %w", err)
	}

	return res.Revision, nil
}

// FollowFreezes calls apply with the present freezes, and then after each change, until ctx
// ends or apply returns an error. It also reads them again about once in every relist, to
// detect lost changes. The first call delivers a state that was read after FollowFreezes was
// called.
func (s Freezes) FollowFreezes(ctx context.Context, relist time.Duration, apply func(FreezeRecord) error) error {
	cfg := kv.FollowConfig{Key: s.keys.Freezes(), Name: "freezes", Dedicated: true, Relist: relist}
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
