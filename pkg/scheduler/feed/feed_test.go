package feed

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/carillonhq/carillon/pkg/store"
)

func TestFeed_DropsNothingAndEndsWithStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batches = 3 * bufferedBatches

		var err error
		f := Start(t.Context(), func(_ context.Context, apply func(store.ShardBatch) error) {
			for i := int64(1); err == nil; i++ {
				err = apply(store.ShardBatch{Revision: i})
			}
		})

		// The consumer is slow: the goroutine waits until there is room.
		for i := int64(1); i <= batches; i++ {
			synctest.Wait()

			if b := <-f.Batches; b.Revision != i {
				t.Fatalf("batch %d has revision %d", i, b.Revision)
			}
		}

		f.Stop()

		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}
