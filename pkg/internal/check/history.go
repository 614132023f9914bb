package check

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskHistory is a namespace and name: the tasks that bore it, one after another.
type taskHistory struct {
	ref          record.Ref
	entry        *entryState // nil: there is none
	incarnations map[string]*incarnation
	runs         map[string]*runHistory
	active       map[string]*runHistory // those in an inbox or between two attempts
	dead         map[string]bool        // runs that wait for a person
}

// entryState is an entry as it stands in its shard.
type entryState struct {
	task.Entry
	create, mod int64
	incarnation *incarnation
	ticks       *timing // nil: it has none
}

// incarnation is a task by its uid: one name may have had several.
type incarnation struct {
	ref          record.Ref
	uid          string
	outcomes     map[int64]*runHistory // what each tick came to
	epoch        scheduleEpoch
	lastDecision int64 // when its latest tick was decided, by the owner's clock
	countedPast
}

// scheduleEpoch is a time in which a task's ticks are those of one schedule: one or
// several versions of its entry that do not differ in that.
type scheduleEpoch struct {
	ticks       *timing      // nil: paused, unreadable or used up, so that there are none
	start       int64        // ticks after it are this epoch's
	silentUntil int64        // ticks up to it do not exist: a pause with an end; 0: none
	pauses      []task.Pause // of a snapshot: those in which there were no ticks
	rev         int64        // of the version that began it
}

// silenceUntil takes the ticks up to an instant away.
func (st *scheduleEpoch) silenceUntil(until int64) {
	if until != 0 {
		st.silentUntil, st.start = until, max(st.start, until)
	}
}

// wasPaused reports whether a tick fell into a pause that is over.
func (st scheduleEpoch) wasPaused(at int64) bool {
	return slices.ContainsFunc(st.pauses, func(p task.Pause) bool { return at > unixMS(p.Since) && !p.Over(timeOfMS(at)) })
}

// incarnationOf returns a task by its uid, which it begins at need.
func (t *taskHistory) incarnationOf(uid string) *incarnation {
	l := t.incarnations[uid]
	if l == nil {
		l = &incarnation{ref: t.ref, uid: uid, outcomes: map[int64]*runHistory{}}
		t.incarnations[uid] = l
	}

	return l
}

// openRuns are the runs of a task that wait or are active.
func (t *taskHistory) openRuns(inc *incarnation) (all []*runHistory) {
	for _, r := range t.runs {
		if r.incarnation == inc && !r.ended && !r.purged {
			all = append(all, r)
		}
	}

	return all
}

// countedPast is what the history tells of a task that its entry tells, too (task.Own).
type countedPast struct {
	countingSince  int64    // the revision since which ends count as failures in a row
	ends           []runEnd // of runs, the latest last
	lastEnd        int64    // of a run, in ms
	decidedRunsRev int64    // the revision of the latest decisions that made runs
	decidedRuns    int64    // in that revision
}

// runEnd is the final end of a run.
type runEnd struct {
	rev, at int64
	state   task.State
}

// isFailure reports whether a state counts as a failure in a row.
func isFailure(s task.State) bool { return s == task.Failed || s == task.TimedOut || s == task.Lost }

// countDecidedRun counts the first record of a run of a tick.
func (l *incarnation) countDecidedRun(rev int64) {
	if l.decidedRunsRev != rev {
		l.decidedRunsRev, l.decidedRuns = rev, 0
	}
	l.decidedRuns++
}

// countEnd counts the end of a run.
func (l *incarnation) countEnd(rev int64, e *task.Run) {
	if e.State == task.Skipped || e.State == task.Missed {
		return
	}
	l.ends = append(l.ends, runEnd{rev, unixMS(e.EndedAt), e.State})
	l.lastEnd = max(l.lastEnd, unixMS(e.EndedAt))
}

// runHistory is a run, or a record of ticks that did not run, through all its places:
// queue, inboxes, history.
type runHistory struct {
	id          string
	incarnation *incarnation
	tick        int64 // 0 for a run without one
	count       int64
	trigger     string
	state       task.State
	reason      string
	inboxes     map[string]inboxRecord // by node: the inboxes that hold it
	queued      bool
	wasPlaced   bool // it has been in the queue or in an inbox
	retrying    bool // it waits, and was tried before
	attempts    int  // those of which a record says how they ended
	ended       bool
	purged      bool // it went with its task
	endedText   string
	rangeRecord *task.Run // of ticks that did not run
	startBefore task.Time // a first attempt may start until then; zero: at any time
	token       int64     // of the attempt whose outcome is the run's; 0: none
	tokens      []int64
	decidedRev  int64 // revision; 0 if before the history begins
	// activeSince is the revision since which it is active: from its dispatch, a
	// wait for the next attempt included, to its outcome.
	activeSince int64
	parentRevisions
}

// putInto takes a record that is put into an inbox.
func (r *runHistory) putInto(put inboxPut) {
	r.inboxes[put.node] = inboxRecord{Assigned: put.Assigned, create: put.create}
	if !slices.Contains(r.tokens, put.create) {
		r.tokens = append(r.tokens, put.create)
	}
}

// removeFrom takes the run out of the inboxes of nodes, and returns the attempt that this ends.
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

// setOutcome takes the record of the run's end.
func (r *runHistory) setOutcome(e *task.Run, text string) {
	r.ended, r.reason, r.endedText = true, e.Reason, text
	if e.State == task.Skipped || e.State == task.Missed {
		r.rangeRecord = e
	}
}

// inboxRecord is a record in an inbox.
type inboxRecord struct {
	task.Assigned
	create int64
}

// isTickTrigger reports whether a run with this trigger is the outcome of a tick.
func isTickTrigger(trigger string) bool {
	return trigger == task.TriggerSchedule || trigger == task.TriggerCatchUp
}

// parentRevisions is what a parent's record says, and said before the present revision.
type parentRevisions struct {
	fan, was *task.Fan // nil: it has no parts yet
	changed  int64     // revision
}

// setFan takes a parent's record of a revision.
func (p *parentRevisions) setFan(f *task.Fan, revision int64) {
	p.fan, p.was, p.changed = f, p.fan, revision
}

// underWay reports whether the run has parts, and has not ended.
func (r *runHistory) underWay() bool { return r.fan != nil && !r.ended }

// isPart reports whether the run is a part.
func (r *runHistory) isPart() bool { return r.trigger == task.TriggerPart }

// fanBefore is the fan as it was before a revision.
func (p *parentRevisions) fanBefore(revision int64) *task.Fan {
	if p.changed == revision {
		return p.was
	}
	return p.fan
}
