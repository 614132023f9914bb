package task

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Alerts says what is expected of a task, and whom to notify when an expectation is not met.
type Alerts struct {
	Notify        []string `json:"notify,omitempty" doc:"The receivers of alerts: tasks with a receiver block, as NAME or NAMESPACE/NAME." absent:"nobody" maxItems:"10" uniqueItems:"true" example:"ops/slack"`
	Failures      *int     `json:"failures,omitempty" doc:"Alerts when this many runs in a row have failed, timed out or were lost, until a later run succeeds or a person dismisses the failed run. It is at most history.keep; 0 turns it off." absent:"1" min:"0" max:"100"`
	SuccessWithin Duration `json:"success_within,omitzero" doc:"Alerts when no run has succeeded for this long." absent:"not checked" min:"1m" max:"8784h" example:"26h"`
	SuccessBy     string   `json:"success_by,omitempty" doc:"Alerts when the newest tick before a deadline has not succeeded by then. A cron expression for the deadlines, in the time zone of the task." absent:"not checked" maxLength:"256" example:"0 6 * * *"`
	MaxLateness   Duration `json:"max_lateness,omitzero" doc:"Alerts when a tick has not started this long after it was due." absent:"not checked" min:"1m" max:"8784h" example:"15m"`
	MaxDuration   Duration `json:"max_duration,omitzero" doc:"Alerts while a run takes longer than this, from its first start, with retries and the waits between them." absent:"not checked" min:"1m" max:"8784h" example:"2h"`
	MaxPause      Duration `json:"max_pause,omitzero" doc:"Alerts while a person has paused the task for longer than this." absent:"not checked" min:"1m" max:"8784h" example:"1w"`
	Output        bool     `json:"output,omitempty" doc:"Messages to receivers in other namespaces may contain the end of the output."`
}

// DefaultFailures is the default of Alerts.Failures.
const DefaultFailures = 1

// FailuresInARow returns after how many failed runs in a row the task alerts; 0 means never.
func (a *Alerts) FailuresInARow() int {
	switch {
	case a == nil:
		return 0
	case a.Failures == nil:
		return DefaultFailures
	}

	return *a.Failures
}

// Receivers returns the receivers of the alerts of a task in namespace, each as NAMESPACE/NAME.
func (a *Alerts) Receivers(namespace string) []string {
	if a == nil {
		return nil
	}

	list := make([]string, len(a.Notify))
	for i, name := range a.Notify {
		if list[i] = name; !strings.Contains(name, "/") {
			list[i] = namespace + "/" + name
		}
	}

	return list
}

// Receiver makes a task a receiver of alerts. A message is a manual run of the task.
type Receiver struct {
	From   []string  `json:"from,omitempty" doc:"The other namespaces whose tasks may name this receiver." absent:"only its own namespace" maxItems:"100" uniqueItems:"true" example:"shop"`
	Repeat *Duration `json:"repeat,omitempty" doc:"What is still open and not acknowledged is sent again after this time: at least 1h, or 0s for never." absent:"24h" min:"0s" max:"720h"`
	For    *Duration `json:"for,omitempty" doc:"Only alerts that have been open for this long are sent." absent:"10s" min:"0s" max:"24h"`
	Output *bool     `json:"output,omitempty" doc:"Whether messages may contain the end of the output of a run." absent:"true"`
	Group  string    `json:"group,omitempty" doc:"task sends a run for each alert, at most ten a minute and closings first, for services that keep an incident for each." absent:"one message about all" enum:"task"`
}

// GroupTask is the value of Receiver.Group with which each alert has a run of its own.
const GroupTask = "task"

// The defaults of a Receiver.
const (
	DefaultRepeat = 24 * time.Hour
	DefaultFor    = 10 * time.Second
)

// RepeatAfter returns after what time an open alert is sent again; 0 means never.
func (r *Receiver) RepeatAfter() time.Duration {
	if r.Repeat == nil {
		return DefaultRepeat
	}

	return r.Repeat.Std()
}

// OpenFor returns for how long an alert must have been open before it is sent.
func (r *Receiver) OpenFor() time.Duration {
	if r.For == nil {
		return DefaultFor
	}

	return r.For.Std()
}

// Accepts reports whether a receiver in the namespace own takes the alerts of a task in another namespace, or in its own. It is false
// for a task that is no receiver.
func (r *Receiver) Accepts(own, namespace string) bool {
	return r != nil && (own == namespace || slices.Contains(r.From, namespace))
}

// AllowsOutput reports whether messages may contain the end of the output of a run.
func (r *Receiver) AllowsOutput() bool { return r.Output == nil || *r.Output }

// AlertKind is the kind of an expectation. Its value is part of keys in etcd.
type AlertKind string

// The kinds of alerts.
const (
	AlertFailures      AlertKind = "failures"       // Alerts.Failures
	AlertSuccessWithin AlertKind = "success_within" // Alerts.SuccessWithin
	AlertSuccessBy     AlertKind = "success_by"     // Alerts.SuccessBy
	AlertMaxLateness   AlertKind = "max_lateness"   // Alerts.MaxLateness
	AlertMaxDuration   AlertKind = "max_duration"   // Alerts.MaxDuration
	AlertMaxPause      AlertKind = "max_pause"      // Alerts.MaxPause
	AlertMore          AlertKind = "more"           // the alerts of a shard for one receiver that have no record of their own
	AlertCluster       AlertKind = "cluster"        // a problem of the cluster
)

// TaskAlertKinds are the kinds of the expectations of a task, in the order of lists.
var TaskAlertKinds = [...]AlertKind{AlertFailures, AlertSuccessWithin, AlertSuccessBy, AlertMaxLateness, AlertMaxDuration, AlertMaxPause}

// TaskAlertKindNames are their names.
func TaskAlertKindNames() []string {
	names := make([]string, len(TaskAlertKinds))
	for i, kind := range TaskAlertKinds {
		names[i] = string(kind)
	}

	return names
}

// Expects reports whether a task has an expectation of a kind.
func (a *Alerts) Expects(kind AlertKind) bool {
	switch {
	case a == nil:
		return false
	case kind == AlertFailures:
		return a.FailuresInARow() > 0
	case kind == AlertSuccessWithin:
		return a.SuccessWithin > 0
	case kind == AlertSuccessBy:
		return a.SuccessBy != ""
	case kind == AlertMaxLateness:
		return a.MaxLateness > 0
	case kind == AlertMaxDuration:
		return a.MaxDuration > 0
	case kind == AlertMaxPause:
		return a.MaxPause > 0
	}

	return false
}

// ExpectsNothing reports whether no expectation is set, so that the task never alerts.
func (a *Alerts) ExpectsNothing() bool {
	return !slices.ContainsFunc(TaskAlertKinds[:], a.Expects)
}

// Alert is open while an expectation of a task is not met. A closed alert is kept for two hours, in which it can open again.
type Alert struct {
	ID        int64     `json:"id,omitempty" record:"-" doc:"The create revision of the record, which other alerts may share. Answers of the API do not contain it."`
	Namespace string    `json:"namespace,omitempty" record:"-" doc:"The namespace of the task."`
	Task      string    `json:"task,omitempty" record:"-" doc:"The name of the task."`
	Kind      AlertKind `json:"kind,omitempty" record:"-" doc:"The expectation that is not met."`
	Receiver  string    `json:"receiver,omitempty" record:"-" doc:"With kind more: the receiver of the alerts that are counted."`
	Code      string    `json:"code,omitempty" record:"-" doc:"With kind cluster: the problem."`

	UID      string            `json:"uid,omitempty" doc:"Identifies the task. A task that is created again under the same name has another one."`
	Since    Time              `json:"since" doc:"Since when the expectation is not met."`
	OpenedAt Time              `json:"opened_at" doc:"When the alert was opened, or opened again."`
	Run      string            `json:"run,omitempty" doc:"The newest failed run when the alert was opened."`
	Failures int               `json:"failures,omitempty" doc:"The number of runs in a row that had failed when the alert was opened."`
	Deadline Time              `json:"deadline,omitzero" doc:"The deadline that has passed."`
	Text     string            `json:"text,omitempty" doc:"With kind cluster: what is wrong."`
	Notify   []string          `json:"notify,omitempty" doc:"The receivers, each as NAMESPACE/NAME."`
	Labels   map[string]string `json:"labels,omitempty" doc:"The labels of the task. Messages contain owner, runbook and severity; silences select by all of them."`
	More     map[AlertKind]int `json:"more,omitempty" doc:"With kind more: how many alerts are counted, by kind."`
	Rule     string            `json:"rule,omitempty" doc:"The rule that expects it; absent if the task does itself."`
	Openings int               `json:"openings,omitempty" doc:"How often the alert was opened."`
	// Opened holds the times of the last openings before OpenedAt, at most two, the newest last. They show whether the alert flaps.
	Opened []Time `json:"opened,omitempty" doc:"When the alert opened."`
	// Base is the create revision of the last success when the alert was opened. A dead run with a higher create revision keeps
	// an alert of kind failures open.
	Base         int64       `json:"base,omitempty" doc:"The time from which the expectation is judged."`
	Acknowledged *AlertMark  `json:"acknowledged,omitempty" doc:"Who works on it. An acknowledged alert is not sent again while it stays open."`
	Closed       *AlertClose `json:"closed,omitempty" doc:"Absent while the alert is open."`
	// Former holds the alerts of former tasks of the name that closed shortly before this one opened, at most two, the newest last.
	// Receivers have yet to be told of their closings. Answers of the API do not contain it.
	Former []FormerAlert `json:"former,omitempty" doc:"The alert of the same kind that was closed a short time ago."`
	// Mod is the mod revision of the record.
	Mod int64 `json:"-"`
}

// FormerAlert is what is left of an alert whose record has been taken by an alert of another task with the same name.
type FormerAlert struct {
	UID    string     `json:"uid" doc:"Identifies the alert."`
	Since  Time       `json:"since" doc:"When it opened."`
	Closed AlertClose `json:"closed" doc:"When it was closed."`
}

// AlertMark says who did something, and when.
type AlertMark struct {
	At Time   `json:"at" doc:"When."`
	By *Actor `json:"by" doc:"Who."`
}

// Equal reports whether two marks are the same.
func (m *AlertMark) Equal(o *AlertMark) bool {
	if m == nil || o == nil {
		return m == o
	}
	return m.At.Equal(o.At.Time) && m.By.Equal(o.By)
}

// AlertClose says how an alert was closed.
type AlertClose struct {
	At  Time        `json:"at" doc:"When it was closed."`
	Why AlertReason `json:"why" doc:"Why it was closed."`
	By  *Actor      `json:"by,omitempty" doc:"The person who caused it."`
	Run string      `json:"run,omitempty" doc:"The run that succeeded."`
	// Failures is how many runs in a row had failed before the one that succeeded, if that is known.
	Failures int `json:"failures,omitempty" doc:"How many runs in a row had failed before it."`
}

// AlertReason is why an alert was closed.
type AlertReason string

// The reasons for which alerts are closed.
const (
	AlertSucceeded  AlertReason = "succeeded"   // the expectation is met again
	AlertDismissed  AlertReason = "dismissed"   // a person dismissed the failed runs
	AlertPaused     AlertReason = "paused"      // a person paused the task
	AlertDeleted    AlertReason = "deleted"     // the task was deleted
	AlertNotWatched AlertReason = "not_watched" // the task no longer has the expectation
	AlertShadow     AlertReason = "shadow"      // the task is a shadow now
	AlertEnded      AlertReason = "ended"       // the schedule of the task has ended
	AlertStarted    AlertReason = "started"     // the tick, or a later one, has started
	AlertRunEnded   AlertReason = "run_ended"   // no run takes longer than expected any more
	AlertResumed    AlertReason = "resumed"     // the pause has ended
	// AlertLimitRaised says that a person has raised the limit of the expectation, so that it is met.
	AlertLimitRaised AlertReason = "limit_raised"
	AlertSolved      AlertReason = "solved" // of a problem of the cluster: it is gone; of counted alerts: they have records of their own
)

// IsOpen reports whether the alert is open.
func (a *Alert) IsOpen() bool { return a.Closed == nil }

// Name returns the name of the alert in its namespace, as commands print and accept it: sync:failures. That of an alert about the cluster
// is cluster:CODE.
func (a *Alert) Name() string {
	switch a.Kind {
	case AlertCluster:
		return "cluster:" + a.Code
	case AlertMore:
		return "~more:" + a.Receiver
	}

	return a.Task + ":" + string(a.Kind)
}

// FullName returns the name of the alert with its namespace, if it has one.
func (a *Alert) FullName() string {
	if a.Namespace == "" {
		return a.Name()
	}
	return a.Namespace + "/" + a.Name()
}

// Severity returns the label severity of the task if it is one of AlertSeverities, and otherwise error.
func (a *Alert) Severity() string {
	return AlertSeverity(a.Labels)
}

// AlertSeverity returns the severity of the alerts of a task with some labels.
func AlertSeverity(labels map[string]string) string {
	if s := labels[LabelSeverity]; slices.Contains(alertSeverities, s) {
		return s
	}
	return DefaultAlertSeverity
}

// DefaultAlertSeverity is the severity of an alert whose task has no label that says otherwise.
const DefaultAlertSeverity = "error"

// alertSeverities are the values of the label severity, the most severe first.
var alertSeverities = []string{"critical", "error", "warning", "info"}

// AlertSeverities returns the values of the label severity that messages pass on, the most severe first.
func AlertSeverities() []string { return alertSeverities }

// CreatedByCarillon is who requested a run that is a message to a receiver, or for the boot of a node (Run.CreatedBy).
const CreatedByCarillon = "carillon"

// IsMessage reports whether a run is a message to a receiver.
func (r Requests) IsMessage() bool { return r.CreatedBy.Is(CreatedByCarillon) && !r.IsBootRun() }

// AlertEnvPrefix begins the names of the variables of a message. Only Carillon may give them to the run of a receiver.
const AlertEnvPrefix = "ALERT_"

// The labels of tasks that alerts pass on.
const (
	LabelOwner    = "owner"
	LabelRunbook  = "runbook"
	LabelSeverity = "severity"
)

// AlertKeys is a set of alerts by their keys (package alert), in ascending order. In JSON, it is the base64 form of their
// concatenation.
type AlertKeys []uint64

// MarshalJSON encodes the keys as base64.
func (k AlertKeys) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 8*len(k))
	for _, key := range k {
		b = binary.BigEndian.AppendUint64(b, key)
	}

	return json.Marshal(base64.RawStdEncoding.EncodeToString(b))
}

// UnmarshalJSON decodes base64.
func (k *AlertKeys) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}

	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return err
	}

	*k = make(AlertKeys, 0, len(b)/8)
	for ; len(b) >= 8; b = b[8:] {
		*k = append(*k, binary.BigEndian.Uint64(b))
	}

	return nil
}

// AlertSilence suppresses the messages about the alerts of some tasks of a namespace until it ends. The alerts still open and close.
type AlertSilence struct {
	ID        string `json:"id,omitempty" record:"-" doc:"Identifies the silence."`
	Namespace string `json:"namespace,omitempty" record:"-" doc:"The namespace of the silence."`
	Selector  string `json:"selector,omitempty" doc:"The labels of the tasks." oneof:"tasks,required"`
	Glob      string `json:"glob,omitempty" doc:"The names of the tasks, with * and ?." oneof:"tasks,required"`
	Since     Time   `json:"since" doc:"When it began."`
	Until     Time   `json:"until" doc:"At most 30 days after since."`
	By        *Actor `json:"by,omitempty" doc:"Who created it."`
	Reason    string `json:"reason,omitempty" maxLength:"256" doc:"Why, as its author wrote it."`
	EndedBy   *Actor `json:"ended_by,omitempty" doc:"Who ended it before its time; until is when."`
	// NamespaceRev is the create revision of the namespace's record. A silence is void in a namespace that was created later.
	NamespaceRev int64 `json:"namespace_rev,omitempty" doc:"The create revision of the namespace to which it belongs."`
	// Mod is the mod revision of the record.
	Mod int64 `json:"-"`
}

// The limits of silences.
const (
	MaxSilence  = Duration(30 * 24 * time.Hour) // how long a silence may last
	MaxSilences = 100                           // how many may be in force in a namespace
)
