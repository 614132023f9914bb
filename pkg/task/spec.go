// Package task defines Carillon's domain types: tasks, entries, runs and their states, policies, validation and
// errors.
//
// It imports only the standard library, performs no I/O, and reads no clock: callers pass the time.
package task

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"time"
)

// Spec is a task as its user wrote it, with all defaults filled in.
type Spec struct {
	Name        string            `json:"name" doc:"Letters a-z, digits, '.', '_', '-'; at most 128 bytes."`
	Namespace   string            `json:"namespace" doc:"Default: default."`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Schedule    Schedules         `json:"schedule" doc:"One expression or a list: cron with 5 or 6 fields, @hourly and similar, @every 90s, @at 2026-12-24T18:00:00Z, @manual."`
	Timezone    string            `json:"timezone" doc:"A name from the tz database. Default: UTC."`
	DST         DST               `json:"dst,omitzero"`
	Start       Time              `json:"start,omitzero" doc:"No ticks before this instant."`
	End         Time              `json:"end,omitzero" doc:"No ticks after this instant."`
	Jitter      Duration          `json:"jitter,omitzero" doc:"Delays each tick by up to this much, by a stable hash, but never past the next tick."`
	MaxRuns     int64             `json:"max_runs,omitempty" doc:"The schedule ends after this many ticks have run. 0 means no limit."`
	TTL         Duration          `json:"ttl,omitzero" doc:"The task is deleted this long after its schedule and its last run have ended; 0s means never."`
	Action      Action            `json:"action"`
	Timeout     Duration          `json:"timeout,omitzero" doc:"Time limit of each attempt; 0s means none."`
	KillGrace   Duration          `json:"kill_grace" doc:"From kill_signal to SIGKILL. Default: 10s."`
	Overlap     string            `json:"overlap" doc:"skip (default), queue, replace or allow."`
	Queue       QueuePolicy       `json:"queue,omitzero" doc:"With overlap queue: the maximum number of waiting runs."`
	MaxActive   int               `json:"max_active,omitempty" doc:"With overlap allow: the maximum number of active runs; 0 means no limit."`
	Missed      MissedPolicy      `json:"missed"`
	Deadline    Duration          `json:"start_deadline,omitzero" doc:"A run that has not started this long after its tick was due is missed; 0s means no deadline."`
	Retry       Retry             `json:"retry"`
	Target      Target            `json:"target"`
	History     History           `json:"history"`
	Output      Output            `json:"output,omitzero"`
	PauseAfter  int               `json:"pause_after_failures,omitempty" doc:"The task is paused after this many consecutive failed runs; 0 means never."`
	Shadow      bool              `json:"shadow,omitempty" doc:"Ticks are decided and recorded but start nothing. Each tick that would run is skipped with the reason shadow."`
	Paused      bool              `json:"paused,omitempty"`
	PausedUntil Time              `json:"paused_until,omitzero" doc:"With paused: ticks resume after this time."`
	PauseReason string            `json:"pause_reason,omitempty" doc:"With paused: why."`
	KillSignal  string            `json:"kill_signal,omitempty" doc:"The signal that asks a process to end, kill_grace before SIGKILL. Default: SIGTERM."`
	Success     Success           `json:"success,omitzero" doc:"What counts as success. Default: exit code 0."`
	Accept      Accept            `json:"accept,omitzero" doc:"What a manual run may give in addition to the task. Default: nothing."`
}

// Timing contains everything that determines a task's ticks, except for the anchor of @every.
type Timing struct {
	Schedule   Schedules
	Timezone   string
	DST        DST
	Start, End Time     // zero: none; ticks lie between them, both inclusive
	Jitter     Duration // the maximum delay of the due time; 0: none
}

// Timing returns the timing of the task.
func (s Spec) Timing() Timing {
	return Timing{Schedule: s.Schedule, Timezone: s.Timezone, DST: s.DST, Start: s.Start, End: s.End, Jitter: s.Jitter}
}

// Schedules contains one or more expressions. In JSON, a single one is a plain string.
type Schedules []string

// MarshalJSON encodes a single expression as a string.
func (s Schedules) MarshalJSON() ([]byte, error) {
	switch len(s) {
	case 0:
		return []byte("[]"), nil
	case 1:
		return json.Marshal(s[0])
	}

	return json.Marshal([]string(s))
}

// UnmarshalJSON decodes a string or a list of strings. null changes nothing.
func (s *Schedules) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}

	var one string
	if json.Unmarshal(b, &one) == nil {
		*s = Schedules{one}
		return nil
	}

	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		return Invalid(CodeBadSchedule, "schedule", "must be a string or a list of strings")
	}

	*s = list

	return nil
}

// Action is what a run does. Exactly one field is set.
type Action struct {
	Process *Process `json:"process,omitempty"`
	HTTP    *HTTP    `json:"http,omitempty"`
	Noop    *Noop    `json:"noop,omitempty"`
}

// Process starts a program on the node: Command directly, or Shell as a line for /bin/sh -c.
type Process struct {
	Command []string          `json:"command,omitempty"`
	Shell   string            `json:"shell,omitempty"`
	Stdin   *Stdin            `json:"stdin,omitempty" doc:"The standard input. Default: empty."`
	Env     map[string]string `json:"env,omitempty"`
	EnvFrom []EnvFrom         `json:"env_from,omitempty" doc:"Variables from files on the node and from secrets. Later entries override earlier ones, and env overrides all."`
	Dir     string            `json:"dir,omitempty" doc:"Working directory, absolute. Default: the user's home."`
	User    string            `json:"user,omitempty" doc:"Default: the default_user of the node."`

	Group      string   `json:"group,omitempty" doc:"Default: the user's own."`
	Groups     []string `json:"groups,omitzero" doc:"Supplementary groups; an empty list means none. Default: the user's."`
	Umask      string   `json:"umask,omitempty" doc:"The umask, in octal: \"027\". Default: the daemon's."`
	Nice       int      `json:"nice,omitempty" doc:"From -20 (highest priority) to 19. Default: the daemon's."`
	IONice     string   `json:"ionice,omitempty" doc:"idle, best-effort or realtime; the latter two with or without a level: best-effort/7. Default: the daemon's."`
	NoNewPrivs bool     `json:"no_new_privs,omitempty" doc:"Processes gain no privileges from setuid, setgid or file capabilities (no_new_privs)."`
	PrivateTmp bool     `json:"private_tmp,omitempty" doc:"Gives the attempt its own empty /tmp and /var/tmp, which are removed when the attempt has ended."`
	Scratch    bool     `json:"scratch,omitempty" doc:"Gives the attempt an empty directory of its own, which is removed when the attempt has ended. CARILLON_SCRATCH has its path. It is the working directory unless dir is set."`
	Limits     Limits   `json:"limits,omitzero" doc:"What its processes may use."`
	Enforce    string   `json:"enforce,omitempty" doc:"What happens if the node cannot enforce all of these settings. require (default): the attempt fails before it starts. report: it runs and its record says so. User and groups are always required."`
}

// Noop succeeds immediately. It is for benchmarks and tests.
type Noop struct{}

// The overlap policies: what happens to a tick while another run of its task is active.
const (
	OverlapSkip    = "skip"    // the tick is skipped
	OverlapAllow   = "allow"   // it runs concurrently with the others
	OverlapQueue   = "queue"   // it waits for the others to end
	OverlapReplace = "replace" // the others are cancelled, then it runs
)

// QueuePolicy limits how many ticks wait under the overlap policy queue.
type QueuePolicy struct {
	Limit int    `json:"limit,omitempty" doc:"The maximum number of waiting runs. Default: 10."`
	Drop  string `json:"drop,omitempty" doc:"Which run is skipped when the queue is full: newest (default) or oldest."`
}

// The values of QueuePolicy.Drop, and the default of QueuePolicy.Limit.
const (
	DropNewest   = "newest"
	DropOldest   = "oldest"
	DefaultQueue = 10
)

// Room returns how many ticks may wait.
func (q QueuePolicy) Room() int { return cmp.Or(q.Limit, DefaultQueue) }

// The missed policies: what happens to ticks that are processed too late.
const (
	MissedLatest = "latest" // the newest tick within the window runs
	MissedSkip   = "skip"   // none runs, except for a tick that is still within its grace
	MissedAll    = "all"    // the newest ticks within the window run, at most Limit
)

// MissedPolicy is the policy for ticks that are processed late.
type MissedPolicy struct {
	Policy string   `json:"policy" doc:"latest (default), skip or all."`
	Grace  Duration `json:"grace" doc:"A tick that is at most this late counts as on time. Default: 10s."`
	Window Duration `json:"window" doc:"Ticks older than this never run. Default: 1h."`
	Limit  int      `json:"limit" doc:"With all: the maximum number of runs, the newest first. Default: 100."`
}

// Retry defines which attempts are followed by another one, and when: after Backoff × Factor^(n−1), at most
// MaxBackoff, spread by ± Jitter.
type Retry struct {
	Attempts   int      `json:"attempts" doc:"Maximum number of attempts, including the first. Default: 1."`
	Backoff    Duration `json:"backoff" doc:"Wait before the second attempt. Default: 10s."`
	Factor     float64  `json:"factor" doc:"The factor between one wait and the next. Default: 2."`
	MaxBackoff Duration `json:"max_backoff" doc:"Default: 5m."`
	Jitter     float64  `json:"jitter" doc:"Spread of the wait, 0 to 1. Default: 0.2."`
	On         []State  `json:"on" doc:"The states to retry: failed, timed_out, lost. Default: failed, timed_out."`
	ExitCodes  []int    `json:"exit_codes,omitempty" doc:"With failed in on: only attempts that ended with one of these exit codes are retried. Default: any."`
}

// Target defines on which nodes the runs of a task may run.
type Target struct {
	Selector string `json:"selector,omitempty" doc:"Node labels and facts: \"role = db, zone in (a, b), !gpu, disk_free > 10Gi\"."`
	Strategy string `json:"strategy" doc:"How a node is chosen among those that match: auto (default), round-robin, random, weighted, least-loaded, hash, first or sticky."`
	Count    Count  `json:"count" doc:"The number of nodes, or all. Each run has one part on each of them. Default: 1."`
	// Key and Order each apply to one strategy only.
	Key   string   `json:"key,omitempty" doc:"With strategy hash: runs with the same key go to the same node. Default: the task's namespace and name."`
	Order []string `json:"order,omitempty" doc:"With strategy first: the nodes that may run the task, the preferred node first."`

	Parts   int      `json:"parts,omitempty" doc:"Splits each run into this many parts, on any nodes; 0 means no parts."`
	Stagger Duration `json:"stagger,omitzero" doc:"With several parts: the delay between the starts of two parts; 0s means none."`
	Succeed Succeed  `json:"succeed,omitempty" doc:"The number of parts that must succeed: all (default), any, a number, or a percentage such as 80%."`
}

// History defines which ended runs are kept.
type History struct {
	Keep   int    `json:"keep" doc:"Ended runs kept per task. Default: 20."`
	Record string `json:"record" doc:"all (default), or failures: a successful run is removed when a newer run has ended."`
	// KeepFor keeps younger records in addition to the newest Keep, up to MaxHistory records. The age counts from the tick.
	KeepFor Duration `json:"keep_for,omitzero" doc:"Ended runs whose ticks are younger than this are kept in addition to the newest keep, at most 10000. At most 2160h (90 days). Default: none."`
	// Ledger is how long the ledger remembers the outcomes of ticks whose records are no longer kept.
	Ledger *Duration `json:"ledger,omitempty" doc:"How long the ledger remembers the outcomes of ticks whose runs are no longer kept. 0s: not at all. At most 2160h (90 days). Default: the setting of the cluster, 720h (30 days) if nobody has changed it."`
}

// EffectiveLedger returns for how long the ledger remembers ticks, if cluster is the default of the cluster.
func (h History) EffectiveLedger(cluster Duration) time.Duration {
	if h.Ledger != nil {
		return h.Ledger.Std()
	}

	return cluster.Std()
}

// The values of History.Record.
const (
	RecordAll      = "all"
	RecordFailures = "failures" // and the newest record: for tasks that run often and rarely fail
)

// Defaults returns a Spec with all defaults. Decode a user's document into it.
func Defaults() Spec {
	return Spec{
		Namespace: "default",
		Timezone:  "UTC",
		DST:       DST{Gap: GapRunAfter, Fold: FoldFirst},
		KillGrace: Duration(10 * time.Second),
		Overlap:   OverlapSkip,
		Missed:    MissedPolicy{Policy: MissedLatest, Grace: Duration(10 * time.Second), Window: Duration(time.Hour), Limit: 100},
		Retry: Retry{Attempts: 1, Backoff: Duration(10 * time.Second), Factor: 2, MaxBackoff: Duration(5 * time.Minute),
			Jitter: 0.2, On: []State{Failed, TimedOut}},
		Target:  Target{Strategy: StrategyAuto, Count: 1},
		History: History{Keep: 20, Record: RecordAll},
	}
}

// Task is a stored Spec with the fields that Carillon adds.
type Task struct {
	Spec
	UID        string `json:"uid"`
	Generation int64  `json:"generation"` // increases by one with every change
	CreatedAt  Time   `json:"created_at"`
	UpdatedAt  Time   `json:"updated_at"`
	UpdatedBy  string `json:"updated_by,omitempty"`
	Change     string `json:"change,omitempty"` // what made this version: one of the Change constants
	// Revision is the mod revision of the task's key, which --revision and If-Match compare. It is not part of
	// the stored value.
	Revision int64 `json:"revision,omitempty"`
}

// Entry is the part of a task that the scheduler needs. It is stored in the task's shard, so that an owner
// loads only the tasks of its shards.
type Entry struct {
	UID        string       `json:"uid"`
	Generation int64        `json:"generation"`
	Schedule   Schedules    `json:"schedule"`
	Timezone   string       `json:"timezone"`
	DST        DST          `json:"dst,omitzero"`
	Start      Time         `json:"start,omitzero"`
	End        Time         `json:"end,omitzero"`
	Jitter     Duration     `json:"jitter,omitzero"`
	From       Time         `json:"from"`   // ticks up to this time are decided
	Anchor     Time         `json:"anchor"` // @every counts from this time
	Paused     bool         `json:"paused,omitempty"`
	Action     Action       `json:"action"`
	Timeout    Duration     `json:"timeout,omitzero"`
	KillGrace  Duration     `json:"kill_grace"`
	MaxRuns    int64        `json:"max_runs,omitempty"`
	TTL        Duration     `json:"ttl,omitzero"`
	Overlap    string       `json:"overlap"`
	Queue      QueuePolicy  `json:"queue,omitzero"`
	MaxActive  int          `json:"max_active,omitempty"`
	Missed     MissedPolicy `json:"missed"`
	Deadline   Duration     `json:"start_deadline,omitzero"`
	PauseAfter int          `json:"pause_after_failures,omitempty"`
	Retry      Retry        `json:"retry"`
	Target     Target       `json:"target"`
	History    History      `json:"history"`
	Output     Output       `json:"output,omitzero"`
	Shadow     bool         `json:"shadow,omitempty"`
	KillSignal string       `json:"kill_signal,omitempty"`
	Success    Success      `json:"success,omitzero"`
	Accept     Accept       `json:"accept,omitzero"`
	Own        *Own         `json:"own,omitempty"` // nil for most tasks
	// NamespaceRev is the revision of the namespace's record that allowed the task when it was written. If the
	// record has another revision when a run is to start, the owner checks the task again. 0: not known.
	NamespaceRev int64 `json:"namespace_rev,omitempty"`
	// Labels are those of the spec. Owners answer queries about them.
	Labels map[string]string `json:"labels,omitempty"`
}

// Timing returns the timing of the task.
func (e Entry) Timing() Timing {
	return Timing{Schedule: e.Schedule, Timezone: e.Timezone, DST: e.DST, Start: e.Start, End: e.End, Jitter: e.Jitter}
}

// Own is the state of an entry that is not part of the spec: what has happened to the task.
type Own struct {
	Runs     int64 `json:"runs,omitempty"`     // the number of ticks that became runs; only counted with max_runs
	Failures int   `json:"failures,omitempty"` // the number of consecutive failed runs; only counted with pause_after_failures
	// Counted is the mod revision of the last history record that Failures includes. It makes each end count
	// once, whichever owner sees it.
	Counted int64 `json:"counted,omitempty"`
	// Pauses contains the latest pauses, the newest last. If the entry is paused, the last one is in force.
	Pauses []Pause `json:"pauses,omitempty"`
	// Node is the node of the last run; only kept with strategy sticky.
	Node string `json:"node,omitempty"`
}

// Pause is a period without ticks.
type Pause struct {
	Since   Time   `json:"since"`
	By      string `json:"by,omitempty"` // who paused the task; PausedByFailures if Carillon did
	Reason  string `json:"reason,omitempty"`
	Until   Time   `json:"until,omitzero"` // the pause ends by itself at this time
	Ended   Time   `json:"ended,omitzero"` // when a user ended it before Until
	EndedBy string `json:"ended_by,omitempty"`
}

// PausedByFailures is the author of the pause of a task that failed too often.
const PausedByFailures = "carillon"

// KeepPauses is the number of pauses that an entry keeps.
const KeepPauses = 5

// Over reports whether the pause has ended at an instant that is not before its beginning.
func (p Pause) Over(at time.Time) bool {
	return !p.Ended.IsZero() && !at.Before(p.Ended.Time) || !p.Until.IsZero() && at.After(p.Until.Time)
}

// Pause returns the pause of a paused entry. It returns nil if the entry is not paused, or if there is no
// record of its pause.
func (e Entry) Pause() *Pause {
	if !e.Paused || e.Own == nil || len(e.Own.Pauses) == 0 {
		return nil
	}
	if p := &e.Own.Pauses[len(e.Own.Pauses)-1]; p.Ended.IsZero() {
		return p
	}

	return nil
}

// Silence returns the time up to which, inclusive, a paused entry has no ticks. ok is false if it is not
// paused, or paused without an end.
func (e Entry) Silence() (Time, bool) {
	p := e.Pause()
	if p == nil || p.Until.IsZero() {
		return Time{}, false
	}
	return p.Until, true
}

// Ticks reports whether the entry has ticks: it is not paused, or its pause has an end.
func (e Entry) Ticks() bool {
	_, ends := e.Silence()
	return !e.Paused || ends
}

// NewEntry returns the entry of t. The caller chooses from and anchor.
func NewEntry(t Task, from, anchor Time) Entry {
	return Entry{
		UID: t.UID, Generation: t.Generation, Schedule: t.Schedule, Timezone: t.Timezone, DST: t.DST,
		Start: t.Start, End: t.End, Jitter: t.Jitter, MaxRuns: t.MaxRuns, TTL: t.TTL,
		From: from, Anchor: anchor, Paused: t.Paused, Action: t.Action, Timeout: t.Timeout, KillGrace: t.KillGrace,
		Overlap: t.Overlap, Queue: t.Queue, MaxActive: t.MaxActive, Missed: t.Missed, Deadline: t.Deadline,
		PauseAfter: t.PauseAfter, Retry: t.Retry, Target: t.Target, History: t.History,
		Shadow:     t.Shadow,
		KillSignal: t.KillSignal,
		Success:    t.Success,
		Accept:     t.Accept,
		Output:     t.Output,
		Labels:     t.Labels,
	}
}

// SameTicks reports whether two specs have the same ticks. If they do not, the new schedule begins when it is
// written, and has no earlier ticks.
func SameTicks(a, b Spec) bool { return a.Timing().Same(b.Timing()) }

// Same reports whether two timings have the same ticks with the same due times.
func (t Timing) Same(u Timing) bool {
	return slices.Equal(t.Schedule, u.Schedule) && t.Timezone == u.Timezone && t.DST == u.DST &&
		t.Start.Equal(u.Start.Time) && t.End.Equal(u.End.Time) && t.Jitter == u.Jitter
}

// The values of Task.Change: what made a version of a task.
const (
	ChangeCreated    = "created"
	ChangeUpdated    = "updated"
	ChangePaused     = "paused"
	ChangeResumed    = "resumed"
	ChangeRolledBack = "rolled_back"
)

// Wants reports whether another attempt follows attempt number attempt (from 1), which ended in state s.
// exitCode is that of its process, or nil.
func (r Retry) Wants(attempt int, s State, exitCode *int) bool {
	return attempt < r.Attempts && r.retryable(s, exitCode)
}

// retryable reports whether an attempt that ended this way is retried while attempts are left.
func (r Retry) retryable(s State, exitCode *int) bool {
	if !slices.Contains(r.On, s) {
		return false
	}
	return s != Failed || len(r.ExitCodes) == 0 || exitCode != nil && slices.Contains(r.ExitCodes, *exitCode)
}

// Wait returns how long after the end of attempt n (from 1) the next one may start: Backoff × Factor^(n−1), at
// most MaxBackoff, changed by at most ± Jitter of itself. spread is a random number in [0, 1).
func (r Retry) Wait(n int, spread float64) time.Duration {
	// The power is limited before the multiplication, because 0 × ∞ is not a number.
	d := float64(r.Backoff) * min(math.Pow(r.Factor, float64(n-1)), math.MaxFloat64)
	d = min(d, float64(r.MaxBackoff))
	d *= 1 + r.Jitter*(2*spread-1)
	return time.Duration(max(d, 0)).Truncate(time.Millisecond)
}
