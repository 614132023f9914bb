package check

import (
	"cmp"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// judgeReason checks that a record says why, in a word of the closed list that
// may stand with its state (G23).
func (c *checker) judgeReason(ref store.Ref, tick int64, key, what string, state task.State, reason string) {
	if state == task.Succeeded {
		return
	}
	switch r, known := task.ReasonOf(reason); {
	case reason == "":
		c.breachOf("G23", ref, tick, key, "%s is %s, and no reason is given", what, state)
	case !known:
		c.breachOf("G23", ref, tick, key, "%s is %s for the reason %q, which is none of the list", what, state, reason)
	case !r.Explains(state):
		c.breachOf("G23", ref, tick, key, "%s is %s, and the reason %q does not stand with that", what, state, reason)
	}
}

// judgeBusy checks that a tick is skipped for overlap only where the task had a
// run of its own that it could overlap with (G23): runs of a deleted task of the
// same name are not its own. Whether one was still active is not judged, since the
// owner may hear late of its end.
func (c *checker) judgeBusy(d *delta, ch *runChange, r *run, rec *task.Run, key string) {
	t := c.task(ch.ref)
	if rec.State != task.Skipped || rec.Reason != task.ReasonOverlap || t.entry == nil || t.entry.line != r.line || t.entry.create <= c.began {
		return
	}
	for _, other := range t.runs {
		if other.line == r.line && other.made {
			return
		}
	}
	for _, other := range d.runs { // made by the same commit
		if made, _ := other.record(); other.ref == ch.ref && made != nil && made.UID == r.line.uid && !made.State.Final() {
			return
		}
	}
	c.breachOf("G23", ch.ref, r.tick, key, "run %s is skipped for overlap, and no run of its task has ever been made", ch.id)
}

// judgeDue checks what the first record of a tick says of when it fell due, and
// until when its run may start.
func (c *checker) judgeDue(t *tasked, r *run, rec *task.Run, key string) {
	if t.entry == nil || t.entry.line != r.line || r.line.stretch.ticks == nil || !rec.Last.IsZero() {
		return
	}
	due := r.line.stretch.ticks.due(r.tick)
	if says := cmp.Or(ms(rec.DueAt), r.tick); says != due {
		c.breachOf("G6", t.ref, r.tick, key, "run %s is said to fall due at %s; it does at %s", r.id, stamp(instant(says)), stamp(instant(due)))
	}
	var before int64
	if !rec.State.Final() && t.entry.Deadline > 0 {
		before = due + int64(t.entry.Deadline)/1e6
	}
	if says := ms(rec.StartBefore); says != before && !rec.State.Final() {
		c.breachOf("G22", t.ref, r.tick, key, "run %s is to start before %s; by its task, before %s", r.id, stamp(instant(says)), stamp(instant(before)))
	}
}

// judgeStartedAt checks that the first attempt of a tick did not start after its
// deadline (G22). Both are of one node's clock, which looked shortly before.
func (c *checker) judgeStartedAt(ch *runChange, r *run, before task.Time, started task.Time, key string) {
	const slack = 1000
	if r.tick != 0 && !before.IsZero() && ms(started) > ms(before)+slack {
		c.breachOf("G22", ch.ref, r.tick, key, "run %s started at %s, and had to before %s", ch.id, stamp(started.Time), stamp(before.Time))
	}
}

// firstStart is when the first attempt of a run started, as a record has it.
func firstStart(r task.Run) task.Time {
	if len(r.Attempts) > 0 {
		return r.Attempts[0].StartedAt
	}
	return r.StartedAt
}

// judgeRoom judges an attempt that starts where only some may be active at once
// (G8). Retries are starts, too.
func (c *checker) judgeRoom(ch *runChange, r *run, key string) {
	t := c.task(ch.ref)
	if t.entry == nil || t.entry.Overlap != task.OverlapAllow || t.entry.MaxActive == 0 {
		return
	}
	active := 0
	for _, other := range t.active {
		if other.line == r.line && (len(other.in) > 0 || other.underWay()) {
			active++
		}
	}
	if active > t.entry.MaxActive {
		c.breachOf("G8", ch.ref, r.tick, key, "run %s starts, and %d are active: at most %d may be", ch.id, active, t.entry.MaxActive)
	}
}

// judgeWaiting checks that no more ticks wait for runs of their task than may (G24).
func (c *checker) judgeWaiting(ch *runChange, r *run, w *task.Waiting) {
	t := c.task(ch.ref)
	if t.entry == nil || t.entry.Overlap != task.OverlapQueue || !scheduled(r.trigger) || w.Reason != task.ReasonOverlap {
		return
	}
	waiting := 0
	for _, other := range t.runs {
		if other.line == r.line && other.queued && !other.retrying && scheduled(other.trigger) && other.reason == task.ReasonOverlap {
			waiting++
		}
	}
	if room := t.entry.Queue.Room(); waiting > room {
		c.breachOf("G24", ch.ref, r.tick, ch.queueKey, "run %s waits, and with it %d: at most %d may", ch.id, waiting, room)
	}
}

// judgeReplaced checks that what was replaced gave way to a newer tick that is
// there, by a policy that wants it.
func (c *checker) judgeReplaced(d *delta, ch *runChange, r *run, taken *attempt) {
	if ch.ended.Reason != task.ReasonReplaced {
		return
	}
	t := c.task(ch.ref)
	switch {
	case r.fan != nil:
		if r.fan.Cancel != task.ReasonReplaced {
			c.breachOf("G24", ch.ref, r.tick, ch.endedKey, "run %s ends as replaced, and nobody asked for that", ch.id)
		}
	case taken == nil && r.isPart():
		// A part ends for the reason that its run was given, in this revision or in an earlier
		// one: judgeParent has judged that by the policy of that time. The task's
		// policy may have changed since then.
		c.needCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a waiting part that is replaced")

		parent, _ := c.parentOf(ch.ref, ch.id)
		if parent != nil && parent.fan != nil && parent.fan.Cancel != task.ReasonReplaced {
			c.breachOf("G24", ch.ref, r.tick, ch.endedKey, "part %s ends as replaced, and its run is not replaced", ch.id)
		}
	case taken == nil:
		c.needCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a waiting run that is replaced")
		if t.entry != nil && t.entry.line == r.line && t.entry.Overlap != task.OverlapReplace {
			c.breachOf("G24", ch.ref, r.tick, ch.endedKey, "run %s is replaced, and overlap is %q", ch.id, t.entry.Overlap)
		}
	case !taken.CancelRequested || taken.CancelReason != task.ReasonReplaced:
		c.breachOf("G24", ch.ref, r.tick, ch.endedKey, "run %s ends as replaced, and nobody asked for that", ch.id)
	}

	// A part is as old as its run: the tick that replaces both may have been decided before the
	// part was given out.
	whole := r
	if r.isPart() {
		if parent, _ := c.parentOf(ch.ref, ch.id); parent != nil {
			whole = parent
		}
	}

	for _, other := range t.runs {
		// A tick that had an attempt, or parts, end may have missed its own start since.
		waited := (taken != nil || r.fan != nil) && !other.before.IsZero()
		newer := other.decided > whole.decided || other.decided == whole.decided && other.tick > whole.tick
		if other != whole && other.line == r.line && scheduled(other.trigger) && newer && other.made && (other.state != task.Missed || waited) {
			return
		}
	}
	for _, other := range d.runs {
		if rec, _ := other.record(); other != ch && other.ref == ch.ref && rec != nil && scheduled(rec.Trigger) {
			return
		}
	}
	c.breachOf("G24", ch.ref, r.tick, ch.endedKey, "run %s is replaced by nothing: no later tick of its task has a run", ch.id)
}

// judgeAsk checks that a cancel for a newer tick is asked for by an owner, of a
// task whose policy is that.
func (c *checker) judgeAsk(d *delta, ch *runChange, r *run, before attempt, put attemptPut) {
	if before.CancelRequested || !put.CancelRequested || put.CancelReason != task.ReasonReplaced {
		return
	}
	c.needCommit(d, ch.ref, r.tick, put.key, "that a run is replaced")

	// A part goes with its run: judgeParent has judged that by the policy of that time. The
	// task's policy may have changed since then.
	if r.isPart() {
		if parent, _ := c.parentOf(ch.ref, ch.id); parent != nil && parent.fan != nil && parent.fan.Cancel == task.ReasonReplaced {
			return
		}
	}

	if e := c.task(ch.ref).entry; e != nil && e.line == r.line && e.Overlap != task.OverlapReplace {
		c.breachOf("G24", ch.ref, r.tick, put.key, "run %s is asked to give way, and overlap is %q", ch.id, e.Overlap)
	}
}

// judgeShadow judges the decision of a tick: of a shadow's none runs or waits, of
// another task none is skipped as a shadow's, and each has its own record (G24).
func (c *checker) judgeShadow(ch *runChange, r *run, rec *task.Run, key string) {
	t := c.task(ch.ref)
	if t.entry == nil || t.entry.line != r.line {
		return // judgeBirth has said it
	}
	skipped := rec.State == task.Skipped && rec.Reason == task.ReasonShadow
	switch {
	case t.entry.Shadow && !rec.State.Final():
		c.breachOf("G24", ch.ref, r.tick, key, "run %s is made by a tick, and its task is a shadow", ch.id)
	case skipped && !t.entry.Shadow:
		c.breachOf("G24", ch.ref, r.tick, key, "run %s is skipped as a shadow's, and its task is none", ch.id)
	case skipped && rec.Count > 1:
		c.breachOf("G24", ch.ref, r.tick, key, "%s of a shadow are one record", count(rec.Count, "tick"))
	}
}
