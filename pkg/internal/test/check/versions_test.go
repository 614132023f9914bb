package check

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// ignorant moves a shard's watermark to the current time, as an owner does that sees no task with a due tick.
func (s *sim) ignorant(shard int) {
	w := s.marks[shard]
	w.Time = s.time()
	s.commit(shard, w)
}

func wantOnly(t *testing.T, r Report, promises ...string) {
	t.Helper()
	var got []string
	for _, v := range r.Violations {
		got = append(got, v.Promise)
	}

	slices.Sort(got)

	if !slices.Equal(slices.Compact(got), promises) {
		t.Errorf("want the violations %v:\n%s", promises, r)
	}
}

// An owner that has not seen a new schedule must not move its watermark past ticks which only that schedule has.
func TestCheck_DoesNotExcuseTicksThatTheOwnerHasNotHeardOf(t *testing.T) {
	s := newSim(t, 1, "a", "b")
	one := s.create("one", 0, 5, nil)
	s.pass(1)
	s.round(0)
	s.update(one, true, func() { one.schedule(1) })
	s.pass(2)
	s.ignorant(0)
	wantOnly(t, s.check(Options{}), "G4")
}

// An edit that may give a task new ticks must write the shard's revised key.
func TestCheck_WantsToBeToldOfNewTicks(t *testing.T) {
	for name, change := range map[string]func(*simTask){
		"another schedule": func(one *simTask) { one.schedule(7) },
		"resumed":          func(one *simTask) { one.entry.Paused = false },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 1, "a")
			one := s.create("one", 0, 5, nil)

			if name == "resumed" {
				s.pause(one)
			}

			one.entry.From = s.time()
			change(one)
			one.entry.Generation++
			s.write(one)
			wantOnly(t, s.check(Options{}), "G4")
		})
	}
}

// Ticks that both schedules have must be decided whether or not the owner has seen the edit.
func TestCheck_DoesNotExcuseTicksOfBothSchedules(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, nil)
	s.round(0)
	s.update(one, true, func() { one.schedule(2) })
	s.pass(2)
	s.ignorant(0)
	wantOnly(t, s.check(Options{}), "G4")
}

// The ticks of a task that was created behind the watermark are decided when the task is covered, and not before.
func TestCheck_WaitsUntilATaskIsCovered(t *testing.T) {
	s := newSim(t, 1, "a")
	s.create("one", 0, 1, nil)
	s.pass(3)
	s.ignorant(0) // seen does not cover the task
	wantOnly(t, s.check(Options{}))
	wantOnly(t, s.check(Options{Until: time.UnixMilli(s.now)}), "G16")
	s.round(0)
	wantOnly(t, s.check(Options{Until: time.UnixMilli(s.now)}))
	s.pass(1)
	s.ignorant(0)
	wantOnly(t, s.check(Options{}), "G4")
}

// Decisions that do not fit into one commit are split by task name, or committed in pieces.
func TestCheck_PassesSplitCommits(t *testing.T) {
	s := newSim(t, 1, "a")
	one, two := s.create("one", 0, 1, nil), s.create("two", 0, 1, nil)
	s.round(0)
	s.pass(1)
	w := s.marks[0]
	w.Time, w.Last = s.time(), one.ref.String()
	s.commit(0, w, s.decide(one, s.due(one))...)
	wantOnly(t, s.check(Options{}))
	wantOnly(t, s.check(Options{Until: time.UnixMilli(s.now)}), "G16") // the tick of task two is not decided yet
	half := len(s.events)
	w.Last = ""
	s.commit(0, w, s.decide(two, []int64{s.now})...)
	wantOnly(t, s.check(Options{Until: time.UnixMilli(s.now)}))
	s.drop(half) // the decision of two
	wantOnly(t, s.check(Options{}), "G4")

	s = newSim(t, 1, "a")
	one = s.create("one", 0, 1, nil)
	s.round(0)
	s.pass(6)

	ticks := s.due(one)
	for _, piece := range [][]int64{ticks[:3], ticks[3:]} {
		one.entry.From = task.At(time.UnixMilli(piece[2]))
		s.commit(0, s.marks[0], append(s.decide(one, piece), op{s.keys.Entry(one.ref), one.entry})...)
	}

	s.round(0)
	wantOnly(t, s.check(Options{Until: time.UnixMilli(s.now)}))
	s.drop(s.find(t, 0, with("missed")))
	wantOnly(t, s.check(Options{}), "G4")
}

// Group commit puts independent transactions into one revision.
func TestCheck_PassesManyTransactionsInOneRevision(t *testing.T) {
	s := newSim(t, 2, "a", "b")
	one, two := s.create("one", 0, 1, nil), s.create("two", 0, 1, nil)
	three := s.create("three", 1, 1, nil)
	s.pass(1)
	from := len(s.events)
	s.round(0)
	s.round(1)
	merge(s.events[from:])

	for _, t := range s.tasks {
		t.active.create = s.events[from].Revision
	}

	s.pass(1)
	from = len(s.events)
	s.finish(one, task.Succeeded)
	s.finish(three, task.Failed)
	s.ignorant(1) // task three waits, so its next tick is not considered
	s.manual(two)
	merge(s.events[from:])
	wantOnly(t, s.check(Options{}), "G4")
	s.drop(len(s.events) - 2) // the watermark that has passed the tick
	wantOnly(t, s.check(Options{}))
	wantOnly(t, s.check(Options{Ended: true}), "G16")
}

// merge gives events the revision of the first one.
func merge(events []Event) {
	rev := events[0].Revision

	for i := range events {
		if events[i].CreateRevision == events[i].Revision {
			events[i].CreateRevision = rev
		}
		events[i].Revision, events[i].ModRevision = rev, rev
	}
}

func TestReport_SaysWhatItFound(t *testing.T) {
	s, _ := story(t)
	s.drop(s.find(t, 0, with("skipped")))
	s.create("late", 0, 1, func(e *task.Entry) { e.Schedule, e.Timezone = task.Schedules{"0 3 * * *"}, "Europe/Berlin" })

	r := s.check(Options{})
	if err := r.Err(); err == nil || r.OK() {
		t.Error("a report with a violation has no error")
	}

	for _, want := range []string{
		"tasks 3, ticks ", "without an outcome 1\n", "skipped ", "overlap ", "came_to_light_late", "tick to decision: p50 0s",
		"1 violation\n", "G4 at revision ", "task default/one", "computed by package schedule",
	} {
		if !strings.Contains(r.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, r)
		}
	}
}

// BenchmarkCheck judges two minutes of 300 tasks that have a tick every second.
func BenchmarkCheck(b *testing.B) {
	s := newSim(b, 64, "a", "b", "c")

	for i := range 300 {
		s.create("task-"+string(rune('a'+i/26))+string(rune('a'+i%26)), i%64, 1, nil)
	}

	for range 120 {
		s.pass(1)

		for id := range 64 {
			s.round(id)
		}

		for _, t := range s.tasks {
			s.finish(t, task.Succeeded)
		}
	}

	b.ResetTimer()

	for b.Loop() {
		if r := s.check(Options{Until: time.UnixMilli(s.now), Ended: true}); !r.OK() || r.Summary.Ticks != 36_000 {
			b.Fatal(r)
		}
	}

	b.ReportMetric(float64(len(s.events)), "events/op")
}
