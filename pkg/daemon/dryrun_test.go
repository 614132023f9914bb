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

// The ticks that a dry run reports are those that a real daemon then decides, for ticks that are added, removed or
// moved, for an end, and for a pause that ends.
//
// Verifies: G43
func TestDryRun_TellsWhatADaemonThenDecides(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "4")
	c.start("n1")
	cl := c.client("n1")
	edits := map[string]func(*task.Spec, time.Time){
		"thins": func(s *task.Spec, _ time.Time) { s.Schedule = task.Schedules{"*/2 * * * * *"} },
		"moves": func(s *task.Spec, _ time.Time) { s.Jitter = task.Duration(900 * time.Millisecond) },
		"ends":  func(s *task.Spec, now time.Time) { s.End = task.At(now.Add(5 * time.Second)) },
		"naps":  func(s *task.Spec, now time.Time) { s.Paused, s.PausedUntil = true, task.At(now.Add(5*time.Second)) },
		// The task is paused before the edit, because otherwise the number of its runs by then would depend on the
		// machine.
		"counts": func(s *task.Spec, now time.Time) { s.Paused, s.MaxRuns, s.Start = false, 3, task.At(now.Add(edited)) },
		"same":   func(s *task.Spec, _ time.Time) { s.Timeout = task.Duration(time.Minute) },
	}
	create := func(name string) {
		s := spec(name, "")
		s.Paused = name == "counts"
		s.Schedule, s.Action, s.Overlap, s.History.Keep = task.Schedules{"* * * * * *"}, task.Action{Noop: &task.Noop{}}, task.OverlapAllow, 1000
		c.create("n1", s)
	}
	for _, name := range slices.Sorted(maps.Keys(edits)) {
		create(name)
	}
	var all []told
	for name, edit := range edits { // first all dry runs and writes, so that their ticks pass at the same time
		var now time.Time
		var was, would client.Task

		// On a busy machine, too much time may pass between the dry run and the write. Then another task with
		// another name is tried.
		eventually(t, func() (err error) {
			now = time.Now()
			if was, err = cl.Tasks.Get(t.Context(), "default", name); err != nil {
				return err
			}
			next := was.Spec
			edit(&next, now)
			if would, err = cl.Tasks.Apply(t.Context(), next, client.ApplyOptions{DryRun: true}); err != nil {
				return err
			}

			_, err = cl.Tasks.Apply(t.Context(), next, client.ApplyOptions{Revision: was.Revision})
			took := time.Since(now)
			if err == nil && took < edited-time.Second {
				return nil
			}

			if err := cl.Tasks.Delete(t.Context(), "default", name, 0); err != nil {
				t.Fatal(err)
			}
			create(name)
			return fmt.Errorf("the dry run of %s reported a change, which was made %s later (%v)", name, took, err)
		})
		all = append(all, whatWasTold(name, now, was.Paused, would.DryRun.Ticks))
	}
	for _, d := range all {
		passes(t, d.to.Add(time.Second))
		eventually(t, func() error { return d.decided(t, cl) })
	}
}

// told contains the ticks of a task between two instants, with the time when each is due, as a dry run reported
// them.
type told struct {
	name     string
	from, to time.Time
	ticks    map[time.Time]time.Time
}

// edited is the time after a dry run within which the edit must be written, and a second more.
const edited = 4 * time.Second

// whatWasTold creates a task that ticks every second, or is paused, and returns what a dry run at now reports for
// a change of it.
func whatWasTold(name string, now time.Time, paused bool, change *client.TickChange) told {
	// One second is for the write. The dry run reports ten ticks.
	d := told{name: name, from: time.Now().Add(time.Second).Truncate(time.Second), to: now.Add(8 * time.Second).Truncate(time.Second), ticks: map[time.Time]time.Time{}}
	for at := now.Truncate(time.Second).Add(time.Second); !paused && !at.After(d.to); at = at.Add(time.Second) {
		d.ticks[at.UTC()] = at.UTC()
	}
	for _, m := range change.Ticks {
		if m.Was != nil {
			delete(d.ticks, m.Was.Time.Time)
		}
	}
	for _, m := range change.Ticks {
		if m.Is != nil {
			d.ticks[m.Is.Time.Time] = m.Is.Time.Time
			if !m.Is.DueAt.IsZero() {
				d.ticks[m.Is.Time.Time] = m.Is.DueAt.Time
			}
		}
	}
	maps.DeleteFunc(d.ticks, func(at, _ time.Time) bool { return !at.After(d.from) || at.After(d.to) })
	return d
}

// decided returns an error unless the daemon has decided exactly the reported ticks, none of them before it was
// due.
func (to told) decided(t *testing.T, cl *client.Client) error {
	runs, err := cl.Runs.ListByTask(t.Context(), "default", to.name, client.RunListOptions{})
	if err != nil {
		return err
	}
	got := map[time.Time]bool{}
	for _, r := range runs {
		if at := r.ScheduledTime.Time; at.After(to.from) && !at.After(to.to) {
			got[at] = true
			if due, ok := to.ticks[at]; ok && r.CreatedAt.Before(due) {
				t.Errorf("%s: the tick of %s fell due at %s, and was decided at %s", to.name, at, due, r.CreatedAt)
			}
		}
	}
	ticks := slices.SortedFunc(maps.Keys(got), time.Time.Compare)
	if told := slices.SortedFunc(maps.Keys(to.ticks), time.Time.Compare); !slices.EqualFunc(ticks, told, time.Time.Equal) {
		return fmt.Errorf("%s, from %s to %s: decided %v, predicted %v", to.name, to.from, to.to, ticks, told)
	}
	return nil
}
