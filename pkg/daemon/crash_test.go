package daemon_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// aLongLease is a lease that no test waits for. lost_after is even longer.
const aLongLease = "5m"

// sum returns the sum of those values of a metric whose line contains all words.
func (p *process) sum(words ...string) (sum float64) {
	p.t.Helper()
	res, err := http.Get(p.metricsURL())
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

// owned waits until exactly these nodes own all shards.
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

// leader waits until there is a leader, and returns its name.
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

// Other nodes detect at once that a daemon was killed, the leader first. Its shards move although its lease is
// still valid.
func TestCrash_IsNoticedBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel() // mostly waits
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
	// A restarted daemon takes its own name and its share of the shards.
	c.start(first)
	c.owned(names...)
	c.judge(check.Options{})
}

// A daemon that is killed and restarted before any other node detects it takes its name back at once, although its
// lease is still valid. Here no other node is left that could revoke the lease.
func TestCrash_ARestartedDaemonTakesItsNameBack(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "4", "--lease-ttl", aLongLease)
	c.start("n1")
	c.owned("n1")
	c.nodes["n1"].signal(syscall.SIGKILL)
	c.start("n1") // waits for less than a lease
	c.owned("n1")
}

// A daemon that is started on a copy of a data directory, such as that of a cloned machine, does not take the place of
// the one that runs on the original.
func TestCrash_ACopyOfADataDirectoryDoesNotTakeTheName(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "4", "--lease-ttl", "2s")
	c.start("n1")
	c.owned("n1")
	before, err := c.client("n1").Nodes.Get(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}

	clone := c.node("clone")
	if out, err := exec.Command("cp", "-a", c.nodes["n1"].dir+"/.", clone.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	for range 2 { // as a service manager does
		c.launchOnly("clone", "--name", "n1")

		select {
		case <-clone.gone:
		case <-time.After(patience):
			t.Fatal("the copy runs")
		}
		if clone.cmd.ProcessState.Success() || !strings.Contains(clone.logs.String(), "a copy cannot run beside the original") {
			t.Errorf("the copy ended with %v: %s", clone.cmd.ProcessState, clone.logs)
		}
	}

	after, err := c.client("n1").Nodes.Get(t.Context(), "n1")
	if err != nil || after.Instance != before.Instance || after.JoinedAt != before.JoinedAt {
		t.Errorf("the original has joined anew: %+v, %v", after, err)
	}
}

// A node that leaves properly or restarts in place is not accused.
func TestCrash_IsNotSeenWhereThereIsNone(t *testing.T) {
	t.Parallel() // mostly waits
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

// A loopback address of another host proves nothing, because it may be the end of a tunnel.
func TestCrash_IsNotBelievedOfAnotherHostsLoopback(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "12", "--lease-ttl", aLongLease)
	c.start("n1")
	c.node("n2").env = []string{hostName + "=elsewhere"}
	c.start("n2")
	c.owned("n1", "n2")
	c.acquainted()
	c.nodes["n2"].signal(syscall.SIGKILL)
	// The connections are closed and new ones are refused, which takes no time.
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
