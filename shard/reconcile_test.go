package shard_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/wake"
	"github.com/carillonhq/carillon/shard"
)

// The watches of nodes and owners lose every event, and leader and Keeper do not read periodically. The
// mirrors read again, signal the changes, and count them.
func TestReconcile_LeaderAndKeeperActThoughTheirWatchesLoseEverything(t *testing.T) {
	f := newFleet(t)
	registry := prometheus.NewRegistry()
	f.etcd.Register(registry)
	kvtest.Deafen(f.etcd).Drop(func(string) bool { return true })
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	mirror := func(prefix string) (*kv.Mirror, wake.Signal) {
		key, end := kv.Prefix(prefix)
		m := kv.NewMirror(f.etcd, kv.FollowConfig{Key: key, End: end, Relist: 300 * time.Millisecond, StallAfter: 2 * time.Second})
		all.Go(func() { _ = m.Run(ctx) })
		<-m.Ready()
		changed := wake.NewSignal()
		m.Subscribe(changed)

		return m, changed
	}

	_, nodesChanged := mirror(f.keys.Nodes())
	owners, ownersChanged := mirror(f.keys.Owners())
	leader := shard.NewRebalancer(shard.RebalancerConfig{
		Store: f.store, Shards: shards, Changed: nodesChanged, Quiet: time.Millisecond, Reconcile: time.Hour, Now: time.Now, Logger: zap.NewNop(),
	})
	term := f.elect("n1")
	all.Go(func() { _ = leader.Lead(ctx, term) })
	var session kv.Fence
	var joined sync.Mutex
	keeper := shard.NewKeeper(shard.KeeperConfig{
		Node: "n1", Owners: func() []record.Owner { return record.DecodeOwners(f.store.Keys(), owners.Snapshot().KVs) }, Fence: f.store.OwnerFence,
		Session: func() (store.Session, bool) {
			joined.Lock()
			defer joined.Unlock()
			return store.Session{Fence: session}, session.Key != ""
		},
		Changed: ownersChanged, Reconcile: time.Hour, Logger: zap.NewNop(),
		Work: func(ctx context.Context, _ int, _ store.Fences) error { <-ctx.Done(); return ctx.Err() },
	})

	all.Go(func() { _ = keeper.Run(ctx) })
	joined.Lock()
	session = f.join("n1", "ready")
	joined.Unlock()

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		repairs := counted(t, registry, kv.RepairsMetric)
		if keeper.Running() == shards && repairs == shards+1 {
			return
		}

		// Events that a resumed watch delivers are not lost, and not counted. On an overloaded machine, a
		// watch may be resumed.
		if resumed := counted(t, registry, "carillon_watch_resumptions_total"); keeper.Running() == shards && resumed > 0 {
			t.Logf("%v watches were resumed, %v repairs are counted", resumed, repairs)
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("%d workers run, %v repairs are counted", keeper.Running(), repairs)
		}
	}
}

func counted(t *testing.T, g prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}

	return sum
}
