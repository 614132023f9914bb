package ask

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// ownAsker returns an Asker of the only node, which answers with own.
func ownAsker(own func(ctx context.Context) (readmodel.NodeAnswer, error)) *Asker {
	return New(Config{
		Node: "n1", Shards: 1, Now: time.Now, Peers: peers.New(peers.Config{Node: "n1"}), Nodes: func(context.Context) ([]task.Node, error) { return nil, nil },
		Own: func(ctx context.Context, _ *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) { return own(ctx) },
	})
}

// If a node cannot scan in time, because other scans or processes take its processors, it is busy: the caller tries again,
// and gets an older answer meanwhile. The node does not count as one that does not answer.
func TestAsker_NodeThatDoesNotScanInTimeIsBusy(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		a := ownAsker(func(ctx context.Context) (readmodel.NodeAnswer, error) {
			<-ctx.Done()
			return readmodel.NodeAnswer{}, ctx.Err()
		})

		_, err := a.askAll(t.Context(), httpapi.Caller{Who: "user:ann"}, &Question{}, 0)
		var busy *readmodel.Busy
		if !errors.As(err, &busy) || busy.RetryAfter < time.Second {
			t.Errorf("got %v", err)
		}
	})
}

// Each request that waits for a busy node asks it again and again, so only some may wait, and only a part of them for one
// subject.
func TestAsker_FewWaitForBusyNodes(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		a := ownAsker(func(context.Context) (readmodel.NodeAnswer, error) {
			asked.Add(1)
			return readmodel.NodeAnswer{}, &readmodel.Busy{Node: "n1", RetryAfter: 2 * time.Second}
		})

		const most, subjects = maxWaiting / 4, 3
		var refused atomic.Int32
		var wg sync.WaitGroup
		began := time.Now()

		for i := range subjects * 2 * most {
			caller := httpapi.Caller{Who: []string{"user:ann", "user:bob", "user:cleo"}[i%subjects]}
			wg.Go(func() {
				_, _ = a.askAll(httpapi.WithCaller(t.Context(), caller), caller, &Question{}, busyTimeout)
				if time.Since(began) == 0 {
					refused.Add(1)
				}
			})
		}
		wg.Wait()

		if n := refused.Load(); n != subjects*most {
			t.Errorf("%d requests were refused at once, want %d", n, subjects*most)
		}
		if n := asked.Load(); n != subjects*(2*most+most) {
			t.Errorf("the node was asked %d times", n)
		}

		// Those that have waited make room for others.
		began = time.Now()
		caller := httpapi.Caller{Who: "user:ann"}
		if _, _ = a.askAll(httpapi.WithCaller(t.Context(), caller), caller, &Question{}, busyTimeout); time.Since(began) != 2*time.Second {
			t.Errorf("it waited for %s", time.Since(began))
		}
	})
}
