package check

import (
	"encoding/json"

	"github.com/carillonhq/carillon/pkg/task"
)

// judgeGrowth judges a record of ticks that did not run that is written again:
// it may only grow, by the ticks that follow its last one (G3, G4, G12). false:
// it is something else.
func (c *checker) judgeGrowth(d *delta, ch *runChange, r *run) bool {
	e, was := ch.ended, r.record
	if r.tick == 0 || was == nil || (e.State != task.Skipped && e.State != task.Missed) {
		return false
	}
	// All else stays as it was.
	same := *e
	same.Last, same.Count, same.EndedAt, same.Message = was.Last, was.Count, was.EndedAt, was.Message
	if encoded(same) != encoded(*was) || e.Ticks() <= was.Ticks() || ms(e.Last) <= lastOf(*was) || e.EndedAt.Before(was.EndedAt.Time) {
		return false
	}
	c.needCommit(d, ch.ref, r.tick, ch.endedKey, "a range that grows")
	c.judgeOwner(*e, ch.ref, ch.endedKey)
	added := c.ticksAdded(ch, r, lastOf(*was), ms(e.Last))
	if int64(len(added)) != e.Ticks()-was.Ticks() {
		c.breachOf("G3", ch.ref, r.tick, ch.endedKey, "a range grows by %s up to %s; the schedule has %d there",
			count(e.Ticks()-was.Ticks(), "tick"), stamp(e.Last.Time), len(added))
	}
	c.take(ch, r, added, ch.endedKey)
	if len(added) > 0 {
		c.judgeGrown(ch, r, e)
	}
	c.judgeSealed(d, ch, r, added, ch.endedKey)
	c.judgeFrozen(d, ch, r, e, ch.endedKey)
	c.judgeShadow(ch, r, e, ch.endedKey)
	c.stats.grow(e, e.Ticks()-was.Ticks())
	r.record, r.text, r.count = e, ch.endedText, e.Ticks()
	return true
}

// ticksAdded lists the ticks between the former end of a range and its new one.
func (c *checker) ticksAdded(ch *runChange, r *run, after, upTo int64) (ticks []int64) {
	t, st := c.task(ch.ref), &r.line.stretch
	switch {
	case t.entry == nil || t.entry.line != r.line:
		c.breachOf("G7", ch.ref, r.tick, ch.endedKey, "ticks of a task that is not there (uid %s)", r.line.uid)
	case st.ticks == nil:
		c.breachOf("G7", ch.ref, r.tick, ch.endedKey, "ticks of an entry that has none: it is paused, used up, or cannot be read")
	default:
		const most = 10_000_000
		listTicks(st.ticks, max(after, st.start), upTo, func(at int64) bool {
			ticks = append(ticks, at)
			return len(ticks) < most
		})
		if len(ticks) == 0 || ticks[len(ticks)-1] != upTo {
			c.breachOf("G7", ch.ref, upTo, ch.endedKey, "the schedule in force, %q in %s, has no such tick", []string(t.entry.Schedule), t.entry.Timezone)
		}
	}
	return ticks
}

// judgeGrown checks that no tick was added before it was due (G6).
func (c *checker) judgeGrown(ch *runChange, r *run, e *task.Run) {
	due := r.line.stretch.ticks.due(ms(e.Last))
	if at := ms(e.EndedAt); at < due {
		c.breachOf("G6", ch.ref, ms(e.Last), ch.endedKey, "a range grew at %s, before its last tick was due, %s", stamp(instant(at)), stamp(instant(due)))
	}
}

// lastOf is the last tick of a record.
func lastOf(e task.Run) int64 {
	if e.Last.IsZero() {
		return ms(e.ScheduledTime)
	}
	return ms(e.Last)
}

// take makes a record the outcome of ticks, each of which has only one (G3).
func (c *checker) take(ch *runChange, r *run, ticks []int64, key string) {
	for _, at := range ticks {
		if other := r.line.outcomes[at]; other != nil {
			if other != r {
				c.breachOf("G3", ch.ref, at, key, "the tick has two outcomes: %s and %s", other.id, r.id)
			}
			continue
		}
		r.line.outcomes[at] = r
	}
}

// encoded is a record as text, to compare.
func encoded(r task.Run) string {
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
