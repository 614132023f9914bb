package check

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// attemptJudge judges the inbox records of attempts, and what a run's later records state about them: dispatches
// (G1, G2, G7), retries (G9), tokens (G10, G11), late results (G12) and pauses ("state").
type attemptJudge struct {
	judge
	fences     *fenceJudge
	freezes    *freezeJudge
	namespaces *namespaceJudge
	policies   *policyJudge
	parts      *partJudge
	requests   *requestJudge
}

// checkPause judges the pause in a rewritten inbox record ("state"). A run is paused only on request. A request is
// withdrawn only by a user, or by a node that gives the reason in the message. The total of paused time never
// decreases.
func (j *attemptJudge) checkPause(ch *runChange, r *runHistory, before inboxRecord, put inboxPut) {
	wrong := func(format string) { j.breachTask("state", ch.ref, r.tick, put.key, format, ch.id) }
	still := put.State == task.Paused
	if still == put.PausedAt.IsZero() {
		wrong("run %s is paused without a time, or has a time of a pause but is not paused")
	}

	switch {
	case still && before.State != task.Paused && !put.PauseRequested:
		wrong("run %s is paused without a request")
	case before.PauseRequested && !put.PauseRequested && put.ResumedBy == nil && (put.Message == "" || still):
		wrong("a pause of run %s was overwritten")
	case put.PauseRequested && put.PausedBy == nil:
		wrong("the pause of run %s has no requester")
	}

	if put.PausedMS < before.PausedMS {
		wrong("run %s was paused for less time than before")
	}
}

// checkNotPaused checks that a record outside of an inbox does not describe a paused run.
func (j *attemptJudge) checkNotPaused(ch *runChange, r *runHistory, rec *task.Run, key string) {
	if !rec.PausedAt.IsZero() || rec.PausedBy != nil || rec.State == task.Paused {
		j.breachTask("state", ch.ref, r.tick, key, "run %s is marked as paused but is on no node", ch.id)
	}
}

// checkDispatch judges a new attempt: it is part of a commit (G1), is meant for the instance that is present (G2),
// and has the generation of the entry in force (G7).
func (j *attemptJudge) checkDispatch(d *delta, ch *runChange, r *runHistory, put inboxPut) {
	j.fences.requireCommit(d, ch.ref, r.tick, put.key, "an attempt")

	// The commit compares the create revision of the target's node key, so that the instance cannot change
	// unnoticed.
	switch n, present := j.cluster.nodes[put.node]; {
	case !present:
		j.breachTask("G2", ch.ref, r.tick, put.key, "run %s is assigned to node %q, which is absent", ch.id, put.node)
	case n.instance != put.Instance:
		j.breachTask("G2", ch.ref, r.tick, put.key, "run %s is assigned to instance %q of node %q, whose instance is %q", ch.id, put.Instance, put.node, n.instance)
	}

	if put.State != task.Dispatched {
		j.breachTask("state", ch.ref, r.tick, put.key, "run %s begins in an inbox as %q", ch.id, put.State)
	}

	j.freezes.checkDispatch(d, ch, r, put)
	j.requests.checkKept(ch, r, &put.Run, put.key)
	j.requests.checkNotEarly(ch, r, put)
	j.namespaces.checkDispatch(ch, r, put)
	j.checkTakesRuns(ch, r, put)

	if r.isPart() {
		j.parts.checkDispatch(ch, put)
	}

	// The commit compares the entry, so that the attempt uses the version in force.
	switch e := j.cluster.taskOf(ch.ref).entry; {
	case e == nil || e.UID != r.incarnation.uid:
		if r.state != "" { // otherwise checkFirstRecord has reported it
			j.breachTask("G7", ch.ref, r.tick, put.key, "an attempt of a task that does not exist (uid %s)", r.incarnation.uid)
		}
	case j.parts.isStep(ch) && put.Generation != j.parts.generationOf(ch):
		j.breachTask("G65", ch.ref, r.tick, put.key, "part %s uses generation %d of its task; its run has begun with generation %d", ch.id, put.Generation, j.parts.generationOf(ch))
	case j.parts.isStep(ch):
		j.checkBackoffOver(ch, r, put, put.Retry) // its policy is in the plan of its run
	case put.Generation != 0 && put.Generation != e.Generation:
		j.breachTask("G7", ch.ref, r.tick, put.key, "run %s uses generation %d of its task; the current generation is %d", ch.id, put.Generation, e.Generation)
	default:
		j.checkAccepted(ch, r, put, e.Accept)
		j.namespaces.checkSelector(ch, r, put, e.Target.Selector)
		j.checkBackoffOver(ch, r, put, e.Retry)
	}
}

// checkTakesRuns checks that the node of a new attempt takes runs, as far as its owner can know: a node that drains, is cordoned
// or is not healthy says so in its record, which no commit compares.
func (j *attemptJudge) checkTakesRuns(ch *runChange, r *runHistory, put inboxPut) {
	n, present := j.cluster.nodes[put.node]
	if !present || n.takesRuns || j.opts.wrongClock(put.node, timeOfMS(n.refusesSince)) {
		return
	}

	if late := put.DispatchedAt.Sub(timeOfMS(n.refusesSince)); late > namespaceLag+2*j.opts.Skew {
		j.breachTask("G20", ch.ref, r.tick, put.key, "run %s is assigned to node %s, which has taken no runs for %s", ch.id, put.node, late)
	}
}

// checkRewrite judges the rewrite of an inbox record. Only the node of the inbox may change the state or the
// instance, and only while it is present (G2). Users and owners may request a cancel or a pause.
func (j *attemptJudge) checkRewrite(ch *runChange, r *runHistory, before inboxRecord, put inboxPut) {
	if before.CancelRequested && !put.CancelRequested {
		j.breachTask("state", ch.ref, r.tick, put.key, "a cancel of run %s was overwritten", ch.id)
	}

	j.checkPause(ch, r, before, put)
	j.requests.checkKept(ch, r, &put.Run, put.key)

	if before.State != put.State {
		if put.CountedAttempt() <= 1 {
			j.policies.checkStartDeadline(ch, r, put.StartBefore, put.StartedAt, put.key)
		}
		j.freezes.checkStart(ch, r, put.node, put.StartedAt, put.key)
	}

	// Without a change of state or instance, the write may be a request from the API or the owner.
	if before.State == put.State && before.Instance == put.Instance {
		return
	}

	if n, present := j.cluster.nodes[put.node]; !present || n.instance != put.Instance {
		j.breachTask("G2", ch.ref, r.tick, put.key, "run %s was rewritten for instance %q of node %q, which does not exist", ch.id, put.Instance, put.node)
	}
}

// checkRetry judges the queue record that takes the place of an attempt: a retry that the policy allows (G9), an attempt
// that was not sent, or one that its node handed back before it started it.
func (j *attemptJudge) checkRetry(ch *runChange, r *runHistory, taken *inboxRecord, w *task.Waiting) {
	if w.UnsentCount() != taken.UnsentCount() {
		j.requests.checkUnsent(ch, r, taken, w)
		return
	}

	// No attempt was added to the list, so the attempt was handed back.
	if len(w.Attempts) <= r.attempts {
		if taken.CancelRequested {
			j.breachTask("state", ch.ref, r.tick, ch.queueKey, "run %s is queued again after a cancel", ch.id)
		}
		return
	}

	last := w.Attempts[len(w.Attempts)-1]
	if last.Token != taken.create {
		j.breachTask("G10", ch.ref, r.tick, ch.queueKey, "run %s waits after an attempt with token %d; the attempt that ended has %d", ch.id, last.Token, taken.create)
	}

	j.requests.checkCounted(ch, r, taken, last, ch.queueKey)
	if len(w.Attempts) >= taken.Retry.Attempts {
		j.breachTask("G9", ch.ref, r.tick, ch.queueKey, "run %s is retried after %d attempts; at most %d are allowed", ch.id, len(w.Attempts), taken.Retry.Attempts)
	} else if !taken.Retries(last.State, last.ExitCode) {
		j.breachTask("G9", ch.ref, r.tick, ch.queueKey, "run %s is retried after attempt %d ended as %s, although its policy does not allow that or it was cancelled",
			ch.id, taken.Attempt, last.State)
	}

	j.checkBackoff(ch, r, taken, last, w)
	j.policies.checkReason(ch.ref, r.tick, ch.queueKey, "an attempt of run "+ch.id, last.State, last.Reason)
	j.checkTokens(ch, r, w.Attempts, 0, ch.queueKey)
	j.checkStarted(ch, r, taken.StartBefore, firstStartedAt(w.Run), last.StartedAt, ch.queueKey)
}

// checkBackoff checks that a retry waits as long as its policy says (G24). The writer of the record has read one clock for
// both times, which may have been set back in between.
func (j *attemptJudge) checkBackoff(ch *runChange, r *runHistory, taken *inboxRecord, last task.Attempt, w *task.Waiting) {
	least := taken.Retry.Wait(taken.CountedAttempt(), 0)
	if least == 0 || last.EndedAt.IsZero() || j.opts.wrongClock(last.Node, last.EndedAt.Time) {
		return
	}

	if waits := w.NotBefore.Sub(last.EndedAt.Time); waits+2*j.opts.Skew < least {
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "run %s may be retried %s after attempt %d ended; its backoff is at least %s", ch.id, waits, last.Attempt, least)
	}
}

// checkBackoffOver checks that a retry is not dispatched before the time in its queue record (G24). The owner may shorten the
// wait to what the task's policy says.
func (j *attemptJudge) checkBackoffOver(ch *runChange, r *runHistory, put inboxPut, policy task.Retry) {
	if r.waiting != 0 || len(put.Attempts) == 0 { // requestJudge judges waits for a target
		return
	}

	last := put.Attempts[len(put.Attempts)-1]
	owner := j.cluster.shardOf(ch.ref.Shard).owner.Node
	if j.opts.wrongClock(last.Node, last.EndedAt.Time) || j.opts.wrongClock(owner, put.DispatchedAt.Time) {
		return
	}

	longest := policy.Wait(max(put.CountedAttempt()-1, 1), 1)
	from := min(unixMS(r.retryAt), unixMS(last.EndedAt)+longest.Milliseconds())
	if at := unixMS(put.DispatchedAt) + 2*j.opts.Skew.Milliseconds(); at < from {
		j.breachTask("G24", ch.ref, r.tick, put.key, "run %s is dispatched %s before its backoff is over", ch.id, time.Duration(from-at)*time.Millisecond)
	}
}

// checkStarted judges when an attempt that leaves its inbox had started: before the run's start deadline (G22), and
// not after its node had confirmed a freeze (G21).
func (j *attemptJudge) checkStarted(ch *runChange, r *runHistory, deadline, first, last task.Time, key string) {
	j.policies.checkStartDeadline(ch, r, deadline, first, key)
	for _, node := range ch.removedFrom {
		j.freezes.checkStart(ch, r, node, last, key)
	}
}

// checkTokens checks that the attempts that a run lists were in an inbox (G10), and that their tokens increase
// (G11). last is the token of the run itself, which is its latest attempt's; 0: none. The tokens of a run from
// before the history began are not known.
func (j *attemptJudge) checkTokens(ch *runChange, r *runHistory, attempts []task.Attempt, last int64, key string) {
	var before int64
	check := func(token int64) {
		if token != 0 && token <= before {
			j.breachTask("G11", ch.ref, r.tick, key, "run %s: token %d follows token %d", ch.id, token, before)
		}
		before = max(before, token)
	}

	// A run from before the history (decidedRev 0) may list attempts that the history does not contain.
	for _, a := range attempts {
		check(a.Token)
		if a.Token != 0 && !slices.Contains(r.tokens, a.Token) && r.decidedRev > 0 {
			j.breachTask("G10", ch.ref, r.tick, key, "run %s had no attempt with token %d", ch.id, a.Token)
		}
	}

	if !slices.ContainsFunc(attempts, func(a task.Attempt) bool { return a.Token == last }) {
		check(last)
	}
}

// checkLateResults checks that only attempts that were declared lost have late results (G12), and that the attempts
// were in an inbox (G10).
func (j *attemptJudge) checkLateResults(ch *runChange, r *runHistory) {
	for _, l := range ch.late {
		for node, a := range r.inboxes {
			if a.create == l.Token {
				j.breachTask("G12", ch.ref, r.tick, ch.lateKey, "run %s has a late result, but its attempt is still in the inbox of %s", ch.id, node)
			}
		}

		// After a restore, a node that stayed up reports how an attempt has ended that only the lost history had.
		isLost := j.cluster.gap.HasRecord(l.Token)
		if l.Token != 0 && !slices.Contains(r.tokens, l.Token) && r.decidedRev > 0 && !isLost {
			j.breachTask("G10", ch.ref, r.tick, ch.lateKey, "run %s has a late result of token %d, which no inbox had", ch.id, l.Token)
		}

		if r.ended && l.Token == r.token && r.state != task.Lost {
			j.breachTask("G12", ch.ref, r.tick, ch.lateKey, "run %s has a late result of token %d, whose outcome is %s, not lost", ch.id, l.Token, r.state)
		}
	}
}

// checkAccepted checks that a new attempt has only what its task accepts from a manual run, and that it is on the node that
// the request for its run named (G29). The commit compares the entry, so this is exact.
func (j *attemptJudge) checkAccepted(ch *runChange, r *runHistory, put inboxPut, accept task.Accept) {
	given := task.ManualInput{Args: put.Args, Env: put.Env}
	if !put.IsBootRun() {
		given.TargetNode = put.TargetNode
	}
	if err := accept.Check(given); err != nil {
		j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is dispatched with what its task does not accept: %v", ch.id, err)
	}

	if put.TargetNode != "" && put.TargetNode != put.node {
		j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is assigned to node %s, but its request named %s", ch.id, put.node, put.TargetNode)
	}
}

// requestJudge judges attempts of HTTP actions: those that were not sent are free, but only for a while (G9). A request
// whose outcome is unknown counts as lost, unless it may be repeated (G9). The wait for a target is as long as the target
// asked for (G9), and ticks do not start meanwhile (G24).
type requestJudge struct{ judge }

// targetWait is what the records of a run say about attempts that were not sent.
type targetWait struct {
	unsent     int         // how many attempts the last record counts as not sent
	firstEnded task.Time   // when the first of them ended
	waiting    int64       // since which revision the run waits for its target; 0: it does not
	waits      task.Unsent // with waiting: what its queue record counts
	notBefore  task.Time   // with waiting: before this time it must not start
}

// noteQueued applies the queue record of a run.
func (t *targetWait) noteQueued(w *task.Waiting, revision int64) {
	if t.unsent = w.UnsentCount(); t.unsent > 0 && t.firstEnded.IsZero() {
		t.firstEnded = w.Unsent.Last
	}

	switch {
	case !w.WaitsForTarget():
		t.waiting = 0
	case t.waiting == 0:
		t.waiting, t.waits, t.notBefore = revision, *w.Unsent, w.NotBefore
	}
}

// noteListed applies a record of the first list. When earlier attempts ended is known from the record alone.
func (t *targetWait) noteListed(r *task.Run) {
	if t.unsent = r.UnsentCount(); t.unsent > 0 {
		t.firstEnded = r.Unsent.First
	}
}

// forgetWait is called after a revision has changed the run: a run that is not in the queue does not wait.
func (r *runHistory) forgetWait() {
	if !r.queued {
		r.waiting = 0
	}
}

// checkUnsent judges the queue record that takes the place of an attempt and counts it as not sent.
func (j *requestJudge) checkUnsent(ch *runChange, r *runHistory, taken *inboxRecord, w *task.Waiting) {
	breach := func(promise, format string, args ...any) {
		j.breachTask(promise, ch.ref, r.tick, ch.queueKey, "run %s: "+format, append([]any{ch.id}, args...)...)
	}

	switch {
	case w.UnsentCount() != taken.UnsentCount()+1:
		breach("state", "%d attempts were not sent before attempt %d, and %d after it", taken.UnsentCount(), taken.Attempt, w.UnsentCount())
		return
	case len(w.Attempts) != len(taken.Attempts):
		breach("state", "attempt %d was not sent, and is listed as well", taken.Attempt)
	case w.Attempt != taken.Attempt+1:
		breach("state", "attempt %d follows attempt %d", w.Attempt, taken.Attempt)
	case w.NotBeforeBy != task.NotBeforeByTarget || w.Reason != task.ReasonTarget:
		breach("state", "attempt %d was not sent, but the run waits for the reason %q", taken.Attempt, w.Reason)
	}

	switch {
	case taken.Action.HTTP == nil:
		breach("G9", "attempt %d is not a request, and counts as not sent", taken.Attempt)
	case taken.CancelRequested:
		breach("G9", "attempt %d was cancelled, and is tried again", taken.Attempt)
	case !isFree(taken, r.firstEnded, w.Unsent.Last):
		breach("G9", "attempt %d was not sent and is free, although unsent_for (%s) has passed since %s", taken.Attempt,
			taken.Action.HTTP.EffectiveUnsentFor(), formatTime(r.firstEnded.Time))
	}
}

// isFree reports whether an attempt that was not sent and ended at a time is free. first is when the first such attempt of
// the run ended; zero: there was none.
func isFree(taken *inboxRecord, first, ended task.Time) bool {
	limit := taken.Action.HTTP.EffectiveUnsentFor()
	if first.IsZero() {
		return limit > 0
	}
	return ended.Sub(first.Time) <= limit
}

// checkCounted judges the end of an attempt that counts for the retry policy, whether another one follows or not.
func (j *requestJudge) checkCounted(ch *runChange, r *runHistory, taken *inboxRecord, end task.Attempt, key string) {
	h := taken.Action.HTTP
	if h == nil {
		return
	}

	// A cancelled run gets no further attempt, whatever became of its request.
	if end.Reason == task.ReasonUnsent && !taken.CancelRequested && isFree(taken, r.firstEnded, end.EndedAt) {
		j.breachTask("G9", ch.ref, r.tick, key, "run %s: attempt %d was not sent and counts, although unsent_for (%s) has not passed", ch.id, end.Attempt, h.EffectiveUnsentFor())
	}

	if end.Reason == task.ReasonUnanswered && (end.State == task.Lost) == h.MayRepeat() {
		j.breachTask("G9", ch.ref, r.tick, key, "run %s: attempt %d was not answered and is %s; the request may be repeated: %t", ch.id, end.Attempt, end.State, h.MayRepeat())
	}
}

// checkKept checks that a record counts as many attempts that were not sent as the one before.
func (j *requestJudge) checkKept(ch *runChange, r *runHistory, rec *task.Run, key string) {
	if rec.UnsentCount() != r.unsent {
		j.breachTask("state", ch.ref, r.tick, key, "run %s: %d attempts were not sent; its former record counts %d", ch.id, rec.UnsentCount(), r.unsent)
	}
}

// checkNotEarly checks that an attempt is not dispatched before the time for which the target asked (G9). The owner may
// shorten the wait to max_backoff, or to task.MaxUnsentBackoff if that is longer, from when the last attempt ended.
func (j *requestJudge) checkNotEarly(ch *runChange, r *runHistory, put inboxPut) {
	e := j.cluster.taskOf(ch.ref).entry
	if r.waiting == 0 || e == nil || e.UID != r.incarnation.uid {
		return
	}

	longest := max(e.Retry.MaxBackoff.Std(), task.MaxUnsentBackoff)
	from := min(unixMS(r.notBefore), unixMS(r.waits.Last)+longest.Milliseconds())
	if at := unixMS(put.DispatchedAt) + 2*j.opts.Skew.Milliseconds(); at < from {
		j.breachTask("G9", ch.ref, r.tick, put.key, "run %s is tried again %s before the time for which its target asked", ch.id, time.Duration(from-at)*time.Millisecond)
	}
}

// checkNotHeld checks that a tick does not become active while another run of its task waits for its target (G24). The
// watermark of the commit states up to which revision the owner has seen the shard.
func (j *requestJudge) checkNotHeld(d *delta, ch *runChange, r *runHistory, key string) {
	t := j.cluster.taskOf(ch.ref)
	mark := d.watermarks[ch.ref.Shard]
	if !isTickTrigger(r.trigger) || mark == nil || t.entry == nil || t.entry.incarnation != r.incarnation || t.entry.Action.HTTP == nil {
		return
	}

	for id, other := range t.runs {
		if other.incarnation == r.incarnation && other.queued && other.waiting != 0 && other.waiting <= mark.watermark.Seen {
			j.breachTask("G24", ch.ref, r.tick, key, "run %s starts while run %s waits for its target, since revision %d", ch.id, id, other.waiting)
		}
	}
}
