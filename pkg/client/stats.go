package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// TaskStats sums up the records in a task's history, and what its ledger records of earlier ticks.
type TaskStats struct {
	Namespace   string             `json:"namespace" doc:"The namespace of the task."`
	Task        string             `json:"task" doc:"The name of the task."`
	Since       task.Time          `json:"since,omitzero" doc:"Only ticks from this time on are included. Absent: everything that is remembered."`
	History     task.History       `json:"history" doc:"The history settings of the task: which ended runs are kept."`
	Kept        int                `json:"kept" doc:"The number of records in the history, also of earlier ticks."`
	KeptSince   task.Time          `json:"kept_since,omitzero" doc:"The tick of the oldest record. Absent: the history is empty."`
	Runs        int                `json:"runs" doc:"The number of runs that have ended, including those in the ledger."`
	Outcomes    map[task.State]int `json:"outcomes" doc:"The number of runs by final state, including those in the ledger."`
	SuccessRate *float64           `json:"success_rate,omitempty" doc:"The share of successful runs, of those that were not cancelled. Absent without such runs, and if history.record: failures has removed successful runs that are not in the ledger."`
	Duration    *Quantiles         `json:"duration,omitempty" doc:"How long the last attempts of the runs in the history took. Runs that were lost are not included."`
	Lateness    *Quantiles         `json:"lateness,omitempty" doc:"How long after its due time the first attempt of a run in the history started."`
	Successful  *SuccessfulRuns    `json:"successful,omitempty" doc:"How long successful runs took, including those in the ledger. Absent: there are none."`
	Retries     int                `json:"retries" doc:"The number of attempts after the first of a run in the history."`
	RetriedRuns int                `json:"retried_runs" doc:"The number of runs in the history with such attempts."`
	Skipped     map[string]int64   `json:"skipped" doc:"The number of ticks that were skipped, by reason."`
	Missed      map[string]int64   `json:"missed" doc:"The number of ticks that were missed, by reason."`
	Failures    []FailureCount     `json:"failures" doc:"Why runs did not succeed, the most frequent first."`
	Recent      []task.State       `json:"recent" doc:"The states of the newest records, at most 60, the newest last. Several ticks that did not run may have one record."`
	Ledger      *LedgerStats       `json:"ledger,omitempty" doc:"What was counted from the ledger. Absent: nothing was."`
}

// SuccessfulRuns describes the durations of successful runs. The ledger has no quantiles.
type SuccessfulRuns struct {
	Count         int64 `json:"count" doc:"The number of successful runs."`
	MeanMS        int64 `json:"mean_ms" doc:"The mean duration, in milliseconds."`
	MaxMS         int64 `json:"max_ms" doc:"The longest duration, in milliseconds."`
	MaxLatenessMS int64 `json:"max_lateness_ms" doc:"The latest start after a tick was due."`
}

// LedgerStats says which part of statistics is from the ledger.
type LedgerStats struct {
	Since       task.Time `json:"since" doc:"The first tick that was counted."`
	Runs        int       `json:"runs" doc:"The number of ended runs that were counted."`
	Unreadable  int64     `json:"unreadable" doc:"The number of records that could not be read when they were deleted. How these runs ended is not known."`
	Approximate bool      `json:"approximate" doc:"A line of the ledger is about ticks before and after since, so the number of the later ones was estimated."`
}

// Quantiles describe a distribution of durations.
type Quantiles struct {
	Count int   `json:"count" doc:"The number of runs that were measured: at most the newest 100,000."`
	P50MS int64 `json:"p50_ms" doc:"Half of the values are at most this, in milliseconds."`
	P95MS int64 `json:"p95_ms" doc:"95 % of the values are at most this, in milliseconds."`
	P99MS int64 `json:"p99_ms" doc:"99 % of the values are at most this, in milliseconds."`
	MaxMS int64 `json:"max_ms" doc:"The largest value, in milliseconds."`
}

// FailureCount is how many runs ended for the same reason.
type FailureCount struct {
	State      task.State `json:"state" doc:"How the runs ended."`
	Reason     string     `json:"reason,omitempty" doc:"Why they ended like this: one of the reasons in docs/why.md."`
	ExitCode   *int       `json:"exit_code,omitempty" doc:"The exit code of the process. Absent: it did not exit by itself."`
	Signal     string     `json:"signal,omitempty" doc:"The signal that ended the process, such as SIGKILL."`
	HTTPStatus int        `json:"http_status,omitempty" doc:"The status of the last response to the request of an HTTP action."`
	Runs       int        `json:"runs" doc:"The number of runs."`
}

// Stats sums up the history and the ledger of a task: the ticks since that time, or all that are remembered if since is zero.
func (s *TasksService) Stats(ctx context.Context, namespace, name string, since time.Time) (TaskStats, error) {
	query := url.Values{}
	if !since.IsZero() {
		query.Set("since", task.At(since).Format(time.RFC3339Nano))
	}

	var stats TaskStats
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: query}, &stats, "stats")

	return stats, err
}

// TaskLedger contains the outcomes of a task's ticks after their records were deleted from its history.
type TaskLedger struct {
	Namespace     string            `json:"namespace" doc:"The namespace of the task."`
	Task          string            `json:"task" doc:"The name of the task."`
	History       task.History      `json:"history" doc:"The history settings of the task: which ended runs are kept."`
	Remembers     task.Duration     `json:"remembers" doc:"For how long the ledger remembers ticks: history.ledger or the default of the cluster, but not longer than limit. 0s: there is no ledger."`
	Limit         *task.Duration    `json:"limit,omitempty" doc:"The limit of all ledgers, while etcd is filling up. Absent: there is none."`
	Since         task.Time         `json:"since,omitzero" doc:"The first tick in the ledger. Absent: the ledger is empty."`
	CompleteSince task.Time         `json:"complete_since,omitzero" doc:"Each tick since then whose run has ended has a record in the history or is in the ledger, unless etcd was full when its record was deleted. Absent: this is not known, because the history was trimmed without a ledger, or because a record of the ledger cannot be read."`
	Lines         []task.LedgerLine `json:"lines" doc:"The newest first."`
	More          int               `json:"more" doc:"The number of further, older lines that the limit has left out."`
	Broken        int               `json:"broken" doc:"The number of the ledger's records that cannot be read. lines does not contain their outcomes."`
}

// LedgerOptions select the lines of a ledger.
type LedgerOptions struct {
	Since  time.Time    // lines with ticks from this time on; zero: no limit
	Until  time.Time    // lines with ticks before this time; zero: no limit
	States []task.State // lines with ticks in any of these states; nil: any state
	Limit  int          // the maximum number of lines; 0 means all
}

// Ledger returns the outcomes of a task's ticks after their records were deleted from its history. Lines about several
// ticks are returned whole if one of the ticks is selected. It returns task.ErrNotFound if there is no such task.
func (s *TasksService) Ledger(ctx context.Context, namespace, name string, o LedgerOptions) (TaskLedger, error) {
	query := url.Values{}
	setTimes(query, map[string]time.Time{"since": o.Since, "until": o.Until})
	setIfNotEmpty(query, "state", joinStates(o.States))
	if o.Limit > 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}

	var l TaskLedger
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: query}, &l, "ledger")

	return l, err
}

// TaskLoad is how many runs fall due in the coming hours. Limits such as max_runs, overlap policies and freezes are not
// considered.
type TaskLoad struct {
	From            task.Time     `json:"from" doc:"The beginning of the first step: that of the current minute."`
	Step            task.Duration `json:"step" doc:"The length of each step."`
	Runs            []float64     `json:"runs" doc:"The number of runs in each step. A run whose time is not exact counts in several steps with a part each."`
	Tasks           int           `json:"tasks" doc:"The number of tasks with a tick in this time."`
	Jittered        int           `json:"jittered" doc:"How many of these tasks have jitter. Their runs are spread evenly over the time in which they may fall due."`
	Inexact         int           `json:"inexact" doc:"How many of these tasks combine @every with other expressions. The runs of @every are spread evenly over the whole time."`
	AfterCompletion int           `json:"after_completion" doc:"The number of tasks whose ticks follow from the ends of runs. They are not predictable, and not included."`
	Peaks           []LoadPeak    `json:"peaks" doc:"The minutes with the most runs, those with the most runs first. Of consecutive minutes with equally many runs, only the first is listed."`
	Minute          *LoadPeak     `json:"minute,omitempty" doc:"The minute of the parameter minute."`
	Advice          []LoadAdvice  `json:"advice" doc:"What would lower the peaks."`
	ListInfo
}

// LoadPeak is a minute with many runs, or one that was asked for.
type LoadPeak struct {
	At          task.Time    `json:"at" doc:"The beginning of the minute."`
	Runs        float64      `json:"runs" doc:"The number of runs that fall due in this minute."`
	Makers      []LoadMaker  `json:"makers" doc:"The schedules with the most runs in this minute, at most five."`
	OtherMakers int          `json:"other_makers,omitempty" doc:"The number of further schedules. Each node names at most 100."`
	Seconds     []LoadSecond `json:"seconds" doc:"The seconds with the most runs, at most five, those with the most runs first."`
}

// LoadSecond is a second of a minute with many runs.
type LoadSecond struct {
	Second int     `json:"second" doc:"From 0 to 59."`
	Runs   float64 `json:"runs" doc:"The number of runs that fall due in this second."`
}

// LoadMaker is all tasks with the same schedule, with what they contribute to a minute.
type LoadMaker struct {
	Schedule string        `json:"schedule" doc:"The expressions. Tasks that have only @at are counted together."`
	Timezone string        `json:"timezone" doc:"The time zone of these tasks."`
	Jitter   task.Duration `json:"jitter,omitempty" doc:"The jitter of these tasks."`
	Tasks    int           `json:"tasks" doc:"The number of tasks that may have a run in this minute."`
	Runs     float64       `json:"runs" doc:"The number of their runs in this minute."`
	Names    []string      `json:"names" doc:"The first three tasks in the order of their names, with their namespaces."`
}

// LoadAdvice says what would lower a peak.
type LoadAdvice struct {
	At       task.Time `json:"at" doc:"The minute of the peak."`
	Schedule string    `json:"schedule" doc:"The schedule that makes the most of it."`
	Timezone string    `json:"timezone" doc:"The time zone of these tasks."`
	Tasks    int       `json:"tasks" doc:"The number of tasks with this schedule."`
	Text     string    `json:"text" doc:"What to change, as text."`
}

// LoadOptions select the tasks and the time of a load.
type LoadOptions struct {
	Namespace string        // "": all namespaces that the caller may read
	Query     string        // as in TaskListOptions
	Span      time.Duration // 0: 24 hours, which is the maximum
	Step      time.Duration // 0: a minute
	Peaks     int           // the maximum number of peaks
	Minute    time.Time     // what makes this minute, too; zero: none
}

// LoadService reads how many runs are to come.
type LoadService struct{ conn *connection }

// Get returns the load of the coming hours. It comes from the memory of all scheduling nodes.
func (s *LoadService) Get(ctx context.Context, o LoadOptions) (TaskLoad, error) {
	path, err := namespacePath(o.Namespace, "/load")
	if err != nil {
		return TaskLoad{}, err
	}

	q := url.Values{}
	setIfNotEmpty(q, "q", o.Query)

	if o.Span != 0 {
		q.Set("span", task.Duration(o.Span).String())
	}
	if o.Step != 0 {
		q.Set("step", task.Duration(o.Step).String())
	}
	if o.Peaks != 0 {
		q.Set("peaks", strconv.Itoa(o.Peaks))
	}
	if !o.Minute.IsZero() {
		q.Set("minute", o.Minute.UTC().Format(time.RFC3339))
	}

	var l TaskLoad
	err = s.conn.doCall(ctx, call{method: http.MethodGet, path: path, query: q}, &l)

	return l, err
}
