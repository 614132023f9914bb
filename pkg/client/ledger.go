package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// TaskLedger tells what became of a task's ticks after their records were deleted from its history.
type TaskLedger struct {
	Namespace     string            `json:"namespace"`
	Task          string            `json:"task"`
	History       task.History      `json:"history"`
	Remembers     task.Duration     `json:"remembers" doc:"For how long the ledger remembers ticks: history.ledger or the default of the cluster, but not longer than limit. 0s: there is no ledger."`
	Limit         *task.Duration    `json:"limit,omitempty" doc:"The limit of all ledgers, while etcd is filling up. Absent: there is none."`
	Since         task.Time         `json:"since,omitzero" doc:"The first tick in the ledger. Absent: the ledger is empty."`
	CompleteSince task.Time         `json:"complete_since,omitzero" doc:"Each tick since then whose run has ended has a record in the history or is in the ledger, unless etcd was full when its record was deleted. Absent: this is not known, because the history was trimmed without a ledger, or because a record of the ledger cannot be read."`
	Lines         []task.LedgerLine `json:"lines" doc:"The newest first."`
	More          int               `json:"more" doc:"The number of further, older lines that the limit has left out."`
	Broken        int               `json:"broken" doc:"The number of the ledger's records that cannot be read. What they say is not in lines."`
}

// LedgerOptions select the lines of a ledger.
type LedgerOptions struct {
	Since  time.Time    // lines with ticks from this time on; zero: no limit
	Until  time.Time    // lines with ticks before this time; zero: no limit
	States []task.State // lines with ticks in any of these states; nil: any state
	Limit  int          // the maximum number of lines; 0 means all
}

// Ledger returns what became of a task's ticks after their records were deleted from its history. Lines about several
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
