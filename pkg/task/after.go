package task

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// TriggerAfter is the trigger of a run that the end of another task's run has caused.
const TriggerAfter = "after"

// Limits of dependents.
const (
	MaxSources      = 16   // the sources of a task
	MaxDependents   = 100  // the dependents of a task
	MaxChain        = 100  // the tasks of the longest chain of dependents
	MaxTriggerQueue = 1000 // queue.limit of a task with sources

	DefaultTriggerQueue = 100 // queue.limit of a task with sources that does not set it
)

// Source is a task whose ended runs start another task, its dependent. In JSON, the name of the task is enough.
type Source struct {
	Task    string   `json:"task" doc:"The name of the source, a task of the same namespace." maxLength:"128"`
	When    When     `json:"when,omitempty" doc:"Which ends of the source count: succeeded; failed, which also means timed_out and lost; or ended, which is any end, also cancelled." absent:"succeeded" enum:"succeeded,failed,ended"`
	Results []string `json:"results,omitempty" doc:"The results of the source's run that the dependent gets." absent:"none" maxItems:"32" uniqueItems:"true"`
}

// When says which ends of a source start the dependent. Empty means WhenSucceeded.
type When string

// The values of When.
const (
	WhenSucceeded When = "succeeded"
	WhenFailed    When = "failed" // failed, timed out or lost
	WhenEnded     When = "ended"  // any end, also cancelled
)

// Matches reports whether a run that has ended in a state starts the dependent. Ticks that did not run never do.
func (w When) Matches(s State) bool {
	switch w {
	case WhenFailed:
		return s == Failed || s == TimedOut || s == Lost
	case WhenEnded:
		return s == Succeeded || s == Failed || s == TimedOut || s == Lost || s == Cancelled
	}

	return s == Succeeded
}

// MarshalJSON encodes a source of which only the name is set as a string.
func (s Source) MarshalJSON() ([]byte, error) {
	if s.When == "" && len(s.Results) == 0 {
		return json.Marshal(s.Task)
	}

	type object Source

	return json.Marshal(object(s))
}

// UnmarshalJSON decodes the name of a task, or an object.
func (s *Source) UnmarshalJSON(b []byte) error {
	var name string
	if json.Unmarshal(b, &name) == nil {
		*s = Source{Task: name}
		return nil
	}

	if b = bytes.TrimSpace(b); len(b) == 0 || b[0] != '{' {
		return Invalid(CodeBadValue, "after", "must be the name of a task, or an object with the field task")
	}

	type object Source
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}

	*s = Source(o)
	if s.When == WhenSucceeded { // the default is not stored
		s.When = ""
	}

	return nil
}

// String returns the source as its user writes it on the command line: NAME or NAME:WHEN.
func (s Source) String() string {
	if s.When == "" {
		return s.Task
	}
	return s.Task + ":" + string(s.When)
}

// Sources are the sources of a task. In JSON, a single one needs no list.
type Sources []Source

// MarshalJSON encodes a single source without a list.
func (s Sources) MarshalJSON() ([]byte, error) {
	if len(s) == 1 {
		return json.Marshal(s[0])
	}
	return json.Marshal([]Source(s))
}

// UnmarshalJSON decodes a source or a list of sources. null changes nothing.
func (s *Sources) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if string(b) == "null" {
		return nil
	}

	if len(b) > 0 && b[0] == '[' {
		var list []Source
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}

		*s = list

		return nil
	}

	var one Source
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}

	*s = Sources{one}

	return nil
}

// Find returns the source with a name; nil: there is none.
func (s Sources) Find(name string) *Source {
	i := slices.IndexFunc(s, func(one Source) bool { return one.Task == name })
	if i < 0 {
		return nil
	}

	return &s[i]
}

// Equal reports whether two tasks have the same sources, in any order.
func (s Sources) Equal(t Sources) bool {
	if len(s) != len(t) {
		return false
	}

	for _, one := range s {
		if other := t.Find(one.Task); other == nil || !one.Equal(*other) {
			return false
		}
	}

	return true
}

// Equal reports whether two sources are the same, with the results in any order.
func (s Source) Equal(t Source) bool {
	return s.Task == t.Task && s.When == t.When && slices.Equal(slices.Sorted(slices.Values(s.Results)), slices.Sorted(slices.Values(t.Results)))
}

// JoinAny starts a run for each end of any source. It is the only value of Spec.Join.
const JoinAny = "any"

// Link is what the entry of a task says about one of its sources. Generation is that of the task when the source, its When or
// its Results were last written: triggers of an earlier link do not start runs.
type Link struct {
	Task       string `json:"task"`
	Generation int64  `json:"generation"`
}

// Link returns the link to a source; nil: the entry has none.
func (e Entry) Link(source string) *Link {
	i := slices.IndexFunc(e.Links, func(l Link) bool { return l.Task == source })
	if i < 0 {
		return nil
	}

	return &e.Links[i]
}

// LinksOf returns the links of a task that replaces former, which has the links old. Only the links of new or changed sources
// get the generation of the task.
func LinksOf(t Task, former Sources, old []Link) []Link {
	var links []Link
	for _, s := range t.After {
		link := Link{Task: s.Task, Generation: t.Generation}
		at := slices.IndexFunc(old, func(l Link) bool { return l.Task == s.Task })
		if was := former.Find(s.Task); was != nil && was.Equal(s) && at >= 0 {
			link = old[at]
		}
		links = append(links, link)
	}

	return links
}

// Causation is set in a run that other runs have caused, and in a manual run for a period. A run that is retried or repeated
// keeps it.
type Causation struct {
	Causes []Cause `json:"causes,omitempty" doc:"The ended runs that have started this run."`
	Period Time    `json:"period,omitzero" doc:"The time for which the run works, if that is not its tick: the period of its cause, or what the request gave."`
}

// Cause is an ended run that has started a run of a dependent.
type Cause struct {
	Task    string            `json:"task" doc:"The task of that run, in the same namespace."`
	Run     string            `json:"run" doc:"The id of that run."`
	State   State             `json:"state" doc:"How it ended."`
	Results map[string]string `json:"results,omitempty" doc:"Its results that the dependent asks for."`
}

// Trigger is a trigger of a dependent: an end of a run of its source that waits for its outcome. It is deleted in the
// transaction that decides it.
type Trigger struct {
	// UID and Generation are those of the link when the trigger was sent. If the entry of the dependent differs, the trigger is
	// void, or its link was changed since.
	UID        string `json:"uid" doc:"The uid of the dependent."`
	Generation int64  `json:"generation" doc:"The generation of the dependent that has made the link."`
	Cause      Cause  `json:"cause" doc:"The run that has ended."`
	Period     Time   `json:"period,omitzero" doc:"The period of that run. Absent: it has none."`
	At         Time   `json:"at" doc:"When the owner of the source sent the trigger."`
	// IsLost is set for the end of a run that was in the backup of a restore: the lost history may have sent this trigger before.
	IsLost bool `json:"is_lost,omitempty" doc:"The run had ended before the backup from which the cluster was restored. The dependent may have run for it."`
}

// EffectivePeriod returns the period of a run: that of its cause or its request, otherwise its tick. It is zero for a manual
// run without a period.
func (r Run) EffectivePeriod() Time {
	switch {
	case !r.Period.IsZero():
		return r.Period
	case r.HasTick():
		return r.ScheduledTime
	case r.Trigger == TriggerPart:
		// A part has the time of its run, and does not say what started that.
		if parent, _, ok := ParentOf(r.ID); ok && TriggerOfRunID(parent) == TriggerSchedule {
			return r.ScheduledTime
		}
	}

	return Time{}
}

// CausationValue returns the value of a reference in a template to the period of a run, or to the ended run that has started it.
// It returns false if the run has no such value.
func (r Run) CausationValue(ref string) (value string, ok bool) {
	if ref == "run.period" {
		period := r.EffectivePeriod()
		text, err := period.MarshalText()

		return string(text), err == nil && !period.IsZero()
	}

	if len(r.Causes) != 1 {
		return "", false
	}

	c := &r.Causes[0]
	switch ref {
	case "cause.task":
		return c.Task, true
	case "cause.run":
		return c.Run, true
	case "cause.state":
		return string(c.State), true
	}

	name, ok := strings.CutPrefix(ref, CauseResultPrefix)
	if ok {
		value, ok = c.Results[name]
	}

	return value, ok
}

// causeLetters is the number of letters at the end of the id of a triggered run. Those of a manual run are fewer.
const causeLetters = 8

// TriggeredRunID returns the id of a run that a trigger has started: the time of the decision, and 8 letters of the hash of
// its cause. The ids of two runs of a task differ in their time.
func TriggeredRunID(at time.Time, uid string, c Cause) string {
	sum := sha256.Sum256([]byte(c.Task + "~" + c.Run))
	return RunID(at, uid) + "-" + uidEncoding.EncodeToString(sum[:])[:causeLetters]
}

// validateSources checks after, join and the fields that depend on them.
func (s *Spec) validateSources() error {
	if len(s.After) == 0 {
		if s.Join != "" {
			return Invalid(CodeBadValue, "join", "requires after; omit this field")
		}
		return nil
	}

	for i, source := range s.After {
		field := fmt.Sprintf("after[%d]", i)

		if err := CheckName(field, source.Task); err != nil {
			return err
		}
		if source.Task == s.Name {
			return Invalid(CodeBadValue, field, "%s is the task itself; to run again after each run, use the schedule @every 10m after completion", Quote(source.Task))
		}
		if slices.ContainsFunc(s.After[:i], func(o Source) bool { return o.Task == source.Task }) {
			return Invalid(CodeBadValue, field, "%s is given twice", Quote(source.Task))
		}
		if !slices.Contains([]When{"", WhenSucceeded, WhenFailed, WhenEnded}, source.When) {
			return NoneOf(CodeBadValue, field+".when", string(source.When), string(WhenSucceeded), string(WhenFailed), string(WhenEnded))
		}
		for k, name := range source.Results {
			if name == "" || len(name) > MaxResultBytes || slices.Contains(source.Results[:k], name) {
				return Invalid(CodeBadValue, fmt.Sprintf("%s.results[%d]", field, k), "%s is empty or given twice", Quote(name))
			}
		}
	}

	if len(s.After) > 1 && s.Join == "" {
		return Invalid(CodeRequired, "join", "is required with several sources: %s starts a run for each end of any of them", JoinAny)
	}

	return s.validateTriggered()
}

// validateTriggered checks the fields that concern ticks, in a task with sources.
func (s *Spec) validateTriggered() error {
	if s.Receiver != nil {
		return Invalid(CodeBadValue, "after", "cannot be combined with receiver, which is started for each message")
	}
	if s.Schedule.AtBoot() {
		return Invalid(CodeBadValue, "after", "cannot be combined with the schedule %s", BootSchedule)
	}
	if s.Schedule.HasTicks() {
		return nil
	}

	usual := Defaults()
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"missed", s.Missed != usual.Missed}, {"jitter", s.Jitter != 0}, {"start", !s.Start.IsZero()}, {"end", !s.End.IsZero()},
		{"max_runs", s.MaxRuns != 0},
	} {
		if f.set {
			return Invalid(CodeBadValue, f.field, "applies to ticks, but the task has no schedule and runs only after other tasks; omit this field")
		}
	}

	return nil
}

// dependentDefaults returns a Spec with all defaults of a task with sources. Without a schedule, what starts it waits for its
// active run, because an end that was skipped does not come again.
func dependentDefaults(s Spec) Spec {
	d := Defaults()
	if s.Schedule == nil || !s.Schedule.HasTicks() {
		d.Schedule = Schedules{ManualSchedule}
		d.Overlap = OverlapQueue
	}

	return d
}

// completeDependent sets the default limit of waiting triggers.
func (s *Spec) completeDependent() {
	if len(s.After) > 0 && s.Overlap == OverlapQueue && s.Queue.Limit == 0 {
		s.Queue.Limit = DefaultTriggerQueue
	}
}

// requireOverlap refuses a task with a schedule and sources that does not say what happens if both want to run.
func (s *Spec) requireOverlap(b []byte) error {
	if !s.Schedule.HasTicks() {
		return nil
	}

	var said struct{ Overlap *string }
	if json.Unmarshal(b, &said) == nil && said.Overlap == nil {
		return Invalid(CodeRequired, "overlap", "is required for a task with a schedule and after: %s, %s, %s or %s", OverlapQueue, OverlapSkip, OverlapReplace, OverlapAllow)
	}

	return nil
}

// validateCauseRefs refuses references to the run of a source that no run of the task could resolve.
func (s *Spec) validateCauseRefs() error {
	if s.Action.HTTP == nil {
		return nil
	}
	return s.checkCauseRefs(s.Action.HTTP.refs())
}

// checkCauseRefs is validateCauseRefs for the references of one action.
func (s *Spec) checkCauseRefs(list []fieldRef) error {
	for _, r := range list {
		if !strings.HasPrefix(r.ref, CauseRefPrefix) {
			continue
		}

		if len(s.After) == 0 {
			return Invalid(CodeBadValue, r.field, "%s has a value only in a task that runs after another one: set after", Quote("${"+r.ref+"}"))
		}

		name, ok := strings.CutPrefix(r.ref, CauseResultPrefix)
		switch {
		case !ok:
		case len(s.After) > 1:
			return Invalid(CodeBadValue, r.field, "%s requires exactly one source in after, because each source has results of its own", Quote("${"+r.ref+"}"))
		case !slices.Contains(s.After[0].Results, name):
			return Invalid(CodeBadValue, r.field, "%s is not passed on: add %s to results of the source in after", Quote("${"+r.ref+"}"), name)
		}
	}

	return nil
}

// sourceType is the type of a source, whose fields are listed although its name alone is a valid form.
var (
	sourceType  = reflect.TypeFor[Source]()
	sourcesType = reflect.TypeFor[Sources]()
)

// Names returns the names of the sources.
func (s Sources) Names() []string {
	names := make([]string, len(s))
	for i, one := range s {
		names[i] = one.Task
	}

	return names
}

// ParseSource parses NAME or NAME:WHEN.
func ParseSource(text string) Source {
	name, when, _ := strings.Cut(text, ":")
	s := Source{Task: name, When: When(when)}
	if s.When == WhenSucceeded {
		s.When = ""
	}

	return s
}

// Describe returns the condition under which the source starts its dependent, as a clause: etl has succeeded.
func (s Source) Describe() string {
	switch s.When {
	case WhenFailed:
		return s.Task + " has failed"
	case WhenEnded:
		return s.Task + " has ended"
	}

	return s.Task + " has succeeded"
}

// Describe returns the conditions of all sources: etl has succeeded or import has ended.
func (s Sources) Describe() string {
	words := make([]string, len(s))
	for i, one := range s {
		words[i] = one.Describe()
	}

	return strings.Join(words, " or ")
}
