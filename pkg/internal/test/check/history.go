package check

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskHistory holds everything that the history shows of one namespace and name. Several tasks may have had
// that name, one after another; incarnations distinguishes them.
type taskHistory struct {
	ref          record.Ref
	entry        *entryState             // nil: no entry exists
	incarnations map[string]*incarnation // by uid
	runs         map[string]*runHistory  // by run id, of all incarnations
	active       map[string]*runHistory  // in an inbox, waiting for another attempt, or with parts under way
	dead         map[string]int64        // create revisions of dead-letter runs, by run id
	chunks       map[string]*chunkState  // the ledger, by the last part of the key
}

// entryState is the current version of an entry in its shard.
type entryState struct {
	task.Entry
	create, mod int64 // revisions of the entry's key
	incarnation *incarnation
	ticks       *oracle.Timing // nil: the entry has no ticks
}

// decidedUpTo returns the time in ms up to which an entry's ticks are decided. The entry's from always counts. The
// watermark counts only if it covers the entry: the owner had seen the entry's creation when it wrote the
// watermark. markMod is the watermark's mod revision, 0 if there is none.
func (e *entryState) decidedUpTo(ref record.Ref, w record.Watermark, markMod int64) int64 {
	from := e.From.UnixMilli()
	if markMod > 0 && e.create <= w.Seen {
		return max(from, e.ticks.DueUpTo(watermarkCovers(w, ref.String())))
	}
	return from
}

// incarnation is one task, identified by its uid. A task that is deleted and created again is another
// incarnation of the same name, whose ticks and runs are judged separately.
type incarnation struct {
	ref          record.Ref
	uid          string
	outcomes     map[int64]*runHistory // the record that decided each tick, by the tick's time in ms
	epoch        scheduleEpoch         // the schedule in force, and the time from which its ticks count
	lastDecision int64                 // when its latest run was decided, by the owner's clock, in ms
	countedPast
}

// scheduleEpoch is a period in which a task keeps one schedule: one version of its entry, or several that have
// the same ticks. The ticks of an epoch are judged when it ends (G4). Times are in ms.
type scheduleEpoch struct {
	ticks       *oracle.Timing // nil: no ticks, because the task is paused, has used all its runs, or cannot be read
	start       int64          // the epoch has the ticks after this time; it advances as ticks are judged
	silentUntil int64          // ticks up to this time do not exist, because of a pause with an end; 0: no such pause
	rev         int64          // the revision of the version that began the epoch
}

// silenceUntil removes the ticks up to an instant from the epoch, as a pause with an end does. Zero changes
// nothing.
func (s *scheduleEpoch) silenceUntil(until int64) {
	if until != 0 {
		s.silentUntil, s.start = until, max(s.start, until)
	}
}

// incarnationOf returns the incarnation with that uid, and creates it if it is new.
func (t *taskHistory) incarnationOf(uid string) *incarnation {
	l := t.incarnations[uid]
	if l == nil {
		l = &incarnation{ref: t.ref, uid: uid, outcomes: map[int64]*runHistory{}}
		t.incarnations[uid] = l
	}

	return l
}

// openRuns returns the runs of an incarnation that wait or are active.
func (t *taskHistory) openRuns(inc *incarnation) (all []*runHistory) {
	for _, r := range t.runs {
		if r.incarnation == inc && !r.ended && !r.purged {
			all = append(all, r)
		}
	}

	return all
}

// countedPast is the checker's own count of what an entry also counts in its own record (task.Own).
// counterJudge compares the two (G24).
type countedPast struct {
	countingSince  int64    // ends after this revision count as consecutive failures: an edit reset the count
	ends           []runEnd // final ends of runs, in order of revision
	lastEnd        int64    // the latest end time of a run, in ms
	lastSuccess    int64    // the revision that recorded the last success of a run; 0: none
	successes      successes
	decidedRunsRev int64 // the latest revision in which ticks became runs
	decidedRuns    int64 // how many runs that revision created
}

// runEnd is the final end of a run: the revision that recorded it, and the time in ms that the record gives.
type runEnd struct {
	rev, at int64
	state   task.State
	node    string
	run     *runHistory
	// isRestored means that a restore has lost how the run ended, which is no failure.
	isRestored bool
}

// isFailure reports whether the end counts toward the limit of consecutive failures.
func (e *runEnd) isFailure() bool { return isFailure(e.state) && !e.isRestored }

// successes are the runs of an incarnation that have succeeded. All times are in ms, 0 if none has.
type successes struct {
	last       *runHistory // the one that was recorded last
	lastAt     int64       // when it ended
	newestAt   int64       // the latest end
	longest    int64       // the longest duration
	newest     *runHistory // the one with the newest tick
	newestTick int64       // its tick, or when it was asked for
}

// add adds a run that has succeeded.
func (s *successes) add(r *runHistory, e *task.Run) {
	s.last, s.lastAt = r, unixMS(e.EndedAt)
	s.newestAt = max(s.newestAt, s.lastAt)
	if !e.StartedAt.IsZero() {
		s.longest = max(s.longest, s.lastAt-unixMS(e.StartedAt))
	}

	tick := r.tick
	if asked, ok := task.TimeOfRunID(r.id); tick == 0 && ok {
		tick = asked.UnixMilli()
	}
	if s.newest == nil || tick >= s.newestTick {
		s.newest, s.newestTick = r, tick
	}
}

// isFailure reports whether a final state counts toward the limit of consecutive failures.
func isFailure(s task.State) bool { return s == task.Failed || s == task.TimedOut || s == task.Lost }

// countDecidedRun counts a tick that became a run in the given revision.
func (in *incarnation) countDecidedRun(rev int64) {
	if in.decidedRunsRev != rev {
		in.decidedRunsRev, in.decidedRuns = rev, 0
	}
	in.decidedRuns++
}

// countEnd adds the final end of a run. Records of ticks that did not run are not ends.
func (in *incarnation) countEnd(r *runHistory, e *task.Run) {
	rev := r.endedRev
	if e.State == task.Skipped || e.State == task.Missed {
		return
	}
	in.ends = append(in.ends, runEnd{rev, unixMS(e.EndedAt), e.State, e.Node, r, e.Reason == task.ReasonRestored})
	in.lastEnd = max(in.lastEnd, unixMS(e.EndedAt))
	if e.State == task.Succeeded {
		in.lastSuccess = rev
		in.successes.add(r, e)
	}
}

// runHistory follows one run, or one record of ticks that did not run, through the queue, the inboxes and the
// history.
type runHistory struct {
	id          string // with the incarnation it is unique; ids can be equal in tasks of other names
	incarnation *incarnation
	tick        int64                  // the scheduled time in ms; 0 for a run without a tick
	count       int64                  // how many ticks the record decides; more than 1 for a range
	trigger     string                 // why the run exists: schedule, catch_up, manual, part
	state       task.State             // "": no record has been seen yet
	reason      string                 // why the run waits, or why it ended
	inboxes     map[string]inboxRecord // the inbox records of the run, by node
	queued      bool                   // it has a queue record
	wasPlaced   bool                   // it has been in the queue or in an inbox
	retrying    bool                   // it waits for another attempt after at least one ended
	retryAt     task.Time              // with retrying: before this time the next attempt must not start
	attempts    int                    // how many ended attempts its records list
	ended       bool                   // it has a final record
	endedRev    int64                  // the revision that recorded the end of the run; 0: before the history begins, or it did not run
	purged      bool                   // its records were deleted together with its task
	folded      bool                   // its record has moved to the ledger
	trimmed     bool                   // its final record was deleted from the history
	endedText   string                 // the final record as stored, to detect that it is overwritten
	rangeRecord *task.Run              // the record of ticks that did not run; nil for a run
	startBefore task.Time              // the first attempt may start until then; zero: at any time
	token       int64                  // the token of the attempt that determined the outcome; 0: none
	tokens      []int64                // the tokens of all attempts that were in an inbox
	decidedRev  int64                  // the revision of the first record; 0: before the history begins
	queuedRev   int64                  // the revision that created its last queue record; 0: before the history begins
	// activeSince is the revision since which the run is active: from its dispatch to its outcome, including
	// any wait for the next attempt, or for another node after it was handed back.
	activeSince int64
	// partEnd is the final record of a part, and partEndRev its revision.
	partEnd    *task.Run
	partEndRev int64
	parentRevisions
	targetWait
}

// putInto applies an inbox record.
func (r *runHistory) putInto(put inboxPut) {
	r.inboxes[put.node] = inboxRecord{Assigned: put.Assigned, create: put.create}
	if !slices.Contains(r.tokens, put.create) {
		r.tokens = append(r.tokens, put.create)
	}
}

// removeFrom removes the run from the inboxes of nodes. It returns the inbox record that this ends, or nil.
func (r *runHistory) removeFrom(nodes []string) *inboxRecord {
	var taken *inboxRecord
	for _, node := range nodes {
		if a, ok := r.inboxes[node]; ok {
			taken = &a
			delete(r.inboxes, node)
		}
	}

	return taken
}

// setOutcome applies the run's final record. text is the record as stored.
func (r *runHistory) setOutcome(e *task.Run, text string) {
	r.ended, r.reason, r.endedText = true, e.Reason, text
	if e.State == task.Skipped || e.State == task.Missed {
		r.rangeRecord = e
	}
}

// inboxRecord is an inbox record. Its create revision is the attempt's fencing token.
type inboxRecord struct {
	task.Assigned
	create int64 // the create revision, which is the attempt's fencing token
}

// isTickTrigger reports whether a run with this trigger is the outcome of a tick.
func isTickTrigger(trigger string) bool {
	return trigger == task.TriggerSchedule || trigger == task.TriggerCatchUp
}

// parentRevisions holds the fan (the parts) that a parent's record lists, before and after its latest change. A
// commit changes the parent and its parts in one revision, in any order of keys, so the judges of parts need
// both.
type parentRevisions struct {
	fan, was *task.Fan // nil: it has no parts yet
	changed  int64     // the revision of the latest change
	begun    int64     // the revision in which it got its parts; 0: before the history begins
}

// setFan applies the fan that a revision writes.
func (p *parentRevisions) setFan(f *task.Fan, revision int64) {
	if p.fan == nil {
		p.begun = revision
	}
	p.fan, p.was, p.changed = f, p.fan, revision
}

// underWay reports whether the run has parts and has not ended.
func (r *runHistory) underWay() bool { return r.fan != nil && !r.ended }

// isPart reports whether the run is a part.
func (r *runHistory) isPart() bool { return r.trigger == task.TriggerPart }

// fanBefore returns the fan as it was before a revision.
func (p *parentRevisions) fanBefore(revision int64) *task.Fan {
	if p.changed == revision {
		return p.was
	}
	return p.fan
}
