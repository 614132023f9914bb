package kv_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
)

// All workers of a node stop together and start again while the store is busy. StallAfter is so long that nothing
// counts as stalled, so a deadlock would remain.
func TestFollow_CrowdLeavesAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of watches: make test-cluster")
	}

	t.Parallel()
	s := embeddedtest.StartServer(t)
	for name, c := range map[string]*kv.Client{"inprocess": s.InProcess(), "grpc": s.Client()} {
		t.Run(name, func(t *testing.T) { crowdLeaves(t, c) })
	}
}

func crowdLeaves(t *testing.T, c *kv.Client) {
	const crowd, rounds = 256, 10
	prefix := func(i int) string { return fmt.Sprintf("%s/%03d/", t.Name(), i) }
	busy, rest := context.WithCancel(t.Context())
	var writers sync.WaitGroup

	for range 4 {
		writers.Go(func() {
			for n := 0; busy.Err() == nil; n++ {
				var ops []clientv3.Op
				for i := range 100 {
					ops = append(ops, clientv3.OpPut(prefix((n*100+i)%crowd)+"busy", "v"))
				}
				_, _ = c.Txn(busy).Then(ops...).Commit()
			}
		})
	}

	defer writers.Wait()
	defer rest()

	for range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan struct{}, crowd)
		var follows sync.WaitGroup

		for i := range crowd {
			follows.Go(func() {
				cfg := prefixed(prefix(i))
				cfg.StallAfter = time.Hour
				told := false
				_ = kv.Follow(ctx, c, cfg, func(b kv.Batch) error {
					if !told && len(b.Events) > 0 {
						told = true
						heard <- struct{}{}
					}
					return nil
				})
			})
		}

		for range crowd {
			select {
			case <-heard:
			case <-time.After(time.Minute):
				t.Errorf("the watches are stuck")
				cancel()
				follows.Wait()

				return
			}
		}

		cancel()
		follows.Wait()
	}
}
