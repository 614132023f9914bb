// Package definition has what the entries of tasks say about when tasks tick (Timing) and how their
// runs go (Policy), parsed and checked. Most tasks are alike in most respects: what they have alike is
// kept once for all shards of a node (Cache), under its text, and goes when the last task of its kind
// does. Neither a Timing nor a Policy changes after it was made.
package definition

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Timing is when tasks tick.
type Timing struct {
	Text     string // as in record.EntryParts
	Schedule *schedule.Schedule
	Jittered bool
	Manual   bool
	Period   int64 // ms from the end of a run to the next tick; 0: the schedule does not count from there
	End      int64 // ms; 0: none
}

// Policy is all else that tasks of a kind have alike.
type Policy struct {
	Text               string
	Timeout, KillGrace task.Duration
	Overlap            string
	Rule               tickpolicy.OverlapRule
	Deadline           time.Duration // for the start of a tick's run; 0: none
	Grace              time.Duration
	Missed             task.MissedPolicy
	Retry              task.Retry
	History            task.History
	Selector           task.Selector
	Target             task.Target
	MaxRuns            int64
	PauseAfter         int   // runs that fail in a row
	TTL                int64 // ms
	Shadow             bool
	KillSignal         string
	Success            task.Success
	Output             task.Output
}

// NewPolicy reads what an entry says about how runs go. It refuses what the API would have refused:
// nothing behind it expects such values.
func NewPolicy(text string) (*Policy, error) {
	e, err := record.DecodePolicy(text)
	if err != nil {
		return nil, err
	}

	spec := task.Spec{
		Name: "name", Namespace: "namespace", Action: task.Action{Noop: &task.Noop{}}, Timeout: e.Timeout, KillGrace: e.KillGrace,
		MaxRuns: e.MaxRuns, TTL: e.TTL, Overlap: e.Overlap, Queue: e.Queue, MaxActive: e.MaxActive, Missed: e.Missed, Deadline: e.Deadline,
		PauseAfter: e.PauseAfter, Retry: e.Retry, Target: e.Target, History: e.History,
		KillSignal: e.KillSignal,
		Success:    e.Success,
		Output:     e.Output,
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}

	selector, err := task.ParseSelector(e.Target.Selector)
	if err != nil {
		return nil, err
	}

	return &Policy{
		Text: text, Timeout: e.Timeout, KillGrace: e.KillGrace, Overlap: e.Overlap, Grace: e.Missed.Grace.Std(), Missed: e.Missed,
		Retry: e.Retry, History: e.History, Selector: selector, Target: e.Target, Rule: tickpolicy.NewOverlapRule(e), Deadline: e.Deadline.Std(),
		MaxRuns: e.MaxRuns, PauseAfter: e.PauseAfter, TTL: e.TTL.Std().Milliseconds(),
		Shadow:     e.Shadow,
		KillSignal: e.KillSignal,
		Success:    e.Success,
		Output:     e.Output,
	}, nil
}

// NewTiming reads what an entry says about when its task ticks.
func NewTiming(text string) (*Timing, error) {
	e, err := record.DecodeTiming(text)
	if err != nil {
		return nil, err
	}

	s, err := schedule.Parse(e.Timing(), time.Time{})
	if err != nil {
		return nil, err
	}

	w := &Timing{Text: text, Schedule: s, Jittered: e.Jitter > 0, Manual: s.Manual()}

	if period, ok := s.AfterCompletion(); ok {
		w.Period = period.Milliseconds()
	}

	if !e.End.IsZero() {
		w.End = e.End.UnixMilli()
	}

	return w, nil
}

// Sticky reports whether a task's runs stay on the node that had the last one.
func (p *Policy) Sticky() bool { return p.Target.Strategy == task.StrategySticky }
