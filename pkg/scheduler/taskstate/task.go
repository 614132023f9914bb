// Package taskstate holds what the owner of a shard knows about each of its tasks: the entry, waiting and
// active runs, and what the history shows (Task). Its methods answer the questions about one task on which
// decisions depend. A Heap orders tasks by when their next ticks are due.
//
// The package decides nothing, does no I/O and reads no clock. Package scheduler changes a task when an
// event or a commit requires it. Nothing here is safe for concurrent use.
package taskstate

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Task is what an owner knows about one task. A shard may have a million tasks, so Task is small, has few
// pointers, and shares what many tasks have in common. Times are Unix milliseconds, where 0 means none.
//
// A Task may exist without an entry: while runs of a deleted task are left, and while a record of a task is
// known before its entry. Present is then false, and Timing and Policy are nil.
type Task struct {
	// Text is namespace/name, uid and the action as JSON, in one string to save memory. See FullName, UID
	// and Action.
	Text   string
	Timing *definition.Timing
	Policy *definition.Policy
	// Activity is nil unless a run of the task waits or is active, as for most tasks.
	Activity *Activity
	// Past is nil unless the task's future depends on its past, as for most tasks.
	Past *Past

	Mod, Create  int64 // revisions of the entry's key; Create is 0 if there is no entry
	From, Anchor int64 // ticks up to From are decided; see task.Entry
	Next         int64 // the next undecided tick; 0: none
	Second       int64 // the tick after Next; 0: none
	delay        int32 // ms after its time at which Next is due (jitter)
	Generation   int32 // version of the spec

	At      int32  // index in the heap, or -1
	Row     int32  // slot of its row in the shard's index, or -1; see package rows
	Change  uint16 // index in the plan's list of changes; may be out of date, see scheduler.taskChanges
	NameLen uint16 // length of namespace/name in bytes
	Added   uint16 // history records since the last trim
	Checked uint16 // the last check by the record of its namespace; see nslimits.Checks
	UIDLen  uint8  // length of the uid in bytes
	Failed  uint8  // consecutive commits that failed for a record of this task
	Dead    uint8  // dead runs since the last trim
	Present bool   // the entry exists
	Bad     bool   // the entry cannot be read: the task has no ticks, and its queue waits
	Paused  bool
	Secret  bool // its attempts need a secret
	marks   marks
}

// marks are flags of a task, in one byte. See the methods.
type marks uint8

const (
	listedMark marks = 1 << iota
	touchedMark
	httpMark
)

// set sets or clears a flag, and reports whether that changes it.
func (m *marks) set(flag marks, on bool) bool {
	if (*m&flag != 0) == on {
		return false
	}

	*m ^= flag

	return true
}

// IsListed reports whether the next plan examines the task.
func (t *Task) IsListed() bool { return t.marks&listedMark != 0 }

// SetListed sets or clears what IsListed returns, and reports whether that changes it.
func (t *Task) SetListed(on bool) bool { return t.marks.set(listedMark, on) }

// SetTouched sets or clears the mark that the task's row is to be written, and reports whether that changes it.
func (t *Task) SetTouched(on bool) bool { return t.marks.set(touchedMark, on) }

// IsHTTP reports whether the task's action is an HTTP request.
func (t *Task) IsHTTP() bool { return t.marks&httpMark != 0 }

// SetHTTP sets or clears what IsHTTP returns.
func (t *Task) SetHTTP(on bool) { t.marks.set(httpMark, on) }

// Activity is what a task has while runs of it wait or are active.
type Activity struct {
	Queue      []*Waiting          // ordered by run id
	Active     []*Attempt          // attempts in inboxes
	Unreadable []string            // ids of runs whose queue records cannot be read
	InLine     bool                // the task is in the shard's line for catch-up tokens
	LatePassed bool                // a tick on time has started since a late tick of the task last did; see LateTurn
	Returned   map[string]Returned // parts that have ended, by id, as long as their records exist

	among *ActiveTasks // the list that contains the task, and the index in it
	At    int32
}

// FullName returns namespace/name.
func (t *Task) FullName() string { return t.Text[:t.NameLen] }

// UID returns the uid of the entry, or "" if there is no entry.
func (t *Task) UID() string { return t.Text[t.NameLen : int(t.NameLen)+int(t.UIDLen)] }

// Action returns the action of the entry as JSON.
func (t *Task) Action() string { return t.Text[int(t.NameLen)+int(t.UIDLen):] }

// Ref identifies t in a shard, for building keys.
func (t *Task) Ref(shard int) record.Ref {
	namespace, name, _ := strings.Cut(t.FullName(), "/")
	return record.Ref{Namespace: namespace, Name: name, Shard: shard}
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

// ActiveTasks are the tasks of a shard that have waiting or active runs, in no particular order.
type ActiveTasks struct{ Tasks []*Task }

// Add adds a task, which must have an Activity and must not be in such a list.
func (l *ActiveTasks) Add(t *Task) {
	t.Activity.among, t.Activity.At = l, int32(len(l.Tasks))
	l.Tasks = append(l.Tasks, t)
}

func (l *ActiveTasks) removeTask(t *Task) {
	last := len(l.Tasks) - 1
	l.Tasks[t.Activity.At] = l.Tasks[last]
	l.Tasks[t.Activity.At].Activity.At = t.Activity.At
	l.Tasks[last] = nil

	// Release memory after a peak.
	if l.Tasks = l.Tasks[:last]; cap(l.Tasks) > 1024 && last < cap(l.Tasks)/8 {
		l.Tasks = append(make([]*Task, 0, 2*last), l.Tasks...)
	}
}

// Schedule returns the task's schedule. The task must have an entry that can be read, as for After, Due,
// LastDue and TicksToDrop.
func (t *Task) Schedule() schedule.Schedule { return t.Timing.Schedule.Anchored(Instant(t.Anchor)) }

// After returns t's first tick later than an instant, or 0 if there is none. Both are Unix milliseconds.
func (t *Task) After(at int64) int64 {
	s := t.Schedule()
	tick, ok := s.Next(Instant(at))
	if !ok {
		return 0
	}

	return tick.UnixMilli()
}

// Due returns when one of t's ticks is due: at its time, or with jitter somewhat later, but before the next
// tick is due. Ticks are decided in this order. All times are Unix milliseconds.
func (t *Task) Due(tick int64) int64 {
	if t.Timing == nil || !t.Timing.Jittered {
		return tick
	}
	s := t.Schedule()
	return s.Due(Instant(tick), t.UID()).UnixMilli()
}

// DueAt returns when t's next undecided tick is due. The result is meaningless if there is none.
func (t *Task) DueAt() int64 { return t.Next + int64(t.delay) }

// LastDue returns an instant with this property: the ticks of t up to it are exactly those that are due at
// the instant at. Both are Unix milliseconds.
func (t *Task) LastDue(at int64) int64 {
	if !t.Timing.Jittered {
		return at
	}

	s := t.Schedule()
	tick, ok := s.LastDue(Instant(at), t.UID())
	if !ok {
		return 0
	}

	return tick.UnixMilli()
}

// Instant converts Unix milliseconds to a time in UTC.
func Instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// Waiting is a run in the queue: its record, and what its owner knows in addition.
type Waiting struct {
	task.Waiting
	Mod  int64 // mod revision of the record
	Seen int64 // when the owner first received the record, in Unix ms by its own clock; 0: it wrote the record
	Parental
}

// Parental is what an owner keeps about a run with parts in addition to its record. It is lost when the owner
// changes.
type Parental struct {
	// Away holds, by node, since when it has been away, for nodes of parts that are left to assign.
	Away    map[string]time.Time
	ToldAt  time.Time // when the record was last written
	Missing time.Time // since when parts have no record anywhere; zero: all have one
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
func (t *Task) NotBefore(q *Waiting) time.Time {
	at := q.NotBefore.Time
	if q.Seen == 0 || at.IsZero() || q.UnderWay() {
		return at
	}

	latest := Instant(q.Seen).Add(t.longestWait(q))
	if at.After(latest.Add(clockSlack)) {
		return latest
	}

	return at
}

// longestWait returns how long a retry may wait by the task's policy.
func (t *Task) longestWait(q *Waiting) time.Duration {
	retry := t.Policy.Retry
	if q.NotBeforeBy == task.NotBeforeByTarget {
		return max(retry.MaxBackoff.Std(), task.MaxUnsentBackoff)
	}

	// Attempts that were not sent do not lengthen the backoff.
	return retry.Wait(max(q.CountedAttempt()-1, 1), 1)
}

// Due returns when the tick of a waiting run was due.
func (q *Waiting) Due() time.Time {
	if !q.DueAt.IsZero() {
		return q.DueAt.Time
	}
	return q.ScheduledTime.Time
}

// DispatchedBefore reports whether a waiting run was dispatched before, or has its parts. Such a run counts
// as active (G8).
func (q *Waiting) DispatchedBefore() bool {
	return q.Attempt > 1 || q.Reason == task.ReasonHandBack || q.UnderWay()
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

// WaitingRuns returns how many runs wait, whether they were dispatched before or not. Parts do not count, and runs that
// have their parts are active. Runs of a deleted task of the same name do not count.
func (t *Task) WaitingRuns() int {
	n := 0

	for _, q := range t.Queue() {
		if !q.UnderWay() && !task.IsPart(q.ID) && !t.Orphan(q.ID) {
			n++
		}
	}

	return n
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
		if slices.ContainsFunc(t.Activity.Active, func(a *Attempt) bool { parent, _, is := task.ParentOf(a.Run); return is && parent == id }) {
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

// Empty reports whether nothing is left of the task: no entry, and no waiting or active run.
func (t *Task) Empty() bool {
	t.DropIdleActivity()
	return !t.Present && t.Activity == nil
}

// Fires reports whether the task may have ticks, now or later: it is readable, has runs left, and is not
// paused without an end.
func (t *Task) Fires() bool {
	if !t.Present || t.Bad || t.usedAllRuns() {
		return false
	}

	if t.Paused {
		_, ends := t.Silence()
		return ends
	}

	return true
}

// Entry returns t's entry with its current fields, without Own, for writing it.
func (t *Task) Entry() record.EntryParts {
	return record.EntryParts{
		UID: []byte(t.UID()), Generation: int64(t.Generation), From: task.At(Instant(t.From)), Anchor: task.At(Instant(t.Anchor)),
		Paused: t.Paused, Action: []byte(t.Action()), Timing: []byte(t.Timing.Text), Policy: []byte(t.Policy.Text), Labels: t.Policy.Labels.JSON(),
	}
}

// IsBehind reports whether at least two of the task's ticks are due at now (Unix milliseconds), or one is
// past its grace. Then the missed policy decides them.
func (t *Task) IsBehind(now int64) bool {
	return t.Second != 0 && t.Second <= now && t.Due(t.Second) <= now || now-t.DueAt() > t.Policy.Grace.Milliseconds()
}

// Paced reports whether a waiting run needs a catch-up token to start.
func (q *Waiting) Paced() bool { return q.Trigger == task.TriggerCatchUp && !q.DispatchedBefore() }

// ByName orders tasks by their full names.
func ByName(a, b *Task) int { return strings.Compare(a.FullName(), b.FullName()) }
