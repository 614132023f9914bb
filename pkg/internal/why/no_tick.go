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
// names the nearest ticks. The question has the precision grain.
func (an *answerer) noTick(at time.Time, grain time.Duration) task.Answer {
	v := inForce(an.all, at)
	g := finding{verdict: task.VerdictNoTick, due: at, version: v}

	if v == nil {
		return an.answerNoVersion(at, nil)
	}

	prefix := "there was no tick on " + an.formatTime(at)
	if at.After(an.Now) {
		prefix = "there will be no tick on " + an.formatTime(at)
	}

	// A schedule that counts from the end of runs has no ticks in advance, and past ones can be derived only
	// from the records.
	period, afterRuns := v.completionPeriod()
	switch {
	case !v.Start.IsZero() && at.Before(v.Start.Time):
		g.verdict = task.VerdictOutside
		prefix += fmt.Sprintf(": the task has no ticks before its start, %s", an.formatTime(v.Start.Time))
	case !v.End.IsZero() && at.After(v.End.Time):
		g.verdict = task.VerdictOutside
		prefix += fmt.Sprintf(": the task has no ticks after its end, %s", an.formatTime(v.End.Time))
	case v.Schedule.AtBoot():
		prefix += ": the schedule is @reboot, so the task runs only when a matching node boots, and when it is triggered"
	case v.isManual() && len(v.After) > 0:
		prefix = "nothing started the task on " + an.formatTime(at)
		if at.After(an.Now) {
			prefix = "whether the task will run on " + an.formatTime(at) + " depends on other tasks"
			g.verdict = task.VerdictDepends
		}
		prefix += ": " + an.noTriggerWords(v, at, grain) + an.nearestTriggered(at)
	case v.isManual():
		prefix += ": the schedule is @manual, so the task runs only when it is triggered"
	case afterRuns && at.After(an.Now):
		g.verdict = task.VerdictDepends
		prefix = fmt.Sprintf("whether there is a tick on %s depends on when the runs before it end: each tick comes %s after the previous run ends", an.formatTime(at), task.Duration(period))
	case afterRuns && an.mayHaveHadTick(v, at):
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the runs of that time, whose ends determined the ticks")
		prefix = fmt.Sprintf("whether there was a tick on %s is no longer on record: each tick came %s after the previous run ended", an.formatTime(at), task.Duration(period))
		var around string
		if around, g.line = an.ledgerAround(at); around != "" {
			prefix += "; " + around
		}
	case afterRuns:
		prefix += fmt.Sprintf(": each tick comes %s after the previous run ends", task.Duration(period))
	}

	a := an.tickAnswer(g)
	a.Tick = nil
	if before, ok := an.tickBefore(at); ok {
		a.Before = an.shownTick(finding{tick: before, due: an.dueOf(before), version: inForce(an.all, before)})
	}

	if after, ok := an.tickAfter(at); ok {
		a.After = an.shownTick(finding{tick: after, due: an.dueOf(after), version: inForce(an.all, after)})
	}

	if g.verdict == task.VerdictNoTick && !v.isManual() && !afterRuns {
		prefix += fmt.Sprintf(": the schedule is %s%s", joinExpressions(v.Schedule), an.nearestTicks(&a))
	}

	a.Sentence = makeSentence("%s", prefix)
	if p := an.pauseAt(an.all, at); p != nil {
		a.Pause = p
		a.Lines = append(a.Lines, task.EvidenceLine{What: "Paused", Says: an.pauseWords(p)})
	}

	return a
}

// mayHaveHadTick reports whether the records no longer show if there was a tick at an instant, although the schedule counts
// from the end of runs: its run may have been deleted, or be one of those that the ledger counts.
func (an *answerer) mayHaveHadTick(v *version, at time.Time) bool {
	trimmed, _ := an.mayBeTrimmed(an.all, &finding{tick: at, version: v})
	around, _ := an.ledgerAround(at)

	return trimmed || around != ""
}

// nearestTicks describes the ticks before and after an instant.
func (an *answerer) nearestTicks(a *task.Answer) string {
	var parts []string
	if a.Before != nil {
		parts = append(parts, "the previous tick was "+an.formatTime(a.Before.Time.Time))
	}

	if a.After != nil {
		is := "is"
		if !a.After.Time.After(an.Now) {
			is = "was"
		}
		parts = append(parts, "the next "+is+" "+an.formatTime(a.After.Time.Time))
	}

	if len(parts) == 0 {
		return "; it has no ticks around that time"
	}

	return "; " + strings.Join(parts, ", ")
}

// dueOf returns the due time of a tick in the version in force.
func (an *answerer) dueOf(tick time.Time) time.Time {
	if v := inForce(an.all, tick); v != nil {
		return v.dueTime(tick)
	}
	return tick
}

// tickBefore returns the last tick before an instant. It goes back through the versions, because each has ticks
// only while it was in force.
func (an *answerer) tickBefore(at time.Time) (time.Time, bool) {
	for i := len(an.all) - 1; i >= 0; i-- {
		v := &an.all[i]
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
func (an *answerer) tickAfter(at time.Time) (time.Time, bool) {
	for i := range an.all {
		v := &an.all[i]
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
func (an *answerer) answerNoVersion(at time.Time, v *version) task.Answer {
	g := finding{tick: at, due: at, version: v}

	if v == nil {
		an.applyNoVersion(&g, an.all)
	} else {
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the start of its @every intervals: the version that set it is no longer kept")
		if v.schedule == nil {
			g.unknown = []string{"the schedule of that version: this version of Carillon cannot read it"}
		}

		g.version = nil
	}

	a := an.tickAnswer(g)
	a.Tick = nil
	if g.verdict == task.VerdictForgotten {
		a.Sentence = makeSentence("the schedule on %s is no longer on record, and neither is a run of that time", an.formatTime(at))
		if r := an.rangeRecordAt(at); r != nil {
			a.Run = r
			a.Sentence = makeSentence("the schedule on %s is no longer on record; %s from %s to %s %s: %s", an.formatTime(at),
				formatCount(r.Count, "tick", "ticks"), an.formatTime(r.ScheduledTime.Time), an.formatTime(r.Last.Time), "were "+string(r.State), reasonWords(r))
		} else if around, l := an.ledgerAround(at); l != nil {
			a.Ledger = l
			a.Sentence = makeSentence("the schedule on %s is no longer on record; %s", an.formatTime(at), around)
		}
	}

	return a
}

// rangeRecordAt returns the record of a range of ticks that contains an instant, or nil.
func (an *answerer) rangeRecordAt(at time.Time) *task.Run {
	for _, r := range an.Runs {
		if r.Count > 1 && !at.Before(r.ScheduledTime.Time) && !at.After(r.Last.Time) {
			return &r
		}
	}

	return nil
}

// noneYet answers a question about a task that has neither ticks nor runs on record.
func (an *answerer) noneYet() task.Answer {
	if an.Task == nil {
		return an.answerNoVersion(an.Now, nil)
	}

	g := finding{verdict: task.VerdictNoTick, due: an.Now, version: inForce(an.all, an.Now)}
	a := an.tickAnswer(g)
	a.Tick = nil
	missing := "no run was triggered by hand"
	if an.Task.Schedule.AtBoot() {
		missing = "no matching node has booted since"
	}
	created := an.formatTime(an.Task.CreatedAt.Time)
	what := "has had no tick since it was created on " + created + ", and " + missing
	if after := an.Task.After; len(after) > 0 && !an.Task.Schedule.HasTicks() {
		what = "has not run since it was created on " + created + "; it runs after " + after.Describe()
		for _, source := range after {
			// What ended before the task was created could not start it.
			if ends := an.endsOf(source.Task); len(ends) > 0 && ends[0].EndedAt.After(an.Task.CreatedAt.Time) {
				what += "; " + an.unmatchedWords(source, &ends[0])
			}
		}
	}
	a.Sentence = makeSentence("task %s/%s %s", an.Namespace, an.Name, what)

	return a
}

// noneToCome answers the question about the next tick of a task that has none. It returns nil if no user would
// expect one.
func (an *answerer) noneToCome() *task.Answer {
	v := inForce(an.all, an.Now)
	if an.Task == nil || v == nil || v.vague || v.schedule == nil || v.isManual() && !v.Schedule.AtBoot() {
		return nil
	}

	g := finding{verdict: task.VerdictNoTick, due: an.Now, version: v}
	if v.Schedule.AtBoot() {
		a := an.tickAnswer(g)
		a.Tick, a.Sentence = nil, makeSentence("the task runs at the next boot of a matching node")

		return &a
	}

	says := "there are no more ticks: the schedule (" + joinExpressions(v.Schedule) + ") has ended"
	if period, after := v.completionPeriod(); after {
		g.verdict = task.VerdictDepends
		says = fmt.Sprintf("the next tick comes %s after the active or waiting run ends", task.Duration(period))
	} else if !v.End.IsZero() && v.End.Before(an.Now) {
		g.verdict = task.VerdictOutside
		says = "there are no more ticks: the task's end was " + an.formatTime(v.End.Time)
	}

	a := an.tickAnswer(g)
	a.Tick, a.Sentence = nil, makeSentence("%s", says)

	return &a
}
