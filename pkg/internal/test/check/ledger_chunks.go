package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/task"
)

// chunkState is a chunk of a ledger as it is in etcd.
type chunkState struct {
	ledger.Chunk
	size            int
	readable, whole bool // whole: it contains nothing that this version does not know
}

// readChunk reads the value of a chunk.
func readChunk(value []byte) *chunkState {
	c, whole, err := ledger.Decode(value)
	return &chunkState{Chunk: c, size: len(value), readable: err == nil, whole: whole}
}

// writtenChunk is a chunk that a revision writes.
type writtenChunk struct {
	id, key string
	now     *chunkState
	before  *chunkState // nil: the chunk is new
}

// ledgerCounts counts ticks and requested runs by their outcomes, such as "ticks that succeeded".
type ledgerCounts map[string]int64

// The keys of ledgerCounts are one of these with the name of a state.
const (
	countedTicks     = "ticks: "
	countedRequested = "requested runs: "
	countedBroken    = "unreadable records"
)

// statesOfCauses are the states by the letters with which the causes in chunks begin.
var statesOfCauses = map[string]task.State{
	"o": task.Succeeded, "f": task.Failed, "t": task.TimedOut, "c": task.Cancelled, "l": task.Lost, "s": task.Skipped, "m": task.Missed,
}

// stateOfCause returns the state in a cause such as "f:exit 1".
func stateOfCause(cause string) task.State {
	letter, _, _ := strings.Cut(cause, ":")
	return statesOfCauses[letter]
}

// addChunk adds what a chunk counts, factor times.
func (l ledgerCounts) addChunk(c *chunkState, factor int64) {
	for _, s := range c.Spans {
		l[countedTicks+string(task.Succeeded)] += factor * s.Count
	}

	for _, e := range c.Exceptions {
		l[countedTicks+string(e.State)] += factor * e.Count
	}

	for _, h := range c.Hours {
		for cause, count := range h.Causes {
			l[countedTicks+string(stateOfCause(cause))] += factor * count
		}
	}

	for _, e := range c.Requested {
		l[countedRequested+string(e.State)] += factor * e.Count
	}

	for cause, count := range c.RequestedMore {
		l[countedRequested+string(stateOfCause(cause))] += factor * count
	}

	l[countedBroken] += factor * c.Unreadable
}

// addTrimmed adds a deleted record.
func (l ledgerCounts) addTrimmed(r trimmedRecord) {
	switch {
	case r.run == nil:
		l[countedBroken]++
	case r.run.tick == 0:
		l[countedRequested+string(r.run.state)] += r.run.ticks()
	default:
		l[countedTicks+string(r.run.state)] += r.run.ticks()
	}
}

// differences returns what l counts otherwise than want.
func (l ledgerCounts) differences(want ledgerCounts) (all []string) {
	keys := maps.Clone(l)
	maps.Copy(keys, want)

	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if l[k] != want[k] {
			all = append(all, fmt.Sprintf("%s: %d instead of %d", k, l[k], want[k]))
		}
	}

	return all
}

// ticks returns how many ticks a run decides.
func (r *runHistory) ticks() int64 { return max(r.count, 1) }

// instant returns the time of an offset, in ms.
func (c *chunkState) instant(o ledger.Offset) int64 { return c.From.UnixMilli() + int64(o) }

// lastTick returns the latest time that a chunk surely covers, in ms.
func (c *chunkState) lastTick() int64 {
	last := c.From.UnixMilli()
	for _, s := range c.Spans {
		last = max(last, c.instant(s.Last))
	}

	for _, e := range slices.Concat(c.Exceptions, c.Requested) {
		last = max(last, c.instant(e.First), c.instant(e.Last))
	}

	for _, h := range c.Hours {
		last = max(last, c.instant(h.Start))
		for _, named := range h.Named {
			last = max(last, c.instant(h.Start+named))
		}
	}

	return last
}

// knownOutcome is what a ledger must name or count: a record that was deleted, or an exception of a former version of a
// chunk.
type knownOutcome struct {
	state     task.State
	at        int64 // the tick, or the time of the request, in ms
	count     int64 // of the ticks of a range; otherwise 1
	requested bool
	late      bool // a late result must be mentioned
}

// String describes the outcome for messages.
func (o knownOutcome) String() string {
	what := "the tick"
	if o.requested {
		what = "the requested run"
	}

	text := fmt.Sprintf("%s %s, which %s", what, formatTime(timeOfMS(o.at)), o.state)
	if o.count > 1 {
		text += fmt.Sprintf(" (and %d more)", o.count-1)
	}
	if o.late {
		text += " and had a late result"
	}

	return text
}

// outcome returns the outcome of a deleted record.
func (r trimmedRecord) outcome() knownOutcome {
	o := knownOutcome{state: r.run.state, at: r.run.tick, count: r.run.ticks(), late: r.lateResult, requested: r.run.tick == 0}
	if at, ok := task.TimeOfRunID(r.id); o.requested && ok {
		o.at = at.UnixMilli()
	}

	return o
}

// outcomes returns what a chunk names: exceptions and requested runs.
func (c *chunkState) outcomes() (all []knownOutcome) {
	for _, e := range c.Exceptions {
		all = append(all, knownOutcome{state: e.State, at: c.instant(e.First), count: e.Count, late: e.Late})
	}

	for _, e := range c.Requested {
		all = append(all, knownOutcome{state: e.State, at: c.instant(e.First), count: e.Count, late: e.Late, requested: true})
	}

	return all
}

// tells reports whether a chunk names or counts an outcome.
func (c *chunkState) tells(o knownOutcome) bool {
	switch {
	case o.requested:
		return c.names(o) || c.countsRequested(o.state)
	case o.state == task.Succeeded:
		return slices.ContainsFunc(c.Spans, func(s ledger.Span) bool { return c.instant(s.First) <= o.at && o.at <= c.instant(s.Last) })
	}

	return c.names(o) || c.countsInHour(o)
}

// names reports whether a chunk has an entry of its own for an outcome. A late result may be mentioned although none is
// known, because it may have been deleted before.
func (c *chunkState) names(o knownOutcome) bool {
	return slices.ContainsFunc(c.outcomes(), func(n knownOutcome) bool {
		n.late = n.late && o.late
		return n == o
	})
}

// countsRequested reports whether further requested runs of a state are counted.
func (c *chunkState) countsRequested(state task.State) bool {
	for cause := range c.RequestedMore {
		if stateOfCause(cause) == state {
			return true
		}
	}

	return false
}

// countsInHour reports whether the line of an hour counts an outcome: it names the tick, or the tick lies among those that
// it does not name. Of a range of ticks, only the first can be named.
func (c *chunkState) countsInHour(o knownOutcome) bool {
	return slices.ContainsFunc(c.Hours, func(h ledger.Hour) bool {
		counted := false
		for cause := range h.Causes {
			counted = counted || stateOfCause(cause) == o.state
		}

		return counted && hourHas(h, ledger.Offset(o.at-c.instant(h.Start)))
	})
}

// hourHas reports whether the line of an hour names a tick, given by its time since the beginning of the hour, or counts
// ticks among which it may be.
func hourHas(h ledger.Hour, since ledger.Offset) bool {
	hides := h.Count > int64(len(h.Named))
	return slices.Contains(h.Named, since) || hides && h.HiddenFirst <= since && since <= h.HiddenLast
}

// lostHour returns what the line of an hour in a former version of a chunk counts and this version does not; "" if there is
// nothing.
func (c *chunkState) lostHour(before *chunkState, was ledger.Hour) string {
	at := formatTime(timeOfMS(before.instant(was.Start)))
	i := slices.IndexFunc(c.Hours, func(h ledger.Hour) bool { return c.instant(h.Start) == before.instant(was.Start) })
	if i < 0 {
		return "the hour " + at
	}

	now := c.Hours[i]
	hid, hides := was.Count > int64(len(was.Named)), now.Count > int64(len(now.Named))
	narrower := hid && (!hides || now.HiddenFirst > was.HiddenFirst || now.HiddenLast < was.HiddenLast)
	if now.Count < was.Count || narrower || slices.ContainsFunc(was.Named, func(n ledger.Offset) bool { return !hourHas(now, n) }) {
		return "ticks of the hour " + at
	}

	return ""
}

// maxNamedTicks is how many ticks of an hour are named.
const maxNamedTicks = 12

// inconsistency returns what is wrong with a chunk itself; "" if nothing is.
func (c *chunkState) inconsistency() string {
	if !c.From.Truncate(time.Hour).Equal(c.From.Time) {
		return "it does not begin with an hour"
	}

	for i, s := range c.Spans {
		if i > 0 && s.First <= c.Spans[i-1].Last {
			return "spans overlap, or are not in order"
		}
		if s.Count == 1 && s.First != s.Last || s.Count > int64(s.Last-s.First)+1 {
			return fmt.Sprintf("a span of %d ms counts %d ticks", s.Last-s.First, s.Count)
		}
	}

	for _, h := range c.Hours {
		var sum int64
		for _, n := range h.Causes {
			sum += n
		}

		if sum != h.Count {
			return fmt.Sprintf("an hour counts %d ticks, but %d by cause", h.Count, sum)
		}

		if len(h.Named) > maxNamedTicks || !slices.IsSorted(h.Named) {
			return "an hour names too many ticks, or not in order"
		}
	}

	return ""
}

// knows reports whether a chunk has something about a tick, other than in a span.
func (c *chunkState) knows(at int64) bool {
	for _, e := range c.Exceptions {
		if first := c.instant(e.First); at == first || e.Count > 1 && first < at && at <= c.instant(e.Last) {
			return true
		}
	}

	return slices.ContainsFunc(c.Hours, func(h ledger.Hour) bool { return hourHas(h, ledger.Offset(at-c.instant(h.Start))) })
}

// checkFold judges a revision that writes chunks of a ledger: they take over what it deletes from the history, once.
func (j *ledgerJudge) checkFold(d *delta, t *taskHistory, trimmed []trimmedRecord, written []writtenChunk) {
	j.fences.requireOwner(d, t.ref.Shard, written[0].key, "a chunk of a ledger is written")
	j.stats.Folded += int64(len(trimmed))

	for _, r := range trimmed {
		if r.run != nil {
			r.run.folded = true
		}
	}

	got, want := ledgerCounts{}, ledgerCounts{}
	for _, w := range written {
		got.addChunk(w.now, 1)
		if w.before != nil && w.before.readable {
			got.addChunk(w.before, -1)
		}
	}

	for _, r := range trimmed {
		want.addTrimmed(r)
	}

	if differ := got.differences(want); len(differ) > 0 {
		j.breachTask("G31", t.ref, 0, written[0].key, "the ledger does not take over what is deleted from the history: %s", strings.Join(differ, ", "))
		return // the rest would repeat it
	}

	j.checkOutcomes(t, trimmed, written)
	j.checkSpans(t, trimmed, written)
}

// checkOutcomes checks that the written chunks tell of each deleted record and of all that the replaced chunks told, and
// name nothing else.
func (j *ledgerJudge) checkOutcomes(t *taskHistory, trimmed []trimmedRecord, written []writtenChunk) {
	var expected []knownOutcome
	for _, r := range trimmed {
		if r.run != nil {
			expected = append(expected, r.outcome())
		}
	}

	for _, w := range written {
		if w.before != nil {
			expected = append(expected, w.before.outcomes()...)
		}
	}

	for _, o := range expected {
		if !slices.ContainsFunc(written, func(w writtenChunk) bool { return w.now.tells(o) }) {
			j.breachTask("G31", t.ref, o.at, written[0].key, "the ledger loses %s", o)
		}
	}

	for _, w := range written {
		if w.before == nil {
			continue
		}

		for _, h := range w.before.Hours {
			if lost := w.now.lostHour(w.before, h); lost != "" {
				j.breachTask("G31", t.ref, 0, w.key, "the ledger loses %s", lost)
			}
		}
	}

	for _, w := range written {
		for _, named := range w.now.outcomes() {
			named.late = false
			if !slices.ContainsFunc(expected, func(o knownOutcome) bool { o.late = false; return o == named }) {
				j.breachTask("G31", t.ref, named.at, w.key, "the ledger names %s, which is in no record that is deleted", named)
			}
		}
	}
}

// period is a time from one tick to another, both inclusive, in ms.
type period struct{ first, last int64 }

// checkSpans checks that no span of successes shrinks, and that none extends over a tick that neither the ledger nor the history contains.
func (j *ledgerJudge) checkSpans(t *taskHistory, trimmed []trimmedRecord, written []writtenChunk) {
	timing := j.timingForSpans(t)

	for _, w := range written {
		var parts []period // the periods of the spans
		if w.before != nil {
			for _, s := range w.before.Spans {
				parts = append(parts, period{w.before.instant(s.First), w.before.instant(s.Last)})
			}
		}

		for _, r := range trimmed {
			if r.run != nil && r.run.tick != 0 && r.run.state == task.Succeeded {
				parts = append(parts, period{r.run.tick, r.run.tick})
			}
		}

		slices.SortFunc(parts, func(a, b period) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last)) })

		for _, s := range w.now.Spans {
			j.checkSpan(t, timing, w, period{w.now.instant(s.First), w.now.instant(s.Last)}, parts)
		}
	}
}

// timingForSpans returns the schedule by which a fold extends spans. It returns nil if that is not certain: an edit was
// less than ledgerLag ago, or the ticks count from the completion of runs.
func (j *ledgerJudge) timingForSpans(t *taskHistory) *oracle.Timing {
	s := j.settings[t.ref]
	if s == nil || oracle.CountsFromCompletion(t.entry.Entry) || j.latest < s.since+ledgerLag.Milliseconds()+2*j.opts.Skew.Milliseconds() {
		return nil
	}

	timing, err := oracle.NewTiming(t.entry.Entry)
	if err != nil {
		return nil
	}

	return timing
}

// checkSpan judges one span. parts are the former spans and the deleted ticks, in order.
func (j *ledgerJudge) checkSpan(t *taskHistory, timing *oracle.Timing, w writtenChunk, span period, parts []period) {
	var end int64 // of the parts so far
	for _, p := range parts {
		if p.last < span.first || p.first > span.last {
			continue
		}

		if p.first < span.first || p.last > span.last {
			j.breachTask("G31", t.ref, span.first, w.key, "the span from %s to %s contains only a part of what was counted from %s to %s",
				formatTime(timeOfMS(span.first)), formatTime(timeOfMS(span.last)), formatTime(timeOfMS(p.first)), formatTime(timeOfMS(p.last)))
			return
		}

		if end != 0 && timing != nil && p.first > end {
			if hole, found := j.unknownTick(t, timing, w, period{end, p.first}); found {
				j.breachTask("G31", t.ref, hole, w.key, "a span of successes extends over a tick that neither the ledger nor the history contains")
				return
			}
		}

		end = max(end, p.last)
	}

	if end != span.last {
		j.breachTask("G31", t.ref, span.last, w.key, "a span ends with a tick that was not deleted from the history")
	}
}

// unknownTick returns the first tick between the two ends of a period that neither the ledger nor the history contains.
func (j *ledgerJudge) unknownTick(t *taskHistory, timing *oracle.Timing, w writtenChunk, gap period) (at int64, found bool) {
	timing.ListTicks(gap.first, gap.last-1, func(ms int64) bool {
		known := j.isRemembered(t, ms) || w.now.knows(ms)
		for _, c := range t.chunks {
			known = known || c.readable && c.knows(ms)
		}

		at, found = ms, !known

		return !found
	})

	return at, found
}

// isRemembered reports whether the record of a tick is in the history, or has been folded. It returns true if the tick may have
// been folded before this history begins.
func (j *ledgerJudge) isRemembered(t *taskHistory, tick int64) bool {
	r := t.entry.incarnation.outcomes[tick]
	if r == nil {
		return j.cluster.began > 0
	}

	_, kept := j.cluster.liveKeys[j.keys.Ended(t.ref, r.id)]

	return kept || r.folded
}
