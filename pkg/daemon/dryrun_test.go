package daemon_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The ticks that a dry run tells are those that a real daemon then decides: of each
// second, of seconds that go, come and move, of an end, of a pause that ends.
func TestDryRun_TellsWhatADaemonThenDecides(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "4")
	c.start("n1")
	cl := c.client("n1")
	edits := map[string]func(*task.Spec, time.Time){
		"thins":  func(s *task.Spec, _ time.Time) { s.Schedule = task.Schedules{"*/2 * * * * *"} },
		"moves":  func(s *task.Spec, _ time.Time) { s.Jitter = task.Duration(900 * time.Millisecond) },
		"ends":   func(s *task.Spec, now time.Time) { s.End = task.At(now.Add(4 * time.Second)) },
		"naps":   func(s *task.Spec, now time.Time) { s.Paused, s.PausedUntil = true, task.At(now.Add(4*time.Second)) },
		"counts": func(s *task.Spec, _ time.Time) { s.MaxRuns = 3 },
		"same":   func(s *task.Spec, _ time.Time) { s.Timeout = task.Duration(time.Minute) },
	}
	for _, name := range slices.Sorted(maps.Keys(edits)) {
		s := spec(name, "")
		s.Schedule, s.Action, s.Overlap, s.History.Keep = task.Schedules{"* * * * * *"}, task.Action{Noop: &task.Noop{}}, task.OverlapAllow, 1000
		c.create("n1", s)
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.ticked(t, cl, name)
			now := time.Now()
			was, err := cl.Get(t.Context(), "default", name)
			if err != nil {
				t.Fatal(err)
			}
			next := was.Spec
			edit(&next, now)
			would, err := cl.Apply(t.Context(), next, client.ApplyOptions{DryRun: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cl.Apply(t.Context(), next, client.ApplyOptions{Revision: was.Revision}); err != nil {
				t.Fatal(err)
			}
			// A second for the write to take; of what is told the list has ten ticks.
			from, to := time.Now().Add(time.Second).Truncate(time.Second), now.Add(8*time.Second).Truncate(time.Second)
			want := map[time.Time]time.Time{}
			for at := now.Truncate(time.Second).Add(time.Second); !at.After(to); at = at.Add(time.Second) {
				want[at.UTC()] = at.UTC()
			}
			for _, m := range would.DryRun.Ticks.Ticks {
				if m.Was != nil {
					delete(want, m.Was.Time.Time)
				}
			}
			for _, m := range would.DryRun.Ticks.Ticks {
				if m.Is != nil {
					want[m.Is.Time.Time] = m.Is.Time.Time
					if !m.Is.DueAt.IsZero() {
						want[m.Is.Time.Time] = m.Is.DueAt.Time
					}
				}
			}
			maps.DeleteFunc(want, func(at, _ time.Time) bool { return !at.After(from) || at.After(to) })
			passes(t, to.Add(time.Second))
			eventually(t, 20*time.Second, func() error { return c.decided(t, cl, name, from, to, want) })
		})
	}
}

// ticked waits until a task has run.
func (c *cluster) ticked(t *testing.T, cl *client.Client, name string) {
	t.Helper()
	eventually(t, 20*time.Second, func() error {
		runs, err := cl.Runs(t.Context(), "default", name, client.RunFilter{})
		if err == nil && len(runs) == 0 {
			err = fmt.Errorf("%s has not run", name)
		}
		return err
	})
}

// decided is an error unless the ticks of a task between two instants are these, none
// of them before it fell due.
func (c *cluster) decided(t *testing.T, cl *client.Client, name string, from, to time.Time, want map[time.Time]time.Time) error {
	runs, err := cl.Runs(t.Context(), "default", name, client.RunFilter{})
	if err != nil {
		return err
	}
	got := map[time.Time]bool{}
	for _, r := range runs {
		if at := r.ScheduledTime.Time; at.After(from) && !at.After(to) {
			got[at] = true
			if due, ok := want[at]; ok && r.CreatedAt.Before(due) {
				t.Errorf("%s: the tick of %s fell due at %s, and was decided at %s", name, at, due, r.CreatedAt)
			}
		}
	}
	ticks := slices.SortedFunc(maps.Keys(got), time.Time.Compare)
	if told := slices.SortedFunc(maps.Keys(want), time.Time.Compare); !slices.EqualFunc(ticks, told, time.Time.Equal) {
		return fmt.Errorf("%s, from %s to %s: decided %v, told %v", name, from, to, ticks, told)
	}
	return nil
}
