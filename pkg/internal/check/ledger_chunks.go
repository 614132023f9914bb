package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
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

// ledgerCounts counts ticks and requested runs by what became of them, such as "ticks that succeeded".
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
func (n ledgerCounts) addChunk(c *chunkState, factor int64) {
	for _, s := range c.Spans {
		n[countedTicks+string(task.Succeeded)] += factor * s.Count
	}

	for _, e := range c.Exceptions {
		n[countedTicks+string(e.State)] += factor * e.Count
	}

	for _, h := range c.Hours {
		for cause, count := range h.Causes {
			n[countedTicks+string(stateOfCause(cause))] += factor * count
		}
	}

	for _, e := range c.Requested {
		n[countedRequested+string(e.State)] += factor * e.Count
	}

	for cause, count := range c.RequestedMore {
		n[countedRequested+string(stateOfCause(cause))] += factor * count
	}

	n[countedBroken] += factor * c.Unreadable
}

// addTrimmed adds a deleted record.
func (n ledgerCounts) addTrimmed(r trimmedRecord) {
	switch {
	case r.run == nil:
		n[countedBroken]++
	case r.run.tick == 0:
		n[countedRequested+string(r.run.state)]++
	default:
		n[countedTicks+string(r.run.state)] += r.run.ticks()
	}
}

// differences returns what n counts otherwise than want.
func (n ledgerCounts) differences(want ledgerCounts) (all []string) {
	keys := maps.Clone(n)
	maps.Copy(keys, want)

	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if n[k] != want[k] {
			all = append(all, fmt.Sprintf("%s: %d instead of %d", k, n[k], want[k]))
		}
	}

	return all
}

// ticks returns how many ticks a run decides.
func (r *runHistory) ticks() int64 { return max(r.count, 1) }

// instant returns the time of an offset, in ms.
func (c *chunkState) instant(o ledger.Offset) int64 { return c.From.UnixMilli() + int64(o) }

// lastTick returns the latest time that a chunk surely tells of, in ms.
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

// outcome returns what became of a deleted record.
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
