package task

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// FlowTimeout returns the time limit of a whole run of a workflow.
func FlowTimeout(timeout Duration) Duration { return cmp.Or(timeout, DefaultFlowTimeout) }

// Plan is the definition of a workflow with which a run began. The run keeps it, whatever happens to the task.
type Plan struct {
	Generation int64    `json:"generation"` // of the task
	Workflow   Workflow `json:"workflow"`

	Timeout Duration `json:"timeout,omitzero"` // of the whole run

	// What steps inherit from the task.
	KillGrace  Duration `json:"kill_grace"`
	KillSignal string   `json:"kill_signal,omitempty"`
	Retry      Retry    `json:"retry"`
	Success    Success  `json:"success,omitzero"`
	Selector   string   `json:"selector,omitempty"`
	Output     Output   `json:"output,omitzero"`
}

// NewPlan returns the plan of a run of t that begins now.
func NewPlan(t Task) *Plan {
	return &Plan{
		Generation: t.Generation, Workflow: *t.Action.Workflow, Timeout: t.Timeout, KillGrace: t.KillGrace, KillSignal: t.KillSignal, Retry: t.Retry, Success: t.Success,
		Selector: t.Target.Selector, Output: t.Output,
	}
}

// RunData is the record of an active or dead run of a workflow that its owner reads only when it starts a step: the plan and, in
// a run that retries another one, the results of the steps that it does not repeat.
type RunData struct {
	Plan    Plan                         `json:"plan"`
	Results map[string]map[string]string `json:"results,omitempty"` // by step and name
}

// Flow is the state of the steps of a run. It is part of the run's Fan: each step is one or several of its parts, which are
// numbered in the order in which the steps began.
type Flow struct {
	Generation int64      `json:"generation" doc:"The generation of the task whose steps the run has."`
	OnFailure  string     `json:"on_failure,omitempty" doc:"As on_failure of the workflow."`
	Timeout    Duration   `json:"timeout,omitzero" doc:"The timeout of the whole run; absent: 24h."`
	Steps      []FlowStep `json:"steps" doc:"The steps; each follows those that it needs."`
	Forced     bool       `json:"forced,omitempty" doc:"The run was cancelled with force: its cleanup ends, too."`
	Retries    string     `json:"retries,omitempty" doc:"The run whose steps this one repeats."`

	// FrozenMS is for how long the run was frozen before FrozenUntil. The rest follows from the record of freezes, which has only the
	// latest ones. The time of a pause never counts here, because it is part of PausedMS.
	FrozenMS    int64 `json:"frozen_ms,omitempty" doc:"For how many milliseconds it was frozen before frozen_until, apart from pauses."`
	FrozenUntil Time  `json:"frozen_until,omitzero" doc:"Up to when freezes are part of frozen_ms."`
}

// FrozenFor returns for how long a run that has begun at an instant was frozen until another one, apart from its ended pauses.
func (f *Flow) FrozenFor(freezes *Freezes, namespace string, begun, until time.Time) time.Duration {
	return time.Duration(f.FrozenMS)*time.Millisecond + freezes.Lasted(namespace, f.frozenSince(begun), until)
}

// CountFreezes adds to FrozenMS for how long a run that has begun at an instant was frozen since FrozenUntil, which becomes now.
func (f *Flow) CountFreezes(freezes *Freezes, namespace string, begun, now time.Time) {
	f.FrozenMS = f.FrozenFor(freezes, namespace, begun, now).Milliseconds()
	f.SkipFreezes(now)
}

// SkipFreezes makes freezes before now not count any more, unless they are part of FrozenMS.
func (f *Flow) SkipFreezes(now time.Time) {
	if now.After(f.FrozenUntil.Time) {
		f.FrozenUntil = At(now)
	}
}

// frozenSince returns from when on freezes are not part of FrozenMS.
func (f *Flow) frozenSince(begun time.Time) time.Time {
	if f.FrozenUntil.After(begun) {
		return f.FrozenUntil.Time
	}
	return begun
}

// FlowStep is the state of a step.
type FlowStep struct {
	Name  string      `json:"name" doc:"The name of the step."`
	Kind  string      `json:"kind" doc:"The kind of its action." enum:"process,http,noop"`
	Needs PartNumbers `json:"needs,omitempty" doc:"The numbers of the steps that it needs, from 0."`
	When  When        `json:"when,omitempty" doc:"As when of the step."`
	// Secret reports that its action reads a secret, for which its node must have a key.
	Secret      bool `json:"secret,omitempty" doc:"Its action reads a secret."`
	IsMap       bool `json:"map,omitempty" doc:"It has a map."`
	MaxParallel int  `json:"max_parallel,omitempty" doc:"How many items run at the same time."`

	// OpenedAt is when the step began: it got the part numbers from First to First+Count-1.
	OpenedAt Time `json:"opened_at,omitzero" doc:"When the step began. Absent: it has not."`
	First    int  `json:"first,omitempty" doc:"The number of its first part."`
	Count    int  `json:"count,omitempty" doc:"How many parts it has in this run."`
	// Items contains the indexes of the items that a retry repeats; nil means that part First+i has item i.
	Items PartNumbers `json:"items,omitempty" doc:"The items that this run has; a retry repeats only some."`
	// Kept is how many items, or 1 for a step without map, succeeded in the run that this one retries. A step without
	// items that are left is not opened again.
	Kept   int  `json:"kept,omitempty" doc:"How many of its items succeeded in the run that this one retries."`
	IsKept bool `json:"is_kept,omitempty" doc:"It succeeded in the run that this one retries, and is not repeated."`
	// NoResults reports that the data of the ended run had no room for results of the step that other steps read.
	NoResults bool `json:"no_results,omitempty" doc:"Its results were too large to be kept after the run: a retry repeats it."`

	// A step that could not begin has failed, for this reason.
	Reason  string `json:"reason,omitempty" doc:"Why it failed before any part of it began."`
	Message string `json:"message,omitempty" doc:"That reason as text."`
}

// NewFlow returns the state of a run that begins with a plan: no step has begun.
func NewFlow(p *Plan) *Flow {
	order, _ := p.Workflow.StepNames()
	f := &Flow{Generation: p.Generation, OnFailure: p.Workflow.OnFailure, Timeout: p.Timeout}

	for _, name := range order {
		s := p.Workflow.Steps[name]
		step := FlowStep{Name: name, Kind: s.Action().Kind(), Secret: s.Action().NeedsKey(), IsMap: s.Map != ""}
		if s.When != WhenSucceeded {
			step.When = s.When
		}
		if step.IsMap {
			step.MaxParallel = cmp.Or(s.MaxParallel, DefaultMaxParallel)
		}
		for _, need := range s.Needs {
			step.Needs = append(step.Needs, slices.Index(order, need))
		}
		slices.Sort(step.Needs)
		f.Steps = append(f.Steps, step)
	}

	return f
}

// IsOpened reports whether the step has begun.
func (s *FlowStep) IsOpened() bool { return !s.OpenedAt.IsZero() }

// ItemOf returns the index of the item of a part of the step.
func (s *FlowStep) ItemOf(part int) int {
	if s.Items != nil {
		return s.Items[part-s.First]
	}
	return part - s.First
}

// StepOf returns the step to which a part belongs, or nil.
func (f *Flow) StepOf(part int) *FlowStep {
	for i := range f.Steps {
		if s := &f.Steps[i]; s.IsOpened() && part >= s.First && part < s.First+s.Count {
			return s
		}
	}

	return nil
}

// NameOf returns the name of the step of a part, and the index of its item if the step has a map.
func (f *Flow) NameOf(part int) (step string, item *int) {
	s := f.StepOf(part)
	switch {
	case s == nil:
		return "", nil
	case s.IsMap:
		return s.Name, new(s.ItemOf(part))
	}

	return s.Name, nil
}

// ValidateFlow returns an error for a state of a workflow that no owner and no API has written, such as a record that was edited by
// hand. Of a valid one, every number of a step, a part or an item can be used as an index, and every loop over parts is short.
// A run without a workflow is valid.
func (f *Fan) ValidateFlow() error {
	if f == nil || f.Flow == nil {
		return nil
	}

	n := len(f.Flow.Steps)
	switch {
	case n < 1 || n > MaxSteps:
		return fmt.Errorf("%d steps are not between 1 and %d", n, MaxSteps)
	case f.Count < 0 || f.Count > MaxFlowParts:
		return fmt.Errorf("%d parts are not between 0 and %d", f.Count, MaxFlowParts)
	case !isAscendingBelow(f.Left, f.Count):
		return fmt.Errorf("the parts that are left are not ascending numbers below %d", f.Count)
	}

	for i := range f.Parts {
		if at := f.Parts[i].Index; at < 0 || at >= f.Count {
			return fmt.Errorf("part %d is not one of %d parts", at, f.Count)
		}
	}

	names, taken := make(map[string]bool, n), make([]bool, f.Count)
	for i := range f.Flow.Steps {
		s := &f.Flow.Steps[i]
		if s.Name == "" || names[s.Name] {
			return fmt.Errorf("the name %s of a step is empty or used twice", Quote(s.Name))
		}
		names[s.Name] = true

		if err := s.validate(i, f.Count); err != nil {
			return fmt.Errorf("step %s: %w", Quote(s.Name), err)
		}

		// A step that has not begun has no parts.
		for part := s.First; part < s.First+s.Count; part++ {
			if taken[part] {
				return fmt.Errorf("step %s: part %d belongs to another step, too", Quote(s.Name), part)
			}
			taken[part] = true
		}
	}

	return nil
}

// validate checks the state of the step with a number in a run that has a number of parts.
func (s *FlowStep) validate(number, parts int) error {
	switch {
	case !isAscendingBelow(s.Needs, number):
		return fmt.Errorf("it needs steps that do not come before it, or one of them twice")
	case s.When != "" && s.When != WhenSucceeded && s.When != WhenFailed && s.When != WhenAlways:
		return fmt.Errorf("%s is not known", Quote(string(s.When)))
	case (s.When == WhenFailed || s.When == WhenAlways) && len(s.Needs) == 0:
		return fmt.Errorf("with %s it must need other steps", s.When)
	case s.IsMap && s.MaxParallel < 1:
		return fmt.Errorf("%d items at the same time are not possible", s.MaxParallel)
	case s.Kept < 0 || s.Kept > MaxMapItems-max(len(s.Items), min(max(s.Count, 0), MaxMapItems)):
		return fmt.Errorf("%d kept items are not possible", s.Kept)
	case s.Kept > 0 && !s.IsMap && !s.IsKept:
		return fmt.Errorf("it has no items to keep")
	case s.Items != nil && !s.IsMap || !isAscendingBelow(s.Items, MaxMapItems):
		return fmt.Errorf("its items are not ascending numbers below %d, or it has no map", MaxMapItems)
	case !s.IsOpened() && (s.First != 0 || s.Count != 0):
		return fmt.Errorf("it has parts, but has not begun")
	case !s.IsOpened():
		return nil
	case s.IsKept || s.Reason != "":
		return fmt.Errorf("it has begun, although it was kept or could not begin")
	case s.First < 0 || s.First > parts || s.Count < 0 || s.Count > parts-s.First:
		return fmt.Errorf("its %d parts from %d on are not among the %d parts of the run", s.Count, s.First, parts)
	case s.Count > MaxMapItems || !s.IsMap && s.Count != 1:
		return fmt.Errorf("it cannot have %d parts", s.Count)
	case s.Items != nil && len(s.Items) != s.Count:
		return fmt.Errorf("it has %d parts for %d items", s.Count, len(s.Items))
	}

	return nil
}

// isAscendingBelow reports whether all numbers are from 0 to end-1, in ascending order.
func isAscendingBelow(list []int, end int) bool {
	last := -1
	for _, n := range list {
		if n <= last || n >= end {
			return false
		}
		last = n
	}

	return true
}

// CutsPart returns why a part of a run must end before its own end, or "".
func (f *Fan) CutsPart(part int) string {
	if f.Cancel == "" || f.Flow == nil || f.Flow.Forced {
		return f.Cancel
	}
	if s := f.Flow.StepOf(part); s != nil && s.When == WhenAlways {
		return ""
	}

	return f.Cancel
}
