package scheduler

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// watchAttempts reads the attempts whose node is gone or which must be cancelled, of the tasks that are
// noted for examination. The next plan ends or cancels them.
//
// An attempt is lost when its node was absent and its record unchanged at two readings. The time between
// them must be at least the lost_after in the record, or ClearedAfter if its instance is proved dead. The
// commit compares both once more (G17). now must have a monotonic reading.
//
// watchAttempts returns an error only if ctx has ended. If etcd cannot be read, it is tried again a second
// later.
func (w *worker) watchAttempts(ctx context.Context, now time.Time) error {
	err := w.readAttempts(ctx, now)
	if err != nil && ctx.Err() == nil {
		w.state.examineAllBy(now.Add(time.Second))
	}
	return ctx.Err()
}

// readAttempts determines which attempts to read, finds out which instances are proved dead if that
// matters, reads the attempts together with their nodes, and applies the result.
func (w *worker) readAttempts(ctx context.Context, now time.Time) error {
	cleared := map[string]bool{} // by instance, in this round

	readings, unknown := w.state.neededReadings(now, cleared)
	if len(unknown) > 0 {
		for _, instance := range unknown {
			dead, err := w.e.cfg.Store.Cleared(ctx, instance)
			if err != nil {
				return err
			}
			cleared[instance] = dead
		}

		readings, _ = w.state.neededReadings(now, cleared)
	}

	if len(readings) == 0 {
		return nil
	}

	keys := make([]record.RunKey, len(readings))
	for i, r := range readings {
		keys[i] = w.state.RunKey(r.Task, r.Attempt)
	}

	found, err := w.e.cfg.Store.Sightings(ctx, keys)
	read := w.e.cfg.Now() // the time of absence counts from after the reading, not from before

	for i, v := range found {
		// If the attempt's record is gone, the watch will deliver its end.
		if !v.Gone {
			w.state.applyReading(readings[i], v, now, read)
		}
	}

	return err
}
