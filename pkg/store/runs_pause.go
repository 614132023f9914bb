package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// PauseActive requests that the node of an attempt pauses it, or does not start it. If a pause
// was requested before, it changes nothing. It returns task.ErrConflict if the record has
// changed since h was read.
func (s Runs) PauseActive(ctx context.Context, h record.Held, who string) (task.Run, error) {
	if h.PauseRequested {
		return h.Run, nil
	}
	h.PauseRequested, h.PausedBy, h.ResumedBy, h.Message = true, who, "", ""
	return s.askNode(ctx, h, "pause")
}

// ResumeActive requests that the node of an attempt resumes it. If no pause is requested, it
// changes nothing. It returns task.ErrConflict if the record has changed since h was read.
func (s Runs) ResumeActive(ctx context.Context, h record.Held, who string) (task.Run, error) {
	if !h.PauseRequested {
		return h.Run, nil
	}

	h.PauseRequested, h.ResumedBy = false, who
	// The node has not paused the attempt yet, so the pause is withdrawn.
	if h.State != task.Paused {
		h.PausedBy = ""
	}

	return s.askNode(ctx, h, "resume")
}

// askNode replaces the record of an attempt by h, which contains a new request. what names the
// request in errors.
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
