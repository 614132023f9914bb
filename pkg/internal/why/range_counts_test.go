package why_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// endings are how many ticks of a world ended in each state, as the answer about a range must count them.
func (w *world) endings() map[task.Verdict]int64 {
	n := map[task.Verdict]int64{}
	for _, r := range w.Runs {
		if r.Trigger != task.TriggerManual {
			n[task.Verdict(r.State)] += max(r.Count, 1)
		}
	}

	return n
}

// created sets when the task was created.
func (w *world) created(clock string) *world {
	w.Task.CreatedAt, w.Task.UpdatedAt = task.At(at(clock)), task.At(at(clock))
	w.Entry.From, w.Entry.Anchor = w.Task.CreatedAt, w.Task.CreatedAt

	return w
}

// failSome records runs of every minute from first to last. Each third one did not succeed.
func (w *world) failSome(first, last string) *world {
	n := 0
	for tick := at(first); !tick.After(at(last)); tick = tick.Add(time.Minute) {
		clock := tick.Format("15:04:05")
		switch n++; n % 6 {
		case 1:
			w.run(clock, task.Failed, exits(1))
		case 4:
			w.run(clock, task.TimedOut, timesOut)
		default:
			w.run(clock, task.Succeeded, nil)
		}
	}

	return w
}

// Each tick of a range is counted once, whether its outcome is in the history, in the ledger, or in a line of the ledger of
// which only a part belongs to a schedule that is known.
func TestFor_RangeCountsEachTickOnce(t *testing.T) {
	afterCompletion := func(s *task.Spec) { s.Schedule = task.Schedules{"@every 1m after completion"} }
	describe := func(text string) func(*task.Spec) { return func(s *task.Spec) { s.Description = text } }

	for name, c := range map[string]struct {
		build func() *world
		stay  []string // the ticks whose records stay in the history
	}{
		"after completion": {func() *world { return timed(afterCompletion).ran("00:01:00", "11:00:00") }, nil},
		"after completion, with range": {func() *world {
			return timed(afterCompletion).ran("00:01:00", "02:00:00").run("02:01:00", task.Skipped, func(r *task.Run) {
				r.Reason, r.Count, r.Last = task.ReasonFrozen, 60, task.At(at("03:00:00"))
			}).ran("03:01:00", "11:00:00")
		}, []string{"02:01:00"}},
		"after completion, then by the minute": {func() *world {
			w := timed(afterCompletion).ran("00:01:00", "05:30:00")
			return w.change("05:30:30", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"* * * * *"} }).ran("05:31:00", "12:00:00")
		}, nil},
		"the hour of the creation": {func() *world { return perMinute().created("05:05:30").failSome("05:06:00", "12:00:00") }, nil},
		"the hour of the oldest version that is kept": {func() *world {
			w := perMinute().failSome("00:01:00", "12:00:00").change("05:20:10", "bob", describe("x")).change("05:30:10", "bob", describe("y"))
			w.Versions = w.Versions[1:]
			return w
		}, nil},
		"a record in the middle of an hour": {func() *world { return perMinute().failSome("00:01:00", "12:00:00") }, []string{"05:31:00", "07:30:00"}},
		"a pause in the middle of an hour": {func() *world {
			w := perMinute().failSome("00:01:00", "05:20:00").change("05:20:30", "bob", func(s *task.Spec) { s.Paused = true })
			return w.change("05:30:30", "bob", func(s *task.Spec) { s.Paused = false }).failSome("05:31:00", "12:00:00")
		}, nil},
		"a range at the end of an hour": {func() *world {
			return perMinute().failSome("00:01:00", "05:50:00").run("05:51:00", task.Skipped, func(r *task.Run) {
				r.Reason, r.Count, r.Last = task.ReasonFrozen, 20, task.At(at("06:10:00"))
			}).failSome("06:11:00", "12:00:00")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.build()
			want := w.endings()
			stays := slices.DeleteFunc(slices.Clone(w.Runs), func(r task.Run) bool { return !slices.Contains(c.stay, r.ScheduledTime.UTC().Format("15:04:05")) })
			w.Runs = slices.DeleteFunc(w.Runs, func(r task.Run) bool { return slices.Contains(c.stay, r.ScheduledTime.UTC().Format("15:04:05")) })
			w.fold()
			w.Runs = append(w.Runs, stays...)

			a := w.ask(t, "00:00 … 12:00")
			for _, s := range task.States() {
				if v := task.Verdict(s); s.Final() && a.Counts[v] != want[v] {
					t.Errorf("%d %s, not %d", a.Counts[v], s, want[v])
				}
			}

			if t.Failed() {
				t.Errorf("%s\n%s%s", a.Sentence, lines(a), fmt.Sprint(a.Unknown))
			}
		})
	}
}
