package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// PauseActive asks the attempt's node to have it stand still, or not to start it. A
// pause that is requested already stays as it is. task.ErrConflict if the record
// is no longer what was read.
func (s Runs) PauseActive(ctx context.Context, h record.Held, who string) (task.Run, error) {
	if h.PauseRequested {
		return h.Run, nil
	}
	h.PauseRequested, h.PausedBy, h.ResumedBy, h.Message = true, who, "", ""
	return s.askNode(ctx, h, "pause")
}

// ResumeActive asks the attempt's node to let it go on. One that is not asked to
// stand still stays as it is. task.ErrConflict if the record is no longer what was
// read.
func (s Runs) ResumeActive(ctx context.Context, h record.Held, who string) (task.Run, error) {
	if !h.PauseRequested {
		return h.Run, nil
	}

	h.PauseRequested, h.ResumedBy = false, who
	if h.State != task.Paused {
		h.PausedBy = ""
	}

	return s.askNode(ctx, h, "resume")
}

// askNode writes what somebody wants of an attempt over the record that was read.
func (s Runs) askNode(ctx context.Context, h record.Held, what string) (task.Run, error) {
	key := s.keys.Run(h.Node, h.Ref(), h.ID)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, h.Mod)},
		Then: []clientv3.Op{opPut(key, record.EncodeAssigned(&h.Assigned, record.Encode(h.Action)))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return task.Run{}, fmt.Errorf("%s run %s of %s: %w", what, h.ID, h.Ref(), err)
	}

	return h.Run, nil
}
