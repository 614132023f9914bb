package daemon_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// ineligible waits until a node announces why it owns no shards.
func (c *cluster) ineligible(ask, node, reason string) {
	c.t.Helper()
	eventually(c.t, func() error {
		n, err := c.client(ask).Nodes.Get(c.t.Context(), node)
		if err == nil && n.Ineligible != reason {
			err = fmt.Errorf("%s is ineligible: %q, not %q", node, n.Ineligible, reason)
		}
		return err
	})
}

// An etcd that is restored from an older snapshot stops all nodes: those that run, one that starts, and one that
// cannot detect it. When an operator accepts the state, they start over with what etcd contains.
func TestHistory_ARestoredEtcdStopsAllUntilAnOperatorAcceptsIt(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "4")
	c.start("n1")
	c.start("n2")
	c.owned("n1", "n2")
	c.create("n1", spec("before", "true"))
	rewind := c.etcd.Keep()
	for _, n := range []string{"n1", "n2"} { // both have detected it again
		c.unlessAway(func() error { _, err := c.client(n).Tasks.Get(t.Context(), "default", "before"); return err })
		c.nodes[n].waitReady()
	}
	c.create("n1", spec("after", "true"))
	c.nodes["n2"].signal(syscall.SIGTERM)
	if _, err := c.client("n1").Nodes.Cordon(t.Context(), "n1"); err != nil { // a change that all nodes watch
		t.Fatal(err)
	}
	if _, err := c.client("n1").Cluster.Recover(t.Context()); !errors.Is(err, task.ErrConflict) {
		t.Errorf("recovers from nothing: %v", err)
	}

	rewind()
	c.launchOnly("n2")
	c.launchOnly("n3")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.ineligible("n1", n, task.IneligibleRestored)
	}
	var e *client.Error
	for _, n := range []string{"n1", "n2", "n3"} {
		if _, err := c.client(n).Tasks.Pause(t.Context(), "default", "before", 0); !errors.As(err, &e) || e.Status != 503 || e.Code != client.CodeRestored {
			t.Errorf("%s: a pause is answered with %v", n, err)
		}
		if err := c.client(n).Ready(t.Context()); err == nil {
			t.Errorf("%s is ready", n)
		}
	}
	if s, err := c.client("n1").Cluster.Status(t.Context()); err != nil || len(s.Warnings) == 0 {
		t.Errorf("the status warns of nothing: %+v, %v", s, err)
	}

	began := time.Now()
	if k, err := c.client("n2").Cluster.Recover(t.Context()); err != nil || int64(k.Epoch) < began.Unix() {
		t.Fatalf("recover: %+v, %v", k, err)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		c.ineligible("n1", n, "")
		c.nodes[n].waitReady()
	}
	c.owned("n1", "n2", "n3")
	c.unlessAway(func() error { _, err := c.client("n3").Tasks.Pause(t.Context(), "default", "before", 0); return err })
	if _, err := c.client("n3").Tasks.Get(t.Context(), "default", "after"); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("what was made after the snapshot: %v", err)
	}
}

// A data directory belongs to one cluster. If etcd has lost all data, no node creates a new cluster by itself.
func TestHistory_ANodeDoesNotMakeAClusterInPlaceOfItsOwn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "4")
	rewind := c.etcd.Keep()
	c.start("n1")
	c.nodes["n1"].signal(syscall.SIGTERM)
	rewind()
	p := c.launchOnly("n1")
	select {
	case <-p.gone:
	case <-time.After(patience):
		t.Fatal("it runs")
	}
	if p.cmd.ProcessState.Success() {
		t.Error("it ended well")
	}
}
