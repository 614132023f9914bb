// Package taskstate has what the owner of a shard knows of each of its tasks: its entry, what waits,
// what is active, and what its history tells (Task). The questions that decisions ask of one task are its
// methods; a Heap orders tasks by when their next ticks fall due, and a Census counts them.
//
// It decides nothing, reads nothing and writes nothing, and asks no clock: package scheduler changes a
// task when an event or a commit says so. Nothing here is safe for concurrent use.
package taskstate

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Task is what a worker knows of a task: its entry, what waits, what is active. There may be a million: it is small, holds few pointers, and leaves to
// others what tasks have alike. Times are Unix milliseconds; 0 is none.
type Task struct {
	Text     string // namespace/name, uid, action as JSON: in one piece, to spare what strings cost
	Timing   *definition.Timing
	Policy   *definition.Policy
	Activity *Activity // nil for most
	Past     *Past     // nil for most

	Mod, Create  int64 // revisions of the entry's key
	From, Anchor int64
	Next         int64 // the next tick that is not decided
	Second       int64 // the tick after it
	delay        int32 // ms after its time that the next tick falls due: jitter
	Generation   int32

	At      int32  // place in the heap, or -1
	Change  int32  // place among the changes of the plan in the making; see plan.changed
	NameLen uint16 // length of namespace/name
	Added   uint16 // records of history since the last trim
	UIDLen  uint8  // length of the uid
	Failed  uint8  // commits in a row that failed for a record of this task
	Dead    uint8  // dead runs since the last trim
	Present bool   // the entry exists; if bad, it cannot be read and has no ticks
	Bad     bool
	Paused  bool
	Secret  bool // its attempts read secrets
	Looked  bool // it is among the worker's looks
	kind    Kind // as what the worker counts it
}

// Activity is what a task has while something waits or runs.
type Activity struct {
	Queue      []*Waiting // by run id
	Active     []*Attempt
	Unreadable []string            // runs whose queue records cannot be read
	InLine     bool                // a late tick waits for its turn, in the worker's line
	Returned   map[string]Returned // parts that have ended, of runs that have not, by their ids

	among *ActiveTasks // where it is, and at which place
	At    int32
}

// FullName is namespace/name.
func (t *Task) FullName() string { return t.Text[:t.NameLen] }

// UID is the uid of the entry; "" if there is none.
func (t *Task) UID() string { return t.Text[t.NameLen : int(t.NameLen)+int(t.UIDLen)] }

// Action is the action of the entry, as JSON.
func (t *Task) Action() string { return t.Text[int(t.NameLen)+int(t.UIDLen):] }

// Ref names t in a shard, for keys.
func (t *Task) Ref(shard int) record.Ref {
	namespace, name, _ := strings.Cut(t.FullName(), "/")
	return record.Ref{Namespace: namespace, Name: name, Shard: shard}
}

// Queue is the runs of t that wait.
func (t *Task) Queue() []*Waiting {
	if t.Activity == nil {
		return nil
	}
	return t.Activity.Queue
}

// Active is the attempts of t that are in inboxes.
func (t *Task) Active() []*Attempt {
	if t.Activity == nil {
		return nil
	}
	return t.Activity.Active
}

// DropIdleActivity drops t's activity when there is nothing in it.
func (t *Task) DropIdleActivity() {
	if l := t.Activity; l != nil && len(l.Queue) == 0 && len(l.Active) == 0 && len(l.Unreadable) == 0 && len(l.Returned) == 0 {
		l.among.removeTask(t)
		t.Activity = nil
	}
}

// ActiveTasks are the tasks of a worker of which something waits or runs.
type ActiveTasks struct{ Tasks []*Task }

// Add adds a task, which has an Activity and is in no such list.
func (l *ActiveTasks) Add(t *Task) {
	t.Activity.among, t.Activity.At = l, int32(len(l.Tasks))
	l.Tasks = append(l.Tasks, t)
}

func (l *ActiveTasks) removeTask(t *Task) {
	last := len(l.Tasks) - 1
	l.Tasks[t.Activity.At] = l.Tasks[last]
	l.Tasks[t.Activity.At].Activity.At = t.Activity.At
	l.Tasks[last] = nil
	if l.Tasks = l.Tasks[:last]; cap(l.Tasks) > 1024 && last < cap(l.Tasks)/8 {
		l.Tasks = append(make([]*Task, 0, 2*last), l.Tasks...) // after a stampede
	}
}

// Schedule is when t ticks. Only of a task with an entry that can be read.
func (t *Task) Schedule() schedule.Schedule { return t.Timing.Schedule.Anchored(Instant(t.Anchor)) }

// After is t's first tick later than an instant; 0 if there is none.
func (t *Task) After(at int64) int64 {
	s := t.Schedule()
	tick, ok := s.Next(Instant(at))
	if !ok {
		return 0
	}

	return tick.UnixMilli()
}

// Due is when one of t's ticks falls due, which is the order of decisions: at its
// time, or with jitter a little later, but always before the next one does.
func (t *Task) Due(tick int64) int64 {
	if t.Timing == nil || !t.Timing.Jittered {
		return tick
	}
	s := t.Schedule()
	return s.Due(Instant(tick), t.UID()).UnixMilli()
}

// DueAt is when t's next tick falls due.
func (t *Task) DueAt() int64 { return t.Next + int64(t.delay) }

// LastDue is an instant up to which are all of t's ticks that are due at another,
// and no others.
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

// Instant is the time of ms.
func Instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// Waiting is a run that waits, with what its owner knows beside its record.
type Waiting struct {
	task.Waiting
	Mod  int64
	Seen int64 // when it came, by the owner's clock; 0: the owner made it
	Parental
}

// Parental is what an owner keeps of a run with parts beside its record.
type Parental struct {
	Away    map[string]time.Time // since when nodes of parts that are to be given out take nothing
	ToldAt  time.Time            // when its record was written last
	Missing time.Time            // since when parts of it are nowhere; zero: none is
}

// Attempt is an attempt that is in the inbox of a node.
type Attempt struct {
	Run    string
	Node   string
	Create int64  // fencing token
	Since  int64  // when we dispatched it, ms; 0: another owner did
	Watch  *Watch // of an attempt whose node is gone, or whose task is
}

// Watched is a's watch, made if need be.
func (a *Attempt) Watched() *Watch {
	if a.Watch == nil {
		a.Watch = &Watch{}
	}
	return a.Watch
}

// clockSlack is how far the clock of a node may be ahead of the owner's.
const clockSlack = 5 * time.Second

// NotBefore is when a waiting run may start. A retry's time was set by the clock of
// the node that ran the last attempt, which nobody guards: it waits no longer than
// its policy says since it came.
func (t *Task) NotBefore(q *Waiting) time.Time {
	at := q.NotBefore.Time
	if q.Seen == 0 || at.IsZero() || q.UnderWay() {
		return at
	}

	latest := Instant(q.Seen).Add(t.Policy.Retry.Wait(max(q.Attempt-1, 1), 1))
	if at.After(latest.Add(clockSlack)) {
		return latest
	}

	return at
}

// Due is when the tick of a waiting run fell due.
func (q *Waiting) Due() time.Time {
	if !q.DueAt.IsZero() {
		return q.DueAt.Time
	}
	return q.ScheduledTime.Time
}

// DispatchedBefore reports whether a waiting run has been dispatched before, or has its parts.
func (q *Waiting) DispatchedBefore() bool {
	return q.Attempt > 1 || q.Reason == task.ReasonHandBack || q.UnderWay()
}

// DispatchedWaiting is how many waiting runs have been dispatched before: they are active,
// though no attempt is. Runs of a deleted task of the same name do not count.
func (t *Task) DispatchedWaiting() int {
	n := 0

	for _, q := range t.Queue() {
		if q.DispatchedBefore() && !task.IsPart(q.ID) && !t.Orphan(q.ID) {
			n++
		}
	}

	return n
}

// Parents is how many runs have their parts. Runs of a deleted task of the same name do not count.
func (t *Task) Parents() int {
	n := 0

	for _, q := range t.Queue() {
		if q.UnderWay() && !t.Orphan(q.ID) {
			n++
		}
	}

	return n
}

// Attempts is how many attempts in inboxes are of runs in one piece: of others the
// run counts, not its parts; here, if its own record cannot be read.
//
// Attempts of a deleted task of the same name do not count. They are being
// cancelled, which takes as long as their grace period, or as lost_after if their
// node is silent; the task that bears the name now is another one and does not
// wait for them.
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

		if slices.ContainsFunc(t.Activity.Active, func(a *Attempt) bool { parent, _, is := task.ParentOf(a.Run); return is && parent == id }) {
			n++
		}
	}

	return n
}

// Holds reports whether a run is in an inbox, or has a queue record that cannot
// be read: then there is no writing another.
func (t *Task) Holds(run string) bool {
	l := t.Activity
	return l != nil && (slices.Contains(l.Unreadable, run) || slices.ContainsFunc(l.Active, func(a *Attempt) bool { return a.Run == run }))
}

// Orphan reports whether a run's task is gone, though another may bear its name
// now. Of an entry that cannot be read nobody knows.
func (t *Task) Orphan(run string) bool {
	if !t.Present || t.Bad {
		return !t.Present
	}
	return !task.RunBelongs(run, t.UID())
}

// Empty reports whether nothing is left of the task.
func (t *Task) Empty() bool {
	t.DropIdleActivity()
	return !t.Present && t.Activity == nil
}

// Fires reports whether the task has ticks, now or later.
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

// Entry is t's entry, to be written.
func (t *Task) Entry() record.EntryParts {
	return record.EntryParts{
		UID: []byte(t.UID()), Generation: int64(t.Generation), From: task.At(Instant(t.From)), Anchor: task.At(Instant(t.Anchor)),
		Paused: t.Paused, Action: []byte(t.Action()), Timing: []byte(t.Timing.Text), Policy: []byte(t.Policy.Text),
	}
}

// IsBehind reports whether several of the task's ticks are due at now, or one
// is past its grace.
func (t *Task) IsBehind(now int64) bool {
	return t.Second != 0 && t.Second <= now && t.Due(t.Second) <= now || now-t.DueAt() > t.Policy.Grace.Milliseconds()
}

// Paced reports whether a waiting run needs a token to start.
func (q *Waiting) Paced() bool { return q.Trigger == task.TriggerCatchUp && !q.DispatchedBefore() }

// ByName orders tasks by their full names.
func ByName(a, b *Task) int { return strings.Compare(a.FullName(), b.FullName()) }
