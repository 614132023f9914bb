package daemon_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// aLongLease is one that no test waits for. The attempts under it are lost later still.
const aLongLease = "5m"

// sum is the sum of a metric's values of a node whose line holds all words.
func (p *process) sum(words ...string) (sum float64) {
	p.t.Helper()
	res, err := p.caller().Get(p.url() + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
lines:
	for line := range strings.Lines(string(b)) {
		for _, w := range words {
			if strings.HasPrefix(line, "#") || !strings.Contains(line, w) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v); err != nil {
			p.t.Fatalf("%s: %v", line, err)
		}
		sum += v
	}
	return sum
}

// owned waits until the shards are shared by these nodes and by no others.
func (c *cluster) owned(by ...string) {
	c.t.Helper()
	eventually(c.t, func() error {
		shards, err := c.client(by[0]).Shards.List(c.t.Context())
		if err != nil {
			return err
		}
		count := map[string]int{}
		for _, s := range shards {
			count[s.Node]++
		}
		for _, n := range by {
			if count[n] == 0 {
				return fmt.Errorf("%s owns none: %v", n, count)
			}
		}
		if len(count) != len(by) {
			return fmt.Errorf("not only %v own shards: %v", by, count)
		}
		return nil
	})
}

// leader waits until there is one.
func (c *cluster) leader(ask string) (name string) {
	c.t.Helper()
	eventually(c.t, func() error {
		s, err := c.client(ask).Cluster.Status(c.t.Context())
		if name = s.Leader; err == nil && name == "" {
			err = errors.New("no leader")
		}
		return err
	})
	return name
}

// acquainted waits until every node has reached all others.
func (c *cluster) acquainted() {
	c.t.Helper()
	for _, p := range c.nodes {
		eventually(c.t, func() error {
			if n := p.sum("carillon_peers_reached"); n != float64(len(c.nodes)-1) {
				return fmt.Errorf("%s has reached %v nodes", p.name, n)
			}
			return nil
		})
	}
}

// A daemon that is killed, the leader first, is noticed by others at once: its
// shards move though its lease has long to run.
func TestCrash_IsNoticedBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel() // it waits, most of the time
	c := newCluster(t, "--shards", "12", "--lease-ttl", aLongLease)
	names := []string{"n1", "n2", "n3"}
	for _, n := range names {
		c.start(n)
	}
	c.owned(names...)
	c.acquainted()
	first := c.leader("n1")
	c.nodes[first].signal(syscall.SIGKILL)
	var left []string
	for _, n := range names {
		if n != first {
			left = append(left, n)
		}
	}
	c.owned(left...)
	if next := c.leader(left[0]); next == first {
		t.Errorf("%s still leads", next)
	}
	if n := c.nodes[left[0]].sum("carillon_crash_notices_total", "revoked") + c.nodes[left[1]].sum("carillon_crash_notices_total", "revoked"); n == 0 {
		t.Error("no crash was noticed: what moved the shards?")
	}
	// A daemon that comes back takes its own name, and its share.
	c.start(first)
	c.owned(names...)
	c.judge(check.Options{})
}

// A daemon that is killed and started again before anybody could know takes its own
// name back at once, though its lease has long to run: here nobody is left who
// would have revoked it.
func TestCrash_ARestartedDaemonTakesItsNameBack(t *testing.T) {
	t.Parallel() // it waits, most of the time
	c := newCluster(t, "--shards", "4", "--lease-ttl", aLongLease)
	c.start("n1")
	c.owned("n1")
	c.nodes["n1"].signal(syscall.SIGKILL)
	c.start("n1") // waits less than a lease
	c.owned("n1")
}

// Who leaves as it should, or restarts in place, is accused of nothing.
func TestCrash_IsNotSeenWhereThereIsNone(t *testing.T) {
	t.Parallel() // it waits, most of the time
	c := newCluster(t, "--shards", "12", "--lease-ttl", aLongLease)
	for _, n := range []string{"n1", "n2"} {
		c.start(n)
	}
	c.owned("n1", "n2")
	c.acquainted()
	c.nodes["n2"].signal(syscall.SIGTERM)
	c.owned("n1")
	c.start("n2")
	c.owned("n1", "n2")
	if n := c.nodes["n1"].sum("carillon_crash_notices_total"); n != 0 {
		t.Errorf("%v notices of a node that left: %s", n, c.nodes["n1"].logs)
	}
}

// A loopback address of another host proves nothing: it may be a tunnel's end.
func TestCrash_IsNotBelievedOfAnotherHostsLoopback(t *testing.T) {
	t.Parallel() // it waits, most of the time
	c := newCluster(t, "--shards", "12", "--lease-ttl", aLongLease)
	c.start("n1")
	c.node("n2").env = []string{hostName + "=elsewhere"}
	c.start("n2")
	c.owned("n1", "n2")
	c.acquainted()
	c.nodes["n2"].signal(syscall.SIGKILL)
	// It is refused, and the connections are gone: that takes no time at all.
	select {
	case <-time.After(2 * time.Second):
	case <-t.Context().Done():
	}
	n, err := c.client("n1").Nodes.Get(t.Context(), "n2")
	if err != nil || n.State != task.NodeReady {
		t.Errorf("n2 is %+v, %v", n, err)
	}
	if n := c.nodes["n1"].sum("carillon_crash_notices_total"); n != 0 {
		t.Errorf("%v notices", n)
	}
}
