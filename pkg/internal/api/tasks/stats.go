package tasks

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/runstats"
	"github.com/carillonhq/carillon/pkg/task"
)

const statsAbout = "Covers what the task's history contains, and what its ledger records of earlier ticks; kept_since and ledger.since say since when. " +
	"Late results of lost runs are not included. Quantiles and retries are exact, and of the runs in the history only."

// statsQuery are the parameters of a request for the statistics of a task.
type statsQuery struct {
	Since task.Time `query:"since" format:"date-time" doc:"Only ticks from this time on. For manual runs, the time of the request counts. Default: everything that is remembered."`
}

// statsRoute returns the operation that sums up the history and the ledger of a task.
func (h *Handlers) statsRoute() *httpapi.Operation {
	return &httpapi.Operation{
		ID: "task-stats", Verb: access.Read, Kind: access.Runs, Method: http.MethodGet, Path: httpapi.OfTask + "/stats", Tag: "tasks",
		Summary: "Read statistics about a task's runs", Description: statsAbout, Status: 200, Answer: reflect.TypeFor[client.TaskStats](), Handler: httpapi.Query(h.taskStats),
	}
}

// taskStats serves the statistics of a task. It reads the history in pages and keeps only measurements.
func (h *Handlers) taskStats(c *httpapi.Call, q statsQuery) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	read, err := h.Store.Ledger(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	// A trim moves records from the history to the ledger. At one revision, each of them is counted once.
	// Runs of a deleted task of that name do not count.
	var stats runstats.Stats
	kept, oldest, err := h.Store.EachEnded(c.Context(), ref, read.Revision, q.Since.Time, func(r *task.Run) {
		if r.UID == "" || r.UID == read.Task.UID {
			stats.Add(r)
		}
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	book := ledger.NewBook(read.Task.UID, read.Chunks)
	for i := range book.Lines {
		stats.AddLine(&book.Lines[i], q.Since.Time)
	}

	sum := stats.Sum(read.Task.History, hasSuccesses(book, q.Since, oldest))
	sum.Namespace, sum.Task, sum.Since, sum.Kept, sum.KeptSince = ref.Namespace, ref.Name, q.Since, kept, oldest

	return httpapi.Answer{Status: http.StatusOK, Body: sum}, nil
}

// hasSuccesses reports whether a ledger covers all successful runs since a time that history.record: failures has removed
// from the history, whose oldest record has this tick. A zero time means the oldest record.
func hasSuccesses(book *ledger.Book, since, oldest task.Time) bool {
	begin := since
	if begin.IsZero() {
		begin = oldest
	}

	return book.IsComplete(begin.Time)
}
