// Package state holds what the owner of a shard knows, and answers the questions on which decisions depend:
//
//   - Records are the known records of the shard. Differences are how they differ from what etcd holds, and what to repair.
//   - Task is what is known about one task: the entry, waiting and active runs, and what the history shows. A Heap orders
//     tasks by when their next ticks are due.
//   - Timing and Policy are the parts of an entry that many tasks have in common. They do not change after they were
//     created.
//   - ExamineAttempt says which attempts are lost because their node is gone.
//   - NamespaceChecks check tasks against the records of their namespaces.
//   - NewFan, MissingParts and ConcludeParts compute the states of the parts of a run.
//
// The package decides no ticks, does no I/O and reads no clock. Package scheduler changes the state when an event or a
// commit requires it. Only SharedDefinitions is safe for concurrent use.
package state

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
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
	Timing *Timing
	Policy *Policy
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

	At            int32  // index in the heap, or -1
	Row           int32  // slot of its row in the shard's index, or -1; see package rows
	Change        uint16 // index in the plan's list of changes; may be out of date, see changeFor of scheduler
	NameLen       uint16 // length of namespace/name in bytes
	Added         uint16 // history records since the last trim
	Checked       uint16 // the last check by the record of its namespace; see NamespaceChecks
	UIDLen        uint8  // length of the uid in bytes
	FailedCommits uint8  // consecutive commits that failed for a record of this task
	Dead          uint8  // dead runs since the last trim
	Present       bool   // the entry exists
	Bad           bool   // the entry cannot be read: the task has no ticks, and its queue waits
	Paused        bool
	Secret        bool // its attempts need a secret
	marks         marks
}

// marks are flags of a task, in one byte. See the methods.
type marks uint8

const (
	listedMark marks = 1 << iota
	touchedMark
	httpMark
	workflowMark
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

// SetTouched sets or clears the mark that the task's row must be written, and reports whether that changes it.
func (t *Task) SetTouched(on bool) bool { return t.marks.set(touchedMark, on) }

// IsHTTP reports whether the task's action is an HTTP request.
func (t *Task) IsHTTP() bool { return t.marks&httpMark != 0 }

// SetHTTP sets or clears what IsHTTP returns.
func (t *Task) SetHTTP(on bool) { t.marks.set(httpMark, on) }

// IsWorkflow reports whether the task's action is a workflow. The entry does not contain its steps.
func (t *Task) IsWorkflow() bool { return t.marks&workflowMark != 0 }

// MayHaveBeenWorkflow reports whether runs of the task may be those of a workflow: it is one, or it was edited. Their dead runs may be
// such that were cancelled, which are no failures.
func (t *Task) MayHaveBeenWorkflow() bool { return t.IsWorkflow() || t.Generation > 1 }

// SetWorkflow sets or clears what IsWorkflow returns.
func (t *Task) SetWorkflow(on bool) { t.marks.set(workflowMark, on) }

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

// Entry returns t's entry with its current fields, without Own, for writing it.
func (t *Task) Entry() record.EntryParts {
	return record.EntryParts{
		UID: []byte(t.UID()), Generation: int64(t.Generation), From: task.At(Instant(t.From)), Anchor: task.At(Instant(t.Anchor)),
		Paused: t.Paused, Action: []byte(t.Action()), Timing: []byte(t.Timing.Text), Policy: []byte(t.Policy.Text), Labels: t.Policy.Labels.JSON(),
	}
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

// IsBehind reports whether at least two of the task's ticks are due at now (Unix milliseconds), or one is
// past its grace. Then the missed policy decides them.
func (t *Task) IsBehind(now int64) bool {
	return t.Second != 0 && t.Second <= now && t.Due(t.Second) <= now || now-t.DueAt() > t.Policy.Grace.Milliseconds()
}

// Instant converts Unix milliseconds to a time in UTC.
func Instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// Want returns the requirements of a run of t on its node.
func (t *Task) Want() placement.Want {
	w := placement.Want{Selector: t.Policy.Selector, Pool: t.Pool(), Secret: t.Secret}
	switch w.Strategy = t.Policy.Target.Strategy; w.Strategy {
	case task.StrategyHash:
		if w.Key = t.Policy.Target.Key; w.Key == "" {
			w.Key = t.FullName()
		}
	case task.StrategyFirst:
		w.Order = t.Policy.Target.Order
	case task.StrategySticky:
		w.Last = t.Own().Node
	case task.StrategyRoundRobin:
		if t.Past != nil {
			w.Last = t.Past.Turn
		}
	}

	return w
}

// Pool returns whose slots an attempt of t takes. For a part, PoolOf returns them.
func (t *Task) Pool() placement.Pool { return poolFor(t.IsHTTP()) }

// PoolOf returns whose slots an attempt of a run of t takes. The steps of a workflow have actions of different kinds, so for
// their parts, that depends on the step.
func (t *Task) PoolOf(run string) placement.Pool {
	if s := t.StepOf(run); s != nil {
		return poolFor(s.Kind == task.KindHTTP)
	}
	return t.Pool()
}

// poolFor returns the slots of requests, or those of processes.
func poolFor(isHTTP bool) placement.Pool {
	if isHTTP {
		return placement.HTTPSlots
	}
	return placement.ProcessSlots
}

// WantOf is like Want for a part of a run. The step of a workflow determines whether its parts take slots for requests, and
// whether they need a secret.
func (t *Task) WantOf(part string) placement.Want {
	w := t.Want()
	if s := t.StepOf(part); s != nil {
		w.Pool, w.Secret = poolFor(s.Kind == task.KindHTTP), s.Secret
	}

	return w
}

// EntryRecords returns how many writes of its entry the dispatch of a run may cause: with the sticky
// strategy, the entry records the node.
func (t *Task) EntryRecords() int {
	if t.Policy.Sticky() {
		return 1
	}
	return 0
}

// NoteTurn remembers the node that had the last run, for round-robin. It is kept in memory only, so the
// next owner begins with any node.
func (t *Task) NoteTurn(node string) {
	if t.Policy.Target.Strategy == task.StrategyRoundRobin {
		t.EnsurePast().Turn = node
	}
}
