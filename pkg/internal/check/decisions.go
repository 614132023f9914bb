package check

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// decisionJudge judges the decisions of ticks: each of them once (G3), not early (G6), by the
// schedule in force (G7).
type decisionJudge struct{ judge }

// decidedTicks lists the ticks that a record decides, and checks that the
// schedule in force has them (G7).
func (j *decisionJudge) decidedTicks(ch *runChange, r *run, rec *task.Run, key string) []int64 {
	t := j.cluster.task(ch.ref)
	st := &r.line.stretch
	switch {
	case t.entry == nil || t.entry.line != r.line:
		return []int64{r.tick} // reported
	case !t.entry.Ticks():
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of a paused task is decided")
		return []int64{r.tick}
	case st.ticks == nil:
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of an entry that has none: its runs are used up, or it cannot be read")
		return []int64{r.tick}
	case r.tick <= st.silent:
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of a task that was paused until %s is decided", stamp(instant(st.silent)))
	}
	if !hasTick(st.ticks, r.tick) {
		j.breachTask("G7", ch.ref, r.tick, key, "the schedule in force, %q in %s, has no such tick", []string(t.entry.Schedule), t.entry.Timezone)
	}
	if rec.Last.IsZero() {
		return []int64{r.tick}
	}
	all, ok := rangeTicks(st.ticks, *rec)
	// What the same commit decided otherwise is not the range's.
	others := func(at int64) bool {
		o := r.line.outcomes[at]
		return o != nil && o != r && o.decided == j.cluster.revision
	}
	mine := slices.DeleteFunc(slices.Clone(all), others)
	if !ok || int64(len(mine)) != rec.Ticks() {
		j.breachTask("G3", ch.ref, r.tick, key, "a range of %s up to %s; the schedule has %d there, %d decided otherwise by the same commit",
			count(rec.Ticks(), "tick"), stamp(rec.Last.Time), len(all), len(all)-len(mine))
	}
	return mine
}

// rangeTicks lists the ticks of a range record; false if they are far more than
// it says, or its end is no tick.
func rangeTicks(t ticker, rec task.Run) ([]int64, bool) {
	const slack = 100_000
	var all []int64
	first, last := ms(rec.ScheduledTime), ms(rec.Last)
	listTicks(t, first-1, last, func(at int64) bool {
		all = append(all, at)
		return int64(len(all)) <= rec.Count+slack
	})
	return all, len(all) > 0 && all[len(all)-1] == last
}

// checkNotEarly checks that a tick is not decided before it is due (G6).
func (j *decisionJudge) checkNotEarly(ch *runChange, r *run, rec *task.Run, key string) {
	due := max(r.tick, ms(rec.Last))
	if ticks := r.line.stretch.ticks; hasTiming(ticks, due) {
		due = ticks.due(due)
	}
	at := decisionTime(rec)
	switch {
	case at == 0 && !rec.State.Final():
		j.breachTask("G6", ch.ref, r.tick, key, "run %s does not say when it was created", ch.id)
	case at != 0 && at < due:
		j.breachTask("G6", ch.ref, r.tick, key, "run %s was created at %s, before its tick %s", ch.id, stamp(instant(at)), stamp(instant(due)))
	}
}

// decisionTime is when a tick was decided, by the owner's clock, as the record
// has it; 0: it does not say.
func decisionTime(rec *task.Run) int64 {
	if at := ms(rec.CreatedAt); at != 0 && rec.Last.IsZero() {
		return at
	}
	return cmp.Or(ms(rec.EndedAt), ms(rec.CreatedAt)) // a range may have grown since it was created
}

// hasTiming reports whether a tick is one of a timing that puts ticks off.
func hasTiming(t *timing, tick int64) bool { return t != nil && t.jitter > 0 && hasTick(t, tick) }

// checkDecidedOnce checks that a decision is of ticks that were not decided yet, and
// that what its own commit writes, watermark or from, counts them as decided:
// else they would be decided twice (G3).
func (j *decisionJudge) checkDecidedOnce(d *delta, ch *runChange, r *run, ticks []int64, key string) {
	t, s := j.cluster.task(ch.ref), j.cluster.shard(ch.ref.Shard)
	if t.entry == nil || t.entry.line != r.line || len(ticks) == 0 {
		return
	}
	if until := t.entry.decided(ch.ref, s.mark, s.markMod); ticks[0] <= until {
		j.breachTask("G3", ch.ref, ticks[0], key, "run %s decides a tick again: all up to %s were decided", ch.id, stamp(instant(until)))
	}
	after, mark := *t.entry, s.mark
	if e := d.entries[ch.ref]; e != nil && !e.gone && !e.bad {
		after.Entry = e.entry
	}
	if m := d.marks[ch.ref.Shard]; m != nil && !m.gone && !m.bad {
		mark = m.mark
	}
	if until := after.decided(ch.ref, mark, max(s.markMod, 1)); ticks[len(ticks)-1] > until {
		j.breachTask("G3", ch.ref, ticks[len(ticks)-1], key, "the commit of run %s leaves its tick undecided: only those up to %s are", ch.id, stamp(instant(until)))
	}
}

// checkDueTime checks what the first record of a tick says of when it fell due, and
// until when its run may start.
func (j *decisionJudge) checkDueTime(t *tasked, r *run, rec *task.Run, key string) {
	if t.entry == nil || t.entry.line != r.line || r.line.stretch.ticks == nil || !rec.Last.IsZero() {
		return
	}
	due := r.line.stretch.ticks.due(r.tick)
	if says := cmp.Or(ms(rec.DueAt), r.tick); says != due {
		j.breachTask("G6", t.ref, r.tick, key, "run %s is said to fall due at %s; it does at %s", r.id, stamp(instant(says)), stamp(instant(due)))
	}
	var before int64
	if !rec.State.Final() && t.entry.Deadline > 0 {
		before = due + int64(t.entry.Deadline)/1e6
	}
	if says := ms(rec.StartBefore); says != before && !rec.State.Final() {
		j.breachTask("G22", t.ref, r.tick, key, "run %s is to start before %s; by its task, before %s", r.id, stamp(instant(says)), stamp(instant(before)))
	}
}

// addedTicks lists the ticks between the former end of a range and its new one.
func (j *decisionJudge) addedTicks(ch *runChange, r *run, after, upTo int64) (ticks []int64) {
	t, st := j.cluster.task(ch.ref), &r.line.stretch
	switch {
	case t.entry == nil || t.entry.line != r.line:
		j.breachTask("G7", ch.ref, r.tick, ch.endedKey, "ticks of a task that is not there (uid %s)", r.line.uid)
	case st.ticks == nil:
		j.breachTask("G7", ch.ref, r.tick, ch.endedKey, "ticks of an entry that has none: it is paused, used up, or cannot be read")
	default:
		const most = 10_000_000
		listTicks(st.ticks, max(after, st.start), upTo, func(at int64) bool {
			ticks = append(ticks, at)
			return len(ticks) < most
		})
		if len(ticks) == 0 || ticks[len(ticks)-1] != upTo {
			j.breachTask("G7", ch.ref, upTo, ch.endedKey, "the schedule in force, %q in %s, has no such tick", []string(t.entry.Schedule), t.entry.Timezone)
		}
	}
	return ticks
}

// checkGrownInTime checks that no tick was added before it was due (G6).
func (j *decisionJudge) checkGrownInTime(ch *runChange, r *run, e *task.Run) {
	due := r.line.stretch.ticks.due(ms(e.Last))
	if at := ms(e.EndedAt); at < due {
		j.breachTask("G6", ch.ref, ms(e.Last), ch.endedKey, "a range grew at %s, before its last tick was due, %s", stamp(instant(at)), stamp(instant(due)))
	}
}

// claimTicks makes a record the outcome of ticks, each of which has only one (G3).
func (j *decisionJudge) claimTicks(ch *runChange, r *run, ticks []int64, key string) {
	for _, at := range ticks {
		if other := r.line.outcomes[at]; other != nil {
			if other != r {
				j.breachTask("G3", ch.ref, at, key, "the tick has two outcomes: %s and %s", other.id, r.id)
			}
			continue
		}
		r.line.outcomes[at] = r
	}
}

// isGrowth reports whether a record of ticks that did not run is written again with nothing
// but more ticks at its end.
func (j *decisionJudge) isGrowth(e *task.Run, r *run) bool {
	was := r.record
	if r.tick == 0 || was == nil || (e.State != task.Skipped && e.State != task.Missed) {
		return false
	}

	same := *e
	same.Last, same.Count, same.EndedAt, same.Message = was.Last, was.Count, was.EndedAt, was.Message
	return encoded(same) == encoded(*was) && e.Ticks() > was.Ticks() && ms(e.Last) > lastOf(*was) && !e.EndedAt.Before(was.EndedAt.Time)
}

// lastOf is the last tick of a record.
func lastOf(e task.Run) int64 {
	if e.Last.IsZero() {
		return ms(e.ScheduledTime)
	}
	return ms(e.Last)
}

// encoded is a record as text, to compare.
func encoded(r task.Run) string {
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
