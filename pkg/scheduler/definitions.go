package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Most tasks are alike in most respects. What they have alike is kept once, for
// all shards, under its text, and goes when the last task of its kind does.

// timing is when tasks tick.
type timing struct {
	text     string // as in record.EntryParts
	schedule *schedule.Schedule
	jittered bool
	manual   bool
	period   int64 // ms from the end of a run to the next tick; 0: the schedule does not count from there
	end      int64 // ms; 0: none
}

// policySet is all else that tasks of a kind have alike.
type policySet struct {
	text               string
	timeout, killGrace task.Duration
	overlap            string
	rule               tickpolicy.OverlapRule
	deadline           time.Duration // for the start of a tick's run; 0: none
	grace              time.Duration
	missed             task.MissedPolicy
	retry              task.Retry
	history            task.History
	selector           task.Selector
	target             task.Target
	maxRuns            int64
	pauseAfter         int   // runs that fail in a row
	ttl                int64 // ms
	shadow             bool
	killSignal         string
	success            task.Success
	output             task.Output
}

// newPolicySet reads what an entry says. It refuses what the API would have refused:
// nothing behind it expects such values.
func newPolicySet(text string) (*policySet, error) {
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
	return &policySet{
		text: text, timeout: e.Timeout, killGrace: e.KillGrace, overlap: e.Overlap, grace: e.Missed.Grace.Std(), missed: e.Missed,
		retry: e.Retry, history: e.History, selector: selector, target: e.Target, rule: tickpolicy.NewOverlapRule(e), deadline: e.Deadline.Std(),
		maxRuns: e.MaxRuns, pauseAfter: e.PauseAfter, ttl: e.TTL.Std().Milliseconds(),
		shadow:     e.Shadow,
		killSignal: e.KillSignal,
		success:    e.Success,
		output:     e.Output,
	}, nil
}

func newTiming(text string) (*timing, error) {
	e, err := record.DecodeTiming(text)
	if err != nil {
		return nil, err
	}
	s, err := schedule.Parse(e.Timing(), time.Time{})
	if err != nil {
		return nil, err
	}
	w := &timing{text: text, schedule: s, jittered: e.Jitter > 0, manual: s.Manual()}
	if period, ok := s.AfterCompletion(); ok {
		w.period = period.Milliseconds()
	}
	if !e.End.IsZero() {
		w.end = e.End.UnixMilli()
	}
	return w, nil
}
