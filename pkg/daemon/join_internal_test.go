package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/daemon/hostfacts"
	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// idleExecutor has no attempts.
type idleExecutor struct{}

func (idleExecutor) Joined(executor.Session) {}
func (idleExecutor) Running() int            { return 0 }
func (idleExecutor) Froze() int64            { return 0 }
func (idleExecutor) StuckStarts() int        { return 0 }
func (idleExecutor) Unreadable() int         { return 0 }
func (idleExecutor) NotEvaluated() int       { return 0 }

// joinKV runs a function before the next transaction of a join is sent, between its read of the cluster's record and
// its write.
type joinKV struct {
	clientv3.KV
	before func()
}

func (k *joinKV) Txn(ctx context.Context) clientv3.Txn {
	if before := k.before; before != nil {
		k.before = nil
		before()
	}
	return k.KV.Txn(ctx)
}

// joiner is a node that joins a cluster which is kept in memory.
type joiner struct {
	*presence
	t     *testing.T
	kv    *joinKV
	other *store.Store // a store whose writes do not pass kv
}

// newJoiner returns a node of a new cluster. It has the epoch 1 of the cluster.
func newJoiner(t *testing.T) *joiner {
	t.Helper()
	keys, err := record.NewKeys("/t")
	if err != nil {
		t.Fatal(err)
	}

	memory := kvmem.New(kvmem.Config{})
	client, plain := kvtest.ClientOf(t, memory), kvtest.ClientOf(t, memory)
	j := &joiner{t: t, kv: &joinKV{KV: client.KV}, other: store.New(plain, kv.Direct(plain), keys)}
	client.KV = j.kv

	c, _, err := j.other.Bootstrap(t.Context(), 4, time.Now(), store.OpenAccess())
	if err != nil {
		t.Fatal(err)
	}

	state, err := datadir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(state.Close)
	if err := state.SetHistory(c.ID, c.Epoch, 1, false); err != nil {
		t.Fatal(err)
	}

	log := zap.NewNop()
	s := store.New(client, kv.Direct(client), keys)
	env := Environment{Now: time.Now}
	eligible := newEligibility(prometheus.NewRegistry(), log, func() {})
	history := etcdhistory.NewMonitor(etcdhistory.MonitorConfig{
		Node: "n1", Cluster: s, Revisions: etcdhistory.NewRevisions(0), State: state, Logger: log,
		Restored:    func() error { return eligible.errorFor(task.IneligibleRestored) },
		SetRestored: func(err error) { eligible.setReason(task.IneligibleRestored, err) },
	})

	j.presence = &presence{
		store: s, state: state, ttl: 10 * time.Second, env: env, log: log, node: task.Node{Name: "n1", Instance: "i1"},
		history: history, record: &clusterRecord{store: s, atStart: c, check: history.CheckRecord, announce: wake.NewSignal(), log: log},
		attempts: idleExecutor{}, entries: idleExecutor{}, member: &memberMonitor{}, eligibility: eligible, watchdog: newWatchdog(log), announce: wake.NewSignal(),
		listeners: newAPIListeners(Config{}, env, nodeTLS{}, unixsocket.Administrators{}, wake.NewSignal(), log),
		expiry:    newCertExpiryMonitor(certSources{}, env, prometheus.NewRegistry(), log),
		facts:     hostfacts.NewMonitor(t.TempDir(), hostfacts.Limits{}, func() {}, log),
	}

	return j
}

// restore makes etcd contain the same cluster in its next epoch, as after a restore that an operator has accepted.
func (j *joiner) restore(change func(*task.Cluster)) {
	j.t.Helper()
	p, err := j.other.Present(j.t.Context())
	if err != nil {
		j.t.Fatal(err)
	}

	c := p.Cluster
	change(&c)
	if err := j.other.ChangeCluster(j.t.Context(), p.Record(), c); err != nil {
		j.t.Fatal(err)
	}
}

// isPresent reports whether the node has a record in etcd.
func (j *joiner) isPresent() bool {
	j.t.Helper()
	_, err := j.other.Node(j.t.Context(), "n1")
	if err != nil && !errors.Is(err, task.ErrNotFound) {
		j.t.Fatal(err)
	}

	return err == nil
}

// A node of an older epoch never has a session: it would serve its shards, and adopt attempts, by what it remembers
// from another history.
func TestJoin_StartsOverInANewEpoch(t *testing.T) {
	bump := func(c *task.Cluster) { c.Epoch++ }

	t.Run("restored before the join", func(t *testing.T) {
		j := newJoiner(t)
		j.restore(bump)
		if _, _, err := j.joinCluster(t.Context()); !errors.Is(err, etcdhistory.ErrNewHistory) || j.isPresent() {
			t.Errorf("joined with epoch 1: %t, %v", j.isPresent(), err)
		}
	})

	t.Run("restored during the join", func(t *testing.T) {
		j := newJoiner(t)
		j.kv.before = func() { j.restore(bump) }
		if _, _, err := j.joinCluster(t.Context()); !errors.Is(err, etcdhistory.ErrNewHistory) || j.isPresent() {
			t.Errorf("joined with epoch 1: %t, %v", j.isPresent(), err)
		}
	})

	t.Run("another cluster", func(t *testing.T) {
		j := newJoiner(t)
		j.restore(func(c *task.Cluster) { c.ID = "another" })
		if _, _, _, err := j.tryJoin(t.Context()); err == nil || j.isPresent() || j.eligibility.errorFor(task.IneligibleRestored) == nil {
			t.Errorf("joined another cluster: %t, %v", j.isPresent(), err)
		}
	})

	t.Run("an older epoch", func(t *testing.T) {
		j := newJoiner(t)
		if err := j.state.SetHistory(j.record.atStart.ID, 2, 1, false); err != nil {
			t.Fatal(err)
		}

		// It joins, because it has to announce to the others that etcd was restored.
		if _, _, err := j.joinCluster(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, err := j.other.Node(t.Context(), "n1"); err != nil || n.Ineligible != task.IneligibleRestored || n.Epoch != 2 {
			t.Errorf("it announces %+v, %v", n, err)
		}
	})
}

// What the scheduler reads from the cluster's record under a session is at least as new as the record that the join
// has compared.
func TestJoin_BringsTheRecordThatItCompared(t *testing.T) {
	j := newJoiner(t)
	before := j.record.currentRecord()
	j.kv.before = func() { j.restore(func(c *task.Cluster) { c.CatchUpRate = 7 }) }
	if _, _, err := j.joinCluster(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := j.record.currentRecord(); got.CatchUpRate != 7 {
		t.Errorf("the node has joined with %+v", got)
	}

	// The mirror has not noticed the change yet.
	if err := j.record.applyRecord(store.ClusterRecord{Cluster: before, Mod: 1}, nil); err != nil || j.record.currentRecord().CatchUpRate != 7 {
		t.Errorf("a late record of the mirror: %+v, %v", j.record.currentRecord(), err)
	}

	// The mirror reports the new epoch before the monitor has read it.
	next := j.record.currentRecord()
	next.Epoch++
	if err := j.record.applyRecord(store.ClusterRecord{Cluster: next, Mod: 1 << 40}, nil); !errors.Is(err, etcdhistory.ErrNewHistory) {
		t.Errorf("a record of a new epoch: %v", err)
	}
}

// What a lost history may have decided comes from the record that the join has compared, and not from what the node knew before: its
// mirror of the record may be late.
func TestJoin_BringsTheGapOfTheRecordThatItCompared(t *testing.T) {
	j := newJoiner(t)
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	restored := task.Restored{BackupTime: task.At(noon), Until: task.At(noon.Add(time.Hour)), Revision: 7}
	j.kv.before = func() { j.restore(func(c *task.Cluster) { c.Restored = append(c.Restored, restored) }) }
	_, joined, err := j.joinCluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !joined.Gap.Covers(noon.Add(time.Hour)) || joined.Gap.HasRecord(8) || !joined.Gap.HasRecord(7) {
		t.Errorf("the session has the gap %+v", joined.Gap)
	}
}

// The record of a former instance of the node has lost its lease, for example because somebody has copied the keys to another etcd. Its
// leases cannot be revoked, so the node waits until the record is deleted, and does not try again without a pause.
func TestJoin_PausesIfItsFormerRecordStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t)
		etcd, keys := j.other.Client(), j.other.Keys()
		if _, err := etcd.Put(t.Context(), keys.Node("n1"), record.Encode(task.Node{Instance: "i1", Leases: []string{"7"}})); err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const most = 10 * 60 // requests in a minute
		requests := 0
		var count func()
		count = func() {
			if requests++; requests == most {
				t.Errorf("%d requests without a pause", requests)
				cancel()
			}
			j.kv.before = count
		}
		count()

		time.AfterFunc(time.Minute, func() {
			if _, err := etcd.Delete(ctx, keys.Node("n1")); err != nil {
				t.Error(err)
			}
		})
		s, _, err := j.joinCluster(ctx)
		if err != nil {
			t.Fatal(err)
		}
		j.revokeLease(t.Context(), s)
	})
}

// startAfter returns a node that starts on the data directory of a former instance i1 of n1, or on a copy of it.
func (j *joiner) startAfter() *presence {
	return &presence{
		store: j.store, former: datadir.Record{Instances: []string{"i1"}}, node: task.Node{Name: "n1", Instance: "c1"}, ttl: j.ttl, log: j.log, env: j.env,
	}
}

// A node that is started on a copy of a data directory leaves the original alone.
func TestJoin_WaitsForTheOriginalOfACopiedDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		original := newJoiner(t)
		s, f, err := original.joinCluster(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		held, stop := context.WithCancel(t.Context())
		var holding sync.WaitGroup
		holding.Go(func() {
			for clock.Sleep(held, announceEvery) {
				if err := original.store.Announce(held, f.Fence, original.nodeRecord(), s.Lease()); err != nil && held.Err() == nil {
					t.Error(err)
				}
			}
		})

		clone := original.startAfter()
		if err := clone.awaitFormerGone(t.Context()); err == nil || !strings.Contains(err.Error(), "a copy cannot run beside the original") {
			t.Errorf("beside the original: %v", err)
		}
		if holder, err := original.other.Node(t.Context(), "n1"); err != nil || holder.Instance != "i1" || clone.isOurs(&holder) {
			t.Errorf("the original was removed: %+v, %v", holder, err)
		}

		stop()
		holding.Wait()
		original.revokeLease(t.Context(), s)
		if err := clone.awaitFormerGone(t.Context()); err != nil {
			t.Errorf("without the original: %v", err)
		}
	})
}

// The lease of a daemon that was killed lasts longer than its TTL if etcd has no leader for a while. An announcement of the daemon may
// have been on its way. Its directory is no copy.
func TestJoin_WaitsForALeaseThatLastsLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t)
		began := time.Now()
		lease, err := j.other.Client().Grant(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		n := task.Node{Name: "n1", Instance: "i1", Clock: task.At(began)}
		p, err := j.other.Present(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f, _, err := j.other.Register(t.Context(), n, lease.ID, p.Record())
		if err != nil {
			t.Fatal(err)
		}

		time.AfterFunc(3*time.Second, func() {
			n.Clock = task.At(began.Add(time.Second))
			if err := j.other.Announce(t.Context(), f, n, lease.ID); err != nil {
				t.Error(err)
			}
		})
		if err := j.startAfter().awaitFormerGone(t.Context()); err != nil || time.Since(began) < time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
