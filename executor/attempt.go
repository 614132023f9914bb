package executor

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// attempt is one record of the inbox, and what this node makes of it. The loop
// owns it.
type attempt struct {
	*record.Held // as last seen; Create is the token. It is replaced, never changed: writers read it, too

	key     string
	place   int  // in state.all; -1 if forgotten
	touched bool // in state.dirty
	phase   phase
	gone    bool // its record is not in the inbox any more
	foreign bool // it is for another instance
	stale   bool // it had come and gone before: never to be started again
	returns bool // the node could not start it: it is handed back
	session int  // under which it was dispatched or adopted; 0: neither

	busy      bool      // a write about it is under way
	failedAt  int64     // the mod revision with which the last write failed
	notBefore time.Time // the next try, unless the record changes
	// handBackMod is the mod revision that a hand-back compares whose outcome is
	// unknown. While the record has that revision, the hand-back may have been applied
	// already, or may still arrive: see mayBeHandedBack.
	handBackMod int64
	listed      bool // in a lane's backlog
	queued      bool // in a heap of those that are ready

	orders    *process.Orders
	killed    process.Kill
	startedAt time.Time
	spoke     spoke
	end       *ending
	noRetry   bool

	told               bool // its goroutine knows that it is to stand still
	process.PauseState      // as that has said
}

// ending is how an attempt ended, on its way into the record. It is the loop's,
// but for while a finisher has it.
type ending struct {
	attempt *attempt
	run     task.Run

	// Of the latest try to record it:
	held *record.Held
	next *task.Waiting
	err  error
}

// How much of its output goes into an attempt's record.
const (
	tailFailed    = spool.MaxTail
	tailSucceeded = 256
)

func (a *attempt) noop() bool { return a.Action.Process == nil }

// claims reports whether it waits for a slot: one that is not to start does not.
func (a *attempt) claims() bool {
	return a.phase == phaseWaiting && !a.foreign && !a.noop() && !a.PauseRequested
}

// mayBeHandedBack reports whether the attempt may belong to the queue already, or may
// be put there at any moment by a request that is still on its way. Any change of the
// record settles it: a hand-back that was applied leaves no record to change, and one
// that comes later finds another mod revision than it compares.
func (a *attempt) mayBeHandedBack() bool { return a.handBackMod != 0 && a.handBackMod == a.Mod }

func (a *attempt) leftover() proctree.Mark {
	return proctree.Mark{Namespace: a.Namespace, Task: a.Task, RunID: a.ID, Token: a.Create}
}

// finish fills in how the attempt ended.
func (a *attempt) finish(node string, r process.Result) {
	a.end = &ending{attempt: a, run: a.Unpaused()}
	end := &a.end.run
	end.Node, end.Token = node, a.Create
	end.State, end.Reason, end.Message = r.State, r.Reason, r.Message
	end.ExitCode, end.Signal = r.ExitCode, r.Signal
	end.StartedAt, end.EndedAt = task.At(r.StartedAt), task.At(r.EndedAt)
	end.Unenforced = r.Unenforced
	end.OutputBytes, end.Truncated = r.OutputBytes, r.Truncated
	end.Usage = r.Usage
	if r.Status != nil {
		r.Status.CopyTo(end)
		end.Progress = nil // it is over
	}

	end.PausedMS = r.Paused.Milliseconds()
	n := tailFailed
	if r.State == task.Succeeded {
		n = tailSucceeded
	}

	end.OutputTail = spool.Tail(r.Tail, n)
	if max(a.Attempt, 1) == 1 && !r.StartedAt.IsZero() {
		end.LatenessMS = new(max(0, r.StartedAt.UnixMilli()-a.due().UnixMilli()))
	}
}

// due is when the attempt's run was to start.
func (a *attempt) due() time.Time {
	if !a.DueAt.IsZero() {
		return a.DueAt.Time
	}
	return a.ScheduledTime.Time
}

// cancelReason is why somebody wants the attempt to end.
func (a *attempt) cancelReason() string { return cmp.Or(a.CancelReason, task.ReasonCancelled) }

// ready orders attempts: the oldest tick first, then the oldest token.
type ready []*attempt

func (r ready) Len() int { return len(r) }
func (r ready) Less(i, j int) bool {
	return cmp.Or(r[i].ScheduledTime.Compare(r[j].ScheduledTime.Time), cmp.Compare(r[i].Create, r[j].Create)) < 0
}
func (r ready) Swap(i, j int) { r[i], r[j] = r[j], r[i] }
func (r *ready) Push(x any)   { *r = append(*r, x.(*attempt)) }
func (r *ready) Pop() any {
	last := len(*r) - 1
	a := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]

	return a
}

func (r *ready) add(a *attempt) {
	if !a.queued {
		a.queued = true
		heap.Push(r, a)
	}
}

func (r *ready) take() *attempt {
	a := heap.Pop(r).(*attempt)
	a.queued = false
	return a
}

// lane is a bounded way to the writers. Attempts that find it full are looked at
// again, in order, when there is room.
type lane[T any] struct {
	jobs    chan T
	backlog []*attempt
}

func (l *lane[T]) full() bool { return len(l.jobs) == cap(l.jobs) } // only the loop sends

func (l *lane[T]) later(a *attempt) {
	if !a.listed {
		a.listed = true
		l.backlog = append(l.backlog, a)
	}
}

// next is the first of the backlog, if there is room for it.
func (l *lane[T]) next() *attempt {
	if len(l.backlog) == 0 || l.full() {
		return nil
	}

	a := l.backlog[0]
	l.backlog[0] = nil
	l.backlog = l.backlog[1:]
	a.listed = false

	return a
}
