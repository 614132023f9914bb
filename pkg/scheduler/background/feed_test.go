package background

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
)

// A consumer that has taken all batches is as current as the watch. One that is behind gets older.
//
// Verifies: G30
func TestFeed_AgeIsThatOfTheConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		received := make(chan store.ShardBatch)
		f := StartFeed(t.Context(), func(ctx context.Context, apply func(store.ShardBatch) error) {
			for {
				select {
				case b := <-received:
					_ = apply(b)
				case <-ctx.Done():
					return
				}
			}
		})
		defer f.Stop()

		receive := func(b store.ShardBatch) {
			time.Sleep(time.Second)
			received <- b
			synctest.Wait()
		}

		check := func(want time.Duration) {
			t.Helper()

			if got := f.Age(); got != want {
				t.Errorf("the age is %s, want %s", got, want)
			}
		}

		receive(store.ShardBatch{Progress: true})
		check(0)
		time.Sleep(3 * time.Second)
		check(3 * time.Second)

		// The consumer is busy with something else: it does not know yet what it has received.
		receive(store.ShardBatch{Progress: true})
		receive(store.ShardBatch{Revision: 5})
		check(time.Second)
		receive(store.ShardBatch{Revision: 6})
		receive(store.ShardBatch{Progress: true})
		check(3 * time.Second)

		<-f.Batches
		if b := <-f.Batches; b.Revision != 6 {
			t.Errorf("revision %d", b.Revision)
		}

		receive(store.ShardBatch{Progress: true})
		check(0)

		// Under a steady flow of events, without other signs of life, it is as current as the event before.
		for rev := range int64(3) {
			receive(store.ShardBatch{Revision: 7 + rev})
			check(time.Second)
			<-f.Batches
		}
	})
}

// What is loaded is as of the revision of the list, however long the load takes.
//
// Verifies: G30
func TestFeed_ALoadIsAsOfItsRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := time.Now()
		time.Sleep(2 * time.Second) // until the shard may be loaded

		f := StartFeed(t.Context(), func(_ context.Context, apply func(store.ShardBatch) error) {
			for range 2 {
				time.Sleep(3 * time.Second)
				_ = apply(store.ShardBatch{Reset: true, Revision: 5})
			}

			time.Sleep(time.Second)
			_ = apply(store.ShardBatch{Revision: 6})
			time.Sleep(time.Second)
			_ = apply(store.ShardBatch{Revision: 7})
		})
		defer f.Stop()
		f.LoadedAsOf(opened)

		for _, want := range []time.Duration{5, 8, 9, 1} { // in seconds, when each batch arrives
			<-f.Batches
			if got := f.Age(); got != want*time.Second {
				t.Errorf("the age is %s, want %s", got, want*time.Second)
			}
		}
	})
}

// Verifies: G30
func TestFeed_DropsNothingAndEndsWithStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batches = 3 * bufferedBatches

		var err error
		f := StartFeed(t.Context(), func(_ context.Context, apply func(store.ShardBatch) error) {
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
