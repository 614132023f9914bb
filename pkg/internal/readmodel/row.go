package readmodel

import (
	"math"
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
	Last        Outcome
	Flags       Flags
}

// Flags are the properties of a task that are true or false.
type Flags uint8

// The flags of a row.
const (
	Paused     Flags = 1 << iota
	Unreadable       // the entry cannot be read, so the task has no ticks
	Failing          // it has a dead run whose create revision is above that of the last success
	History          // the last end is known; before this is set, LastEnd and what follows from it may be missing
	Gone             // the entry is gone, but runs of the task are left: only boards show them, and the row counts nowhere
)

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

// Milliseconds returns a duration for a Row: at least 0, at most 24 days.
func Milliseconds(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 0), math.MaxInt32))
}

// Seconds returns a time in Unix milliseconds as seconds for a Row: rounded down, from 1970 to 2106.
func Seconds(ms int64) uint32 { return uint32(min(max(ms, 0)/1000, math.MaxUint32)) }

// Count returns a number for a Row: at most 65,535.
func Count(n int) uint16 { return uint16(min(n, math.MaxUint16)) }
