package daemon_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// A namespace that is tightened stops the tasks that it contains: their runs end without a start, and say why. When it
// is loosened again they run as before.
//
// Verifies: G29
func TestNamespace_LimitsTasksThatExist(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "2")
	c.start("n1")
	cl := c.client("n1")

	s := spec("hourly", "true")
	c.create("n1", s)

	ends := func(state task.State, reason string) (r task.Run) {
		t.Helper()
		id := c.trigger("n1", "hourly").ID
		eventually(t, func() (err error) {
			if r, err = cl.Runs.Get(t.Context(), "default", "hourly", id); err != nil {
				return err
			}
			if r.State != state || r.Reason != reason {
				return fmt.Errorf("%s: %s %s", r.State, r.Reason, r.Message)
			}
			return nil
		})

		return r
	}
	ends(task.Succeeded, "")

	n, err := cl.Namespaces.Get(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	open := n

	n.Shell = false
	if _, err := cl.Namespaces.Put(t.Context(), n, client.Writing{}); err != nil {
		t.Fatal(err)
	}

	const says = "namespace default no longer allows shell actions"
	if r := ends(task.Failed, task.ReasonNamespace); r.Message != says || r.Node != "" {
		t.Errorf("on %q: %s", r.Node, r.Message)
	}

	if a, err := cl.Tasks.Why(t.Context(), "default", "hourly", client.WhyQuestion{}); err != nil || !strings.Contains(a.Sentence, says) {
		t.Errorf("%s, %v", a.Sentence, err)
	}

	if _, err := cl.Namespaces.Put(t.Context(), open, client.Writing{}); err != nil {
		t.Fatal(err)
	}

	ends(task.Succeeded, "")
	c.quiet("n1")
	c.judge(check.Options{})
}

// A host that gives itself a label does not receive the runs of a namespace that is restricted to nodes with that label.
//
// Verifies: G29
func TestNodeLimit_KeepsRunsFromANodeWithAForgedLabel(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "2")
	n1 := c.start("n1", "--label", "team=vault")
	cl := c.client("n1")
	ctx := t.Context()

	n, err := cl.Namespaces.Get(ctx, "default")
	if err != nil {
		t.Fatal(err)
	}
	n.Nodes = "team = vault"
	if _, err := cl.Namespaces.Put(ctx, n, client.Writing{}); err != nil {
		t.Fatal(err)
	}
	c.create("n1", spec("hourly", "true"))

	state := func(id string, want task.State, reason string) {
		t.Helper()
		eventually(t, func() error {
			r, err := cl.Runs.Get(ctx, "default", "hourly", id)
			if err == nil && (r.State != want || reason != "" && r.Reason != reason) {
				err = fmt.Errorf("%s: %s %s", r.State, r.Reason, r.Message)
			}
			return err
		})
	}
	state(c.trigger("n1", "hourly").ID, task.Succeeded, "")

	if _, err := cl.NodeLimits.Put(ctx, task.NodeLimit{Name: "n*", Labels: []string{"team=web"}}, client.Writing{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if log := n1.logs.String(); !strings.Contains(log, "labels of this node do not count") {
			return errors.New("the node has not warned about its labels")
		}
		return nil
	})

	waiting := c.trigger("n1", "hourly").ID
	state(waiting, task.Queued, task.ReasonNoNode)

	// The run starts as soon as the node may have the label.
	if _, err := cl.NodeLimits.Put(ctx, task.NodeLimit{Name: "n1", Labels: []string{"team=*"}}, client.Writing{}); err != nil {
		t.Fatal(err)
	}
	state(waiting, task.Succeeded, "")

	c.quiet("n1")
	c.judge(check.Options{})
}
