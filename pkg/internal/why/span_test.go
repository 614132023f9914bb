package why_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

func lines(a task.Answer) string {
	var b strings.Builder
	for _, s := range a.Stretches {
		fmt.Fprintf(&b, "%d %s %s\n", s.Count, s.Verdict, s.Reason)
	}
	return b.String()
}

func TestFor_RangeHasALineForEachStretch(t *testing.T) {
	w := nightly().run("00:30:00", task.Succeeded, nil).run("01:30:00", task.Succeeded, nil).
		run("02:30:00", task.Skipped, func(r *task.Run) { r.Reason, r.Count, r.Last = task.ReasonOverlap, 3, task.At(at("04:30:00")) }).
		run("05:30:00", task.Failed, func(r *task.Run) { r.Reason, r.ExitCode = task.ReasonExit, code(1) }).
		run("05:45:00", task.Succeeded, func(r *task.Run) { r.Trigger = task.TriggerManual }).
		change("06:00:00", "bob", func(s *task.Spec) { s.Paused = true }).
		change("09:00:00", "ann", func(s *task.Spec) { s.Paused = false }).
		run("09:30:00", task.Succeeded, nil).run("10:30:00", task.Succeeded, nil).run("11:30:00", task.Running, nil)

	a := w.ask(t, "00:00 … 14:00")
	want := `2 succeeded 
3 skipped overlap
1 failed exit_code
3 paused 
2 succeeded 
1 running 
2 will_run 
1 succeeded manual
`
	if got := lines(a); got != want {
		t.Errorf("the stretches are\n%s, not\n%s", got, want)
	}

	if a.Verdict != task.VerdictRange || a.Counts[task.VerdictSucceeded] != 4 || a.Counts[task.VerdictPaused] != 3 {
		t.Errorf("%s, %v", a.Verdict, a.Counts)
	}

	says := "14 ticks from Tue 10 Mar 2026 00:00 UTC to Tue 10 Mar 2026 14:00 UTC: 4 succeeded, 1 failed, 3 were skipped, 1 is running, 3 did not exist because the task was paused, 2 will run if nothing changes."
	if a.Sentence != says {
		t.Errorf("it says\n%s, not\n%s", a.Sentence, says)
	}

	if s := a.Stretches[1].Sentence; s != "3 ticks from Tue 10 Mar 2026 02:30 UTC to Tue 10 Mar 2026 04:30 UTC were skipped: another run of the task was active or waiting." {
		t.Error(s)
	}
}

// A date means the whole day, in the requested zone.
func TestFor_ADateIsItsDay(t *testing.T) {
	a := nightly().all().ask(t, "2026-03-10")
	if a.Verdict != task.VerdictRange || a.Counts[task.VerdictSucceeded] != 12 || a.Counts[task.VerdictWillRun] != 12 {
		t.Errorf("%s %v", a.Verdict, a.Counts)
	}

	b := berlin("30 2 * * *", "run-after", "both").askIn(t, "2026-10-25", "Europe/Berlin")
	if day := b.Asked.Times; day[1].Sub(day[0].Time).Round(time.Hour) != 25*time.Hour {
		t.Errorf("the day on which clocks go back lasts from %s to %s", day[0], day[1])
	}
}

// The answer about a range says the same of each tick as an answer about that tick alone.
func TestFor_RangeAgreesWithItsTicks(t *testing.T) {
	w := nightly().all().change("03:10:00", "bob", func(s *task.Spec) { s.Schedule = task.Schedules{"*/20 * * * *"} }).
		change("04:50:00", "bob", func(s *task.Spec) { s.Paused = true }).
		change("06:15:00", "bob", func(s *task.Spec) { s.Paused, s.Schedule = false, task.Schedules{"30 * * * *"} })

	w.Watermark.Time = at("09:45:00")
	w.Runs = w.Runs[:8]
	w.Entry.Own = &task.Own{Runs: 3, Pauses: []task.Pause{
		{Since: task.At(at("03:20:00")), Until: task.At(at("03:45:00"))}, {Since: task.At(at("08:00:00")), Ended: task.At(at("08:31:00")), By: task.NewActor("ann")}}}
	w.Freezes = &task.Freezes{Holding: []task.Freeze{{Since: task.At(at("11:45:00"))}}}
	w.Entry.MaxRuns = 5
	whole := w.ask(t, "2026-03-09 22:00 … 23:59")

	counts := map[task.Verdict]int64{}
	for tick := time.Date(2026, 3, 9, 22, 0, 0, 0, time.UTC); !tick.After(at("23:59:00")); tick = tick.Add(time.Minute) {
		one := why.For(w.Facts, why.Question{At: why.Instant(tick), Timezone: "UTC"})
		if one.Tick != nil || one.Verdict == task.VerdictPaused {
			counts[one.Verdict]++
		}
	}

	if fmt.Sprint(counts) != fmt.Sprint(whole.Counts) {
		t.Errorf("tick by tick: %v\nthe range:    %v\n%s", counts, whole.Counts, lines(whole))
	}
}

// A range of years is counted without visiting each tick.
func TestFor_RangeOfYearsOfSeconds(t *testing.T) {
	w := nightly()
	w.Task.Schedule, w.Entry.Schedule = task.Schedules{"* * * * * *"}, task.Schedules{"* * * * * *"}

	a := w.ask(t, "2026-03-10 12:00:01 … 2036-03-10 12:00:00")
	if n := a.Counts[task.VerdictWillRun]; n != 10*365*86400+3*86400 {
		t.Errorf("%d ticks", n)
	}
}

func TestFor_RangesWithoutTicks(t *testing.T) {
	if a := nightly().all().ask(t, "02:31 … 02:59"); a.Verdict != task.VerdictRange || !strings.HasPrefix(a.Sentence, "There is no tick from") {
		t.Errorf("%s: %s", a.Verdict, a.Sentence)
	}

	if a := nightly().all().ask(t, "2026-03-08 … 2026-03-09"); !strings.Contains(a.Sentence, "the task was created on Tue 10 Mar 2026 00:00 UTC") {
		t.Error(a.Sentence)
	}

	gone := &world{why.Facts{Namespace: "default", Name: "job", Now: at("12:00:00"), Deleted: &task.Deletion{At: task.At(at("08:00:00")), By: task.NewActor("bob")}}}
	if a := gone.ask(t, "00:00 … 12:00"); a.Verdict != task.VerdictNoTask || a.Deleted == nil {
		t.Errorf("%s: %s", a.Verdict, a.Sentence)
	}
}

// Without a time, the answer is about the latest tick or a later manual run, and about the next tick.
func TestFor_NothingInParticular(t *testing.T) {
	a := nightly().all().ask(t, "")
	if a.Verdict != task.VerdictSucceeded || !a.Tick.Time.Equal(at("11:30:00")) || len(a.Also) != 1 || !a.Also[0].Tick.Time.Equal(at("12:30:00")) {
		t.Errorf("%+v", a)
	}

	a = nightly().all().run("11:45:00", task.Failed, func(r *task.Run) { r.Trigger, r.ExitCode = task.TriggerManual, code(2) }).ask(t, "")
	if a.Verdict != task.VerdictFailed || a.Tick != nil || !strings.Contains(a.Sentence, "requested on Tue 10 Mar 2026 11:45 UTC") {
		t.Errorf("%+v", a)
	}

	w := nightly()
	w.Now = at("00:10:00")
	if a = w.ask(t, ""); a.Verdict != task.VerdictNoTick || !strings.Contains(a.Sentence, "has had no tick since it was created") || len(a.Also) != 1 {
		t.Errorf("%+v", a)
	}
}

// A tick that jitter has delayed is the next one, although its time has passed.
func TestFor_TheNextTickMayBePutOff(t *testing.T) {
	w := timed(func(s *task.Spec) { s.Jitter = task.Duration(20 * time.Minute) }).run("11:30:00", task.Succeeded, nil)
	w.Now = at("12:35:00")

	a := w.ask(t, "")
	if a.Tick == nil || !a.Tick.Time.Equal(at("11:30:00")) || len(a.Also) != 1 || !a.Also[0].Tick.Time.Equal(at("12:30:00")) {
		t.Errorf("%s\n%+v", a.Sentence, a.Also)
	}
}

// If a range has more outcomes than are read, the rest is not guessed.
func TestFor_RangeWithTooManyOutcomes(t *testing.T) {
	w := nightly().all()
	w.Runs, w.CutAt, w.Newer = w.Runs[:8], at("07:30:00"), 4
	w.Unread = []why.Period{{From: at("07:31:00"), To: at("12:00:00")}}
	if got, want := lines(w.ask(t, "00:00 … 12:00")), "8 succeeded \n4 forgotten \n"; got != want {
		t.Errorf("%s, not %s", got, want)
	}

	if a := w.ask(t, "00:00 … 12:00"); len(a.Unknown) != 1 || !strings.Contains(a.Unknown[0], "was not read, because the task has too many records") {
		t.Error(a.Unknown)
	}
}
