package task

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// TriggerPart is the trigger of a part: its parent run.
const TriggerPart = "part"

// MaxParts is the maximum number of parts of a run. It bounds the size of the parent's record.
const MaxParts = 1000

// Count is the number of nodes on which a task runs, or All. In JSON it is a number or "all".
type Count int

// All means every matching node that accepts runs when the run begins.
const All Count = -1

// MarshalJSON encodes a number or "all".
func (c Count) MarshalJSON() ([]byte, error) {
	if c == All {
		return []byte(`"all"`), nil
	}
	return strconv.AppendInt(nil, int64(c), 10), nil
}

// UnmarshalJSON decodes a number or "all". null changes nothing.
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

// String returns the JSON form without quotes.
func (c Count) String() string {
	if c == All {
		return "all"
	}
	return strconv.Itoa(int(c))
}

// Succeed is the number of parts that must succeed: "all" (or empty), "any", a number, or a percentage such as
// "80%".
type Succeed string

// UnmarshalJSON also accepts a plain number.
func (s *Succeed) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] >= '0' && b[0] <= '9' {
		*s = Succeed(b)
		return nil
	}

	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return Invalid(CodeBadValue, "target.succeed", "is not all, any, a number of parts, or a percentage such as 80%%")
	}

	*s = Succeed(text)

	return nil
}

// Need returns how many of n parts must succeed. A percentage is rounded up.
func (s Succeed) Need(n int) (int, error) {
	text := string(s)
	switch text {
	case "", "all":
		return n, nil
	case "any":
		return 1, nil
	}

	percent, ok := strings.CutSuffix(text, "%")
	v, err := strconv.Atoi(percent)
	switch {
	case err != nil || v < 1 || ok && v > 100 || v > MaxParts:
		return 0, Invalid(CodeBadValue, "target.succeed", "%s is not all, any, a number of parts from 1 to %d, or a percentage from 1%% to 100%%", Quote(text), MaxParts)
	case ok:
		return max(1, (n*v+99)/100), nil
	}

	return v, nil
}

// FansOut reports whether each run of the task has parts.
func (t Target) FansOut() bool { return t.Parts > 0 || t.Count == All || t.Count > 1 }

// Enough reports whether a run can begin while this number of nodes match and accept runs. With a count, each
// part needs its own node, and a run does not begin if it is already certain that too few parts can succeed.
func (t Target) Enough(nodes int) bool {
	if t.Count == All {
		need, err := t.Succeed.Need(nodes)
		return nodes > 0 && nodes <= MaxParts && need <= nodes && err == nil
	}
	return nodes >= int(t.Count) && nodes > 0
}

// validateFan checks the fields of a target that concern parts.
func (t Target) validateFan() error {
	if t.Count != All && (t.Count < 1 || t.Count > MaxParts) {
		return Invalid(CodeOutOfRange, "target.count", "%d is neither all nor between 1 and %d", t.Count, MaxParts)
	}

	many := t.Count == All || t.Count > 1
	switch {
	case many && t.Parts > 0:
		return Invalid(CodeBadValue, "target.parts", "cannot be combined with target.count: %s, which gives each part its own node", t.Count)
	case t.Count == All && t.Strategy != StrategyAuto:
		return Invalid(CodeBadValue, "target.strategy", "%s cannot be combined with target.count: all, which leaves nothing to choose", t.Strategy)
	case t.FansOut() && t.Strategy == StrategySticky:
		return Invalid(CodeBadValue, "target.strategy", "sticky cannot be combined with target.parts or target.count: all parts would stick to one node")
	case many && t.Strategy == StrategyFirst && int(t.Count) > len(t.Order):
		return Invalid(CodeOutOfRange, "target.count", "%s nodes are not possible: target.order has %d", t.Count, len(t.Order))
	case t.Stagger != 0 && !t.FansOut():
		return Invalid(CodeBadValue, "target.stagger", "requires several parts: set target.parts or target.count")
	case t.Succeed != "" && !t.FansOut():
		return Invalid(CodeBadValue, "target.succeed", "requires several parts: set target.parts or target.count")
	}

	if t.Succeed == "" {
		return nil
	}

	need, err := t.Succeed.Need(MaxParts)
	if err != nil {
		return err
	}
	// A plain number must not exceed the number of parts. Percentages and "all" always fit.
	if n := max(t.Parts, int(t.Count)); t.FansOut() && t.Count != All && need > n && !strings.HasSuffix(string(t.Succeed), "%") && t.Succeed != "all" {
		return Invalid(CodeOutOfRange, "target.succeed", "%s successful parts of %d are not possible", t.Succeed, n)
	}

	return nil
}

// Fan is the state of the parts of a run. While the run is active, its record is in the shard's queue and lists
// the parts that are not dispatched yet and how many have ended. Afterwards, the record is in the history and
// contains how each part ended.
type Fan struct {
	Count int `json:"count" doc:"The number of parts. They are numbered from 0."`
	Need  int `json:"need" doc:"How many parts must succeed, including those that are kept."`
	// Nodes contains the fixed node of each part (only with target.count).
	Nodes   []string `json:"nodes,omitempty" doc:"The nodes of the parts, in the order of their numbers."`
	Stagger Duration `json:"stagger,omitzero" doc:"The delay between the starts of two parts."`
	// Left contains the numbers of the parts that are not dispatched yet, in ascending order.
	Left PartNumbers `json:"left,omitempty" doc:"The parts that have not begun."`
	// Only contains the numbers of the parts that a retry of another run repeats; nil means all parts. Kept is
	// the number of parts that succeeded in that other run.
	Only      PartNumbers `json:"only,omitempty" doc:"The parts that this run has; a retry repeats only some."`
	Kept      int         `json:"kept,omitempty" doc:"The parts that succeeded in the run that this one retries."`
	Ended     int         `json:"ended,omitempty" doc:"The number of parts that have ended."`
	Succeeded int         `json:"succeeded,omitempty" doc:"The number of ended parts that succeeded."`
	// Checkpoints contains the last checkpoints of parts of the run that this run repeats, by part number. It
	// contains only parts in Left, and only as many as fit into the record.
	Checkpoints map[int]string `json:"checkpoints,omitempty" doc:"The checkpoints of parts, by number."`
	// Cancel is the reason why the run is ending. No further parts are dispatched, and active parts are
	// cancelled. It is empty if the run continues.
	Cancel string `json:"cancel,omitempty" doc:"Why its parts are being cancelled."`
	// Flow is the state of the steps of a workflow; nil in other runs. Its parts begin to exist when their step begins:
	// Count grows, and they are added to Left. Need has no meaning.
	Flow *Flow `json:"flow,omitempty" doc:"The steps of a workflow."`
	// Parts contains how each part ended, by part number, if the run has ended.
	Parts []Part `json:"parts,omitempty" doc:"The parts."`
}

// Part is the current or final state of a part.
type Part struct {
	Index     int    `json:"index" doc:"The number of the part, from 0."`
	State     State  `json:"state" doc:"The state of the part."`
	Reason    string `json:"reason,omitempty" doc:"Why it is in this state: one of the reasons in docs/why.md."`
	Node      string `json:"node,omitempty" doc:"The node of its last attempt."`
	Attempt   int    `json:"attempt,omitempty" doc:"The number of its last attempt."`
	Token     int64  `json:"token,omitempty" doc:"The fencing token of its last attempt."`
	StartedAt Time   `json:"started_at,omitzero" doc:"When the attempt started. Absent: it did not."`
	EndedAt   Time   `json:"ended_at,omitzero" doc:"When it ended. Absent: it has not."`
	ExitCode  *int   `json:"exit_code,omitempty" doc:"The exit code of the process. Absent: it did not exit by itself."`
	Signal    string `json:"signal,omitempty" doc:"The signal that ended the process, such as SIGKILL."`
	// OutputBytes is the number of bytes that its last attempt printed.
	OutputBytes int64 `json:"output_bytes,omitempty" doc:"How many bytes it wrote."`
	// The Paused fields are set while a node has the part, and empty afterwards.
	PausedBy *Actor `json:"paused_by,omitempty" doc:"Who requested the pause."`
	PausedAt Time   `json:"paused_at,omitzero" doc:"When its processes were stopped."`
	PausedMS int64  `json:"paused_ms,omitempty" doc:"How long it was paused in total, in milliseconds."`
	// Checkpoint is stored in the part's own record while its run is active, and afterwards in the record of the
	// run that repeats it.
	Checkpoint string `json:"-"`
	// The following fields are kept only as far as they fit into the record of the whole run.
	Usage   Usage             `json:"usage,omitzero" doc:"What the attempt used."`
	Message string            `json:"message,omitempty" doc:"What went wrong, as text."`
	Results map[string]string `json:"results,omitempty" doc:"The results that it reported."`
}

// Limits of what is kept of a part's report, in bytes.
const (
	MaxPartMessage = 200
	maxPartResults = 256 // of names and values together
	// MaxPartCheckpoints applies to the checkpoints of all parts together, as JSON.
	MaxPartCheckpoints = 64 << 10
)

// AsPart returns what the parent's record keeps of a part's run.
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

// Usage returns the resources that all parts used: sums, except for the memory, which is the largest peak of
// any part.
func (f Fan) Usage() (u Usage) {
	for _, p := range f.Parts {
		u.CPUMS += p.Usage.CPUMS
		u.MemoryPeak = max(u.MemoryPeak, p.Usage.MemoryPeak)
		u.IORead += p.Usage.IORead
		u.IOWritten += p.Usage.IOWritten
	}

	return u
}

// Fit removes usage, messages and results of parts, so that the rest of these fields needs at most room bytes
// of JSON. Parts that did not succeed keep theirs first.
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

// OfPart returns the run of an ended part as far as the parent's record contains it.
func (r Run) OfPart(p Part) Run {
	run := Run{
		ID: PartID(r.ID, p.Index), Namespace: r.Namespace, Task: r.Task, UID: r.UID, ScheduledTime: r.ScheduledTime, DueAt: r.DueAt,
		State: p.State, Reason: p.Reason, Trigger: TriggerPart, Node: p.Node, Owner: r.Owner, Shard: r.Shard, Attempt: max(p.Attempt, 1),
		Token: p.Token, CreatedAt: r.CreatedAt, StartedAt: p.StartedAt, EndedAt: p.EndedAt, ExitCode: p.ExitCode, Signal: p.Signal,
		OutputSummary: OutputSummary{OutputBytes: p.OutputBytes}, Usage: p.Usage, Message: p.Message, StatusReport: StatusReport{Results: p.Results},
		PauseState: PauseState{PausedBy: p.PausedBy, PausedAt: p.PausedAt, PausedMS: p.PausedMS},
		Requests:   Requests{CreatedBy: r.CreatedBy, EnvNames: r.EnvNames, Args: r.Args},
	}
	switch {
	case r.Fan == nil:
	case r.Fan.Flow != nil:
		run.Step, run.Item = r.Fan.Flow.NameOf(p.Index)
	default:
		run.PartCount = r.Fan.Count
	}

	return run
}

// StepName returns the name by which users address a part of a workflow, NAME or NAME/ITEM, or "".
func (r Run) StepName() string {
	if r.Item != nil {
		return fmt.Sprintf("%s/%d", r.Step, *r.Item)
	}
	return r.Step
}

// Numbers returns the numbers of the parts that this run executes.
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

// String returns the progress as text: "3 of 10 parts".
func (f Fan) String() string { return fmt.Sprintf("%d of %d parts", f.Ended+f.Kept, f.Count) }

// Failed returns the numbers of the parts that did not succeed.
func (f Fan) Failed() []int {
	var list []int
	for _, p := range f.Parts {
		if p.State != Succeeded {
			list = append(list, p.Index)
		}
	}

	return list
}

// Again returns the fan of a run that repeats only the failed parts, each from its checkpoint.
//
// A workflow is different, because its steps get numbers when they begin. Its fan keeps the state of its steps, and of its parts only how
// they ended. What a retry repeats is decided when it is requested.
func (f Fan) Again() *Fan {
	if f.Flow != nil {
		parts := make([]Part, len(f.Parts))
		for i, p := range f.Parts {
			parts[i] = Part{Index: p.Index, State: p.State}
		}
		f.Parts = parts

		return &f
	}

	left := f.Failed()
	again := Fan{Count: f.Count, Need: f.Need, Stagger: f.Stagger, Left: left, Only: left, Kept: f.Count - len(left)}
	if f.Nodes != nil {
		again.Nodes = make([]string, f.Count)
		for _, i := range left {
			again.Nodes[i] = f.Nodes[i]
		}
	}

	// Checkpoints that do not fit are dropped. Their parts start from the beginning.
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

// Without returns the fan without the part at an index of Left, because that part was dispatched or given up.
func (f Fan) Without(place int) *Fan {
	f.Checkpoints = maps.Clone(f.Checkpoints)
	delete(f.Checkpoints, f.Left[place])
	f.Left = slices.Delete(slices.Clone(f.Left), place, place+1)
	return &f
}

// UnderWay reports whether a run in the queue has begun its parts. Its record is in the queue, but it runs and
// does not wait.
func (w Waiting) UnderWay() bool { return w.Fan != nil && w.State == Running }

// partMark separates the number of a part from the id of its parent.
const partMark = "-p"

// PartID returns the id of a part.
func PartID(parent string, index int) string { return fmt.Sprintf("%s%s%04d", parent, partMark, index) }

// ParentOf splits the id of a part. is is false for the id of any other run. The two cannot be confused,
// because the random end of a manual run's id has four letters, not five.
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

// IsPart reports whether an id belongs to a part.
func IsPart(id string) bool {
	_, _, ok := ParentOf(id)
	return ok
}

// PartNumbers contains numbers of parts in ascending order. In JSON it is a string with ranges, such as "0-41,43". The
// parts of a run are dispatched in order, so its record stays short, although it is written with each of them.
type PartNumbers []int

// MarshalJSON implements json.Marshaler.
func (n PartNumbers) MarshalJSON() ([]byte, error) {
	text := []byte{'"'}
	for i := 0; i < len(n); {
		last := i
		for last+1 < len(n) && n[last+1] == n[last]+1 {
			last++
		}

		if i > 0 {
			text = append(text, ',')
		}

		text = strconv.AppendInt(text, int64(n[i]), 10)
		if last > i {
			text = strconv.AppendInt(append(text, '-'), int64(n[last]), 10)
		}

		i = last + 1
	}

	return append(text, '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler. It accepts numbers from 0 to MaxFlowParts-1.
func (n *PartNumbers) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}

	*n = nil
	if text == "" {
		return nil
	}

	for item := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(item, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}

		if err != nil || first < 0 || last < first || last >= MaxFlowParts || len(*n) > 0 && first <= (*n)[len(*n)-1] {
			return Invalid(CodeBadValue, "", "%s is not a list of ascending numbers and ranges from 0 to %d", Quote(text), MaxFlowParts-1)
		}

		for i := first; i <= last; i++ {
			*n = append(*n, i)
		}
	}

	return nil
}
