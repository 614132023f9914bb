package readmodel

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Row is what the owner of a shard knows about one task, as far as lists need it. An Index keeps it as it is, in 72
// bytes: a node may hold a million of them. Times are Unix milliseconds, if nothing else is said; 0 means none.
type Row struct {
	Name     string             // namespace/name; may share the memory of the owner's state
	Labels   map[string]string  // shared by all tasks with the same labels; must not be changed
	Schedule *schedule.Schedule // shared, without the task's anchor; nil if the entry cannot be read

	Next    int64 // the next undecided tick
	LastEnd int64 // when the last run ended

	LastSuccess uint32 // when the last run that succeeded ended, in Unix seconds; see Seconds
	Delay       int32  // ms after its time at which the next tick is due, because of jitter
	Duration    int32  // ms from the start to the end of the last run; see Milliseconds
	Lateness    int32  // ms from when the tick was due to the start of the last run
	Active      uint16 // runs; see Count
	Waiting     uint16 // runs; see Count
	Failures    uint16 // runs in a row that failed, timed out or were lost; at least, if History is not set
	Flags       Flags
}

// Flags are the properties of a task that are true or false. The highest bits hold how the last run ended; see Row.Last.
type Flags uint16

// The flags of a row.
const (
	Paused     Flags = 1 << iota
	Unreadable       // the entry cannot be read, so the task has no ticks
	Failing          // it has a dead run whose create revision is above that of the last success
	History          // the last end is known; before this is set, LastEnd and what follows from it may be missing
	Workflow         // the action of the task is a workflow

	// The expectations that are not met, as the evaluator of alerts has found. It sets and clears them with EachWatched and
	// ChangeWatched.
	AlertFailures
	AlertSuccessWithin
	AlertSuccessBy
	AlertMaxLateness
	AlertMaxDuration
	AlertMaxPause

	// Whether the task has metrics of its own. Without either flag, its namespace decides.
	MetricsOn
	MetricsOff

	// Gone are the flags of a row whose entry is gone, while runs of the task are left: only boards show them, and the row counts
	// nowhere. No task with an entry has both.
	Gone = MetricsOn | MetricsOff
)

// AlertFlags are the flags of expectations that are not met.
const AlertFlags = AlertFailures | AlertSuccessWithin | AlertSuccessBy | AlertMaxLateness | AlertMaxDuration | AlertMaxPause

// AlertFlag returns the flag of an expectation.
func AlertFlag(kind task.AlertKind) Flags {
	switch kind {
	case task.AlertFailures:
		return AlertFailures
	case task.AlertSuccessWithin:
		return AlertSuccessWithin
	case task.AlertSuccessBy:
		return AlertSuccessBy
	case task.AlertMaxLateness:
		return AlertMaxLateness
	case task.AlertMaxDuration:
		return AlertMaxDuration
	case task.AlertMaxPause:
		return AlertMaxPause
	}

	return 0
}

// alertKinds returns the expectations whose flags are set.
func alertKinds(f Flags) (kinds []task.AlertKind) {
	for _, kind := range task.TaskAlertKinds {
		if f&AlertFlag(kind) != 0 {
			kinds = append(kinds, kind)
		}
	}

	return kinds
}

// Has reports whether all given flags are set.
func (f Flags) Has(g Flags) bool { return f&g == g }

// Outcome is how the last run of a task ended; 0 if no end is known.
type Outcome uint8

// outcomes are the final states that count as the end of a run, by Outcome.
var outcomes = [...]task.State{"", task.Succeeded, task.Failed, task.TimedOut, task.Cancelled, task.Lost}

// OutcomeOf returns the outcome of a run in a final state, or 0 if it did not run.
func OutcomeOf(s task.State) Outcome {
	for i, state := range outcomes {
		if state == s {
			return Outcome(i)
		}
	}

	return 0
}

// State returns the state of a run that ended so, or "".
func (o Outcome) State() task.State { return outcomes[o] }

// lastShift is where the outcome of the last run is in the flags of a row. It needs three bits.
const lastShift = 13

// Last returns how the last run of the task ended.
func (r *Row) Last() Outcome { return Outcome(r.Flags >> lastShift) }

// SetLast sets how the last run of the task ended.
func (r *Row) SetLast(o Outcome) { r.Flags = r.Flags&(1<<lastShift-1) | o.flags() }

// flags returns the flags of a row whose last run ended so.
func (o Outcome) flags() Flags { return Flags(o) << lastShift }

// Milliseconds returns a duration for a Row: at least 0, at most 24 days.
func Milliseconds(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 0), math.MaxInt32))
}

// Seconds returns a time in Unix milliseconds as seconds for a Row: rounded down, from 1970 to 2106.
func Seconds(ms int64) uint32 { return uint32(min(max(ms, 0)/1000, math.MaxUint32)) }

// Count returns a number for a Row: at most 65,535.
func Count(n int) uint16 { return uint16(min(n, math.MaxUint16)) }

// Details are what an Index keeps of few tasks only, beside their rows. Runs and Failure must not be changed once they
// are in an Index, because scans pass them on.
type Details struct {
	PausedUntil int64    // when the pause ends, in Unix milliseconds; 0: the task is not paused, or the pause has no end
	Runs        *Runs    // nil: no run of the task waits or is active
	Failure     *Failure // how a failing task has failed; nil: the task is not failing, or this has to be read first
	DeadRuns    int      // dead-letter runs after which no run has succeeded
}

// maxTaskRuns is how many runs of one task a board lists, at most, in each of its lists. The attempts of a task may be
// thousands, if its runs have parts.
const maxTaskRuns = 100

// Runs are the attempts and the waiting runs of one task. The lists contain the first ones only; the numbers are those
// of all.
type Runs struct {
	active  []*Attempt    // on nodes that are present, the oldest first
	away    []*Attempt    // on nodes that are gone, the oldest first
	waiting []WaitingRun  // the most urgent first
	reasons []ReasonCount // of all waiting runs

	attempts, attemptsAway int // attemptsAway is a part of attempts

	first [1]*Attempt // the memory of active if it has one element, as for most tasks
}

// Attempt is an attempt in the inbox of a node.
type Attempt struct {
	Run    string
	Node   string
	Since  int64 // when it was dispatched, in Unix ms; if another owner did that, the time of its tick
	Known  bool  // Since is when it was dispatched
	Ending bool  // its node was asked to end it
}

// WaitingRun is a run in the queue.
type WaitingRun struct {
	Run       string
	Reason    string
	NotBefore task.Time
	Unsent    *task.Unsent // must not be changed
}

// ReasonCount is how many runs wait for a reason.
type ReasonCount struct {
	Reason string
	Runs   int
}

// Failure is how the last run of a failing task has failed. If the record of the run cannot be read, only Run and State are
// set, and State is failed.
type Failure struct {
	Run      string
	State    task.State
	Reason   string
	ExitCode *int // must not be changed
	Node     string
	Ended    int64 // Unix ms
}

// Attempts returns the attempts on nodes that are present and on others, of each the oldest first, and whether these are all of them.
func (r *Runs) Attempts() (present, away []*Attempt, isComplete bool) {
	return r.active, r.away, len(r.active)+len(r.away) == r.attempts
}

// HasRunFrom reports whether a run waits or is active whose id begins with a time that is not after an instant. It may be true also if
// there are more runs than are listed.
func (r *Runs) HasRunFrom(upTo time.Time) bool {
	if r == nil {
		return false
	}

	limit := task.RunID(upTo.Add(time.Millisecond), "")
	isOld := func(run string) bool { return run < limit }

	return len(r.active)+len(r.away) < r.attempts ||
		slices.ContainsFunc(r.active, func(a *Attempt) bool { return isOld(a.Run) }) ||
		slices.ContainsFunc(r.away, func(a *Attempt) bool { return isOld(a.Run) }) ||
		slices.ContainsFunc(r.waiting, func(w WaitingRun) bool { return isOld(w.Run) })
}

// NewRuns returns Runs with space for about this number of attempts.
func NewRuns(attempts int) *Runs {
	r := &Runs{}
	if r.active = r.first[:0]; attempts > len(r.first) {
		r.active = make([]*Attempt, 0, min(attempts, maxTaskRuns))
	}

	return r
}

// AddAttempt adds an attempt, which must not be changed any more. away says that its node is gone.
func (r *Runs) AddAttempt(a *Attempt, away bool) {
	r.attempts++

	// Nearly all attempts come in order. An owner adds all attempts of a task again whenever one begins or ends, so this must
	// be fast.
	n := len(r.active)
	switch {
	case away:
		r.attemptsAway++
		r.away = insertFirst(r.away, a, compareAttempts)
	case n < maxTaskRuns && (n == 0 || r.active[n-1].Since < a.Since):
		r.active = append(r.active, a)
	default:
		r.active = insertFirst(r.active, a, compareAttempts)
	}
}

// WithAttempt returns the Runs that result from r if the attempt a begins, on a node that is present. before(i) returns the
// i-th of the n attempts that the task had before. WithAttempt returns nil if the runs must be listed again, because r does not
// consist of exactly these attempts.
//
// The result shares the memory of r, which stays valid. Only the last result may be passed on to WithAttempt.
func (r *Runs) WithAttempt(before func(i int) *Attempt, n int, a *Attempt) *Runs {
	if r == nil || n == 0 || n != len(r.active) || n == maxTaskRuns || n != r.attempts || len(r.waiting) > 0 || r.active[n-1].Since >= a.Since {
		return nil
	}

	for i, was := range r.active {
		if before(i) != was {
			return nil
		}
	}

	return &Runs{active: append(r.active, a), attempts: n + 1}
}

// AddWaiting adds a waiting run.
func (r *Runs) AddWaiting(q WaitingRun) {
	r.waiting = insertFirst(r.waiting, q, compareWaiting)

	i := slices.IndexFunc(r.reasons, func(c ReasonCount) bool { return c.Reason == q.Reason })
	if i < 0 {
		i = len(r.reasons)
		r.reasons = append(r.reasons, ReasonCount{Reason: q.Reason})
	}
	r.reasons[i].Runs++
}

// AddWaitingPart adds a part that waits, to the list only. It is not a separate run, so it does not count.
func (r *Runs) AddWaitingPart(q WaitingRun) { r.waiting = insertFirst(r.waiting, q, compareWaiting) }

// insertFirst inserts an item into a sorted list of the first maxTaskRuns items. Most items come in order.
func insertFirst[T any](list []T, item T, compare func(a, b T) int) []T {
	n := len(list)
	switch {
	case n > 0 && compare(list[n-1], item) > 0: // it belongs somewhere before the last
	case n == maxTaskRuns:
		return list
	default:
		return append(list, item)
	}

	if n == maxTaskRuns {
		list = list[:n-1]
	}
	at, _ := slices.BinarySearchFunc(list, item, compare)

	return slices.Insert(list, at, item)
}

// compareAttempts orders attempts by when they began.
func compareAttempts(a, b *Attempt) int {
	if a.Since != b.Since {
		return cmp.Compare(a.Since, b.Since)
	}
	return strings.Compare(a.Run, b.Run)
}

// compareWaiting orders waiting runs by their urgency, then by time.
func compareWaiting(a, b WaitingRun) int {
	return cmp.Or(cmp.Compare(a.urgency(), b.urgency()), strings.Compare(a.Run, b.Run)) // ids begin with their time
}

// urgency returns in which order people should see waiting runs, the lowest first.
func (w *WaitingRun) urgency() int { return task.WaitUrgency(w.Reason, w.Unsent) }
