package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// TaskStats sums up the records in a task's history, and what its ledger tells of earlier ticks.
type TaskStats struct {
	Namespace   string             `json:"namespace"`
	Task        string             `json:"task"`
	Since       task.Time          `json:"since,omitzero" doc:"Only ticks from this time on are included. Absent: everything that is remembered."`
	History     task.History       `json:"history"`
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
	Count         int64 `json:"count"`
	MeanMS        int64 `json:"mean_ms"`
	MaxMS         int64 `json:"max_ms"`
	MaxLatenessMS int64 `json:"max_lateness_ms" doc:"The latest start after a tick was due."`
}

// LedgerStats tells which part of statistics is from the ledger.
type LedgerStats struct {
	Since       task.Time `json:"since" doc:"The first tick that was counted."`
	Runs        int       `json:"runs" doc:"The number of ended runs that were counted."`
	Unreadable  int64     `json:"unreadable" doc:"The number of records that could not be read when they were deleted. How these runs ended is not known."`
	Approximate bool      `json:"approximate" doc:"A line of the ledger is about ticks before and after since, so the number of the later ones was estimated."`
}

// Quantiles describe a distribution of durations.
type Quantiles struct {
	Count int   `json:"count" doc:"The number of runs that were measured: at most the newest 100,000."`
	P50MS int64 `json:"p50_ms"`
	P95MS int64 `json:"p95_ms"`
	P99MS int64 `json:"p99_ms"`
	MaxMS int64 `json:"max_ms"`
}

// FailureCount is how many runs ended for the same reason.
type FailureCount struct {
	State      task.State `json:"state"`
	Reason     string     `json:"reason,omitempty"`
	ExitCode   *int       `json:"exit_code,omitempty"`
	Signal     string     `json:"signal,omitempty"`
	HTTPStatus int        `json:"http_status,omitempty"`
	Runs       int        `json:"runs"`
}

// Stats sums up the history and the ledger of a task: the ticks from since on, or all that are remembered if since is zero.
func (s *TasksService) Stats(ctx context.Context, namespace, name string, since time.Time) (TaskStats, error) {
	query := url.Values{}
	if !since.IsZero() {
		query.Set("since", task.At(since).Format(time.RFC3339Nano))
	}

	var stats TaskStats
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: query}, &stats, "stats")

	return stats, err
}
