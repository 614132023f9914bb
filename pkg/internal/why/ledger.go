package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/task"
)

// The ledger of a task tells what became of ticks after their records were trimmed: see package ledger. It names single
// ticks, and counts others. An answer from a count is certain only if every tick of a region has an outcome: as many
// ticks as the schedule had are named or counted in it. Otherwise records are missing, or the schedule was another one
// than is known, and the answer says only what the ledger counts.

// regionRounds limits how often a region grows until all its ticks have an outcome.
const regionRounds = 32

// interval is a period of time, inclusive at both ends.
type interval struct{ first, last time.Time }

// contains reports whether an instant is in the interval.
func (i interval) contains(at time.Time) bool { return !at.Before(i.first) && !at.After(i.last) }

// includes reports whether the interval contains the whole of another one.
func (i interval) includes(j interval) bool { return i.contains(j.first) && i.contains(j.last) }

// extentOf returns the interval of a line.
func extentOf(l task.LedgerLine) interval { return interval{l.First.Time, l.Last.Time} }

// counted returns the interval in which the ticks are that a line counts without naming each of them, and how many they are.
// The count is 0 if the line names all its ticks.
func counted(l task.LedgerLine) (interval, int64) {
	switch {
	case l.Kind == task.LedgerHour:
		return interval{l.HiddenFirst.Time, l.HiddenLast.Time}, l.Count - int64(len(l.Named))
	case l.Count > 1:
		return extentOf(l), l.Count
	}

	return interval{}, 0
}

// mayCount reports whether a tick may be one of those that a line counts.
func mayCount(l task.LedgerLine, tick time.Time) bool {
	i, n := counted(l)
	return n > 0 && i.contains(tick)
}

// ledgerLines returns the lines of the ledger about ticks of an interval. Lines about requested runs and about unreadable
// records belong to no tick and are left out.
func (f *Facts) ledgerLines(i interval) []task.LedgerLine {
	if f.Ledger == nil {
		return nil
	}

	return slices.DeleteFunc(slices.Clone(f.Ledger.Between(i.first, i.last.Add(tickPrecision))), func(l task.LedgerLine) bool {
		return l.Kind != task.LedgerSucceeded && l.Kind != task.LedgerException && l.Kind != task.LedgerHour
	})
}

// requestedLines returns the lines about single requested runs from from (inclusive) to to (exclusive), the newest first.
func (f *Facts) requestedLines(from, to time.Time) []task.LedgerLine {
	if f.Ledger == nil {
		return nil
	}

	return slices.DeleteFunc(slices.Clone(f.Ledger.Between(from, to)), func(l task.LedgerLine) bool {
		return l.Kind != task.LedgerRequested || l.First.Before(from) || !l.First.Before(to)
	})
}

// ledgerTicks returns the ticks that the ledger names from from (inclusive) to to (exclusive), whatever the schedule was.
func (f *Facts) ledgerTicks(from, to time.Time) []time.Time {
	var ticks []time.Time
	add := func(at task.Time) {
		if !at.Before(from) && at.Before(to) && !slices.ContainsFunc(ticks, at.Equal) {
			ticks = append(ticks, at.Time)
		}
	}

	for _, l := range f.ledgerLines(interval{from, to.Add(-tickPrecision)}) {
		if l.Kind != task.LedgerHour {
			add(l.First)
			add(l.Last)
		}

		for _, tick := range l.Named {
			add(tick)
		}
	}

	return ticks
}

// applyNamedTick sets the outcome of a tick that the ledger names: an exception, a tick that an hour names, or one of the
// ends of a span or of a range. It returns false if there is no such line.
func (f *Facts) applyNamedTick(g *finding) bool {
	lines := f.ledgerLines(interval{g.tick, g.tick})
	find := func(kind task.LedgerKind, matches func(task.LedgerLine) bool) *task.LedgerLine {
		i := slices.IndexFunc(lines, func(l task.LedgerLine) bool { return l.Kind == kind && matches(l) })
		if i < 0 {
			return nil
		}

		return &lines[i]
	}

	isEnd := func(l task.LedgerLine) bool { return l.First.Equal(g.tick) || l.Last.Equal(g.tick) }
	if l := find(task.LedgerException, func(l task.LedgerLine) bool { return l.Count <= 1 && isEnd(l) }); l != nil {
		f.applyLine(g, l)
		return true
	}

	named := func(l task.LedgerLine) bool {
		return slices.ContainsFunc(l.Named, func(at task.Time) bool { return at.Equal(g.tick) })
	}
	if l := find(task.LedgerHour, named); l != nil {
		f.applyCauses(g, l)
		return true
	}

	for _, kind := range []task.LedgerKind{task.LedgerException, task.LedgerSucceeded} {
		if l := find(kind, isEnd); l != nil {
			f.applyLine(g, l)
			return true
		}
	}

	return false
}

// applyCountedTick sets the outcome of a decided tick that the ledger counts without naming it. It returns false if no line
// is about that time.
func (f *Facts) applyCountedTick(g *finding, all []version) bool {
	lines := slices.DeleteFunc(f.ledgerLines(interval{g.tick, g.tick}), func(l task.LedgerLine) bool { return !mayCount(l, g.tick) })
	if len(lines) == 0 {
		return false
	}

	// A range or an hour that accounts for all its ticks on its own leaves no room for the successes around it.
	inSpan := true
	for i := range lines {
		if lines[i].Kind == task.LedgerSucceeded {
			continue
		}

		inSpan = false
		if region, _ := counted(lines[i]); f.hasAllOutcomes(all, region) && isOnlyLine(region, lines) {
			f.applyCauses(g, &lines[i])
			return true
		}
	}

	if inSpan && f.isWholeSpan(all, lines[0]) {
		f.applyLine(g, &lines[0])
		return true
	}

	f.applyUncertain(g, all, lines)

	return true
}

// isOnlyLine reports whether only one of the lines that may count a tick lies within a region.
func isOnlyLine(region interval, lines []task.LedgerLine) bool {
	n := 0
	for _, l := range lines {
		if i, _ := counted(l); region.includes(i) {
			n++
		}
	}

	return n == 1
}

// isWholeSpan reports whether all ticks of a span succeeded that no other line names or counts. A range, or an hour, can
// count ticks inside and outside of the span. So the region grows until it contains all that such a line counts.
func (f *Facts) isWholeSpan(all []version, span task.LedgerLine) bool {
	region := extentOf(span)
	if whole, ok := f.wholeSpans[region]; ok {
		return whole
	}

	whole := false
	for range regionRounds {
		if whole = f.hasAllOutcomes(all, region); whole {
			break
		}

		grown := region
		for _, l := range f.ledgerLines(region) {
			i, n := counted(l)
			if n == 0 || i.last.Before(region.first) || i.first.After(region.last) {
				continue
			}

			if i.first.Before(grown.first) {
				grown.first = i.first
			}
			if i.last.After(grown.last) {
				grown.last = i.last
			}
		}

		if grown == region {
			break
		}

		region = grown
	}

	if f.wholeSpans != nil {
		f.wholeSpans[extentOf(span)] = whole
	}

	return whole
}

// hasAllOutcomes reports whether the lines and the records that lie within a region account for each of its ticks. Lines
// that extend beyond the region count nothing, so that the answer is never yes by mistake.
func (f *Facts) hasAllOutcomes(all []version, region interval) bool {
	want, ok := f.countTicks(all, region)
	if !ok {
		return false
	}

	// Each tick that is named must be one of those that were counted. Otherwise the schedule was another one then.
	var have int64
	isKnown := true
	add := func(count int64, ticks ...task.Time) {
		have += count
		isKnown = isKnown && !slices.ContainsFunc(ticks, func(at task.Time) bool { return !isTickOf(all, at.Time) })
	}

	for _, l := range f.ledgerLines(region) {
		for _, tick := range l.Named {
			if region.contains(tick.Time) {
				add(1, tick)
			}
		}

		i, n := counted(l)
		switch {
		case l.Kind != task.LedgerHour && l.Count == 1 && region.contains(l.First.Time):
			add(1, l.First)
		case n > 0 && region.includes(i) && l.Kind == task.LedgerHour:
			add(n, l.HiddenFirst, l.HiddenLast)
		case n > 0 && region.includes(i):
			add(n, l.First, l.Last)
		}
	}

	for _, r := range f.Runs {
		switch {
		case r.Trigger == task.TriggerManual || !region.contains(r.ScheduledTime.Time):
		case r.Count <= 1:
			add(1, r.ScheduledTime)
		case region.contains(r.Last.Time):
			add(r.Count, r.ScheduledTime, r.Last)
		}
	}

	return isKnown && have == want
}

// isTickOf reports whether an instant is a tick of the version that was in force.
func isTickOf(all []version, at time.Time) bool {
	v := inForce(all, at)
	return v != nil && !v.vague && v.isTick(at)
}

// isCountable reports whether the ticks of a version can be computed. v may be nil.
func (v *version) isCountable() bool {
	if v == nil || v.vague || v.schedule == nil {
		return false
	}

	_, afterRuns := v.completionPeriod()

	return !afterRuns
}

// countTicks returns the number of decided ticks of the versions that were in force in a region. ok is false if they cannot
// be computed.
func (f *Facts) countTicks(all []version, region interval) (count int64, ok bool) {
	cuts := []time.Time{region.first.Add(-tickPrecision), region.last}
	add := func(at time.Time) {
		if !at.Before(region.first) && at.Before(region.last) {
			cuts = append(cuts, task.At(at).Time)
		}
	}

	f.stateChanges(all, add)
	slices.SortFunc(cuts, time.Time.Compare)

	decided := f.lastDecided(all)
	for i := 1; i < len(cuts); i++ {
		after, upTo := cuts[i-1], cuts[i]
		if !after.Before(decided) {
			break
		}
		if upTo.After(decided) {
			upTo = decided
		}

		v := inForce(all, upTo)
		if v == nil && f.Task != nil && !upTo.After(f.Task.CreatedAt.Time) {
			continue
		}
		if !v.isCountable() {
			return 0, false
		}

		first, _, n, _ := v.schedule.Missed(after, upTo, 0)
		if n > 0 && f.pauseAt(all, first) == nil && !f.maxRunsReached(first) {
			count += n
		}
	}

	return count, true
}

// lastDecided returns the last instant up to which all ticks of the task are decided, as far as the watermark shows that.
func (f *Facts) lastDecided(all []version) time.Time {
	if f.Watermark == nil || !f.Covered {
		return f.Now
	}

	if v := inForce(all, f.Watermark.Time); v != nil {
		if tick, ok := v.lastDue(f.Watermark.Time); ok {
			return tick
		}
	}

	return f.Watermark.Time
}

// applyLine sets the outcome that a line has for all its ticks.
func (f *Facts) applyLine(g *finding, l *task.LedgerLine) {
	g.line = l
	if l.Kind == task.LedgerSucceeded {
		g.verdict = task.VerdictSucceeded
		return
	}

	f.applyRecord(g, runOfLine(l))
}

// applyCauses sets the outcome of a tick that did not succeed. Only its state or its reason may be unknown, if its hour had
// several.
func (f *Facts) applyCauses(g *finding, l *task.LedgerLine) {
	if l.Kind != task.LedgerHour {
		f.applyLine(g, l)
		return
	}

	// The state and the reason are certain if all that the hour counts have the same.
	one := *l
	for i, cause := range slices.Sorted(maps.Keys(l.Causes)) {
		state, reason := splitCause(cause)
		if i == 0 {
			one.State, one.Reason = state, reason
		}

		if one.State != state {
			g.line, g.verdict = l, task.VerdictForgotten
			g.detail = "did not succeed; how it ended is no longer on record: in its hour, " + f.hourWords(l)
			g.unknown = append(g.unknown, "how the tick ended: of an hour with many that did not succeed, only their number is kept")

			return
		}

		if one.Reason != reason {
			one.Reason = ""
		}
	}

	one.First, one.Last, one.Count = task.At(g.tick), task.At(g.tick), 1
	f.applyRecord(g, runOfLine(&one))
	g.line = l

	if one.Reason == "" {
		g.detail = "in its hour, " + f.hourWords(l)
	}
}

// applyUncertain describes what the ledger counts around a tick of which it does not show the outcome.
func (f *Facts) applyUncertain(g *finding, all []version, lines []task.LedgerLine) {
	l := &lines[0]
	if i := slices.IndexFunc(lines, func(l task.LedgerLine) bool { return l.Kind != task.LedgerSucceeded }); i >= 0 {
		l = &lines[i]
	}

	g.line, g.verdict = l, task.VerdictForgotten

	// How many ticks there were is not known if a version of that time is no longer kept.
	among := "in the time around it, "
	n, isKnown := f.countTicks(all, extentOf(*l))
	if isKnown {
		among = fmt.Sprintf("of %s, ", formatCount(n, "tick", "ticks"))
	}

	switch {
	case l.Kind == task.LedgerHour:
		g.detail = "was decided; whether it succeeded is no longer on record: in that hour, "
		if isKnown {
			g.detail += among
		}
		g.detail += f.hourWords(l)
		g.unknown = append(g.unknown, "the outcome: of an hour with many ticks that did not succeed, only their number is kept")
	case l.Kind == task.LedgerException:
		g.detail = fmt.Sprintf("was decided; whether it %s is no longer on record: %s%d %s", verdictWords(ofState[l.State], 1), among, l.Count, verdictWords(ofState[l.State], l.Count))
		g.unknown = append(g.unknown, "the outcome: the ledger does not have every tick of that time")
	default:
		g.detail = fmt.Sprintf("was decided; whether it succeeded is no longer on record: %s%d succeeded", among, l.Count)
		g.unknown = append(g.unknown, "the outcome: the ledger does not have every tick of that time")
	}
}

// hourWords describes the ticks that did not succeed in the hour of a line.
func (f *Facts) hourWords(hour *task.LedgerLine) string {
	words := causeWords(f.hourCauses(hour))
	if f.isHistoryCut(hour.Last.Time) {
		return "at least " + words
	}

	return words
}

// isHistoryCut reports whether ended runs up to a time may be missing in Runs, because the history has more than were read.
func (f *Facts) isHistoryCut(upTo time.Time) bool {
	if !f.CutAt.IsZero() {
		return f.CutAt.Before(upTo)
	}

	return f.Newer > 0 && !slices.ContainsFunc(f.Runs, func(r task.Run) bool { return r.State.Final() && r.ScheduledTime.After(upTo) })
}

// hourCauses returns why ticks did not succeed in the hour of a line: those that this line counts, and all others of which
// the outcome was read.
func (f *Facts) hourCauses(hour *task.LedgerLine) map[string]int64 {
	causes := map[string]int64{}
	add := func(state task.State, reason string, n int64) {
		if cause := string(state); reason == "" {
			causes[cause] += n
		} else {
			causes[cause+": "+reason] += n
		}
	}

	i := extentOf(*hour)
	for _, l := range f.ledgerLines(i) {
		if l.Kind == task.LedgerException && i.includes(extentOf(l)) {
			add(l.State, l.Reason, l.Count)
		}

		if l.Kind == task.LedgerHour {
			for cause, n := range l.Causes {
				causes[cause] += n
			}
		}
	}

	for j := range f.Runs {
		r := &f.Runs[j]
		if r.Trigger != task.TriggerManual && r.State.Final() && r.State != task.Succeeded && i.contains(r.ScheduledTime.Time) {
			add(r.State, ledger.ReasonOf(r), max(r.Count, 1))
		}
	}

	return causes
}

// explainNoLine adds to a tick whose record was trimmed why the ledger does not have it either.
func (f *Facts) explainNoLine(g *finding) {
	switch {
	case f.Ledger == nil || f.Ledger.Since.IsZero():
	case g.tick.Before(f.Ledger.Since):
		g.unknown = append(g.unknown, "the outcome in the ledger of the task: it begins with the tick of "+f.Ledger.Since.UTC().Format("2006-01-02 15:04:05 MST"))
	default:
		g.unknown = append(g.unknown, "the outcome in the ledger of the task: it does not have the tick")
	}
}

// runOfLine returns what a line tells about a run or a range of ticks, in the form of a record.
func runOfLine(l *task.LedgerLine) *task.Run {
	r := &task.Run{ID: l.Run, ScheduledTime: l.First, State: l.State, Reason: l.Reason, Trigger: task.TriggerSchedule, Node: l.Node, Attempt: l.Attempt}
	if l.Kind == task.LedgerRequested {
		r.Trigger = task.TriggerManual
	}

	if l.Count > 1 {
		r.Count, r.Last = l.Count, l.Last
	}

	r.Reason, r.ExitCode, r.Signal, r.HTTPStatus = task.ParseLedgerReason(l.Reason)

	return r
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
func (f *Facts) describeLine(s speaker, g finding) string {
	tick := "the tick of " + s.formatTime(g.tick)
	l := g.line
	if l.Kind == task.LedgerSucceeded {
		if l.Count == 1 {
			return makeSentence("%s succeeded; further details are no longer kept (%s)", tick, lineFigures(l))
		}
		return makeSentence("%s succeeded; further details are no longer kept (of %d ticks that succeeded from %s to %s, the longest took %s)",
			tick, l.Count, s.formatTime(l.First.Time), s.formatTime(l.Last.Time), formatSpan(time.Duration(l.MaxMS)*time.Millisecond))
	}

	r := g.run
	if r.Trigger == task.TriggerManual {
		tick = "the run that was requested on " + s.formatTime(r.ScheduledTime.Time)
	}

	var text string
	switch r.State {
	case task.Skipped:
		text = "was skipped" + mentionOtherTicks(s, r) + ": " + f.skipWords(s, g)
	case task.Missed:
		text = "was missed" + mentionOtherTicks(s, r) + ": " + f.noSelector(g, reasonWords(r))
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
func (w *answerer) lineEvidence(add func(string, string, ...any), g finding) {
	l := g.line
	first, last := w.formatTime(l.First.Time), w.formatTime(l.Last.Time)

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
func (w *answerer) lineAnswer(l task.LedgerLine) task.Answer {
	g := finding{tick: l.First.Time, due: l.First.Time, version: inForce(w.all, l.First.Time)}
	w.applyLine(&g, &l)
	a := w.tickAnswer(g)
	a.Tick = nil

	return a
}

// ledgerAround describes what the ledger counts around an instant of which it is not known whether it was a tick. It
// returns "" if there is nothing.
func (w *answerer) ledgerAround(at time.Time) (string, *task.LedgerLine) {
	for _, l := range w.ledgerLines(interval{at, at}) {
		if !mayCount(l, at) {
			continue
		}

		from, to := w.formatTime(l.First.Time), w.formatTime(l.Last.Time)
		switch l.Kind {
		case task.LedgerHour:
			return fmt.Sprintf("in the hour from %s, %s", from, causeWords(l.Causes)), &l
		case task.LedgerException:
			return fmt.Sprintf("%d ticks from %s to %s %s", l.Count, from, to, verdictWords(ofState[l.State], l.Count)), &l
		default:
			return fmt.Sprintf("%d runs from %s to %s succeeded", l.Count, from, to), &l
		}
	}

	return "", nil
}

// isUncertain reports whether a line counts ticks of which it is not known which they were, or which outcome each had. In
// the answer about a range, such ticks share one line with everything else in that time.
func (f *Facts) isUncertain(all []version, l task.LedgerLine) bool {
	_, n := counted(l)
	if l.Kind == task.LedgerHour {
		_, ok := onlyState(l)
		return n > 0 || !ok
	}

	return l.Kind == task.LedgerSucceeded && n > 0 && !f.isWholeSpan(all, l)
}

// ledgerCuts adds the times at which the outcome can change according to the ledger. It returns the intervals of lines of
// which only the number of ticks is known. Within these, there are no cuts.
func (w *answerer) ledgerCuts(start, end time.Time, add func(time.Time)) []interval {
	lines := w.ledgerLines(interval{start, end})

	var blocks []interval
	for _, l := range lines {
		if w.isUncertain(w.all, l) {
			blocks = append(blocks, extentOf(l))
		}
	}

	for _, l := range lines {
		e := extentOf(l)
		if !slices.Contains(blocks, e) && slices.ContainsFunc(blocks, func(b interval) bool { return b.includes(e) }) {
			continue
		}

		add(e.first.Add(-tickPrecision))
		add(e.last)

		// The ends of a range, and the ticks that an hour names, are certain whatever is between them.
		if l.Kind == task.LedgerException && l.Count > 1 {
			add(e.first)
			add(e.last.Add(-tickPrecision))
		}

		if !slices.Contains(blocks, e) {
			for _, tick := range l.Named {
				add(tick.Add(-tickPrecision))
				add(tick.Time)
			}
		}
	}

	return blocks
}

// tally counts the ticks of a piece by verdict if it is not known which tick had which.
type tally map[task.Verdict]int64

// countOutcomes returns what the ledger counts in an interval with n ticks.
func (w *answerer) countOutcomes(i interval, n int64) tally {
	t := tally{}
	rest := n
	count := func(v task.Verdict, n int64) {
		n = min(n, rest)
		t[v] += n
		rest -= n
	}

	lines := w.ledgerLines(i)
	for _, l := range lines {
		switch {
		case l.Kind == task.LedgerHour:
			countHour(l, i, count)
		case l.Kind == task.LedgerException && i.includes(extentOf(l)):
			count(ofState[l.State], l.Count)
		}
	}

	for _, l := range lines {
		if l.Kind == task.LedgerSucceeded {
			count(task.VerdictSucceeded, w.countSpan(l, i))
		}
	}

	count(task.VerdictForgotten, rest)
	maps.DeleteFunc(t, func(_ task.Verdict, n int64) bool { return n == 0 })

	return t
}

// countSpan returns how many ticks of a span certainly are in an interval.
func (w *answerer) countSpan(span task.LedgerLine, i interval) int64 {
	part := extentOf(span)
	if i.includes(part) {
		return span.Count
	}

	if part.first.Before(i.first) {
		part.first = i.first
	}
	if part.last.After(i.last) {
		part.last = i.last
	}

	others, exact := w.notSucceeded(part)
	ticks, ok := w.countTicks(w.all, part)
	if !exact || !ok || !w.isWholeSpan(w.all, span) {
		return 0
	}

	return max(0, ticks-others)
}

// appendMixed appends a piece of which only the outcomes are counted. Successive ones become one piece. A piece without
// ticks only makes the one before longer.
func appendMixed(list []piece, p piece) []piece {
	if n := len(list); n > 0 && list[n-1].within.last.Add(tickPrecision).Equal(p.within.first) {
		before := &list[n-1]
		before.within.last = p.within.last
		if p.count > 0 {
			before.last, before.count = p.last, before.count+p.count
		}

		return list
	}

	if p.count == 0 {
		return list
	}

	return append(list, p)
}

// countMixed counts the outcomes of a piece.
func (w *answerer) countMixed(p *piece) {
	p.counts = w.countOutcomes(p.within, p.count)
	p.finding = finding{verdict: task.VerdictForgotten, tick: p.first, due: p.first, version: p.version}

	if len(p.counts) > 1 || p.counts[task.VerdictForgotten] > 0 {
		p.unknown = []string{"which ticks had which outcome: of some, only the number is kept"}
		return
	}

	for verdict := range p.counts {
		p.verdict = verdict
	}
}

// describeMixed returns the sentence about ticks of which only the outcomes are counted.
func (w *answerer) describeMixed(s *task.Stretch, counts tally) string {
	return makeSentence("%d ticks from %s to %s: %s; the ledger does not name all of them", s.Count, w.formatTime(s.First.Time), w.formatTime(s.Last.Time), countWords(counts))
}

// linePieces returns the pieces for lines that begin in an interval in which ticks cannot be computed, because the version of
// that time is no longer kept or its ticks depended on runs. In other intervals, these are only exceptions that are no tick
// of the version. asked is the range in question.
func (w *answerer) linePieces(v *version, i, asked interval) []piece {
	var list []piece
	for _, l := range slices.Backward(w.ledgerLines(i)) {
		e := extentOf(l)
		isNoTick := l.Kind == task.LedgerException && l.Count <= 1 && !isTickOf(w.all, l.First.Time)
		if !i.contains(e.first) || !asked.includes(e) || v.isCountable() && !isNoTick {
			continue
		}

		p := piece{finding: finding{tick: e.first, due: e.first, verdict: task.VerdictForgotten}, first: e.first, last: e.last, count: l.Count}
		if l.Kind != task.LedgerHour {
			w.applyLine(&p.finding, &l)
			list = append(list, p)
			continue
		}

		p.counts = tally{}
		for cause, n := range l.Causes {
			state, _ := splitCause(cause)
			p.counts[ofState[state]] += n
		}

		if state, ok := onlyState(l); ok {
			p.verdict = ofState[state]
		}

		list = append(list, p)
	}

	return list
}

// addRequestedLines adds the requested runs of a range that are in the ledger.
func (w *answerer) addRequestedLines(m *task.Stretch, start, end time.Time) {
	for _, l := range w.requestedLines(start, end.Add(tickPrecision)) {
		if m.Count == 0 || l.First.Before(m.First.Time) {
			m.First = l.First
		}

		if l.First.After(m.Last.Time) {
			m.Last, m.Verdict = l.First, ofState[l.State]
		}

		m.Count++
	}
}

// notSucceeded returns how many ticks of an interval did not succeed according to the ledger. exact is false if a line counts
// ticks of which some may be outside.
func (f *Facts) notSucceeded(i interval) (n int64, exact bool) {
	exact = true
	for _, l := range f.ledgerLines(i) {
		if l.Kind == task.LedgerSucceeded {
			continue
		}

		for _, tick := range l.Named {
			if i.contains(tick.Time) {
				n++
			}
		}

		switch where, unnamed := counted(l); {
		case l.Kind == task.LedgerException && l.Count == 1:
			n++
		case unnamed == 0 || where.last.Before(i.first) || where.first.After(i.last):
		case i.includes(where):
			n += unnamed
		default:
			exact = false
		}
	}

	return n, exact
}

// countHour counts the ticks of an hour that did not succeed and certainly are in an interval.
func countHour(l task.LedgerLine, i interval, count func(task.Verdict, int64)) {
	n := int64(0)
	for _, tick := range l.Named {
		if i.contains(tick.Time) {
			n++
		}
	}

	if hidden, h := counted(l); h > 0 && i.includes(hidden) {
		n += h
	}

	if n == l.Count {
		for cause, n := range l.Causes {
			state, _ := splitCause(cause)
			count(ofState[state], n)
		}

		return
	}

	// Of an hour with several states, it is not known which state these ticks had.
	verdict := task.VerdictForgotten
	if state, ok := onlyState(l); ok {
		verdict = ofState[state]
	}

	count(verdict, n)
}

// onlyState returns the state of all ticks that an hour counts. ok is false if they had several.
func onlyState(l task.LedgerLine) (only task.State, ok bool) {
	for cause := range l.Causes {
		state, _ := splitCause(cause)
		if only != "" && only != state {
			return "", false
		}
		only = state
	}

	return only, only != ""
}
