package ask

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// If a node hangs, it takes longer to ask the owners than an answer is shared. Those that have waited meanwhile share it, but
// not those that have written something since it was asked.
func TestAsker_SizesAreSharedAfterASlowAnswer(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		a := ownAsker(func(context.Context) (readmodel.NodeAnswer, error) {
			n := asked.Add(1)
			time.Sleep(700 * time.Millisecond)

			return readmodel.NodeAnswer{Node: "n1", Shards: []readmodel.ShardAnswer{{Shard: 0, Rows: int(n)}}}, nil
		})
		sizesFor := func(who string) map[int]int {
			return a.ShardSizes(httpapi.WithCaller(t.Context(), httpapi.Caller{Who: who}))
		}

		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if sizes := sizesFor("user:ann"); !maps.Equal(sizes, map[int]int{0: 1}) {
					t.Errorf("%v", sizes)
				}
			})
			time.Sleep(100 * time.Millisecond)
		}

		// bob writes while the owners are being asked.
		a.NoteWrite(httpapi.Caller{Who: "user:bob"}, map[int]int64{0: 7})
		if sizes := sizesFor("user:bob"); !maps.Equal(sizes, map[int]int{0: 2}) {
			t.Errorf("after a write: %v", sizes)
		}
		wg.Wait()

		if sizes := sizesFor("user:ann"); asked.Load() != 2 || !maps.Equal(sizes, map[int]int{0: 2}) {
			t.Errorf("asked %d times: %v", asked.Load(), sizes)
		}
		time.Sleep(shareFor)
		if sizes := sizesFor("user:ann"); asked.Load() != 3 || !maps.Equal(sizes, map[int]int{0: 3}) {
			t.Errorf("later: asked %d times: %v", asked.Load(), sizes)
		}
	})
}

// A shard whose owner does not answer keeps its number for a while, unless the caller has written something to it.
func TestAsker_SizesOfSilentShardsStay(t *testing.T) {
	t.Parallel()

	now := time.Now()
	before := map[int]shardSize{0: {5, now.Add(-time.Minute)}, 1: {6, now.Add(-time.Minute)}, 2: {7, now.Add(-keepFor - 1)}}
	answers := map[string]readmodel.NodeAnswer{
		"n1": {Shards: []readmodel.ShardAnswer{{Shard: 3, Rows: 8, Owner: 1}}},
		"n2": {Shards: []readmodel.ShardAnswer{{Shard: 3, Rows: 9, Owner: 2}}},
	}

	got := updateSizes(before, answers, Revisions{1: 7}, now)
	if want := map[int]shardSize{0: before[0], 3: {9, now}}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if len(before) != 3 {
		t.Error("the former numbers were changed, although others read them")
	}
}
