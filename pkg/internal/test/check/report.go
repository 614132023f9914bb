package check

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Event is the change of one key at one revision, or one key of the first list.
type Event struct {
	Revision       int64  `json:"revision"` // of the change; if Listed, of the list
	Key            string `json:"key"`
	Value          []byte `json:"value,omitempty"` // absent if Deleted
	Deleted        bool   `json:"deleted,omitempty"`
	Listed         bool   `json:"listed,omitempty"` // the key existed when the recording began
	ModRevision    int64  `json:"mod_revision"`
	CreateRevision int64  `json:"create_revision,omitempty"` // 0 if Deleted
	Lease          int64  `json:"lease,omitempty"`           // 0: no lease

	// At is when the observer received the change, by its own clock; zero: it is not known.
	At time.Time `json:"at,omitzero"`
}

// Options enable rules that hold only for some histories, and describe what disturbed the cluster.
type Options struct {
	// Until, if set, is a time up to which every tick must be decided when the history ends, whatever the
	// watermarks say (G16).
	Until time.Time
	// Ended requires that no run waits or is active when the history ends (G16).
	Ended bool
	// Skew is the largest error of any node's wall clock. Times of different clocks, or of one clock at different
	// moments, are compared with this tolerance (G21, G24, G25). Zero means that all clocks were right.
	Skew time.Duration
	// WrongClocks are the periods in which a node's clock was wrong by more than Skew. No start is judged by a time from
	// such a period (G21), nor is an alert or a message (G57, G59).
	WrongClocks []WrongClock

	// Faults are the periods in which a fault was injected, by the observer's clock, in any order. Ticks that are
	// due in such a period may be late.
	Faults []Fault
	// Converge, if set, limits how long after a tick, or after the end of the faults that it fell into, its outcome
	// may be decided (G16). DefaultConverge is the documented limit.
	Converge time.Duration
	// Lateness, if set, limits how late a decision may be outside of Faults, in a shard that keeps its owner and
	// the owner's session (G15, or G19 if a record of the shard cannot be read).
	Lateness time.Duration
	// Moves requires that only shards move that must (G15).
	Moves bool
	// Remembered requires that dead runs, former versions of specs and tombstones are kept as documented, and that a trim
	// leaves as many records as the task keeps (G25). Tests that trim by hand do not demand it.
	Remembered bool
	// Folded requires that no record leaves a history without a fold while its task has a ledger (G31). Tests that delete
	// records by other means than a trim do not demand it.
	Folded bool
	// Full states that etcd was full for some time. A deletion then leaves no tombstone, a node may still have its
	// audit record, and trims do not fold.
	Full bool
	// Audited states that everything that only the API changes (specs, secrets, freezes, manual runs, access records)
	// was changed on behalf of a caller, so that each such change has exactly one audit record (G28). Tests that write
	// through their own Store leave none.
	Audited bool
	// Evaluated requires that, when the history ends, the tasks that failed at this time or were paused for too long have an alert,
	// and that no alert is open whose expectation is met (G58). From this time on, everything was quiet for longer than an evaluation
	// takes. Zero: alerts may be late.
	Evaluated time.Time
	// Calm are the periods, by the observer's clock, in which no fault was injected and the effects of earlier ones were over. In these,
	// an expectation about successes that is not met for a minute must have an alert, and none that is met (G58). It takes Event.At.
	Calm []Period
	// Settled requires that every shard has an owner that is present when the history ends (G16).
	Settled bool
	// Gone lists nodes that were drained for good: nothing of them may be left when the history ends (G20).
	Gone []string
}

// DefaultConverge is how soon after the end of a fault everything must be decided (G16).
const DefaultConverge = 20 * time.Second

// Fault is a period in which a fault was injected.
type Fault struct {
	Name     string    `json:"name,omitempty"`
	From, To time.Time // To is when the fault had ended
}

// Period is a period of time.
type Period struct{ From, To time.Time }

// WrongClock is a period in which the clock of a node was wrong. From and To are times of that clock.
type WrongClock struct {
	Node     string
	From, To time.Time
}

// wrongClock reports whether a node's clock was wrong when it showed the time.
func (o *Options) wrongClock(node string, at time.Time) bool {
	for _, w := range o.WrongClocks {
		if w.Node == node && !at.Before(w.From) && !at.After(w.To) {
			return true
		}
	}

	return false
}

// wasWrong reports whether a time may be one of a wrong clock of any node. Records of alerts do not name the node that wrote them.
func (o *Options) wasWrong(at time.Time) bool {
	return slices.ContainsFunc(o.WrongClocks, func(w WrongClock) bool { return o.wrongClock(w.Node, at) })
}

// Violation is one breach of one guarantee.
type Violation struct {
	Promise  string    `json:"promise"`            // such as "G3"; "state" and "form" have no number
	Revision int64     `json:"revision,omitempty"` // 0: of a probe log
	Key      string    `json:"key,omitempty"`
	Task     string    `json:"task,omitempty"` // namespace/name
	Tick     time.Time `json:"tick,omitzero"`
	Message  string    `json:"message"`
}

// String formats the violation on one line.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", v.Promise)

	if v.Revision > 0 {
		fmt.Fprintf(&b, " at revision %d", v.Revision)
	}

	if v.Task != "" {
		fmt.Fprintf(&b, ", task %s", v.Task)
	}

	if !v.Tick.IsZero() {
		fmt.Fprintf(&b, ", tick %s", formatTime(v.Tick))
	}

	fmt.Fprintf(&b, ": %s", v.Message)

	if v.Key != "" {
		fmt.Fprintf(&b, " (%s)", v.Key)
	}

	return b.String()
}

// Report is the result of judging a history.
type Report struct {
	Violations []Violation `json:"violations"`
	// Notes limit what was judged or deserve attention. They are not violations.
	Notes   []string `json:"notes,omitempty"`
	Summary Summary  `json:"summary"`
}

// OK reports whether there are no violations.
func (r Report) OK() bool { return len(r.Violations) == 0 }

// Err returns nil if the report is OK, or else an error that lists the first violations.
func (r Report) Err() error {
	if r.OK() {
		return nil
	}
	return errors.New(r.listFindings(10))
}

// String formats the whole report for a test log or a terminal: the summary, the notes, and the first fifty
// violations.
func (r Report) String() string {
	var b strings.Builder
	b.WriteString(r.Summary.String())

	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}

	if r.OK() {
		b.WriteString("no violations\n")
	} else {
		b.WriteString(r.listFindings(50) + "\n")
	}

	return b.String()
}

// listFindings formats the number of violations and the first most of them.
func (r Report) listFindings(most int) string {
	lines := []string{formatCount(int64(len(r.Violations)), "violation")}
	for i, v := range r.Violations {
		if i == most {
			lines = append(lines, fmt.Sprintf("… and %d more", len(r.Violations)-most))
			break
		}
		lines = append(lines, v.String())
	}

	return strings.Join(lines, "\n")
}

// formatCount formats a number of things.
func formatCount(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// timeOfMS converts ms since 1970, the form in which the checker computes, to a time in UTC.
func timeOfMS(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// unixMS converts a time to ms since 1970. A time that is not set becomes 0.
func unixMS(t task.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Summary counts what happened in a history after the first list.
type Summary struct {
	Tasks     int64                `json:"tasks"`
	Ticks     int64                `json:"ticks"`     // that must have an outcome, by the oracle
	Undecided int64                `json:"undecided"` // of those, the ones without an outcome
	Runs      int64                `json:"runs"`      // that ticks caused
	Manual    int64                `json:"manual"`    // runs without a tick
	Triggers  int64                `json:"triggers"`  // that ends of runs have become
	Triggered int64                `json:"triggered"` // runs that triggers have started; Manual counts them, too
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
	fmt.Fprintf(&b, "triggers %d, of which %d have started runs\n", s.Triggers, s.Triggered)
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
