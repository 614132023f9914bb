// Package board summarizes the shards of a node for carillon top: next ticks, overdue ticks, active,
// waiting and failing runs. A Collector requests a Summary of each worker, which fills it in from memory
// (Shard), and a Builder combines those of a node.
//
// A list contains only its first items, because a shard may have a million tasks. Each summary shows its
// shard at a certain time, but not all at the same time. No decision depends on the board. The package
// reads and writes no keys.
package board

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// OverdueAfter is the age from which an undecided tick is shown as overdue.
const OverdueAfter = 2 * time.Second

// Summary is what a worker shows of its shard. Its strings share the memory of the worker's state.
type Summary struct {
	// The request. Ticks up to Until are shown, and at most Limit items in each list. Times are Unix
	// milliseconds.
	Shard      int
	Owner      int64 // mod revision of the owner key under which the worker serves the shard
	Now, Until int64 // ms
	Limit      int
	// Includes reports whether a task ("namespace/name") is shown; nil: all are. Then the counts of all tasks, of paused and
	// of unreadable ones stay 0.
	Includes func(task string) bool
	Enough   *atomic.Int64   // ticks that are due later are not needed, in Unix ms; all workers share it
	Shown    chan<- *Summary // delivers the answer; it has room for it

	// The answer: counts, then lists in their order.
	Tasks, Paused, Unreadable, Failing, Overdue, Active, Away, Waits int

	Waiting  map[string]int // by reason
	Soon     []Tick         // next ticks
	Late     []Tick         // overdue ticks
	Runs     []Run
	Gone     []Run // runs whose node is away
	Queue    []Waiting
	Failures []FailedTask
}

// Shows reports whether a task ("namespace/name") belongs to the summary.
func (g *Summary) Shows(task string) bool { return g.Includes == nil || g.Includes(task) }

// AgedTo returns what an old summary would show at now (Unix milliseconds), if the worker has decided
// nothing since: ticks that were to come may be overdue. g stays unchanged.
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

// Tick is an undecided tick.
type Tick struct {
	Task string
	Time int64 // Unix ms
	At   int64 // when it is due, in Unix ms: at its time, or later by its jitter
}

// Run is an attempt in a node's inbox.
type Run struct {
	Task, Run, Node string
	Since           int64 // when it was dispatched, in Unix ms; if another owner did that, the time of its tick
	Known, Ending   bool  // Since is the dispatch; its end was requested
}

// Waiting is a run in a queue.
type Waiting struct {
	Task, Run, Reason string
	NotBefore         task.Time
	Unsent            *task.Unsent
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
	Ended    int64 // Unix ms
	InARow   int   // consecutive failures, as far as is known
}

// OlderRun orders runs by when they began.
func OlderRun(a, b Run) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.Task, b.Task), strings.Compare(a.Run, b.Run))
}

// FirstWait orders waiting runs: by their urgency, then by time.
func FirstWait(a, b Waiting) int {
	return cmp.Or(cmp.Compare(task.WaitUrgency(a.Reason, a.Unsent), task.WaitUrgency(b.Reason, b.Unsent)), strings.Compare(a.Run, b.Run), strings.Compare(a.Task, b.Task)) // ids begin with their time
}

// NewerFailure orders failures, the newest first.
func NewerFailure(a, b FailedTask) int { return cmp.Compare(b.Ended, a.Ended) }

// NewFirst returns an empty list that keeps the first most items that are added, in the order of before.
func NewFirst[T any](most int, before func(a, b T) int) First[T] {
	return First[T]{most: most, before: before}
}

// First keeps the first items, in an order, of what is added. It uses memory for about twice as many.
type First[T any] struct {
	most   int
	before func(a, b T) int
	items  []T
	full   bool // the first most items are sorted, so an item after the last of them is too late
}

// Add adds v. It returns false if v comes too late in the order to be kept.
func (f *First[T]) Add(v T) bool {
	if f.full && f.before(v, f.items[f.most-1]) >= 0 {
		return false
	}

	if f.items = append(f.items, v); len(f.items) >= 2*f.most+16 {
		f.items, f.full = f.Sorted(), true
	}

	return true
}

// Sorted returns the kept items in their order. The slice is valid until the next Add.
func (f *First[T]) Sorted() []T {
	slices.SortFunc(f.items, f.before)
	return f.items[:min(len(f.items), f.most)]
}
