package background

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
)

// bufferedBatches is how many batches may wait for the consumer. A slow consumer delays the watch.
const bufferedBatches = 16

// Feed follows a shard in a goroutine, and passes its events on in batches. It drops none of them.
type Feed struct {
	Batches <-chan store.ShardBatch

	cancel context.CancelFunc
	ended  chan struct{} // closed when the goroutine has returned

	began   time.Time
	current atomic.Int64 // nanoseconds from began to when the consumer was last up to date
}

// StartFeed starts a goroutine that calls follow, and returns at once. The batches that follow applies arrive on
// Feed.Batches, until Stop is called or ctx ends, apart from signs of life (store.ShardBatch.Progress). The caller
// must call Stop.
func StartFeed(ctx context.Context, follow func(ctx context.Context, apply func(store.ShardBatch) error)) *Feed {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan store.ShardBatch, bufferedBatches)
	f := &Feed{Batches: batches, cancel: cancel, ended: make(chan struct{}), began: time.Now()}

	go func() {
		defer close(f.ended)

		var heard time.Duration // from began to when the watch has last delivered something; 0: nothing since the load
		follow(ctx, func(b store.ShardBatch) error {
			now := time.Since(f.began)

			switch {
			case len(batches) > 0:
				// The consumer does not know yet what was received before.
			case b.Reset:
				// A page of a load is as of the revision of the list, which is older than the page.
			case b.Progress:
				f.current.Store(int64(now))
			case heard > 0:
				// The consumer does not know yet what b contains. It may be busy for seconds, with a commit.
				f.current.Store(int64(heard))
			}

			if !b.Reset {
				heard = now
			}

			if b.Progress {
				return nil
			}

			select {
			case batches <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	return f
}

// LoadedAsOf says that the shard is loaded as it was at a time before StartFeed. It must be called before Age.
func (f *Feed) LoadedAsOf(at time.Time) { f.current.CompareAndSwap(0, -int64(f.began.Sub(at))) }

// Age returns how long ago the consumer was known to be up to date: since it had taken everything that the watch had
// received. It is on the monotonic clock. Any goroutine may call it.
func (f *Feed) Age() time.Duration { return time.Since(f.began) - time.Duration(f.current.Load()) }

// Stop ends the goroutine and waits for it.
func (f *Feed) Stop() {
	f.cancel()
	<-f.ended
}
