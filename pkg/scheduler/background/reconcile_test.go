package background

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// fakeStore has one record in each shard, one active run in each of two shards, and histories of two pages.
type fakeListings struct {
	failing atomic.Bool
	records int // if set, each shard has this many
}

var errNoListing = errors.New("unavailable")

func (f *fakeListings) ShardKeys(_ context.Context, shard int) ([]store.ShardEvent, int64, error) {
	if f.failing.Load() {
		return nil, 0, errNoListing
	}

	keys := make([]store.ShardEvent, max(f.records, 1))
	keys[0].Key = fmt.Sprint("task of ", shard)

	return keys, 7, nil
}

func (f *fakeListings) ScanActive(context.Context) (runs []store.ActiveKey, rev int64, err error) {
	if f.failing.Load() {
		return nil, 0, errNoListing
	}
	for shard := range 2 {
		runs = append(runs, store.ActiveKey{RunKey: record.RunKey{Ref: record.Ref{Shard: shard}, Run: fmt.Sprint("run of ", shard)}})
	}
	return runs, 8, nil
}

func (f *fakeListings) HistoryKeys(_ context.Context, shard int, after string, _ []string) (events []store.ShardEvent, next string, err error) {
	if after == "" {
		return []store.ShardEvent{{Key: fmt.Sprint("first of ", shard)}}, "second", nil
	}
	return []store.ShardEvent{{Key: fmt.Sprint(after, " of ", shard)}}, "", nil
}

// fakeOwner records what is passed to it.
type fakeOwner struct {
	mu       sync.Mutex
	openings int64
	busy     bool
	got      []string
}

func (o *fakeOwner) Openings() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.openings
}

func (o *fakeOwner) CompareRecords(keys []store.ShardEvent, rev int64) bool {
	return o.record(fmt.Sprintf("%s at %d", keys[0].Key, rev))
}

func (o *fakeOwner) CompareRuns(runs []store.ActiveKey, rev int64) bool {
	if len(runs) == 0 {
		return o.record(fmt.Sprintf("no run at %d", rev))
	}
	return o.record(fmt.Sprintf("%s at %d", runs[0].Run, rev))
}

func (o *fakeOwner) CompareHistory(page []store.ShardEvent) bool {
	return o.record(page[0].Key)
}

// record adds a listing, and returns whether the owner is free.
func (o *fakeOwner) record(listing string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got = append(o.got, listing)
	return !o.busy
}

// set says how often the shard has been opened, and whether the owner is busy.
func (o *fakeOwner) set(openings int64, busy bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.openings, o.busy = openings, busy
}

// listed returns what was passed to the owner since the last call.
func (o *fakeOwner) listed() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	got := o.got
	o.got = nil
	return got
}

func TestReconciler_ListsEachShardAndItsHistoryAfterAnOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, owners := &fakeListings{}, []*fakeOwner{{openings: 1}, {openings: 1}}
		r := NewReconciler(s, func() []OpenShard { return []OpenShard{{0, owners[0]}, {1, owners[1]}} }, zap.NewNop())
		go r.Run(t.Context())

		// step waits for at least one whole period, and compares what each owner got in that time.
		step := func(what string, want ...string) {
			t.Helper()
			time.Sleep(3 * r.Period)
			synctest.Wait()

			for id, o := range owners {
				got := o.listed()
				slices.Sort(got)
				got = slices.Compact(got)

				var all []string
				for _, w := range want {
					all = append(all, fmt.Sprintf(w, id))
				}

				slices.Sort(all)

				if !slices.Equal(got, all) {
					t.Errorf("%s: owner %d got %q, want %q", what, id, got, all)
				}
			}
		}

		setAll := func(openings int64, busy bool) {
			for _, o := range owners {
				o.set(openings, busy)
			}
		}

		records, runs := "task of %d at 7", "run of %d at 8"
		step("at first", records, runs, "first of %d", "second of %d")
		step("later", records, runs)

		setAll(2, false)
		step("after an opening", records, runs, "first of %d", "second of %d")

		setAll(3, true)
		step("while the owners are busy", records, runs, "first of %d")
		setAll(3, false)
		step("when they are free", records, runs, "first of %d", "second of %d")

		s.failing.Store(true)
		step("without etcd")
	})
}

func TestReconciler_ListsOnceAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &fakeOwner{}
		r := NewReconciler(&fakeListings{}, func() []OpenShard { return []OpenShard{{0, o}} }, zap.NewNop())
		r.Period = time.Second
		go r.Run(t.Context())
		time.Sleep(100 * time.Second)
		synctest.Wait()

		// Two listings a period.
		if n := len(o.listed()); n < 180 || n > 220 {
			t.Errorf("%d listings in 100 periods, want about 200", n)
		}
	})
}

func TestReconciler_ListsLongShardsLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Sixteen shards of 62,500 records are a million keys, and take 200 s at 5000 keys a second.
		s, owners := &fakeListings{records: 62_500}, make([]*fakeOwner, 16)
		shards := make([]OpenShard, len(owners))
		for i := range owners {
			owners[i] = &fakeOwner{}
			shards[i] = OpenShard{i, owners[i]}
		}

		r := NewReconciler(s, func() []OpenShard { return shards }, zap.NewNop())
		go r.Run(t.Context())

		const passes = 6
		time.Sleep(passes * 16 * 62_500 / KeyRate * time.Second)
		synctest.Wait()

		for i, o := range owners {
			listings := 0
			for _, l := range o.listed() {
				if l == fmt.Sprintf("task of %d at 7", i) {
					listings++
				}
			}

			if listings < passes-1 || listings > passes+1 {
				t.Errorf("shard %d was listed %d times, want about %d", i, listings, passes)
			}
		}
	})
}
