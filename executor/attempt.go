package executor

import (
	"cmp"
	"container/heap"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// attempt is one record of the inbox and its state on this node. The loop owns it.
type attempt struct {
	*record.Held // as last seen; Create is the token. Writers read it, too, so it is replaced, never modified

	kind         string // the kind of its action, such as task.KindHTTP; "" if this version does not know it
	key          string // its key in the inbox, the same for every attempt of the run on this node
	place        int    // its index in state.all; -1 when forgotten
	isDirty      bool   // it is in state.dirty
	phase        phase  // changed only by setPhase
	recordGone   bool   // its record is no longer in the inbox
	foreign      bool   // it belongs to another instance of this node
	stale        bool   // the inbox had shown its end before; it must never be started again
	mustHandBack bool   // the node could not start it and hands it back
	session      int    // the session under which it was dispatched or adopted; 0: none yet

	busy      bool      // a write about it is in flight
	failedAt  int64     // the mod revision that the last failed write compared
	notBefore time.Time // no retry before this time, unless the record changes
	// handBackMod is the mod revision that a hand-back with an unknown outcome compared; 0
	// if there is none. While the record has that revision, the hand-back may already have
	// been applied or may still arrive; see mayBeHandedBack.
	handBackMod int64
	inBacklog   bool // it is in the backlog of a writerQueue
	queued      bool // it is in one of the ready heaps

	target     *targetEntry   // its entry in state.targets, once it was ready; only of HTTP attempts
	targetDown string         // it waited for a probe that was not sent, for this reason; "": it did not
	remote     *remoteAttempt // what only HTTP attempts need while they run; nil: it does not run, or is another kind

	orders    *process.Orders // how the loop reaches the attempt's goroutine; nil while there is none
	killed    process.Kill    // the kill that was ordered; CauseNone if none was
	startedAt time.Time       // when its process started; zero until then
	reported  reportedCheckpoint
	end       *ending // how it ended; nil before phaseEnded and after phaseSettled
	noRetry   bool    // it gets no successor, whatever its retry policy says

	late *lateCancel // its cancel, if it was cancelled while etcd was full; nil otherwise

	pauseSent          bool // the PauseRequested that its goroutine was last given
	process.PauseState      // as that goroutine last reported it
}

// ending is the end of an attempt that is about to be recorded. The loop owns it, except
// while a finisher has it.
type ending struct {
	attempt    *attempt
	run        task.Run      // the record of the end; only CancelledBy may still change
	retryAfter time.Duration // how long the target of its request asked to wait; 0 if it did not

	// The latest try to record it: the record that it compares, the next attempt, the error.
	held *record.Held
	next *task.Waiting
	err  error

	late *task.LateCancel // the attempt was cancelled while etcd was full, so its end is kept on disk
	kept bool             // the end is kept there
}

// Maximum sizes of the output tail in an attempt's record, in bytes.
const (
	tailFailed    = spool.MaxTail
	tailSucceeded = 256
)

// waitsForSlot reports whether the attempt waits for one of Config.Slots. A foreign or paused one does not start,
// so it claims none.
func (a *attempt) waitsForSlot() bool {
	return a.phase == phaseWaiting && !a.foreign && a.kind == task.KindProcess && !a.PauseRequested
}

// mayBeHandedBack reports whether the attempt may already be in the queue, or may be moved
// there by a request that is still in flight. Any change of the record rules this out: an
// applied hand-back leaves no record to change, and a hand-back that arrives later compares
// a mod revision that the record no longer has.
func (a *attempt) mayBeHandedBack() bool { return a.handBackMod != 0 && a.handBackMod == a.Mod }

// processMark returns the mark by which all processes of the attempt are found.
func (a *attempt) processMark() proctree.Mark {
	return proctree.Mark{Namespace: a.Namespace, Task: a.Task, RunID: a.ID, Token: a.Create}
}

// setResult sets a.end from the result of the attempt.
func (a *attempt) setResult(node string, r process.Result) {
	a.end = &ending{attempt: a, run: a.Unpaused(), retryAfter: r.RetryAfter}
	end := &a.end.run
	end.Node, end.Token = node, a.Create
	end.State, end.Reason, end.Message = r.State, r.Reason, r.Message
	end.ExitCode, end.Signal, end.HTTPStatus = r.ExitCode, r.Signal, r.HTTPStatus
	end.StartedAt, end.EndedAt = task.At(r.StartedAt), task.At(r.EndedAt)
	end.Unenforced = r.Unenforced
	end.OutputBytes, end.Truncated = r.OutputBytes, r.Truncated
	end.Usage = r.Usage
	if r.Status != nil {
		r.Status.CopyTo(end)
		end.Progress = nil // progress describes running attempts only
	}

	end.PausedMS = r.Paused.Milliseconds()
	n := tailFailed
	if r.State == task.Succeeded {
		n = tailSucceeded
	}

	end.OutputTail = spool.Tail(r.Tail, n)
	if max(a.Attempt, 1) == 1 && !r.StartedAt.IsZero() {
		end.LatenessMS = new(max(0, r.StartedAt.UnixMilli()-a.dueAt().UnixMilli()))
	}
}

// dueAt returns when the attempt's run was due: DueAt if it is set, otherwise the scheduled time.
func (a *attempt) dueAt() time.Time {
	if !a.DueAt.IsZero() {
		return a.DueAt.Time
	}
	return a.ScheduledTime.Time
}

// cancelReason returns the reason of the cancel request, or task.ReasonCancelled if it has none.
func (a *attempt) cancelReason() string { return cmp.Or(a.CancelReason, task.ReasonCancelled) }

// readyHeap is a heap of attempts that can start: the oldest tick first, then the oldest token.
type readyHeap []*attempt

func (r readyHeap) Len() int { return len(r) }
func (r readyHeap) Less(i, j int) bool {
	return cmp.Or(r[i].ScheduledTime.Compare(r[j].ScheduledTime.Time), cmp.Compare(r[i].Create, r[j].Create)) < 0
}
func (r readyHeap) Swap(i, j int) { r[i], r[j] = r[j], r[i] }
func (r *readyHeap) Push(x any)   { *r = append(*r, x.(*attempt)) }
func (r *readyHeap) Pop() any {
	last := len(*r) - 1
	a := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]

	return a
}

// addAttempt adds an attempt, unless it is in the heap already.
func (r *readyHeap) addAttempt(a *attempt) {
	if !a.queued {
		a.queued = true
		heap.Push(r, a)
	}
}

// takeFirst removes and returns the first attempt. The heap must not be empty. The attempt may have been forgotten or
// may no longer be ready; the caller decides again.
func (r *readyHeap) takeFirst() *attempt {
	a := heap.Pop(r).(*attempt)
	a.queued = false
	return a
}

// writerQueue is a bounded queue to the writers. Attempts that find it full wait in the backlog
// and are decided about again, in order, when there is room.
type writerQueue[T any] struct {
	jobs    chan T
	backlog []*attempt
}

func (w *writerQueue[T]) isFull() bool { return len(w.jobs) == cap(w.jobs) } // reliable, because only the loop sends

func (w *writerQueue[T]) addToBacklog(a *attempt) {
	if !a.inBacklog {
		a.inBacklog = true
		w.backlog = append(w.backlog, a)
	}
}

// nextFromBacklog removes and returns the first attempt of the backlog. It returns nil if the backlog is
// empty or the queue is full.
func (w *writerQueue[T]) nextFromBacklog() *attempt {
	if len(w.backlog) == 0 || w.isFull() {
		return nil
	}

	a := w.backlog[0]
	w.backlog[0] = nil
	w.backlog = w.backlog[1:]
	a.inBacklog = false

	return a
}

// pauseReported stores what an attempt's goroutine reports about pausing its process.
func (e *Executor) pauseReported(a *attempt, o *process.Orders, s process.PauseState) {
	if a.orders != o {
		return // a report of an earlier start
	}

	e.addToCounts(a, -1)
	a.PauseState = s
	e.addToCounts(a, 1)

	if s.Err != nil {
		e.log.Warn("cannot pause an attempt", zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.Error(s.Err))
	}

	e.markDirty(a)
}

// pauseChanged reports whether the attempt's goroutine was not yet given the current PauseRequested.
func (a *attempt) pauseChanged() bool { return a.PauseRequested != a.pauseSent }

// pauseFailed reports whether a pause is requested that has failed.
func (a *attempt) pauseFailed() bool { return a.PauseRequested && a.pauseSent && a.Err != nil }

// recordIsStale reports whether the record has to be rewritten because the attempt started, paused or
// resumed. A start is written only after markAfter, which saves a write for short attempts.
func (a *attempt) recordIsStale(now time.Time) bool {
	if a.startedAt.IsZero() || !a.Since.IsZero() && !a.PauseRequested {
		return false // it is about to resume, and that is written instead
	}

	h := *a.Held
	a.describeIn(&h)

	if h.State == task.Running && a.State == task.Dispatched && h.PausedMS == a.PausedMS && !a.pauseFailed() {
		return now.Sub(a.startedAt) >= markAfter
	}

	return h.State != a.State || !h.PausedAt.Equal(a.PausedAt.Time) || h.PausedMS != a.PausedMS || h.PauseRequested != a.PauseRequested
}

// describeIn sets the fields of a record that describe whether the attempt is running or paused.
func (a *attempt) describeIn(h *record.Held) {
	h.State, h.StartedAt, h.Reason = task.Running, task.At(a.startedAt), ""
	h.PausedAt, h.PausedMS = task.Time{}, a.Sum.Milliseconds()
	switch {
	case a.pauseFailed():
		h.PauseRequested, h.PausedBy, h.ResumedBy, h.Message = false, nil, nil, "it could not be paused: "+a.Err.Error()
	case h.PauseRequested && !a.Since.IsZero():
		h.State, h.PausedAt = task.Paused, task.At(a.Since)
	case !h.PauseRequested:
		h.PausedBy = nil
	}
}

// checkpointEvery is the minimum time between two writes of an attempt's checkpoint to its
// record.
const checkpointEvery = 2 * time.Second

// reportedCheckpoint is the checkpoint that an attempt has reported to the loop.
type reportedCheckpoint struct {
	checkpoint *string   // nil before the first report
	wrote      time.Time // when it was last put into a record to be written; it limits how often that is
}

// hasNews reports whether the checkpoint differs from the recorded one and has to be written now.
func (c *reportedCheckpoint) hasNews(recorded string, now time.Time) bool {
	return c.checkpoint != nil && *c.checkpoint != recorded && now.Sub(c.wrote) >= checkpointEvery
}

// copyTo copies the checkpoint into a record that is about to be written.
// The attempt may still report while the record is being written, so the loop compares with the record again later.
func (c *reportedCheckpoint) copyTo(r *task.Run) {
	if c.checkpoint != nil {
		r.Checkpoint, c.wrote = *c.checkpoint, time.Now()
	}
}

// AttemptStatus returns what a run's attempt on this node has reported; false if none runs here.
func (e *Executor) AttemptStatus(namespace, name, run string) (task.AttemptStatus, bool) {
	return e.runner.StatusOf(namespace, name, run)
}

// AttemptStatuses returns the attempts on this node that have reported anything or are paused.
func (e *Executor) AttemptStatuses() []task.AttemptStatus {
	list := e.runner.Statuses()
	reported := list[:0]
	for _, v := range list {
		if v.Paused || v.Progress != nil || len(v.Results) > 0 || v.Checkpoint != "" || v.BadLines > 0 {
			reported = append(reported, v)
		}
	}

	return reported
}
