package shard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func (f *keeperFixture) inTheMaking() []record.Handover {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.handovers))
}

// preload loads a shard when the test requests it, and ends when the node owns the shard.
func (f *keeperFixture) preload(ctx context.Context, id int, loaded func()) error {
	f.mu.Lock()
	if f.loading[id] != nil {
		f.Errorf("shard %d is loaded twice at once", id)
	}

	f.loading[id] = loaded
	f.preloads[id]++
	fails := f.failsToLoad
	f.mu.Unlock()

	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.loading, id)
	}()

	if fails != nil {
		return fails
	}

	<-ctx.Done()

	return ctx.Err()
}

func (f *keeperFixture) tellReady(_ context.Context, session kv.Fence, h record.Handover) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.told = append(f.told, fmt.Sprintf("%d/%d@%d", h.Shard, h.Revision, session.CreateRevision))
	return f.deaf
}

// prepare adds a handover.
func (f *keeperFixture) prepare(id int, to string, revision int64) {
	f.handovers[id] = record.Handover{Shard: id, To: to, Revision: revision}
}

// loads checks which shards are being preloaded or are loaded.
func (f *keeperFixture) loads(want ...int) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()

	if got := slices.Sorted(maps.Keys(f.loading)); !slices.Equal(got, want) {
		f.Errorf("after %s these are loaded: %v, want %v", time.Since(f.began), got, want)
	}
}

// begunToLoad returns how often a preload of a shard was started.
func (f *keeperFixture) begunToLoad(id int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.preloads[id]
}

// loaded makes the preloads of shards report that they are loaded.
func (f *keeperFixture) loaded(ids ...int) {
	for _, id := range ids {
		f.mu.Lock()
		say := f.loading[id]
		f.mu.Unlock()

		say()
	}

	synctest.Wait()
}

func (f *keeperFixture) answers(want ...string) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()

	if got := slices.Sorted(slices.Values(f.told)); !slices.Equal(got, want) {
		f.Errorf("after %s it has sent %v, want %v", time.Since(f.began), got, want)
	}

	f.told = nil
}

func TestKeeper_LoadsWhatItIsToOwnAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() {
			f.give(1, "n2", 10)
			f.give(2, "n2", 11)
			f.give(3, me, 12)
			f.prepare(1, me, 20)
			f.prepare(2, "n3", 21)
			f.prepare(3, me, 22) // the node owns it already
		})

		f.loads(1)
		f.runs("3@12/1")
		f.answers()
		f.loaded(1)
		f.answers("1/20@1")
		f.change(func() {}) // the answer is on its way
		f.answers()
		f.change(func() { f.handovers[1] = record.Handover{Shard: 1, To: me, Revision: 30, Ready: 1} })
		time.Sleep(time.Minute)
		f.answers()
		f.loads(1)
	})
}

func TestKeeper_AnswersEachHandoverAndEachSessionAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.give(1, "n2", 10); f.prepare(1, me, 20) })
		f.loaded(1)
		f.answers("1/20@1")
		f.change(func() { f.prepare(1, me, 21) })
		f.answers("1/21@1")
		f.change(func() { f.session = 0 })
		time.Sleep(time.Second)
		f.change(func() {})
		f.loads(1) // a loaded shard is still valid under the next session
		f.change(func() { f.session = 5 })
		f.answers("1/21@5")

		if n := f.begunToLoad(1); n != 1 {
			t.Errorf("it was loaded %d times", n)
		}
	})
}

func TestKeeper_TellsAgainWhatDidNotArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.give(1, "n2", 10); f.prepare(1, me, 20); f.deaf = task.ErrUnavailable })
		f.loaded(1)
		f.answers("1/20@1")
		f.change(func() { f.deaf = nil })
		f.answers() // not at once
		time.Sleep(time.Second)
		synctest.Wait()
		f.answers("1/20@1")
		time.Sleep(time.Minute)
		f.answers()
		f.change(func() { f.prepare(1, me, 21); f.deaf = task.ErrConflict }) // to another node; the next handover will be answered
		f.answers("1/21@1")
		time.Sleep(time.Minute)
		f.answers()
	})
}

// The node learns of the end of the handover shortly before it learns that it owns the shard.
func TestKeeper_APreloadOutlivesItsHandoverALittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.give(1, "n2", 10); f.prepare(1, me, 20) })
		f.loaded(1)
		f.change(func() { delete(f.handovers, 1) })
		time.Sleep(time.Second)
		f.change(func() {})
		f.loads(1)
		f.change(func() { f.give(1, me, 30) })
		f.runs("1@30/1")
		time.Sleep(5 * time.Second)
		f.loads()
		f.runs("1@30/1")
	})
}

func TestKeeper_EndsAPreloadThatNobodyWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.give(1, "n2", 10); f.prepare(1, me, 20); f.give(2, "n2", 11); f.prepare(2, me, 21) })
		f.loads(1, 2)
		f.change(func() { f.prepare(1, "n3", 22) })
		time.Sleep(5 * time.Second)
		f.loads(2)
		f.change(func() { f.prepare(1, me, 23) })
		f.loads(1, 2)
	})
}

func TestKeeper_StopsPreloadsAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		f.change(func() { f.give(1, "n2", 10); f.prepare(1, me, 20) })
		f.loads(1)
		f.stop()
		f.loads()
	})
}

// A preload that ends at once is started again, but after a pause.
func TestKeeper_APreloadThatFailsRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.failsToLoad = errors.New("no"); f.give(1, "n2", 10); f.prepare(1, me, 20) })
		time.Sleep(10 * time.Second)

		if n := f.begunToLoad(1); n < 3 || n > 20 {
			t.Errorf("begun %d times in 10 s", n)
		}
	})
}
