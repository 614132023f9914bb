package tasks

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskVersions serves the stored versions of a task, the newest first.
func (h *Handlers) taskVersions(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	list, err := h.readVersions(c, ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	out := make([]client.TaskVersion, len(list))
	for i, t := range list {
		out[i] = client.TaskVersion{Task: views.FillLists(t), Changed: []string{}}
		// Changed stays empty for the oldest version, and where the version before cannot be read (its name is
		// empty).
		if i+1 < len(list) && list[i+1].Name != "" {
			out[i].Changed = task.Differences(list[i+1].Spec, t.Spec)
		}
	}

	return httpapi.All(out)
}

// readVersions reads the versions of a task, the current one first. If the task was deleted, the error includes
// when, by whom and why.
func (h *Handlers) readVersions(c *httpapi.Call, ref record.Ref) ([]task.Task, error) {
	list, gone, err := h.Store.Versions(c.Context(), ref)
	if errors.Is(err, task.ErrNotFound) && gone != nil {
		because := ""
		if gone.Why != "" {
			because = ": " + gone.Why
		}
		return nil, httpapi.Fail(http.StatusNotFound, client.CodeDeleted, "%s: it was deleted at %s by %s%s", err, gone.DeletedAt.Format(time.RFC3339), cmp.Or(gone.DeletedBy.String(), "an unknown user"), because)
	}

	return list, err
}

// rollbackTask serves a rollback: it writes a new version with the spec of an earlier one. The current pause
// stays, because it is not part of what the task does.
func (h *Handlers) rollbackTask(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.RollbackRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}
	if ask.To < 0 {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "to", "%d is not a generation", ask.To)
	}

	var out client.RolledBack
	err = httpapi.RetryConflict(c.Context(), func() error {
		list, err := h.readVersions(c, ref)
		if err != nil {
			return err
		}
		if err := c.CheckIfMatch(ref, list[0].Revision); err != nil {
			return err
		}

		to, err := rollbackTarget(list, ask.To)
		if err != nil {
			return err
		}

		spec := samePause(to.Spec, list[0].Spec)
		if err := h.checkSpec(&spec); err != nil {
			return err
		}

		out = client.RolledBack{To: to.Generation, Changed: task.Differences(list[0].Spec, spec)}
		if ask.DryRun {
			st, err := h.Store.Task(c.Context(), ref)
			if err == nil {
				out.Task, err = h.Views.Task(c.Context(), st)
			}

			out.Result = client.Unchanged

			return err
		}

		once := *c
		once.IfMatch = list[0].Revision // the write replaces exactly the version that was compared
		write := &taskWrite{Call: &once}

		st, result, err := h.changeTask(write, ref, edit{is: task.ChangeRolledBack, spec: func(_, _ task.Spec) (task.Spec, error) { return spec, nil }})
		// The caller did not send If-Match, so a change in between is a conflict, which starts the rollback
		// again.
		if errors.Is(err, task.ErrStale) && c.IfMatch == 0 {
			return fmt.Errorf("%w: task %s", task.ErrConflict, ref)
		}

		if err == nil {
			a, _ := h.answerTask(write, http.StatusOK, st, result) // the error is ignored: the task is written
			out.Task, _ = a.Body.(client.Task)
		}

		return err
	})

	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusOK, Body: out, Header: map[string][]string{"Etag": {httpapi.ETag(out.Revision)}}}, nil
}

// samePause returns s with the pause of another spec.
func samePause(s, as task.Spec) task.Spec {
	s.Paused, s.PausedUntil, s.PauseReason = as.Paused, as.PausedUntil, as.PauseReason
	return s
}

// rollbackTarget returns the version with a generation. 0 means the newest version that differs from the
// current one, list[0], in more than the pause.
func rollbackTarget(list []task.Task, generation int64) (task.Task, error) {
	now, former := list[0], list[1:]
	differs := func(t task.Task) bool { return t.Name != "" && !sameSpec(samePause(t.Spec, now.Spec), now.Spec) }

	if generation == 0 {
		if i := slices.IndexFunc(former, differs); i >= 0 {
			return former[i], nil
		}
		return now, httpapi.Fail(http.StatusConflict, client.CodeConflict, "no stored version differs from the current version, %d", now.Generation).WithField("to")
	}

	i := slices.IndexFunc(list, func(t task.Task) bool { return t.Generation == generation })
	switch {
	case i < 0:
		return now, httpapi.Fail(http.StatusNotFound, client.CodeNotFound, "version %d is not stored; versions %d to %d are", generation, list[len(list)-1].Generation, now.Generation).WithField("to")
	case list[i].Name == "":
		return now, httpapi.Fail(http.StatusConflict, client.CodeConflict, "version %d cannot be read", generation).WithField("to")
	case !differs(list[i]):
		return now, httpapi.Fail(http.StatusConflict, client.CodeConflict, "version %d is the same as the current version, %d", generation, now.Generation).WithField("to")
	}

	return list[i], nil
}
