package check

import (
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// policyJudge judges what a task's policies require of its runs: overlap and max_active (G8), start deadlines
// (G22), reasons (G23), and queue limits, replacements and shadow tasks (G24).
type policyJudge struct {
	judge
	fences *fenceJudge
}

// checkReason checks that a record has a reason from the closed list, and that the list allows it for the record's
// state (G23).
func (j *policyJudge) checkReason(ref record.Ref, tick int64, key, what string, state task.State, reason string) {
	if state == task.Succeeded {
		return
	}

	switch r, known := task.ReasonOf(reason); {
	case reason == "":
		j.breachTask("G23", ref, tick, key, "%s is %s without a reason", what, state)
	case !known:
		j.breachTask("G23", ref, tick, key, "%s is %s for the reason %q, which is not a documented reason", what, state, reason)
	case !r.Explains(state):
		j.breachTask("G23", ref, tick, key, "%s is %s, which the reason %q does not allow", what, state, reason)
	}
}

// checkOverlapSkip checks that a tick is skipped for overlap only if the task has had a run to overlap with (G23).
// Runs of a deleted task of the same name do not count. Whether a run was still active is not judged, because the
// owner may learn of its end late. A task that existed before the history began may have had runs that it does not
// show.
func (j *policyJudge) checkOverlapSkip(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	t := j.cluster.taskOf(ch.ref)
	if rec.State != task.Skipped || rec.Reason != task.ReasonOverlap || t.entry == nil || t.entry.incarnation != r.incarnation || t.entry.create <= j.cluster.began {
		return
	}

	j.checkJoins(ch, r, key)

	for _, other := range t.runs {
		if other.incarnation == r.incarnation && other.wasPlaced {
			return
		}
	}

	for _, other := range d.runs { // created by the same commit
		if made, _ := other.recordedRun(); other.ref == ch.ref && made != nil && made.UID == r.incarnation.uid && !made.State.Final() {
			return
		}
	}

	j.breachTask("G23", ch.ref, r.tick, key, "run %s is skipped for overlap, but its task never had a run", ch.id)
}

// joinsLate reports whether ticks on time join late ones that wait: with missed all, and overlap skip or replace.
func joinsLate(e *task.Entry) bool {
	return e.Missed.Policy == task.MissedAll && (e.Overlap == task.OverlapSkip || e.Overlap == task.OverlapReplace)
}

// maxJoining is how many late ticks may wait beside those that missed.limit allows, until ticks on time are skipped.
const maxJoining = 100

// checkJoins checks that a tick is not skipped for overlap that must join late ticks (G24): some wait but not too many, and the tick
// before was not skipped either.
func (j *policyJudge) checkJoins(ch *runChange, r *runHistory, key string) {
	t := j.cluster.taskOf(ch.ref)
	if !joinsLate(&t.entry.Entry) {
		return
	}

	late := 0
	for _, other := range t.runs {
		if other.incarnation == r.incarnation && other.queued && !other.retrying && isTickTrigger(other.trigger) && other.reason == task.ReasonCatchUp {
			late++
		}
	}
	if late == 0 || late >= t.entry.Missed.Limit+maxJoining {
		return
	}

	var before *runHistory
	last := int64(0)
	for at, other := range r.incarnation.outcomes {
		if at < r.tick && at > last {
			last, before = at, other
		}
	}
	if before == nil || before.state == task.Skipped {
		return
	}

	j.breachTask("G24", ch.ref, r.tick, key, "run %s is skipped for overlap, although %d late ticks of its task wait and the tick before was not skipped", ch.id, late)
}

// checkStartDeadline checks that the first attempt of a tick did not start after its deadline (G22). One node's
// clock gives both times: the node reads it immediately before it forks. The slack of 1 s covers a slow fork.
func (j *policyJudge) checkStartDeadline(ch *runChange, r *runHistory, before task.Time, started task.Time, key string) {
	const slack = 1000
	if r.tick != 0 && !before.IsZero() && unixMS(started) > unixMS(before)+slack {
		j.breachTask("G22", ch.ref, r.tick, key, "run %s started at %s, after its deadline %s", ch.id, formatTime(started.Time), formatTime(before.Time))
	}
}

// firstStartedAt returns when the first attempt of a run started, as a record gives it.
func firstStartedAt(r task.Run) task.Time {
	if len(r.Attempts) > 0 {
		return r.Attempts[0].StartedAt
	}
	return r.StartedAt
}

// checkMaxActive checks that a start does not exceed max_active (G8). A retry counts as a start, and a run that
// waits for its retry does not count as active.
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
		j.breachTask("G8", ch.ref, r.tick, key, "run %s starts while %d are active; at most %d are allowed", ch.id, active, t.entry.MaxActive)
	}
}

// checkQueueLength checks that no more ticks wait for other runs of their task than queue.limit allows (G24).
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
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "run %s waits together with %d; at most %d are allowed", ch.id, waiting, room)
	}
}

// checkReplaced checks a run that ended as replaced (G24): it was requested, by a policy that replaces, and a newer
// tick of the task took its place.
func (j *policyJudge) checkReplaced(d *delta, ch *runChange, r *runHistory, taken *inboxRecord) {
	if ch.ended.Reason != task.ReasonReplaced {
		return
	}

	t := j.cluster.taskOf(ch.ref)

	switch {
	// A run with parts ends as replaced only if its record requested that.
	case r.fan != nil:
		if r.fan.Cancel != task.ReasonReplaced {
			j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s ended as replaced without a request", ch.id)
		}
	case taken == nil && r.isPart():
		// A part ends for the reason that its parent was given, in this revision or an earlier one. checkParent has
		// judged that by the policy in force then. The task's policy may have changed since.
		j.fences.requireCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a waiting part that is replaced")

		parent, _ := j.cluster.parentOf(ch.ref, ch.id)
		if parent != nil && parent.fan != nil && parent.fan.Cancel != task.ReasonReplaced {
			j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "part %s ends as replaced, but its run is not replaced", ch.id)
		}
	// The run was waiting: the owner ends it in the commit that decides the newer tick.
	case taken == nil:
		j.fences.requireCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a waiting run that is replaced")
		if t.entry != nil && t.entry.incarnation == r.incarnation && t.entry.Overlap != task.OverlapReplace {
			j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s is replaced, but overlap is %q", ch.id, t.entry.Overlap)
		}
		if t.entry != nil && t.entry.incarnation == r.incarnation && joinsLate(&t.entry.Entry) && r.reason == task.ReasonCatchUp {
			j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "late run %s is replaced, but missed.policy is all", ch.id)
		}
	// The attempt was in a backup: the lost history may have decided the newer tick, and requested the cancel.
	case j.cluster.gap.HasRecord(taken.create):
		return
	// The run was in an inbox: the owner requested the cancel, and the node has ended the attempt.
	case !taken.CancelRequested || taken.CancelReason != task.ReasonReplaced:
		j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s ended as replaced without a request", ch.id)
	}

	// A part counts as old as its parent: the tick that replaces both may have been decided before the part was
	// given out.
	whole := r
	if r.isPart() {
		if parent, _ := j.cluster.parentOf(ch.ref, ch.id); parent != nil {
			whole = parent
		}
	}

	for _, other := range t.runs {
		// The newer tick may itself have become missed while it waited for the attempt or the parts to end. It
		// counts if it had a start deadline, or if a restore has lost it.
		waited := (taken != nil || whole.fan != nil) && !other.startBefore.IsZero() || other.reason == task.ReasonRestored
		newer := other.decidedRev > whole.decidedRev || other.decidedRev == whole.decidedRev && other.tick > whole.tick

		// A tick that is decided late may be older than the run of a trigger that was decided before it. Ids begin with times.
		newer = newer || other.trigger == task.TriggerAfter && other.id > whole.id
		if other != whole && other.incarnation == r.incarnation && replaces(other.trigger) && newer && other.wasPlaced && (other.state != task.Missed || waited) {
			return
		}
	}

	// The newer tick or trigger may be decided in this revision.
	for _, other := range d.runs {
		if rec, _ := other.recordedRun(); other != ch && other.ref == ch.ref && rec != nil && replaces(rec.Trigger) {
			return
		}
	}

	j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s is replaced by nothing: no later tick or trigger of its task has a run", ch.id)
}

// replaces reports whether a run with this trigger may take the place of an older one.
func replaces(trigger string) bool { return isTickTrigger(trigger) || trigger == task.TriggerAfter }

// checkReplaceRequest checks that a cancel in favor of a newer tick is requested by the owner in a commit, and for
// a task whose policy is replace (G24).
func (j *policyJudge) checkReplaceRequest(d *delta, ch *runChange, r *runHistory, before inboxRecord, put inboxPut) {
	if before.CancelRequested || !put.CancelRequested || put.CancelReason != task.ReasonReplaced {
		return
	}

	j.fences.requireCommit(d, ch.ref, r.tick, put.key, "that a run is replaced")

	// A part is cancelled with its parent. checkParent has judged that by the policy in force then. The task's
	// policy may have changed since.
	if r.isPart() {
		if parent, _ := j.cluster.parentOf(ch.ref, ch.id); parent != nil && parent.fan != nil && parent.fan.Cancel == task.ReasonReplaced {
			return
		}
	}

	if e := j.cluster.taskOf(ch.ref).entry; e != nil && e.incarnation == r.incarnation && e.Overlap != task.OverlapReplace {
		j.breachTask("G24", ch.ref, r.tick, put.key, "run %s is asked to stop for a newer tick, but overlap is %q", ch.id, e.Overlap)
	}
}

// checkShadow judges the decision of a tick by the rules of shadow tasks (G24). No tick of a shadow task runs or
// waits, no tick of another task is skipped with that reason, and each tick has its own record.
func (j *policyJudge) checkShadow(ch *runChange, r *runHistory, rec *task.Run, key string) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.incarnation != r.incarnation {
		return // checkFirstRecord has reported it
	}

	skipped := rec.State == task.Skipped && rec.Reason == task.ReasonShadow
	switch {
	case t.entry.Shadow && !rec.State.Final():
		j.breachTask("G24", ch.ref, r.tick, key, "run %s is created by a tick, but its task is a shadow", ch.id)
	case skipped && !t.entry.Shadow:
		j.breachTask("G24", ch.ref, r.tick, key, "run %s was skipped because of shadow, but its task is not a shadow", ch.id)
	case skipped && rec.Count > 1:
		j.breachTask("G24", ch.ref, r.tick, key, "%s of a shadow are one record", formatCount(rec.Count, "tick"))
	}
}

// checkOverlap checks that a run does not become active beside another one where the policy forbids it (G8). The
// next attempt of a run that is already active is not a start: two runs that an earlier policy allowed may both
// continue.
func (j *policyJudge) checkOverlap(ch *runChange, r *runHistory, key string) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.Overlap == task.OverlapAllow || r.activeSince != j.cluster.revision {
		return
	}

	for id, other := range t.active {
		if id != ch.id && other.incarnation == r.incarnation {
			j.breachTask("G8", ch.ref, r.tick, key, "run %s starts while run %s is %s, but overlap is %q", ch.id, id, other.state, t.entry.Overlap)
		}
	}
}
