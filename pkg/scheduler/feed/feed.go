// Package feed follows a shard in a goroutine, and passes its events on in batches. It drops none of them.
package feed

import (
	"context"

	"github.com/carillonhq/carillon/pkg/store"
)

// bufferedBatches is how many batches may wait for the consumer. A slow consumer delays the watch.
const bufferedBatches = 16

// Feed is a shard that is being followed.
type Feed struct {
	Batches <-chan store.ShardBatch

	cancel context.CancelFunc
	ended  chan struct{} // closed when the goroutine has returned
}

// Start starts a goroutine that calls follow, and returns at once. The batches that follow applies arrive on
// Feed.Batches, until Stop is called or ctx ends. The caller must call Stop.
func Start(ctx context.Context, follow func(ctx context.Context, apply func(store.ShardBatch) error)) *Feed {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan store.ShardBatch, bufferedBatches)
	f := &Feed{Batches: batches, cancel: cancel, ended: make(chan struct{})}

	go func() {
		defer close(f.ended)
		follow(ctx, func(b store.ShardBatch) error {
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

// Stop ends the goroutine and waits for it.
func (f *Feed) Stop() {
	f.cancel()
	<-f.ended
}
