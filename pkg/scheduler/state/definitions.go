package state

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Timing is when tasks tick.
type Timing struct {
	Text     string             // as in record.EntryParts; the key in the cache
	Schedule *schedule.Schedule // without an anchor, which each task has for itself
	Jittered bool               // ticks are due later than their time
	Manual   bool               // the task has no ticks, only manual runs
	Often    uint8              // how many ticks there are in ten minutes; at most maxOften
	Period   int64              // ms from the end of a run to the next tick; 0: the schedule does not count from the end of runs
	End      int64              // the end of the schedule in Unix ms; 0: none
}

// Policy is everything else that similar tasks have in common.
type Policy struct {
	*PolicyFields         // shared by all policies that differ in their labels only
	Labels        *Labels // nil: none
}

// PolicyFields is a Policy without labels. The fields are those of task.Entry.
type PolicyFields struct {
	Text               string // as in record.EntryParts; the key in the cache
	Timeout, KillGrace task.Duration
	Overlap            string
	Rule               tickpolicy.OverlapRule // derived from Overlap, MaxActive and Queue
	Deadline           time.Duration          // start deadline, from when a tick is due; 0: none
	Grace              time.Duration          // how late a tick may be without the missed policy
	Missed             task.MissedPolicy
	Retry              task.Retry
	History            task.History
	Selector           task.Selector
	Target             task.Target
	MaxRuns            int64 // how many ticks may become runs; 0: any number
	PauseAfter         int   // consecutive failures after which the task is paused; 0: never
	TTL                int64 // ms from the last end to the deletion of a task without further ticks; 0: none
	Shadow             bool
	KillSignal         string
	Success            task.Success
	Accept             task.Accept
	Output             task.Output
	NamespaceRev       int64 // revision of the namespace's record that allowed the task; 0: not known
	Alerts             *task.Alerts
	Metrics            *bool // whether the task has metrics of its own; nil: as its namespace says
	Links              []task.Link
}

// Labels are the labels of tasks.
type Labels struct {
	Text string            // JSON, as in record.EntryParts; the key in the cache
	All  map[string]string // must not be changed
}

// newLabels parses the labels of an entry.
func newLabels(text string) (*Labels, error) {
	all, err := record.DecodeLabels([]byte(text))
	return &Labels{Text: text, All: all}, err
}

// JSON returns the labels as in record.EntryParts.
func (l *Labels) JSON() []byte {
	if l == nil {
		return nil
	}
	return []byte(l.Text)
}

// Map returns the labels, which must not be changed.
func (l *Labels) Map() map[string]string {
	if l == nil {
		return nil
	}
	return l.All
}

// newPolicyFields parses the policy part of an entry. It rejects what the API would have rejected, because the
// scheduler does not expect such values.
func newPolicyFields(text string) (*PolicyFields, error) {
	e, err := record.DecodePolicy(text)
	if err != nil {
		return nil, err
	}

	// Validate checks a whole entry. The action, and what depends on it, are not part of a policy.
	whole := e
	whole.Action, whole.Accept = task.Action{Noop: &task.Noop{}}, task.Accept{}
	whole.Output.Mail, whole.Output.MailWhen, whole.Output.MailFrom = nil, "", ""
	if len(e.Links) > 0 {
		whole.Schedule = task.Schedules{"@daily"} // fields that concern ticks are allowed with one, and it is not known here
	}

	if err := whole.Validate(); err != nil {
		return nil, err
	}

	selector, err := task.ParseSelector(e.Target.Selector)
	if err != nil {
		return nil, err
	}

	return &PolicyFields{
		Text: text, Timeout: e.Timeout, KillGrace: e.KillGrace, Overlap: e.Overlap, Grace: e.Missed.Grace.Std(), Missed: e.Missed,
		Retry: e.Retry, History: e.History, Selector: selector, Target: e.Target, Rule: tickpolicy.NewOverlapRule(e), Deadline: e.Deadline.Std(),
		MaxRuns: e.MaxRuns, PauseAfter: e.PauseAfter, TTL: e.TTL.Std().Milliseconds(),
		Shadow:     e.Shadow,
		KillSignal: e.KillSignal,
		Success:    e.Success,
		Accept:     e.Accept,
		Output:     e.Output,
		Alerts:     e.Alerts,
		Metrics:    e.Metrics,
		Links:      e.Links,

		NamespaceRev: e.NamespaceRev,
	}, nil
}

// NewTiming parses the timing part of an entry.
func NewTiming(text string) (*Timing, error) {
	e, err := record.DecodeTiming(text)
	if err != nil {
		return nil, err
	}

	s, err := schedule.Parse(e.Timing(), time.Time{})
	if err != nil {
		return nil, err
	}

	w := &Timing{Text: text, Schedule: s, Jittered: e.Jitter > 0, Manual: s.Manual(), Often: countTicks(s)}

	if period, ok := s.AfterCompletion(); ok {
		w.Period = period.Milliseconds()
	}

	if !e.End.IsZero() {
		w.End = e.End.UnixMilli()
	}

	return w, nil
}

// maxOften is the maximum of Timing.Often.
const maxOften = 60

// countedTicks is how many ticks countTicks visits. More of them would slow down the load of many different schedules.
const countedTicks = 12

// countTicks returns how many ticks a schedule has in ten minutes, at most maxOften. It counts from the first tick after a
// fixed instant, so that the result depends on the schedule only. More than a few ticks are taken to continue at the same
// rate. It returns 0 for a schedule that counts from the end of runs, because their length is not known.
func countTicks(s *schedule.Schedule) uint8 {
	if _, after := s.AfterCompletion(); after {
		return 0
	}

	const period = 10 * time.Minute
	first, ok := s.Next(time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)) // a Monday
	ticks := 0
	for tick := first; ok && tick.Sub(first) < period; tick, ok = s.Next(tick) {
		if ticks == countedTicks {
			return uint8(min(period*countedTicks/tick.Sub(first), maxOften))
		}
		ticks++
	}

	return uint8(ticks)
}

// LinkGeneration returns the generation of the task's link to a source, or 0 if it does not run after that task.
func (p *PolicyFields) LinkGeneration(source string) int64 {
	for _, l := range p.Links {
		if l.Task == source {
			return l.Generation
		}
	}

	return 0
}

// Sticky reports whether a task's runs stay on the node that had the last one.
func (p *PolicyFields) Sticky() bool { return p.Target.Strategy == task.StrategySticky }
