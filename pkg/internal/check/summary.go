package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Summary counts what happened in a history after the first list.
type Summary struct {
	Tasks     int64                `json:"tasks"`
	Ticks     int64                `json:"ticks"`     // that must have an outcome, by the oracle
	Undecided int64                `json:"undecided"` // of those, the ones without an outcome
	Runs      int64                `json:"runs"`      // that ticks caused
	Manual    int64                `json:"manual"`    // runs without a tick
	Ended     map[task.State]int64 `json:"ended"`     // runs by final state
	Skipped   map[string]int64     `json:"skipped"`   // ticks by reason
	Missed    map[string]int64     `json:"missed"`    // ticks by reason
	Open      int64                `json:"open"`      // runs that wait or are active at the end
	Late      int64                `json:"late"`      // results that arrived after their attempt was declared lost
	Folded    int64                `json:"folded"`    // records that left a history for the ledger
	Unfolded  int64                `json:"unfolded"`  // records that left a history without a fold, although their task remained

	// Decided is the time from a tick's due time to the creation of its run, Started the time to the start of its
	// action, both by the nodes' clocks. Only runs on schedule count, not those that catch up.
	Decided Lateness `json:"decided"`
	Started Lateness `json:"started"`

	// Gap is the longest time between the decisions of two successive runs of one task, which is GapTask.
	Gap     task.Duration `json:"gap"`
	GapTask string        `json:"gap_task,omitempty"`
}

// Lateness describes a distribution of delays.
type Lateness struct {
	Count int64         `json:"count"`
	P50   task.Duration `json:"p50"`
	P99   task.Duration `json:"p99"`
	Max   task.Duration `json:"max"`
}

// String formats the summary on a few lines, for test logs and documents.
func (s Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tasks %d, ticks %d, without an outcome %d\n", s.Tasks, s.Ticks, s.Undecided)
	fmt.Fprintf(&b, "runs %d, manual %d, open %d", s.Runs, s.Manual, s.Open)

	for _, state := range task.States() {
		if n := s.Ended[state]; n > 0 {
			fmt.Fprintf(&b, ", %s %d", state, n)
		}
	}

	fmt.Fprintf(&b, ", late results %d\n", s.Late)
	fmt.Fprintf(&b, "skipped %s, missed %s\n", formatReasons(s.Skipped), formatReasons(s.Missed))
	fmt.Fprintf(&b, "trimmed: to ledgers %d, forgotten %d\n", s.Folded, s.Unfolded)
	fmt.Fprintf(&b, "tick to decision: %s\n", s.Decided)
	fmt.Fprintf(&b, "tick to start:    %s\n", s.Started)

	if s.GapTask != "" {
		fmt.Fprintf(&b, "longest gap between two decisions of a task: %s (%s)\n", s.Gap, s.GapTask)
	}

	return b.String()
}

// String formats the lateness on one line.
func (l Lateness) String() string {
	if l.Count == 0 {
		return "not known"
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s (of %d)", l.P50, l.P99, l.Max, l.Count)
}

// formatReasons formats counts by reason, with their sum.
func formatReasons(m map[string]int64) string {
	var total int64
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(m)) {
		total += m[reason]
		parts = append(parts, fmt.Sprintf("%s %d", reason, m[reason]))
	}

	if len(parts) == 0 {
		return "0"
	}

	return fmt.Sprintf("%d (%s)", total, strings.Join(parts, ", "))
}

// stats collects a Summary.
type stats struct {
	Summary
	decided, started []int64 // delays in ms
}

func newStats() *stats {
	return &stats{Summary: Summary{Ended: map[task.State]int64{}, Skipped: map[string]int64{}, Missed: map[string]int64{}}}
}

// countDecision counts a tick that became a run.
func (s *stats) countDecision(r *runHistory, rec *task.Run) {
	if rec.State.Final() {
		return // countOutcome counts a tick that did not run
	}

	s.Runs++
	at := decisionTime(rec)
	if at == 0 {
		return
	}

	if r.trigger == task.TriggerSchedule {
		s.decided = append(s.decided, at-max(r.tick, unixMS(rec.DueAt)))
	}

	if gap := durationOfMS(at - r.incarnation.lastDecision); r.incarnation.lastDecision != 0 && gap > s.Gap {
		s.Gap, s.GapTask = gap, r.incarnation.ref.String()
	}

	r.incarnation.lastDecision = max(r.incarnation.lastDecision, at)
}

// countOutcome counts a final record.
func (s *stats) countOutcome(r *runHistory, e *task.Run) {
	switch e.State {
	case task.Skipped:
		s.Skipped[e.Reason] += max(r.count, 1)
	case task.Missed:
		s.Missed[e.Reason] += max(r.count, 1)
	default:
		s.Ended[e.State]++
	}

	if e.LatenessMS != nil && r.trigger == task.TriggerSchedule {
		s.started = append(s.started, *e.LatenessMS)
	}
}

// countGrowth counts the ticks by which a record of ticks that did not run has grown.
func (s *stats) countGrowth(e *task.Run, ticks int64) {
	if e.State == task.Skipped {
		s.Skipped[e.Reason] += ticks
	} else {
		s.Missed[e.Reason] += ticks
	}
}

// summarize returns the counts with the percentiles of the delays.
func (s *stats) summarize() Summary {
	out := s.Summary
	out.Decided, out.Started = summarizeLateness(s.decided), summarizeLateness(s.started)
	return out
}

// summarizeLateness returns the percentiles of delays in ms.
func summarizeLateness(all []int64) Lateness {
	if len(all) == 0 {
		return Lateness{}
	}

	sorted := slices.Sorted(slices.Values(all))
	at := func(percent int) task.Duration { return durationOfMS(sorted[(len(sorted)-1)*percent/100]) }
	return Lateness{Count: int64(len(all)), P50: at(50), P99: at(99), Max: at(100)}
}

func durationOfMS(n int64) task.Duration { return task.Duration(time.Duration(n) * time.Millisecond) }
