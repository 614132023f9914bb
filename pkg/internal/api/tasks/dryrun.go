package tasks

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const dryRunAbout = "With dry_run=true, the request is validated but nothing is written. dry_run in the answer contains the changes."

// dryRunQuery are the parameters of routes that support a dry run.
type dryRunQuery struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Checks everything but writes nothing."`
	Ticks  int  `query:"ticks" minimum:"0" maximum:"4000" default:"10" doc:"With dry_run: the maximum number of added, removed or moved ticks to list; 0 does not compare ticks."`
}

// Check rejects a number of ticks without a dry run.
func (q *dryRunQuery) Check(given url.Values) error {
	if !q.DryRun && given.Has("ticks") {
		return task.Invalid(task.CodeBadValue, "ticks", "requires dry_run=true")
	}
	return nil
}

// taskWrite is a request that changes a task, or a dry run of such a request.
type taskWrite struct {
	*httpapi.Call
	dry     bool               // nothing is written
	ticks   int                // how many ticks a dry run lists
	change  *client.Change     // what a dry run found; nil until it has ended
	deleted *store.DeletedTask // of an undelete
	once    store.Idempotency  // of a creation with an Idempotency-Key
	// freezes are those that were in force when the task was created; nil: it was not created.
	freezes *task.Freezes
}

// newTaskWrite combines a call with its dry run parameters.
func newTaskWrite(c *httpapi.Call, q dryRunQuery) *taskWrite {
	return &taskWrite{Call: c, dry: q.DryRun, ticks: q.Ticks}
}

// asNewTask returns a new task as a dry run shows it: without a uid, because the uid is chosen when the task is
// written.
func asNewTask(st store.Stored) store.Stored {
	st.Task.UID, st.Entry.UID = "", ""
	st.EntryMod = 1 // makes the views treat the entry as stored
	return st
}

// asUpdatedTask returns a task as it would be after a dry run, with the revision of the stored task, because nothing is
// written.
func asUpdatedTask(old, st store.Stored) store.Stored {
	st.Task.Revision, st.EntryMod = old.Task.Revision, max(old.EntryMod, 1)
	return st
}

// wouldChange compares a task before (old; nil if it does not exist) and after a write, and returns the difference:
// the fields, and up to ticks changed ticks. If ticks is 0, it does not compare ticks.
func (h *Handlers) wouldChange(old *store.Stored, st store.Stored, result string, ticks int) *client.Change {
	ch := &client.Change{Result: result, Fields: []client.FieldChange{}}

	if result == client.Unchanged {
		return ch
	}

	now := h.Now.Stamp()
	var before *task.Entry
	// Both sides are compared as users see them, with the pause in force and without a pause that has ended.
	is := views.ShownAs(st.Task.Spec, &st.Entry, now.Time)

	if old == nil {
		ch.Fields = statedFields(is)
	} else {
		was := views.Settled(old.Task.Spec, now.Time)
		if before = entryIn(old); before != nil {
			was = views.ShownAs(was, before, now.Time)
		}
		ch.Fields = task.Compare(was, is)
	}

	if ticks > 0 {
		ch.Ticks = compareTicks(before, &st.Entry, now, ticks)
	}

	return ch
}

// entryIn returns the entry of a task that was read, or nil if the task has no readable entry.
func entryIn(st *store.Stored) *task.Entry {
	if st.EntryMod == 0 || st.Entry.UID == "" {
		return nil
	}
	return &st.Entry
}

// statedFields returns the fields of a new spec that differ from the defaults, except for its name.
func statedFields(s task.Spec) []client.FieldChange {
	std := task.DefaultsOf(s)
	std.Name, std.Namespace, std.Receiver = s.Name, s.Namespace, nil

	list := slices.DeleteFunc(task.Compare(std, s), func(c task.FieldChange) bool { return c.Field == "action" }) // the default has no action, but every task has one
	for i := range list {
		list[i].From = nil // there was no earlier value
	}

	return list
}

// wouldDelete answers a dry run of a delete. Like a delete, it also works if the entry cannot be read.
func (h *Handlers) wouldDelete(c *taskWrite, ref record.Ref, force bool) (httpapi.Answer, error) {
	st, err := h.Store.Task(c.Context(), ref)
	if entryBroken(st, err) {
		st.EntryMod, err = 0, nil
	}

	if err != nil {
		return httpapi.Answer{}, err
	}
	// The answer shows the task, which the caller may lack the right to read.
	if err := c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: ref.Namespace}); err != nil {
		return httpapi.Answer{}, err
	}
	if err := h.checkDelete(c.Call, st, force); err != nil {
		return httpapi.Answer{}, err
	}

	c.change = &client.Change{Result: client.Deleted, Fields: []client.FieldChange{}}
	if c.ticks > 0 {
		c.change.Ticks = compareTicks(entryIn(&st), nil, h.Now.Stamp(), c.ticks)
	}

	return h.answerTask(c, http.StatusOK, st, client.Deleted)
}
