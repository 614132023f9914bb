package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// runTracker takes runs from record to record: it has each change judged, and applies it. It judges
// itself what holds between the records of one run: that its state goes legal steps ("state"), and
// that it is in one place, with one outcome, until it is gone with its task (G3, G4, G8, G12).
type runTracker struct {
	judge
	stats *stats

	fences    *fenceJudge
	decisions *decisionJudge
	lateness  *latenessJudge
	freezes   *freezeJudge
	policies  *policyJudge
	counters  *counterJudge
	attempts  *attemptJudge
	parts     *partJudge
	retention *retentionJudge
}

// applyRunChange judges what a revision does to a run, and applies it.
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
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s is given out again after its outcome %s", ch.id, r.state)
	}

	// Deletes come first: they say from where the run comes to its new place.
	taken := r.removeFrom(ch.removedFrom)

	if ch.dequeued {
		r.queued, r.retrying = false, false
	}

	for _, put := range ch.puts {
		if taken != nil && put.create == put.mod {
			rt.breachTask("state", ch.ref, r.tick, put.key, "run %s goes from one inbox into another", ch.id)
		}
		rt.applyAttempt(d, ch, r, put)
	}

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

// findOrBegin finds the run of a change, or begins it.
func (rt *runTracker) findOrBegin(ch *runChange) *runHistory {
	t := rt.cluster.taskOf(ch.ref)
	r := t.runs[ch.id]
	rec, key := ch.recordedRun()

	if r == nil {
		if rec == nil {
			return nil // a record that could not be read is gone
		}

		r = &runHistory{id: ch.id, incarnation: t.incarnationOf(rec.UID), trigger: rec.Trigger, count: rec.Ticks(), inboxes: map[string]inboxRecord{}}
		if isTickTrigger(rec.Trigger) {
			r.tick = unixMS(rec.ScheduledTime)
		}

		t.runs[ch.id] = r
	}

	if rec != nil && (rec.UID != r.incarnation.uid || rec.Trigger != r.trigger || (r.tick != 0 && unixMS(rec.ScheduledTime) != r.tick)) {
		rt.breachTask("form", ch.ref, r.tick, key, "run %s has become another: its uid, trigger or tick has changed", ch.id)
	}

	return r
}

// checkFirstRecord judges the first record of a run: a part, a run that somebody asked for, or
// the decision of ticks.
func (rt *runTracker) checkFirstRecord(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	r.decidedRev = rt.cluster.revision
	t := rt.cluster.taskOf(ch.ref)
	if t.entry == nil || t.entry.UID != r.incarnation.uid {
		rt.breachTask("G7", ch.ref, r.tick, key, "run %s of a task that is not there (uid %s)", ch.id, r.incarnation.uid)
	}

	switch {
	case r.isPart():
		r.state = task.Queued // with its parent, until now
		rt.parts.checkFirstRecord(d, ch, r, rec, key)
	case !isTickTrigger(r.trigger):
		rt.retention.checkRetryOf(d, ch, r, rec, key)
		rt.stats.Manual++
	default:
		rt.checkDecision(d, ch, r, rec, key)
	}
}

// checkDecision judges the decision of a tick: by the owner in a commit (G1), once (G3),
// not early (G6), as its entry demands (G7), and by each of its policies.
func (rt *runTracker) checkDecision(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	rt.fences.requireCommit(d, ch.ref, r.tick, key, "the decision of a tick")
	rt.fences.checkNamedOwner(*rec, ch.ref, key)

	if ch.id != task.RunID(rec.ScheduledTime.Time, rec.UID) {
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s does not have the id of its tick", ch.id)
	}

	ticks := rt.decisions.decidedTicks(ch, r, rec, key)
	rt.claimTicks(ch, r, ticks, key)
	rt.decisions.checkDueTime(rt.cluster.taskOf(ch.ref), r, rec, key)
	rt.decisions.checkNotEarly(ch, r, rec, key)

	rt.freezes.checkDecision(d, ch, r, rec, key)
	rt.policies.checkShadow(ch, r, rec, key)
	rt.policies.checkOverlapSkip(d, ch, r, rec, key)

	if !rec.State.Final() {
		r.incarnation.countDecidedRun(rt.cluster.revision)
		rt.counters.checkRunCounted(d, ch, r, key)
	}

	rt.lateness.checkDecision(ch, r, rec, key)
	rt.decisions.checkDecidedOnce(d, ch, r, ticks, key)
	rt.stats.countDecision(r, rec)
}

// claimTicks makes a record the outcome of ticks, each of which has only one (G3).
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

// setState takes the run to a state, if that is legal.
func (rt *runTracker) setState(ch *runChange, r *runHistory, from, to task.State, key string) {
	if from != to && !from.CanBecome(to) {
		rt.breachTask("state", ch.ref, r.tick, key, "run %s goes from %q to %q", ch.id, from, to)
	}
	r.state = to
}

// applyAttempt takes a record that is put into an inbox: a new attempt, or one that is rewritten.
func (rt *runTracker) applyAttempt(d *delta, ch *runChange, r *runHistory, put inboxPut) {
	if !put.State.Active() {
		rt.breachTask("state", ch.ref, r.tick, put.key, "run %s is in an inbox as %q", ch.id, put.State)
	}

	before, known := r.inboxes[put.node]

	if put.create == put.mod {
		rt.attempts.checkDispatch(d, ch, r, put)
	} else if known {
		rt.attempts.checkRewrite(ch, r, before, put)
		rt.policies.checkReplaceRequest(d, ch, r, before, put)
	} // else checkKeys has said it

	r.putInto(put)
	r.attempts = max(r.attempts, len(put.Attempts))
	r.retrying = false
	if !r.ended {
		rt.setState(ch, r, r.state, put.State, put.key)
	}
}

// applyQueued takes a record in the queue: new, for the next attempt, handed
// back, or rewritten. A run that has its parts is in the queue while they are under way.
func (rt *runTracker) applyQueued(d *delta, ch *runChange, r *runHistory, from task.State, taken *inboxRecord) {
	w := ch.queued
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

	switch {
	case taken != nil:
		rt.attempts.checkNotPaused(ch, r, &w.Run, ch.queueKey)
		rt.attempts.checkRetry(ch, r, taken, w)
		r.attempts, r.retrying = len(w.Attempts), len(w.Attempts) > 0
	case r.queued:
		rt.fences.requireCommit(d, ch.ref, r.tick, ch.queueKey, "a waiting run")
	}

	if !r.ended {
		rt.setState(ch, r, from, task.Queued, ch.queueKey)
		r.reason = w.Reason
	}

	r.startBefore = w.StartBefore
	r.queued = true
	rt.policies.checkReason(ch.ref, r.tick, ch.queueKey, "run "+ch.id, task.Queued, w.Reason)

	if taken == nil && from == "" {
		rt.policies.checkQueueLength(ch, r, w)
	}
}

// applyEnded takes a record of history: final, of an attempt that was on
// record (G10), and written once (G12).
func (rt *runTracker) applyEnded(d *delta, ch *runChange, r *runHistory, from task.State, taken *inboxRecord) {
	e := ch.ended

	if r.ended {
		switch {
		case r.endedText == ch.endedText: // written again as it was
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

	rt.setState(ch, r, from, e.State, ch.endedKey)
	rt.attempts.checkNotPaused(ch, r, e, ch.endedKey)

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

	rt.attempts.checkTokens(ch, r, e.Attempts, e.Token, ch.endedKey)

	r.setOutcome(e, ch.endedText)
	r.token = e.Token
	rt.policies.checkReason(ch.ref, r.tick, ch.endedKey, "run "+ch.id, e.State, e.Reason)
	rt.policies.checkReplaced(d, ch, r, taken)

	if taken != nil {
		rt.attempts.checkStarted(ch, r, taken.StartBefore, firstStartedAt(*e), e.StartedAt, ch.endedKey)
	}

	if r.isPart() {
		return // its parent counts
	}

	rt.retention.checkDeadLetter(d, ch, r, taken)
	r.incarnation.countEnd(rt.cluster.revision, e)
	rt.stats.countOutcome(r, e)
}

// growRange takes a record of ticks that did not run that is written again: it may only
// grow, by the ticks that follow its last one (G3, G4, G12).
func (rt *runTracker) growRange(d *delta, ch *runChange, r *runHistory) {
	e, was := ch.ended, r.rangeRecord
	rt.fences.requireCommit(d, ch.ref, r.tick, ch.endedKey, "a range that grows")
	rt.fences.checkNamedOwner(*e, ch.ref, ch.endedKey)

	added := rt.decisions.addedTicks(ch, r, lastTick(*was), unixMS(e.Last))
	if int64(len(added)) != e.Ticks()-was.Ticks() {
		rt.breachTask("G3", ch.ref, r.tick, ch.endedKey, "a range grows by %s up to %s; the schedule has %d there",
			plural(e.Ticks()-was.Ticks(), "tick"), formatTime(e.Last.Time), len(added))
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

// applyPlaces checks that after the revision the run is in one place, and not
// gone: G8 for two inboxes, else G3, or G4 if it went without an outcome.
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
		rt.breachTask("G8", ch.ref, r.tick, key, "run %s is in the inboxes of %s at once", ch.id,
			strings.Join(slices.Sorted(maps.Keys(r.inboxes)), " and "))
	case places > 1 && !r.ended:
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s waits and is in an inbox at once", ch.id)
	case r.queued && ch.ended != nil:
		rt.breachTask("G3", ch.ref, r.tick, key, "run %s has ended and still waits", ch.id)
	case places == 0 && !r.purged && r.state != "":
		after := d.entries[ch.ref]
		isGone := t.entry == nil || t.entry.UID != r.incarnation.uid || (after != nil && after.deleted)
		if !ch.dequeued || !isGone {
			rt.breachTask("G4", ch.ref, r.tick, cmp.Or(key, ch.queueKey, ch.removedKey), "run %s vanished as %q, without an outcome", ch.id, r.state)
		}

		r.purged = true
	}

	if !r.isPart() && (len(r.inboxes) > 0 || r.queued && (r.retrying || r.underWay())) {
		if t.active[ch.id] == nil {
			r.activeSince = rt.cluster.revision
		}
		t.active[ch.id] = r
	} else {
		delete(t.active, ch.id)
	}
}

// checkEnd judges what is left of a task's runs when the history ends.
func (rt *runTracker) checkEnd(t *taskHistory) {
	for _, id := range slices.Sorted(maps.Keys(t.runs)) {
		r := t.runs[id]
		if !r.ended && !r.purged {
			rt.stats.Open++
			if by := rt.opts.Until.Add(-DefaultConverge); r.queued && !r.retrying && !rt.opts.Until.IsZero() && !r.startBefore.IsZero() && r.startBefore.Before(by) && rt.cluster.notFrozenSince(t.ref, by.UnixMilli()) {
				rt.breachTask("G22", t.ref, r.tick, "", "run %s waits, and could not start before %s, its deadline", id, formatTime(r.startBefore.Time))
			}

			if rt.opts.Ended {
				rt.breachTask("G16", t.ref, r.tick, "", "run %s has not ended, it is %s", id, r.state)
			}
		}
	}
}

// applyListed takes a run of the first list as it is.
func (rt *runTracker) applyListed(ch *runChange) {
	r := rt.findOrBegin(ch)
	if r == nil {
		return
	}

	for _, p := range ch.puts {
		r.state, r.attempts = p.State, len(p.Attempts)
		r.putInto(p)
	}

	if w := ch.queued; w != nil && w.UnderWay() {
		r.state, r.queued, r.fan = task.Running, true, w.Fan
	} else if w != nil {
		r.state, r.reason, r.queued = task.Queued, w.Reason, true
		r.attempts, r.retrying = len(w.Attempts), len(w.Attempts) > 0
		r.startBefore = w.StartBefore
	}

	if e := ch.ended; e != nil {
		r.state = e.State
		r.setOutcome(e, ch.endedText)
	}

	rt.applyPlaces(newDelta(), ch, r)
	rt.claimListedTicks(ch, r)
}

// claimListedTicks notes which ticks a listed record decides. A range can only be
// read by the schedule of today.
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

// checkStarts judges the new attempts of a revision together: one of a task
// (G11), and none beside an active run where the policy is against it (G8).
func (rt *runTracker) checkStarts(runs []*runChange) {
	started := map[record.Ref]string{}
	for _, ch := range runs {
		if r := rt.cluster.taskOf(ch.ref).runs[ch.id]; r != nil && r.fan != nil && r.activeSince == rt.cluster.revision {
			rt.policies.checkOverlap(ch, r, ch.queueKey)
			rt.policies.checkMaxActive(ch, r, ch.queueKey)
		}

		for _, put := range ch.puts {
			if put.create != put.mod {
				continue
			}

			r := rt.cluster.taskOf(ch.ref).runs[ch.id]

			if other, ok := started[ch.ref]; ok {
				rt.breachTask("G11", ch.ref, r.tick, put.key, "runs %s and %s start in one revision, with one token", other, ch.id)
			}

			started[ch.ref] = ch.id

			if !r.isPart() { // their parent counts
				rt.policies.checkOverlap(ch, r, put.key)
				rt.policies.checkMaxActive(ch, r, put.key)
			}
		}
	}
}
