package tasks

import (
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// answerTask returns a task that was just read or written as the body of an answer. result is one of the
// client's result words; "" means that the request only read the task. After a real write, answerTask never
// fails because of the optional details of the view.
func (h *Handlers) answerTask(c *taskWrite, status int, st store.Stored, result string) (httpapi.Answer, error) {
	v, err := h.viewTask(c, st, result)
	if err != nil && c.Operation.Writes && !c.dry {
		// The write has committed. If etcd fails while the next tick and the last runs are read, the answer must
		// not look as if the write had failed, so it contains the plain task.
		v, err = client.Task{Task: views.FillLists(st.Task)}, nil
	}

	v.Result = result
	// A write, real or dry, warns about runs that no present node would take, and about alerts. A delete does not.
	if result != "" && result != client.Deleted {
		if h.Nodes != nil {
			known := c.Rights().View()
			v.WarningDetails = views.WriteWarnings(known.Namespace(st.Ref.Namespace), st.Task.Spec, known.LimitNodes(h.Nodes()))
		}
		v.WarningDetails = append(v.WarningDetails, h.alertWarnings(c.Context(), []store.Stored{st})[0]...)
		if v.WarningDetails != nil {
			v.Warnings = task.WarningTexts(v.WarningDetails)
		}
	}

	if c.dry {
		v.DryRun = c.change
	}

	return httpapi.Answer{Status: status, Body: v, Header: map[string][]string{"Etag": {httpapi.ETag(st.Task.Revision)}}}, err
}

// viewTask returns the view of a task that was just read, or written with this result. The write that creates a task has
// read what its view needs.
func (h *Handlers) viewTask(c *taskWrite, st store.Stored, result string) (client.Task, error) {
	if c.freezes != nil {
		return h.Views.NewTask(&st, c.freezes), nil
	}
	return h.Views.TaskAfterWrite(c.Context(), st, result)
}
