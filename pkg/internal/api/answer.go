package api

import (
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
)

// answerTask answers with a task as it was just read or written.
func (h *taskHandlers) answerTask(c *taskWrite, status int, st store.Stored, result string) (answer, error) {
	v, err := h.Views.viewAfter(c.ctx(), st, result)
	if err != nil && c.route.writes && !c.dry {
		// It is written: what adorns it must not make it look undone.
		v, err = client.Task{Task: tidy(st.Task)}, nil
	}
	v.Result = result
	if result != "" && result != client.Deleted && h.Nodes != nil {
		v.Warnings = placementWarnings(st.Task.Spec, h.Nodes())
	}
	if c.dry {
		v.DryRun = c.change
	}
	return answer{status: status, body: v, header: map[string][]string{"Etag": {etag(st.Task.Revision)}}}, err
}
