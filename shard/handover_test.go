package shard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// until polls until is returns true.
func (f *fleet) until(what string, is func() bool) {
	f.Helper()

	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("not in time: %s", what)
		}
	}
}

// prepared waits until there are n handovers, all of them to one node.
func (f *fleet) prepared(to string, n int) (list []record.Handover) {
	f.Helper()
	f.until(fmt.Sprintf("%d handovers to %s", n, to), func() bool {
		list = f.handovers()
		for _, h := range list {
			if h.To != to {
				return false
			}
		}

		return len(list) == n
	})

	return list
}

func moves(t *testing.T, from prometheus.Gatherer, how string) (n float64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "carillon_shard_moves_total" && l.GetValue() == how {
					n = m.GetCounter().GetValue()
				}
			}
		}
	}

	return n
}

// Each shard moves when its next owner has loaded it, and not before. The other shards wait for theirs.
func TestRebalancer_MovesEachShardWhenItIsLoaded(t *testing.T) {
	f := newFleet(t)
	registry := prometheus.NewRegistry()
	f.join("n1", task.NodeReady)
	f.lead(f.elect("n1"), func(c *shard.RebalancerConfig) { c.Registerer = registry })
	before := f.settled("n1")
	n2 := f.join("n2", task.NodeReady)

	list := f.prepared("n2", shards/2)
	for i, h := range list[:3] {
		if h.Ready != 0 || !h.Since.Equal(noon) {
			t.Fatalf("the handover is %+v", h)
		}

		if err := f.store.TellReady(t.Context(), n2, h); err != nil {
			t.Fatal(err)
		}

		f.until("it moves", func() bool { return f.owners()[h.Shard].Node == "n2" })

		if n := moved(before, f.owners()); n != i+1 {
			t.Fatalf("%d shards have moved, %d are loaded", n, i+1)
		}

		f.prepared("n2", shards/2-i-1)
	}

	f.settled("n1", "n2")
	f.prepared("", 0)

	for how, want := range map[string]float64{"at_once": shards, "loaded": shards / 2, "forced": 0} {
		f.until(fmt.Sprintf("%g moved %s", want, how), func() bool { return moves(t, registry, how) == want })
	}
}

func TestRebalancer_DoesNotWaitForEver(t *testing.T) {
	f := newFleet(t)
	registry := prometheus.NewRegistry()
	f.join("n1", task.NodeReady)
	f.lead(f.elect("n1"), func(c *shard.RebalancerConfig) { c.Limit, c.Registerer = 200*time.Millisecond, registry })
	f.settled("n1")
	f.join("n2", task.NodeReady) // it loads nothing
	f.until("half have moved", func() bool { return moves(t, registry, "forced") == shards/2 })
	f.prepared("", 0)
}

func TestRebalancer_ADrainIsCalledOff(t *testing.T) {
	f := newFleet(t)
	f.join("n1", task.NodeReady)
	f.join("n2", task.NodeReady)
	f.lead(f.elect("n1"))
	before := f.settled("n1", "n2")
	f.join("n2", task.NodeDraining)
	f.prepared("n1", shards/2)
	f.join("n2", task.NodeReady)
	f.prepared("", 0)

	if n := moved(before, f.owners()); n != 0 {
		t.Errorf("%d shards have moved for nothing", n)
	}
}

func TestRebalancer_PlansAnewWhenTheNextOwnerDies(t *testing.T) {
	f := newFleet(t)
	f.join("n1", task.NodeReady)
	f.join("n2", task.NodeReady)
	f.lead(f.elect("n1"))
	f.settled("n1", "n2")
	f.join("n1", task.NodeDraining)
	f.prepared("n2", shards/2)
	f.join("n3", task.NodeReady)
	f.gone("n2")
	f.until("all are to go to n3, or are there", func() bool {
		count := map[string]int{}
		for _, o := range f.owners() {
			count[o.Node]++
		}

		for _, h := range f.handovers() {
			count["to "+h.To]++
		}

		return count["n1"] == shards/2 && count["to n3"] == shards/2 && count["n3"] == shards/2 && count["to n2"] == 0
	})

	f.settled("n3")
}

// The owner dies while its shards are loaded elsewhere. Then they move at once, to the nodes that load
// them.
func TestRebalancer_DoesNotWaitForLoadsWhenTheOwnerDies(t *testing.T) {
	f := newFleet(t)
	f.join("n1", task.NodeReady)
	f.join("n2", task.NodeReady)
	f.join("n3", task.NodeReady)
	f.lead(f.elect("n1"))
	f.settled("n1", "n2", "n3")
	f.join("n3", task.NodeDraining)
	f.until("they are being handed over", func() bool { return len(f.handovers()) == shards/3 })

	going := map[int]string{}
	for _, h := range f.handovers() {
		going[h.Shard] = h.To
	}

	f.gone("n3")
	f.until("they are there", func() bool { return len(f.handovers()) == 0 })
	owners := f.owners()

	for id, to := range going {
		if owners[id].Node != to {
			t.Errorf("shard %d was to go to %s, and is at %q", id, to, owners[id].Node)
		}
	}
}

// A new leader continues from what is in etcd: loaded shards move, and the others continue to load.
func TestRebalancer_GoesOnWithWhatAnotherLeaderBegan(t *testing.T) {
	f := newFleet(t)
	f.join("n1", task.NodeReady)
	first := f.elect("n1")
	_, ended := f.lead(first)
	f.settled("n1")
	n2 := f.join("n2", task.NodeReady)
	list := f.prepared("n2", shards/2)

	if _, err := f.etcd.Delete(t.Context(), first.Key); err != nil {
		t.Fatal(err)
	}

	for _, h := range list[:10] {
		if err := f.store.TellReady(t.Context(), n2, h); err != nil {
			t.Fatal(err)
		}
	}

	<-ended // its term is over, and it has learned of that

	for _, h := range f.handovers() {
		if h.Ready == 0 && h.Revision != list[0].Revision {
			t.Fatalf("a leader whose term is over wrote %+v", h)
		}
	}

	f.lead(f.elect("n2"))
	f.until("what is loaded moves", func() bool { return len(f.handovers()) == len(list)-10 })

	for _, h := range f.handovers() {
		if h.Revision != list[0].Revision { // they were written together
			t.Errorf("the handover of shard %d was written again", h.Shard)
		}
	}

	f.settled("n1", "n2")
}

// etcd revokes all leases at once. Two of three nodes are absent for a while, and find their shards where
// they were.
func TestRebalancer_LeavesShardsWhereTheyWereWhenMostNodesVanish(t *testing.T) {
	f := newFleet(t)

	for _, n := range []string{"n1", "n2", "n3"} {
		f.join(n, task.NodeReady)
	}

	poke, _ := f.lead(f.elect("n1"), func(c *shard.RebalancerConfig) { c.Grace, c.Quiet = 30*time.Second, 50*time.Millisecond })
	before := f.settled("n1", "n2", "n3")
	f.goneAtOnce("n2", "n3")

	for range 5 {
		poke <- struct{}{}
		time.Sleep(60 * time.Millisecond)
	}

	if n := moved(before, f.owners()); n != 0 {
		t.Errorf("%d shards have moved", n)
	}

	f.join("n2", task.NodeReady) // the loss of the other one alone is not a mass loss
	poke <- struct{}{}
	f.settled("n1", "n2")
	after := f.owners()

	for id, o := range before {
		if o.Node != "n3" && after[id].Fence != o.Fence {
			t.Errorf("shard %d moved from %s to %s", id, o.Node, after[id].Node)
		}
	}
}
