package cluster

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

const (
	// noteWithin is how long noteChange tries to record a change, and notePause how long it waits between two
	// attempts.
	noteWithin = 5 * time.Second
	notePause  = 200 * time.Millisecond
)

// noteChange records who changed something that has no record of its own in etcd: the members of etcd, or
// records that a repair has deleted (G26). The change has already happened, so a failure to record it is only
// logged, with everything that the record would contain.
func (h *Handlers) noteChange(c *httpapi.Call, change string) {
	h.Log.Info("changed the cluster", zap.String("change", change), zap.String("by", c.Actor()))

	// The client may have gone, and an etcd that has just lost a member may have no leader for a moment. The
	// attempts continue in both cases.
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

// recordChange writes a change into the cluster's record. It returns task.ErrConflict if that record has
// changed.
func (h *Handlers) recordChange(ctx context.Context, actor, change string) error {
	old, err := h.Store.Cluster(ctx)
	if err != nil {
		return err
	}
	return h.Store.ChangeCluster(ctx, old, old.MarkChanged(actor, h.Now.Stamp(), change))
}
