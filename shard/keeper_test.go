package shard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// keeperFixture is a node's view of the assignment, and what its workers do.
type keeperFixture struct {
	*testing.T
	mu      sync.Mutex
	owners  map[int]record.Owner
	session int64 // create revision; 0: no session
	gap     *task.Gap
	running map[int]store.Fences
	starts  map[int][]time.Duration // by shard, when its workers were started
	fail    map[int]error           // by shard, the error with which its worker ends at once
	stuck   map[int]chan struct{}   // by shard; its worker ends only when this is closed
	causes  map[int]error           // by shard, why its worker was stopped
	began   time.Time
	logs    *observer.ObservedLogs

	handovers map[int]record.Handover
	loading   map[int]func() // by shard, what its preload calls when it has loaded
	preloads  map[int]int    // by shard, how many preloads were started
	told      []string       // answers, as "shard/revision@session"
	deaf      error          // the error with which answers fail

	failsToLoad error // the error with which preloads end at once

	changed chan struct{}
	keeper  *shard.Keeper
	cancel  context.CancelCauseFunc
	ended   chan error
}

const me = "n1"

var errStop = errors.New("the daemon stops")

// keep starts a Keeper. It must be called in a synctest bubble, and ended with stop.
func keep(t *testing.T) *keeperFixture {
	core, logs := observer.New(zap.InfoLevel)
	f := &keeperFixture{
		T: t, owners: map[int]record.Owner{}, session: 1, running: map[int]store.Fences{}, starts: map[int][]time.Duration{},
		fail: map[int]error{}, stuck: map[int]chan struct{}{}, causes: map[int]error{}, began: time.Now(), logs: logs,
		changed: make(chan struct{}, 1), ended: make(chan error, 1),
		handovers: map[int]record.Handover{}, loading: map[int]func(){}, preloads: map[int]int{},
	}
	f.keeper = shard.NewKeeper(shard.KeeperConfig{
		Node: me, Owners: f.assignment, Session: f.present, Changed: f.changed, Work: f.work, Logger: zap.New(core),
		Fence:     func(o record.Owner) kv.Fence { return kv.ModFence(fmt.Sprint("owners/", o.Shard), o.Fence) },
		Handovers: f.inTheMaking, Preload: f.preload, TellReady: f.tellReady,
	})

	ctx, cancel := context.WithCancelCause(t.Context())
	f.cancel = cancel
	go func() { f.ended <- f.keeper.Run(ctx) }()

	return f
}

func (f *keeperFixture) assignment() []record.Owner {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.owners))
}

func (f *keeperFixture) present() (store.Session, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return store.Session{Fence: kv.CreateFence("nodes/"+me, f.session), Gap: f.gap}, f.session != 0
}

func (f *keeperFixture) work(ctx context.Context, id int, fences store.Fences) error {
	f.mu.Lock()
	if other, ok := f.running[id]; ok {
		f.Errorf("shard %d has a worker under %+v and gets another under %+v", id, other, fences)
	}

	f.running[id] = fences
	f.starts[id] = append(f.starts[id], time.Since(f.began))
	fail, stuck := f.fail[id], f.stuck[id]
	f.mu.Unlock()

	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()

		f.causes[id] = context.Cause(ctx)
		delete(f.running, id)
	}()

	if fail != nil {
		return fail
	}

	<-ctx.Done()

	if stuck != nil {
		<-stuck
	}

	return ctx.Err()
}

// change changes what the node knows, and signals that to the Keeper.
func (f *keeperFixture) change(what func()) {
	f.mu.Lock()
	what()
	f.mu.Unlock()

	select {
	case f.changed <- struct{}{}:
	default:
	}

	synctest.Wait()
}

// give makes a node the owner of a shard, under a fence.
func (f *keeperFixture) give(id int, node string, fence int64) {
	f.owners[id] = record.Owner{Shard: id, Node: node, Fence: fence}
}

// runs checks which workers run, as "shard@fence/session".
func (f *keeperFixture) runs(want ...string) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()

	var got []string
	for id, x := range f.running {
		got = append(got, fmt.Sprintf("%d@%d/%d", id, x.Owner.ModRevision, x.Node.CreateRevision))
	}

	slices.Sort(got)

	if !slices.Equal(got, want) {
		f.Errorf("after %s these run: %v, want %v", time.Since(f.began), got, want)
	}

	if n := f.keeper.Running(); n != len(want) {
		f.Errorf("it says that %d run, want %d", n, len(want))
	}
}

// started returns when a shard's workers were started.
func (f *keeperFixture) started(id int) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.starts[id])
}

// cause returns why a shard's worker was stopped.
func (f *keeperFixture) cause(id int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.causes[id]
}

func (f *keeperFixture) stop() {
	f.Helper()
	f.cancel(errStop)

	if err := <-f.ended; !errors.Is(err, context.Canceled) {
		f.Errorf("it ended with %v", err)
	}

	f.runs()
}

func TestKeeper_RunsAWorkerForEachShardItOwns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.give(1, me, 10); f.give(2, "n2", 11); f.give(3, me, 12) })
		f.runs("1@10/1", "3@12/1")
		f.change(func() { f.give(2, me, 13) })
		f.runs("1@10/1", "2@13/1", "3@12/1")

		for range 3 { // signals without changes
			f.change(func() {})
		}

		time.Sleep(time.Minute)
		synctest.Wait()

		for id := 1; id <= 3; id++ {
			at := f.started(id)
			if len(at) != 1 {
				t.Errorf("shard %d was started at %v", id, at)
			}
		}
	})
}

func TestKeeper_LooksWithoutBeingTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		synctest.Wait()
		f.mu.Lock()
		f.give(1, me, 10)
		f.mu.Unlock()

		time.Sleep(2*time.Second + time.Millisecond)
		synctest.Wait()
		f.runs("1@10/1")
	})
}

func TestKeeper_StopsAShardThatMoved(t *testing.T) {
	for name, move := range map[string]func(f *keeperFixture){
		"to another":        func(f *keeperFixture) { f.give(1, "n2", 20) },
		"owner key is gone": func(f *keeperFixture) { delete(f.owners, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := keep(t)
				defer f.stop()

				f.change(func() { f.give(1, me, 10); f.give(2, me, 11) })
				f.change(func() { move(f) })
				f.runs("2@11/1")

				if cause := f.cause(1); cause == nil || errors.Is(cause, context.Canceled) {
					t.Errorf("the worker was stopped because of %v", cause)
				}

				if n := f.logs.Len(); n != 0 {
					t.Errorf("a move is an error: %v", f.logs.All())
				}
			})
		})
	}
}

func TestKeeper_RunsNothingWithoutASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.session = 0; f.give(1, me, 10) })
		f.runs()
		f.change(func() { f.session = 5 })
		f.runs("1@10/5")
		f.change(func() { f.session = 0 })
		f.runs()
		f.change(func() { f.session = 6 })
		f.runs("1@10/6")
		f.change(func() { f.session = 7 }) // lost and replaced between two calls
		f.runs("1@10/7")
	})
}

// The old worker may hang in a commit. Two workers of one shard would share its watermark.
//
// Verifies: G1
func TestKeeper_StartsUnderANewFenceOnlyWhenTheOldWorkerHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		hang := make(chan struct{})
		f.change(func() { f.stuck[1] = hang; f.give(1, me, 10); f.give(2, me, 11) })
		f.change(func() { f.give(1, me, 20) })
		f.runs("1@10/1", "2@11/1")
		f.change(func() { f.give(1, "n2", 30) })
		f.change(func() { f.give(1, me, 40); f.give(3, me, 12) }) // the other shards continue
		time.Sleep(time.Minute)
		synctest.Wait()
		f.runs("1@10/1", "2@11/1", "3@12/1")
		f.mu.Lock()
		delete(f.stuck, 1)
		f.mu.Unlock()

		before := time.Since(f.began)
		close(hang)
		synctest.Wait()
		f.runs("1@40/1", "2@11/1", "3@12/1")

		if at := f.started(1); len(at) != 2 || at[1] != before {
			t.Errorf("started at %v, the old one ended at %s: a new fence need not rest", at, before)
		}
	})
}

func TestKeeper_RestsAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.fail[1] = store.ErrDamaged; f.give(1, me, 10); f.give(2, me, 11) })
		f.runs("2@11/1")

		for range 5 { // a signal does not end the rest
			f.change(func() {})
		}

		if n := len(f.started(1)); n != 1 {
			t.Fatalf("%d starts at once", n)
		}

		time.Sleep(1600 * time.Millisecond)
		synctest.Wait()

		if want := []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond}; !slices.Equal(f.started(1), want) {
			t.Errorf("started at %v, want %v", f.started(1), want)
		}

		if log := f.logs.All(); len(log) != 1 || !strings.Contains(fmt.Sprint(log[0].ContextMap()), store.ErrDamaged.Error()) {
			t.Errorf("logged %v", log)
		}

		f.change(func() { delete(f.fail, 1) })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		f.runs("1@10/1", "2@11/1")

		if len(f.started(2)) != 1 {
			t.Error("another shard suffered")
		}
	})
}

// A damaged shard stays damaged: the failure is logged once, and the worker is restarted less and less
// often.
func TestKeeper_TellsOfTheSameFailureOnceAndRestsLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.fail[1] = store.ErrDamaged; f.give(1, me, 10) })
		time.Sleep(10 * time.Minute)
		synctest.Wait()

		if n := len(f.started(1)); n < 10 || n > 20 {
			t.Errorf("started %d times in ten minutes", n)
		}

		if n := f.logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 1 {
			t.Errorf("logged %d times", n)
		}

		f.change(func() { f.fail[1] = errors.New("something else") })
		time.Sleep(2 * time.Minute)
		synctest.Wait()

		if n := f.logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 2 {
			t.Errorf("a new failure is logged %d times", n-1)
		}
	})
}

// Each shard rests by itself: one that failed later does not delay the other.
func TestKeeper_WakesForTheFirstOfThoseThatRest(t *testing.T) {
	for range 20 { // whatever the order of the map
		synctest.Test(t, func(t *testing.T) {
			f := keep(t)
			defer f.stop()

			for id := range 4 {
				f.change(func() { f.fail[id] = errors.New("broken"); f.give(id, me, 10) })
				time.Sleep(100 * time.Millisecond)
			}

			time.Sleep(time.Second)
			synctest.Wait()

			for id := range 4 {
				first := time.Duration(id) * 100 * time.Millisecond
				if at := f.started(id); len(at) < 2 || at[0] != first || at[1] != first+500*time.Millisecond {
					t.Errorf("shard %d was started at %v", id, at)
				}
			}
		})
	}
}

// A worker may learn that it is fenced before the node's view of the assignment changes. That is not a
// failure.
func TestKeeper_AFencedWorkerIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		defer f.stop()

		f.change(func() { f.fail[1] = fmt.Errorf("commit: %w", task.ErrFenced); f.give(1, me, 10) })
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()

		if len(f.started(1)) != 1 || f.logs.Len() != 0 {
			t.Errorf("started at %v, logged %v", f.started(1), f.logs.All())
		}

		f.change(func() { delete(f.fail, 1); f.give(1, me, 20) })
		f.runs("1@20/1")
	})
}

func TestKeeper_StopsAllWithItsContextAndWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := keep(t)
		hang := make(chan struct{})
		f.change(func() {
			f.stuck[2], f.fail[4] = hang, errors.New("broken")
			for id := range 5 {
				f.give(id, me, int64(10+id))
			}
		})

		f.change(func() { f.give(3, "n2", 30) })
		f.runs("0@10/1", "1@11/1", "2@12/1")
		f.cancel(errStop)
		synctest.Wait()

		select {
		case err := <-f.ended:
			t.Fatalf("it ended with %v before its workers", err)
		default:
		}

		f.runs("2@12/1")

		if !errors.Is(f.cause(1), errStop) {
			t.Errorf("the worker was stopped because of %v", f.cause(1))
		}

		close(hang)
		f.stop()
	})
}
