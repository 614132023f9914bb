package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func sortFaults(faults []Fault) []Fault {
	return slices.SortedFunc(slices.Values(faults), func(a, b Fault) int { return cmp.Compare(a.From.UnixMilli(), b.From.UnixMilli()) })
}

// latenessJudge judges that decisions come in time (G15, G16, G19).
type latenessJudge struct{ judge }

// checkDecision checks that a decision came in time: after the faults that its
// tick fell into (G16), and at once where nothing was disturbed (G15, G19). It
// goes by the owner's clock, as the record has it.
func (j *latenessJudge) checkDecision(ch *runChange, r *runHistory, rec *task.Run, key string) {
	at := decisionTime(rec)
	if at == 0 {
		return // checkNotEarly has said it
	}

	due := r.incarnation.epoch.ticks.due(r.tick)

	if j.opts.Converge > 0 {
		if by := j.healedAt(due) + j.opts.Converge.Milliseconds(); at > by {
			j.breachTask("G16", ch.ref, r.tick, key, "run %s was decided at %s, %s after its tick; all was well since %s", ch.id, formatTime(timeOfMS(at)),
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

// healedAt is from when on a tick could be decided: its own time, or the end of
// the faults that it fell into, one of which may begin before another's effects
// are over.
func (j *latenessJudge) healedAt(tick int64) int64 {
	from := tick
	for _, f := range j.opts.Faults {
		if f.From.UnixMilli() <= from+j.opts.Converge.Milliseconds() {
			from = max(from, f.To.UnixMilli())
		}
	}

	return from
}

// hadOneOwner reports whether a shard had, from before a tick on, one owner with
// one session, its task no new schedule, and no fault was near.
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
