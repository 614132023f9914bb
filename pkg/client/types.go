package client

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// List is a page of a list. Next is the token of the next page; it is empty on the last page.
type List[T any] struct {
	Items []T    `json:"items" doc:"The items of this page."`
	Next  string `json:"next,omitempty" doc:"Token of the next page; absent on the last."`
}

// QueryList is a page of a list of tasks, or of their ticks, that the owners of shards may have answered.
type QueryList[T any] struct {
	List[T]
	ListInfo
}

// ListInfo describes a list that the owners of shards have answered. All fields are absent if the list was read from
// etcd, which is the case if it is sorted by name and filters only by namespace and name.
type ListInfo struct {
	Count      *int      `json:"count,omitempty" doc:"How many tasks match, on all pages together. Those of missing shards are not counted."`
	AsOf       task.Time `json:"as_of,omitzero" doc:"The list contains all changes up to this time."`
	AgeMS      int64     `json:"age_ms,omitempty" doc:"From as_of to now, in milliseconds, on the server's clock."`
	Shards     int       `json:"shards,omitempty" doc:"The number of shards of the cluster."`
	Missing    []int     `json:"missing,omitempty" doc:"The shards whose owners have not answered. Their tasks are not in the list."`
	Collecting *int      `json:"collecting,omitempty" doc:"Owners that have just taken over shards have read the history of this percentage of the tasks. Until it is 100, tasks may be missing that are selected or sorted by how their runs ended; absent at 100."`
}

// Include adds what the next page of the same list says.
func (i *ListInfo) Include(page ListInfo) {
	if i.Shards == 0 {
		*i = page
		return
	}

	if page.AgeMS > i.AgeMS {
		i.AsOf, i.AgeMS = page.AsOf, page.AgeMS
	}
	if page.Collecting != nil && (i.Collecting == nil || *page.Collecting < *i.Collecting) {
		i.Collecting = page.Collecting
	}

	i.Missing = slices.Compact(slices.Sorted(slices.Values(slices.Concat(i.Missing, page.Missing))))
}

// AttemptStatuses contains what the running attempts of a node have reported.
type AttemptStatuses struct {
	Node  string               `json:"node" doc:"The node that answers."`
	Items []task.AttemptStatus `json:"items" doc:"What its running attempts have reported."`
}

// AttemptCancel is the answer of a node that was asked to end one of its attempts.
type AttemptCancel struct {
	Node string `json:"node" doc:"The node that answers."`
	task.LateCancelled
}

// Task is a task as the API returns it: the spec as stored, and the state of the task.
type Task struct {
	task.Task
	Next    task.Time `json:"next,omitzero" doc:"The next tick; absent if the task has no next tick or is paused indefinitely."`
	LeftMS  int64     `json:"left_ms,omitempty" doc:"From now to next, in milliseconds, on the server's clock."`
	LastRun *task.Run `json:"last_run,omitempty" doc:"The newest run that is active or on record."`
	Active  int       `json:"active" doc:"Active runs: those in a node's inbox, and those whose parts have begun."`
	// These fields come from the entry, and not from what the user wrote.
	Pause    *task.Pause `json:"pause,omitempty" doc:"For a paused task: when, by whom and why it was paused, and until when."`
	Counted  int64       `json:"counted_runs,omitempty" doc:"With max_runs: the number of ticks that became runs."`
	Failures int         `json:"failures_in_a_row,omitempty" doc:"With pause_after_failures: how many runs in a row have failed."`
	NoNext   string      `json:"no_next,omitempty" doc:"Why there will never be a next tick, as text; absent if the task is paused, @manual or @reboot."`
	Result   string      `json:"result,omitempty" doc:"What a change did: created, configured or unchanged."`
	Replayed bool        `json:"replayed,omitempty" doc:"An earlier request with the same Idempotency-Key has created this task, which is shown as it is now; without the right to read tasks, only its namespace, name and uid are."`
	Warnings []string    `json:"warnings,omitempty" doc:"For a change: what the author should check, such as a selector that no node matches."`
	// WarningDetails are the same warnings, each with its code.
	WarningDetails []task.Warning `json:"warning_details,omitempty" doc:"The same warnings, each with its code."`
	DryRun         *Change        `json:"dry_run,omitempty" doc:"With dry_run=true: nothing was written, and this is the task as it would be."`
	State          string         `json:"state,omitempty" doc:"The state of the task, the first of these that applies: unreadable (its entry), failing (a run failed, timed out or was lost with its attempts used up; until a later run succeeds, or somebody dismisses it or starts it again), frozen, paused, running, waiting (a run is in the queue), ended (no more ticks), ok." enum:"unreadable,failing,frozen,paused,running,waiting,ended,ok"`
	Recent         []PastRun      `json:"recent,omitempty" doc:"With recent=N: the last N recorded runs, the newest first."`

	// These fields are only in the answer of a read of one task.
	WaitingTriggers []WaitingTriggers `json:"waiting_triggers,omitempty" doc:"In the answer of get-task: the ended runs of its sources that have not been decided, such as while a run of the task is active."`
	Dependents      []Dependent       `json:"dependents,omitempty" doc:"In the answer of get-task: the tasks that run after this one."`

	// DroppedTriggers is only in the answer of Resume.
	DroppedTriggers int64 `json:"dropped_triggers,omitempty" doc:"In the answer of resume-task: how many ended runs of its sources were skipped because the task was paused, as far as its history has them. They do not run later."`
}

// WaitingTriggers counts the ended runs of a source that wait to start a run of the task.
type WaitingTriggers struct {
	Source string    `json:"source" doc:"The name of the source."`
	Count  int       `json:"count" doc:"How many of its runs wait."`
	Oldest task.Time `json:"oldest" doc:"Since when the oldest of them waits."`
}

// Dependent is a task that runs after another one.
type Dependent struct {
	Task string    `json:"task" doc:"The name of the dependent, a task of the same namespace."`
	When task.When `json:"when" doc:"Which ends of the source start it." enum:"succeeded,failed,ended"`
}

// Graph contains tasks of a namespace and the links between them.
type Graph struct {
	Namespace string      `json:"namespace" doc:"The namespace of the tasks."`
	Tasks     []GraphTask `json:"tasks" doc:"The tasks with links, by name. With task, also that one."`
	Links     []GraphLink `json:"links" doc:"The links between these tasks, by source and dependent."`
	Revision  int64       `json:"revision" doc:"The revision of etcd at which the links were read."`
}

// GraphTask is a task in a graph.
type GraphTask struct {
	Name            string            `json:"name" doc:"The name of the task."`
	Missing         bool              `json:"missing,omitempty" doc:"The task was deleted by force, and others still name it. It has no state."`
	State           string            `json:"state,omitempty" doc:"The state of the task, as in get-task." enum:"unreadable,failing,frozen,paused,running,waiting,ended,ok"`
	Paused          bool              `json:"paused,omitempty" doc:"The task is paused."`
	Active          int               `json:"active,omitempty" doc:"Its active runs."`
	LastRun         *PastRun          `json:"last_run,omitempty" doc:"The newest run that is active or on record."`
	WaitingTriggers []WaitingTriggers `json:"waiting_triggers,omitempty" doc:"The ended runs of its sources that have not been decided."`
}

// GraphLink says that a task runs after another one.
type GraphLink struct {
	Source    string    `json:"source" doc:"The name of the source."`
	Dependent string    `json:"dependent" doc:"The name of the dependent."`
	When      task.When `json:"when" doc:"Which ends of the source start the dependent." enum:"succeeded,failed,ended"`
	Results   []string  `json:"results,omitempty" doc:"The results of the source's run that the dependent gets."`
}

// The values of Task.State.
const (
	TaskUnreadable = "unreadable"
	TaskFailing    = "failing"
	TaskFrozen     = "frozen"
	TaskPaused     = "paused"
	TaskRunning    = "running"
	TaskWaiting    = "waiting"
	TaskEnded      = "ended"
	TaskOK         = "ok"
)

// PastRun is a brief form of a recorded run.
type PastRun struct {
	ID     string     `json:"id" doc:"The id of the run."`
	State  task.State `json:"state" doc:"How it ended."`
	Reason string     `json:"reason,omitempty" doc:"Why: one of the reasons in docs/why.md."`
	Count  int64      `json:"count,omitempty" doc:"For a range of ticks that did not run: the number of ticks."`
}

// The values of Task.Result.
const (
	Created    = "created"
	Configured = "configured"
	Unchanged  = "unchanged"
)

// BatchResult is the result of one line of a batch.
type BatchResult struct {
	Line      int       `json:"line" doc:"The line in the request body, counted from 1."`
	Namespace string    `json:"namespace,omitempty" doc:"Absent, like name, if the line cannot be read."`
	Name      string    `json:"name,omitempty" doc:"The name of the task in the line."`
	Result    string    `json:"result" doc:"created, configured, unchanged or failed." enum:"created,configured,unchanged,failed"`
	Revision  int64     `json:"revision,omitempty" doc:"The task's; absent if it failed."`
	Next      task.Time `json:"next,omitzero" doc:"The next tick; absent if the task is paused or has none."`
	Paused    bool      `json:"paused,omitempty" doc:"The task is paused: by this line, or because it failed too often."`
	Task      *Task     `json:"task,omitempty" doc:"With full=true, unless it failed."`
	Change    *Change   `json:"change,omitempty" doc:"With dry_run=true, unless it failed: nothing was written, and this is what would change."`
	Warnings  []string  `json:"warnings,omitempty" doc:"What the author should check, such as a selector that no node matches."`
	// WarningDetails are the same warnings, each with its code.
	WarningDetails []task.Warning `json:"warning_details,omitempty" doc:"The same warnings, each with its code."`
	Error          *Problem       `json:"error,omitempty" doc:"Why it failed. With status 504 it is unknown whether it failed."`
}

// Failed is the Result of a line that failed.
const Failed = "failed"

// Cancelled is a run that a caller has cancelled.
type Cancelled struct {
	task.Run
	// Unrecorded is set if etcd is full. The run's node ends the run, and etcd does not show it until it has space.
	Unrecorded bool `json:"unrecorded,omitempty" doc:"etcd is full: the node of the run ends it now, and the record of its end follows when etcd has space."`
}

// Triggered is a run that a trigger has queued.
type Triggered struct {
	task.Run
	Paused bool `json:"paused,omitempty" doc:"The task is paused, but this run starts anyway."`
	// Replayed means that an earlier copy of the request has queued the run. The run is as it is now.
	Replayed bool `json:"replayed,omitempty" doc:"An earlier request with the same Idempotency-Key has queued this run, which is shown as it is now."`
	// Frozen is the freeze that prevents the run from starting; nil if there is none.
	Frozen *task.Freeze `json:"frozen,omitempty" doc:"The freeze of its namespace or of the cluster that delays it."`
	// Dependents are the tasks that the end of the run may start, depending on how it ends.
	Dependents []Dependent `json:"dependents,omitempty" doc:"The tasks that the end of this run starts, if it ends as they ask. Absent with alone."`
	Warnings   []string    `json:"warnings,omitempty" doc:"Why the run may not start soon, such as a target that is not the name of a present node."`
	// WarningDetails are the same warnings, each with its code.
	WarningDetails []task.Warning `json:"warning_details,omitempty" doc:"The same warnings, each with its code."`
}

// TriggerRequest is the body of a trigger. The body is optional.
type TriggerRequest struct {
	Args   []string          `json:"args,omitempty" doc:"Further arguments of this run. The task must accept them (accept.args)."`
	Env    map[string]string `json:"env,omitempty" doc:"Further environment of this run. The task must accept each variable (accept.env)."`
	Target string            `json:"target,omitempty" doc:"The name of the node on which this run runs. The task must accept it (accept.target)."`
	Period task.Time         `json:"period,omitzero" doc:"The time for which this run works, such as the tick that it replaces. It is not later than now. Runs of dependents get it, too."`
	Alone  bool              `json:"alone,omitempty" doc:"The end of this run starts no dependent of the task."`

	// IdempotencyKey names the request: all requests with the same key by the same subject for the same task give the same
	// run, for at least an hour. Use it to repeat a request after ErrUnknown, or after a restart. "": a random key.
	IdempotencyKey string `json:"-"`
}

// RerunRequest is the body of a rerun. The body is optional.
type RerunRequest struct {
	Env map[string]string `json:"env,omitempty" doc:"Values of variables, in addition to those of the ended run or instead of them. The task must accept each variable (accept.env)."`

	// IdempotencyKey has the same meaning as in TriggerRequest.
	IdempotencyKey string `json:"-"`
}

// Occurrence is one tick of a schedule.
type Occurrence struct {
	Time  task.Time `json:"time" doc:"The tick."`
	Local string    `json:"local" doc:"The same instant in the schedule's zone, with its offset."`
	Note  string    `json:"note" doc:"gap, fold, or empty."`
	// DueBefore is set for a schedule with jitter without a known task, whose uid would determine the due time.
	DueBefore task.Time `json:"due_before,omitzero" doc:"With jitter: the tick is due at time or later, but before this."`
	DueAt     task.Time `json:"due_at,omitzero" doc:"When it is due, if jitter delays it."`
	Obstacle  string    `json:"obstacle,omitempty" doc:"For a tick of a task: why its run could not start as things are now. One of the reasons namespace, no_matching_node and number_of_nodes."`
}

// Coming is a future tick in a list of the ticks of many tasks.
type Coming struct {
	Namespace string `json:"namespace" doc:"The namespace of the task."`
	Task      string `json:"task" doc:"The name of the task."`
	Occurrence
	Timezone string         `json:"timezone" doc:"The time zone of the schedule, a name from the tz database."`
	Schedule task.Schedules `json:"schedule" doc:"The schedule in effect, with H replaced by its values."`
}

// PauseRequest is the body of a pause. The body is optional. If the task is already paused, omitted fields keep
// their values.
type PauseRequest struct {
	Until  task.Time     `json:"until,omitzero" doc:"Ticks resume after this time."`
	For    task.Duration `json:"for,omitzero" doc:"Alternative to until: the duration from now, by the clock of the server."`
	Reason string        `json:"reason,omitempty" doc:"At most 256 bytes."`
}

// TaskVersion is a version of a task.
type TaskVersion struct {
	task.Task
	Changed []string `json:"changed" doc:"Differences from the version before, if that version is still stored: \"timeout: 10m → 20m\"."`
}

// DeletedTask is a task that was deleted within the last week.
type DeletedTask struct {
	Namespace  string      `json:"namespace" doc:"The namespace of the task."`
	Name       string      `json:"name" doc:"The name of the task."`
	UID        string      `json:"uid,omitempty" doc:"That of the deleted task. An undeleted task has a new one."`
	Generation int64       `json:"generation,omitempty" doc:"The number of the version of the task: it increases by one with each change."`
	DeletedAt  task.Time   `json:"deleted_at" doc:"When it was deleted."`
	DeletedBy  *task.Actor `json:"deleted_by,omitempty" doc:"Who deleted it."`
	Why        string      `json:"why,omitempty" doc:"Why the task was deleted, if nobody did."`
	Until      task.Time   `json:"until" doc:"The task can be undeleted until then."`
	Spec       *task.Spec  `json:"spec,omitempty" doc:"What undelete creates. Absent: the task cannot be undeleted."`
}

// RollbackRequest is the body of a rollback.
type RollbackRequest struct {
	To     int64 `json:"to,omitempty" doc:"The generation to go back to. Default: the newest that differs by more than a pause."`
	DryRun bool  `json:"dry_run,omitempty" doc:"Only report what would change."`
}

// RolledBack is a task after a rollback or its dry run.
type RolledBack struct {
	Task
	To      int64    `json:"to" doc:"The generation whose spec the task has now."`
	Changed []string `json:"changed" doc:"The changes: \"timeout: 20m → 10m\"."`
}

// ClusterSettings are the settings that an operator can change. Omitted settings keep their values.
type ClusterSettings struct {
	CatchUpRate *int `json:"catch_up_rate,omitempty" doc:"The maximum number of catch-up runs that start per second in the whole cluster; 0 means the default, 100."`
	// LostAfter is a pointer, because 0s means the default and not an omitted setting.
	LostAfter *task.Duration `json:"lost_after,omitempty" doc:"How long Carillon waits for the attempts of a node without contact before it declares them lost: 12s to 24h; 0s means the default, 2m. A change applies to attempts that are assigned afterwards."`
	// Ledger is a pointer, because 0s means that nothing is remembered.
	Ledger *task.Duration `json:"ledger,omitempty" doc:"How long the ledgers of tasks without history.ledger remember the outcomes of ticks: at most 2160h (90 days); 0s means not at all. Default: 720h (30 days)."`
	// PublicURL is a pointer, because an empty one removes the setting.
	PublicURL *string `json:"public_url,omitempty" doc:"The address of the Web UI, such as https://carillon.example.com, for the links in messages about alerts. Empty: messages have no links."`
	// AlertReceivers is a pointer, because an empty list means nobody.
	AlertReceivers *[]string `json:"alert_receivers,omitempty" doc:"The receivers of alerts about the cluster, each as NAMESPACE/NAME: at most 10. They must exist."`
}

// ScheduleRequest is the body of a request for the ticks of a schedule without a task.
type ScheduleRequest struct {
	Schedule task.Schedules `json:"schedule" doc:"One expression or a list."`
	Timezone string         `json:"timezone,omitempty" doc:"A name from the tz database. Default: UTC."`
	DST      task.DST       `json:"dst,omitzero" doc:"What the schedule does where the clocks change."`
	Start    task.Time      `json:"start,omitzero" doc:"No ticks before this."`
	End      task.Time      `json:"end,omitzero" doc:"No ticks after this."`
	Jitter   task.Duration  `json:"jitter,omitzero" doc:"The maximum delay of a tick by jitter."`
	// Namespace and Name determine the value that replaces H.
	Namespace string    `json:"namespace,omitempty" doc:"With name. Default: default."`
	Name      string    `json:"name,omitempty" doc:"The name of the task, which determines the value of H."`
	From      task.Time `json:"from,omitzero" doc:"Ticks after this; @every and @in count from it. Default: now."`
	Count     int       `json:"count,omitempty" doc:"How many, at most 1000. Default: 5."`
}

// Key is an etcd key that belongs to a task.
type Key struct {
	Key     string `json:"key" doc:"The key."`
	What    string `json:"what" doc:"spec, entry, queue, history, dead, versions, inbox, watermark or owner."`
	Present bool   `json:"present" doc:"Whether etcd has this key now."`
}

// Keys are the etcd keys of a task, and how to read them without Carillon.
type Keys struct {
	Items   []Key  `json:"items" doc:"The keys of the task, with what each of them is for."`
	Command string `json:"command" doc:"A command line of etcdctl that prints the spec and the entry."`
}

// ClusterStatus is the state of the cluster.
type ClusterStatus struct {
	ID     string `json:"id" doc:"Identifies the cluster."`
	Shards int    `json:"shards" doc:"The number of shards."`
	Epoch  int    `json:"epoch" doc:"Increases with each restore of etcd from a snapshot. It is a Unix time in seconds, except for the first."`
	// Restored is the last restore.
	Restored    *task.Restored `json:"restored,omitempty" doc:"The last restore of the cluster. Absent: it was never restored."`
	Schema      int            `json:"schema" doc:"The version of the layout of keys in etcd."`
	CreatedAt   task.Time      `json:"created_at" doc:"When the cluster was created."`
	ChangedBy   *task.Actor    `json:"changed_by,omitempty" doc:"The user or node that last changed the cluster record or the etcd members."`
	ChangedAt   task.Time      `json:"changed_at,omitzero" doc:"When its settings were last changed."`
	Change      string         `json:"change,omitempty" doc:"The kind of change, if it is not a setting."`
	Leader      string         `json:"leader" doc:"The node that assigns shards; empty if there is no leader now."`
	Nodes       int            `json:"nodes" doc:"The number of nodes that are present."`
	NodesReady  int            `json:"nodes_ready" doc:"Nodes that are ready; those that are blocked accept no runs."`
	Blocked     int            `json:"nodes_blocked" doc:"Ready nodes that accept no runs, because their hosts are over their own limits, their policies cannot be read, or too many starts hang."`
	ShardsOwned int            `json:"shards_owned" doc:"Shards whose owner is present."`
	Tasks       int64          `json:"tasks" doc:"The number of tasks."`
	ActiveRuns  int64          `json:"active_runs" doc:"The number of attempts in the inboxes of nodes."`
	Unreadable  int            `json:"unreadable_entries" doc:"Tasks that have no ticks because their entry cannot be read."`
	Etcd        []EtcdMember   `json:"etcd" doc:"The members of etcd."`
	Revisions   Revisions      `json:"etcd_revisions" doc:"Which revisions etcd has."`
	Room        *Room          `json:"room,omitempty" doc:"How to make space in etcd, while it is full: commands."`
	Format      FormatStatus   `json:"format" doc:"The format of the records in etcd."`
	Freezes     []task.Freeze  `json:"freezes" doc:"The freezes in effect. Runs that they cover do not start."`
	CatchUpRate int            `json:"catch_up_rate" doc:"The maximum number of catch-up runs that start per second in the whole cluster."`
	LostAfter   task.Duration  `json:"lost_after" doc:"How long Carillon waits for the attempts of a node without contact before it declares them lost."`
	Ledger      task.Duration  `json:"ledger" doc:"How long the ledgers of tasks without history.ledger remember the outcomes of ticks."`
	// LedgerLimit is a pointer, because 0s means that nothing is remembered.
	LedgerLimit      *task.Duration `json:"ledger_limit,omitempty" doc:"The longest time for which any ledger remembers ticks, while etcd is filling up. The leader sets it. Absent: there is no limit."`
	LedgerLimitSince task.Time      `json:"ledger_limit_since,omitzero" doc:"Since when there is a limit."`
	PublicURL        string         `json:"public_url,omitempty" doc:"The address of the Web UI for the links in messages about alerts."`
	AlertReceivers   []string       `json:"alert_receivers,omitempty" doc:"The receivers of alerts about the cluster, each as NAMESPACE/NAME."`
	Warnings         []string       `json:"warnings" doc:"Problems that an operator should check, as text."`
	// WarningDetails are the same warnings, each with its code.
	WarningDetails []task.Warning `json:"warning_details" doc:"The same warnings, each with its code."`
	MakeSpace      []string       `json:"make_space" doc:"etcdctl command lines that free space, in order; empty unless etcd needs space."`
}

// Revisions are the revisions that etcd keeps.
type Revisions struct {
	Newest int64 `json:"newest" doc:"The current revision."`
	Oldest int64 `json:"oldest" doc:"The oldest revision that has not been compacted; 1 if etcd was never compacted, 0 if this is unknown."`
}

// Room estimates how many tasks fit into etcd's quota, if further tasks use as much space as the current ones.
// It is absent while there are too few tasks for an estimate.
type Room struct {
	BytesPerTask   int64   `json:"bytes_per_task" doc:"The bytes that etcd uses, divided by the number of tasks. They include history, old revisions and everything else in etcd."`
	HistoryPerTask float64 `json:"history_per_task" doc:"History records per task, from a sample of the shards."`
	Tasks          int64   `json:"tasks" doc:"How many such tasks fill 80 % of the quota."`
}

// EtcdMember is one endpoint of etcd.
type EtcdMember struct {
	Name     string   `json:"name,omitempty" doc:"The name of the agent, if etcd is embedded; empty if the member has never run."`
	ID       string   `json:"id,omitempty" doc:"Hexadecimal, as etcdctl prints it."`
	PeerURL  string   `json:"peer_url,omitempty" doc:"The URL at which the other members reach it."`
	Socket   string   `json:"socket,omitempty" doc:"For an embedded etcd of another node: the socket for etcdctl, on its host."`
	Endpoint string   `json:"endpoint" doc:"The address for clients of the member."`
	Version  string   `json:"version,omitempty" doc:"The version of etcd."`
	DBSize   int64    `json:"db_size,omitempty" doc:"The size of its database on disk, in bytes."`
	DBInUse  int64    `json:"db_in_use,omitempty" doc:"How many of these bytes are in use."`
	DBQuota  int64    `json:"db_quota,omitempty" doc:"Size in bytes at which etcd stops accepting writes."`
	Leader   bool     `json:"leader" doc:"It is the leader."`
	Learner  bool     `json:"learner,omitempty" doc:"It does not vote yet."`
	Index    int64    `json:"raft_index,omitempty" doc:"The index of the last committed entry in its log."`
	Applied  int64    `json:"raft_applied,omitempty" doc:"The index of the last applied entry."`
	Alarms   []string `json:"alarms" doc:"Its alarms, such as NOSPACE."`
	Fault    string   `json:"fault,omitempty" doc:"Why Carillon does not support this version of etcd."`
	Error    string   `json:"error,omitempty" doc:"Why it did not respond, or responded with an error."`
}

// FormatStatus is the format of the cluster's records, which determines the versions that can run together.
type FormatStatus struct {
	Format   int    `json:"format" doc:"The newest format in use. Every node that runs understands it."`
	Possible int    `json:"possible" doc:"The newest format that all nodes understand."`
	Because  string `json:"because,omitempty" doc:"The node that does not support a newer format, although this server does."`
	Wanted   int    `json:"wanted,omitempty" doc:"The newest wanted format; 0 means the newest that is possible."`
	WaitsFor string `json:"waits_for,omitempty" doc:"What prevents the downgrade to the wanted format."`
}

// FormatRequest is the body of a request to change the format of records.
type FormatRequest struct {
	Format int `json:"format,omitempty" doc:"An older format to use; 0 means the newest that all nodes understand, now and later."`
}

// AddMemberRequest is the body of a request to add a member to an embedded etcd.
type AddMemberRequest struct {
	Name    string `json:"name" doc:"The name of the agent that will be this member."`
	PeerURL string `json:"peer_url" doc:"The URL at which the other members will reach it: http://HOST:PORT, or https."`
}

// MemberChange is the result of adding or removing a member.
type MemberChange struct {
	Name           string `json:"name" doc:"The name of the member."`
	InitialCluster string `json:"initial_cluster" doc:"The new value of --initial-cluster."`
	Members        int    `json:"members" doc:"All members after the change."`
	Warning        string `json:"warning,omitempty" doc:"What you should check, as text."`
	WarningCode    string `json:"warning_code,omitempty" doc:"The kind of warning, for programs."`
}

// Version contains the versions of a server.
type Version struct {
	Version string `json:"version" doc:"The version of Carillon."`
	Node    string `json:"node" doc:"The node that answers."`
	Cluster string `json:"cluster" doc:"The id of the cluster."`
	Go      string `json:"go" doc:"The version of Go with which it was built."`
}

// Problem is an error in the format of RFC 9457.
type Problem struct {
	Type   string `json:"type" doc:"A link to the description of the code. It does not change."`
	Title  string `json:"title" doc:"The status in words."`
	Status int    `json:"status" doc:"The status of the HTTP answer."`
	Detail string `json:"detail" doc:"The error message: the quoted value and the rule."`
	Code   string `json:"code" doc:"The error code, for programs."`
	Field  string `json:"field,omitempty" doc:"The path of the invalid field."`
	Hint   string `json:"hint,omitempty" doc:"What to do about it."`
	ID     string `json:"id,omitempty" doc:"With code unknown_outcome: what may have been written."`
	// Errors is set if several fields of the body are invalid. The first of them is also Code, Field and Detail.
	Errors []FieldProblem `json:"errors,omitempty" doc:"If several fields of the body are invalid: each of them. The first one is also in code, field and detail."`
}

// FieldProblem is one of several invalid fields of a body.
type FieldProblem struct {
	Pointer string `json:"pointer" doc:"The field as a JSON pointer (RFC 6901) in a URI fragment: #/action/process/command/0."`
	Detail  string `json:"detail" doc:"The quoted value and the rule."`
	Code    string `json:"code" doc:"The error code, for programs."`
	Field   string `json:"field,omitempty" doc:"The path of the field, as field of the problem."`
}

// ProblemType returns the Problem.Type of a code.
func ProblemType(code string) string {
	return "https://github.com/carillonhq/carillon/blob/main/docs/errors.md#" + code
}

// The codes of problems that are not about a field. For the others, see package task.
const (
	CodeNotFound     = "not_found"
	CodeDeleted      = "deleted" // the task was deleted; the detail says when and by whom
	CodeNoRoute      = "no_such_route"
	CodeMethod       = "method_not_allowed"
	CodeExists       = "exists"
	CodeConflict     = "conflict"
	CodeAmbiguous    = "ambiguous"
	CodeAlreadyEnded = "already_ended"
	CodeNotRunning   = "not_running" // the run is queued
	CodeNoSteps      = "no_steps"    // the run is not one of a workflow, or the step has no parts yet
	CodeStale        = "stale"
	CodeKeyReused    = "key_reused"  // the idempotency key was used for a different request
	CodeCycle        = "cycle"       // a task would run after itself, through others
	CodeMissingEnv   = "missing_env" // a run cannot be started again without the values of its variables
	CodeUnreadable   = "unreadable_record"
	CodeNoLogs       = "no_logs"
	CodeNodeAway     = "node_away"
	CodeLoop         = "proxy_loop"
	CodeUnauthorized = "unauthorized"
	CodeForbidden    = "forbidden"
	CodeContentType  = "content_type"
	CodeTooLarge     = "too_large"
	CodeUnavailable  = "unavailable"
	CodeUnknown      = "unknown_outcome"
	CodeNoSpace      = "no_space"
	CodeNoDisk       = "no_disk_space" // the disk of the node has too little space for a backup
	CodeNotSupported = "not_supported" // this node, or its etcd, cannot do it
	CodeInternal     = "internal"
	CodeBadParameter = "bad_parameter"
	CodeBadPage      = "bad_page"
	CodeNotReady     = "not_ready"
	CodeNotConfirmed = "not_confirmed" // the freeze is in force, but some nodes have not confirmed it
	CodeClock        = "clock_not_trusted"
	CodeRestored     = "etcd_restored"
	CodeBusy         = "busy"             // the node already serves as many such requests as it can
	CodeIncomplete   = "incomplete"       // with complete=true: some tasks may be missing from the list
	CodeQueueFull    = "queue_full"       // too many manual runs of the task wait: try again when some have started
	CodeRateLimited  = "rate_limited"     // too many within a second: try again in a second
	CodeNotCarillon  = "not_carillon"     // set by Client: the answer does not come from Carillon
	CodeUntrusted    = "untrusted_server" // set by Client: the program that listens could take the token, so nothing was sent
	CodeTLS          = "tls"              // set by Client: the TLS handshake failed, so nothing was sent
)

// Change is the result of a dry run: what the write would change if it were made at that moment.
type Change struct {
	Result string        `json:"result" doc:"created, configured, unchanged or deleted."`
	Fields []FieldChange `json:"fields" doc:"The fields that would change; for a new task, the fields that differ from their defaults."`
	Ticks  *TickChange   `json:"ticks,omitempty" doc:"Which ticks would be added, removed or moved; absent if nothing would be written, or with ticks=0."`
}

// FieldChange is a field that would change.
type FieldChange = task.FieldChange

// TickChange is the difference between the ticks of a task before and after a change. It covers the ticks that
// are due later than From and up to Until, which is 7 days ahead, but at least as far as the next tick of
// either version. If there are very many ticks, Until is earlier.
//
// The ticks before the change, without those that are removed or moved, and with those that are added and the
// moved ones at their new times, are exactly the ticks after it.
type TickChange struct {
	From  task.Time `json:"from" doc:"The time of the dry run. Schedules that count from the write, such as @every, count from here. The real write shifts them by the time that passes until then."`
	Until task.Time `json:"until" doc:"The comparison ends at this time."`
	Come  int       `json:"come" doc:"Ticks that are added."`
	Go    int       `json:"go" doc:"Ticks that are removed."`
	Move  int       `json:"move" doc:"Ticks that move."`
	// Ticks are the first of these ticks.
	Ticks []TickMove `json:"ticks" doc:"The ticks in order of time, up to the requested number."`
}

// TickMove is a tick that is added, removed or moved. A tick moves if it keeps its time but is due at another
// time because of jitter, or if it has the same local time in another time zone.
type TickMove struct {
	Was *TickTime `json:"was,omitempty" doc:"The old tick; absent if the tick would be added."`
	Is  *TickTime `json:"is,omitempty" doc:"The new tick; absent if the tick would be removed."`
}

// TickTime is a tick with its due time.
type TickTime struct {
	Time  task.Time `json:"time" doc:"The tick."`
	Local string    `json:"local" doc:"The same instant in the schedule's zone, with its offset."`
	DueAt task.Time `json:"due_at,omitzero" doc:"When it is due, if jitter delays it."`
	// DueBefore is set for a task that does not exist yet. With jitter, the due time of a tick follows from the
	// task's uid, which is not known then.
	DueBefore task.Time `json:"due_before,omitzero" doc:"With jitter, for a task that does not exist yet: the tick is due at time or later, but before this."`
}

// Changes reports whether the write would change anything.
func (c *Change) Changes() bool { return c.Result != Unchanged }

// Deleted is the Result of a delete.
const Deleted = "deleted"
