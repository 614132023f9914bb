package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Book is the whole ledger of a task, for questions. Its times are absolute.
type Book struct {
	Since  time.Time         // the first tick in the ledger; zero: it is empty
	Lines  []task.LedgerLine // the newest first, by their last ticks; those about a longer time precede those inside it
	Broken int               // chunks that cannot be read

	gone      time.Time // ticks up to this time may be missing from both the ledger and the history; zero: none
	uncounted bool      // records are deleted without being counted
}

// IsComplete reports whether a tick whose run has ended is certainly in the history or in the ledger.
func (b *Book) IsComplete(tick time.Time) bool {
	return b.Broken == 0 && !b.uncounted && tick.After(b.gone)
}

// CompleteSince returns the time from which each tick whose run has ended is in the history or in the ledger.
// created is when the task was created. ok is false if no such time is known: a chunk cannot be read, or the task has no
// ledger and its history has been trimmed.
func (b *Book) CompleteSince(created time.Time) (since time.Time, ok bool) {
	switch {
	case b.Broken > 0 || b.uncounted:
		return time.Time{}, false
	case b.gone.IsZero():
		return created, true
	}

	return b.gone.Truncate(time.Second).Add(time.Second), true // a whole second, for people
}

// NewBook reads the ledger of the task with this uid from the values of its chunks, in the order of their keys. Chunks of
// other tasks of that name are ignored.
//
// Spans that overlap are one line. They come from different chunks, because a run that took long is folded later than
// those around it: no span is complete without the others. An hour has one line for each chunk that counts ticks of it.
func NewBook(uid string, chunks [][]byte) *Book {
	b := &Book{}
	var spans []absoluteSpan

	for _, value := range chunks {
		c, _, err := Decode(value)
		if err != nil {
			b.Broken++
			continue
		}
		if c.UID != uid {
			continue
		}

		if c.Gone.After(b.gone) {
			b.gone = c.Gone.Time
		}
		b.uncounted = b.uncounted || c.Uncounted

		if first, _ := c.bounds(); !c.IsEmpty() && !first.IsZero() && (b.Since.IsZero() || first.Before(b.Since)) {
			b.Since = first
		}

		for i := range c.Spans {
			spans = append(spans, absoluteSpan{Span: c.Spans[i], first: c.time(c.Spans[i].First), last: c.time(c.Spans[i].Last)})
		}

		b.addChunk(&c)
	}

	for _, s := range mergeOverlapping(spans) {
		b.Lines = append(b.Lines, task.LedgerLine{
			Kind: task.LedgerSucceeded, First: task.At(s.first), Last: task.At(s.last), Count: s.Count,
			MeanMS: s.DurationMS / s.Count, MaxMS: s.MaxDurationMS, MaxLatenessMS: s.MaxLatenessMS,
		})
	}

	slices.SortStableFunc(b.Lines, func(a, b task.LedgerLine) int {
		return cmp.Or(b.Last.Compare(a.Last.Time), a.First.Compare(b.First.Time))
	})

	return b
}

// addChunk adds the lines of a chunk, except its spans.
func (b *Book) addChunk(c *Chunk) {
	for i := range c.Exceptions {
		b.Lines = append(b.Lines, c.entryLine(task.LedgerException, &c.Exceptions[i]))
	}

	for i := range c.Hours {
		b.Lines = append(b.Lines, c.hourLine(&c.Hours[i]))
	}

	for i := range c.Requested {
		b.Lines = append(b.Lines, c.entryLine(task.LedgerRequested, &c.Requested[i]))
	}

	// When these were is not known, except that they were folded together with the others of the chunk.
	first, last := c.bounds()
	if len(c.RequestedMore) > 0 {
		line := task.LedgerLine{Kind: task.LedgerRequestedMore, First: task.At(first), Last: task.At(last), Causes: causeTexts(c.RequestedMore)}
		for _, count := range c.RequestedMore {
			line.Count += count
		}

		b.Lines = append(b.Lines, line)
	}

	if c.Unreadable > 0 {
		b.Lines = append(b.Lines, task.LedgerLine{Kind: task.LedgerUnreadable, First: task.At(first), Last: task.At(last), Count: c.Unreadable})
	}
}

// entryLine returns the line of an exception or of a requested run.
func (c *Chunk) entryLine(kind task.LedgerKind, e *Exception) task.LedgerLine {
	return task.LedgerLine{
		Kind: kind, First: task.At(c.time(e.First)), Last: task.At(c.time(e.last())), Count: e.Count,
		State: e.State, Reason: e.Reason, Attempt: e.Attempt, Node: e.Node, Run: c.runID(e), Late: e.Late,
	}
}

// hourLine returns the line of an hour. It ends with the last millisecond of the hour.
func (c *Chunk) hourLine(h *Hour) task.LedgerLine {
	line := task.LedgerLine{
		Kind: task.LedgerHour, First: task.At(c.time(h.Start)), Last: task.At(c.time(h.Start + hourTime - 1)), Count: h.Count, Causes: causeTexts(h.Causes),
	}

	for _, o := range h.Named {
		line.Named = append(line.Named, task.At(c.time(h.Start+o)))
	}

	if h.hidden() > 0 {
		line.HiddenFirst, line.HiddenLast = task.At(c.time(h.Start+h.HiddenFirst)), task.At(c.time(h.Start+h.HiddenLast))
	}

	return line
}

// causeTexts returns counts by cause for people.
func causeTexts(causes map[string]int64) map[string]int64 {
	texts := make(map[string]int64, len(causes))
	for cause, count := range causes {
		texts[causeText(cause)] += count
	}

	return texts
}

// absoluteSpan is a span with absolute times, which do not depend on its chunk.
type absoluteSpan struct {
	Span
	first, last time.Time
}

// mergeOverlapping merges spans that overlap. The result is in the order of time.
func mergeOverlapping(spans []absoluteSpan) []absoluteSpan {
	slices.SortStableFunc(spans, func(a, b absoluteSpan) int { return a.first.Compare(b.first) })

	var merged []absoluteSpan
	for _, s := range spans {
		n := len(merged)
		if n == 0 || s.first.After(merged[n-1].last) {
			merged = append(merged, s)
			continue
		}

		m := &merged[n-1]
		m.Span.merge(s.Span)
		if s.last.After(m.last) {
			m.last = s.last
		}
	}

	return merged
}

// Find returns the lines that cover the tick at an instant. An exception takes precedence over an hour that names the
// tick, and that over a span and an hour that may count it. The result is empty if the ledger has nothing about it.
//
// If the result is only a span, the tick succeeded if it was a tick of the task, and if the span counts all ticks from its
// first to its last one that nothing else names or counts. If there is also an hour, it may be one of those that the hour
// only counts. An instant within a range of ticks that did not run is in the range if it was a tick.
func (b *Book) Find(tick time.Time) []task.LedgerLine {
	var exceptions, ranges, named, others []task.LedgerLine

	for _, l := range b.Between(tick, tick.Add(1)) {
		switch {
		case l.Kind == task.LedgerException && l.Count == 1:
			exceptions = append(exceptions, l)
		case l.Kind == task.LedgerException:
			ranges = append(ranges, l)
		case l.Kind == task.LedgerHour && slices.ContainsFunc(l.Named, func(t task.Time) bool { return t.Equal(tick) }):
			named = append(named, l)
		case l.Kind == task.LedgerSucceeded, l.Kind == task.LedgerHour && mayHide(&l, tick):
			others = append(others, l)
		}
	}

	for _, lines := range [][]task.LedgerLine{exceptions, ranges, named} {
		if len(lines) > 0 {
			return lines
		}
	}

	return others
}

// mayHide reports whether a tick may be one of those that the line of an hour only counts.
func mayHide(l *task.LedgerLine, tick time.Time) bool {
	return !l.HiddenLast.IsZero() && !tick.Before(l.HiddenFirst.Time) && !tick.After(l.HiddenLast.Time)
}

// Between returns the lines that cover ticks from from (inclusive) to to (exclusive), the newest first.
func (b *Book) Between(from, to time.Time) []task.LedgerLine {
	if !from.Before(to) {
		return nil
	}

	var lines []task.LedgerLine
	for i := range b.Lines {
		l := &b.Lines[i]
		if l.Last.Before(from) {
			break // the following ones end even earlier
		}
		if l.First.Before(to) {
			lines = append(lines, *l)
		}
	}

	return lines
}
