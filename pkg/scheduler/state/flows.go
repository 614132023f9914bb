package state

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// FlowPlan is the plan of runs of a workflow, with what its owner needs to start steps. It does not change.
type FlowPlan struct {
	task.Plan
	Bytes int // about the size of its record
	steps map[string]*PlannedStep
}

// PlannedStep is a step with what it inherits from the task.
type PlannedStep struct {
	task.Step
	Name       string
	ActionText string // its action as JSON
	Secret     bool
	// SelectorText is the selector of its nodes, and Selector the same, parsed.
	SelectorText string
	Selector     task.Selector
	KillGrace    task.Duration
	KillSignal   string
	Retry        task.Retry
	Success      task.Success
}

// NewFlowPlan prepares a plan. It returns an error for a plan that no API would have written.
func NewFlowPlan(p task.Plan) (*FlowPlan, error) {
	order, cycle := p.Workflow.StepNames()
	if len(order) == 0 || cycle != nil {
		return nil, fmt.Errorf("%w: a workflow without steps, or with a cycle", task.ErrInvalid)
	}

	f := &FlowPlan{Plan: p, Bytes: len(record.Encode(p)), steps: make(map[string]*PlannedStep, len(order))}
	for _, name := range order {
		s := p.Workflow.Steps[name]
		step := &PlannedStep{
			Step: s, Name: name, ActionText: record.Encode(s.Action()), Secret: s.Action().NeedsKey(), SelectorText: p.Selector,
			KillGrace: p.KillGrace, KillSignal: p.KillSignal, Retry: p.Retry, Success: p.Success,
		}

		if s.Target != nil {
			step.SelectorText = s.Target.Selector
		}
		if s.KillGrace != nil {
			step.KillGrace = *s.KillGrace
		}
		if s.KillSignal != "" {
			step.KillSignal = s.KillSignal
		}
		if s.Retry != nil {
			step.Retry = *s.Retry
		}
		if s.Success != nil {
			step.Success = *s.Success
		}

		// Cleanup must come to an end. Requests have neither signals nor rules of success of their own.
		if s.When == task.WhenAlways {
			step.Retry.Attempts = min(step.Retry.Attempts, task.MaxCleanupAttempts)
		}
		if s.HTTP != nil {
			step.KillSignal, step.Success = "", task.Success{}
		}
		// They have no exit codes either: with those of the task, they would never be retried.
		if s.Process == nil {
			step.Retry.ExitCodes = nil
		}

		var err error
		if step.Selector, err = task.ParseSelector(step.SelectorText); err != nil {
			return nil, err
		}

		f.steps[name] = step
	}

	return f, nil
}

// Step returns a step by its name, or nil if the plan has none of that name.
func (f *FlowPlan) Step(name string) *PlannedStep { return f.steps[name] }

// Fits reports whether the plan has all steps of the record of a run.
func (f *FlowPlan) Fits(flow *task.Flow) bool {
	return f.Generation == flow.Generation && !slices.ContainsFunc(flow.Steps, func(s task.FlowStep) bool { return f.steps[s.Name] == nil })
}

// Pool returns whose slots an attempt of the step takes.
func (s *PlannedStep) Pool() placement.Pool { return poolFor(s.HTTP != nil) }

// size is about how much memory the plan takes: steps and their actions both in parsed form and as text.
func (f *FlowPlan) size() int { return 4*f.Bytes + 1024*len(f.steps) }

// FlowMemory is what an owner knows about a run of a workflow beside its record and its plan. It is lost when the owner changes.
type FlowMemory struct {
	// Kept has the results of steps that a retry does not repeat. It is known if DataRead is set.
	Kept     map[string]map[string]string
	DataRead bool
	// NoData is why the data of the run cannot be read. Such a run cannot go on.
	NoData error
}

// FlowResults returns the results of the steps of a run that have succeeded.
func (t *Task) FlowResults(q *Waiting) workflow.Results {
	return func(name string) map[string]string {
		i := slices.IndexFunc(q.Fan.Flow.Steps, func(s task.FlowStep) bool { return s.Name == name })
		if i < 0 || t.Activity == nil {
			return nil
		}

		s := &q.Fan.Flow.Steps[i]
		switch {
		case s.IsKept:
			return q.Parts.Flow.Kept[name]
		case !s.IsOpened() || s.IsMap:
			return nil
		}

		if end, ok := t.Activity.Returned[task.PartID(q.ID, s.First)]; ok && end.State == task.Succeeded {
			return end.Results
		}

		return nil
	}
}

// NamedResults returns the results of a run to which steps of its plan refer, for a retry of the run: those of steps that have
// succeeded.
func (t *Task) NamedResults(q *Waiting, p *FlowPlan) map[string]map[string]string {
	results, named := t.FlowResults(q), map[string]map[string]string{}
	keep := func(step, name string) {
		value, ok := results(step)[name]
		if !ok {
			return
		}
		if named[step] == nil {
			named[step] = map[string]string{}
		}
		named[step][name] = value
	}

	for _, s := range p.steps {
		if step, name, ok := s.Map.Result(); ok {
			keep(step, name)
		}
		for _, ref := range s.Refs() {
			if step, name, ok := task.ParseStepRef(ref); ok {
				keep(step, name)
			}
		}
	}

	return named
}

// FitRunData encodes the data of a run. If they need more than limit bytes, it leaves out results, those of the largest step first,
// and returns of which steps. It returns "" if even the plan needs more.
func FitRunData(d task.RunData, limit int) (data string, without []string) {
	data = record.Encode(d)
	if len(data) <= limit {
		return data, nil
	}

	sizes := make(map[string]int, len(d.Results))
	for name, results := range d.Results {
		sizes[name] = len(record.Encode(results))
	}
	largest := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(sizes[b]-sizes[a], strings.Compare(a, b))
	})

	// Each step takes at least as much room in the record as its results, so their sum is known without encoding all of it again.
	d.Results = maps.Clone(d.Results)
	for size := len(data); size > limit && len(largest) > 0; largest = largest[1:] {
		size -= sizes[largest[0]]
		delete(d.Results, largest[0])
		without = append(without, largest[0])
	}

	data = record.Encode(d)
	if len(data) > limit {
		return "", without
	}

	return data, without
}

// WithoutResults returns the state of a run in which some steps are marked as those whose results are not kept.
func WithoutResults(f *task.Fan, steps []string) *task.Fan {
	if len(steps) == 0 {
		return f
	}

	f = CopyFlow(*f)
	for i := range f.Flow.Steps {
		s := &f.Flow.Steps[i]
		s.NoResults = slices.Contains(steps, s.Name)
	}

	return f
}

// FlowStates returns the states of the steps of a run. f is the state of its parts, which may be newer than that of its record.
func (t *Task) FlowStates(q *Waiting, f *task.Fan) workflow.Run {
	ends := make([]task.State, f.Count)
	if t.Activity != nil {
		for _, r := range t.Activity.Returned {
			if r.Parent == q.ID && r.Index < len(ends) {
				ends[r.Index] = r.State
			}
		}
	}

	return workflow.States(f, func(part int) (task.State, bool) {
		if part >= len(ends) {
			return "", false
		}
		return ends[part], ends[part] != ""
	})
}

// OpenStep begins a step: it gives the step the numbers of its parts. items is how many items its map has; 1 without map. It
// changes f, whose Flow must not be shared.
//
// A map cannot have the numbers that the steps need which have not begun: each of these keeps one. So cleanup can always begin.
func OpenStep(f *task.Fan, step, items int, now time.Time) {
	s := &f.Flow.Steps[step]
	if s.Items != nil {
		items = len(s.Items)
	}

	later := 0
	for i := range f.Flow.Steps {
		if other := &f.Flow.Steps[i]; i != step && !other.IsOpened() && !other.IsKept && other.Reason == "" {
			later++
		}
	}

	if s.IsMap && f.Count+items+later > task.MaxFlowParts {
		s.Reason, s.Message = task.ReasonValues, fmt.Sprintf("it has %d items, but a run has at most %d parts: %d have begun before it, and %d other steps need one", items, task.MaxFlowParts, f.Count, later)
		return
	}

	s.OpenedAt, s.First, s.Count = task.At(now), f.Count, items
	f.Left = slices.Clone(f.Left)
	for range items {
		f.Left = append(f.Left, f.Count)
		f.Count++
	}
}

// CopyFlow returns a copy of the state of a run whose steps can be changed.
func CopyFlow(f task.Fan) *task.Fan {
	flow := *f.Flow
	flow.Steps = slices.Clone(flow.Steps)
	f.Flow = &flow

	return &f
}

// StepRun returns the run record of a part of a workflow before its first attempt. f is the state of the parts, in which the step of
// the part has begun. owner is the node that owns the shard.
func StepRun(q *Waiting, f *task.Fan, part int, owner string, now time.Time) task.Run {
	w := *q
	w.Fan = f
	run := PartRun(&w, part, owner, now)
	run.PartCount = 0 // their number is not known before the last step has begun

	run.Step, run.Item = f.Flow.NameOf(part)

	return run
}

// ConcludeFlow returns the final record of a run of a workflow, whose steps are in the given states.
func ConcludeFlow(t *Task, q *Waiting, steps workflow.Run, now time.Time) task.Run {
	end, f := q.Run, *q.Fan
	f.Parts, f.Ended, f.Succeeded, f.Checkpoints, f.Cancel = make([]task.Part, 0, f.Count), 0, 0, nil, steps.Cancel

	for _, r := range t.Activity.Returned {
		if r.Parent != q.ID {
			continue
		}

		f.Parts = append(f.Parts, r.Part)
		if r.State == task.Succeeded {
			f.Succeeded++
		}
		if at := r.StartedAt; !at.IsZero() && (end.StartedAt.IsZero() || at.Before(end.StartedAt.Time)) {
			end.StartedAt = at
		}
	}

	// Parts that did not begin stay in Left, so that the states of the steps follow from this record, too.
	f.Ended = len(f.Parts)
	slices.SortFunc(f.Parts, func(a, b task.Part) int { return a.Index - b.Index })
	failure := describeFailedStep(&f, steps)
	end.Usage = f.Usage()
	f.Fit(RoomForPartDetails)
	end.PauseState = task.PauseState{PausedMS: end.PausedFor(now).Milliseconds()}
	end.Fan, end.EndedAt, end.NotBefore, end.Message = &f, task.At(now), task.Time{}, ""
	if !end.StartedAt.IsZero() {
		end.LatenessMS = new(max(0, end.StartedAt.Sub(q.Due()).Milliseconds()))
	}

	switch {
	case steps.Cancel == task.ReasonBadRecord:
		end.State, end.Reason, end.CancelledBy = task.Failed, task.ReasonBadRecord, nil
		end.Message = "the steps of the run cannot be read"
		if err := q.Parts.Flow.NoData; err != nil {
			end.Message += ": " + err.Error()
		}
	case steps.Cancel == task.ReasonRestored && (steps.Cut || slices.ContainsFunc(f.Parts, func(p task.Part) bool { return p.Reason == task.ReasonRestored })):
		end.State, end.Reason, end.CancelledBy = task.Lost, task.ReasonRestored, nil
	case steps.Cut && steps.Cancel == task.ReasonTimeout:
		end.State, end.Reason, end.CancelledBy, end.Message = task.TimedOut, task.ReasonTimeout, nil, failure
	case steps.Cut:
		end.State, end.Reason, end.Message = task.Cancelled, steps.Cancel, failure
		end.CancelledBy = q.CancelledBy
	case steps.FailedStep >= 0:
		end.State, end.Reason, end.CancelledBy, end.Message = task.Failed, task.ReasonSteps, nil, failure
	default:
		end.State, end.Reason, end.CancelledBy = task.Succeeded, "", nil
	}

	return end
}

// describeFailedStep returns which step has failed first and why, for people, or "".
func describeFailedStep(f *task.Fan, steps workflow.Run) string {
	if steps.FailedStep < 0 {
		return ""
	}

	s := &f.Flow.Steps[steps.FailedStep]
	if s.Reason != "" {
		return "step " + s.Name + ": " + s.Message
	}

	for i := range f.Parts {
		p := &f.Parts[i]
		if f.Flow.StepOf(p.Index) != s || p.State == task.Succeeded || p.State == task.Cancelled {
			continue
		}

		name := s.Name
		if s.IsMap {
			name += "/" + strconv.Itoa(s.ItemOf(p.Index))
		}

		return "step " + name + ": " + describeEnd(p)
	}

	return "step " + s.Name + " failed"
}

// describeEnd returns why a part did not succeed, for people.
func describeEnd(p *task.Part) string {
	switch {
	case p.Message != "":
		return p.Message
	case p.Reason == task.ReasonExit && p.ExitCode != nil:
		return "exit code " + strconv.Itoa(*p.ExitCode)
	case p.Signal != "":
		return "signal " + p.Signal
	}

	if r, ok := task.ReasonOf(p.Reason); ok {
		return r.Means
	}

	return string(p.State)
}

// errOtherPlan is the error for data of a run that do not belong to its record.
var errOtherPlan = errors.New("its plan has other steps than its record")

// ReadData notes the data of a run that were read, or why they could not be. It returns the plan, or nil.
func (q *Waiting) ReadData(d *task.RunData, err error) *FlowPlan {
	var p *FlowPlan
	if err == nil {
		p, err = NewFlowPlan(d.Plan)
	}
	if err == nil && !p.Fits(q.Fan.Flow) {
		err = errOtherPlan
	}

	q.Parts.Flow = FlowMemory{NoData: err}
	if err != nil {
		return nil
	}
	q.Parts.Flow.Kept, q.Parts.Flow.DataRead = maps.Clone(d.Results), true

	return p
}
