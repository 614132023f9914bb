package check

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// tasked is a namespace and name: the tasks that bore it, one after another.
type tasked struct {
	ref    store.Ref
	entry  *entry // nil: there is none
	lines  map[string]*lineage
	runs   map[string]*run
	active map[string]*run // those in an inbox or between two attempts
	dead   map[string]bool // runs that wait for a person
}

// entry is an entry as it stands in its shard.
type entry struct {
	task.Entry
	create, mod int64
	line        *lineage
	ticks       *timing // nil: it has none
}

// lineage is a task by its uid: one name may have had several.
type lineage struct {
	ref      store.Ref
	uid      string
	outcomes map[int64]*run // what each tick came to
	stretch  stretch
	last     int64 // when its latest tick was decided, by the owner's clock
	ownWork
}

// stretch is a time in which a task's ticks are those of one schedule: one or
// several versions of its entry that do not differ in that.
type stretch struct {
	ticks  *timing      // nil: paused, unreadable or used up, so that there are none
	start  int64        // ticks after it are this stretch's
	silent int64        // ticks up to it do not exist: a pause with an end; 0: none
	pauses []task.Pause // of a snapshot: those in which there were no ticks
	rev    int64        // of the version that began it
}

// silence takes the ticks up to an instant away.
func (st *stretch) silence(until int64) {
	if until != 0 {
		st.silent, st.start = until, max(st.start, until)
	}
}

// paused reports whether a tick fell into a pause that is over.
func (st stretch) paused(at int64) bool {
	return slices.ContainsFunc(st.pauses, func(p task.Pause) bool { return at > ms(p.Since) && !p.Over(instant(at)) })
}

// line returns a task by its uid, which it begins at need.
func (t *tasked) line(uid string) *lineage {
	l := t.lines[uid]
	if l == nil {
		l = &lineage{ref: t.ref, uid: uid, outcomes: map[int64]*run{}}
		t.lines[uid] = l
	}
	return l
}

// open are the runs of a task that wait or are active.
func (t *tasked) open(line *lineage) (all []*run) {
	for _, r := range t.runs {
		if r.line == line && !r.ended && !r.purged {
			all = append(all, r)
		}
	}
	return all
}

// ownWork is what the history tells of a task that its entry tells, too (task.Own).
type ownWork struct {
	counting int64     // the revision since which ends count as failures in a row
	ends     []endMark // of runs, the latest last
	lastEnd  int64     // of a run, in ms
	born     int64     // the revision of the latest births of runs of ticks
	births   int64     // in that revision
}

// endMark is the final end of a run.
type endMark struct {
	rev, at int64
	state   task.State
}

// failure reports whether a state counts as a failure in a row.
func failure(s task.State) bool { return s == task.Failed || s == task.TimedOut || s == task.Lost }

// countBirth counts the first record of a run of a tick.
func (l *lineage) countBirth(rev int64) {
	if l.born != rev {
		l.born, l.births = rev, 0
	}
	l.births++
}

// countEnd counts the end of a run.
func (l *lineage) countEnd(rev int64, e *task.Run) {
	if e.State == task.Skipped || e.State == task.Missed {
		return
	}
	l.ends = append(l.ends, endMark{rev, ms(e.EndedAt), e.State})
	l.lastEnd = max(l.lastEnd, ms(e.EndedAt))
}

// run is a run, or a record of ticks that did not run, through all its places:
// queue, inboxes, history.
type run struct {
	id       string
	line     *lineage
	tick     int64 // 0 for a run without one
	count    int64
	trigger  string
	state    task.State
	reason   string
	in       map[string]attempt // by node: the inboxes that hold it
	queued   bool
	made     bool // it has been in the queue or in an inbox
	retrying bool // it waits, and was tried before
	attempts int  // those of which a record says how they ended
	ended    bool
	purged   bool // it went with its task
	text     string
	record   *task.Run // of ticks that did not run
	before   task.Time // a first attempt may start until then; zero: at any time
	token    int64     // of the attempt whose outcome is the run's; 0: none
	tokens   []int64
	decided  int64 // revision; 0 if before the history begins
	// activated is the revision since which it is active: from its dispatch, a
	// wait for the next attempt included, to its outcome.
	activated int64
	parenthood
}

// putInto takes a record that is put into an inbox.
func (r *run) putInto(put attemptPut) {
	r.in[put.node] = attempt{Assigned: put.Assigned, create: put.create}
	if !slices.Contains(r.tokens, put.create) {
		r.tokens = append(r.tokens, put.create)
	}
}

// removeFrom takes the run out of the inboxes of nodes, and returns the attempt that this ends.
func (r *run) removeFrom(nodes []string) *attempt {
	var taken *attempt
	for _, node := range nodes {
		if a, ok := r.in[node]; ok {
			taken = &a
			delete(r.in, node)
		}
	}
	return taken
}

// setOutcome takes the record of the run's end.
func (r *run) setOutcome(e *task.Run, text string) {
	r.ended, r.reason, r.text = true, e.Reason, text
	if e.State == task.Skipped || e.State == task.Missed {
		r.record = e
	}
}

// attempt is a record in an inbox.
type attempt struct {
	task.Assigned
	create int64
}

// scheduled reports whether a run with this trigger is the outcome of a tick.
func scheduled(trigger string) bool {
	return trigger == task.TriggerSchedule || trigger == task.TriggerCatchUp
}

// parenthood is what a parent's record says, and said before the present revision.
type parenthood struct {
	fan, was *task.Fan // nil: it has no parts yet
	changed  int64     // revision
}

// setFan takes a parent's record of a revision.
func (p *parenthood) setFan(f *task.Fan, revision int64) {
	p.fan, p.was, p.changed = f, p.fan, revision
}

// underWay reports whether the run has parts, and has not ended.
func (r *run) underWay() bool { return r.fan != nil && !r.ended }

// isPart reports whether the run is a part.
func (r *run) isPart() bool { return r.trigger == task.TriggerPart }

// fanBefore is the fan as it was before a revision.
func (p *parenthood) fanBefore(revision int64) *task.Fan {
	if p.changed == revision {
		return p.was
	}
	return p.fan
}
