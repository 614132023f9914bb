package tasks

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/runstats"
	"github.com/carillonhq/carillon/pkg/task"
)

const statsAbout = "Covers what the task's history still contains; kept_since says since when. Late results of lost runs are not included. Quantiles are exact."

// statsQuery are the parameters of a request for the statistics of a task.
type statsQuery struct {
	Since task.Time `query:"since" format:"date-time" doc:"Only ticks from this time on. For manual runs, the time of the request counts. Default: everything that is kept."`
}

// statsRoute returns the operation that sums up the history of a task.
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

	st, err := h.Store.Task(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var stats runstats.Stats
	kept, oldest, err := h.Store.EachEnded(c.Context(), ref, q.Since.Time, stats.Add)
	if err != nil {
		return httpapi.Answer{}, err
	}

	sum := stats.Sum(st.Task.History)
	sum.Namespace, sum.Task, sum.Since, sum.Kept, sum.KeptSince = ref.Namespace, ref.Name, q.Since, kept, oldest

	return httpapi.Answer{Status: http.StatusOK, Body: sum}, nil
}
