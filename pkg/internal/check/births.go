package check

import (
	"cmp"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// judgeBirth judges the first record of a run. For a tick that is its decision:
// by the owner in a commit (G1), once (G3), not early (G6), as its entry
// demands (G7).
func (c *checker) judgeBirth(d *delta, ch *runChange, r *run, rec *task.Run, key string) {
	r.decided = c.revision
	t := c.task(ch.ref)
	if t.entry == nil || t.entry.UID != r.line.uid {
		c.breachOf("G7", ch.ref, r.tick, key, "run %s of a task that is not there (uid %s)", ch.id, r.line.uid)
	}
	if r.isPart() {
		c.judgePartBirth(d, ch, r, rec, key)
		return
	}
	if !scheduled(r.trigger) {
		c.judgeRetryOf(d, ch, r, rec, key)
		c.stats.Manual++
		return
	}
	c.needCommit(d, ch.ref, r.tick, key, "the decision of a tick")
	c.judgeOwner(*rec, ch.ref, key)
	if ch.id != task.RunID(rec.ScheduledTime.Time, rec.UID) {
		c.breachOf("G3", ch.ref, r.tick, key, "run %s does not have the id of its tick", ch.id)
	}
	ticks := c.ticksDecided(ch, r, rec, key)
	c.take(ch, r, ticks, key)
	c.judgeDue(t, r, rec, key)
	c.judgeEarly(ch, r, rec, key)
	c.judgeFrozen(d, ch, r, rec, key)
	c.judgeShadow(ch, r, rec, key)
	c.judgeBusy(d, ch, r, rec, key)
	if !rec.State.Final() {
		c.judgeCounted(d, ch, r, key)
	}
	c.judgeLateness(ch, r, rec, key)
	c.judgeSealed(d, ch, r, ticks, key)
	c.stats.decide(r, rec)
}

// ticksDecided lists the ticks that a record decides, and checks that the
// schedule in force has them (G7).
func (c *checker) ticksDecided(ch *runChange, r *run, rec *task.Run, key string) []int64 {
	t := c.task(ch.ref)
	st := &r.line.stretch
	switch {
	case t.entry == nil || t.entry.line != r.line:
		return []int64{r.tick} // reported
	case !t.entry.Ticks():
		c.breachOf("G7", ch.ref, r.tick, key, "a tick of a paused task is decided")
		return []int64{r.tick}
	case st.ticks == nil:
		c.breachOf("G7", ch.ref, r.tick, key, "a tick of an entry that has none: its runs are used up, or it cannot be read")
		return []int64{r.tick}
	case r.tick <= st.silent:
		c.breachOf("G7", ch.ref, r.tick, key, "a tick of a task that was paused until %s is decided", stamp(instant(st.silent)))
	}
	if !hasTick(st.ticks, r.tick) {
		c.breachOf("G7", ch.ref, r.tick, key, "the schedule in force, %q in %s, has no such tick", []string(t.entry.Schedule), t.entry.Timezone)
	}
	if rec.Last.IsZero() {
		return []int64{r.tick}
	}
	all, ok := rangeTicks(st.ticks, *rec)
	// What the same commit decided otherwise is not the range's.
	others := func(at int64) bool { o := r.line.outcomes[at]; return o != nil && o != r && o.decided == c.revision }
	mine := slices.DeleteFunc(slices.Clone(all), others)
	if !ok || int64(len(mine)) != rec.Ticks() {
		c.breachOf("G3", ch.ref, r.tick, key, "a range of %s up to %s; the schedule has %d there, %d decided otherwise by the same commit",
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

// judgeEarly checks that a tick is not decided before it is due (G6).
func (c *checker) judgeEarly(ch *runChange, r *run, rec *task.Run, key string) {
	due := max(r.tick, ms(rec.Last))
	if ticks := r.line.stretch.ticks; hasTiming(ticks, due) {
		due = ticks.due(due)
	}
	at := decisionTime(rec)
	switch {
	case at == 0 && !rec.State.Final():
		c.breachOf("G6", ch.ref, r.tick, key, "run %s does not say when it was created", ch.id)
	case at != 0 && at < due:
		c.breachOf("G6", ch.ref, r.tick, key, "run %s was created at %s, before its tick %s", ch.id, stamp(instant(at)), stamp(instant(due)))
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

// judgeSealed checks that a decision is of ticks that were not decided yet, and
// that what its own commit writes, watermark or from, counts them as decided:
// else they would be decided twice (G3).
func (c *checker) judgeSealed(d *delta, ch *runChange, r *run, ticks []int64, key string) {
	t, s := c.task(ch.ref), c.shard(ch.ref.Shard)
	if t.entry == nil || t.entry.line != r.line || len(ticks) == 0 {
		return
	}
	if until := t.entry.decided(ch.ref, s.mark, s.markMod); ticks[0] <= until {
		c.breachOf("G3", ch.ref, ticks[0], key, "run %s decides a tick again: all up to %s were decided", ch.id, stamp(instant(until)))
	}
	after, mark := *t.entry, s.mark
	if e := d.entries[ch.ref]; e != nil && !e.gone && !e.bad {
		after.Entry = e.entry
	}
	if m := d.marks[ch.ref.Shard]; m != nil && !m.gone && !m.bad {
		mark = m.mark
	}
	if until := after.decided(ch.ref, mark, max(s.markMod, 1)); ticks[len(ticks)-1] > until {
		c.breachOf("G3", ch.ref, ticks[len(ticks)-1], key, "the commit of run %s leaves its tick undecided: only those up to %s are", ch.id, stamp(instant(until)))
	}
}

// judgeAttempt judges a record put into an inbox.
func (c *checker) judgeAttempt(d *delta, ch *runChange, r *run, put attemptPut) {
	if !put.State.Active() {
		c.breachOf("state", ch.ref, r.tick, put.key, "run %s is in an inbox as %q", ch.id, put.State)
	}
	before, known := r.in[put.node]
	if put.create == put.mod {
		c.judgeDispatch(d, ch, r, put)
	} else if known {
		c.judgeRewrite(ch, r, before, put)
		c.judgeAsk(d, ch, r, before, put)
	} // else judgeGaps has said it
	r.in[put.node] = attempt{Assigned: put.Assigned, create: put.create}
	if !slices.Contains(r.tokens, put.create) {
		r.tokens = append(r.tokens, put.create)
	}
	r.attempts = max(r.attempts, len(put.Attempts))
	r.retrying = false
	if !r.ended {
		c.move(ch, r, r.state, put.State, put.key)
	}
}

// judgeDispatch judges a new attempt: in a commit (G1), for the instance that
// is there (G2), by the entry's present word (G7).
func (c *checker) judgeDispatch(d *delta, ch *runChange, r *run, put attemptPut) {
	c.needCommit(d, ch.ref, r.tick, put.key, "an attempt")
	switch n, present := c.nodes[put.node]; {
	case !present:
		c.breachOf("G2", ch.ref, r.tick, put.key, "run %s is given to node %q, which is absent", ch.id, put.node)
	case n.instance != put.Instance:
		c.breachOf("G2", ch.ref, r.tick, put.key, "run %s is for instance %q of node %q, whose instance is %q", ch.id, put.Instance, put.node, n.instance)
	}
	if put.State != task.Dispatched {
		c.breachOf("state", ch.ref, r.tick, put.key, "run %s begins in an inbox as %q", ch.id, put.State)
	}
	c.judgeThawed(d, ch, r, put)
	if r.isPart() {
		c.judgePartPlace(ch, put)
	}
	switch e := c.task(ch.ref).entry; {
	case e == nil || e.UID != r.line.uid:
		if r.state != "" { // else judgeBirth has said it
			c.breachOf("G7", ch.ref, r.tick, put.key, "an attempt of a task that is not there (uid %s)", r.line.uid)
		}
	case put.Generation != 0 && put.Generation != e.Generation:
		c.breachOf("G7", ch.ref, r.tick, put.key, "run %s goes by generation %d of its task; generation %d is in force", ch.id, put.Generation, e.Generation)
	}
}

// judgeRewrite judges what happens to a record in an inbox: who is not asking
// for a cancel is its node, present (G2).
func (c *checker) judgeRewrite(ch *runChange, r *run, before attempt, put attemptPut) {
	if before.CancelRequested && !put.CancelRequested {
		c.breachOf("state", ch.ref, r.tick, put.key, "a cancel of run %s was overwritten", ch.id)
	}
	c.judgePause(ch, r, before, put)
	if before.State != put.State {
		if put.Attempt <= 1 {
			c.judgeStartedAt(ch, r, put.StartBefore, put.StartedAt, put.key)
		}
		c.judgeFrozenStart(ch, r, put.node, put.StartedAt, put.key)
	}
	if before.State == put.State && before.Instance == put.Instance {
		return
	}
	if n, present := c.nodes[put.node]; !present || n.instance != put.Instance {
		c.breachOf("G2", ch.ref, r.tick, put.key, "run %s was rewritten for instance %q of node %q, which is not there", ch.id, put.Instance, put.node)
	}
}

// judgeStarts judges the new attempts of a revision together: one of a task
// (G11), and none beside an active run where the policy is against it (G8).
func (c *checker) judgeStarts(d *delta, runs []*runChange) {
	started := map[store.Ref]string{}
	for _, ch := range runs {
		if r := c.task(ch.ref).runs[ch.id]; r != nil && r.fan != nil && r.activated == c.revision {
			c.judgeOverlap(ch, r, ch.queueKey)
			c.judgeRoom(ch, r, ch.queueKey)
		}
		for _, put := range ch.puts {
			if put.create != put.mod {
				continue
			}
			r := c.task(ch.ref).runs[ch.id]
			if other, ok := started[ch.ref]; ok {
				c.breachOf("G11", ch.ref, r.tick, put.key, "runs %s and %s start in one revision, with one token", other, ch.id)
			}
			started[ch.ref] = ch.id
			if !r.isPart() { // their parent counts
				c.judgeOverlap(ch, r, put.key)
				c.judgeRoom(ch, r, put.key)
			}
		}
	}
}

// judgeOverlap judges a run that becomes active. The next attempt of one that is
// active anyway is no start: of two that a policy of then allowed, each goes on.
func (c *checker) judgeOverlap(ch *runChange, r *run, key string) {
	t := c.task(ch.ref)
	if t.entry == nil || t.entry.Overlap == task.OverlapAllow || r.activated != c.revision {
		return
	}
	for id, other := range t.active {
		if id != ch.id && other.line == r.line {
			c.breachOf("G8", ch.ref, r.tick, key, "run %s starts while run %s is %s, and overlap is %q", ch.id, id, other.state, t.entry.Overlap)
		}
	}
}
