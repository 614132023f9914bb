package check

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

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
		breach("G9", "attempt %d is no request, and counts as not sent", taken.Attempt)
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
