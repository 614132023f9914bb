// Package board is the short summary of its shards that a node adds to the board, which carillon top
// shows: what is due next, what is overdue, runs, waits and fails. A worker fills in a Summary of its shard from
// memory, and a Builder puts those of a node together.
//
// A list has only its first items: a shard may have a million tasks. A summary is a moment of each
// shard, not one moment of all of them. Nothing is decided by it, and it reads and writes no keys.
package board

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// OverdueAfter is how old an undecided tick is that an operator should see.
const OverdueAfter = 2 * time.Second

// Summary is what a worker shows of its shard. Its strings are of what the worker
// knows, and are not copied.
type Summary struct {
	Shard      int
	Now, Until int64 // ms
	Limit      int
	Enough     *atomic.Int64   // ticks that are due after it are too late for the list; ms
	Shown      chan<- *Summary // with room for it

	Tasks, Paused, Unreadable, Failing, Overdue, Active, Away, Waits int

	Waiting  map[string]int
	Soon     []Tick
	Late     []Tick
	Runs     []Run
	Gone     []Run // whose node is
	Queue    []Waiting
	Failures []FailedTask
}

// AgedTo is what was shown a while ago as it is now, if the worker did nothing since: what
// was to come may be overdue.
func (g *Summary) AgedTo(now int64) *Summary {
	line := now - OverdueAfter.Milliseconds()
	late := 0
	for late < len(g.Soon) && g.Soon[late].At <= line {
		late++
	}

	aged := *g
	aged.Late = append(slices.Clone(g.Late), g.Soon[:late]...)
	aged.Soon, aged.Overdue = g.Soon[late:], g.Overdue+late

	return &aged
}

// Tick is a tick that nobody has decided yet.
type Tick struct {
	Task string
	Time int64 // ms
	At   int64 // when it falls due, ms: at its time, or later by its jitter
}

// Run is an attempt that a node has.
type Run struct {
	Task, Run, Node string
	Since           int64 // ms; of one that another owner dispatched, its tick
	Known, Ending   bool
}

// Waiting is a run that waits.
type Waiting struct {
	Task, Run, Reason string
	NotBefore         task.Time
}

// FailedTask is a task whose last run to end has failed.
type FailedTask struct {
	Task string
	*Failure
}

// Failure is how the last run of a task to end has failed.
type Failure struct {
	Run      string
	State    task.State
	Reason   string
	ExitCode *int
	Node     string
	Ended    int64 // ms
	InARow   int   // runs that failed in a row, as far as is known
}

// OlderRun puts the runs that began first in front.
func OlderRun(a, b Run) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.Task, b.Task), strings.Compare(a.Run, b.Run))
}

// FirstWait puts runs that no node matches first: they wait for a person.
func FirstWait(a, b Waiting) int {
	if x, y := a.Reason == task.ReasonNoNode, b.Reason == task.ReasonNoNode; x != y {
		if x {
			return -1
		}
		return 1
	}

	return cmp.Or(strings.Compare(a.Run, b.Run), strings.Compare(a.Task, b.Task)) // ids begin with their time
}

// NewerFailure puts what failed last first.
func NewerFailure(a, b FailedTask) int { return cmp.Compare(b.Ended, a.Ended) }

// NewFirst returns an empty list that keeps the first most of what is added to it, in the order of before.
func NewFirst[T any](most int, before func(a, b T) int) First[T] {
	return First[T]{most: most, before: before}
}

// First keeps the first of what is added to it.
type First[T any] struct {
	most   int
	before func(a, b T) int
	items  []T
	full   bool // the first most items are sorted: what comes after the last of them is too late
}

// Add adds v; false if it is too late.
func (f *First[T]) Add(v T) bool {
	if f.full && f.before(v, f.items[f.most-1]) >= 0 {
		return false
	}

	if f.items = append(f.items, v); len(f.items) >= 2*f.most+16 {
		f.items, f.full = f.Sorted(), true
	}

	return true
}

// Sorted returns what is kept, in its order.
func (f *First[T]) Sorted() []T {
	slices.SortFunc(f.items, f.before)
	return f.items[:min(len(f.items), f.most)]
}
