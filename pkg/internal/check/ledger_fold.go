package check

import (
	"cmp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/check/oracle"
	"github.com/carillonhq/carillon/pkg/task"
)

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

// checkSpans checks that no span of successes shrinks, and that none extends over a tick of which neither the ledger nor the history tells.
func (j *ledgerJudge) checkSpans(t *taskHistory, trimmed []trimmedRecord, written []writtenChunk) {
	timing := j.timingForSpans(t)

	for _, w := range written {
		var parts []period // of which the spans consist
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
				j.breachTask("G31", t.ref, hole, w.key, "a span of successes extends over a tick of which neither the ledger nor the history tells")
				return
			}
		}

		end = max(end, p.last)
	}

	if end != span.last {
		j.breachTask("G31", t.ref, span.last, w.key, "a span ends with a tick that was not deleted from the history")
	}
}

// unknownTick returns the first tick between the two ends of a period of which neither the ledger nor the history tells.
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
