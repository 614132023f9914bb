package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/task"
)

// decisionJudge judges the decisions of ticks: each tick is decided once (G3), not before it is due (G6), and by
// the schedule in force (G7).
type decisionJudge struct{ judge }

// decidedTicks returns the ticks that a record decides, and checks that the schedule in force has them (G7). For a
// range record these are all ticks between its ends that the same commit does not decide in another record. In the
// error cases that leave no schedule to compare with, it returns only the record's own tick.
func (j *decisionJudge) decidedTicks(ch *runChange, r *runHistory, rec *task.Run, key string) []int64 {
	t := j.cluster.taskOf(ch.ref)
	st := &r.incarnation.epoch
	switch {
	case t.entry == nil || t.entry.incarnation != r.incarnation:
		return []int64{r.tick} // checkFirstRecord has reported it
	case !t.entry.Ticks():
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of a paused task is decided")
		return []int64{r.tick}
	case st.ticks == nil:
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of an entry that has none: its runs are used up, or it cannot be read")
		return []int64{r.tick}
	case r.tick <= st.silentUntil:
		j.breachTask("G7", ch.ref, r.tick, key, "a tick of a task that was paused until %s is decided", formatTime(timeOfMS(st.silentUntil)))
	}

	if !st.ticks.HasTick(r.tick) {
		j.breachTask("G7", ch.ref, r.tick, key, "the current schedule, %q in %s, has no such tick", []string(t.entry.Schedule), t.entry.Timezone)
	}

	if rec.Last.IsZero() {
		return []int64{r.tick}
	}

	all, ok := rangeTicks(st.ticks, *rec)

	// A commit can decide single ticks inside of a range differently, such as one that runs among many that are
	// missed. Those do not belong to the range. sortedRuns has put them first, so that they are known here.
	others := func(at int64) bool {
		o := r.incarnation.outcomes[at]
		return o != nil && o != r && o.decidedRev == j.cluster.revision
	}

	mine := slices.DeleteFunc(slices.Clone(all), others)
	if !ok || int64(len(mine)) != rec.Ticks() {
		j.breachTask("G3", ch.ref, r.tick, key, "a range of %s up to %s; the schedule has %d there, %d decided otherwise by the same commit",
			formatCount(rec.Ticks(), "tick"), formatTime(rec.Last.Time), len(all), len(all)-len(mine))
	}

	return mine
}

// rangeTicks returns the ticks of a range record. It returns false if the schedule has far more ticks in the range
// than the record counts, or if the end of the range is not a tick.
func rangeTicks(t *oracle.Timing, rec task.Run) ([]int64, bool) {
	// A range may span ticks that were decided in other records. The slack allows for these and still bounds the
	// list for a damaged record whose end is years away.
	const slack = 100_000
	var all []int64
	first, last := unixMS(rec.ScheduledTime), unixMS(rec.Last)
	t.ListTicks(first-1, last, func(at int64) bool {
		all = append(all, at)
		return int64(len(all)) <= rec.Count+slack
	})

	return all, len(all) > 0 && all[len(all)-1] == last
}

// checkNotEarly checks that a record is not created before its latest tick is due, by the owner's clock (G6).
func (j *decisionJudge) checkNotEarly(ch *runChange, r *runHistory, rec *task.Run, key string) {
	due := max(r.tick, unixMS(rec.Last))
	if ticks := r.incarnation.epoch.ticks; hasTiming(ticks, due) {
		due = ticks.DueAt(due)
	}

	at := decisionTime(rec)
	switch {
	case at == 0 && !rec.State.Final():
		j.breachTask("G6", ch.ref, r.tick, key, "run %s has no time of creation", ch.id)
	case at != 0 && at < due:
		j.breachTask("G6", ch.ref, r.tick, key, "run %s was created at %s, before its tick %s", ch.id, formatTime(timeOfMS(at)), formatTime(timeOfMS(due)))
	}
}

// decisionTime returns when a tick was decided, by the owner's clock, as the record gives it, in ms; 0 if the
// record gives no time.
func decisionTime(rec *task.Run) int64 {
	if at := unixMS(rec.CreatedAt); at != 0 && rec.Last.IsZero() {
		return at
	}

	// A range may have grown after it was created. EndedAt is the time of its latest growth.
	return cmp.Or(unixMS(rec.EndedAt), unixMS(rec.CreatedAt))
}

// checkMissed checks that the newest of several late ticks is not missed (G24), unless the missed policy lets none run, or the
// tick is too old. Then the record has another reason.
func (j *decisionJudge) checkMissed(ch *runChange, r *runHistory, rec *task.Run, key string) {
	e, ticks := j.cluster.taskOf(ch.ref).entry, r.incarnation.epoch.ticks
	if e == nil || ticks == nil || e.incarnation != r.incarnation || rec.State != task.Missed || e.Missed.Policy == task.MissedSkip {
		return
	}
	if rec.Reason != task.ReasonNoOwner && rec.Reason != task.ReasonCameToLightLate {
		return
	}

	last, isNewest := max(r.tick, unixMS(rec.Last)), true
	ticks.ListTicks(last, unixMS(rec.EndedAt), func(at int64) bool {
		isNewest = ticks.DueAt(at) > unixMS(rec.EndedAt)
		return isNewest
	})

	if isNewest {
		j.breachTask("G24", ch.ref, last, key, "the newest late tick is missed (%s), but missed is %q", rec.Reason, e.Missed.Policy)
	}
}

// hasTiming reports whether a tick belongs to a timing with jitter, so that it is due later than its time.
func hasTiming(t *oracle.Timing, tick int64) bool { return t.HasJitter() && t.HasTick(tick) }

// checkDecidedOnce checks two things about the ticks that a record decides (G3). They were not decided before the
// commit. And the commit marks them as decided, by the watermark or the entry's from: otherwise a later commit
// would decide them again.
func (j *decisionJudge) checkDecidedOnce(d *delta, ch *runChange, r *runHistory, ticks []int64, key string) {
	t, s := j.cluster.taskOf(ch.ref), j.cluster.shardOf(ch.ref.Shard)
	if t.entry == nil || t.entry.incarnation != r.incarnation || len(ticks) == 0 {
		return
	}

	// The ticks must be later than those that were decided before.
	if until := t.entry.decidedUpTo(ch.ref, s.watermark, s.watermarkMod); ticks[0] <= until {
		j.breachTask("G3", ch.ref, ticks[0], key, "run %s decides a tick again: all ticks up to %s were decided", ch.id, formatTime(timeOfMS(until)))
	}

	// Compute what is decided after the commit, from the entry and the watermark that it leaves.
	after, mark := *t.entry, s.watermark
	if e := d.entries[ch.ref]; e != nil && !e.deleted && !e.unreadable {
		after.Entry = e.entry
	}

	if m := d.watermarks[ch.ref.Shard]; m != nil && !m.deleted && !m.unreadable {
		mark = m.watermark
	}

	if until := after.decidedUpTo(ch.ref, mark, max(s.watermarkMod, 1)); ticks[len(ticks)-1] > until {
		j.breachTask("G3", ch.ref, ticks[len(ticks)-1], key, "the commit of run %s leaves its tick undecided: only ticks up to %s are decided", ch.id, formatTime(timeOfMS(until)))
	}
}

// checkDueTime checks the times in the first record of a tick: when it is due (G6), and until when its first
// attempt may start (G22).
func (j *decisionJudge) checkDueTime(t *taskHistory, r *runHistory, rec *task.Run, key string) {
	if t.entry == nil || t.entry.incarnation != r.incarnation || r.incarnation.epoch.ticks == nil || !rec.Last.IsZero() {
		return
	}

	due := r.incarnation.epoch.ticks.DueAt(r.tick)
	if says := cmp.Or(unixMS(rec.DueAt), r.tick); says != due {
		j.breachTask("G6", t.ref, r.tick, key, "run %s is recorded as due at %s, but is due at %s", r.id, formatTime(timeOfMS(says)), formatTime(timeOfMS(due)))
	}

	// A start deadline counts from the due time. A record of a tick that did not run has none.
	var before int64
	if !rec.State.Final() && t.entry.Deadline > 0 {
		before = due + int64(t.entry.Deadline)/1e6
	}

	if says := unixMS(rec.StartBefore); says != before && !rec.State.Final() {
		j.breachTask("G22", t.ref, r.tick, key, "run %s has the deadline %s; its task requires %s", r.id, formatTime(timeOfMS(says)), formatTime(timeOfMS(before)))
	}
}

// addedTicks returns the ticks by which a range grows: those after its former end, up to its new end. It checks
// that the schedule in force has a tick at the new end (G7).
func (j *decisionJudge) addedTicks(ch *runChange, r *runHistory, after, upTo int64) (ticks []int64) {
	t, st := j.cluster.taskOf(ch.ref), &r.incarnation.epoch
	switch {
	case t.entry == nil || t.entry.incarnation != r.incarnation:
		j.breachTask("G7", ch.ref, r.tick, ch.endedKey, "ticks of a task that does not exist (uid %s)", r.incarnation.uid)
	case st.ticks == nil:
		j.breachTask("G7", ch.ref, r.tick, ch.endedKey, "ticks of an entry that has none: it is paused, used up, or cannot be read")
	default:
		// most bounds the list for a damaged record whose end is far away.
		const most = 10_000_000
		st.ticks.ListTicks(max(after, st.start), upTo, func(at int64) bool {
			ticks = append(ticks, at)
			return len(ticks) < most
		})

		if len(ticks) == 0 || ticks[len(ticks)-1] != upTo {
			j.breachTask("G7", ch.ref, upTo, ch.endedKey, "the current schedule, %q in %s, has no such tick", []string(t.entry.Schedule), t.entry.Timezone)
		}
	}

	return ticks
}

// checkGrownInTime checks that no tick was added to a range before it was due (G6).
func (j *decisionJudge) checkGrownInTime(ch *runChange, r *runHistory, e *task.Run) {
	due := r.incarnation.epoch.ticks.DueAt(unixMS(e.Last))
	if at := unixMS(e.EndedAt); at < due {
		j.breachTask("G6", ch.ref, unixMS(e.Last), ch.endedKey, "a range grew at %s, before its last tick was due, %s", formatTime(timeOfMS(at)), formatTime(timeOfMS(due)))
	}
}

// isGrowth reports whether a record of ticks that did not run is rewritten with more ticks at its end and no other
// change than its end time and its message. Any other rewrite of a final record breaks G12.
func (j *decisionJudge) isGrowth(e *task.Run, r *runHistory) bool {
	was := r.rangeRecord
	isTriggered := r.trigger == task.TriggerAfter
	if r.tick == 0 && !isTriggered || was == nil || (e.State != task.Skipped && e.State != task.Missed) {
		return false
	}

	same := *e
	same.Last, same.Count, same.EndedAt, same.Message = was.Last, was.Count, was.EndedAt, was.Message
	if isTriggered {
		same.Causes = was.Causes
	}

	return encodeRun(same) == encodeRun(*was) && max(e.Count, 1) > max(was.Count, 1) && unixMS(e.Last) > lastTick(*was) && !e.EndedAt.Before(was.EndedAt.Time)
}

// lastTick returns the last tick of a record, in ms. A record of one tick has no Last.
func lastTick(e task.Run) int64 {
	if e.Last.IsZero() {
		return unixMS(e.ScheduledTime)
	}
	return unixMS(e.Last)
}

// encodeRun returns a record as JSON, for comparisons.
func encodeRun(r task.Run) string {
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// gapJudge judges that no tick is left out: each decided tick has an outcome (G4), and each tick that is due by
// Options.Until is decided when the history ends (G16).
type gapJudge struct {
	judge
	stats *stats
}

// checkDecided judges the current epoch of a task: each tick up to upTo, which is decided, must have an outcome.
// Ticks in a row without one are reported as one violation. It then moves the start of the epoch to upTo, so that
// no tick is judged or counted twice.
func (j *gapJudge) checkDecided(t *taskHistory, upTo int64) {
	if t.entry == nil {
		return
	}

	inc := t.entry.incarnation
	st := inc.epoch
	if st.ticks == nil {
		return
	}

	// flush reports the current series of ticks without an outcome.
	var first, last, lost int64
	flush := func() {
		if lost > 0 {
			j.breachTask("G4", t.ref, first, j.keys.Entry(t.ref), "decided without an outcome: %s, up to %s", formatCount(lost, "tick"), formatTime(timeOfMS(last)))
			j.stats.Undecided += lost
		}
		lost = 0
	}

	st.ticks.ListTicks(st.start, upTo, func(at int64) bool {
		if inc.outcomes[at] != nil {
			j.stats.Ticks++
			flush()
			return true
		}

		j.stats.Ticks++

		if lost == 0 {
			first = at
		}

		last = at
		lost++

		return true
	})

	flush()
	inc.epoch.start = max(st.start, upTo)
}

// checkEnd judges the ticks of a task that are due by Options.Until and not decided when the history ends.
// checkDecided has judged the decided ones.
func (j *gapJudge) checkEnd(t *taskHistory) {
	inc := t.entry.incarnation
	if j.opts.Until.IsZero() || inc.epoch.ticks == nil {
		return
	}

	var first, open int64
	until := j.opts.Until.UnixMilli()
	inc.epoch.ticks.ListTicks(inc.epoch.start, until, func(at int64) bool {
		if inc.epoch.ticks.DueAt(at) > until {
			return false
		}

		if open == 0 {
			first = at
		}

		open++

		return true
	})

	if open > 0 {
		j.stats.Ticks += open
		j.stats.Undecided += open
		j.breachTask("G16", t.ref, first, j.keys.Watermark(t.ref.Shard), "not decided: %s up to %s; the watermark is at %s",
			formatCount(open, "tick"), formatTime(j.opts.Until), describeWatermark(j.cluster.shardOf(t.ref.Shard).watermark))
	}
}

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

// healedAt returns the earliest time at which a tick could be decided, in ms: its own time, or the end of the faults that it fell
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
