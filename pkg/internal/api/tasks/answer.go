package tasks

import (
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// answerTask answers with a task as it was just read or written.
func (h *Handlers) answerTask(c *taskWrite, status int, st store.Stored, result string) (httpapi.Answer, error) {
	v, err := h.Views.TaskAfterWrite(c.Context(), st, result)
	if err != nil && c.Operation.Writes && !c.dry {
		// It is written: what adorns it must not make it look undone.
		v, err = client.Task{Task: views.FillLists(st.Task)}, nil
	}

	v.Result = result
	if result != "" && result != client.Deleted && h.Nodes != nil {
		v.WarningDetails = placementWarnings(st.Task.Spec, h.Nodes())
		v.Warnings = task.WarningTexts(v.WarningDetails)
	}

	if c.dry {
		v.DryRun = c.change
	}

	return httpapi.Answer{Status: status, Body: v, Header: map[string][]string{"Etag": {httpapi.ETag(st.Task.Revision)}}}, err
}
