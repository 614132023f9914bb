package daemon_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// All nodes are restarted, one after the other, with tasks that tick all the time. The next owner loads every
// shard before it moves, and no tick is so late that it is missed.
func TestHandover_ARollingRestartIsNotNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
	const shards = 12
	c := newCluster(t, "--shards", fmt.Sprint(shards), "--drain-timeout", "60s") // half of it is for the next owners to load
	names := []string{"n1", "n2", "n3"}
	for _, n := range names {
		c.start(n)
	}
	c.everySecond("n1", 12, func(_ int, s *task.Spec) {
		s.Schedule, s.Overlap, s.Missed.Policy = task.Schedules{"@every 500ms"}, task.OverlapAllow, task.MissedAll
		s.Missed.Grace = task.Duration(30 * time.Second) // other tests run at the same time
	})
	c.balanced(names...)
	used, forced := 0.0, 0.0
	count := func(n string) { // the counters of a node are lost when it ends
		c.nodes[n].waitReady() // it serves its shards
		used += c.metric(n, `carillon_shard_preloads_total{result="used"}`)
		forced += c.metric(n, `carillon_shard_moves_total{how="forced"}`)
	}
	for _, n := range names {
		count(n)
		c.nodes[n].signal(syscall.SIGTERM)
		c.start(n)
		c.balanced(names...)
		c.allFire() // also with the shards at their new owners
	}
	eventually(t, func() error { // the last shards that moved may not be open yet
		last := 0.0
		for _, n := range names {
			last += c.metric(n, `carillon_shard_preloads_total{result="used"}`)
		}
		// Each restart moves the node's third of the shards away, and as many back.
		if used+last < 2*shards-2 {
			return fmt.Errorf("%g shards were loaded before they moved; %d at least had to move", used+last, 2*shards)
		}
		return nil
	})
	for _, n := range names {
		count(n)
	}
	c.quiet("n1")
	r := c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
	if caughtUp := r.Summary.Runs - r.Summary.Decided.Count; caughtUp > 0 {
		t.Errorf("%d ticks were past their grace", caughtUp)
	}
	if n := r.Summary.Ended[task.Lost]; n > 0 || len(r.Summary.Missed) > 0 {
		t.Errorf("%d attempts were lost, ticks were missed: %v", n, r.Summary.Missed)
	}
	if forced > 0 {
		t.Errorf("%g shards were loaded before they moved, %g moved without", used, forced)
	}
}

// balanced waits until every node owns its share and no handover is in progress.
func (c *cluster) balanced(nodes ...string) {
	c.t.Helper()
	eventually(c.t, func() error {
		all, err := c.client(nodes[0]).Shards.List(c.t.Context())
		if err != nil {
			return err
		}
		owned := map[string]int{}
		for _, s := range all {
			owned[s.Node]++
		}
		for _, n := range nodes {
			if owned[n] < len(all)/len(nodes) {
				return fmt.Errorf("shards are owned so: %v", owned)
			}
		}
		return nil
	})
}

func (c *cluster) metric(node, name string) float64 {
	c.t.Helper()
	v, err := c.nodes[node].metric(name)
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}
