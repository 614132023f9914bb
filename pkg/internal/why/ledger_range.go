package why

import (
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

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
