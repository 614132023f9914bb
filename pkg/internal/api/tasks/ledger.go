package tasks

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const ledgerAbout = "The ledger contains the outcomes of ticks whose records are no longer in the task's history. It counts successful runs instead of listing them, " +
	"and names those that did not succeed. history.keep limits the history, and history.ledger the ledger."

// ledgerQuery are the parameters of a request for the ledger of a task.
type ledgerQuery struct {
	State httpapi.StateList `query:"state" doc:"States, separated by commas: only lines with ticks or runs in these states."`
	Since task.Time         `query:"since" format:"date-time" doc:"Only lines with ticks from this time on. A line about several ticks is returned whole if one of them is selected."`
	Until task.Time         `query:"until" format:"date-time" doc:"Only lines with ticks before this time."`
	Limit int               `query:"limit" minimum:"1" maximum:"5000" default:"5000" doc:"Maximum number of lines. It applies after the other parameters."`
}

// ledgerRoute returns the operation that reads the ledger of a task.
func (h *Handlers) ledgerRoute() *httpapi.Operation {
	return &httpapi.Operation{
		ID: "task-ledger", Verb: access.Read, Kind: access.Runs, Method: http.MethodGet, Path: httpapi.OfTask + "/ledger", Tag: "tasks",
		Summary: "Read the ledger of a task", Description: ledgerAbout,
		Status: 200, Answer: reflect.TypeFor[client.TaskLedger](), Handler: httpapi.Query(h.taskLedger),
	}
}

// taskLedger serves the ledger of a task.
func (h *Handlers) taskLedger(c *httpapi.Call, q ledgerQuery) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	read, err := h.Store.Ledger(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	book := ledger.NewBook(read.Task.UID, read.Chunks)
	answer := ledgerAnswer(read, book)
	answer.Namespace, answer.Task = ref.Namespace, ref.Name

	lines := selectLines(book, q)
	answer.Lines = lines[:min(len(lines), q.Limit)]
	answer.More = len(lines) - len(answer.Lines)

	return httpapi.Answer{Status: http.StatusOK, Body: answer}, nil
}

// ledgerAnswer returns what is known about a whole ledger, without its lines.
func ledgerAnswer(read store.TaskLedger, book *ledger.Book) client.TaskLedger {
	answer := client.TaskLedger{
		History: read.Task.History, Remembers: read.Cluster.LedgerOf(read.Task.History), Limit: read.Cluster.LedgerLimit,
		Since: task.At(book.Since), Broken: book.Broken,
	}
	if since, ok := book.CompleteSince(read.Task.CreatedAt.Time); ok {
		answer.CompleteSince = task.At(since)
	}

	return answer
}

// maxTime is later than all ticks.
var maxTime = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)

// selectLines returns the lines of a ledger that a request selects, the newest first.
func selectLines(book *ledger.Book, q ledgerQuery) []task.LedgerLine {
	until := q.Until.Time
	if until.IsZero() {
		until = maxTime
	}

	lines := slices.Clone(book.Between(q.Since.Time, until))
	if lines == nil {
		lines = []task.LedgerLine{}
	}

	return slices.DeleteFunc(lines, func(l task.LedgerLine) bool { return len(q.State) > 0 && !inStates(l, q.State) })
}

// inStates reports whether a line is about a tick or run in one of these states. Lines about records that could not be
// read are in none.
func inStates(l task.LedgerLine, states []task.State) bool {
	switch l.Kind {
	case task.LedgerSucceeded:
		return slices.Contains(states, task.Succeeded)
	case task.LedgerException, task.LedgerRequested:
		return slices.Contains(states, l.State)
	}

	for cause := range l.Causes {
		state, _, _ := strings.Cut(cause, ":")
		if slices.Contains(states, task.State(state)) {
			return true
		}
	}

	return false
}
