package why

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/task"
)

// The ledger of a task records the outcomes of ticks after their records were trimmed: see package ledger. It names single
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

// overlaps reports whether two intervals have an instant in common.
func (i interval) overlaps(j interval) bool { return !i.last.Before(j.first) && !i.first.After(j.last) }

// intersect returns the part of an interval that is in another one, which overlaps it.
func (i interval) intersect(j interval) interval {
	if i.first.Before(j.first) {
		i.first = j.first
	}
	if i.last.After(j.last) {
		i.last = j.last
	}

	return i
}

// union returns the interval from the beginning of the first of two intervals to the end of the last.
func (i interval) union(j interval) interval {
	if j.first.Before(i.first) {
		i.first = j.first
	}
	if j.last.After(i.last) {
		i.last = j.last
	}

	return i
}

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

// ticksOf returns the interval from the first to the last tick that a line describes. Of an hour, that may be less than its
// extent: the task may have been created in it.
func ticksOf(l task.LedgerLine) interval {
	if l.Kind != task.LedgerHour {
		return extentOf(l)
	}

	i, hidden := counted(l)
	for _, tick := range l.Named {
		if hidden == 0 {
			i = interval{tick.Time, tick.Time}
		}
		i, hidden = i.union(interval{tick.Time, tick.Time}), 1
	}

	return i
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
			if n == 0 || !i.overlaps(region) {
				continue
			}

			grown = grown.union(i)
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
		case r.Ticks() == 0 || !region.contains(r.ScheduledTime.Time):
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

// isComputable reports whether the ticks of all versions that were in force in an interval can be computed.
func isComputable(all []version, t *task.Task, i interval) bool {
	if len(all) == 0 {
		return false
	}

	// There were no ticks before the task was created. The versions before the oldest one that is kept had some.
	oldest := all[0].startTime()
	if !i.first.After(oldest) && t != nil && t.CreatedAt.Before(oldest) {
		return false
	}

	return !slices.ContainsFunc(all, func(v version) bool {
		isInForce := v.startTime().Before(i.last) && (v.until.IsZero() || !v.until.Before(i.first))
		return isInForce && !v.isCountable()
	})
}

// countTicks returns the number of decided ticks of the versions that were in force in a region. If ok is false, those of
// some versions cannot be computed, and are not among them.
func (f *Facts) countTicks(all []version, region interval) (count int64, ok bool) {
	cuts := []time.Time{region.first.Add(-tickPrecision), region.last}
	add := func(at time.Time) {
		if !at.Before(region.first) && at.Before(region.last) {
			cuts = append(cuts, task.At(at).Time)
		}
	}

	f.stateChanges(all, add)
	slices.SortFunc(cuts, time.Time.Compare)

	ok = true
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
			ok = false
			continue
		}

		first, _, n, _ := v.schedule.Missed(after, upTo, 0)
		if n > 0 && f.pauseAt(all, first) == nil && !f.maxRunsReached(first) {
			count += n
		}
	}

	return count, ok
}

// lastDecided returns the last instant up to which all ticks of the task are decided, as far as its entry and the watermark show that.
func (f *Facts) lastDecided(all []version) time.Time {
	if f.Watermark == nil || !f.Covered {
		return f.Now
	}

	decided := f.Watermark.Time
	if v := inForce(all, decided); v != nil {
		if tick, ok := v.lastDue(decided); ok {
			decided = tick
		}
	}

	// A task that was behind is decided further than its shard.
	if f.Entry != nil && f.Entry.From.After(decided) {
		decided = f.Entry.From.Time
	}

	return decided
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

// applyUncertain describes what the ledger counts around a tick whose outcome it does not show.
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
		if r.Ticks() > 0 && r.State.Final() && r.State != task.Succeeded && i.contains(r.ScheduledTime.Time) {
			add(r.State, ledger.ReasonOf(r), max(r.Count, 1))
		}
	}

	return causes
}

// explainNoLine adds to a tick whose record was trimmed why the ledger does not have it either.
func (f *Facts) explainNoLine(g *finding) {
	if f.Ledger == nil || f.isComplete(g.tick) && f.Ledger.Since.IsZero() {
		return
	}

	since, ok := f.Ledger.CompleteSince(f.Task.CreatedAt.Time)
	because := "it does not have the tick"
	switch {
	case f.isComplete(g.tick):
	case ok:
		because = "history and ledger are complete only since " + since.UTC().Format("2006-01-02 15:04:05 MST")
	case f.Ledger.Broken > 0:
		because = "a part of it cannot be read"
	default:
		because = "records are deleted without being counted (history.ledger, or the setting or the limit of the cluster)"
	}

	g.unknown = append(g.unknown, "the outcome in the ledger of the task: "+because)
}

// tally counts the ticks of a piece by verdict if it is not known which tick had which.
type tally map[task.Verdict]int64
