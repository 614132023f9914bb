// Package task defines Carillon's domain types: tasks, entries, runs and their states, policies, validation and
// errors.
//
// It imports only the standard library, performs no I/O, and reads no clock: callers pass the time.
package task

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Spec is a task as its user wrote it, with all defaults filled in.
type Spec struct {
	Name        string            `json:"name" doc:"The name of the task: a-z, 0-9, '.', '_' and '-'; it begins and ends with a letter or digit, and has no two dots in a row." maxLength:"128" pattern:"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$" example:"nightly-backup"`
	Namespace   string            `json:"namespace" doc:"The namespace of the task, with the same rules as name. It must exist." maxLength:"128" pattern:"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"`
	Description string            `json:"description,omitempty" doc:"What the task is for." absent:"none" maxLength:"4096"`
	Labels      map[string]string `json:"labels,omitempty" doc:"Labels by which tasks can be selected. Keys have letters, digits, '.', '_', '-' and '/', values the same without '/', each at most 63 bytes." absent:"none" maxProperties:"64" example:"{\"team\": \"data\"}"`
	Schedule    Schedules         `json:"schedule" doc:"When the task runs: cron with 5 or 6 fields, @hourly and similar, @every 90s, @at TIME, @in 10m, @manual, @reboot, or a list of up to 16 of these."`
	Timezone    string            `json:"timezone" doc:"The time zone of the schedule, a name from the tz database such as Europe/Berlin." example:"Europe/Berlin"`
	DST         DST               `json:"dst,omitzero" doc:"What a wall-clock schedule does where the clocks change."`
	Start       Time              `json:"start,omitzero" doc:"No ticks before this time. In files and on the command line it can be local, such as 2026-12-24 18:00; the years are 2000 to 2100." absent:"none"`
	End         Time              `json:"end,omitzero" doc:"No ticks after this time." absent:"none"`
	Jitter      Duration          `json:"jitter,omitzero" doc:"Delays each tick by up to this much, by a stable hash, but never past the next tick." absent:"none" min:"1ms" max:"24h"`
	MaxRuns     int64             `json:"max_runs,omitempty" doc:"The schedule ends after this many ticks have run." absent:"no limit" min:"0" max:"1000000000"`
	TTL         Duration          `json:"ttl,omitzero" doc:"Deletes the task this long after its schedule and its last run have ended." absent:"never" min:"1s" max:"87840h"`
	After       Sources           `json:"after,omitempty" doc:"The tasks after whose runs this task runs: names, or objects. Each end of a run that matches starts a run, beside the ticks of the schedule, if there is one. The tasks are in the same namespace." absent:"none" maxItems:"16"`
	Join        string            `json:"join,omitempty" doc:"With several sources in after: any starts a run for each end of any of them." absent:"none; required with several sources" enum:"any"`
	Action      Action            `json:"action" doc:"What a run does: exactly one of process, http, noop and workflow."`
	Timeout     Duration          `json:"timeout,omitzero" doc:"Time limit of each attempt, without the time that it is paused. With an HTTP action it is 30s unless set, and at most 1h. With a workflow it is the limit of the whole run, 24h unless set." absent:"none" min:"0s" max:"8784h"`
	KillGrace   Duration          `json:"kill_grace" doc:"Time between kill_signal and SIGKILL." min:"0s" max:"1h"`
	Overlap     string            `json:"overlap" doc:"What happens to a tick that falls due while another run of the task is active." enum:"skip,queue,replace,allow"`
	Queue       QueuePolicy       `json:"queue,omitzero" doc:"With overlap queue: how many ticks may wait."`
	MaxActive   int               `json:"max_active,omitempty" doc:"With overlap allow: the maximum number of active runs." absent:"no limit" min:"0" max:"1000"`
	Missed      MissedPolicy      `json:"missed" doc:"What happens to ticks that are processed late."`
	Deadline    Duration          `json:"start_deadline,omitzero" doc:"A run that has not started this long after its tick was due is missed." absent:"none" min:"1s" max:"8784h"`
	Retry       Retry             `json:"retry" doc:"Which attempts are followed by another one, and when."`
	Target      Target            `json:"target" doc:"On which nodes runs may run."`
	History     History           `json:"history" doc:"What is kept of ended runs."`
	Output      Output            `json:"output,omitzero" doc:"What is kept of the output of attempts."`
	PauseAfter  int               `json:"pause_after_failures,omitempty" doc:"The task is paused after this many consecutive failed runs." absent:"never" min:"0" max:"1000"`
	Shadow      bool              `json:"shadow,omitempty" doc:"Ticks are decided and recorded but start nothing. Each tick that would run is skipped with the reason shadow."`
	Paused      bool              `json:"paused,omitempty" doc:"A paused task has no ticks. It can still be triggered."`
	PausedUntil Time              `json:"paused_until,omitzero" doc:"With paused: ticks resume after this time." absent:"none"`
	PauseReason string            `json:"pause_reason,omitempty" doc:"With paused: why." absent:"none" maxLength:"256"`
	KillSignal  string            `json:"kill_signal,omitempty" doc:"The signal that asks a process to end, kill_grace before SIGKILL." absent:"SIGTERM" enum:"SIGTERM,SIGINT,SIGQUIT,SIGHUP,SIGUSR1,SIGUSR2,SIGABRT,SIGALRM,SIGWINCH,SIGKILL"`
	Success     Success           `json:"success,omitzero" doc:"What counts as success of a process."`
	Accept      Accept            `json:"accept,omitzero" doc:"What a manual run may give in addition to the task. A caller who may trigger the task may give all of it."`
	Alerts      *Alerts           `json:"alerts,omitempty" doc:"What is expected of the task, and whom to notify when that is not met."`
	Receiver    *Receiver         `json:"receiver,omitempty" doc:"Makes the task a receiver of alerts. It is started for each message."`
	Metrics     *bool             `json:"metrics,omitempty" doc:"Whether /metrics has metrics of this task: its last success, its last end, the duration of its last run and its consecutive failures. A node reports at most 10000 tasks." absent:"the task_metrics of the namespace"`
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

// The expressions of schedules without ticks. They cannot be combined with others.
const (
	ManualSchedule = "@manual"
	BootSchedule   = "@reboot"
)

// HasTicks reports whether the schedule has ticks: it is neither @manual nor @reboot.
func (s Schedules) HasTicks() bool { return !s.isOnly(ManualSchedule) && !s.AtBoot() }

// AtBoot reports whether the task runs when a node boots.
func (s Schedules) AtBoot() bool { return s.isOnly(BootSchedule) }

// isOnly reports whether the schedule is one expression.
func (s Schedules) isOnly(expr string) bool { return len(s) == 1 && strings.TrimSpace(s[0]) == expr }

// Action is what a run does. Exactly one field is set.
type Action struct {
	Process *Process `json:"process,omitempty" doc:"Starts a program: either command or shell." oneof:"kind,required"`
	HTTP    *HTTP    `json:"http,omitempty" doc:"Sends one request. An attempt writes it at most once." oneof:"kind,required"`
	Noop    *Noop    `json:"noop,omitempty" doc:"Succeeds at once: for benchmarks and tests." oneof:"kind,required"`

	Workflow *Workflow `json:"workflow,omitempty" doc:"Runs several steps in order." oneof:"kind,required"`
}

// Process starts a program on the node: Command directly, or Shell as a line for /bin/sh -c.
type Process struct {
	Command []string          `json:"command,omitempty" doc:"The program and its arguments, passed on as they are, without a shell." minItems:"1" maxItems:"1024" example:"pg_dump,orders" oneof:"program,required"`
	Shell   string            `json:"shell,omitempty" doc:"A line, or several, for /bin/sh -c." minLength:"1" maxLength:"65536" oneof:"program,required"`
	Stdin   *Stdin            `json:"stdin,omitempty" doc:"The standard input of the process: exactly one of text, secret and file. Without it, the input is empty."`
	Env     map[string]string `json:"env,omitempty" doc:"Environment variables. Names have no '=' and do not begin with CARILLON_." absent:"none" maxProperties:"256"`
	EnvFrom []EnvFrom         `json:"env_from,omitempty" doc:"Variables from files on the node and from secrets. Later entries override earlier ones, and env overrides all." absent:"none" maxItems:"32"`
	Dir     string            `json:"dir,omitempty" doc:"The working directory, an absolute path on the node." absent:"the user's home" pattern:"^/"`
	User    string            `json:"user,omitempty" doc:"The user of the process. Another user than the default requires a daemon that runs as root, and a namespace that allows it." absent:"the node's default_user"`

	Group      string   `json:"group,omitempty" doc:"The group of the process, a name or a number that the namespace allows." absent:"the user's own"`
	Groups     []string `json:"groups,omitzero" doc:"Supplementary groups that the namespace allows; an empty list means none." absent:"the user's" maxItems:"64" uniqueItems:"true"`
	Umask      string   `json:"umask,omitempty" doc:"The umask, in octal and quoted." absent:"the daemon's" pattern:"^0?[0-7]{1,3}$" example:"027"`
	Nice       int      `json:"nice,omitempty" doc:"The niceness, from -20 (highest priority) to 19." absent:"the daemon's" min:"-20" max:"19"`
	IONice     string   `json:"ionice,omitempty" doc:"The I/O scheduling class: idle, best-effort or realtime; the latter two with or without a level from 0 to 7." absent:"the daemon's" pattern:"^(idle|(best-effort|realtime)(/[0-7])?)$" example:"best-effort/7"`
	NoNewPrivs bool     `json:"no_new_privs,omitempty" doc:"Processes gain no privileges from setuid, setgid or file capabilities (no_new_privs)."`
	PrivateTmp bool     `json:"private_tmp,omitempty" doc:"Gives the attempt its own empty /tmp and /var/tmp, which are removed when the attempt has ended."`
	Scratch    bool     `json:"scratch,omitempty" doc:"Gives the attempt an empty directory of its own, which is removed when the attempt has ended. CARILLON_SCRATCH has its path. It is the working directory unless dir is set."`
	Limits     Limits   `json:"limits,omitzero" doc:"What the processes of an attempt may use."`
	Enforce    string   `json:"enforce,omitempty" doc:"What happens if the node cannot enforce all of these settings. require: the attempt fails before it starts. report: it runs, and its record says so. User and groups are always required." absent:"require" enum:"require,report"`
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
	Limit int    `json:"limit,omitempty" doc:"With overlap queue: the maximum number of waiting ticks, or of waiting triggers. Catch-up ticks do not count. At most 100. With after, at most 1000, and 100 if not set." absent:"10" min:"1" max:"1000"`
	Drop  string `json:"drop,omitempty" doc:"With overlap queue: which tick is skipped when the queue is full." absent:"newest" enum:"newest,oldest"`
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
	Policy string   `json:"policy" doc:"What runs of ticks that could not be processed in time: the newest, none, or all within limit and window." enum:"latest,skip,all"`
	Grace  Duration `json:"grace" doc:"A tick that is at most this late counts as on time." min:"1s" max:"1h"`
	Window Duration `json:"window" doc:"Ticks that are later than this never run. It is at least grace." min:"1s" max:"8784h"`
	Limit  int      `json:"limit" doc:"With policy all: the maximum number of late ticks that run, the newest ones." min:"1" max:"10000"`
}

// Retry defines which attempts are followed by another one, and when: after Backoff × Factor^(n−1), at most
// MaxBackoff, spread by ± Jitter.
type Retry struct {
	Attempts   int      `json:"attempts" doc:"Maximum number of attempts, including the first." min:"1" max:"100"`
	Backoff    Duration `json:"backoff" doc:"Wait before the second attempt." min:"0s" max:"168h"`
	Factor     float64  `json:"factor" doc:"The factor between one wait and the next." min:"1" max:"100"`
	MaxBackoff Duration `json:"max_backoff" doc:"The longest wait between two attempts." min:"0s" max:"168h"`
	Jitter     float64  `json:"jitter" doc:"Each wait varies at random by up to this fraction of it." min:"0" max:"1"`
	On         []State  `json:"on" doc:"The states to retry. With lost, a run may execute twice." enum:"failed,timed_out,lost" uniqueItems:"true"`
	ExitCodes  []int    `json:"exit_codes,omitempty" doc:"With failed in on: only attempts that ended with one of these exit codes are retried." absent:"any" min:"1" max:"255" uniqueItems:"true"`
}

// Target defines on which nodes the runs of a task may run.
type Target struct {
	Selector string `json:"selector,omitempty" doc:"The nodes that may run the task, by labels and facts." absent:"any node" maxLength:"1024" example:"role = db, zone in (a, b), !gpu, disk_free > 10Gi"`
	Strategy string `json:"strategy" doc:"How a node is chosen among those that match. docs/how-to/place.md says what each strategy does when a node is gone, full or draining." enum:"auto,round-robin,random,weighted,least-loaded,hash,first,sticky"`
	Count    Count  `json:"count" doc:"On how many matching nodes each run has one part: 1 to 1000, or all."`
	// Key and Order each apply to one strategy only.
	Key   string   `json:"key,omitempty" doc:"With strategy hash: runs with the same key go to the same node." absent:"the task's namespace and name" maxLength:"256"`
	Order []string `json:"order,omitempty" doc:"With strategy first: the nodes that may run the task, the preferred node first." absent:"none" maxItems:"100" uniqueItems:"true"`

	Parts   int      `json:"parts,omitempty" doc:"Splits each run into this many parts, on any matching nodes. It cannot be combined with count." absent:"no parts" min:"0" max:"1000"`
	Stagger Duration `json:"stagger,omitzero" doc:"With several parts: the delay between the starts of two parts." absent:"none" min:"1ms" max:"1h"`
	Succeed Succeed  `json:"succeed,omitempty" doc:"The number of parts that must succeed: all, any, a number, or a percentage such as 80%." absent:"all"`
}

// History defines which ended runs are kept.
type History struct {
	Keep   int    `json:"keep" doc:"How many ended runs are kept. Those that ended last are kept." min:"1" max:"10000"`
	Record string `json:"record" doc:"Which ended runs are kept: all, or only failures and the newest run, for tasks that run often and rarely fail." enum:"all,failures"`
	// KeepFor keeps younger records in addition to the newest Keep, up to MaxHistory records. The age counts from the tick.
	KeepFor Duration `json:"keep_for,omitzero" doc:"Ended runs whose ticks are younger than this are kept in addition to the newest keep, at most 10000." absent:"none" min:"0s" max:"2160h"`
	// Ledger is how long the ledger remembers the outcomes of ticks whose records are no longer kept.
	Ledger *Duration `json:"ledger,omitempty" doc:"How long the ledger remembers the outcomes of ticks whose runs are no longer kept. 0s means not at all." absent:"the cluster's setting, 720h (30 days) if nobody has changed it" min:"0s" max:"2160h"`
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

// bootDefaults returns a Spec with all defaults of a task that runs at boot. Nodes often boot together, and none of them waits for
// the run of another one.
func bootDefaults() Spec {
	s := Defaults()
	s.Schedule, s.Overlap = Schedules{BootSchedule}, OverlapAllow

	return s
}

// WithDefaults returns the task with the defaults of the fields that are not set, as if they were absent in JSON. So a program
// can begin with an empty Spec:
//
//	task.Spec{Name: "backup", Schedule: task.Schedules{"@daily"}, Action: …}
//
// A Spec that was read, decoded or begun with Defaults stays as it is: its zeros are values, such as a kill_grace of 0s, or
// mistakes that Validate must see. It is recognized by the fields that always have a value: at most one of them is empty. In
// any other Spec, retry keeps its zeros if retry.factor is set, which cannot be 0.
func (s Spec) WithDefaults() Spec {
	unset := 0
	for _, is := range []bool{s.Timezone == "", s.Overlap == "", s.Missed.Policy == "", s.Missed.Window == 0, s.Retry.Attempts == 0, s.Retry.Factor == 0,
		s.Target.Strategy == "", s.History.Keep == 0, s.History.Record == ""} {
		if is {
			unset++
		}
	}
	if unset < 2 {
		return s
	}

	std := DefaultsOf(s)
	s.Namespace, s.Timezone = cmp.Or(s.Namespace, std.Namespace), cmp.Or(s.Timezone, std.Timezone)
	s.DST.Gap, s.DST.Fold = cmp.Or(s.DST.Gap, std.DST.Gap), cmp.Or(s.DST.Fold, std.DST.Fold)
	s.Timeout, s.KillGrace = cmp.Or(s.Timeout, std.Timeout), cmp.Or(s.KillGrace, std.KillGrace)
	s.Overlap, s.MaxActive = cmp.Or(s.Overlap, std.Overlap), cmp.Or(s.MaxActive, std.MaxActive)
	if s.Schedule == nil {
		s.Schedule = std.Schedule
	}

	m := &s.Missed
	m.Policy, m.Grace = cmp.Or(m.Policy, std.Missed.Policy), cmp.Or(m.Grace, std.Missed.Grace)
	m.Window, m.Limit = cmp.Or(m.Window, std.Missed.Window), cmp.Or(m.Limit, std.Missed.Limit)

	s.Retry = s.Retry.withDefaults(std.Retry)
	s.Action.Workflow = s.Action.Workflow.withDefaults(std.Retry)

	s.Target.Strategy, s.Target.Count = cmp.Or(s.Target.Strategy, std.Target.Strategy), cmp.Or(s.Target.Count, std.Target.Count)
	s.History.Keep, s.History.Record = cmp.Or(s.History.Keep, std.History.Keep), cmp.Or(s.History.Record, std.History.Record)

	return s
}

// withDefaults returns the policy with the defaults of the fields that are not set.
func (r Retry) withDefaults(std Retry) Retry {
	if r.Factor == 0 {
		r.Backoff, r.MaxBackoff = cmp.Or(r.Backoff, std.Backoff), cmp.Or(r.MaxBackoff, std.MaxBackoff)
		r.Factor, r.Jitter = std.Factor, cmp.Or(r.Jitter, std.Jitter)
	}
	r.Attempts = cmp.Or(r.Attempts, std.Attempts)
	if r.On == nil {
		r.On = std.On
	}

	return r
}

// withDefaults returns the workflow with the defaults of the retry policies of its steps.
func (w *Workflow) withDefaults(std Retry) *Workflow {
	if w == nil {
		return nil
	}

	c := *w
	c.Steps = maps.Clone(w.Steps)
	for name, step := range c.Steps {
		if step.Retry != nil {
			retry := step.Retry.withDefaults(std)
			step.Retry = &retry
			c.Steps[name] = step
		}
	}

	return &c
}

// Task is a stored Spec with the fields that Carillon adds.
type Task struct {
	Spec
	UID        string `json:"uid" doc:"Identifies the task. A task that is created again under the same name has another one."`
	Generation int64  `json:"generation" doc:"Increases by one with every change."`
	CreatedAt  Time   `json:"created_at" doc:"When the task was created."`
	UpdatedAt  Time   `json:"updated_at" doc:"When its current version was stored."`
	UpdatedBy  *Actor `json:"updated_by,omitempty" doc:"Who stored its current version."`
	Change     string `json:"change,omitempty" doc:"What made this version." enum:"created,updated,paused,resumed,rolled_back,undeleted"`
	// Revision is the mod revision of the task's key, which --revision and If-Match compare. It is not part of
	// the stored value.
	Revision int64 `json:"revision,omitempty" record:"-" doc:"The etcd revision of its last change, which If-Match compares."`
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
	Links      []Link       `json:"links,omitempty"` // to the sources in after; see LinksOf
	Join       string       `json:"join,omitempty"`
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
	Alerts     *Alerts      `json:"alerts,omitempty"`
	Receiver   *Receiver    `json:"receiver,omitempty"`
	Metrics    *bool        `json:"metrics,omitempty"`
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
	// Counted is the create revision of the last history record that Failures includes. It makes each end count
	// once, whichever owner sees it.
	Counted int64 `json:"counted,omitempty"`
	// Pauses contains the latest pauses, the newest last. If the entry is paused, the last one is in force.
	Pauses []Pause `json:"pauses,omitempty"`
	// Node is the node of the last run; only kept with strategy sticky.
	Node string `json:"node,omitempty"`
}

// Pause is a period without ticks.
type Pause struct {
	Since   Time   `json:"since" doc:"When it began."`
	By      *Actor `json:"by,omitempty" doc:"Who paused the task; carillon, if it did so itself."`
	Reason  string `json:"reason,omitempty" doc:"Why, as its author wrote it."`
	Until   Time   `json:"until,omitzero" doc:"The pause ends by itself at this time."`
	Ended   Time   `json:"ended,omitzero" doc:"When a user ended it before Until."`
	EndedBy *Actor `json:"ended_by,omitempty" doc:"Who ended it before its end."`
}

// PausedByFailures is the author of the pause of a task that failed too often.
const PausedByFailures = "carillon"

// KeepPauses is the number of pauses that an entry keeps.
const KeepPauses = 5

// Equal reports whether two pauses are the same.
func (p Pause) Equal(o Pause) bool {
	if !p.By.Equal(o.By) || !p.EndedBy.Equal(o.EndedBy) {
		return false
	}
	p.By, p.EndedBy, o.By, o.EndedBy = nil, nil, nil, nil

	return p == o
}

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

// NewEntry returns the entry of t. The caller chooses from and anchor, and sets the links (LinksOf).
func NewEntry(t Task, from, anchor Time) Entry {
	if t.Action.Workflow != nil {
		t.Action = Action{Workflow: &Workflow{}} // the owner reads the steps when a run begins
	}

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
		Join:       t.Join,
		Alerts:     t.Alerts,
		Receiver:   t.Receiver,
		Metrics:    t.Metrics,
		Output:     t.Output,
		Labels:     t.Labels,
	}
}

// Validate rejects an entry whose policies the API would have rejected, because the scheduler does not expect such values.
func (e Entry) Validate() error {
	spec := Spec{
		Schedule: e.Schedule, Timezone: e.Timezone, DST: e.DST, Start: e.Start, End: e.End,
		Jitter: e.Jitter, MaxRuns: e.MaxRuns, TTL: e.TTL, Action: e.Action, Timeout: e.Timeout, KillGrace: e.KillGrace,
		Overlap: e.Overlap, Queue: e.Queue, MaxActive: e.MaxActive, Missed: e.Missed, Deadline: e.Deadline, PauseAfter: e.PauseAfter,
		Retry: e.Retry, Target: e.Target, History: e.History, Output: e.Output, KillSignal: e.KillSignal, Success: e.Success,
		Accept: e.Accept, Alerts: e.Alerts, Receiver: e.Receiver, Metrics: e.Metrics, Join: e.Join,
	}
	for _, l := range e.Links {
		spec.After = append(spec.After, Source{Task: l.Task})
	}

	if w := e.Action.Workflow; w != nil && len(w.Steps) == 0 {
		spec.Action = Action{Noop: &Noop{}} // the steps are in the spec only
	}

	return spec.validateFields()
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
	ChangeUndeleted  = "undeleted"
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
