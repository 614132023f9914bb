package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// untilNode waits until a node's record satisfies ok.
func (c *cluster) untilNode(ask, node string, ok func(task.Node) bool) {
	c.t.Helper()
	eventually(c.t, func() error {
		n, err := c.client(ask).Nodes.Get(c.t.Context(), node)
		if err == nil && !ok(n) {
			err = fmt.Errorf("%+v", n)
		}
		return err
	})
}

// A node that is drained through another node hands over its shards, lets running attempts continue, accepts
// nothing new, and is still draining after a restart.
func TestState_IsKeptByTheNodeOverRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8")
	c.start("n1")
	c.start("n2")
	c.owned("n1", "n2")
	s := spec("long", "sleep 300")
	s.Target.Selector = "node = n2"
	c.create("n1", s)
	running := c.trigger("n1", "long")
	c.until("n1", "long", running.ID, task.Running)

	if n, err := c.client("n1").Nodes.Drain(t.Context(), "n2"); err != nil || n.State != task.NodeDraining || !n.StateBy.Is("service:bootstrap") {
		t.Fatalf("%+v, %v", n, err)
	}
	c.owned("n1")
	c.untilNode("n1", "n2", func(n task.Node) bool { return n.Running == 1 })
	s.Name = "waits"
	c.create("n1", s)
	waiting := c.trigger("n1", "waits")
	c.until("n1", "waits", waiting.ID, task.Queued)
	if _, err := c.client("n1").Runs.Cancel(t.Context(), "default", "long", running.ID); err != nil {
		t.Fatal(err)
	}
	c.untilNode("n1", "n2", func(n task.Node) bool { return n.Running == 0 && n.Shards == 0 })

	c.nodes["n2"].signal(syscall.SIGKILL)
	c.start("n2")
	c.untilNode("n1", "n2", func(n task.Node) bool { return n.State == task.NodeDraining && n.StateBy != nil })
	c.owned("n1")

	if _, err := c.client("n2").Nodes.Cordon(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	c.owned("n1", "n2") // it owns shards and gets no new runs
	c.until("n1", "waits", waiting.ID, task.Queued)
	if _, err := c.client("n1").Nodes.Resume(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	c.until("n1", "waits", waiting.ID, task.Running)
	if _, err := c.client("n1").Runs.Cancel(t.Context(), "default", "waits", waiting.ID); err != nil {
		t.Fatal(err)
	}
	c.until("n1", "waits", waiting.ID, task.Cancelled)
	c.judge(check.Options{})
}

// A clock that jumps stops the node at once. Its shards move, and its API writes no times until the clock is right
// again.
func TestClock_ANodeWithAWrongClockOwnsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	c.node("n4").setClock(87600 * time.Hour) // ten years
	c.launchOnly("n4")
	c.ineligible("n1", "n4", task.IneligibleClock) // at the first comparison
	c.everySecond("n1", 16, nil)
	c.owned("n1", "n2", "n3")

	c.nodes["n2"].setClock(time.Hour)
	c.ineligible("n1", "n2", task.IneligibleClock)
	c.owned("n1", "n3")
	s := spec("new", "true")
	_, err := c.client("n2").Tasks.Create(t.Context(), "default", s)
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 503 || e.Code != client.CodeClock {
		t.Errorf("a node with a wrong clock creates a task: %v", err)
	}
	if err := c.client("n2").Ready(t.Context()); err == nil {
		t.Error("it says that it is ready")
	}
	if c.nodes["n2"].sum("carillon_ineligible{", "clock") != 1 || c.nodes["n2"].sum("carillon_ineligible_total", "clock") == 0 {
		t.Error("no metric says so")
	}
	c.nodes["n2"].setClock(0)
	c.ineligible("n1", "n2", "")
	c.owned("n1", "n2", "n3")
	c.create("n2", s)
	c.nodes["n4"].setClock(0)
	c.ineligible("n1", "n4", "")
	c.quiet("n1")
	c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
}

// A node that decides nothing although etcd answers releases its shards, and they fire elsewhere.
func TestStall_ANodeThatDecidesNothingGivesItsShardsUp(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8")
	stuck := filepath.Join(t.TempDir(), "stuck")
	c.node("n2").env = []string{stuckFile + "=" + stuck}
	c.start("n1")
	c.start("n2")
	c.owned("n1", "n2")
	c.everySecond("n1", 16, nil)
	if err := os.WriteFile(stuck, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.ineligible("n1", "n2", task.IneligibleStalled)
	c.owned("n1")
	if err := c.client("n2").Ready(t.Context()); err == nil {
		t.Error("it says that it is ready")
	}
	if err := os.Remove(stuck); err != nil {
		t.Fatal(err)
	}
	c.quiet("n1")
	c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
}
