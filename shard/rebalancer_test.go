package shard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

const shards = 60

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// fleet is a cluster in an etcd in memory, without daemons.
type fleet struct {
	*testing.T
	etcd   *kv.Client
	keys   record.Keys
	store  *store.Store
	leases map[string]clientv3.LeaseID
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	etcd := kvtest.Memory(t)

	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}

	return &fleet{T: t, etcd: etcd, keys: keys, store: store.New(etcd, kv.Direct(etcd), keys), leases: map[string]clientv3.LeaseID{}}
}

// join registers a node. A node that is present is announced again.
func (f *fleet) join(name, state string) kv.Fence {
	f.Helper()
	n := task.Node{Name: name, Instance: name, State: state, Weight: 1, Roles: []string{task.RoleScheduler, task.RoleExecutor}}

	if lease, ok := f.leases[name]; ok {
		if err := f.store.Announce(f.Context(), f.session(name), n, lease); err != nil {
			f.Fatal(err)
		}
		return f.session(name)
	}

	lease, err := f.etcd.Grant(f.Context(), 600)
	if err != nil {
		f.Fatal(err)
	}

	fence, _, err := f.store.Register(f.Context(), n, lease.ID, store.ClusterRecord{})
	if err != nil {
		f.Fatal(err)
	}

	f.leases[name] = lease.ID

	return fence
}

func (f *fleet) session(name string) kv.Fence {
	f.Helper()
	res, err := f.etcd.Get(f.Context(), f.keys.Node(name))
	if err != nil || len(res.Kvs) == 0 {
		f.Fatalf("%s is not there: %v", name, err)
	}

	return kv.CreateFence(f.keys.Node(name), res.Kvs[0].CreateRevision)
}

func (f *fleet) gone(name string) {
	f.Helper()
	if _, err := f.etcd.Revoke(f.Context(), f.leases[name]); err != nil {
		f.Fatal(err)
	}
	delete(f.leases, name)
}

// goneAtOnce deletes the keys of nodes at one revision, so that no reader sees one of them absent alone.
func (f *fleet) goneAtOnce(names ...string) {
	f.Helper()
	var ops []clientv3.Op
	for _, n := range names {
		ops = append(ops, clientv3.OpDelete(f.keys.Node(n)))
	}

	if _, err := f.etcd.Txn(f.Context()).Then(ops...).Commit(); err != nil {
		f.Fatal(err)
	}

	for _, n := range names {
		f.gone(n)
	}
}

func (f *fleet) put(key, value string) int64 {
	f.Helper()
	res, err := f.etcd.Put(f.Context(), key, value)
	if err != nil {
		f.Fatal(err)
	}

	return res.Header.Revision
}

// elect begins a term.
func (f *fleet) elect(name string) kv.Fence {
	key := f.keys.Leader() + name
	return kv.CreateFence(key, f.put(key, name))
}

// lead runs a Rebalancer until the test or its term ends.
func (f *fleet) lead(term kv.Fence, change ...func(*shard.RebalancerConfig)) (poke chan<- struct{}, ended <-chan error) {
	f.Helper()
	changed, end := make(chan struct{}, 1), make(chan error, 1)
	cfg := shard.RebalancerConfig{
		Store: f.store, Shards: shards, Changed: changed, Quiet: time.Millisecond, Reconcile: 50 * time.Millisecond, Limit: time.Hour,
		Now: func() time.Time { return noon }, Logger: zap.NewNop(),
	}

	for _, c := range change {
		c(&cfg)
	}

	r := shard.NewRebalancer(cfg)
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		end <- r.Lead(ctx, term)
	}()

	f.Cleanup(func() { cancel(); <-done })

	return changed, end
}

func (f *fleet) owners() map[int]record.Owner {
	f.Helper()
	list, err := f.store.Owners(f.Context())
	if err != nil {
		f.Fatal(err)
	}

	owners := map[int]record.Owner{}
	for _, o := range list {
		owners[o.Shard] = o
	}

	return owners
}

// handovers returns the current handovers.
func (f *fleet) handovers() []record.Handover {
	f.Helper()
	l, err := f.store.Lineup(f.Context())
	if err != nil {
		f.Fatal(err)
	}

	return l.Handovers
}

// answer answers all handovers on behalf of the next owners.
func (f *fleet) answer() {
	f.Helper()

	for _, h := range f.handovers() {
		if _, present := f.leases[h.To]; !present || h.Ready != 0 {
			continue
		}

		if err := f.store.TellReady(f.Context(), f.session(h.To), h); err != nil && !errors.Is(err, task.ErrConflict) {
			f.Fatal(err)
		}
	}
}

// settled waits until every shard belongs to one of the nodes, in fair shares. The next owners answer their
// handovers.
func (f *fleet) settled(nodes ...string) map[int]record.Owner {
	f.Helper()
	deadline := time.Now().Add(time.Minute)

	for {
		f.answer()
		owners := f.owners()
		count := map[string]int{}
		for _, o := range owners {
			count[o.Node]++
		}

		fair := len(owners) == shards && len(count) == len(nodes)
		for _, n := range nodes {
			fair = fair && count[n] >= shards/len(nodes) && count[n] <= (shards+len(nodes)-1)/len(nodes)
		}

		if fair {
			return owners
		}

		if time.Now().After(deadline) {
			f.Fatalf("not settled on %v: %v of %d shards", nodes, count, len(owners))
		}

		time.Sleep(2 * time.Millisecond)
	}
}

func moved(before, after map[int]record.Owner) (n int) {
	for id, o := range after {
		if o.Fence != before[id].Fence {
			n++
		}
	}

	return n
}

// Verifies: G15
func TestRebalancer_MovesOnlyWhatMust(t *testing.T) {
	f := newFleet(t)
	term := f.elect("n1")
	poke, _ := f.lead(term)
	f.join("n1", task.NodeReady)
	poke <- struct{}{}

	one := f.settled("n1")
	for id, o := range one {
		if o.Term != term.CreateRevision || !o.Since.Equal(noon) {
			t.Fatalf("shard %d is %+v", id, o)
		}
	}

	f.join("n2", task.NodeReady)
	two := f.settled("n1", "n2")
	if n := moved(one, two); n != shards/2 {
		t.Errorf("the second node's coming moved %d shards, %d would do", n, shards/2)
	}

	f.join("n3", task.NodeReady)
	three := f.settled("n1", "n2", "n3")
	if n := moved(two, three); n != shards/3 {
		t.Errorf("the third node's coming moved %d shards, %d would do", n, shards/3)
	}

	f.gone("n2")
	left := f.settled("n1", "n3")
	for id, o := range left {
		if was := three[id]; was.Node != "n2" && was.Fence != o.Fence {
			t.Errorf("shard %d moved from %s to %s, although %s is present", id, was.Node, o.Node, was.Node)
		} else if was.Node == "n2" && (len(o.Previous) == 0 || o.Previous[0].Node != "n2") {
			t.Errorf("shard %d does not remember n2: %+v", id, o)
		}
	}
}

func TestRebalancer_ADrainingNodeGetsNothing(t *testing.T) {
	f := newFleet(t)
	f.join("n1", task.NodeReady)
	f.join("n2", task.NodeReady)
	f.lead(f.elect("n1"))
	f.settled("n1", "n2")
	f.join("n1", task.NodeDraining)
	f.settled("n2")
	f.join("n3", task.NodeDraining)
	all := f.settled("n2")
	f.join("n2", task.NodeDraining) // no node is left to take its shards, so they stay and fire
	f.put(f.keys.Owner(0), `{"node":"n2"}`)
	f.join("n3", task.NodeReady)

	if n := moved(all, f.settled("n3")); n != shards {
		t.Errorf("%d moved", n)
	}
}

func TestRebalancer_MendsWhatHandsHaveBroken(t *testing.T) {
	f := newFleet(t)
	f.join("n1", task.NodeReady)
	f.join("n2", task.NodeReady)
	f.lead(f.elect("n1"))
	before := f.settled("n1", "n2")

	if _, err := f.etcd.Delete(t.Context(), f.keys.Owner(3)); err != nil {
		t.Fatal(err)
	}

	f.put(f.keys.Owner(4), "{")
	f.put(f.keys.Owner(5), `{"node":"nobody"}`)
	f.put(f.keys.Owner(6), "")
	f.put(f.keys.Owners()+"-001", `{"node":"n1"}`)
	f.put(f.keys.Owner(shards), `{"node":"n1"}`)
	deadline := time.Now().Add(time.Minute)

	for {
		owners, broken := f.owners(), 0
		delete(owners, shards)

		for id := range shards {
			if n := owners[id].Node; n != "n1" && n != "n2" {
				broken++
			}
		}

		if broken == 0 {
			if n := moved(before, owners); n != 4 {
				t.Errorf("%d owner keys were written, 4 were broken", n)
			}
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("%d are still broken", broken)
		}

		time.Sleep(2 * time.Millisecond)
	}
}

// Two nodes believe that they lead. The one whose term is over writes nothing, and learns of that when it
// tries.
//
// Verifies: G1
func TestRebalancer_AStaleTermIsRefused(t *testing.T) {
	f := newFleet(t)
	f.join("n1", task.NodeReady)
	stale := f.elect("n1")
	_, ended := f.lead(stale)
	before := f.settled("n1")

	if _, err := f.etcd.Delete(t.Context(), stale.Key); err != nil {
		t.Fatal(err)
	}

	f.join("n2", task.NodeReady)

	select {
	case err := <-ended:
		if !errors.Is(err, task.ErrFenced) {
			t.Fatalf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it leads on")
	}

	if n := moved(before, f.owners()); n != 0 {
		t.Fatalf("it moved %d shards after its term", n)
	}

	term := f.elect("n1") // the same node in another term
	f.lead(term)

	after := f.settled("n1", "n2")
	for id, o := range after {
		if o.Fence != before[id].Fence && o.Term != term.CreateRevision {
			t.Errorf("shard %d was written in term %d", id, o.Term)
		}
	}
}

func TestRebalancer_EndsWithItsContext(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := shard.NewRebalancer(shard.RebalancerConfig{Store: f.store, Shards: shards, Now: time.Now, Logger: zap.NewNop()})
	ended := make(chan error, 1)
	go func() { ended <- r.Lead(ctx, f.elect("n1")) }()
	cancel()

	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

func TestMoves(t *testing.T) {
	ready := func(names ...string) (nodes []task.Node) {
		for _, n := range names {
			nodes = append(nodes, task.Node{Name: n, State: task.NodeReady, Weight: 1, Roles: []string{task.RoleScheduler}})
		}
		return nodes
	}

	state := func(n task.Node, state string, roles ...string) task.Node {
		n.State, n.Roles = state, roles
		return n
	}

	weighs := func(n task.Node, weight int) task.Node {
		n.Weight = weight
		return n
	}

	owner := func(id int, node string) record.Owner {
		return record.Owner{Shard: id, Node: node, Fence: int64(100 + id)}
	}

	for name, c := range map[string]struct {
		nodes  []task.Node
		owners []record.Owner
		want   string
	}{
		"nobody, nothing":             {nil, nil, ""},
		"nobody is left":              {nil, []record.Owner{owner(0, "a"), owner(1, "a"), owner(2, "a")}, ""},
		"all to the only one":         {ready("a"), nil, "0@0:→a 1@0:→a 2@0:→a"},
		"all is well":                 {ready("a"), []record.Owner{owner(0, "a"), owner(1, "a"), owner(2, "a")}, ""},
		"one is missing":              {ready("a"), []record.Owner{owner(0, "a"), owner(2, "a")}, "1@0:→a"},
		"one is unreadable":           {ready("a"), []record.Owner{owner(0, "a"), owner(1, ""), owner(2, "a")}, "1@101:→a"},
		"one is a stranger's":         {ready("a"), []record.Owner{owner(0, "a"), owner(1, "x"), owner(2, "a")}, "1@101:x→a"},
		"beyond the last":             {ready("a"), []record.Owner{owner(0, "a"), owner(1, "a"), owner(2, "a"), owner(3, "x"), owner(9999, "a")}, ""},
		"below the first":             {ready("a"), []record.Owner{owner(0, "a"), owner(1, "a"), owner(2, "a"), owner(-1, "x")}, ""},
		"draining gets none":          {[]task.Node{ready("a")[0], state(ready("b")[0], task.NodeDraining, task.RoleScheduler)}, []record.Owner{owner(0, "a"), owner(1, "a")}, "2@0:→a"},
		"executors get none":          {[]task.Node{ready("a")[0], state(ready("b")[0], task.NodeReady, task.RoleExecutor)}, nil, "0@0:→a 1@0:→a 2@0:→a"},
		"only executors":              {[]task.Node{state(ready("b")[0], task.NodeReady, task.RoleExecutor)}, []record.Owner{owner(0, "b")}, ""},
		"a weight beyond all measure": {[]task.Node{weighs(ready("a")[0], 1<<60), weighs(ready("b")[0], -1<<60)}, []record.Owner{owner(0, "a"), owner(1, "b"), owner(2, "a")}, ""},
		"a share for each one":        {ready("a", "b", "c"), []record.Owner{owner(0, "c"), owner(1, "b"), owner(2, "a")}, ""},
	} {
		var got []string
		changes := shard.Moves(3, store.Lineup{Nodes: c.nodes, Owners: c.owners}, shard.Notes{})
		if n := len(changes.Prepare) + len(changes.Loaded) + len(changes.Forced); n > 0 {
			t.Errorf("%s: %d are handed over: %+v", name, n, changes)
		}

		for _, m := range changes.AtOnce {
			got = append(got, fmt.Sprintf("%d@%d:%s→%s", m.From.Shard, m.From.Fence, m.From.Node, m.To))
		}

		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", name, s, c.want)
		}
	}
}
