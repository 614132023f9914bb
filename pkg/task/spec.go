package task

import (
	"encoding/json"
	"slices"
	"time"
)

// Spec is a task as its user wrote it, every default filled in.
type Spec struct {
	Name        string            `json:"name" doc:"Letters a-z, digits, '.', '_', '-'; at most 128 bytes."`
	Namespace   string            `json:"namespace" doc:"Default: default."`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Schedule    Schedules         `json:"schedule" doc:"One expression or a list: cron with 5 or 6 fields, @hourly and its kin, @every 90s, @at 2026-12-24T18:00:00Z, @manual."`
	Timezone    string            `json:"timezone" doc:"A name from the tz database. Default: UTC."`
	DST         DST               `json:"dst,omitzero"`
	Action      Action            `json:"action"`
	Timeout     Duration          `json:"timeout,omitzero" doc:"Per attempt; 0s is none."`
	KillGrace   Duration          `json:"kill_grace" doc:"From SIGTERM to SIGKILL. Default: 10s."`
	Overlap     string            `json:"overlap" doc:"skip (default) or allow."`
	Missed      MissedPolicy      `json:"missed"`
	Retry       Retry             `json:"retry"`
	Target      Target            `json:"target"`
	History     History           `json:"history"`
	Paused      bool              `json:"paused,omitempty"`
}

// Schedules is one expression or several. In JSON a single one is a plain string.
type Schedules []string

// MarshalJSON writes a single expression as a string.
func (s Schedules) MarshalJSON() ([]byte, error) {
	switch len(s) {
	case 0:
		return []byte("[]"), nil
	case 1:
		return json.Marshal(s[0])
	}
	return json.Marshal([]string(s))
}

// UnmarshalJSON reads a string or a list of strings; null changes nothing.
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

// Action is what a run does: exactly one of its fields is set.
type Action struct {
	Process *Process `json:"process,omitempty"`
	Noop    *Noop    `json:"noop,omitempty"`
}

// Process starts a program on the node: Command as it is, or Shell as a line for /bin/sh -c.
type Process struct {
	Command []string          `json:"command,omitempty"`
	Shell   string            `json:"shell,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty" doc:"Working directory, absolute. Default: the user's home."`
	User    string            `json:"user,omitempty" doc:"Default: the daemon's user."`
}

// Noop succeeds at once: for benchmarks and tests.
type Noop struct{}

// The overlap policies: what happens to a tick while a run of its task is active.
const (
	OverlapSkip  = "skip"  // the tick is skipped
	OverlapAllow = "allow" // it runs beside the others
)

// The missed policies: what happens to ticks that come to light too late.
const (
	MissedLatest = "latest" // the newest within the window runs
	MissedSkip   = "skip"   // none runs, but one still within its grace
	MissedAll    = "all"    // the newest Limit within the window run
)

// MissedPolicy is the policy for ticks that come to light late.
type MissedPolicy struct {
	Policy string   `json:"policy" doc:"latest (default), skip or all."`
	Grace  Duration `json:"grace" doc:"A tick this late is still on time. Default: 10s."`
	Window Duration `json:"window" doc:"Ticks older than this never run. Default: 1h."`
	Limit  int      `json:"limit" doc:"With all: at most this many, the newest. Default: 100."`
}

// Retry says which failed attempts are followed by another, and when: after
// Backoff × Factor^(n−1), at most MaxBackoff, spread by ± Jitter.
type Retry struct {
	Attempts   int      `json:"attempts" doc:"Attempts in all, the first included. Default: 1."`
	Backoff    Duration `json:"backoff" doc:"Wait before the second attempt. Default: 10s."`
	Factor     float64  `json:"factor" doc:"Each wait is the last times this. Default: 2."`
	MaxBackoff Duration `json:"max_backoff" doc:"Default: 5m."`
	Jitter     float64  `json:"jitter" doc:"Spread of the wait, 0 to 1. Default: 0.2."`
	On         []State  `json:"on" doc:"Of failed, timed_out, lost. Default: failed, timed_out."`
}

// Target says where runs of a task may run.
type Target struct {
	Selector string `json:"selector,omitempty" doc:"Node labels: \"role = db, zone in (a, b), !gpu\"."`
	Strategy string `json:"strategy" doc:"auto (default): the owner's own node if it matches and has a slot, else the less loaded of two."`
	Count    int    `json:"count" doc:"On how many nodes. Default and, for now, only value: 1."`
}

// StrategyAuto is the one placement strategy so far.
const StrategyAuto = "auto"

// History says what is kept of ended runs.
type History struct {
	Keep   int    `json:"keep" doc:"Ended runs kept per task. Default: 20."`
	Record string `json:"record" doc:"all (default) or failures: runs that succeed are removed when newer ones have ended."`
}

// Which ended runs are kept.
const (
	RecordAll      = "all"
	RecordFailures = "failures" // and the newest record: for what runs often and rarely fails
)

// Defaults is a Spec with nothing but defaults: decode a user's document onto it.
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

// Task is a Spec with what Carillon adds when it is stored.
type Task struct {
	Spec
	UID        string `json:"uid"`
	Generation int64  `json:"generation"` // grows by one with every change
	CreatedAt  Time   `json:"created_at"`
	UpdatedAt  Time   `json:"updated_at"`
	UpdatedBy  string `json:"updated_by,omitempty"`
	// Revision is the mod revision of the task's key: what --revision and
	// If-Match compare. It is not stored, etcd has it.
	Revision int64 `json:"revision,omitempty"`
}

// Entry is what firing needs of a task. It lives in the task's shard, so that
// an owner loads its share and nothing else.
type Entry struct {
	UID        string       `json:"uid"`
	Generation int64        `json:"generation"`
	Schedule   Schedules    `json:"schedule"`
	Timezone   string       `json:"timezone"`
	DST        DST          `json:"dst,omitzero"`
	From       Time         `json:"from"`   // ticks up to here are decided
	Anchor     Time         `json:"anchor"` // @every counts from here
	Paused     bool         `json:"paused,omitempty"`
	Action     Action       `json:"action"`
	Timeout    Duration     `json:"timeout,omitzero"`
	KillGrace  Duration     `json:"kill_grace"`
	Overlap    string       `json:"overlap"`
	Missed     MissedPolicy `json:"missed"`
	Retry      Retry        `json:"retry"`
	Target     Target       `json:"target"`
	History    History      `json:"history"`
}

// NewEntry makes the entry of t. from and anchor are the caller's to decide.
func NewEntry(t Task, from, anchor Time) Entry {
	return Entry{
		UID: t.UID, Generation: t.Generation, Schedule: t.Schedule, Timezone: t.Timezone, DST: t.DST,
		From: from, Anchor: anchor, Paused: t.Paused, Action: t.Action, Timeout: t.Timeout, KillGrace: t.KillGrace,
		Overlap: t.Overlap, Missed: t.Missed, Retry: t.Retry, Target: t.Target, History: t.History,
	}
}

// SameTicks reports whether two specs have the same ticks: if not, the new
// schedule has none before it was written.
func SameTicks(a, b Spec) bool {
	return slices.Equal(a.Schedule, b.Schedule) && a.Timezone == b.Timezone && a.DST == b.DST
}
