package state

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Activity is what a task has while runs of it wait or are active.
type Activity struct {
	Queue      []*Waiting          // ordered by run id
	Active     []*Attempt          // attempts in inboxes
	Unreadable []string            // ids of runs whose queue records cannot be read
	InLine     bool                // the task is in the shard's line for catch-up tokens
	LatePassed bool                // a tick on time has started since a late tick of the task last did; see LateTurn
	Returned   map[string]Returned // parts that have ended, by id, as long as their records exist

	// Shown is what boards show of the waiting and active runs. It belongs to package rows.
	Shown *readmodel.Runs

	among *ActiveTasks // the list that contains the task, and the index in it
	At    int32
}

// Queue returns the waiting runs of t, ordered by run id. The caller must not change the slice.
func (t *Task) Queue() []*Waiting {
	if t.Activity == nil {
		return nil
	}
	return t.Activity.Queue
}

// FindWaiting returns the index of a waiting run in the queue, or where it would be inserted, and whether it is there.
func (t *Task) FindWaiting(run string) (int, bool) {
	return slices.BinarySearchFunc(t.Queue(), run, func(q *Waiting, id string) int { return strings.Compare(q.ID, id) })
}

// Active returns the attempts of t that are in inboxes. The caller must not change the slice.
func (t *Task) Active() []*Attempt {
	if t.Activity == nil {
		return nil
	}
	return t.Activity.Active
}

// DropIdleActivity removes t's activity if it is empty.
func (t *Task) DropIdleActivity() {
	if l := t.Activity; l != nil && len(l.Queue) == 0 && len(l.Active) == 0 && len(l.Unreadable) == 0 && len(l.Returned) == 0 {
		l.among.removeTask(t)
		t.Activity = nil
	}
}

// Waiting is a run in the queue: its record, and what its owner knows in addition.
type Waiting struct {
	task.Waiting
	Mod    int64 // mod revision of the record
	Create int64 // create revision of the record
	Seen   int64 // when the owner first received the record, in Unix ms by its own clock; 0: it wrote the record
	Parts  PartsMemory
}

// PartsMemory is what an owner keeps about a run with parts in addition to its record. It is lost when the owner
// changes.
type PartsMemory struct {
	// Away holds, by node, since when it has been away, for nodes of parts that are left to assign.
	Away    map[string]time.Time
	ToldAt  time.Time // when the record was last written
	Missing time.Time // since when parts have no record anywhere; zero: all have one
	// NoNode holds, by step, since when the cleanup of a run that was cut has found no node.
	NoNode map[string]time.Time
	Flow   FlowMemory
}

// Attempt is an attempt in the inbox of a node.
type Attempt struct {
	Run    string // run id
	Node   string
	Create int64 // create revision of the inbox record, which is the fencing token; 0 if not known yet
	Since  int64 // when it was dispatched, in Unix ms; if another owner did that, the time of its tick
	// ProbeUntil is set for an attempt of a run that waited for its target: up to then, in Unix ms, the target counts as
	// down while the attempt is in progress (TargetDown). It is 0 if another owner dispatched the attempt.
	ProbeUntil int64
	// Pool is whose slot on the node is counted for it. The task's action may have changed since.
	Pool  placement.Pool
	Found bool // another owner dispatched it
	// CaughtUp means that it is of a tick that waited for its turn as a late one, or was decided late, and that started later
	// than its grace allows. An attempt of another owner does not have it.
	CaughtUp bool
	// Shown is what boards show of it. It belongs to package rows.
	Shown *readmodel.Attempt
	Watch *Watch // nil unless the node is gone or the attempt must be cancelled
}

// IsAway reports whether the node of the attempt was read as absent.
func (a *Attempt) IsAway() bool { return a.Watch != nil && !a.Watch.Since.IsZero() }

// Watched returns a's watch, and creates it if there is none.
func (a *Attempt) Watched() *Watch {
	if a.Watch == nil {
		a.Watch = &Watch{}
	}
	return a.Watch
}

// clockSlack is how far the clock of a node may be ahead of the owner's before its times are not trusted.
const clockSlack = 5 * time.Second

// NotBefore returns the earliest time at which a waiting run may start, or zero. The time of a retry was
// set by the clock of the node that ran the last attempt, which may be wrong. So a retry waits at most as
// long as its policy says, counted from when this owner received it.
func (t *Task) NotBefore(q *Waiting) time.Time { return t.NotBeforeBy(q, t.Policy.Retry) }

// NotBeforeBy is like NotBefore for a run with a retry policy of its own.
func (t *Task) NotBeforeBy(q *Waiting, retry task.Retry) time.Time {
	at := q.NotBefore.Time
	if q.Seen == 0 || at.IsZero() || q.UnderWay() {
		return at
	}

	latest := Instant(q.Seen).Add(longestWait(q, retry))
	if at.After(latest.Add(clockSlack)) {
		return latest
	}

	return at
}

// longestWait returns how long a retry may wait by its policy.
func longestWait(q *Waiting, retry task.Retry) time.Duration {
	if q.NotBeforeBy == task.NotBeforeByTarget {
		return max(retry.MaxBackoff.Std(), task.MaxUnsentBackoff)
	}

	// Attempts that were not sent do not lengthen the backoff.
	return retry.Wait(max(q.CountedAttempt()-1, 1), 1)
}

// Due returns when the tick of a waiting run was due.
func (w *Waiting) Due() time.Time {
	if !w.DueAt.IsZero() {
		return w.DueAt.Time
	}
	return w.ScheduledTime.Time
}

// DispatchedBefore reports whether a waiting run was dispatched before, or has its parts. Such a run counts
// as active (G8).
func (w *Waiting) DispatchedBefore() bool {
	return w.Attempt > 1 || w.Reason == task.ReasonHandBack || w.UnderWay()
}

// DispatchedWaiting returns how many waiting runs count as active although no attempt of them is in an
// inbox. Parts do not count, because their run does. Runs of a deleted task of the same name do not count.
func (t *Task) DispatchedWaiting() int {
	n := 0

	for _, q := range t.Queue() {
		if q.DispatchedBefore() && !task.IsPart(q.ID) && !t.Orphan(q.ID) {
			n++
		}
	}

	return n
}

// WaitingRuns returns how many runs wait; see IsWaiting.
func (t *Task) WaitingRuns() int {
	n := 0

	for _, q := range t.Queue() {
		if t.IsWaiting(q) {
			n++
		}
	}

	return n
}

// IsWaiting reports whether a record in the queue of t is a run that waits, whether it was dispatched before or not. Parts
// are not separate runs, and runs that have their parts are active. Runs of a deleted task of the same name do not count.
func (t *Task) IsWaiting(q *Waiting) bool {
	return !q.UnderWay() && !task.IsPart(q.ID) && !t.Orphan(q.ID)
}

// Parents returns how many runs have their parts. Runs of a deleted task of the same name do not count.
func (t *Task) Parents() int {
	n := 0

	for _, q := range t.Queue() {
		if q.UnderWay() && !t.Orphan(q.ID) {
			n++
		}
	}

	return n
}

// Attempts returns how many runs are active because of attempts in inboxes. For a run with parts, its queue
// record counts and not its parts. But if that record cannot be read, the run is counted here, once, as
// long as a part is in an inbox.
//
// Attempts of a deleted task of the same name do not count. They are being cancelled, which takes as long
// as their grace period, or as lost_after if their node is silent. The task that has the name now is a
// different one and does not wait for them (G8).
func (t *Task) Attempts() int {
	n := 0

	for _, a := range t.Active() {
		if !task.IsPart(a.Run) && !t.Orphan(a.Run) {
			n++
		}
	}

	if t.Activity == nil {
		return n
	}

	for _, id := range t.Activity.Unreadable {
		if t.Orphan(id) {
			continue
		}

		// The queue record of this run cannot be read. Count the run if one of its parts is active.
		if slices.ContainsFunc(t.Activity.Active, func(a *Attempt) bool { parent, _, ok := task.ParentOf(a.Run); return ok && parent == id }) {
			n++
		}
	}

	return n
}

// Holds reports whether a run is in an inbox, or has a queue record that cannot be read. In both cases no
// other record of the run may be created.
func (t *Task) Holds(run string) bool {
	l := t.Activity
	return l != nil && (slices.Contains(l.Unreadable, run) || slices.ContainsFunc(l.Active, func(a *Attempt) bool { return a.Run == run }))
}

// HasRun reports whether a run waits, is in an inbox, or has a queue record that cannot be read. In each case
// its tick has an outcome.
func (t *Task) HasRun(run string) bool {
	_, waits := t.FindWaiting(run)
	return waits || t.Holds(run)
}

// Orphan reports whether a run belongs to a task that no longer exists. Another task may have the same name
// now. If the entry cannot be read, the answer is unknown, and Orphan returns false.
func (t *Task) Orphan(run string) bool {
	if !t.Present || t.Bad {
		return !t.Present
	}
	return !task.RunBelongs(run, t.UID())
}

// Paced reports whether a waiting run needs a catch-up token to start.
func (w *Waiting) Paced() bool { return w.Trigger == task.TriggerCatchUp && !w.DispatchedBefore() }

// Watch is what an owner has read about an attempt whose node is gone, or which must be cancelled because
// its task is gone, its run ends, or a newer tick replaces it.
type Watch struct {
	// Held is the attempt's record. If the record cannot be read, Held contains what its key shows.
	Held record.Held
	// Since is when the node was first read as absent, with this record. It is zero if that has not
	// happened.
	Since time.Time
	// Lost means that the node was still absent, and the record unchanged, at a second reading after
	// LostAfter.
	Lost bool
	// Unreadable is why the record cannot be read. Its instance is then unknown, so it can never be proved
	// dead.
	Unreadable error
	// Ask means that the next plan must request the attempt's end. Asked means that somebody has requested
	// it.
	Ask   bool
	Asked bool
}

// LostAfter returns how long the node must be absent before the attempt is lost: the lost_after in the
// attempt's record, which the node uses as well. If the record cannot be read, it is unknown which value
// the node uses, so LostAfter returns the longest that is possible. With a shorter time, the attempt's
// process could still run on a node that is cut off when another attempt takes over (G17).
func (w *Watch) LostAfter() time.Duration {
	if w.Unreadable != nil {
		return task.MaxLostAfter.Std()
	}
	return w.Held.EffectiveLostAfter().Std()
}

// Returned is how a part ended.
type Returned struct {
	task.Part
	Parent string // id of its run
	Mod    int64  // mod revision of its record
	// Results has all results of a step without map, which other steps may need. Part.Results has them only if they are short.
	Results map[string]string
}

// CountEnded returns how many parts of a run have ended, and how many of these succeeded. t must have an
// Activity.
func (t *Task) CountEnded(q *Waiting) (ended, succeeded int) {
	for _, r := range t.Activity.Returned {
		if r.Parent != q.ID {
			continue
		}

		ended++

		if r.State == task.Succeeded {
			succeeded++
		}
	}

	return ended, succeeded
}

// ParentOf returns the run to which a part belongs, or nil if that run is not in the queue with its parts.
func (t *Task) ParentOf(part string) *Waiting {
	id, _, ok := task.ParentOf(part)
	if !ok || t.Activity == nil {
		return nil
	}

	for _, q := range t.Activity.Queue {
		if q.ID == id && q.UnderWay() {
			return q
		}
	}

	return nil
}

// StepOf returns the step of a workflow to which a part belongs. It returns nil for every other run, and if the record of the
// run to which the part belongs is not known.
func (t *Task) StepOf(part string) *task.FlowStep {
	if t.Activity == nil {
		return nil
	}

	q := t.ParentOf(part)
	if q == nil || q.Fan.Flow == nil {
		return nil
	}
	_, index, _ := task.ParentOf(part)

	return q.Fan.Flow.StepOf(index)
}

// EndsWithParent returns why a part must end with its run, and who cancelled the run. The reason is empty
// if the part may continue.
func (t *Task) EndsWithParent(part string) (reason string, who *task.Actor) {
	if q := t.ParentOf(part); q != nil {
		_, index, _ := task.ParentOf(part)
		return q.Fan.CutsPart(index), q.CancelledBy
	}
	return "", nil
}

// GoesWithParent reports whether an attempt belongs to a part that must end with its run.
func (t *Task) GoesWithParent(part string) bool {
	reason, _ := t.EndsWithParent(part)
	return reason != ""
}

// KnowsParent reports whether the queue has a record of the run to which a part belongs, including one that
// cannot be read.
func (t *Task) KnowsParent(part string) bool {
	id, _, _ := task.ParentOf(part)
	return t.Activity != nil && (slices.Contains(t.Activity.Unreadable, id) || slices.ContainsFunc(t.Activity.Queue, func(q *Waiting) bool { return q.ID == id }))
}
