package task

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The triggers of runs.
const (
	TriggerSchedule = "schedule"
	TriggerManual   = "manual"
	TriggerCatchUp  = "catch_up" // a late tick that the missed policy runs
)

// Run is one run of a task, or the record of ticks that did not run. Its form is the same in a shard's queue,
// in a node's inbox, and in the history.
//
// Package record encodes runs without reflection, by code that is generated from the struct tags. It describes the tag
// "record".
//
// Every run has the fields of the first group. Each embedded struct contains the fields of one aspect, and
// describes for which runs they are set.
type Run struct {
	ID            string    `json:"id,omitempty" record:"-" doc:"The id of the run. It begins with the tick and sorts by it."`
	Namespace     string    `json:"namespace,omitempty" record:"-" doc:"The namespace of the task."`
	Task          string    `json:"task,omitempty" record:"-" doc:"The name of the task."`
	UID           string    `json:"uid" doc:"The uid of its task."`
	ScheduledTime Time      `json:"scheduled_time" doc:"The tick; for a manual run, the time of the request."`
	DueAt         Time      `json:"due_at,omitzero" doc:"When the tick is due, if jitter delays it."`
	StartBefore   Time      `json:"start_before,omitzero" doc:"The start deadline: if the run has not started by then, it is missed."`
	State         State     `json:"state" record:"word" doc:"The state of the run."`
	Reason        string    `json:"reason,omitempty" doc:"Why the run is in this state: one of the reasons in docs/why.md."`
	Trigger       string    `json:"trigger" record:"word" doc:"What made the run: its schedule, a request, a tick that was processed late, a run of which it is a part, or the end of another task's run." enum:"schedule,manual,catch_up,part,after"`
	Node          string    `json:"node,omitempty" doc:"The node of the attempt."`
	Owner         string    `json:"owner,omitempty" doc:"The node that decided the tick."`
	Shard         int       `json:"shard" record:"-" doc:"The shard that contains the task."`
	Attempt       int       `json:"attempt,omitempty" doc:"The number of this attempt, from 1."`
	Attempts      []Attempt `json:"attempts,omitempty" doc:"The earlier attempts."`
	Token         int64     `json:"token,omitempty" doc:"The fencing token, which increases with every attempt of a task."`
	CreatedAt     Time      `json:"created_at,omitzero" doc:"When the run was queued."`
	DispatchedAt  Time      `json:"dispatched_at,omitzero" doc:"When the attempt was assigned to its node."`
	StartedAt     Time      `json:"started_at,omitzero" doc:"When the attempt started. Absent: it did not."`
	EndedAt       Time      `json:"ended_at,omitzero" doc:"When it ended. Absent: it has not."`
	NotBefore     Time      `json:"not_before,omitzero" doc:"A queued run does not start before this time."`
	NotBeforeBy   string    `json:"not_before_by,omitempty" doc:"target: the state of the request's target decided not_before. Absent: the retry policy did."`
	Unsent        *Unsent   `json:"unsent,omitempty" doc:"The attempts of an HTTP action that sent nothing, or whose target asked to wait. The retry policy does not count them."`
	ExitCode      *int      `json:"exit_code,omitempty" doc:"The exit code of the process. Absent: it did not exit by itself."`
	Signal        string    `json:"signal,omitempty" doc:"The signal that ended the process, such as SIGKILL."`
	HTTPStatus    int       `json:"http_status,omitempty" doc:"The status of the last response to the request of an HTTP action."`
	Message       string    `json:"message,omitempty" doc:"What went wrong, as text."`
	LatenessMS    *int64    `json:"lateness_ms,omitempty" doc:"From the due time to the start of the first attempt, in milliseconds."`

	OutputSummary
	Requests
	Causation

	// Unenforced contains fields of the task that its node could not enforce, such as limits.memory, if the task
	// permits that (enforce: report).
	Unenforced []string `json:"unenforced,omitempty" doc:"Fields of the task that its node could not enforce, such as limits.memory, if the task permits that."`

	Usage Usage `json:"usage,omitzero" doc:"What the attempt used."`

	TickRange
	StatusReport
	PauseState
	FanOut

	// Unknown contains the fields of the record that this version of Carillon does not know. They are written
	// back with the run.
	Unknown Fields `json:"-"`
}

// OutputSummary is what the record of a run keeps of the output of its last attempt. The whole output is in a
// file on the node that ran it.
type OutputSummary struct {
	OutputTail  string `json:"output_tail,omitempty" doc:"The end of the output."`
	OutputBytes int64  `json:"output_bytes,omitempty" doc:"The number of bytes that the attempt wrote, whether they were kept or not."`
	Truncated   bool   `json:"output_truncated,omitempty" doc:"Not all of the output was kept."`
}

// Requests records what users requested for a run. It is empty for a scheduled run that no user has changed.
type Requests struct {
	CancelledBy *Actor   `json:"cancelled_by,omitempty" doc:"Who cancelled the run."`
	RetryOf     string   `json:"retry_of,omitempty" doc:"The dead run that this run repeats."`
	RerunOf     string   `json:"rerun_of,omitempty" doc:"The ended run whose inputs this run has."`
	CreatedBy   *Actor   `json:"created_by,omitempty" doc:"Who requested the run; absent if it is a scheduled run."`
	EnvNames    []string `json:"env_names,omitempty" doc:"The sorted names of environment variables that the run has in addition to those of its task, without their values."`
	Args        []string `json:"args,omitempty" doc:"The arguments that the run has in addition to those of its task."`
	TargetNode  string   `json:"target_node,omitempty" doc:"The node that the request named, or that has booted. The run waits until it is available."`
	BootID      string   `json:"boot_id,omitempty" doc:"The boot of target_node for which Carillon created the run, as the schedule @reboot says."`
	Alone       bool     `json:"alone,omitempty" doc:"The end of the run starts no dependent, because its request said so."`
	DismissedBy *Actor   `json:"dismissed_by,omitempty" doc:"Only in the answer of the dismissal: who dismissed the dead run. The run in the history does not name it; the event does."`
}

// IsBootRun reports whether Carillon created the run because a node has booted. Its trigger is manual: it has no tick.
func (r Requests) IsBootRun() bool { return r.BootID != "" }

// TickRange is set in the record of several ticks that did not run. The first of them is the record's
// ScheduledTime. Count is 0 in the record of a single tick.
type TickRange struct {
	Last  Time  `json:"last,omitzero" doc:"The last tick of a range of ticks that did not run. The first one is scheduled_time."`
	Count int64 `json:"count,omitempty" doc:"The number of ticks in the range. Absent: it is a single tick."`
}

// StatusReport is what the attempts of a run have reported in their status files.
type StatusReport struct {
	Progress   *Progress         `json:"progress,omitempty" record:"-" doc:"The progress that a running attempt has reported."`
	Results    map[string]string `json:"results,omitempty" doc:"The results that the attempt has reported."`
	Checkpoint string            `json:"checkpoint,omitempty" doc:"What the attempt has stored for the next one. It is not kept in the history."`
	BadLines   int               `json:"status_bad_lines,omitempty" doc:"Lines that are invalid or too long."`
}

// PauseState is the current pause of a run, and the total of its earlier pauses.
type PauseState struct {
	PausedAt Time   `json:"paused_at,omitzero" doc:"When the processes were stopped; absent if they are not stopped."`
	PausedMS int64  `json:"paused_ms,omitempty" doc:"How long all pauses that have ended took, in milliseconds."`
	PausedBy *Actor `json:"paused_by,omitempty" doc:"Who paused it. It is set when the pause is requested, before paused_at."`
}

// FanOut is set for a task whose runs have parts. Fan is the state of a run's parts. PartCount is set in the run of a part:
// how many parts its parent has. The number of the part is in its id.
type FanOut struct {
	Fan       *Fan `json:"fan_out,omitempty" doc:"The state of the parts of a run."`
	PartCount int  `json:"part_count,omitempty" doc:"Of a part: how many parts its run has."`

	Step string `json:"step,omitempty" doc:"Of a part of a workflow: the name of its step."`
	Item *int   `json:"item,omitempty" doc:"Of a part of a step with map: the index of its item, from 0."`
}

// Fields contains JSON fields, separated by commas and without braces.
type Fields string

// Ticks returns how many ticks the record decides. It is 0 for a manual run, for a triggered one and for a part.
func (r Run) Ticks() int64 {
	switch {
	case r.Trigger == TriggerManual, r.Trigger == TriggerPart, r.Trigger == TriggerAfter:
		return 0
	case r.Count > 0:
		return r.Count
	}

	return 1
}

// HasTick reports whether the record belongs to ticks of the task's schedule. The others were requested, or started by another
// task, or are parts.
func (r Run) HasTick() bool { return r.Trigger == TriggerSchedule || r.Trigger == TriggerCatchUp }

// LastSeen returns the time of the last recorded event of a run.
func (r Run) LastSeen() Time {
	for _, t := range []Time{r.EndedAt, r.StartedAt, r.DispatchedAt, r.CreatedAt, r.Last} {
		if !t.IsZero() {
			return t
		}
	}

	return r.ScheduledTime
}

// LastNode returns the node of the last attempt that has ended, or "" if there was none.
func (r Run) LastNode() string {
	// The number of the last attempt tells whether it is listed: unsent attempts are not.
	if n := len(r.Attempts); n > 0 && (r.Unsent == nil || r.Attempts[n-1].Attempt == r.Attempt-1) {
		return r.Attempts[n-1].Node
	}
	if r.Unsent != nil {
		return r.Unsent.Node
	}

	return ""
}

// UnsentCount returns how many of the run's earlier attempts were not sent. They do not count as attempts of its retry
// policy.
func (r Run) UnsentCount() int {
	if r.Unsent == nil {
		return 0
	}
	return r.Unsent.Count
}

// WaitsForTarget reports whether the run waits in the queue because the target of its request was unreachable or asked to
// wait.
func (r Run) WaitsForTarget() bool {
	return r.State == Queued && r.Reason == ReasonTarget && r.Unsent != nil
}

// Attempt is the record of an ended attempt.
type Attempt struct {
	Attempt    int    `json:"attempt" doc:"The number of the attempt, from 1."`
	State      State  `json:"state" doc:"How it ended."`
	Reason     string `json:"reason,omitempty" doc:"Why: one of the reasons in docs/why.md."`
	Node       string `json:"node,omitempty" doc:"Its node."`
	Token      int64  `json:"token,omitempty" doc:"Its fencing token."`
	StartedAt  Time   `json:"started_at,omitzero" doc:"When the attempt started. Absent: it did not."`
	EndedAt    Time   `json:"ended_at,omitzero" doc:"When it ended. Absent: it has not."`
	ExitCode   *int   `json:"exit_code,omitempty" doc:"The exit code of the process. Absent: it did not exit by itself."`
	Signal     string `json:"signal,omitempty" doc:"The signal that ended the process, such as SIGKILL."`
	HTTPStatus int    `json:"http_status,omitempty" doc:"The status of the last response to the request of an HTTP action."`
	Usage      Usage  `json:"usage,omitzero" doc:"What the attempt used."`
}

// AsAttempt returns what the run keeps of its current attempt when another one follows.
func (r Run) AsAttempt() Attempt {
	return Attempt{Attempt: r.Attempt, State: r.State, Reason: r.Reason, Node: r.Node, Token: r.Token,
		StartedAt: r.StartedAt, EndedAt: r.EndedAt, ExitCode: r.ExitCode, Signal: r.Signal, HTTPStatus: r.HTTPStatus, Usage: r.Usage}
}

// Waiting is a record of a shard's queue: a waiting run, with what it needs in addition to the task's entry.
type Waiting struct {
	Run
	Env map[string]string `json:"env,omitempty"` // the additional environment of a manual run
}

// Assigned is a record of a node's inbox: one attempt, for one instance of that node. It is the durable intent
// to start the attempt. Nothing starts without it (G10).
type Assigned struct {
	Run
	Instance        string            `json:"instance"`
	Generation      int64             `json:"generation"`
	Action          Action            `json:"action" record:"hand"`
	Env             map[string]string `json:"env,omitempty"`
	Timeout         Duration          `json:"timeout,omitzero"`
	KillGrace       Duration          `json:"kill_grace" record:"hand"`
	Output          Output            `json:"output,omitzero"`
	Retry           Retry             `json:"retry" record:"hand"`
	CancelRequested bool              `json:"cancel_requested,omitempty"`
	CancelReason    string            `json:"cancel_reason,omitempty"` // one of the Reason constants; empty means ReasonCancelled
	PauseRequested  bool              `json:"pause_requested,omitempty"`
	ResumedBy       *Actor            `json:"resumed_by,omitempty"` // who ended the last requested pause
	KillSignal      string            `json:"kill_signal,omitempty"`
	Success         Success           `json:"success,omitzero"`
	Values          map[string]string `json:"values,omitempty"` // of a step: the values of the references in its texts that its node does not know

	// LostAfter is how long after the last contact with its node the attempt is declared lost, as configured
	// when it was assigned; 0 means DefaultLostAfter. The node kills the attempt within this time, and the owner
	// does not declare it lost earlier. Both use this value, so even if only one of them has received a change
	// of the cluster's setting, no other attempt starts while a process is alive (G17).
	LostAfter Duration `json:"lost_after,omitzero"`
}

// EffectiveLostAfter returns how long after the last contact with its node the attempt is declared lost.
func (a Assigned) EffectiveLostAfter() Duration { return cmp.Or(a.LostAfter, DefaultLostAfter) }

// Unpaused returns r without its current pause, for a run that ended while it was paused.
func (r Run) Unpaused() Run {
	r.PausedAt, r.PausedBy = Time{}, nil
	return r
}

// PausedFor returns how long the run's attempt has been paused in total, up to an instant.
func (r Run) PausedFor(now time.Time) time.Duration {
	sum := time.Duration(r.PausedMS) * time.Millisecond
	if !r.PausedAt.IsZero() {
		sum += max(0, now.Sub(r.PausedAt.Time))
	}
	return sum
}

// Retries reports whether another attempt may follow if this one ends this way.
func (a Assigned) Retries(s State, exitCode *int) bool {
	return !a.CancelRequested && a.Retry.Wants(a.CountedAttempt(), s, exitCode)
}

// LostMessage returns the message of the attempt's record if its node is lost. An attempt that has not been recorded as
// running may have sent its request as well.
func (a Assigned) LostMessage() string {
	if a.Action.HTTP == nil {
		return ""
	}
	return "its request may have reached its target"
}

// CountedAttempt returns the number of this attempt, from 1, among those that count for the retry policy. Attempts that were
// not sent do not count.
func (r Run) CountedAttempt() int { return max(r.Attempt-r.UnsentCount(), 1) }

// Limits of Run.EnvNames, so that the records of ended runs stay small.
const (
	maxEnvNames     = 100
	maxEnvNameBytes = 4 << 10
)

// EnvNamesOf returns the sorted names of a run's additional environment, for Run.EnvNames. It quotes names with
// characters that would be ambiguous in a list. If there are too many names for a record, the last item
// contains the number of omitted names.
func EnvNamesOf(env map[string]string) []string {
	if len(env) == 0 {
		return nil
	}

	names := slices.Sorted(maps.Keys(env))
	size := 0
	for i, name := range names {
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(`, "`, r) }) {
			names[i] = strconv.QuoteToASCII(name)
		}

		size += len(names[i])
		if i == maxEnvNames || size > maxEnvNameBytes {
			return append(names[:i:i], fmt.Sprintf("… (%d more)", len(names)-i))
		}
	}

	return names
}

// idTime is the format of the time at the beginning of a run's id.
const idTime = "20060102T150405.000Z"

// RunID returns the id of the run of a tick. It is the same for every attempt, and on every node. The task
// receives it as its idempotency key.
func RunID(tick time.Time, uid string) string {
	b := make([]byte, 0, len(idTime)+1+len("abcd"))
	return string(append(append(appendIDTime(b, tick), '-'), shortUID(uid)...))
}

// appendIDTime appends a time in the format idTime: the format of Time without "-" and ":". It avoids
// time.Format, because owners create ids for every tick.
func appendIDTime(b []byte, t time.Time) []byte {
	u := t.UTC()
	if year := u.Year(); year < 0 || year > 9999 {
		return u.AppendFormat(b, idTime)
	}

	var text [len(timeLayout)]byte
	written, _ := Time{u}.AppendText(text[:0])
	for _, c := range written {
		if c != '-' && c != ':' {
			b = append(b, c)
		}
	}

	return b
}

// ManualRunID returns the id of a manual run. Its random end distinguishes requests of the same millisecond.
func ManualRunID(at time.Time, uid string) string { return RunID(at, uid) + "-" + NewUID()[:4] }

// TimeOfRunID returns the time at the beginning of a run's id, and false if there is none.
func TimeOfRunID(id string) (time.Time, bool) {
	if len(id) < len(idTime) {
		return time.Time{}, false
	}
	t, err := time.Parse(idTime, id[:len(idTime)])
	return t, err == nil && t.Format(idTime) == id[:len(idTime)] // package time also accepts ",000Z"
}

// MaxManualWaiting is how many manual runs of a task may wait. The API refuses more.
const MaxManualWaiting = 1000

// TriggerOfRunID derives the trigger of a run from its id, for runs whose record cannot be read. The run is triggered by
// another task or manual if the id has a long or a short end after the task's uid, and scheduled otherwise.
func TriggerOfRunID(id string) string {
	if IsPart(id) {
		return TriggerPart
	}

	switch end := id[strings.LastIndexByte(id, '-')+1:]; {
	case strings.Count(id, "-") <= 1:
		return TriggerSchedule
	case len(end) == causeLetters:
		return TriggerAfter
	}

	return TriggerManual
}

// RunBelongs reports whether an id may be that of a run of the task with this uid. It returns true if the
// format of the id is unknown.
func RunBelongs(id, uid string) bool {
	return len(id) <= len(idTime) || id[len(idTime)] != '-' || strings.HasPrefix(id[len(idTime)+1:], shortUID(uid))
}

// shortUID returns the part of a uid that is used in ids of runs.
func shortUID(uid string) string {
	if len(uid) > 4 {
		return uid[:4]
	}
	return uid
}

// uidEncoding uses only characters that are valid in names and etcd keys.
var uidEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewUID returns 80 random bits as 16 letters and digits.
func NewUID() string {
	var b [10]byte
	rand.Read(b[:]) // crypto/rand never returns an error
	return strings.ToLower(uidEncoding.EncodeToString(b[:]))
}

// Limits of what an attempt can report in its status file.
const (
	MaxProgressText = 256     // bytes of the text of a progress report
	MaxResults      = 32      // the number of results of a run
	MaxResultBytes  = 4 << 10 // bytes of all names and values together
	MaxCheckpoint   = 4 << 10 // bytes
)

// Progress is how far a running attempt has come, as it reports itself.
type Progress struct {
	Percent *float64 `json:"percent,omitempty" doc:"0 to 100."`
	Text    string   `json:"text,omitempty" doc:"The text from the task, truncated to 256 bytes. It may contain control characters."`
	At      Time     `json:"at,omitzero" doc:"When its node read that."`
	Silent  string   `json:"silent,omitempty" doc:"Why this is unknown: the node did not respond in time."`
}

// AttemptStatus is what a running attempt has reported so far in its status file.
type AttemptStatus struct {
	Namespace string `json:"namespace" doc:"The namespace of the task."`
	Task      string `json:"task" doc:"The name of the task."`
	Run       string `json:"run" doc:"The id of the run."`
	Attempt   int    `json:"attempt" doc:"The number of the attempt."`
	Paused    bool   `json:"paused,omitempty" doc:"Its processes are paused."`

	StatusReport
}

// CopyTo copies the report of an attempt into its run.
func (a AttemptStatus) CopyTo(r *Run) {
	r.StatusReport = a.StatusReport
}

// Usage is the resources that the processes of an attempt used. 0 means less than the unit, or unknown.
type Usage struct {
	CPUMS      int64 `json:"cpu_ms,omitempty" doc:"CPU time in milliseconds."`
	MemoryPeak int64 `json:"memory_peak,omitempty" doc:"The peak memory in bytes: of all processes if limits.memory is set, otherwise of the largest process."`
	IORead     int64 `json:"io_read,omitempty" doc:"Bytes read from storage."`
	IOWritten  int64 `json:"io_written,omitempty" doc:"Bytes written to storage."`
}

// IsZero reports whether no usage is known.
func (u Usage) IsZero() bool { return u == Usage{} }

// LateCancel is the cancel of one attempt while etcd is full. The attempt's record cannot be changed then, so the node of
// the attempt is asked directly. It ends the attempt at once and keeps the cancel, and then the end, until etcd has
// space for the record of the end.
type LateCancel struct {
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	Run       string `json:"run"`
	Token     int64  `json:"token"`         // of the attempt: later attempts of the run are not cancelled by it
	By        *Actor `json:"by"`            // who cancelled the run
	End       *Run   `json:"end,omitempty"` // how the attempt ended, once it has
}

// LateCancelled is the answer to a LateCancel.
type LateCancelled struct {
	State    State `json:"state" doc:"The state of the attempt when the request arrived. If it is final, the request has no effect."`
	Repeated bool  `json:"repeated,omitempty" doc:"The attempt had been cancelled in this way before."`
}
