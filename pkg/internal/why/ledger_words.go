package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// hourWords describes the ticks that did not succeed in the hour of a line.
func (f *Facts) hourWords(hour *task.LedgerLine) string {
	words := causeWords(f.hourCauses(hour))
	if f.isHistoryCut(hour.Last.Time) {
		return "at least " + words
	}

	return words
}

// runOfLine returns what a line says about a run or a range of ticks, in the form of a record.
func runOfLine(l *task.LedgerLine) *task.Run {
	r := &task.Run{ID: l.Run, ScheduledTime: l.First, State: l.State, Reason: l.Reason, Trigger: task.TriggerSchedule, Node: l.Node, Attempt: l.Attempt}
	if l.Kind == task.LedgerRequested {
		r.Trigger = requestedTrigger(l)
	}

	if l.Count > 1 {
		r.Count, r.Last = l.Count, l.Last
	}

	r.Reason, r.ExitCode, r.Signal, r.HTTPStatus = task.ParseLedgerReason(l.Reason)

	return r
}

// requestedTrigger returns what caused the runs of a line that belong to no tick: a request, or ends of sources. Only triggers by
// sources share a record.
func requestedTrigger(l *task.LedgerLine) string {
	if l.Count > 1 || l.Run == "" || task.TriggerOfRunID(l.Run) == task.TriggerAfter {
		return task.TriggerAfter
	}

	return task.TriggerManual
}

// splitCause splits a cause of an hour's line, such as "failed: exit 1".
func splitCause(cause string) (task.State, string) {
	state, reason, _ := strings.Cut(cause, ": ")
	return task.State(state), reason
}

// causeWords describes the ticks of an hour that did not succeed: 312 did not succeed (300 failed: exit 1, 12 timed out).
func causeWords(causes map[string]int64) string {
	var total int64
	names := slices.Collect(maps.Keys(causes))
	for _, n := range causes {
		total += n
	}

	slices.SortFunc(names, func(a, b string) int {
		if causes[a] != causes[b] {
			return int(causes[b] - causes[a])
		}
		return strings.Compare(a, b)
	})

	const most = 5
	var parts []string
	for i, name := range names {
		if i == most && len(names) > most+1 {
			parts = append(parts, fmt.Sprintf("%d other causes", len(names)-most))
			break
		}

		state, reason := splitCause(name)
		text := fmt.Sprintf("%d %s", causes[name], verdictWords(ofState[state], causes[name]))
		if reason != "" {
			text += ": " + strings.ReplaceAll(reason, "_", " ")
		}
		parts = append(parts, text)
	}

	return fmt.Sprintf("%d did not succeed (%s)", total, strings.Join(parts, ", "))
}

// describeLine returns the sentence about a tick or a requested run whose outcome is in the ledger.
func (w wording) describeLine(g finding) string {
	tick := "the tick of " + w.formatTime(g.tick)
	l := g.line
	if l.Kind == task.LedgerSucceeded {
		if l.Count == 1 {
			return makeSentence("%s succeeded; further details are no longer kept (%s)", tick, lineFigures(l))
		}
		return makeSentence("%s succeeded; further details are no longer kept (of %d ticks that succeeded from %s to %s, the longest took %s)",
			tick, l.Count, w.formatTime(l.First.Time), w.formatTime(l.Last.Time), formatSpan(time.Duration(l.MaxMS)*time.Millisecond))
	}

	r := g.run
	switch r.Trigger {
	case task.TriggerManual:
		tick = "the run that was requested on " + w.formatTime(r.ScheduledTime.Time)
	case task.TriggerAfter:
		tick = "the run that another task started on " + w.formatTime(r.ScheduledTime.Time)
		if r.State == task.Skipped || r.State == task.Missed {
			tick = "the trigger of " + w.formatTime(r.ScheduledTime.Time)
		}
	}

	var text string
	switch r.State {
	case task.Skipped:
		text = "was skipped" + w.mentionOtherTicks(r) + ": " + w.skipWords(g)
	case task.Missed:
		text = "was missed" + w.mentionOtherTicks(r) + ": " + w.noSelector(g, reasonWords(r))
	default:
		text = endWords(r)
		if text == "failed" && r.Reason != "" {
			text += ": " + reasonWords(r)
		}
		if r.Node != "" {
			text = "ran on " + r.Node + " and " + text
		}
		if r.Attempt > 1 {
			text += fmt.Sprintf(", on attempt %d", r.Attempt)
		}
	}

	if g.detail != "" {
		text += "; " + g.detail
	}

	return makeSentence("%s %s; further details are no longer kept", tick, text)
}

// lineFigures returns the figures of a span.
func lineFigures(l *task.LedgerLine) string {
	ms := func(n int64) string { return formatSpan(time.Duration(n) * time.Millisecond) }
	if l.Count == 1 {
		return fmt.Sprintf("it took %s and started %s after it was due", ms(l.MaxMS), ms(l.MaxLatenessMS))
	}

	return fmt.Sprintf("they took %s on average and at most %s, and started at most %s after they were due", ms(l.MeanMS), ms(l.MaxMS), ms(l.MaxLatenessMS))
}

// lineEvidence adds the evidence for an answer from the ledger.
func (an *answerer) lineEvidence(add func(string, string, ...any), g finding) {
	l := g.line
	first, last := an.formatTime(l.First.Time), an.formatTime(l.Last.Time)

	switch {
	case l.Kind == task.LedgerSucceeded && l.Count > 1:
		add("Ledger", "%d ticks from %s to %s succeeded: %s", l.Count, first, last, lineFigures(l))
	case l.Kind == task.LedgerSucceeded:
		add("Ledger", "it succeeded: %s", lineFigures(l))
	case l.Kind == task.LedgerHour:
		add("Ledger", "in the hour from %s, %s", first, causeWords(l.Causes))
	case l.Count > 1:
		add("Ledger", "%d ticks from %s to %s %s: %s", l.Count, first, last, verdictWords(ofState[l.State], l.Count), reasonWords(runOfLine(l)))
	default:
		outcome := string(l.State)
		if l.Reason != "" {
			outcome += " (" + l.Reason + ")"
		}
		add("Ledger", "%s", outcome)
	}

	if l.Late {
		add("Late result", "its last attempt had been declared lost, but ended later")
	}

	if l.Run != "" {
		add("Run", "%s", l.Run)
	}
}

// lineAnswer answers a question about a requested run that is in the ledger.
func (an *answerer) lineAnswer(l task.LedgerLine) task.Answer {
	g := finding{tick: l.First.Time, due: l.First.Time, version: inForce(an.all, l.First.Time)}
	an.applyLine(&g, &l)
	a := an.tickAnswer(g)
	a.Tick = nil

	return a
}

// ledgerAround describes what the ledger counts around an instant that may or may not have been a tick. It
// returns "" if there is nothing.
func (an *answerer) ledgerAround(at time.Time) (string, *task.LedgerLine) {
	for _, l := range an.ledgerLines(interval{at, at}) {
		if !mayCount(l, at) {
			continue
		}

		from, to := an.formatTime(l.First.Time), an.formatTime(l.Last.Time)
		switch l.Kind {
		case task.LedgerHour:
			return fmt.Sprintf("in the hour from %s, %s", from, causeWords(l.Causes)), &l
		case task.LedgerException:
			return fmt.Sprintf("%s from %s to %s %s", formatCount(l.Count, "tick", "ticks"), from, to, verdictWords(ofState[l.State], l.Count)), &l
		default:
			return fmt.Sprintf("%s from %s to %s succeeded", formatCount(l.Count, "run", "runs"), from, to), &l
		}
	}

	return "", nil
}
