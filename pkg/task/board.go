package task

import "math/bits"

// Board is an overview of a cluster for operators: problems, future ticks, active runs and nodes. It is
// assembled from the memory of the scheduling nodes. Its lists are limited to the requested length, and each of them
// contains at most 100 runs of one task. Its counts cover everything that the caller may read.
type Board struct {
	At      Time     `json:"at" doc:"When the scheduling nodes were asked, by the clock of the node that answers. While they are busy with other queries, you get the last board."`
	Node    string   `json:"node" doc:"The node that answers."`
	Version string   `json:"version" doc:"The version of Carillon on that node."`
	Cluster string   `json:"cluster" doc:"The cluster's id."`
	Leader  string   `json:"leader" doc:"Empty while the cluster has no leader."`
	Span    Duration `json:"span" doc:"How far next looks ahead."`
	// Warnings and Freezes come from the cluster's status and are at most a few seconds old.
	Warnings       []string  `json:"warnings" doc:"Problems that an operator should check, as text."`
	WarningDetails []Warning `json:"warning_details" doc:"The same warnings, each with its code."`
	Freezes        []Freeze  `json:"freezes" doc:"The freezes in effect."`
	Silent         []Silence `json:"silent" doc:"Scheduler nodes that did not respond within a second; their information is missing."`

	ShardCount  int `json:"shard_count" doc:"The number of shards of the cluster."`
	ShardsOwned int `json:"shards_owned" doc:"Shards whose owner is present."`
	// Missing are the shards whose counts and items are not on the board.
	Missing []int `json:"missing_shards" doc:"Shards that no node serves, or whose node has not answered: their tasks are neither counted nor listed."`
	BoardCounts
	Recent Recent `json:"recent" doc:"The last minute."`

	BoardLists
	Nodes []BoardNode `json:"nodes" doc:"The nodes that are present."`
}

// BoardCounts are the counts of the board. They can be added up over nodes.
type BoardCounts struct {
	Serving      int `json:"shards_served" doc:"Shards that are loaded and active."`
	Tasks        int `json:"tasks" doc:"The number of tasks."`
	Paused       int `json:"paused" doc:"The number of paused tasks."`
	Unreadable   int `json:"unreadable" doc:"Tasks that have no ticks because their entry cannot be read."`
	FailingCount int `json:"failing_count" doc:"Failing tasks: a run failed, timed out or was lost with its attempts used up, no later one has succeeded, and nobody has dismissed it or started it again."`
	// AlertingCount counts no failing tasks, because FailingCount does.
	AlertingCount int `json:"alerting_count" doc:"Tasks with open alerts that are not failing."`
	// Alerts are those that the owners of the shards know, also those of failing tasks.
	Alerts       map[string]int `json:"alerts" doc:"The number of open alerts of tasks for each severity."`
	OverdueCount int            `json:"overdue_count" doc:"Tasks with a tick that was due more than two seconds ago and is still undecided."`
	ActiveCount  int            `json:"active_count" doc:"Attempts in the inboxes of nodes. Of a run with parts, these are attempts of its parts; a part that waits for another attempt is not among them."`
	AwayCount    int            `json:"away_count" doc:"Of these, attempts whose node is gone: lost, unless it comes back in time."`
	WaitingCount int            `json:"waiting_count" doc:"Waiting runs. Parts, and runs whose parts have begun, do not count."`
	Waiting      map[string]int `json:"waiting" doc:"The number of waiting runs for each reason."`
}

// Add adds other counts.
func (c *BoardCounts) Add(d BoardCounts) {
	c.Serving, c.Tasks, c.Paused, c.Unreadable = c.Serving+d.Serving, c.Tasks+d.Tasks, c.Paused+d.Paused, c.Unreadable+d.Unreadable
	c.FailingCount, c.OverdueCount, c.ActiveCount = c.FailingCount+d.FailingCount, c.OverdueCount+d.OverdueCount, c.ActiveCount+d.ActiveCount
	c.AwayCount, c.WaitingCount, c.AlertingCount = c.AwayCount+d.AwayCount, c.WaitingCount+d.WaitingCount, c.AlertingCount+d.AlertingCount
	c.Waiting, c.Alerts = addCounts(c.Waiting, d.Waiting), addCounts(c.Alerts, d.Alerts)
}

// addCounts adds the counts in d to those in c. The result is never nil, because the API returns {} and not null.
func addCounts(c, d map[string]int) map[string]int {
	if c == nil {
		c = map[string]int{}
	}
	for key, n := range d {
		c[key] += n
	}

	return c
}

// OpenAlerts returns how many alerts of tasks are open.
func (c *BoardCounts) OpenAlerts() (n int) {
	for _, of := range c.Alerts {
		n += of
	}

	return n
}

// BoardLists are the beginnings of the board's lists.
type BoardLists struct {
	Stuck   []BoardShard   `json:"stuck" doc:"Shards that make no progress although a tick is due, because they are being loaded or are stuck. The longest first."`
	Failing []BoardFailing `json:"failing" doc:"Failing tasks with their last failure; the latest failure first."`
	// Alerting is empty for callers who may not read runs.
	Alerting []BoardAlerting `json:"alerting" doc:"Tasks with open alerts that are not failing, the most severe first."`
	Overdue  []BoardTick     `json:"overdue" doc:"The oldest first."`
	Away     []BoardRun      `json:"away" doc:"The oldest first."`
	Waits    []BoardWait     `json:"waits" doc:"Waiting runs and parts, the oldest first; those that no node matches come first, then those whose requests were not sent. Parts do not count in waiting_count and waiting."`
	Next     []BoardTick     `json:"next" doc:"The next tick of each task that has one within the span, the soonest first."`
	Active   []BoardRun      `json:"active" doc:"The oldest first."`
}

// BoardShard is a shard that decides no ticks.
type BoardShard struct {
	ID      int    `json:"id" doc:"The number of the shard."`
	Node    string `json:"node" doc:"Its owner."`
	Since   Time   `json:"since" doc:"The time since which a tick is undecided or the shard is loading."`
	Loading bool   `json:"loading,omitempty" doc:"Its owner is loading it."`
}

// BoardFailing is a failing task: it has a dead run after which no run has succeeded. The other fields describe the newest of
// these runs. They are empty for callers who may not read runs.
type BoardFailing struct {
	Namespace string `json:"namespace" doc:"The namespace of the task."`
	Task      string `json:"task" doc:"The name of the task."`
	Run       string `json:"run" doc:"The run that failed last; empty if it is not known. This and the other fields about it are empty if you may not read runs."`
	State     State  `json:"state" doc:"failed, timed_out or lost; failed as long as it is not known which."`
	Reason    string `json:"reason,omitempty" doc:"Why the run ended like this: one of the reasons in docs/why.md."`
	ExitCode  *int   `json:"exit_code,omitempty" doc:"The exit code of the process. Absent: it did not exit by itself."`
	Node      string `json:"node,omitempty" doc:"The node of the run."`
	EndedAt   Time   `json:"ended_at,omitzero" doc:"When the run ended; absent if it is not known."`
	InARow    int    `json:"in_a_row" doc:"How many runs have failed since the last success, as far as the owner of the shard knows."`
}

// BoardAlerting is a task with open alerts that is not failing.
type BoardAlerting struct {
	Namespace   string      `json:"namespace" doc:"The namespace of the task."`
	Task        string      `json:"task" doc:"The name of the task."`
	Kinds       []AlertKind `json:"kinds" doc:"The expectations that are not met."`
	Severity    string      `json:"severity" doc:"The severity of its alerts."`
	LastSuccess Time        `json:"last_success,omitzero" doc:"When a run last succeeded; absent if it is not known."`
}

// BoardTick is a tick of a task.
type BoardTick struct {
	Namespace string `json:"namespace" doc:"The namespace of the task."`
	Task      string `json:"task" doc:"The name of the task."`
	Time      Time   `json:"time" doc:"The tick."`
	DueAt     Time   `json:"due_at,omitzero" doc:"When it is due, if jitter delays it."`
}

// Due returns when the tick is due.
func (t BoardTick) Due() Time {
	if !t.DueAt.IsZero() {
		return t.DueAt
	}
	return t.Time
}

// BoardRun is an attempt in a node's inbox.
type BoardRun struct {
	Namespace string `json:"namespace" doc:"The namespace of the task."`
	Task      string `json:"task" doc:"The name of the task."`
	Run       string `json:"run" doc:"The id of the run."`
	Node      string `json:"node" doc:"The node of the attempt."`
	// Since is zero if the shard has a new owner since the attempt was dispatched.
	Since         Time `json:"since,omitzero" doc:"When the attempt was dispatched; absent if its shard has a new owner since then."`
	ScheduledTime Time `json:"scheduled_time" doc:"The tick; for a manual run, the time of the request."`
	Ending        bool `json:"ending,omitempty" doc:"Its node was asked to stop it, because of a newer tick or because its task was deleted."`
	Paused        bool `json:"paused,omitempty" doc:"Its processes are paused, as its node reports."`
	// Progress is the attempt's own report; nil if it has reported nothing or its node does not answer.
	Progress *Progress `json:"progress,omitempty" doc:"The progress that the run reports itself."`
}

// Began returns when the run began, as far as is known.
func (r BoardRun) Began() Time {
	if !r.Since.IsZero() {
		return r.Since
	}
	return r.ScheduledTime
}

// BoardWait is a queued run.
type BoardWait struct {
	Namespace string `json:"namespace" doc:"The namespace of the task."`
	Task      string `json:"task" doc:"The name of the task."`
	Run       string `json:"run" doc:"The id of the run."`
	Reason    string `json:"reason" doc:"Why it waits: one of the reasons in docs/why.md."`
	Since     Time   `json:"since" doc:"Its tick; for a manual run, the time of the request."`
	NotBefore Time   `json:"not_before,omitzero" doc:"It does not start before this time."`
	// Unsent is nil if no attempt of the run was prevented by its target.
	Unsent *Unsent `json:"unsent,omitempty" doc:"The attempts of an HTTP action that were not sent."`
}

// WaitUrgency returns in which order people should see waiting runs, the lowest first: somebody may have to act on runs
// that no node matches, and on targets that are down. unsent is about attempts of the run itself.
func WaitUrgency(reason string, unsent *Unsent) int {
	switch {
	case reason == ReasonNoNode:
		return 0
	case reason == ReasonTarget && unsent != nil:
		return 1
	}

	return 2
}

// Silence is a node that did not answer, with the reason.
type Silence struct {
	Node   string `json:"node" doc:"The name of the node."`
	Reason string `json:"reason" doc:"Why it did not answer."`
}

// BoardNode is a node in the form in which the board shows it.
type BoardNode struct {
	Name       string   `json:"name" doc:"The name of the node."`
	Address    string   `json:"address" doc:"The URL of its API."`
	Version    string   `json:"version" doc:"The version of Carillon."`
	State      string   `json:"state" doc:"ready, cordoned or draining." enum:"ready,cordoned,draining"`
	Ineligible string   `json:"ineligible,omitempty" doc:"Why the node owns no shards now."`
	Blocked    []string `json:"blocked,omitempty" doc:"Why the node accepts no runs: facts of its host that are over its own limits, policy (the policy cannot be read), or stuck_starts (too many starts hang)."`
	Roles      []string `json:"roles" doc:"scheduler, executor and api."`
	Slots      int      `json:"slots" doc:"How many attempts may run on it at the same time."`
	Running    int      `json:"running" doc:"Attempts in its inbox, as it last reported."`
	Shards     int      `json:"shards" doc:"The number of its shards."`
	Serving    int      `json:"shards_served" doc:"The number of its shards that are active; 0 if it did not respond."`
	Unreadable int      `json:"unreadable,omitempty" doc:"Tasks in its shards that have no ticks, because their entries cannot be read."`
	JoinedAt   Time     `json:"joined_at,omitzero" doc:"When its current session began."`
	Silent     bool     `json:"silent,omitempty" doc:"The node is a scheduler and did not respond."`
	Recent     Recent   `json:"recent" doc:"What it decided in the last minute."`
}

// Recent summarizes the decisions and the ended runs of the last minute.
type Recent struct {
	Fired     int64   `json:"fired" doc:"Ticks that became runs."`
	Skipped   int64   `json:"skipped" doc:"Ticks that were skipped or missed."`
	Succeeded int64   `json:"succeeded" doc:"Runs that succeeded."`
	Failed    int64   `json:"failed" doc:"Runs that failed, timed out or were lost."`
	P50MS     int64   `json:"lateness_p50_ms" doc:"Of those that fired: from the tick's time to the commit that decided it. Exact to a quarter."`
	P99MS     int64   `json:"lateness_p99_ms" doc:"99 % of the ticks were decided within this time, in milliseconds."`
	MaxMS     int64   `json:"lateness_max_ms" doc:"The latest decision, in milliseconds."`
	Rate      []int64 `json:"rate" doc:"Ticks decided in each 5 s of the minute, the oldest first."`
}

// Tally contains the counters from which Recent is computed. Unlike Recent, tallies can be added up over shards
// and nodes.
type Tally struct {
	Skipped   int64   `json:"skipped" doc:"Ticks that were skipped or missed."`
	Succeeded int64   `json:"succeeded" doc:"Runs that succeeded."`
	Failed    int64   `json:"failed" doc:"Runs that failed, timed out or were lost."`
	MaxMS     int64   `json:"max_ms" doc:"The latest decision, in milliseconds."`
	Late      []int64 `json:"late" doc:"The number of ticks by lateness; LateBound has the bounds."`
	Rate      []int64 `json:"rate" doc:"Ticks decided in each 5 s of the minute, the oldest first."`
}

// LateBucket returns the index in Tally.Late for a lateness in milliseconds. Below 8 ms each millisecond has
// its own bucket. Above that, each power of two has four buckets, so the error is at most a quarter.
func LateBucket(ms int64) int {
	if ms < 8 {
		return int(max(ms, 0))
	}
	exp := bits.Len64(uint64(ms)) - 3 // 8…15 ms have the exponent 1
	return min(4*(exp+1)+int(ms>>exp)-4, LateBuckets-1)
}

// LateBuckets is the length of Tally.Late.
const LateBuckets = 96

// LateBound returns the largest lateness in milliseconds that belongs to a bucket.
func LateBound(bucket int) int64 {
	if bucket < 8 {
		return int64(bucket)
	}
	exp, part := bucket/4-1, int64(bucket%4)
	return (part+5)<<exp - 1
}

// Add adds another tally to t.
func (t *Tally) Add(o Tally) {
	t.Skipped += o.Skipped
	t.Succeeded += o.Succeeded
	t.Failed += o.Failed
	t.MaxMS = max(t.MaxMS, o.MaxMS)
	t.Late, t.Rate = addElements(t.Late, o.Late), addElements(t.Rate, o.Rate)
}

// addElements adds b to a, element by element, and extends a if necessary.
func addElements(a, b []int64) []int64 {
	for i, n := range b {
		if i == len(a) {
			a = append(a, 0)
		}
		a[i] += n
	}

	return a
}

// Recent computes the summary.
func (t Tally) Recent() Recent {
	r := Recent{Skipped: t.Skipped, Succeeded: t.Succeeded, Failed: t.Failed, MaxMS: t.MaxMS, Rate: t.Rate}
	if r.Rate == nil {
		r.Rate = []int64{}
	}

	for _, n := range t.Late {
		r.Fired += n
	}

	r.P50MS, r.P99MS = t.quantile(r.Fired, 50), t.quantile(r.Fired, 99)

	return r
}

// quantile returns a lateness that at least this percentage of all ticks do not exceed.
func (t Tally) quantile(all, percent int64) int64 {
	need := (all*percent + 99) / 100
	for i, n := range t.Late {
		if need -= n; need <= 0 {
			return min(LateBound(i), t.MaxMS)
		}
	}

	return t.MaxMS
}
