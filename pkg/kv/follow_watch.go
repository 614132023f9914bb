package kv

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// silentResumptions is how many resumed watches in a row may receive nothing, although the store could be read each
// time, before the range is listed again.
const silentResumptions = 3

// errWatchBehind is the error of a watch on a member that has not yet applied the revision from which the watch starts.
var errWatchBehind = errors.New("watch opened on a member that is behind")

// followOnce lists the range, or resumes the last watch if possible, and then watches until the watch fails. It
// always returns an error.
func (f *follower) followOnce(ctx context.Context) error {
	// A watch can be resumed if the consumer has everything up to f.revision.
	resumed := f.whole
	if resumed {
		if err := f.awaitConnection(ctx); err != nil {
			return err
		}
		f.client.health.resumptions.Inc()
	} else {
		why := f.why

		if err := f.loadAll(ctx); err != nil {
			return err
		}

		if why != "" {
			f.client.health.relists.WithLabelValues(why).Inc()
		}
	}

	// Tell the consumer that a new watch begins, which replays nothing at or before this revision.
	if f.cfg.Replayed {
		if err := f.handOver(Batch{Replayed: true, Revision: f.revision}); err != nil {
			return err
		}
	}

	f.received = false
	err := f.runWatch(ctx)

	// A watch that opens but delivers nothing, not even answers to progress probes, is suspect. After several of them
	// in a row, listing the range shows whether changes were missed.
	switch {
	case f.received || !resumed:
		f.silent = 0
	default:
		if f.silent++; f.silent == silentResumptions {
			f.silent = 0
			f.markInconsistent(whySilent)
		}
	}

	return err
}

// awaitConnection reads one key before a watch is resumed, to make sure that the store can be reached. If it cannot,
// the attempt fails here. Without this check a long outage would replace the stream again and again and would count
// as silent watches, so that every range would be listed at its end.
//
// The read is linearizable. If its revision is lower than one that was delivered, the store has gone back to an older
// state, and its content must be listed.
func (f *follower) awaitConnection(ctx context.Context) error {
	resp, err := f.client.Get(ctx, f.cfg.Key, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("read %q: %w", f.cfg.Key, err)
	}

	if resp.Header.Revision < f.revision {
		f.markInconsistent(whyBack)
		return wentBack(f.revision, resp.Header.Revision)
	}

	return nil
}

// wentBack returns the error for a store whose revision is lower than one that was delivered before.
func wentBack(from, to int64) error {
	return fmt.Errorf("the store has gone back from revision %d to %d", from, to)
}
