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

// What gave rise to a run.
const (
	TriggerSchedule = "schedule"
	TriggerManual   = "manual"
	TriggerCatchUp  = "catch_up" // a tick that came to light late, run by the missed policy
)

// Run is one run of a task, or the record of ticks that did not run. It has the same
// form wherever its record is: in a shard's queue, in a node's inbox, in the history.
//
// Every run has the fields of the first group. The embedded structs hold what belongs
// to one role of the record; each says for which runs it is set.
type Run struct {
	ID            string    `json:"id,omitempty"`
	Namespace     string    `json:"namespace,omitempty"`
	Task          string    `json:"task,omitempty"`
	UID           string    `json:"uid"`
	ScheduledTime Time      `json:"scheduled_time"`        // the tick; for a manual run the request
	DueAt         Time      `json:"due_at,omitzero"`       // when the tick fell due, if jitter put it off
	StartBefore   Time      `json:"start_before,omitzero"` // start deadline: not started by then, the run is missed
	State         State     `json:"state"`
	Reason        string    `json:"reason,omitempty"`
	Trigger       string    `json:"trigger"`
	Node          string    `json:"node,omitempty"`
	Owner         string    `json:"owner,omitempty"` // the node that decided the tick
	Shard         int       `json:"shard"`
	Attempt       int       `json:"attempt,omitempty"`  // this attempt, counted from 1
	Attempts      []Attempt `json:"attempts,omitempty"` // the attempts before it
	Token         int64     `json:"token,omitempty"`    // fencing token: grows with every attempt of a task
	CreatedAt     Time      `json:"created_at,omitzero"`
	DispatchedAt  Time      `json:"dispatched_at,omitzero"`
	StartedAt     Time      `json:"started_at,omitzero"`
	EndedAt       Time      `json:"ended_at,omitzero"`
	NotBefore     Time      `json:"not_before,omitzero"` // a queued run waits at least until then
	ExitCode      *int      `json:"exit_code,omitempty"`
	Signal        string    `json:"signal,omitempty"`
	Message       string    `json:"message,omitempty"` // what went wrong, for a person
	LatenessMS    *int64    `json:"lateness_ms,omitempty"`

	OutputSummary
	Requests

	// Unenforced are fields of the task that its node could not enforce, such as
	// limits.memory, of a task that would have the run go on (enforce: report).
	Unenforced []string `json:"unenforced,omitempty"`

	Usage Usage `json:"usage,omitzero"` // of this attempt

	TickRange
	StatusReport
	PauseState

	// Of a fan-out: what a run knows of its parts, and of a part how many there are.
	// Its number is in its id.
	Fan       *Fan `json:"fan_out,omitempty"`
	PartCount int  `json:"part_count,omitempty"`

	// Unknown are the fields of its record that this version does not know. They
	// stay with the run.
	Unknown Fields `json:"-"`
}

// OutputSummary is what the record of a run keeps of the output of its last attempt.
// The whole output is in a file of the node that ran it.
type OutputSummary struct {
	OutputTail  string `json:"output_tail,omitempty"`
	OutputBytes int64  `json:"output_bytes,omitempty"` // written by the attempt, kept or not
	Truncated   bool   `json:"output_truncated,omitempty"`
}

// Requests is what persons asked of a run. It is empty for a run that its schedule
// created and nobody touched.
type Requests struct {
	CancelledBy string   `json:"cancelled_by,omitempty"`
	RetryOf     string   `json:"retry_of,omitempty"` // the dead run that this one repeats
	CreatedBy   string   `json:"created_by,omitempty" doc:"Who requested the run; absent if it is a scheduled run."`
	EnvNames    []string `json:"env_names,omitempty" doc:"The sorted names of environment variables that the run has in addition to those of its task, without their values."`
	DismissedBy string   `json:"dismissed_by,omitempty" doc:"For a dead run: who dismissed it."`
}

// TickRange is set in a record of several ticks that did not run. The first of them
// is the record's ScheduledTime. Count is 0 in the record of a single tick.
type TickRange struct {
	Last  Time  `json:"last,omitzero"`
	Count int64 `json:"count,omitempty"`
}

// StatusReport is what the attempts of a run have reported in their status file.
type StatusReport struct {
	Progress   *Progress         `json:"progress,omitempty"` // only of a running attempt: its node knows it, no record does
	Results    map[string]string `json:"results,omitempty"`
	Checkpoint string            `json:"checkpoint,omitempty"` // for the next attempt; not in the history
	BadLines   int               `json:"status_bad_lines,omitempty" doc:"Lines that are invalid or too long."`
}

// PauseState says since when a run is paused, and for how long it was paused before.
type PauseState struct {
	PausedAt Time   `json:"paused_at,omitzero"`  // since when the attempt is stopped; zero if it is not
	PausedMS int64  `json:"paused_ms,omitempty"` // sum of the pauses that have ended
	PausedBy string `json:"paused_by,omitempty"` // who paused it; set before PausedAt, while the pause is on its way
}

// Fields are fields of JSON, without braces, with commas between.
type Fields string

// Ticks is how many ticks the record decides: 0 for a manual run, and for a part.
func (r Run) Ticks() int64 {
	switch {
	case r.Trigger == TriggerManual, r.Trigger == TriggerPart:
		return 0
	case r.Count > 0:
		return r.Count
	}

	return 1
}

// LastSeen is the last thing that is known to have happened to a run.
func (r Run) LastSeen() Time {
	for _, t := range []Time{r.EndedAt, r.StartedAt, r.DispatchedAt, r.CreatedAt, r.Last} {
		if !t.IsZero() {
			return t
		}
	}

	return r.ScheduledTime
}

// LastNode returns the node of the last attempt that has ended, and "" if there was none.
func (r Run) LastNode() string {
	if len(r.Attempts) == 0 {
		return ""
	}

	return r.Attempts[len(r.Attempts)-1].Node
}

// Attempt is how one attempt of a run ended.
type Attempt struct {
	Attempt   int    `json:"attempt"`
	State     State  `json:"state"`
	Reason    string `json:"reason,omitempty"`
	Node      string `json:"node,omitempty"`
	Token     int64  `json:"token,omitempty"`
	StartedAt Time   `json:"started_at,omitzero"`
	EndedAt   Time   `json:"ended_at,omitzero"`
	ExitCode  *int   `json:"exit_code,omitempty"`
	Signal    string `json:"signal,omitempty"`
	Usage     Usage  `json:"usage,omitzero"`
}

// AsAttempt is what is kept of r when another attempt follows it.
func (r Run) AsAttempt() Attempt {
	return Attempt{Attempt: r.Attempt, State: r.State, Reason: r.Reason, Node: r.Node, Token: r.Token,
		StartedAt: r.StartedAt, EndedAt: r.EndedAt, ExitCode: r.ExitCode, Signal: r.Signal, Usage: r.Usage}
}

// Waiting is a record of a shard's queue: a run that waits, and what it needs
// that the task's entry does not say.
type Waiting struct {
	Run
	Env map[string]string `json:"env,omitempty"` // a manual run's extra environment
}

// Assigned is a record of a node's inbox: one attempt, for one instance of that
// node. It is the durable intent: nothing starts without it.
type Assigned struct {
	Run
	Instance        string            `json:"instance"`
	Generation      int64             `json:"generation"`
	Action          Action            `json:"action"`
	Env             map[string]string `json:"env,omitempty"`
	Timeout         Duration          `json:"timeout,omitzero"`
	KillGrace       Duration          `json:"kill_grace"`
	Output          Output            `json:"output,omitzero"`
	Retry           Retry             `json:"retry"`
	CancelRequested bool              `json:"cancel_requested,omitempty"`
	CancelReason    string            `json:"cancel_reason,omitempty"` // empty: ReasonCancelled
	PauseRequested  bool              `json:"pause_requested,omitempty"`
	ResumedBy       string            `json:"resumed_by,omitempty"` // who ended the pause that was requested last
	KillSignal      string            `json:"kill_signal,omitempty"`
	Success         Success           `json:"success,omitzero"`

	// LostAfter is how long the attempt is waited for if its node falls silent, as it
	// was when its owner assigned it; 0 is DefaultLostAfter. The node has killed it by
	// then, and the owner declares it lost not before. Both go by this value, so that a
	// change of the cluster's setting that only one of them has heard of starts nothing
	// beside a process that lives.
	LostAfter Duration `json:"lost_after,omitzero"`
}

// EffectiveLostAfter is how long the attempt is waited for if its node falls silent.
func (a Assigned) EffectiveLostAfter() Duration { return cmp.Or(a.LostAfter, DefaultLostAfter) }

// Unpaused is r without what says that it is paused: of one that ended so.
func (r Run) Unpaused() Run {
	r.PausedAt, r.PausedBy = Time{}, ""
	return r
}

// PausedFor is how long the run's attempt has stood still in all, at an instant.
func (r Run) PausedFor(now time.Time) time.Duration {
	sum := time.Duration(r.PausedMS) * time.Millisecond
	if !r.PausedAt.IsZero() {
		sum += max(0, now.Sub(r.PausedAt.Time))
	}
	return sum
}

// Retries reports whether another attempt may follow one that ended so.
func (a Assigned) Retries(s State, exitCode *int) bool {
	return !a.CancelRequested && a.Retry.Wants(a.Attempt, s, exitCode)
}

// The bounds of Run.EnvNames: the record of a run that has ended stays small,
// whatever it was given.
const (
	maxEnvNames     = 100
	maxEnvNameBytes = 4 << 10
)

// EnvNamesOf returns the sorted names of a run's further environment, for
// Run.EnvNames. A name that could be taken for several, or for another line, is quoted.
// If there are too many for a record, the last item says how many are left out.
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

const idTime = "20060102T150405.000Z"

// RunID is the id of the run of a tick, the same on every attempt and whoever
// computes it: the idempotency key that the task receives.
func RunID(tick time.Time, uid string) string {
	b := make([]byte, 0, len(idTime)+1+len("abcd"))
	return string(append(append(appendIDTime(b, tick), '-'), shortUID(uid)...))
}

// appendIDTime appends a time in the form of idTime: as it is written, without "-" and ":".
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

// ManualRunID is the id of a run that a person asked for at time at.
func ManualRunID(at time.Time, uid string) string { return RunID(at, uid) + "-" + NewUID()[:4] }

// TimeOfRunID is the time that a run's id begins with; false if it has none.
func TimeOfRunID(id string) (time.Time, bool) {
	if len(id) < len(idTime) {
		return time.Time{}, false
	}
	t, err := time.Parse(idTime, id[:len(idTime)])
	return t, err == nil && t.Format(idTime) == id[:len(idTime)] // package time also takes ",000Z"
}

// TriggerOfRunID is what gave rise to a run, by its id alone, of one whose record
// cannot be read: a person, if something follows the task's uid, else its
// schedule.
func TriggerOfRunID(id string) string {
	if IsPart(id) {
		return TriggerPart
	}
	if strings.Count(id, "-") > 1 {
		return TriggerManual
	}

	return TriggerSchedule
}

// RunBelongs reports whether a run's id may be that of a run of the task with
// this uid; of an id of another form nobody knows.
func RunBelongs(id, uid string) bool {
	return len(id) <= len(idTime) || id[len(idTime)] != '-' || strings.HasPrefix(id[len(idTime)+1:], shortUID(uid))
}

func shortUID(uid string) string {
	if len(uid) > 4 {
		return uid[:4]
	}
	return uid
}

var uidEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewUID returns 80 random bits as 16 letters and digits.
func NewUID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return strings.ToLower(uidEncoding.EncodeToString(b[:]))
}
