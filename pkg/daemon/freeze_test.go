package daemon_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// While the cluster is frozen, nodes leave and join. Nothing starts, every tick is skipped and recorded, and
// everything continues afterwards.
func TestFreeze_HoldsWhileNodesComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", "2s")
	c.start("n1")
	c.start("n2")
	c.owned("n1", "n2")
	c.everySecond("n1", 20, nil)
	cl := c.client("n1")
	asked := task.Defaults()
	asked.Name, asked.Schedule, asked.Action.Noop = "asked", task.Schedules{"@manual"}, &task.Noop{}
	if _, err := cl.Tasks.Create(t.Context(), asked.Namespace, asked); err != nil {
		t.Fatal(err)
	}
	ran := func(after time.Time) error {
		runs, err := cl.Runs.List(t.Context(), client.RunListOptions{State: task.Succeeded, Limit: 1})
		if err == nil && (len(runs) == 0 || !runs[0].StartedAt.After(after)) {
			err = fmt.Errorf("nothing has run since %s", after)
		}
		return err
	}
	eventually(t, func() error { return ran(time.Time{}) })

	var st client.FreezeStatus
	c.unlessAway(func() (err error) { // repeating the freeze waits for nodes that have not confirmed it
		st, err = cl.Freezes.Begin(t.Context(), "", "a move")
		return err
	})
	holds := time.Now()
	if len(st.Unconfirmed) > 0 || st.Tasks != 21 {
		t.Fatalf("%+v", st)
	}
	waits, err := cl.Tasks.Trigger(t.Context(), "default", "asked", nil)
	if err != nil || waits.Frozen == nil {
		t.Errorf("triggered: %+v, %v", waits, err)
	}
	c.nodes["n2"].signal(syscall.SIGKILL)
	c.owned("n1")
	c.start("n2")
	eventually(t, func() error { // a joining node reads the freeze first
		n, err := cl.Nodes.Get(t.Context(), "n2")
		if err == nil && n.Froze != st.Revision {
			err = fmt.Errorf("n2 goes by the freezes of revision %d, not %d", n.Froze, st.Revision)
		}
		return err
	})
	if r, err := cl.Runs.Get(t.Context(), "default", "asked", waits.ID); err != nil || r.State != task.Queued || r.Reason != task.ReasonManual {
		t.Errorf("what was triggered: %+v, %v", r, err)
	}
	// Ticks that are due by now are recorded while the cluster is still frozen. An owner may be behind.
	due := 20 * (int64(time.Since(holds)/time.Second) - 1)
	eventually(t, func() error {
		runs, err := cl.Runs.List(t.Context(), client.RunListOptions{})
		frozen := int64(0)
		for _, r := range runs {
			if r.Reason == task.ReasonFrozen {
				frozen += r.Ticks()
			}
		}
		if err == nil && frozen < due {
			err = fmt.Errorf("%d ticks are on record as frozen; %d were due at least", frozen, due)
		}
		return err
	})
	ends := time.Now()
	if _, err := cl.Freezes.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		r, err := cl.Runs.Get(t.Context(), "default", "asked", waits.ID)
		if err == nil && r.State != task.Succeeded {
			err = fmt.Errorf("what was triggered is %s", r.State)
		}
		return err
	})
	eventually(t, func() error { return ran(ends) })
	runs, err := cl.Runs.List(t.Context(), client.RunListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.StartedAt.After(holds) && r.StartedAt.Before(ends) {
			t.Errorf("%s of %s started while it was frozen", r.ID, r.Task)
		}
	}
	c.quiet("n1")
	c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
}
