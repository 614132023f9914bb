package check

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Event is one key's change at one revision, or a key of the first list.
type Event struct {
	Revision       int64  `json:"revision"` // of the change; of the list, if Listed
	Key            string `json:"key"`
	Value          []byte `json:"value,omitempty"`
	Deleted        bool   `json:"deleted,omitempty"`
	Listed         bool   `json:"listed,omitempty"` // was there when the recording began
	ModRevision    int64  `json:"mod_revision"`
	CreateRevision int64  `json:"create_revision,omitempty"` // 0 if deleted
	Lease          int64  `json:"lease,omitempty"`
}

// Options say what, beyond the promises that always hold, is asked of a history.
type Options struct {
	// Until, if set, is a time up to which every tick must be decided when the
	// history ends, whatever the watermarks say (G16).
	Until time.Time
	// Ended demands that no run waits or is active when the history ends (G16).
	Ended bool
	// Skew is how far a node's wall clock was from the right time at most. What one
	// clock says is compared with what another one says, or with what the same one
	// said before (G21, G24, G25), within that. Default 0: all clocks were right.
	Skew time.Duration

	// Faults are the times in which something was broken on purpose, by the
	// observer's clock, in any order. What is due in one of them may be late.
	Faults []Fault
	// Converge, if set, is how long after a tick, or after the end of the faults
	// that it fell into, its outcome must be decided (G16). DefaultConverge is
	// what is promised.
	Converge time.Duration
	// Lateness, if set, is how late a decision may be in a shard that neither
	// changes hands nor loses its owner's session, outside of Faults (G15, or G19
	// where a record of the shard cannot be read).
	Lateness time.Duration
	// Moves demands that only the shards move that must (G15).
	Moves bool
	// Remembered demands that dead runs, former versions of specs and tombstones are
	// kept as they should be (G25).
	Remembered bool
	// Full says that etcd was full for a time: a deletion then leaves no tombstone.
	Full bool
	// Settled demands that at the end every shard has an owner, which is present (G16).
	Settled bool
	// Gone are nodes that were drained for good: at the end, nothing of them is
	// left (G20).
	Gone []string
}

// DefaultConverge is how soon after a fault has healed all must be decided.
const DefaultConverge = 20 * time.Second

// Fault is a time in which something was broken.
type Fault struct {
	Name     string    `json:"name,omitempty"`
	From, To time.Time // To: when it was healed
}

// Violation is one breach of one promise.
type Violation struct {
	Promise  string    `json:"promise"` // "G3"; "state" and "form" have no number
	Revision int64     `json:"revision,omitempty"`
	Key      string    `json:"key,omitempty"`
	Task     string    `json:"task,omitempty"` // namespace/name
	Tick     time.Time `json:"tick,omitzero"`
	Message  string    `json:"message"`
}

// String is the violation on one line.
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

// Report is the judgement of a history or a snapshot.
type Report struct {
	Violations []Violation `json:"violations"`
	// Notes are what limits the judgement, or wants a look, and is no violation.
	Notes   []string `json:"notes,omitempty"`
	Summary Summary  `json:"summary"`
}

// OK reports whether no promise was found broken.
func (r Report) OK() bool { return len(r.Violations) == 0 }

// Err is nil if the report is OK, else it names the first violations.
func (r Report) Err() error {
	if r.OK() {
		return nil
	}
	return errors.New(r.listFindings(10))
}

// String is the whole report for a test's log or a terminal: the summary, the
// notes, and the first fifty violations.
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

func (r Report) listFindings(most int) string {
	lines := []string{plural(int64(len(r.Violations)), "violation")}
	for i, v := range r.Violations {
		if i == most {
			lines = append(lines, fmt.Sprintf("… and %d more", len(r.Violations)-most))
			break
		}
		lines = append(lines, v.String())
	}

	return strings.Join(lines, "\n")
}

// plural spells a number of things.
func plural(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// timeOfMS is the time of a tick in ms, as the checker computes with it.
func timeOfMS(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// unixMS is 0 for a time that is not set.
func unixMS(t task.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
