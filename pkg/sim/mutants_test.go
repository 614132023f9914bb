//go:build mutants

package sim_test

import (
	"context"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/around"
	"github.com/carillonhq/carillon/pkg/sim"
)

// TestMutants breaks the protocol on purpose: a simulation that does not notice is worth nothing.
func TestMutants(t *testing.T) {
	blind := func(part string) func(string, *clientv3.Client) {
		return func(_ string, c *clientv3.Client) {
			c.KV = around.KV(c.KV, func(ctx context.Context, op clientv3.Op, next around.Do) (clientv3.OpResponse, error) {
				return next(ctx, around.Without(op, func(c clientv3.Cmp) bool { return strings.Contains(string(c.KeyBytes()), part) }))
			})
		}
	}
	mutants := map[string]func(node string, c *clientv3.Client){
		"no fence compare":     blind("/owners/"),
		"no watermark compare": blind("/watermark"),
		"no entry compare":     blind("/tasks/"),
		"no inbox compare":     blind("/runs/"),
		"an error is taken as not applied": func(_ string, c *clientv3.Client) {
			c.KV = around.KV(c.KV, func(ctx context.Context, op clientv3.Op, next around.Do) (clientv3.OpResponse, error) {
				r, err := next(ctx, op)
				if kv.Unknown(err) && around.Writes(op) {
					err = rpctypes.ErrTooManyRequests
				}
				return r, err
			})
		},
		"watches without events": func(_ string, c *clientv3.Client) { c.Watcher = deafWatcher{c.Watcher} },
	}
	for name, mutate := range mutants {
		t.Run(name, func(t *testing.T) {
			const tries = 20
			for seed := uint64(1); seed <= tries; seed++ {
				if r := sim.Run(t, seed, sim.Options{Mutate: mutate}); !r.OK() {
					t.Logf("caught by seed %d: %s", seed, r.Violations[0])
					return
				}
			}
			t.Errorf("not caught by %d seeds", tries)
		})
	}
}

// deafWatcher tells of nothing but that it lives.
type deafWatcher struct{ clientv3.Watcher }

func (w deafWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := w.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse, 1)
	go func() {
		defer close(out)
		for r := range in {
			r.Events = nil
			select {
			case out <- r:
			case <-ctx.Done():
			}
		}
	}()
	return out
}
