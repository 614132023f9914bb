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
		"thins": func(s *task.Spec, _ time.Time) { s.Schedule = task.Schedules{"*/2 * * * * *"} },
		"moves": func(s *task.Spec, _ time.Time) { s.Jitter = task.Duration(900 * time.Millisecond) },
		"ends":  func(s *task.Spec, now time.Time) { s.End = task.At(now.Add(5 * time.Second)) },
		"naps":  func(s *task.Spec, now time.Time) { s.Paused, s.PausedUntil = true, task.At(now.Add(5*time.Second)) },
		// It is paused before that: how many runs it has had by the edit would depend on the machine.
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
	for name, edit := range edits { // all are told and written first: then their seconds pass together
		var now time.Time
		var was, would client.Task

		// Between what is told and what is done lies little time, as on a busy machine another task of the name
		// gets another try.
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
			return fmt.Errorf("what would become of %s was told, and done %s later (%v)", name, took, err)
		})
		all = append(all, whatWasTold(name, now, was.Paused, would.DryRun.Ticks))
	}
	for _, d := range all {
		passes(t, d.to.Add(time.Second))
		eventually(t, func() error { return d.decided(t, cl) })
	}
}

// told are the ticks of a task after one instant and up to another, each with when it
// falls due, as a dry run told them.
type told struct {
	name     string
	from, to time.Time
	ticks    map[time.Time]time.Time
}

// edited is within which time of a dry run the edit itself is written, and a second more.
const edited = 4 * time.Second

// whatWasTold is a tick each second, or none if the task was paused, with what a dry run at now told of them.
func whatWasTold(name string, now time.Time, paused bool, change *client.TickChange) told {
	// A second for the write to take; of what is told the list has ten ticks.
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

// decided is an error unless the ticks that a daemon decided are those that were told,
// none of them before it fell due.
func (d told) decided(t *testing.T, cl *client.Client) error {
	runs, err := cl.Runs.ListByTask(t.Context(), "default", d.name, client.RunListOptions{})
	if err != nil {
		return err
	}
	got := map[time.Time]bool{}
	for _, r := range runs {
		if at := r.ScheduledTime.Time; at.After(d.from) && !at.After(d.to) {
			got[at] = true
			if due, ok := d.ticks[at]; ok && r.CreatedAt.Before(due) {
				t.Errorf("%s: the tick of %s fell due at %s, and was decided at %s", d.name, at, due, r.CreatedAt)
			}
		}
	}
	ticks := slices.SortedFunc(maps.Keys(got), time.Time.Compare)
	if told := slices.SortedFunc(maps.Keys(d.ticks), time.Time.Compare); !slices.EqualFunc(ticks, told, time.Time.Equal) {
		return fmt.Errorf("%s, from %s to %s: decided %v, told %v", d.name, d.from, d.to, ticks, told)
	}
	return nil
}
