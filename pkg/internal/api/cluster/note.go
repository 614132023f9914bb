package cluster

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

const (
	// noteWithin is how long noteChange tries to record a change, and notePause how long
	// it waits between two tries.
	noteWithin = 5 * time.Second
	notePause  = 200 * time.Millisecond
)

// noteChange records who changed something that has no record of its own in etcd: the
// members of etcd, or records that a repair has deleted. The change itself has happened,
// so that a failure is logged, with all that the record would say.
func (h *Handlers) noteChange(c *httpapi.Call, change string) {
	h.Log.Info("changed the cluster", zap.String("change", change), zap.String("by", c.Actor()))

	// The client may be gone, and an etcd that has just lost a member may be without a
	// leader for a moment: the record is tried for a while all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), noteWithin)
	defer cancel()

	pause := time.NewTicker(notePause)
	defer pause.Stop()

	for {
		err := httpapi.RetryConflict(ctx, func() error { return h.recordChange(ctx, c.Actor(), change) })
		if err == nil {
			return
		}

		select {
		case <-pause.C:
			continue
		case <-ctx.Done():
		}

		h.Log.Warn("could not record who changed the cluster", zap.String("change", change), zap.String("by", c.Actor()), zap.Error(err))

		return
	}
}

func (h *Handlers) recordChange(ctx context.Context, actor, change string) error {
	old, err := h.Store.Cluster(ctx)
	if err != nil {
		return err
	}
	return h.Store.ChangeCluster(ctx, old, old.MarkChanged(actor, h.Now.Stamp(), change))
}
