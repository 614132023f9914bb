package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// runTracker follows runs from record to record: it has each change judged, and applies it. It judges itself what
// must hold between the records of one run. Its state changes only in legal steps ("state"). It is in one place and
// has one outcome, until it is deleted with its task (G3, G4, G8, G12).
type runTracker struct {
	judge
	stats *stats

	// The judges that the tracker calls at each change of a run.
	fences     *fenceJudge
	decisions  *decisionJudge
	lateness   *latenessJudge
	freezes    *freezeJudge
	namespaces *namespaceJudge
	policies   *policyJudge
	counters   *counterJudge
	attempts   *attemptJudge
	requests   *requestJudge
	parts      *partJudge
	retention  *retentionJudge
	restores   *restoreJudge
}

// applyRunChange judges what a revision does to a run, and applies it. All changes of a revision become visible
// together. So the steps in between are not judged as states of the run, and its place is checked at the end.
func (rt *runTracker) applyRunChange(d *delta, ch *runChange) {
	r := rt.findOrBegin(ch)
	if r == nil {
		return
	}

	from := r.state
	rec, key := ch.recordedRun()
	if from == "" && rec != nil {
		rt.checkFirstRecord(d, ch, r, rec, key)
	}

	if r.ended && (len(ch.puts) > 0 || ch.queued != nil) {
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s is dispatched again after its outcome %s", ch.id, r.state)
	}

	// Apply deletes first. The inbox record that a revision deletes is the attempt that its queue or history record
	// ends.
	taken := r.removeFrom(ch.removedFrom)

	if ch.dequeued {
		r.queued, r.retrying = false, false
	}

	defer r.forgetWait()

	for _, put := range ch.puts {
		if taken != nil && put.create == put.mod {
			rt.breachTask("state", ch.ref, r.tick, put.key, "run %s moves from one inbox to another", ch.id)
		}
		rt.applyAttempt(d, ch, r, put)
	}

	// A part can be given out and end in one revision. It then starts from the state that checkFirstRecord has set.
	if r.isPart() && from == "" {
		from = r.state
	}

	if ch.queued != nil {
		rt.applyQueued(d, ch, r, from, taken)
	}

	if ch.ended != nil {
		rt.applyEnded(d, ch, r, from, taken)
	}

	if ch.partDeleted {
		rt.parts.checkEndDeleted(d, ch, r)
	}

	rt.attempts.checkLateResults(ch, r)
	rt.stats.Late += int64(len(ch.late))
	rt.applyPlaces(d, ch, r)
}

// findOrBegin returns the history of the run that a change is about, and creates it for the first record. It
// returns nil if the change only deletes a record that was never readable.
func (rt *runTracker) findOrBegin(ch *runChange) *runHistory {
	t := rt.cluster.taskOf(ch.ref)
	r := t.runs[ch.id]
	rec, key := ch.recordedRun()

	if r == nil {
		if rec == nil {
			return nil // an unreadable record was deleted
		}

		r = &runHistory{id: ch.id, incarnation: t.incarnationOf(rec.UID), trigger: rec.Trigger, count: countOf(rec), inboxes: map[string]inboxRecord{}}
		if isTickTrigger(rec.Trigger) {
			r.tick = unixMS(rec.ScheduledTime)
		}

		t.runs[ch.id] = r
	}

	if rec != nil && (rec.UID != r.incarnation.uid || rec.Trigger != r.trigger || (r.tick != 0 && unixMS(rec.ScheduledTime) != r.tick)) {
		rt.breachTask("form", ch.ref, r.tick, key, "run %s has changed its uid, trigger or tick", ch.id)
	}

	return r
}

// countOf returns how many ticks or triggers a record decides.
func countOf(rec *task.Run) int64 {
	if rec.Trigger == task.TriggerAfter {
		return rec.Count
	}
	return rec.Ticks()
}

// checkFirstRecord judges the first record of a run: a part, a run that a user requested, or the decision of a
// tick.
func (rt *runTracker) checkFirstRecord(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	r.decidedRev = rt.cluster.revision
	t := rt.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.UID != r.incarnation.uid {
		rt.breachTask("G7", ch.ref, r.tick, key, "run %s of a task that does not exist (uid %s)", ch.id, r.incarnation.uid)
	}

	switch {
	case r.isPart():
		r.state = task.Queued // its parent stood for it so far
		rt.parts.checkFirstRecord(d, ch, r, rec, key)
	case !isTickTrigger(r.trigger):
		rt.retention.checkRetryOf(d, ch, r, rec, key)
		rt.stats.Manual++
	default:
		rt.checkDecision(d, ch, r, rec, key)
	}
}

// checkDecision judges the decision of a tick. The owner writes it in a commit (G1), once (G3), not before it is
// due (G6), by the entry in force (G7) and by each of its policies.
func (rt *runTracker) checkDecision(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	rt.fences.requireCommit(d, ch.ref, r.tick, key, "the decision of a tick")
	rt.fences.checkNamedOwner(*rec, ch.ref, key)

	if ch.id != task.RunID(rec.ScheduledTime.Time, rec.UID) {
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s does not have the id of its tick", ch.id)
	}

	ticks := rt.decisions.decidedTicks(ch, r, rec, key)
	rt.claimTicks(ch, r, ticks, key)
	rt.restores.checkTicks(ch, r, rec, ticks, key)
	rt.decisions.checkDueTime(rt.cluster.taskOf(ch.ref), r, rec, key)
	rt.decisions.checkNotEarly(ch, r, rec, key)

	rt.freezes.checkDecision(d, ch, r, rec, key)
	rt.policies.checkShadow(ch, r, rec, key)
	rt.policies.checkOverlapSkip(d, ch, r, rec, key)
	rt.decisions.checkMissed(ch, r, rec, key)

	if !rec.State.Final() {
		r.incarnation.countDecidedRun(rt.cluster.revision)
		rt.counters.checkRunCounted(d, ch, r, key)
	}

	rt.lateness.checkDecision(ch, r, rec, key)
	rt.decisions.checkDecidedOnce(d, ch, r, ticks, key)
	rt.stats.countDecision(r, rec)
}

// claimTicks makes a record the outcome of ticks. It reports each tick that another record has decided (G3).
func (rt *runTracker) claimTicks(ch *runChange, r *runHistory, ticks []int64, key string) {
	for _, at := range ticks {
		if other := r.incarnation.outcomes[at]; other != nil {
			if other != r {
				rt.breachTask("G3", ch.ref, at, key, "the tick has two outcomes: %s and %s", other.id, r.id)
			}
			continue
		}

		r.incarnation.outcomes[at] = r
	}
}

// setState sets the state of a run, and checks that the step is legal.
func (rt *runTracker) setState(ch *runChange, r *runHistory, from, to task.State, key string) {
	if from != to && !from.CanBecome(to) {
		rt.breachTask("state", ch.ref, r.tick, key, "run %s goes from %q to %q", ch.id, from, to)
	}
	r.state = to
}

// applyAttempt judges and applies an inbox record: a new attempt, or the rewrite of one.
func (rt *runTracker) applyAttempt(d *delta, ch *runChange, r *runHistory, put inboxPut) {
	if !put.State.Active() {
		rt.breachTask("state", ch.ref, r.tick, put.key, "run %s is in an inbox as %q", ch.id, put.State)
	}

	before, known := r.inboxes[put.node]

	if put.create == put.mod {
		rt.attempts.checkDispatch(d, ch, r, put)
		rt.restores.checkDispatch(ch, r, put)
	} else if known {
		rt.attempts.checkRewrite(ch, r, before, put)
		rt.policies.checkReplaceRequest(d, ch, r, before, put)
	} // checkKeys reports a rewrite of a key that is not known

	r.putInto(put)
	r.attempts = max(r.attempts, len(put.Attempts))
	r.retrying = false

	// A run that has ended keeps its outcome, whatever its inbox record says later.
	if !r.ended {
		rt.setState(ch, r, r.state, put.State, put.key)
	}
}

// applyQueued judges and applies a queue record: a new run, a run that waits for its next attempt, an attempt that
// a node handed back, or a rewrite. A run with parts keeps a queue record while its parts are under way.
func (rt *runTracker) applyQueued(d *delta, ch *runChange, r *runHistory, from task.State, taken *inboxRecord) {
	w := ch.queued

	// The record of a run with parts replaces the attempt: the run counts as running until its parts have ended.
	if w.UnderWay() {
		if !r.ended {
			rt.setState(ch, r, from, task.Running, ch.queueKey)
		}

		r.startBefore, r.queued, r.reason = task.Time{}, true, ""
		r.setFan(w.Fan, rt.cluster.revision)
		rt.parts.checkParent(d, ch, r)

		return
	}

	if w.State != task.Queued {
		rt.breachTask("state", ch.ref, r.tick, ch.queueKey, "run %s waits as %q", ch.id, w.State)
	}

	// With taken, the record takes the place of an attempt: a retry or a hand-back.
	switch {
	case taken != nil:
		rt.attempts.checkNotPaused(ch, r, &w.Run, ch.queueKey)
		rt.attempts.checkRetry(ch, r, taken, w)
		r.attempts, r.retrying, r.retryAt = len(w.Attempts), len(w.Attempts)+w.UnsentCount() > 0, w.NotBefore
	// Only the owner rewrites the record of a run that waits.
	case r.queued:
		rt.fences.requireCommit(d, ch.ref, r.tick, ch.queueKey, "a waiting run")
		rt.requests.checkKept(ch, r, &w.Run, ch.queueKey)
	}

	r.noteQueued(w, rt.cluster.revision)
	if !r.queued {
		r.queuedRev = rt.cluster.revision
	}

	if !r.ended {
		rt.setState(ch, r, from, task.Queued, ch.queueKey)
		r.reason = w.Reason
	}

	r.startBefore = w.StartBefore
	r.queued = true
	rt.policies.checkReason(ch.ref, r.tick, ch.queueKey, "run "+ch.id, task.Queued, w.Reason)

	// Only a new record can exceed the limit of the queue.
	if taken == nil && from == "" {
		rt.policies.checkQueueLength(ch, r, w)
	}
}

// unstarted are the reasons for which a run fails before an attempt begins. The last two are of workflows.
var unstarted = []string{task.ReasonNamespace, task.ReasonAccept, task.ReasonValues, task.ReasonBadRecord}

// applyEnded judges and applies a final record. The attempt that it names was on record (G10), and the record is
// written once (G12).
func (rt *runTracker) applyEnded(d *delta, ch *runChange, r *runHistory, from task.State, taken *inboxRecord) {
	e := ch.ended

	// The run has an outcome already. It may be written again only unchanged, or as a range of ticks that grows.
	if r.ended {
		switch {
		case r.endedText == ch.endedText: // an identical rewrite, such as a repeated transaction
		case rt.decisions.isGrowth(e, r):
			rt.growRange(d, ch, r)
		default:
			rt.breachTask("G12", ch.ref, r.tick, ch.endedKey, "the outcome of run %s, %s, is overwritten with %s", ch.id, r.state, e.State)
		}

		return
	}

	if !e.State.Final() {
		rt.breachTask("state", ch.ref, r.tick, ch.endedKey, "run %s is in history as %q", ch.id, e.State)
	}

	rt.restores.checkReason(ch, r, from)
	rt.setState(ch, r, from, e.State, ch.endedKey)
	if e.State == task.Failed && (from == "" || from == task.Queued) && !slices.Contains(unstarted, e.Reason) {
		rt.breachTask("state", ch.ref, r.tick, ch.endedKey, "run %s goes from %q to %q with the reason %q", ch.id, from, e.State, e.Reason)
	}

	rt.attempts.checkNotPaused(ch, r, e, ch.endedKey)

	// taken is the attempt that the revision removes from an inbox. The final record must name its token. Without
	// it, the run has parts, has waited, or was declared lost earlier.
	switch {
	case taken != nil && e.Token != taken.create:
		rt.breachTask("G10", ch.ref, r.tick, ch.endedKey, "run %s ends with token %d; the attempt that ended has %d", ch.id, e.Token, taken.create)
	case taken == nil && r.fan != nil:
		rt.parts.checkConclusion(d, ch, r)
	case taken == nil && from.Active():
		rt.breachTask("G12", ch.ref, r.tick, ch.endedKey, "run %s ends while its attempt stays in an inbox", ch.id)
	case taken == nil && e.Token != 0 && r.decidedRev > 0 && !slices.Contains(r.tokens, e.Token):
		rt.breachTask("G10", ch.ref, r.tick, ch.endedKey, "run %s ends with token %d, which no inbox had", ch.id, e.Token)
	}

	// From here on the run has its outcome.
	rt.attempts.checkTokens(ch, r, e.Attempts, e.Token, ch.endedKey)

	r.setOutcome(e, ch.endedText)
	r.token = e.Token
	rt.policies.checkReason(ch.ref, r.tick, ch.endedKey, "run "+ch.id, e.State, e.Reason)
	rt.policies.checkReplaced(d, ch, r, taken)
	rt.namespaces.checkRefused(ch, r)

	if taken != nil {
		rt.attempts.checkStarted(ch, r, taken.StartBefore, firstStartedAt(*e), e.StartedAt, ch.endedKey)
		rt.requests.checkKept(ch, r, e, ch.endedKey)
		rt.requests.checkCounted(ch, r, taken, e.AsAttempt(), ch.endedKey)
	}

	if r.isPart() {
		r.partEnd, r.partEndRev = e, rt.cluster.revision
		return // counts and dead letters are the parent's
	}

	rt.retention.checkDeadLetter(d, ch, r, taken)
	r.endedRev = rt.cluster.revision
	r.incarnation.countEnd(r, e)
	rt.stats.countOutcome(r, e)
}

// growRange judges and applies the rewrite of a record of ticks that did not run. It may only grow, by the ticks
// that follow its last one (G3, G4, G12).
func (rt *runTracker) growRange(d *delta, ch *runChange, r *runHistory) {
	e, was := ch.ended, r.rangeRecord
	rt.fences.requireCommit(d, ch.ref, r.tick, ch.endedKey, "a range of ticks that grows")
	rt.fences.checkNamedOwner(*e, ch.ref, ch.endedKey)

	if r.trigger == task.TriggerAfter { // dependentJudge judges what is added
		rt.stats.countGrowth(e, max(e.Count, 1)-max(was.Count, 1))
		r.rangeRecord, r.endedText, r.count = e, ch.endedText, e.Count
		return
	}

	added := rt.decisions.addedTicks(ch, r, lastTick(*was), unixMS(e.Last))
	if int64(len(added)) != e.Ticks()-was.Ticks() {
		rt.breachTask("G3", ch.ref, r.tick, ch.endedKey, "a range grows by %s up to %s; the schedule has %d there",
			formatCount(e.Ticks()-was.Ticks(), "tick"), formatTime(e.Last.Time), len(added))
	}

	rt.claimTicks(ch, r, added, ch.endedKey)

	if len(added) > 0 {
		rt.decisions.checkGrownInTime(ch, r, e)
	}

	rt.decisions.checkDecidedOnce(d, ch, r, added, ch.endedKey)
	rt.freezes.checkDecision(d, ch, r, e, ch.endedKey)
	rt.policies.checkShadow(ch, r, e, ch.endedKey)
	rt.stats.countGrowth(e, e.Ticks()-was.Ticks())
	r.rangeRecord, r.endedText, r.count = e, ch.endedText, e.Ticks()
}

// applyPlaces checks that the run is in exactly one place after the revision. Two inboxes break G8, any other two
// places G3. A run that is nowhere has been deleted with its task, or else was lost without an outcome (G4).
//
// It also keeps the set of active runs: a run is active while it is in an inbox, waits for another attempt, or has
// parts under way.
func (rt *runTracker) applyPlaces(d *delta, ch *runChange, r *runHistory) {
	t := rt.cluster.taskOf(ch.ref)
	_, key := ch.recordedRun()
	r.wasPlaced = r.wasPlaced || len(r.inboxes) > 0 || r.queued
	places := len(r.inboxes)
	if r.queued {
		places++
	}

	if r.ended {
		places++
	}

	switch {
	case len(r.inboxes) > 1:
		rt.breachTask("G8", ch.ref, r.tick, key, "run %s is in the inboxes of %s at the same time", ch.id,
			strings.Join(slices.Sorted(maps.Keys(r.inboxes)), " and "))
	case places > 1 && !r.ended:
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s waits and is in an inbox at the same time", ch.id)
	case r.queued && ch.ended != nil:
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s has ended and still waits", ch.id)
	// Nothing is left of the run. This is legal only for a waiting run whose task was deleted.
	case places == 0 && !r.purged && r.state != "":
		after := d.entries[ch.ref]
		isGone := t.entry == nil || t.entry.UID != r.incarnation.uid || (after != nil && after.deleted)
		if !ch.dequeued || !isGone {
			rt.breachTask("G4", ch.ref, r.tick, cmp.Or(key, ch.queueKey, ch.removedKey), "run %s vanished as %q, without an outcome", ch.id, r.state)
		}

		r.purged = true
	}

	if !r.isPart() && (len(r.inboxes) > 0 || r.queued && (r.retrying || r.underWay() || r.reason == task.ReasonHandBack)) {
		if t.active[ch.id] == nil {
			r.activeSince = rt.cluster.revision
		}
		t.active[ch.id] = r
	} else {
		delete(t.active, ch.id)
	}
}

// checkEnd judges the runs that are open when the history ends: waiting runs whose start deadline has passed (G22),
// and with Options.Ended all of them (G16).
func (rt *runTracker) checkEnd(t *taskHistory) {
	for _, id := range slices.Sorted(maps.Keys(t.runs)) {
		r := t.runs[id]
		if !r.ended && !r.purged {
			rt.stats.Open++
			// The owner must end such a run, and has DefaultConverge to do so. While the task is frozen it does
			// not.
			if by := rt.opts.Until.Add(-DefaultConverge); r.queued && !r.retrying && !rt.opts.Until.IsZero() && !r.startBefore.IsZero() && r.startBefore.Before(by) && rt.cluster.notFrozenSince(t.ref, by.UnixMilli()) {
				rt.breachTask("G22", t.ref, r.tick, "", "run %s still waits after %s, its deadline", id, formatTime(r.startBefore.Time))
			}

			if rt.opts.Ended {
				rt.breachTask("G16", t.ref, r.tick, "", "run %s has not ended, it is %s", id, r.state)
			}
		}
	}
}

// applyListed applies a run of the first list without judging it.
func (rt *runTracker) applyListed(ch *runChange) {
	r := rt.findOrBegin(ch)
	if r == nil {
		return
	}

	for _, p := range ch.puts {
		r.state, r.attempts = p.State, len(p.Attempts)
		r.noteListed(&p.Run)
		r.putInto(p)
	}

	if w := ch.queued; w != nil && w.UnderWay() {
		r.state, r.queued, r.fan = task.Running, true, w.Fan
	} else if w != nil {
		r.state, r.reason, r.queued = task.Queued, w.Reason, true
		r.attempts, r.retrying, r.retryAt = len(w.Attempts), len(w.Attempts)+w.UnsentCount() > 0, w.NotBefore
		r.startBefore = w.StartBefore
		r.noteListed(&w.Run)
	}

	if e := ch.ended; e != nil {
		r.state = e.State
		r.setOutcome(e, ch.endedText)
		r.partEnd = e
	}

	rt.applyPlaces(newDelta(), ch, r)
	rt.claimListedTicks(ch, r)
}

// claimListedTicks records which ticks a listed record decides. The ticks of a range are computed from the schedule
// in force at the list, which may differ from the one that the range was written under. So only single ticks are
// checked for a second outcome.
func (rt *runTracker) claimListedTicks(ch *runChange, r *runHistory) {
	if r.tick == 0 {
		return
	}

	t := rt.cluster.taskOf(ch.ref)
	ticks := []int64{r.tick}
	if e := ch.ended; e != nil && !e.Last.IsZero() && t.entry != nil && t.entry.incarnation == r.incarnation && r.incarnation.epoch.ticks != nil {
		ticks, _ = rangeTicks(r.incarnation.epoch.ticks, *e)
	}

	for _, at := range ticks {
		if other := r.incarnation.outcomes[at]; other != nil && other != r && r.count == 1 {
			rt.breachTask("G3", ch.ref, at, "", "the tick has two outcomes: %s and %s", other.id, r.id)
			continue
		}
		r.incarnation.outcomes[at] = r
	}
}

// checkStarts judges all runs that a revision starts. A task starts at most one attempt in a revision, because the
// revision is the fencing token (G11). No run starts beside an active one where the policy forbids it (G8).
func (rt *runTracker) checkStarts(d *delta, runs []*runChange) {
	started := map[record.Ref]string{}
	for _, ch := range runs {
		// A run with parts starts when it gets them.
		if r := rt.cluster.taskOf(ch.ref).runs[ch.id]; r != nil && r.fan != nil && r.activeSince == rt.cluster.revision {
			rt.policies.checkOverlap(ch, r, ch.queueKey)
			rt.policies.checkMaxActive(ch, r, ch.queueKey)
			rt.requests.checkNotHeld(d, ch, r, ch.queueKey)
		}

		for _, put := range ch.puts {
			if put.create != put.mod {
				continue
			}

			r := rt.cluster.taskOf(ch.ref).runs[ch.id]

			// Both attempts would have the same token.
			if other, ok := started[ch.ref]; ok {
				rt.breachTask("G11", ch.ref, r.tick, put.key, "runs %s and %s start in the same revision with the same token", other, ch.id)
			}

			started[ch.ref] = ch.id

			if !r.isPart() { // overlap and limits concern the parent
				rt.policies.checkOverlap(ch, r, put.key)
				rt.policies.checkMaxActive(ch, r, put.key)
			}

			// A run that was dispatched before is active already.
			if len(r.tokens) == 1 {
				rt.requests.checkNotHeld(d, ch, r, put.key)
			}
		}
	}
}
