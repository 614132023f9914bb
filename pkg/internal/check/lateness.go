package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// sortFaults orders faults by their begin, as healedAt requires.
func sortFaults(faults []Fault) []Fault {
	return slices.SortedFunc(slices.Values(faults), func(a, b Fault) int { return cmp.Compare(a.From.UnixMilli(), b.From.UnixMilli()) })
}

// latenessJudge judges that decisions are made in time (G15, G16, G19).
type latenessJudge struct{ judge }

// checkDecision checks that a decision was made in time: within Options.Converge after the faults that its tick
// fell into (G16), and within Options.Lateness where nothing was disturbed (G15, G19). It uses the owner's clock,
// as the record gives it.
func (j *latenessJudge) checkDecision(ch *runChange, r *runHistory, rec *task.Run, key string) {
	at := decisionTime(rec)
	if at == 0 {
		return // checkNotEarly has reported it
	}

	due := r.incarnation.epoch.ticks.DueAt(r.tick)

	if j.opts.Converge > 0 {
		if by := j.healedAt(due) + j.opts.Converge.Milliseconds(); at > by {
			j.breachTask("G16", ch.ref, r.tick, key, "run %s was decided at %s, %s after its tick, without a fault since %s", ch.id, formatTime(timeOfMS(at)),
				durationOfMS(at-due), formatTime(timeOfMS(j.healedAt(due))))
		}
	}

	if late := at - due; j.opts.Lateness > 0 && late > j.opts.Lateness.Milliseconds() && j.hadOneOwner(ch, r.tick) {
		promise, why := "G15", "nothing happened to its shard"
		if s := j.cluster.shardOf(ch.ref.Shard); len(s.unreadable) > 0 && !s.unreadable[j.keys.Entry(ch.ref)] {
			promise, why = "G19", fmt.Sprintf("another record of its shard cannot be read: %s", slices.Sorted(maps.Keys(s.unreadable))[0])
		}
		j.breachTask(promise, ch.ref, r.tick, key, "run %s was decided %s late, and %s", ch.id, durationOfMS(late), why)
	}
}

// healedAt returns from when on a tick could be decided, in ms: its own time, or the end of the faults that it fell
// into. Faults chain: one that begins within Options.Converge after another counts as well, because the effects of
// the first may not be over. The faults must be in order.
func (j *latenessJudge) healedAt(tick int64) int64 {
	from := tick
	for _, f := range j.opts.Faults {
		if f.From.UnixMilli() <= from+j.opts.Converge.Milliseconds() {
			from = max(from, f.To.UnixMilli())
		}
	}

	return from
}

// hadOneOwner reports whether nothing could have delayed a tick: its shard had one owner with one session since
// before the tick, and no fault was near. A fault counts from 1 s before it begins until Options.Converge after its
// end.
func (j *latenessJudge) hadOneOwner(ch *runChange, tick int64) bool {
	s, t := j.cluster.shardOf(ch.ref.Shard), j.cluster.taskOf(ch.ref)
	n, present := j.cluster.nodes[s.owner.Node]
	if !present || t.entry == nil || !s.opened || tick <= unixMS(s.owner.Since) || tick <= n.joinedAt || s.owner.Since.IsZero() || n.joinedAt == 0 {
		return false
	}

	quiet := cmp.Or(j.opts.Converge, DefaultConverge)

	for _, f := range j.opts.Faults {
		if tick >= f.From.Add(-time.Second).UnixMilli() && tick <= f.To.Add(quiet).UnixMilli() {
			return false
		}
	}

	return true
}
