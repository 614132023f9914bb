package why

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// isUncertain reports whether it is unknown which ticks a line counts, or which outcome each of them had. In the answer about a
// range, such ticks share one line with everything else in that time.
func (f *Facts) isUncertain(all []version, l task.LedgerLine) bool {
	_, n := counted(l)
	if l.Kind == task.LedgerHour {
		_, ok := onlyState(l)
		return n > 0 || !ok
	}

	return l.Kind == task.LedgerSucceeded && n > 0 && !f.isWholeSpan(all, l)
}

// ledgerCuts adds the times at which the outcome can change according to the ledger. It returns the blocks in order: the intervals
// of lines for which only the number of ticks is known. There are no cuts within a block.
func (an *answerer) ledgerCuts(start, end time.Time, add func(time.Time)) []interval {
	lines := an.ledgerLines(interval{start, end})
	blocks := an.uncertainBlocks(lines)

	for _, l := range lines {
		e := extentOf(l)
		if slices.ContainsFunc(blocks, func(b interval) bool { return b.includes(e) }) {
			continue
		}

		add(e.first.Add(-tickPrecision))
		add(e.last)

		// The ends of a range, and the ticks that an hour names, are certain whatever is between them.
		if l.Kind == task.LedgerException && l.Count > 1 {
			add(e.first)
			add(e.last.Add(-tickPrecision))
		}

		for _, tick := range l.Named {
			add(tick.Add(-tickPrecision))
			add(tick.Time)
		}
	}

	for _, b := range blocks {
		add(b.first.Add(-tickPrecision))
		add(b.last)
	}

	return blocks
}

// uncertainBlocks returns the intervals of uncertain lines, in order. Those that overlap or adjoin are one block. A range of
// ticks is in one block, or in none.
func (an *answerer) uncertainBlocks(lines []task.LedgerLine) []interval {
	var blocks []interval
	for _, l := range slices.Backward(lines) {
		isRange := l.Kind == task.LedgerException && l.Count > 1
		isBesideUncertain := func(m task.LedgerLine) bool { return extentOf(m).overlaps(extentOf(l)) && an.isUncertain(an.all, m) }

		if an.isUncertain(an.all, l) || isRange && slices.ContainsFunc(lines, isBesideUncertain) {
			blocks = append(blocks, extentOf(l))
		}
	}

	slices.SortFunc(blocks, func(a, b interval) int { return a.first.Compare(b.first) })

	var merged []interval
	for _, b := range blocks {
		if n := len(merged); n > 0 && !b.first.After(merged[n-1].last.Add(tickPrecision)) {
			merged[n-1] = merged[n-1].union(b)
		} else {
			merged = append(merged, b)
		}
	}

	return merged
}

// countOutcomes returns the counts of the ledger for an interval with n ticks, without those in groups.
func (an *answerer) countOutcomes(i interval, n int64) tally {
	t := tally{}
	rest := n
	count := func(v task.Verdict, n int64) {
		n = min(n, rest)
		t[v] += n
		rest -= n
	}

	lines := an.ledgerLines(i)
	var inGroups int64
	for _, l := range lines {
		switch {
		case an.isGroup(l):
			// It was counted as a whole, if it is within the range. Its ticks are among those that remain.
			if e := ticksOf(l); i.includes(e) {
				computed, _ := an.countTicks(an.all, e)
				inGroups += min(l.Count, computed)
			}
		case l.Kind == task.LedgerHour:
			countHour(l, i, count)
		case l.Kind == task.LedgerException && i.includes(extentOf(l)):
			count(ofState[l.State], l.Count)
		}
	}

	for _, l := range lines {
		if l.Kind == task.LedgerSucceeded && !an.isGroup(l) {
			count(task.VerdictSucceeded, an.countSpan(l, i))
		}
	}

	count(task.VerdictForgotten, max(0, rest-inGroups))
	maps.DeleteFunc(t, func(_ task.Verdict, n int64) bool { return n == 0 })

	return t
}

// countSpan returns how many ticks of a span certainly are in an interval.
func (an *answerer) countSpan(span task.LedgerLine, i interval) int64 {
	if i.includes(extentOf(span)) {
		return span.Count
	}

	part := extentOf(span).intersect(i)

	others, exact := an.notInSpan(part)
	ticks, ok := an.countTicks(an.all, part)
	if !exact || !ok || !an.isWholeSpan(an.all, span) {
		return 0
	}

	return max(0, ticks-others)
}

// countMixed counts the outcomes of a piece.
func (an *answerer) countMixed(p *piece) {
	p.counts = an.countOutcomes(p.within, p.count)
	p.count = 0
	for _, n := range p.counts {
		p.count += n
	}

	p.finding = finding{verdict: task.VerdictForgotten, tick: p.first, due: p.first, version: p.version}

	if len(p.counts) > 1 || p.counts[task.VerdictForgotten] > 0 {
		p.unknown = []string{"which ticks had which outcome: of some, only the number is kept"}
		return
	}

	for verdict := range p.counts {
		p.verdict = verdict
	}
}

// describeMixed returns the sentence about ticks whose outcomes are only counted.
func (an *answerer) describeMixed(s *task.Stretch, counts tally) string {
	return makeSentence("%s from %s to %s: %s; the ledger does not name all of them", formatCount(s.Count, "tick", "ticks"), an.formatTime(s.First.Time), an.formatTime(s.Last.Time), countWords(counts))
}

// isGroup reports whether some ticks of a line cannot be computed, or are not ticks of the schedule. Such a line is counted as a
// whole.
func (an *answerer) isGroup(l task.LedgerLine) bool {
	isNoTick := l.Kind == task.LedgerException && l.Count <= 1 && !isTickOf(an.all, l.First.Time)

	return isNoTick || !isComputable(an.all, an.Task, ticksOf(l))
}

// isInGroup reports whether the ticks of a piece are counted with a group that lies within a range.
func (an *answerer) isInGroup(p piece, asked interval) bool {
	switch {
	case p.line != nil:
		return an.isGroup(*p.line) && asked.includes(ticksOf(*p.line))
	case p.run != nil && p.run.Count > 1:
		e := interval{p.run.ScheduledTime.Time, p.run.Last.Time}
		return !isComputable(an.all, an.Task, e) && asked.includes(e)
	}

	return false
}

// groupPieces returns the pieces for the groups of a range: lines of the ledger, and records of several ticks, of which some
// ticks cannot be computed. They are in the order of time.
func (an *answerer) groupPieces(asked interval) []piece {
	var list []piece
	add := func(e interval, count int64, describe func(p *piece)) {
		p := piece{finding: finding{tick: e.first, due: e.first, verdict: task.VerdictForgotten}, first: e.first, last: e.last, count: count}
		if asked.includes(e) {
			describe(&p)
		} else {
			p.first, p.count = e.intersect(asked).first, 0
			p.unknown = []string{fmt.Sprintf("how many of %s from %s to %s are in the range: only their number is kept",
				formatCount(count, "tick", "ticks"), an.formatTime(e.first), an.formatTime(e.last))}
		}

		list = append(list, p)
	}

	for _, l := range an.ledgerLines(asked) {
		e := ticksOf(l)
		if an.isGroup(l) && e.overlaps(asked) {
			add(e, l.Count, func(p *piece) { an.applyGroup(p, l) })
		}
	}

	for i := range an.Runs {
		r := &an.Runs[i]
		e := interval{r.ScheduledTime.Time, r.Last.Time}
		if r.Ticks() > 0 && r.Count > 1 && e.overlaps(asked) && !isComputable(an.all, an.Task, e) {
			add(e, r.Count, func(p *piece) { an.applyRecord(&p.finding, r) })
		}
	}

	slices.SortStableFunc(list, func(a, b piece) int { return a.first.Compare(b.first) })

	return list
}

// applyGroup sets the outcomes of the ticks of a line.
func (an *answerer) applyGroup(p *piece, l task.LedgerLine) {
	if l.Kind != task.LedgerHour {
		an.applyLine(&p.finding, &l)
		return
	}

	p.counts = tally{}
	for cause, n := range l.Causes {
		state, _ := splitCause(cause)
		p.counts[ofState[state]] += n
	}

	if state, ok := onlyState(l); ok {
		p.verdict = ofState[state]
	}
}

// addRequestedLines adds the requested runs of a range that are in the ledger. It returns how many of them other tasks started.
func (an *answerer) addRequestedLines(m *task.Stretch, start, end time.Time) (triggered int64) {
	for _, l := range an.requestedLines(start, end.Add(tickPrecision)) {
		if l.State == task.Skipped || l.State == task.Missed {
			continue
		}

		if m.Count == 0 || l.First.Before(m.First.Time) {
			m.First = l.First
		}

		if l.Last.After(m.Last.Time) {
			m.Last, m.Verdict = l.Last, ofState[l.State]
		}

		m.Count += max(l.Count, 1)
		if requestedTrigger(&l) == task.TriggerAfter {
			triggered += max(l.Count, 1)
		}
	}

	return triggered
}

// notInSpan returns how many ticks of an interval have a record, or did not succeed according to the ledger. exact is false
// if a line or a record also counts ticks that may be outside.
func (f *Facts) notInSpan(i interval) (n int64, exact bool) {
	exact = true
	addGroup := func(where interval, count int64) {
		switch {
		case count == 0 || where.last.Before(i.first) || where.first.After(i.last):
		case i.includes(where):
			n += count
		default:
			exact = false
		}
	}

	for _, l := range f.ledgerLines(i) {
		if l.Kind == task.LedgerSucceeded {
			continue
		}

		for _, tick := range l.Named {
			if i.contains(tick.Time) {
				n++
			}
		}

		if l.Kind == task.LedgerException {
			addGroup(extentOf(l), l.Count)
		} else {
			addGroup(counted(l))
		}
	}

	for _, r := range f.Runs {
		switch {
		case r.Ticks() == 0:
		case r.Count <= 1:
			addGroup(interval{r.ScheduledTime.Time, r.ScheduledTime.Time}, 1)
		default:
			addGroup(interval{r.ScheduledTime.Time, r.Last.Time}, r.Count)
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
		for _, cause := range slices.Sorted(maps.Keys(l.Causes)) {
			state, _ := splitCause(cause)
			count(ofState[state], l.Causes[cause])
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
