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
func (j *decisionJudge) decidedTicks(ch *runChange, r *runHistory, rec *task.Run, key string) []int64 {
	t := j.cluster.taskOf(ch.ref)
	st := &r.incarnation.epoch
	switch {
	case t.entry == nil || t.entry.incarnation != r.incarnation:
		return []int64{r.tick} // reported
	case !t.entry.Ticks():
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of a paused task is decided")
		return []int64{r.tick}
	case st.ticks == nil:
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of an entry that has none: its runs are used up, or it cannot be read")
		return []int64{r.tick}
	case r.tick <= st.silentUntil:
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of a task that was paused until %s is decided", formatTime(timeOfMS(st.silentUntil)))
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
		o := r.incarnation.outcomes[at]
		return o != nil && o != r && o.decidedRev == j.cluster.revision
	}

	mine := slices.DeleteFunc(slices.Clone(all), others)
	if !ok || int64(len(mine)) != rec.Ticks() {
		j.breachTask("G3", ch.ref, r.tick, key, "a range of %s up to %s; the schedule has %d there, %d decided otherwise by the same commit",
			plural(rec.Ticks(), "tick"), formatTime(rec.Last.Time), len(all), len(all)-len(mine))
	}

	return mine
}

// rangeTicks lists the ticks of a range record; false if they are far more than
// it says, or its end is no tick.
func rangeTicks(t tickSource, rec task.Run) ([]int64, bool) {
	const slack = 100_000
	var all []int64
	first, last := unixMS(rec.ScheduledTime), unixMS(rec.Last)
	listTicks(t, first-1, last, func(at int64) bool {
		all = append(all, at)
		return int64(len(all)) <= rec.Count+slack
	})

	return all, len(all) > 0 && all[len(all)-1] == last
}

// checkNotEarly checks that a tick is not decided before it is due (G6).
func (j *decisionJudge) checkNotEarly(ch *runChange, r *runHistory, rec *task.Run, key string) {
	due := max(r.tick, unixMS(rec.Last))
	if ticks := r.incarnation.epoch.ticks; hasTiming(ticks, due) {
		due = ticks.due(due)
	}

	at := decisionTime(rec)
	switch {
	case at == 0 && !rec.State.Final():
		j.breachTask("G6", ch.ref, r.tick, key, "run %s does not say when it was created", ch.id)
	case at != 0 && at < due:
		j.breachTask("G6", ch.ref, r.tick, key, "run %s was created at %s, before its tick %s", ch.id, formatTime(timeOfMS(at)), formatTime(timeOfMS(due)))
	}
}

// decisionTime is when a tick was decided, by the owner's clock, as the record
// has it; 0: it does not say.
func decisionTime(rec *task.Run) int64 {
	if at := unixMS(rec.CreatedAt); at != 0 && rec.Last.IsZero() {
		return at
	}
	return cmp.Or(unixMS(rec.EndedAt), unixMS(rec.CreatedAt)) // a range may have grown since it was created
}

// hasTiming reports whether a tick is one of a timing that puts ticks off.
func hasTiming(t *timing, tick int64) bool { return t != nil && t.jitter > 0 && hasTick(t, tick) }

// checkDecidedOnce checks that a decision is of ticks that were not decided yet, and
// that what its own commit writes, watermark or from, counts them as decided:
// else they would be decided twice (G3).
func (j *decisionJudge) checkDecidedOnce(d *delta, ch *runChange, r *runHistory, ticks []int64, key string) {
	t, s := j.cluster.taskOf(ch.ref), j.cluster.shardOf(ch.ref.Shard)
	if t.entry == nil || t.entry.incarnation != r.incarnation || len(ticks) == 0 {
		return
	}

	if until := t.entry.decidedUpTo(ch.ref, s.watermark, s.watermarkMod); ticks[0] <= until {
		j.breachTask("G3", ch.ref, ticks[0], key, "run %s decides a tick again: all up to %s were decided", ch.id, formatTime(timeOfMS(until)))
	}

	after, mark := *t.entry, s.watermark
	if e := d.entries[ch.ref]; e != nil && !e.deleted && !e.unreadable {
		after.Entry = e.entry
	}

	if m := d.watermarks[ch.ref.Shard]; m != nil && !m.deleted && !m.unreadable {
		mark = m.watermark
	}

	if until := after.decidedUpTo(ch.ref, mark, max(s.watermarkMod, 1)); ticks[len(ticks)-1] > until {
		j.breachTask("G3", ch.ref, ticks[len(ticks)-1], key, "the commit of run %s leaves its tick undecided: only those up to %s are", ch.id, formatTime(timeOfMS(until)))
	}
}

// checkDueTime checks what the first record of a tick says of when it fell due, and
// until when its run may start.
func (j *decisionJudge) checkDueTime(t *taskHistory, r *runHistory, rec *task.Run, key string) {
	if t.entry == nil || t.entry.incarnation != r.incarnation || r.incarnation.epoch.ticks == nil || !rec.Last.IsZero() {
		return
	}

	due := r.incarnation.epoch.ticks.due(r.tick)
	if says := cmp.Or(unixMS(rec.DueAt), r.tick); says != due {
		j.breachTask("G6", t.ref, r.tick, key, "run %s is said to fall due at %s; it does at %s", r.id, formatTime(timeOfMS(says)), formatTime(timeOfMS(due)))
	}

	var before int64
	if !rec.State.Final() && t.entry.Deadline > 0 {
		before = due + int64(t.entry.Deadline)/1e6
	}

	if says := unixMS(rec.StartBefore); says != before && !rec.State.Final() {
		j.breachTask("G22", t.ref, r.tick, key, "run %s is to start before %s; by its task, before %s", r.id, formatTime(timeOfMS(says)), formatTime(timeOfMS(before)))
	}
}

// addedTicks lists the ticks between the former end of a range and its new one.
func (j *decisionJudge) addedTicks(ch *runChange, r *runHistory, after, upTo int64) (ticks []int64) {
	t, st := j.cluster.taskOf(ch.ref), &r.incarnation.epoch
	switch {
	case t.entry == nil || t.entry.incarnation != r.incarnation:
		j.breachTask("G7", ch.ref, r.tick, ch.endedKey, "ticks of a task that is not there (uid %s)", r.incarnation.uid)
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
func (j *decisionJudge) checkGrownInTime(ch *runChange, r *runHistory, e *task.Run) {
	due := r.incarnation.epoch.ticks.due(unixMS(e.Last))
	if at := unixMS(e.EndedAt); at < due {
		j.breachTask("G6", ch.ref, unixMS(e.Last), ch.endedKey, "a range grew at %s, before its last tick was due, %s", formatTime(timeOfMS(at)), formatTime(timeOfMS(due)))
	}
}

// isGrowth reports whether a record of ticks that did not run is written again with nothing
// but more ticks at its end.
func (j *decisionJudge) isGrowth(e *task.Run, r *runHistory) bool {
	was := r.rangeRecord
	if r.tick == 0 || was == nil || (e.State != task.Skipped && e.State != task.Missed) {
		return false
	}

	same := *e
	same.Last, same.Count, same.EndedAt, same.Message = was.Last, was.Count, was.EndedAt, was.Message

	return encodeRun(same) == encodeRun(*was) && e.Ticks() > was.Ticks() && unixMS(e.Last) > lastTick(*was) && !e.EndedAt.Before(was.EndedAt.Time)
}

// lastTick is the last tick of a record.
func lastTick(e task.Run) int64 {
	if e.Last.IsZero() {
		return unixMS(e.ScheduledTime)
	}
	return unixMS(e.Last)
}

// encodeRun is a record as text, to compare.
func encodeRun(r task.Run) string {
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
