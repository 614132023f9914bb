package check

import (
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// policyJudge judges what a task's policies say of its runs: overlap (G8), start deadlines
// (G22), reasons (G23), and queues, replacements and shadows (G24).
type policyJudge struct {
	judge
	fences *fenceJudge
}

// checkReason checks that a record says why, in a word of the closed list that
// may stand with its state (G23).
func (j *policyJudge) checkReason(ref record.Ref, tick int64, key, what string, state task.State, reason string) {
	if state == task.Succeeded {
		return
	}

	switch r, known := task.ReasonOf(reason); {
	case reason == "":
		j.breachTask("G23", ref, tick, key, "%s is %s, and no reason is given", what, state)
	case !known:
		j.breachTask("G23", ref, tick, key, "%s is %s for the reason %q, which is not a documented reason", what, state, reason)
	case !r.Explains(state):
		j.breachTask("G23", ref, tick, key, "%s is %s, and the reason %q does not stand with that", what, state, reason)
	}
}

// checkOverlapSkip checks that a tick is skipped for overlap only where the task had a
// run of its own that it could overlap with (G23): runs of a deleted task of the
// same name are not its own. Whether one was still active is not judged, since the
// owner may hear late of its end.
func (j *policyJudge) checkOverlapSkip(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	t := j.cluster.taskOf(ch.ref)
	if rec.State != task.Skipped || rec.Reason != task.ReasonOverlap || t.entry == nil || t.entry.incarnation != r.incarnation || t.entry.create <= j.cluster.began {
		return
	}

	for _, other := range t.runs {
		if other.incarnation == r.incarnation && other.wasPlaced {
			return
		}
	}

	for _, other := range d.runs { // made by the same commit
		if made, _ := other.recordedRun(); other.ref == ch.ref && made != nil && made.UID == r.incarnation.uid && !made.State.Final() {
			return
		}
	}

	j.breachTask("G23", ch.ref, r.tick, key, "run %s is skipped for overlap, and no run of its task has ever been made", ch.id)
}

// checkStartDeadline checks that the first attempt of a tick did not start after its
// deadline (G22). Both are of one node's clock, which looked shortly before.
func (j *policyJudge) checkStartDeadline(ch *runChange, r *runHistory, before task.Time, started task.Time, key string) {
	const slack = 1000
	if r.tick != 0 && !before.IsZero() && unixMS(started) > unixMS(before)+slack {
		j.breachTask("G22", ch.ref, r.tick, key, "run %s started at %s, and had to before %s", ch.id, formatTime(started.Time), formatTime(before.Time))
	}
}

// firstStartedAt is when the first attempt of a run started, as a record has it.
func firstStartedAt(r task.Run) task.Time {
	if len(r.Attempts) > 0 {
		return r.Attempts[0].StartedAt
	}
	return r.StartedAt
}

// checkMaxActive judges an attempt that starts where only some may be active at once
// (G8). Retries are starts, too.
func (j *policyJudge) checkMaxActive(ch *runChange, r *runHistory, key string) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.Overlap != task.OverlapAllow || t.entry.MaxActive == 0 {
		return
	}

	active := 0
	for _, other := range t.active {
		if other.incarnation == r.incarnation && (len(other.inboxes) > 0 || other.underWay()) {
			active++
		}
	}

	if active > t.entry.MaxActive {
		j.breachTask("G8", ch.ref, r.tick, key, "run %s starts, and %d are active: at most %d may be", ch.id, active, t.entry.MaxActive)
	}
}

// checkQueueLength checks that no more ticks wait for runs of their task than may (G24).
func (j *policyJudge) checkQueueLength(ch *runChange, r *runHistory, w *task.Waiting) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.Overlap != task.OverlapQueue || !isTickTrigger(r.trigger) || w.Reason != task.ReasonOverlap {
		return
	}

	waiting := 0
	for _, other := range t.runs {
		if other.incarnation == r.incarnation && other.queued && !other.retrying && isTickTrigger(other.trigger) && other.reason == task.ReasonOverlap {
			waiting++
		}
	}

	if room := t.entry.Queue.Room(); waiting > room {
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "run %s waits, and with it %d: at most %d may", ch.id, waiting, room)
	}
}

// checkReplaced checks that what was replaced gave way to a newer tick that is
// there, by a policy that wants it.
func (j *policyJudge) checkReplaced(d *delta, ch *runChange, r *runHistory, taken *inboxRecord) {
	if ch.ended.Reason != task.ReasonReplaced {
		return
	}

	t := j.cluster.taskOf(ch.ref)

	switch {
	case r.fan != nil:
		if r.fan.Cancel != task.ReasonReplaced {
			j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s ended as replaced without a request", ch.id)
		}
	case taken == nil && r.isPart():
		// A part ends for the reason that its run was given, in this revision or in an earlier
		// one: checkParent has judged that by the policy of that time. The task's
		// policy may have changed since then.
		j.fences.requireCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a waiting part that is replaced")

		parent, _ := j.cluster.parentOf(ch.ref, ch.id)
		if parent != nil && parent.fan != nil && parent.fan.Cancel != task.ReasonReplaced {
			j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "part %s ends as replaced, and its run is not replaced", ch.id)
		}
	case taken == nil:
		j.fences.requireCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a waiting run that is replaced")
		if t.entry != nil && t.entry.incarnation == r.incarnation && t.entry.Overlap != task.OverlapReplace {
			j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s is replaced, and overlap is %q", ch.id, t.entry.Overlap)
		}
	case !taken.CancelRequested || taken.CancelReason != task.ReasonReplaced:
		j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s ended as replaced without a request", ch.id)
	}

	// A part is as old as its run: the tick that replaces both may have been decided before the
	// part was given out.
	whole := r
	if r.isPart() {
		if parent, _ := j.cluster.parentOf(ch.ref, ch.id); parent != nil {
			whole = parent
		}
	}

	for _, other := range t.runs {
		// A tick that had an attempt, or parts, end may have missed its own start since.
		waited := (taken != nil || r.fan != nil) && !other.startBefore.IsZero()
		newer := other.decidedRev > whole.decidedRev || other.decidedRev == whole.decidedRev && other.tick > whole.tick
		if other != whole && other.incarnation == r.incarnation && isTickTrigger(other.trigger) && newer && other.wasPlaced && (other.state != task.Missed || waited) {
			return
		}
	}

	for _, other := range d.runs {
		if rec, _ := other.recordedRun(); other != ch && other.ref == ch.ref && rec != nil && isTickTrigger(rec.Trigger) {
			return
		}
	}

	j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s is replaced by nothing: no later tick of its task has a run", ch.id)
}

// checkReplaceRequest checks that a cancel for a newer tick is asked for by an owner, of a
// task whose policy is that.
func (j *policyJudge) checkReplaceRequest(d *delta, ch *runChange, r *runHistory, before inboxRecord, put inboxPut) {
	if before.CancelRequested || !put.CancelRequested || put.CancelReason != task.ReasonReplaced {
		return
	}

	j.fences.requireCommit(d, ch.ref, r.tick, put.key, "that a run is replaced")

	// A part goes with its run: checkParent has judged that by the policy of that time. The
	// task's policy may have changed since then.
	if r.isPart() {
		if parent, _ := j.cluster.parentOf(ch.ref, ch.id); parent != nil && parent.fan != nil && parent.fan.Cancel == task.ReasonReplaced {
			return
		}
	}

	if e := j.cluster.taskOf(ch.ref).entry; e != nil && e.incarnation == r.incarnation && e.Overlap != task.OverlapReplace {
		j.breachTask("G24", ch.ref, r.tick, put.key, "run %s is asked to give way, and overlap is %q", ch.id, e.Overlap)
	}
}

// checkShadow judges the decision of a tick: of a shadow's none runs or waits, of
// another task none is skipped as a shadow's, and each has its own record (G24).
func (j *policyJudge) checkShadow(ch *runChange, r *runHistory, rec *task.Run, key string) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.incarnation != r.incarnation {
		return // checkFirstRecord has said it
	}

	skipped := rec.State == task.Skipped && rec.Reason == task.ReasonShadow
	switch {
	case t.entry.Shadow && !rec.State.Final():
		j.breachTask("G24", ch.ref, r.tick, key, "run %s is made by a tick, and its task is a shadow", ch.id)
	case skipped && !t.entry.Shadow:
		j.breachTask("G24", ch.ref, r.tick, key, "run %s was skipped as a shadow's, but its task is not a shadow", ch.id)
	case skipped && rec.Count > 1:
		j.breachTask("G24", ch.ref, r.tick, key, "%s of a shadow are one record", plural(rec.Count, "tick"))
	}
}

// checkOverlap judges a run that becomes active. The next attempt of one that is
// active anyway is no start: of two that a policy of then allowed, each goes on.
func (j *policyJudge) checkOverlap(ch *runChange, r *runHistory, key string) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.Overlap == task.OverlapAllow || r.activeSince != j.cluster.revision {
		return
	}

	for id, other := range t.active {
		if id != ch.id && other.incarnation == r.incarnation {
			j.breachTask("G8", ch.ref, r.tick, key, "run %s starts while run %s is %s, and overlap is %q", ch.id, id, other.state, t.entry.Overlap)
		}
	}
}
