package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// describeOutcome returns the sentence about a tick or a manual run that has a record.
func (w wording) describeOutcome(g finding) string {
	r := g.run
	if r == nil {
		return ""
	}

	subject := "the tick of " + w.formatTime(g.tick)
	switch r.Trigger {
	case task.TriggerManual:
		subject = "the run that was requested on " + w.formatTime(r.ScheduledTime.Time) + byClause(r.CreatedBy)
	case task.TriggerAfter:
		subject = w.triggeredSubject(r)
	}

	switch r.State {
	case task.Queued:
		return makeSentence("%s %s: %s", subject, w.waitedFor(r), w.waitWords(g))
	case task.Dispatched, task.Running, task.Paused:
		return makeSentence("%s %s", subject, w.activeWords(g))
	case task.Skipped:
		return makeSentence("%s was skipped%s: %s", subject, w.mentionOtherTicks(r), w.skipWords(g))
	case task.Missed:
		return makeSentence("%s was missed%s: %s%s", subject, w.mentionOtherTicks(r), w.noSelector(g, reasonWords(r)), w.missWords(r))
	}

	if r.State == task.Failed && r.Reason == task.ReasonUnsent && r.StartedAt.IsZero() && len(r.Attempts) == 0 {
		return w.unsentEnd(subject, r)
	}

	if r.StartedAt.IsZero() && r.DispatchedAt.IsZero() && !hasHadAttempt(r) {
		return makeSentence("%s did not start: it %s%s", subject, endWords(r), w.replacedBy(r))
	}

	return makeSentence("%s ran%s and %s%s%s", subject, w.ranWords(g), endWords(r), w.replacedBy(r), w.retryWords(r))
}

// mentionOtherTicks returns a clause for a record that covers several ticks.
func (s speaker) mentionOtherTicks(r *task.Run) string {
	if r.Count <= 1 {
		return ""
	}

	one, many := "tick", "ticks"
	if r.Ticks() == 0 {
		one, many = "trigger", "triggers"
	}

	return fmt.Sprintf(", one of %s from %s to %s", formatCount(r.Count, one, many), s.formatTime(r.ScheduledTime.Time), s.formatTime(r.Last.Time))
}

// reasonWords explains the reason of a run.
func reasonWords(r *task.Run) string {
	if means := reasonClause(r.Reason); means != "" {
		return means
	}
	if r.Reason != "" {
		return r.Reason
	}

	return "the reason is not on record"
}

// activeWords describes a run that is assigned to a node.
func (w wording) activeWords(g finding) string {
	r := g.run
	if r.Fan != nil {
		return w.partWords(g)
	}

	text := fmt.Sprintf("was assigned to %s on %s, but is not known to have started", r.Node, w.formatTime(r.DispatchedAt.Time))
	if r.State == task.Running || !r.StartedAt.IsZero() {
		text = fmt.Sprintf("has been running on %s since %s", r.Node, w.formatTime(r.StartedAt.Time))
	}

	switch {
	case r.State == task.Paused:
		text = fmt.Sprintf("is on %s, where it started on %s, and has been paused since %s%s", r.Node, w.formatTime(r.StartedAt.Time), w.formatTime(r.PausedAt.Time), byClause(r.PausedBy))
	case r.PausedBy != nil:
		text += "; " + r.PausedBy.String() + " has requested a pause"
	}

	if w.nodeNamed(r.Node) == nil {
		text += fmt.Sprintf("; %s is not present, and unless it returns, the attempt will be declared lost", r.Node)
	}

	if g.freeze != nil {
		text += "; " + w.frozenWords(g.freeze)
	}

	if r.CancelledBy != nil {
		text += "; " + r.CancelledBy.String() + " has requested its cancellation"
	}

	return text + w.retryWords(r)
}

// partWords describes the progress of a run with parts.
func (w wording) partWords(g finding) string {
	r := g.run
	since := r.StartedAt.Time
	if since.IsZero() {
		since = r.DispatchedAt.Time
	}

	ended := r.Fan.Ended + r.Fan.Kept
	have := "have"
	if ended == 1 {
		have = "has"
	}

	text := fmt.Sprintf("has been running since %s; %d of its %s %s ended", w.formatTime(since), ended, formatCount(int64(r.Fan.Count), "part", "parts"), have)
	if r.Fan.Flow != nil {
		text = fmt.Sprintf("has been running since %s; %s", w.formatTime(since), begunWords(r.Fan.Flow))
	}
	if !r.PausedAt.IsZero() {
		text += "; it has been paused since " + w.formatTime(r.PausedAt.Time)
		if r.PausedBy != nil {
			text += " by " + r.PausedBy.String()
		}
	}
	if g.freeze != nil {
		text += "; " + w.frozenWords(g.freeze)
	}

	switch {
	case r.CancelledBy != nil:
		text += "; " + r.CancelledBy.String() + " has requested its cancellation"
	case r.Fan.Cancel != "":
		text += "; it is being stopped: " + reasonClause(r.Fan.Cancel)
	}

	return text
}

// begunWords says how many steps of a workflow have begun.
func begunWords(f *task.Flow) string {
	begun := 0
	for i := range f.Steps {
		if s := &f.Steps[i]; s.IsOpened() || s.IsKept {
			begun++
		}
	}

	have := "have"
	if begun == 1 {
		have = "has"
	}

	return fmt.Sprintf("%d of its %s %s begun", begun, formatCount(int64(len(f.Steps)), "step", "steps"), have)
}

// skipWords explains why a tick was skipped, with the run that caused it if that is on record.
func (w wording) skipWords(g finding) string {
	text := reasonWords(g.run)

	switch g.run.Reason {
	case task.ReasonQueueFull:
		if g.version != nil && g.version.Overlap == task.OverlapQueue {
			text += fmt.Sprintf(" (queue.limit: %d)", g.version.Queue.Room())
		}
	case task.ReasonDropped:
		if n := w.firstTickAfter(g.run, func(n *task.Run) bool { return n.CreatedAt.Equal(g.run.EndedAt.Time) }); n != nil {
			text += " (" + w.runWords(n) + ")"
		}

	case task.ReasonOverlap:
		if active := w.activeRuns(g.due, g.run.ID); len(active) > 0 {
			return "another run of the task was active (" + w.runWords(&active[0]) + ")"
		}
		if waited := w.waitedRun(g.due); waited != nil {
			return "another run of the task was waiting (" + w.runWords(waited) + ")"
		}
	case task.ReasonPaused:
		if p := w.pauseAt(nil, g.due); p != nil {
			return "the task was paused, " + w.pauseWords(p)
		}
	case task.ReasonFrozen:
		if z := g.freeze; z != nil {
			text = fmt.Sprintf("%s had been frozen since %s%s%s", frozenWhat(z), w.formatTime(z.Since.Time), byClause(z.By), quoteReason(z.Reason))
		}
	}

	return text
}

// firstTickAfter returns the run of the first tick or trigger after r for which fits returns true, or nil.
func (f *Facts) firstTickAfter(r *task.Run, fits func(*task.Run) bool) (first *task.Run) {
	for i := range f.Runs {
		n := &f.Runs[i]
		if (n.Ticks() > 0 || n.Trigger == task.TriggerAfter) && n.ScheduledTime.After(r.ScheduledTime.Time) && fits(n) &&
			(first == nil || n.ScheduledTime.Before(first.ScheduledTime.Time)) {
			first = n
		}
	}

	return first
}

// replacedBy names the tick or trigger that replaced a cancelled run.
func (w wording) replacedBy(r *task.Run) string {
	if r.State != task.Cancelled || r.Reason != task.ReasonReplaced {
		return ""
	}
	if n := w.firstTickAfter(r, func(n *task.Run) bool { return n.State != task.Missed && n.State != task.Skipped }); n != nil {
		return " (" + w.runWords(n) + ")"
	}

	return ""
}

// runWords identifies a run by its tick.
func (s speaker) runWords(r *task.Run) string {
	text := "the run of " + s.formatTime(r.ScheduledTime.Time)
	switch {
	case r.Trigger == task.TriggerManual:
		text = "the run that was requested on " + s.formatTime(r.ScheduledTime.Time) + byClause(r.CreatedBy)
	case r.Trigger == task.TriggerAfter && len(r.Causes) > 0:
		text += " that run " + r.Causes[0].Run + " of " + r.Causes[0].Task + " has started"
	}

	if r.Node != "" {
		text += " on " + r.Node
	}

	return text
}

// missWords returns the evidence that the owner recorded with a missed tick.
func (w wording) missWords(r *task.Run) string {
	if r.Message != "" {
		return " (" + strings.TrimRight(r.Message, ".") + ")"
	}
	if !r.EndedAt.IsZero() && r.Owner != "" {
		return fmt.Sprintf(" (%s processed it on %s)", r.Owner, w.formatTime(r.EndedAt.Time))
	}

	return ""
}

// ranWords describes where a run ran and how late it started.
func (w wording) ranWords(g finding) string {
	r := g.run
	var text string
	if r.Node != "" {
		text = " on " + r.Node
	}

	late, known := startLateness(g)
	switch {
	case r.Trigger == task.TriggerCatchUp:
		text += fmt.Sprintf(" as a catch-up run, %s late,", formatSpan(late))
	case r.Ticks() == 0 || !known:
	case late > 10*time.Second:
		text += fmt.Sprintf(" %s late,", formatSpan(late))
	}

	return text
}

// startLateness returns the time from the due time of a tick to the start of its first attempt. ok is false if
// no start is on record.
func startLateness(g finding) (time.Duration, bool) {
	r := g.run
	switch {
	case len(r.Attempts) > 0 && !r.Attempts[0].StartedAt.IsZero():
		return r.Attempts[0].StartedAt.Sub(g.due), true
	case r.LatenessMS != nil:
		return time.Duration(*r.LatenessMS) * tickPrecision, true
	case !r.StartedAt.IsZero():
		return r.StartedAt.Sub(g.due), true
	case !r.DispatchedAt.IsZero():
		return r.DispatchedAt.Sub(g.due), true
	}

	return 0, false
}

// endWords describes how a run ended.
func endWords(r *task.Run) string {
	text := stateWords(r.State, r.ExitCode, r.Signal)

	switch r.State {
	case task.Succeeded:
		if d := r.EndedAt.Sub(r.StartedAt.Time); !r.StartedAt.IsZero() && !r.EndedAt.IsZero() {
			text += " after " + formatSpan(d)
		}

		if r.Fan != nil && r.Fan.Flow == nil {
			text += fmt.Sprintf(" (%d of %s)", r.Fan.Succeeded+r.Fan.Kept, formatCount(int64(r.Fan.Count), "part", "parts"))
		}
	case task.Cancelled:
		text = "was cancelled"
		if r.CancelledBy != nil {
			return text + byClause(r.CancelledBy)
		}
		text += ": " + reasonWords(r)
	case task.Lost:
		text += ": " + reasonWords(r)
	case task.Failed:
		// The message says it in full: namespace team-a no longer allows the user root; step load/1: exited with code 3.
		if (r.Reason == task.ReasonNamespace || r.Reason == task.ReasonSteps) && r.Message != "" {
			return "failed: " + strings.TrimRight(r.Message, ".")
		}
		if slices.Contains([]string{task.ReasonStart, task.ReasonNamespace, task.ReasonAccept, task.ReasonSecret, task.ReasonPolicy, task.ReasonShutdown, task.ReasonBadEntry, task.ReasonOutput, task.ReasonUnsent, task.ReasonAnswer, task.ReasonUnanswered, task.ReasonURL, task.ReasonTLS}, r.Reason) {
			text = "failed: " + reasonWords(r)
		}
	}

	if r.Message != "" && r.State != task.Succeeded && r.Reason != task.ReasonExit {
		text += " (" + strings.TrimRight(r.Message, ".") + ")"
	}

	return text
}

// stateWords describes the final state of a run or an attempt.
func stateWords(state task.State, code *int, signal string) string {
	switch {
	case state == task.Succeeded:
		return "succeeded"
	case state == task.Failed && signal != "":
		return "was terminated by signal " + signal
	case state == task.Failed && code != nil:
		return fmt.Sprintf("failed with exit code %d", *code)
	case state == task.Failed:
		return "failed"
	case state == task.TimedOut:
		return "was stopped at its timeout"
	case state == task.Lost:
		return "was lost"
	}

	return "was " + string(state)
}

// retryWords describes the attempts before the last one.
func (w wording) retryWords(r *task.Run) string {
	if !hasHadAttempt(r) {
		return ""
	}

	var parts []string
	for _, a := range r.Attempts {
		part := fmt.Sprintf("attempt %d %s", a.Attempt, stateWords(a.State, a.ExitCode, a.Signal))
		if a.Node != "" {
			part += " on " + a.Node
		}
		parts = append(parts, part)
	}

	const most = 3
	if n := len(parts); n > most {
		parts = append(parts[:most-1], formatCount(int64(n-most), "more attempt", "more attempts"), parts[n-1])
	}
	if n := r.UnsentCount(); n > 0 {
		parts = append([]string{formatCount(int64(n), "attempt that was not sent", "attempts that were not sent")}, parts...)
	}

	return fmt.Sprintf(", on attempt %d, after %s", r.Attempt, strings.Join(parts, ", "))
}
