package task

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// TriggerPart is what gave rise to a part of a fan-out: its parent.
const TriggerPart = "part"

// MaxParts is how many parts a fan-out has at most.
const MaxParts = 1000

// Count is on how many nodes a task runs: a number, or All that match. In JSON it
// is a number, or "all".
type Count int

// All is every node that takes work and matches when the run begins.
const All Count = -1

// MarshalJSON writes "all", or a number.
func (c Count) MarshalJSON() ([]byte, error) {
	if c == All {
		return []byte(`"all"`), nil
	}
	return strconv.AppendInt(nil, int64(c), 10), nil
}

// UnmarshalJSON reads "all", or a number; null changes nothing.
func (c *Count) UnmarshalJSON(b []byte) error {
	switch text := string(b); text {
	case "null":
		return nil
	case `"all"`:
		*c = All
		return nil
	default:
		n, err := strconv.Atoi(text)
		if err != nil || n == int(All) {
			return Invalid(CodeBadValue, "target.count", "%s is neither a number of nodes nor all", Quote(strings.Trim(text, `"`)))
		}

		*c = Count(n)

		return nil
	}
}

// String is the count as JSON has it, without quotes.
func (c Count) String() string {
	if c == All {
		return "all"
	}
	return strconv.Itoa(int(c))
}

// Succeed is how many parts of a fan-out have to succeed for it to: "all" (or
// nothing), "any", a number, or a part of them: "80%".
type Succeed string

// UnmarshalJSON also reads a plain number.
func (s *Succeed) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] >= '0' && b[0] <= '9' {
		*s = Succeed(b)
		return nil
	}

	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return Invalid(CodeBadValue, "target.succeed", "is neither all, any, a number of parts, nor a part of them such as 80%%")
	}

	*s = Succeed(text)

	return nil
}

// Need is how many of n parts have to succeed.
func (s Succeed) Need(n int) (int, error) {
	text := string(s)
	switch text {
	case "", "all":
		return n, nil
	case "any":
		return 1, nil
	}

	percent, is := strings.CutSuffix(text, "%")
	v, err := strconv.Atoi(percent)
	switch {
	case err != nil || v < 1 || is && v > 100 || v > MaxParts:
		return 0, Invalid(CodeBadValue, "target.succeed", "%s is neither all, any, a number of parts from 1 to %d, nor a part of them from 1%% to 100%%", Quote(text), MaxParts)
	case is:
		return max(1, (n*v+99)/100), nil
	}

	return v, nil
}

// FansOut reports whether each run of the task has parts.
func (t Target) FansOut() bool { return t.Parts > 0 || t.Count == All || t.Count > 1 }

// Enough reports whether a run can begin while so many nodes take work and match: each
// part of a count needs one of its own, and it is not to be known beforehand that too
// few of them will succeed.
func (t Target) Enough(nodes int) bool {
	if t.Count == All {
		need, err := t.Succeed.Need(nodes)
		return nodes > 0 && nodes <= MaxParts && need <= nodes && err == nil
	}
	return nodes >= int(t.Count) && nodes > 0
}

// validateFan checks what a target says of parts.
func (t Target) validateFan() error {
	if t.Count != All && (t.Count < 1 || t.Count > MaxParts) {
		return Invalid(CodeOutOfRange, "target.count", "%d is neither all nor between 1 and %d", t.Count, MaxParts)
	}
	if err := checkRange("target.parts", t.Parts, 0, MaxParts); err != nil {
		return err
	}

	many := t.Count == All || t.Count > 1
	switch {
	case many && t.Parts > 0:
		return Invalid(CodeBadValue, "target.parts", "cannot be combined with target.count: %s, which gives each part a node of its own", t.Count)
	case t.Count == All && t.Strategy != StrategyAuto:
		return Invalid(CodeBadValue, "target.strategy", "%s cannot be combined with target.count: all, which leaves nothing to choose", t.Strategy)
	case t.FansOut() && t.Strategy == StrategySticky:
		return Invalid(CodeBadValue, "target.strategy", "sticky cannot be combined with target.parts or target.count: all parts would stick to one node")
	case many && t.Strategy == StrategyFirst && int(t.Count) > len(t.Order):
		return Invalid(CodeOutOfRange, "target.count", "%s nodes cannot be had: target.order has %d", t.Count, len(t.Order))
	case t.Stagger != 0 && !t.FansOut():
		return Invalid(CodeBadValue, "target.stagger", "is for several parts: set target.parts or target.count")
	case t.Succeed != "" && !t.FansOut():
		return Invalid(CodeBadValue, "target.succeed", "is for several parts: set target.parts or target.count")
	}

	if err := checkOptional("target.stagger", t.Stagger, Duration(1e6), maxStagger); err != nil {
		return err
	}
	if t.Succeed == "" {
		return nil
	}

	need, err := t.Succeed.Need(MaxParts)
	if err != nil {
		return err
	}
	if n := max(t.Parts, int(t.Count)); t.FansOut() && t.Count != All && need > n && !strings.HasSuffix(string(t.Succeed), "%") && t.Succeed != "all" {
		return Invalid(CodeOutOfRange, "target.succeed", "%s of %d parts cannot succeed", t.Succeed, n)
	}

	return nil
}

// Fan is what a run that has parts knows of them. As long as it is under way it is
// on record in its shard's queue, where it says which parts are not given out yet,
// and how many have ended; afterwards, in history, how each ended.
type Fan struct {
	Count int `json:"count"` // parts there are; they are numbered from 0
	Need  int `json:"need"`  // so many have to succeed, Kept included
	// Nodes is the node of each part, if it has one for good (target.count).
	Nodes   []string `json:"nodes,omitempty"`
	Stagger Duration `json:"stagger,omitzero"`
	// Left are the parts that have not been given to a node, in ascending order.
	Left []int `json:"left,omitempty"`
	// Only are the parts that there are of a run that repeats the failed ones of
	// another; none: all of them. Kept is how many had succeeded there.
	Only      []int `json:"only,omitempty"`
	Kept      int   `json:"kept,omitempty"`
	Ended     int   `json:"ended,omitempty"`     // so many parts have
	Succeeded int   `json:"succeeded,omitempty"` // so many of these
	// Checkpoints are what parts of a run that is repeated have said last for whoever
	// goes on with them, by their numbers: of those in Left, as far as there was room.
	Checkpoints map[int]string `json:"checkpoints,omitempty"`
	// Cancel is why the run is to end: nothing more is given out, and what runs is
	// asked to end. Empty: it goes on.
	Cancel string `json:"cancel,omitempty"`
	// Parts are how the parts ended, by their number: of a run that has ended.
	Parts []Part `json:"parts,omitempty"`
}

// Part is how a part of a fan-out stands, or how it ended.
type Part struct {
	Index     int    `json:"index"`
	State     State  `json:"state"`
	Reason    string `json:"reason,omitempty"`
	Node      string `json:"node,omitempty"`
	Attempt   int    `json:"attempt,omitempty"` // its last
	Token     int64  `json:"token,omitempty"`
	StartedAt Time   `json:"started_at,omitzero"`
	EndedAt   Time   `json:"ended_at,omitzero"`
	ExitCode  *int   `json:"exit_code,omitempty"`
	Signal    string `json:"signal,omitempty"`
	// OutputBytes is what its last attempt printed.
	OutputBytes int64 `json:"output_bytes,omitempty"`
	// Paused* are those of its run while a node has it; one that has ended has none.
	PausedBy string `json:"paused_by,omitempty"`
	PausedAt Time   `json:"paused_at,omitzero"`
	PausedMS int64  `json:"paused_ms,omitempty"`
	// Checkpoint is on its own record as long as its run is under way, and then with
	// that which repeats it.
	Checkpoint string `json:"-"`
	// What follows is as much as there is room for in the record of the whole run.
	Usage   Usage             `json:"usage,omitzero"`
	Message string            `json:"message,omitempty"` // the first MaxPartMessage bytes
	Results map[string]string `json:"results,omitempty"` // if they are at most maxPartResults
}

// How much is kept of what a part said, in bytes.
const (
	MaxPartMessage = 200
	maxPartResults = 256 // of names and values together
	// MaxPartCheckpoints is of all parts together, as JSON.
	MaxPartCheckpoints = 64 << 10
)

// AsPart is what is kept of a part's run.
func (r Run) AsPart() Part {
	_, i, _ := ParentOf(r.ID)
	p := Part{Index: i, State: r.State, Reason: r.Reason, Node: r.Node, Attempt: r.Attempt, Token: r.Token,
		StartedAt: r.StartedAt, EndedAt: r.EndedAt, ExitCode: r.ExitCode, Signal: r.Signal, Usage: r.Usage,
		OutputBytes: r.OutputBytes, Checkpoint: r.Checkpoint, Message: strings.ToValidUTF8(r.Message[:min(len(r.Message), MaxPartMessage)], "")}
	if r.State.Active() {
		p.PausedBy, p.PausedAt, p.PausedMS = r.PausedBy, r.PausedAt, r.PausedMS
	}

	size := 0
	for name, value := range r.Results {
		size += len(name) + len(value)
	}

	if size <= maxPartResults {
		p.Results = r.Results
	}

	return p
}

// Usage is what all parts took: the sum, and of memory the most that one had.
func (f Fan) Usage() (u Usage) {
	for _, p := range f.Parts {
		u.CPUMS += p.Usage.CPUMS
		u.MemoryPeak = max(u.MemoryPeak, p.Usage.MemoryPeak)
		u.IORead += p.Usage.IORead
		u.IOWritten += p.Usage.IOWritten
	}

	return u
}

// Fit leaves out what parts took and said, beyond so many bytes of JSON in all. Those
// that did not succeed come first.
func (f Fan) Fit(room int) {
	for _, failed := range []bool{true, false} {
		for i := range f.Parts {
			p := &f.Parts[i]
			if failed != (p.State != Succeeded) || p.Usage == (Usage{}) && p.Message == "" && p.Results == nil {
				continue
			}

			b, err := json.Marshal(Part{Usage: p.Usage, Message: p.Message, Results: p.Results})
			if room -= len(b); err != nil || room < 0 {
				p.Usage, p.Message, p.Results = Usage{}, "", nil
			}
		}
	}
}

// OfPart is the run of a part that has ended, as its parent's record tells it.
func (r Run) OfPart(p Part) Run {
	run := Run{
		ID: PartID(r.ID, p.Index), Namespace: r.Namespace, Task: r.Task, UID: r.UID, ScheduledTime: r.ScheduledTime, DueAt: r.DueAt,
		State: p.State, Reason: p.Reason, Trigger: TriggerPart, Node: p.Node, Owner: r.Owner, Shard: r.Shard, Attempt: max(p.Attempt, 1),
		Token: p.Token, CreatedAt: r.CreatedAt, StartedAt: p.StartedAt, EndedAt: p.EndedAt, ExitCode: p.ExitCode, Signal: p.Signal,
		OutputSummary: OutputSummary{OutputBytes: p.OutputBytes}, Usage: p.Usage, Message: p.Message, StatusReport: StatusReport{Results: p.Results},
		PauseState: PauseState{PausedBy: p.PausedBy, PausedAt: p.PausedAt, PausedMS: p.PausedMS},
		Requests:   Requests{CreatedBy: r.CreatedBy, EnvNames: r.EnvNames},
	}
	if r.Fan != nil {
		run.PartCount = r.Fan.Count
	}

	return run
}

// Active is how many parts have been given out and have not ended, as the record
// has it.
func (f Fan) Active() int { return f.Count - f.Kept - len(f.Left) - f.Ended }

// Numbers are those of the parts that are run.
func (f Fan) Numbers() []int {
	if f.Only != nil {
		return f.Only
	}

	list := make([]int, f.Count)
	for i := range list {
		list[i] = i
	}

	return list
}

// Met reports whether enough parts have succeeded.
func (f Fan) Met() bool { return f.Succeeded+f.Kept >= f.Need }

// String is the fan in a few words: "3 of 10 parts".
func (f Fan) String() string { return fmt.Sprintf("%d of %d parts", f.Ended+f.Kept, f.Count) }

// Failed are the numbers of the parts that did not succeed.
func (f Fan) Failed() []int {
	var list []int
	for _, p := range f.Parts {
		if p.State != Succeeded {
			list = append(list, p.Index)
		}
	}

	return list
}

// Again is the fan of a run that repeats the failed parts alone, each from its
// checkpoint on.
func (f Fan) Again() *Fan {
	left := f.Failed()
	again := Fan{Count: f.Count, Need: f.Need, Stagger: f.Stagger, Left: left, Only: left, Kept: f.Count - len(left)}
	if f.Nodes != nil {
		again.Nodes = make([]string, f.Count)
		for _, i := range left {
			again.Nodes[i] = f.Nodes[i]
		}
	}

	room := MaxPartCheckpoints
	for _, p := range f.Parts {
		if p.State == Succeeded || p.Checkpoint == "" {
			continue
		}

		b, err := json.Marshal(map[int]string{p.Index: p.Checkpoint})
		if err != nil || len(b) > room {
			continue
		}

		room -= len(b)

		if again.Checkpoints == nil {
			again.Checkpoints = map[int]string{}
		}

		again.Checkpoints[p.Index] = p.Checkpoint
	}

	return &again
}

// Without is the fan without the part at a place of Left: it is given out, or up.
func (f Fan) Without(place int) *Fan {
	f.Checkpoints = maps.Clone(f.Checkpoints)
	delete(f.Checkpoints, f.Left[place])
	f.Left = slices.Delete(slices.Clone(f.Left), place, place+1)
	return &f
}

// UnderWay reports whether a run in the queue has its parts: it does not wait, it
// runs.
func (w Waiting) UnderWay() bool { return w.Fan != nil && w.State == Running }

const partMark = "-p"

// PartID is the id of a part of a run.
func PartID(parent string, index int) string { return fmt.Sprintf("%s%s%04d", parent, partMark, index) }

// ParentOf takes the id of a part apart; false if it is that of a run of its own. A
// manual run's id ends in four letters more, never in five.
func ParentOf(id string) (parent string, index int, is bool) {
	n := len(id) - len(partMark) - 4
	if n <= len(idTime) || id[n:n+len(partMark)] != partMark {
		return "", 0, false
	}

	for _, c := range []byte(id[n+len(partMark):]) {
		if c < '0' || c > '9' {
			return "", 0, false
		}
		index = 10*index + int(c-'0')
	}

	return id[:n], index, true
}

// IsPart reports whether an id is that of a part.
func IsPart(id string) bool {
	_, _, is := ParentOf(id)
	return is
}

// Siblings reports whether two ids are those of parts of one run.
func Siblings(a, b string) bool {
	of, _, is := ParentOf(a)
	other, _, too := ParentOf(b)
	return is && too && of == other
}
