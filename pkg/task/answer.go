package task

import "slices"

// Verdict answers in one word why a task did or did not run at a time. The list is closed; Verdicts returns the
// meaning of each.
type Verdict string

const (
	// Verdicts on ticks with an outcome on record, and on manual runs.
	VerdictSucceeded Verdict = "succeeded"
	VerdictFailed    Verdict = "failed"
	VerdictTimedOut  Verdict = "timed_out"
	VerdictCancelled Verdict = "cancelled"
	VerdictLost      Verdict = "lost"
	VerdictSkipped   Verdict = "skipped"
	VerdictMissed    Verdict = "missed"
	VerdictRunning   Verdict = "running"
	VerdictWaiting   Verdict = "waiting"

	// Verdicts on times without a tick.
	VerdictNoTick  Verdict = "no_tick"
	VerdictInGap   Verdict = "in_gap"
	VerdictOutside Verdict = "outside"
	VerdictEnded   Verdict = "ended"
	VerdictPaused  Verdict = "paused"
	VerdictNoTask  Verdict = "no_task"

	// Verdicts on ticks without an outcome on record.
	VerdictUndecided  Verdict = "undecided"
	VerdictOvertaken  Verdict = "overtaken"
	VerdictForgotten  Verdict = "forgotten"
	VerdictUnreadable Verdict = "unreadable"

	// Verdicts on future times, according to the current state.
	VerdictWillRun Verdict = "will_run"
	VerdictFrozen  Verdict = "frozen"
	VerdictShadow  Verdict = "shadow"
	VerdictNoNode  Verdict = "no_node"
	VerdictDepends Verdict = "depends"

	VerdictForbidden Verdict = "forbidden" // the record of its namespace does not allow the task

	// The verdict on a range.
	VerdictRange Verdict = "range"
)

// VerdictMeaning is a verdict with its meaning.
type VerdictMeaning struct {
	Verdict Verdict
	Means   string
}

// Verdicts returns all verdicts.
func Verdicts() []VerdictMeaning { return slices.Clone(verdictMeanings) }

var verdictMeanings = []VerdictMeaning{
	{VerdictSucceeded, "it ran and succeeded"},
	{VerdictFailed, "it ran and failed"},
	{VerdictTimedOut, "it ran and was stopped at its timeout"},
	{VerdictCancelled, "it was cancelled before it started or while it ran"},
	{VerdictLost, "it ran on a node that was lost: its result is unknown"},
	{VerdictSkipped, "it was a tick, but Carillon skipped it; see the reason"},
	{VerdictMissed, "it was a tick, but could not start in time"},
	{VerdictRunning, "it is assigned to a node and has not ended yet"},
	{VerdictWaiting, "it is waiting in the queue of its shard"},
	{VerdictNoTick, "the schedule has no tick at that time"},
	{VerdictInGap, "the local time does not exist, and the task skips such ticks (dst.gap: skip)"},
	{VerdictOutside, "the time is before the task's start or after its end"},
	{VerdictEnded, "the task has no more ticks, because it has reached max_runs or will have by then"},
	{VerdictPaused, "the task has no ticks at that time, because it was, is or will be paused"},
	{VerdictNoTask, "the task did not exist at that time"},
	{VerdictUndecided, "it was a tick, but no node has decided it yet"},
	{VerdictOvertaken, "it was a tick, but the task was changed or paused before a node decided it"},
	{VerdictForgotten, "the records that are needed for an answer no longer exist"},
	{VerdictUnreadable, "a record that is needed for an answer cannot be read"},
	{VerdictWillRun, "it is a tick, and will run if nothing changes"},
	{VerdictFrozen, "it is a tick, but will be skipped if the current freeze is still in effect"},
	{VerdictShadow, "it is a tick, but will only be recorded while the task is a shadow"},
	{VerdictForbidden, "it is a tick, but its run will fail, because its namespace does not allow the task"},
	{VerdictNoNode, "it is a tick, but no available node matches the selector now, or too few do"},
	{VerdictDepends, "whether there is a tick depends on runs that have not ended yet"},
	{VerdictRange, "the answer covers several ticks"},
}

// Answer explains why a task ran, did not run, or will run at a time: a sentence, followed by the evidence.
type Answer struct {
	Namespace string  `json:"namespace" doc:"The namespace of the task."`
	Task      string  `json:"task" doc:"The name of the task."`
	Verdict   Verdict `json:"verdict" doc:"One of the verdicts in docs/why.md."`
	Sentence  string  `json:"sentence" doc:"The answer in one sentence."`
	Reason    string  `json:"reason,omitempty" doc:"One of the reasons in docs/why.md, if the outcome has one."`

	Asked   AskedTime       `json:"asked" doc:"The time that was asked about."`
	Tick    *Tick           `json:"tick,omitempty" doc:"The tick that the answer is about; absent if the answer is not about a tick."`
	Before  *Tick           `json:"before,omitempty" doc:"The nearest tick before a time that is not a tick."`
	After   *Tick           `json:"after,omitempty" doc:"The nearest tick after it."`
	Version *VersionInForce `json:"version,omitempty" doc:"The version of the task in force at that time; absent if that is not on record."`
	Pause   *Pause          `json:"pause,omitempty" doc:"The pause that applied."`
	Freeze  *Freeze         `json:"freeze,omitempty" doc:"The freeze at that time, or the freeze in effect now."`
	Run     *Run            `json:"run,omitempty" doc:"The outcome on record, or the run as it is now."`
	Ledger  *LedgerLine     `json:"ledger,omitempty" doc:"What the ledger of the task records for that time, if the record of the run is no longer kept."`
	Active  []Run           `json:"active,omitempty" doc:"Other runs of the task that were active when the tick was due."`
	Late    []Run           `json:"late,omitempty" doc:"Results that arrived after the attempt had been declared lost."`
	Owner   *Ownership      `json:"owner,omitempty" doc:"The owner of the shard of the task at that time."`
	Deleted *Deletion       `json:"deleted,omitempty" doc:"The user who deleted the task."`
	Lines   []EvidenceLine  `json:"evidence" doc:"The same as text."`
	Alerts  []AlertStatus   `json:"alerts,omitempty" doc:"The open alerts of the task, if the question names no time."`
	Unknown []string        `json:"not_on_record" doc:"Information that matters but is no longer on record."`

	Stretches []Stretch         `json:"stretches,omitempty" doc:"For a range: its ticks in order. Successive ticks with the same verdict and reason are one item."`
	Counts    map[Verdict]int64 `json:"counts,omitempty" doc:"For a range: the number of ticks for each verdict."`
	Also      []Answer          `json:"also,omitempty" doc:"The second answer if a local time exists twice, or the next tick."`

	Now      Time  `json:"now" doc:"The time of the answer, by the clock of the node that answers."`
	Revision int64 `json:"revision" doc:"The etcd revision at which it was read."`
}

// AskedTime is the time or the range in a question.
type AskedTime struct {
	At       string `json:"at,omitempty" doc:"The time as you wrote it."`
	From     string `json:"from,omitempty" doc:"The beginning of the range, as you wrote it."`
	To       string `json:"to,omitempty" doc:"The end of the range, as you wrote it."`
	Timezone string `json:"timezone" doc:"The time zone for local times."`
	Times    []Time `json:"times,omitempty" doc:"The times in question: none if the local time is in a gap, two if it exists twice, or the ends of a range."`
	Note     string `json:"note,omitempty" doc:"gap or fold." enum:"gap,fold"`
}

// Tick is a tick in the form in which users see it.
type Tick struct {
	Time  Time   `json:"time" doc:"The tick."`
	Local string `json:"local" doc:"The same instant in the zone of the answer, with its offset."`
	DueAt Time   `json:"due_at,omitzero" doc:"When it is due, if jitter delays it."`
	Note  string `json:"note,omitempty" doc:"gap: the tick replaces local times that do not exist. fold: its local time exists twice." enum:"gap,fold"`
}

// VersionInForce is a version of a task, with the time during which it was in force.
type VersionInForce struct {
	Generation int64     `json:"generation" doc:"The number of the version of the task: it increases by one with each change."`
	Since      Time      `json:"since" doc:"When it was stored."`
	Until      Time      `json:"until,omitzero" doc:"Absent if it is in force now."`
	By         *Actor    `json:"by,omitempty" doc:"Who stored it."`
	Change     string    `json:"change,omitempty" doc:"created, updated, paused, resumed, rolled_back or undeleted." enum:"created,updated,paused,resumed,rolled_back,undeleted"`
	Schedule   Schedules `json:"schedule" doc:"The expressions of the schedule."`
	Timezone   string    `json:"timezone" doc:"The time zone of the schedule, a name from the tz database."`
	DST        DST       `json:"dst,omitzero" doc:"What the schedule does where the clocks change."`
	ReplacedBy *Actor    `json:"replaced_by,omitempty" doc:"The user who created the next version."`
}

// Ownership is the owner of a shard at a time.
type Ownership struct {
	Shard   int    `json:"shard" doc:"The shard that contains the task."`
	Node    string `json:"node,omitempty" doc:"The node that it was assigned to at that time; absent if that is no longer on record."`
	Since   Time   `json:"since,omitzero" doc:"Since when it was the owner."`
	Until   Time   `json:"until,omitzero" doc:"Absent if it still is the owner."`
	Next    string `json:"next,omitempty" doc:"The node that it was assigned to next."`
	Present bool   `json:"present" doc:"Whether that node is present now."`
}

// Deletion is the record of a deleted task.
type Deletion struct {
	UID        string `json:"uid" doc:"Identifies the task. A task that is created again under the same name has another one."`
	Generation int64  `json:"generation,omitempty" doc:"The number of the version of the task: it increases by one with each change."`
	At         Time   `json:"deleted_at" doc:"When it was deleted."`
	By         *Actor `json:"deleted_by,omitempty" doc:"Who deleted it."`
	Why        string `json:"why,omitempty" doc:"Why it was deleted, if that is known."`
}

// EvidenceLine is one line of evidence as text.
type EvidenceLine struct {
	What string `json:"what" doc:"What the line is about."`
	Says string `json:"says" doc:"What the records say about it."`
}

// Stretch is a sequence of consecutive ticks with the same verdict and the same reason.
type Stretch struct {
	Verdict  Verdict `json:"verdict" doc:"The verdict on these ticks."`
	Reason   string  `json:"reason,omitempty" doc:"The reason of these outcomes."`
	First    Time    `json:"first" doc:"The first of these ticks."`
	Last     Time    `json:"last" doc:"The last of these ticks."`
	Count    int64   `json:"count" doc:"The number of ticks, or of manual runs."`
	Manual   bool    `json:"manual,omitempty" doc:"Whether these are runs without a tick, manual or started by other tasks."`
	Sentence string  `json:"sentence" doc:"The same in one sentence."`
}
