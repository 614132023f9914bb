package kv

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// silentResumptions is how many resumed watches in a row may hear nothing, though the store can be read.
const silentResumptions = 3

var errWatchBehind = errors.New("watch opened on a member that is behind")

// followOnce lists, unless the last watch can be resumed, then watches until that fails.
func (f *follower) followOnce(ctx context.Context) error {
	resumed := f.whole
	if resumed {
		if err := f.awaitConnection(ctx); err != nil {
			return err
		}
		f.client.sight.resumptions.Inc()
	} else {
		why := f.why

		if err := f.loadAll(ctx); err != nil {
			return err
		}

		if why != "" {
			f.client.sight.relists.WithLabelValues(why).Inc()
		}
	}

	if f.cfg.Echo {
		if err := f.handOver(Batch{Echo: true, Revision: f.revision}); err != nil {
			return err
		}
	}

	f.heard = false
	err := f.runWatch(ctx)

	switch {
	case f.heard || !resumed:
		f.silent = 0
	default:
		if f.silent++; f.silent == silentResumptions {
			f.silent = 0
			f.markInconsistent(whySilent)
		}
	}

	return err
}

// awaitConnection reads one key before a watch is resumed. A store that cannot be read is away: that neither condemns streams nor
// counts as a silent watch, or a long outage would end with a list of everything. The read is linearizable, so that a
// lower revision than told proves that the store has gone back; what it holds then must be listed.
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

func wentBack(from, to int64) error {
	return fmt.Errorf("the store has gone back from revision %d to %d", from, to)
}
