package tasks

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// deleteQuery are the parameters of a deletion.
type deleteQuery struct {
	dryRunQuery
	Purge bool `query:"purge" default:"false" doc:"Keeps no copy, so the task cannot be undeleted."`
	Force bool `query:"force" default:"false" doc:"Deletes the task even if other tasks run after it. They stay, and run after a new task of this name."`
}

// recoverable returns the spec with which a task that is deleted can be undeleted: with the pause in force, which the owner of
// the shard may have set. It is nil if the spec cannot be read, or if etcd is so full that deletions shall make room.
func (h *Handlers) recoverable(st store.Stored) *task.Spec {
	if st.Task.Name == "" || st.NoRoom || st.Task.Validate() != nil {
		return nil
	}

	spec := st.Task.Spec
	if st.Entry.UID != "" {
		spec = views.ShownAs(spec, &st.Entry, h.Now())
	}

	return &spec
}

// undeleteTask serves POST …/undelete: it creates a deleted task again from its tombstone. It is a creation, so it has the
// checks and needs the rights of one, judged on the spec that comes back.
func (h *Handlers) undeleteTask(request *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	ref, err := request.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	c := newTaskWrite(request, q)
	var st store.Stored
	err = httpapi.RetryConflict(c.Context(), func() error {
		gone, err := h.readDeleted(c.Call, ref)
		if err != nil {
			return err
		}

		spec := *gone.Spec
		if err := h.checkSpec(&spec); err != nil {
			return err
		}
		c.deleted = &gone
		st, err = h.writeNewTask(c, spec)

		return err
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerTask(c, http.StatusOK, st, client.Created)
}

// readDeleted reads the tombstone of a task that can be undeleted. To a caller that may not read the task, it does not exist.
func (h *Handlers) readDeleted(c *httpapi.Call, ref record.Ref) (store.DeletedTask, error) {
	if _, err := h.Store.Revisions(c.Context(), ref); !errors.Is(err, task.ErrNotFound) {
		if err == nil {
			err = fmt.Errorf("undelete task %s: %w", ref, task.ErrExists)
		}
		return store.DeletedTask{}, err
	}

	gone, err := h.Store.Tombstone(c.Context(), ref)
	switch {
	case errors.Is(err, task.ErrNotFound), err == nil && !mayReadDeleted(c.Rights(), &gone):
		return gone, httpapi.Fail(http.StatusNotFound, client.CodeNotFound, "task %s was not deleted within the last week", ref)
	case err != nil:
		return gone, err
	case gone.Spec == nil:
		return gone, httpapi.Fail(http.StatusNotFound, client.CodeDeleted, "task %s was deleted at %s by %s without a copy: %s", ref, gone.DeletedAt.Format(time.RFC3339),
			cmp.Or(gone.DeletedBy.String(), "an unknown user"), cmp.Or(gone.Why, "it was purged, its record could not be read, or etcd was above 75 % of its quota")).
			WithHint("create the task from a file or a backup")
	}

	return gone, nil
}

// mayReadDeleted reports whether a caller may know of a deleted task. Without its spec, its labels are unknown.
func mayReadDeleted(r *httpapi.Rights, gone *store.DeletedTask) bool {
	need := access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: gone.Ref.Namespace}
	if gone.Spec != nil {
		need.Labels = gone.Spec.Labels
	}

	return r.Allows(need)
}

// listDeleted serves the list of deleted tasks.
func (h *Handlers) listDeleted(c *httpapi.Call, q httpapi.PageQuery) (httpapi.Answer, error) {
	ns, err := c.Namespace()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if err := c.Rights().RequireNamespace(ns); err != nil {
		return httpapi.Answer{}, err
	}
	p, err := c.Paging(q)
	if err != nil {
		return httpapi.Answer{}, err
	}

	list, next, err := h.Store.ListDeleted(c.Context(), ns, p.After, p.Limit)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var items []client.DeletedTask
	for i := range list {
		if d := &list[i]; mayReadDeleted(c.Rights(), d) {
			items = append(items, client.DeletedTask{
				Namespace: ns, Name: d.Ref.Name, UID: d.UID, Generation: d.Generation, DeletedAt: d.DeletedAt, DeletedBy: d.DeletedBy, Why: d.Why,
				Until: task.At(d.DeletedAt.Add(store.TombstoneAge)), Spec: d.Spec,
			})
		}
	}

	return httpapi.Page(c, p, items, next)
}
