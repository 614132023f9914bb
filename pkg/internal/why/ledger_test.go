package why_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

// perMinute is a task that ticks each minute from midnight on, is decided up to noon, and keeps one run.
func perMinute() *world {
	return timed(func(s *task.Spec) { s.Schedule, s.History.Keep = task.Schedules{"* * * * *"}, 1 })
}

// ran records a run of every minute from first to last, inclusive, that has no record yet.
func (w *world) ran(first, last string) *world {
	for tick := at(first); !tick.After(at(last)); tick = tick.Add(time.Minute) {
		if !slices.ContainsFunc(w.Runs, func(r task.Run) bool { return r.ScheduledTime.Equal(tick) }) {
			w.run(tick.Format("15:04:05"), task.Succeeded, nil)
		}
	}
	return w
}

// fold moves all records but the newest to the ledger, as the trimmer does. lost are the ticks whose records are deleted
// without a fold.
func (w *world) fold(lost ...string) *world {
	slices.SortFunc(w.Runs, func(a, b task.Run) int { return a.ScheduledTime.Compare(b.ScheduledTime.Time) })
	n := len(w.Runs) - 1

	var records []ledger.Record
	for _, r := range w.Runs[:n] {
		if !slices.ContainsFunc(lost, func(clock string) bool { return r.ScheduledTime.Equal(at(clock)) }) {
			records = append(records, ledger.Record{Run: r})
		}
	}

	w.Runs = w.Runs[n:]
	next := func(after time.Time) (time.Time, bool) { return after.Truncate(time.Minute).Add(time.Minute), true }

	var values [][]byte
	for _, c := range ledger.Fold(w.Task.UID, nil, records, next) {
		value, err := json.Marshal(c)
		if err != nil {
			panic(err)
		}
		values = append(values, value)
	}

	w.Ledger = ledger.NewBook(w.Task.UID, values)

	return w
}

func exits(n int) func(*task.Run) {
	return func(r *task.Run) { r.Reason, r.ExitCode = task.ReasonExit, code(n) }
}

func timesOut(r *task.Run) { r.Reason = task.ReasonTimeout }

// failingHour is a task that failed or exceeded its timeout at every third tick from 05:01 to 05:58.
func failingHour() *world {
	w := perMinute()
	for m := 1; m < 60; m += 3 {
		clock := at("05:00:00").Add(time.Duration(m) * time.Minute).Format("15:04:05")
		if m%2 == 0 {
			w.run(clock, task.TimedOut, timesOut)
		} else {
			w.run(clock, task.Failed, exits(1))
		}
	}
	return w.ran("00:01:00", "12:00:00")
}

var ledgerStories = []story{
	{"a success of a span", func() *world { return perMinute().ran("00:01:00", "12:00:00").fold() }, "02:30", task.VerdictSucceeded,
		[]string{"The tick of Tue 10 Mar 2026 02:30 UTC succeeded; further details are no longer kept (of 719 ticks that succeeded from Tue 10 Mar 2026 00:01 UTC to Tue 10 Mar 2026 11:59 UTC, the longest took 2.99s)."}},
	{"the history wins", func() *world { return perMinute().ran("00:01:00", "12:00:00").fold() }, "12:00", task.VerdictSucceeded, []string{"ran on n1 and succeeded after 2.99s"}},
	{"a success beside an exception", func() *world {
		return perMinute().run("02:31:00", task.Failed, exits(3)).ran("00:01:00", "12:00:00").fold()
	}, "02:30", task.VerdictSucceeded, []string{"of 718 ticks that succeeded"}},
	{"an exception", func() *world {
		return perMinute().run("02:31:00", task.Failed, exits(3)).ran("00:01:00", "12:00:00").fold()
	}, "02:31", task.VerdictFailed, []string{"The tick of Tue 10 Mar 2026 02:31 UTC ran on n1 and failed with exit code 3; further details are no longer kept.", "Ledger: failed (exit 3)", "Run: 20260310T023100.000Z-uuuu"}},
	{"a record is missing", func() *world { return perMinute().ran("00:01:00", "12:00:00").fold("02:29:00") }, "02:29", task.VerdictForgotten,
		[]string{"Not on record: the outcome in the ledger of the task: it does not have the tick"}},
	{"beside a missing record", func() *world {
		w := perMinute().ran("00:01:00", "12:00:00").fold("02:29:00")
		w.Ledger.Lines = mergeSpans(w.Ledger.Lines)
		return w
	}, "02:30", task.VerdictForgotten, []string{"The tick of Tue 10 Mar 2026 02:30 UTC was decided; whether it succeeded is no longer on record: of 719 ticks, 718 succeeded."}},
	{"the end of a span with a missing record", func() *world {
		w := perMinute().ran("00:01:00", "12:00:00").fold("02:29:00")
		w.Ledger.Lines = mergeSpans(w.Ledger.Lines)
		return w
	}, "11:59", task.VerdictSucceeded, []string{"of 718 ticks that succeeded"}},
	{"beside a run that has not ended", func() *world {
		w := perMinute().run("02:29:00", task.Running, nil).ran("00:01:00", "12:00:00").fold("02:29:00")
		w.Ledger.Lines = mergeSpans(w.Ledger.Lines)
		return w.run("02:29:00", task.Running, nil)
	}, "02:30", task.VerdictSucceeded, []string{"of 718 ticks that succeeded"}},
	{"named by its hour", func() *world { return failingHour().fold() }, "05:04", task.VerdictForgotten,
		[]string{"The tick of Tue 10 Mar 2026 05:04 UTC did not succeed; how it ended is no longer on record: in its hour, 20 did not succeed (10 failed: exit 1, 10 timed out)."}},
	{"perhaps counted by its hour", func() *world { return failingHour().fold() }, "05:50", task.VerdictForgotten,
		[]string{"whether it succeeded is no longer on record: in that hour, of 60 ticks, 20 did not succeed (10 failed: exit 1, 10 timed out)."}},
	{"in an hour that is also in the history", func() *world {
		return failingHour().fold().run("05:59:00", task.Failed, exits(1)).run("05:57:00", task.Failed, exits(4))
	}, "05:50", task.VerdictForgotten, []string{"of 60 ticks, 22 did not succeed (11 failed: exit 1, 10 timed out, 1 failed: exit 4)."}},
	{"in an hour of which the history was not read to its end", func() *world {
		w := failingHour().fold().run("05:57:00", task.Failed, exits(4))
		w.Runs = slices.DeleteFunc(w.Runs, func(r task.Run) bool { return r.ScheduledTime.After(at("06:00:00")) })
		w.Newer = 3
		return w
	}, "05:50", task.VerdictForgotten, []string{"of 60 ticks, at least 21 did not succeed (10 failed: exit 1, 10 timed out, 1 failed: exit 4)."}},
	{"beside a version that is no longer kept", func() *world {
		w := perMinute().ran("00:01:00", "12:00:00").fold("02:29:00")
		w.Ledger.Lines = mergeSpans(w.Ledger.Lines)
		w.change("01:00:30", "bob", func(s *task.Spec) { s.Description = "new" })
		w.Versions = nil
		return w
	}, "02:30", task.VerdictForgotten, []string{"whether it succeeded is no longer on record: in the time around it, 718 succeeded."}},
	{"in a failing hour, before the ticks that are only counted", func() *world { return failingHour().fold() }, "05:03", task.VerdictSucceeded, []string{"succeeded; further details"}},
	{"an hour without a success", func() *world {
		w := perMinute()
		for m := range 60 {
			w.run(at("05:00:00").Add(time.Duration(m)*time.Minute).Format("15:04:05"), task.Failed, exits(1))
		}
		return w.ran("00:01:00", "12:00:00").fold()
	}, "05:50", task.VerdictFailed, []string{"failed with exit code 1; further details are no longer kept", "Ledger: in the hour from Tue 10 Mar 2026 05:00 UTC, 59 did not succeed (59 failed: exit 1)"}},
	{"a skipped range", func() *world {
		w := perMinute().ran("00:01:00", "02:29:00").run("02:30:00", task.Skipped, func(r *task.Run) {
			r.Reason, r.Count, r.Last = task.ReasonOverlap, 90, task.At(at("03:59:00"))
		})
		return w.ran("04:00:00", "12:00:00").fold()
	}, "03:00", task.VerdictSkipped, []string{"was skipped, one of 90 ticks from", "another run of the task was active"}},
	{"before the ledger", func() *world {
		w := perMinute().ran("06:00:00", "12:00:00")
		return w.counts(ledger.Chunk{UID: w.Task.UID, From: task.At(at("05:00:00")), Gone: task.At(at("05:59:00"))})
	}, "02:30", task.VerdictForgotten,
		[]string{"Not on record: the outcome in the ledger of the task: history and ledger are complete only since 2026-03-10 05:59:01 UTC"}},
	{"in a pause", func() *world {
		w := perMinute().ran("00:01:00", "02:00:00").change("02:00:30", "bob", func(s *task.Spec) { s.Paused = true })
		return w.change("03:00:30", "bob", func(s *task.Spec) { s.Paused = false }).ran("03:01:00", "12:00:00").fold()
	}, "02:30", task.VerdictPaused, []string{"the task was paused"}},
	{"after a pause", func() *world {
		w := perMinute().ran("00:01:00", "02:00:00").change("02:00:30", "bob", func(s *task.Spec) { s.Paused = true })
		return w.change("03:00:30", "bob", func(s *task.Spec) { s.Paused = false }).ran("03:01:00", "12:00:00").fold()
	}, "04:00", task.VerdictSucceeded, []string{"succeeded"}},
	{"a requested run", func() *world {
		w := perMinute().run("02:30:20", task.Failed, func(r *task.Run) {
			exits(2)(r)
			r.ID, r.Trigger = task.ManualRunID(r.ScheduledTime.Time, r.UID), task.TriggerManual
		})
		return w.ran("00:01:00", "12:00:00").fold()
	}, "02:30:20", task.VerdictFailed, []string{"The run that was requested on Tue 10 Mar 2026 02:30:20 UTC ran on n1 and failed with exit code 2; further details are no longer kept."}},
	{"of a version that is no longer kept", func() *world {
		w := perMinute().ran("00:01:00", "12:00:00").change("11:00:10", "bob", func(s *task.Spec) { s.Description = "x" }).change("11:00:20", "bob", func(s *task.Spec) { s.Description = "y" }).fold()
		w.Versions = w.Versions[1:]
		return w
	}, "02:30", task.VerdictForgotten, []string{"The schedule on Tue 10 Mar 2026 02:30 UTC is no longer on record; 719 runs from Tue 10 Mar 2026 00:01 UTC to Tue 10 Mar 2026 11:59 UTC succeeded."}},
	{"after completion", func() *world {
		w := perMinute().ran("00:01:00", "12:00:00").fold()
		w.Task.Schedule, w.Entry.Schedule = task.Schedules{"@every 1m after completion"}, task.Schedules{"@every 1m after completion"}
		return w
	}, "02:30", task.VerdictForgotten, []string{"Whether there was a tick on Tue 10 Mar 2026 02:30 UTC is no longer on record", "; 719 runs from"}},
}

// mergeSpans returns lines with one span for two, as if the fold had not seen that a tick was missing between them.
func mergeSpans(lines []task.LedgerLine) []task.LedgerLine {
	one := lines[0]
	for _, l := range lines[1:] {
		one.First, one.Count = l.First, one.Count+l.Count
	}
	return []task.LedgerLine{one}
}

// A range that contains a failing hour has one line for it, with what is counted.
func TestFor_RangeFromTheLedger(t *testing.T) {
	a := failingHour().fold().ask(t, "00:00 … 12:00")
	if got, want := lines(a), "299 succeeded \n60 forgotten \n361 succeeded \n"; got != want {
		t.Errorf("%s, not %s", got, want)
	}

	says := "60 ticks from Tue 10 Mar 2026 05:00 UTC to Tue 10 Mar 2026 05:59 UTC: 40 succeeded, 10 failed, 10 timed out; the ledger does not name all of them."
	if a.Stretches[1].Sentence != says {
		t.Errorf("%s, not %s", a.Stretches[1].Sentence, says)
	}

	if a.Counts[task.VerdictSucceeded] != 700 || a.Counts[task.VerdictForgotten] != 0 || len(a.Unknown) != 1 {
		t.Errorf("%v, %q", a.Counts, a.Unknown)
	}

	// Of part of the hour, not all numbers are known.
	a = failingHour().fold().ask(t, "05:30 … 12:00")
	if a.Counts[task.VerdictForgotten] == 0 || a.Counts[task.VerdictSucceeded] < 361 {
		t.Error(a.Counts)
	}
}

// Without the version of that time, a range has what the ledger counts.
func TestFor_RangeFromTheLedgerWithoutVersion(t *testing.T) {
	w := perMinute().run("02:31:00", task.Failed, exits(3)).ran("00:01:00", "12:00:00").
		change("11:00:10", "bob", func(s *task.Spec) { s.Description = "x" }).change("11:58:20", "bob", func(s *task.Spec) { s.Description = "y" }).fold()
	w.Versions = w.Versions[1:]

	if a := w.ask(t, "00:00 … 12:00"); a.Counts[task.VerdictFailed] != 1 || a.Counts[task.VerdictSucceeded] < 718 {
		t.Errorf("%s\n%s", a.Sentence, lines(a))
	}
}

// What counts as certain for a tick counts for ranges, too.
func TestFor_LedgerTicksAgreeWithRanges(t *testing.T) {
	w := perMinute().run("02:31:00", task.Failed, exits(3)).run("07:00:00", task.Cancelled, func(r *task.Run) { r.Reason = task.ReasonReplaced }).ran("00:01:00", "12:00:00").fold()
	whole := w.ask(t, "00:00 … 12:00")

	counts := map[task.Verdict]int64{}
	for tick := at("00:01:00"); !tick.After(at("12:00:00")); tick = tick.Add(time.Minute) {
		counts[why.For(w.Facts, why.Question{At: why.Instant(tick), Timezone: "UTC"}).Verdict]++
	}

	for v, n := range counts {
		if whole.Counts[v] != n {
			t.Errorf("%s: %d, and in the range %d", v, n, whole.Counts[v])
		}
	}

	if got := strings.Count(lines(whole), "\n"); got != 5 {
		t.Errorf("%d lines: %s", got, lines(whole))
	}
}

// The entry of a task that was behind says that its ticks are decided, although the watermark is before them. All of them must be on
// record before an hour can be said to have counted one of them.
//
// Verifies: G31
func TestAnswer_CountsTicksThatTheEntryDecides(t *testing.T) {
	t.Parallel()

	for minute := range 60 {
		w := failingHour().fold()
		w.Watermark.Time = at("05:00:00").Add(time.Duration(minute) * time.Minute)
		w.Entry.From = task.At(at("12:00:00"))

		if a := w.ask(t, "05:50"); a.Verdict != task.VerdictForgotten || !strings.Contains(a.Sentence, "whether it succeeded is no longer on record") {
			t.Errorf("with a watermark at 05:%02d: %s: %s", minute, a.Verdict, a.Sentence)
		}
	}
}
