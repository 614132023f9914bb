package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// SourceRuns are the runs of a source that ended before the end of the time in question, the newest first.
type SourceRuns struct {
	Task string
	Gone bool // there is no such task
	Runs []task.Run
}

// causesWords names the runs that have started a run.
func causesWords(causes []task.Cause) string {
	switch n := len(causes); n {
	case 0:
		return "a run of another task"
	case 1:
		return causeOf(causes[0])
	default:
		return causeOf(causes[0]) + " and " + formatCount(int64(n-1), "other run", "other runs")
	}
}

// causeOf names a run that has ended, and how it ended.
func causeOf(c task.Cause) string {
	return fmt.Sprintf("run %s of %s, which %s", c.Run, c.Task, stateWords(c.State, nil, ""))
}

// triggeredSubject is the subject of a sentence about a run that another task has started, or about ends that started none.
func (s speaker) triggeredSubject(r *task.Run) string {
	if r.State == task.Skipped || r.State == task.Missed {
		if r.Count > 1 {
			return "the trigger of " + s.formatTime(r.ScheduledTime.Time)
		}
		if len(r.Causes) == 0 {
			return "the trigger by a run of another task"
		}
		return "the trigger by " + causesWords(r.Causes) + ","
	}

	return "the run that was started by " + causesWords(r.Causes) + ","
}

// causeEvidence adds the causes of a run, and its period.
func (an *answerer) causeEvidence(add func(string, string, ...any), r *task.Run) {
	const most = 4
	for _, c := range r.Causes[:min(len(r.Causes), most)] {
		add("Started by", "%s", causeOf(c)+resultWords(c.Results))
	}
	if n := len(r.Causes) - most; n > 0 {
		add("Started by", "%s more", formatCount(int64(n), "run", "runs"))
	}

	if !r.Period.IsZero() {
		add("Period", "%s", an.formatTime(r.Period.Time))
	}
}

// resultWords lists the results that a run has passed on.
func resultWords(results map[string]string) string {
	if len(results) == 0 {
		return ""
	}
	return "; its results: " + shortenText(labelWords(results))
}

// waitingTriggers returns the triggers that were sent from from (inclusive) to to (exclusive) and have no outcome yet.
func (f *Facts) waitingTriggers(from, to time.Time) (list []task.Trigger) {
	for _, t := range f.Triggers {
		if !t.At.Before(from) && t.At.Before(to) {
			list = append(list, t)
		}
	}

	return list
}

// triggerAnswer answers a question about a trigger that has no outcome yet.
func (an *answerer) triggerAnswer(t task.Trigger) task.Answer {
	g := finding{verdict: task.VerdictWaiting, due: t.At.Time, version: inForce(an.all, t.At.Time)}
	if z := an.Freezes.Of(an.Namespace); z != nil {
		g.freeze = z
	}

	a := an.tickAnswer(g)
	a.Tick = nil
	a.Active = slices.DeleteFunc(an.activeRuns(an.Now, ""), func(r task.Run) bool { return r.State.Final() })
	a.Sentence = makeSentence("the trigger by %s, has been waiting for %s: %s", causeOf(t.Cause), formatSpan(an.Now.Sub(t.At.Time)), an.triggerWaitWords())
	if !t.Period.IsZero() {
		a.Lines = append(a.Lines, task.EvidenceLine{What: "Period", Says: an.formatTime(t.Period.Time)})
	}

	return a
}

// triggerWaitWords explains why triggers wait. The rules are those of the owner of the shard: a freeze, then the overlap policy.
func (w wording) triggerWaitWords() string {
	if z := w.Freezes.Of(w.Namespace); z != nil {
		return w.frozenWords(z)
	}

	o := w.Owner
	if o == nil || w.nodeNamed(o.Node) == nil {
		return w.explainUndecided(w.Now)
	}

	if w.Entry == nil {
		return reasonClause(task.ReasonManual)
	}

	var busy []task.Run
	for _, r := range w.Runs {
		if !r.State.Final() {
			busy = append(busy, r)
		}
	}

	e := w.Entry
	switch {
	case e.Overlap == task.OverlapAllow && e.MaxActive > 0 && len(busy) >= e.MaxActive:
		return fmt.Sprintf("%s active or waiting, the most that max_active allows", formatCount(int64(len(busy)), "run is", "runs are"))
	case e.Overlap == task.OverlapQueue && len(busy) > 0:
		slices.SortFunc(busy, func(a, b task.Run) int { return a.ScheduledTime.Compare(b.ScheduledTime.Time) })
		is := "is active"
		if busy[0].State == task.Queued {
			is = "is waiting"
		}
		return fmt.Sprintf("%s %s (overlap: queue)", w.runWords(&busy[0]), is)
	}

	return reasonClause(task.ReasonManual)
}

// noTriggerWords explains an instant at which nothing started a task that runs after others: its sources, and which of their
// ends around that time started nothing.
func (an *answerer) noTriggerWords(v *version, at time.Time, grain time.Duration) string {
	text := "the task runs after " + v.After.Describe()

	for _, source := range v.After {
		for _, r := range an.endsOf(source.Task) {
			if !r.EndedAt.Before(at) && r.EndedAt.Before(at.Add(max(grain, tickPrecision))) {
				text += "; " + an.unmatchedWords(source, &r)
			}
		}
	}

	return text
}

// endsOf returns the ended runs of a source on record, the newest first.
func (f *Facts) endsOf(source string) (list []task.Run) {
	for _, s := range f.Sources {
		if s.Task != source {
			continue
		}

		for _, r := range s.Runs {
			if task.WhenEnded.Matches(r.State) {
				list = append(list, r)
			}
		}
	}

	slices.SortStableFunc(list, func(a, b task.Run) int { return b.EndedAt.Compare(a.EndedAt.Time) })

	return list
}

// unmatchedWords describes an end of a source, and why it started nothing if that is known.
func (an *answerer) unmatchedWords(source task.Source, r *task.Run) string {
	text := fmt.Sprintf("run %s of %s %s on %s", r.ID, source.Task, stateWords(r.State, r.ExitCode, r.Signal), an.formatTime(r.EndedAt.Time))

	when := source.When
	if when == "" {
		when = task.WhenSucceeded
	}

	switch {
	case r.Alone:
		return text + " and started nothing, because it was triggered with alone"
	case !source.When.Matches(r.State):
		return fmt.Sprintf("%s and did not start this task (when: %s)", text, when)
	}

	return text
}

// addSourceEvidence adds to an answer the latest end of each source at an instant that started nothing, what is wrong with the
// sources, and what waits.
func (an *answerer) addSourceEvidence(a *task.Answer, v *version, at time.Time) {
	if v == nil || len(v.After) == 0 {
		return
	}

	add := func(what, format string, args ...any) {
		a.Lines = append(a.Lines, task.EvidenceLine{What: what, Says: fmt.Sprintf(format, args...)})
	}

	for _, source := range v.After {
		if slices.ContainsFunc(an.Sources, func(s SourceRuns) bool { return s.Task == source.Task && s.Gone }) {
			add("Source", "%s does not exist any more", source.Task)
			continue
		}

		ends := an.endsOf(source.Task)
		i := slices.IndexFunc(ends, func(r task.Run) bool { return !r.EndedAt.After(at) })
		if i >= 0 && !an.hasStarted(source.Task, &ends[i]) {
			add("Source", "%s", an.unmatchedWords(source, &ends[i]))
		}
	}

	const most = 8
	for _, t := range an.Triggers[:min(len(an.Triggers), most)] {
		add("Waiting", "the trigger by %s, since %s", causeOf(t.Cause), an.formatTime(t.At.Time))
	}
	if n := len(an.Triggers) - most; n > 0 {
		add("Waiting", "%s more", formatCount(int64(n), "trigger", "triggers"))
	}
}

// hasStarted reports whether an end of a source has a run of the task, or a trigger that waits.
func (f *Facts) hasStarted(source string, r *task.Run) bool {
	isCause := func(c task.Cause) bool { return c.Task == source && c.Run == r.ID }

	return slices.ContainsFunc(f.Runs, func(of task.Run) bool { return slices.ContainsFunc(of.Causes, isCause) }) ||
		slices.ContainsFunc(f.Triggers, func(t task.Trigger) bool { return isCause(t.Cause) })
}

// nearestTriggered describes the runs before and after an instant that other tasks have started.
func (an *answerer) nearestTriggered(at time.Time) string {
	var before, after *task.Run
	for i := range an.Runs {
		r := &an.Runs[i]
		switch {
		case r.Trigger != task.TriggerAfter:
		case r.ScheduledTime.After(at):
			if after == nil || r.ScheduledTime.Before(after.ScheduledTime.Time) {
				after = r
			}
		case before == nil || r.ScheduledTime.After(before.ScheduledTime.Time):
			before = r
		}
	}

	var parts []string
	if before != nil {
		parts = append(parts, "the previous trigger came on "+an.formatTime(before.ScheduledTime.Time))
	}
	if after != nil {
		parts = append(parts, "the next one on "+an.formatTime(after.ScheduledTime.Time))
	}
	if len(parts) == 0 {
		return ""
	}

	return "; " + strings.Join(parts, ", ")
}
