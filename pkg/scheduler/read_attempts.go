package scheduler

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// watchAttempts follows the attempts, of the tasks that want a look, whose node
// is gone, and has those asked to end that are unwanted. An attempt is lost when its node was absent and its
// record unchanged at two readings that lie apart by the lost_after that is in the
// record, or by ClearedAfter if its instance is proved dead; the commit compares both once more.
func (w *worker) watchAttempts(ctx context.Context, now time.Time) error {
	err := w.readAttempts(ctx, now)
	if err != nil && ctx.Err() == nil {
		w.wakeAt(now.Add(time.Second)) // etcd is away: look again
	}
	return ctx.Err()
}

// readAttempts reads what the shard asks for: first which instances are proved dead, then the
// attempts.
func (w *worker) readAttempts(ctx context.Context, now time.Time) error {
	cleared := map[string]bool{} // by instance, in this round

	readings, unknown := w.neededReadings(now, cleared)
	if len(unknown) > 0 {
		for _, instance := range unknown {
			dead, err := w.e.cfg.Store.Cleared(ctx, instance)
			if err != nil {
				return err
			}
			cleared[instance] = dead
		}

		readings, _ = w.neededReadings(now, cleared)
	}

	if len(readings) == 0 {
		return nil
	}

	keys := make([]record.RunKey, len(readings))
	for i, r := range readings {
		keys[i] = w.RunKey(r.t, r.a)
	}

	found, err := w.e.cfg.Store.Sightings(ctx, keys)
	read := w.e.cfg.Now() // after the reading, not before

	for i, v := range found {
		if !v.Gone { // else the watch will tell how it ended
			w.applyReading(readings[i], v, now, read)
		}
	}

	return err
}
