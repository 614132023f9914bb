package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// cutTime splits a time into its date and its time of day. ok is false for a date alone.
func cutTime(text string) (date, clock string, ok bool) {
	date, clock, ok = strings.Cut(strings.Replace(strings.TrimSpace(text), "T", " ", 1), " ")
	return date, strings.TrimSpace(clock), ok
}

// noTick answers a question about an instant at which the version in force has no tick. It explains why, and
// names the nearest ticks.
func (w *answerer) noTick(at time.Time) task.Answer {
	v := inForce(w.all, at)
	g := finding{verdict: task.VerdictNoTick, due: at, version: v}

	if v == nil {
		return w.answerNoVersion(at, nil)
	}

	prefix := "there was no tick on " + w.formatTime(at)
	if at.After(w.Now) {
		prefix = "there will be no tick on " + w.formatTime(at)
	}

	// A schedule that counts from the end of runs has no ticks in advance, and past ones can be derived only
	// from the records.
	period, afterRuns := v.completionPeriod()
	switch {
	case !v.Start.IsZero() && at.Before(v.Start.Time):
		g.verdict = task.VerdictOutside
		prefix += fmt.Sprintf(": the task has no ticks before its start, %s", w.formatTime(v.Start.Time))
	case !v.End.IsZero() && at.After(v.End.Time):
		g.verdict = task.VerdictOutside
		prefix += fmt.Sprintf(": the task has no ticks after its end, %s", w.formatTime(v.End.Time))
	case v.isManual():
		prefix += ": the schedule is @manual, so the task runs only when it is triggered"
	case afterRuns && at.After(w.Now):
		g.verdict = task.VerdictDepends
		prefix = fmt.Sprintf("whether there is a tick on %s depends on when the runs before it end: each tick comes %s after the previous run ends", w.formatTime(at), task.Duration(period))
	case afterRuns && w.mayHaveHadTick(v, at):
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the runs of that time, whose ends determined the ticks")
		prefix = fmt.Sprintf("whether there was a tick on %s is no longer on record: each tick came %s after the previous run ended", w.formatTime(at), task.Duration(period))
		var around string
		if around, g.line = w.ledgerAround(at); around != "" {
			prefix += "; " + around
		}
	case afterRuns:
		prefix += fmt.Sprintf(": each tick comes %s after the previous run ends", task.Duration(period))
	}

	a := w.tickAnswer(g)
	a.Tick = nil
	if before, ok := w.tickBefore(at); ok {
		a.Before = w.shownTick(finding{tick: before, due: w.dueOf(before), version: inForce(w.all, before)})
	}

	if after, ok := w.tickAfter(at); ok {
		a.After = w.shownTick(finding{tick: after, due: w.dueOf(after), version: inForce(w.all, after)})
	}

	if g.verdict == task.VerdictNoTick && !v.isManual() && !afterRuns {
		prefix += fmt.Sprintf(": the schedule is %s%s", joinExpressions(v.Schedule), w.nearestTicks(&a))
	}

	a.Sentence = makeSentence("%s", prefix)
	if p := w.pauseAt(w.all, at); p != nil {
		a.Pause = p
		a.Lines = append(a.Lines, task.EvidenceLine{What: "Paused", Says: w.pauseWords(p)})
	}

	return a
}

// mayHaveHadTick reports whether the records no longer show if there was a tick at an instant, although the schedule counts
// from the end of runs: its run may have been deleted, or be one of those that the ledger counts.
func (w *answerer) mayHaveHadTick(v *version, at time.Time) bool {
	trimmed, _ := w.mayBeTrimmed(w.all, &finding{tick: at, version: v})
	around, _ := w.ledgerAround(at)

	return trimmed || around != ""
}

// nearestTicks describes the ticks before and after an instant.
func (w *answerer) nearestTicks(a *task.Answer) string {
	var parts []string
	if a.Before != nil {
		parts = append(parts, "the previous tick was "+w.formatTime(a.Before.Time.Time))
	}

	if a.After != nil {
		is := "is"
		if !a.After.Time.After(w.Now) {
			is = "was"
		}
		parts = append(parts, "the next "+is+" "+w.formatTime(a.After.Time.Time))
	}

	if len(parts) == 0 {
		return "; it has no ticks around that time"
	}

	return "; " + strings.Join(parts, ", ")
}

// dueOf returns the due time of a tick in the version in force.
func (w *answerer) dueOf(tick time.Time) time.Time {
	if v := inForce(w.all, tick); v != nil {
		return v.dueTime(tick)
	}
	return tick
}

// tickBefore returns the last tick before an instant. It goes back through the versions, because each has ticks
// only while it was in force.
func (w *answerer) tickBefore(at time.Time) (time.Time, bool) {
	for i := len(w.all) - 1; i >= 0; i-- {
		v := &w.all[i]
		if !v.startTime().Before(at) {
			continue
		}

		end := at
		if !v.until.IsZero() && v.until.Before(end) {
			end = v.until
		}

		if v.vague {
			return time.Time{}, false
		}
		if tick, ok := v.previousTick(end, v.startTime()); ok && tick.After(v.CreatedAt.Time) {
			return tick, true
		}
	}

	return time.Time{}, false
}

// tickAfter returns the first tick after an instant, in whichever version.
func (w *answerer) tickAfter(at time.Time) (time.Time, bool) {
	for i := range w.all {
		v := &w.all[i]
		if !v.until.IsZero() && !v.until.After(at) || v.vague {
			continue
		}

		from := at
		if from.Before(v.startTime()) {
			from = v.startTime()
		}

		if tick, ok := v.nextTick(from); ok && (v.until.IsZero() || tick.Before(v.until)) {
			return tick, true
		}
	}

	return time.Time{}, false
}

// answerNoVersion answers a question about an instant for which no version is on record, or whose version has
// ticks that cannot be computed any more.
func (w *answerer) answerNoVersion(at time.Time, v *version) task.Answer {
	g := finding{tick: at, due: at, version: v}

	if v == nil {
		w.applyNoVersion(&g, w.all)
	} else {
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the start of its @every intervals: the version that set it is no longer kept")
		if v.schedule == nil {
			g.unknown = []string{"the schedule of that version: this version of Carillon cannot read it"}
		}

		g.version = nil
	}

	a := w.tickAnswer(g)
	a.Tick = nil
	if g.verdict == task.VerdictForgotten {
		a.Sentence = makeSentence("the schedule on %s is no longer on record, and neither is a run of that time", w.formatTime(at))
		if r := w.rangeRecordAt(at); r != nil {
			a.Run = r
			a.Sentence = makeSentence("the schedule on %s is no longer on record; %s from %s to %s %s: %s", w.formatTime(at),
				formatCount(r.Count, "tick", "ticks"), w.formatTime(r.ScheduledTime.Time), w.formatTime(r.Last.Time), "were "+string(r.State), reasonWords(r))
		} else if around, l := w.ledgerAround(at); l != nil {
			a.Ledger = l
			a.Sentence = makeSentence("the schedule on %s is no longer on record; %s", w.formatTime(at), around)
		}
	}

	return a
}

// rangeRecordAt returns the record of a range of ticks that contains an instant, or nil.
func (w *answerer) rangeRecordAt(at time.Time) *task.Run {
	for _, r := range w.Runs {
		if r.Count > 1 && !at.Before(r.ScheduledTime.Time) && !at.After(r.Last.Time) {
			return &r
		}
	}

	return nil
}

// noneYet answers a question about a task that has neither ticks nor runs on record.
func (w *answerer) noneYet() task.Answer {
	if w.Task == nil {
		return w.answerNoVersion(w.Now, nil)
	}

	g := finding{verdict: task.VerdictNoTick, due: w.Now, version: inForce(w.all, w.Now)}
	a := w.tickAnswer(g)
	a.Tick = nil
	a.Sentence = makeSentence("task %s/%s has had no tick since it was created on %s, and no run was triggered by hand", w.Namespace, w.Name, w.formatTime(w.Task.CreatedAt.Time))

	return a
}

// noneToCome answers the question about the next tick of a task that has none. It returns nil if no user would
// expect one.
func (w *answerer) noneToCome() *task.Answer {
	v := inForce(w.all, w.Now)
	if w.Task == nil || v == nil || v.vague || v.schedule == nil || v.isManual() {
		return nil
	}

	g := finding{verdict: task.VerdictNoTick, due: w.Now, version: v}
	says := "there are no more ticks: the schedule (" + joinExpressions(v.Schedule) + ") has ended"
	if period, after := v.completionPeriod(); after {
		g.verdict = task.VerdictDepends
		says = fmt.Sprintf("the next tick comes %s after the active or waiting run ends", task.Duration(period))
	} else if !v.End.IsZero() && v.End.Before(w.Now) {
		g.verdict = task.VerdictOutside
		says = "there are no more ticks: the task's end was " + w.formatTime(v.End.Time)
	}

	a := w.tickAnswer(g)
	a.Tick, a.Sentence = nil, makeSentence("%s", says)

	return &a
}
