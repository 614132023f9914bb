package tasks

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// authorizeChange refuses a change of a task that the caller may not make, or that the record of the namespace forbids.
// before is nil for a new task, after for a deletion. The writes that follow are judged by the same rules again.
func (h *Handlers) authorizeChange(rights *httpapi.Rights, before, after *task.Spec) error {
	needs := access.NeedsOfChange(before, after)
	if err := rights.Require(needs...); err != nil {
		return err
	}

	if after != nil && changesMoreThanPause(needs) {
		if err := rights.RequireNamespace(after.Namespace); err != nil {
			return err
		}

		if err := rights.Check(func(v *authority.View) error { return checkLimits(v, after) }); err != nil {
			return err
		}
	}

	if before != nil && after != nil {
		rights.Describe(task.AuditObject{Kind: "task", Namespace: after.Namespace, Name: after.Name, Fields: changedFields(before, after)})
	}

	return nil
}

// authorizeUpdate is authorizeChange for a write over a stored task. resume states that the write also ends a pause
// that the owner of the shard has set, which the spec does not show.
func (h *Handlers) authorizeUpdate(rights *httpapi.Rights, old store.Stored, spec task.Spec, resume bool) error {
	before := views.Settled(old.Task.Spec, h.Now())
	needs := access.NeedsOfChange(&before, &spec)

	switch {
	case resume:
		if err := rights.Require(access.Need{Verb: access.Pause, Kind: access.Tasks, Namespace: spec.Namespace, Labels: before.Labels}); err != nil {
			return err
		}
	case len(needs) == 0: // only the entry is rewritten
		if err := rights.Require(access.Need{Verb: access.Update, Kind: access.Tasks, Namespace: spec.Namespace, Labels: before.Labels}); err != nil {
			return err
		}
	}

	return h.authorizeChange(rights, &before, &spec)
}

// checkLimits returns why the record of its namespace forbids a task.
func checkLimits(v *authority.View, spec *task.Spec) error {
	n := v.Namespace(spec.Namespace)
	if n == nil {
		return nil // RequireNamespace has refused it
	}

	return access.CheckTask(n, spec)
}

// allowedBy returns the revision of the namespace's record if that allows the task, and otherwise 0. It becomes part of
// the entry: while the record has this revision, the owner of the shard need not check the task when it starts a run.
func allowedBy(rights *httpapi.Rights, spec *task.Spec) int64 {
	n := rights.View().Namespace(spec.Namespace)
	if n == nil || access.CheckTask(n, spec) != nil {
		return 0
	}

	return n.Revision
}

// describeTask adds to the audit record which version of a task is written.
func describeTask(rights *httpapi.Rights, st store.Stored) {
	rights.Describe(task.AuditObject{Kind: "task", Namespace: st.Task.Namespace, Name: st.Task.Name, UID: st.Task.UID, Generation: st.Task.Generation})
}

// changesMoreThanPause reports whether a change needs more than the right to pause. A task that its namespace no longer
// allows can still be paused and resumed.
func changesMoreThanPause(needs []access.Need) bool {
	return slices.ContainsFunc(needs, func(n access.Need) bool { return n.Verb != access.Pause })
}

// changedFields returns the names of the fields of a spec that differ.
func changedFields(before, after *task.Spec) []string {
	old, new := fieldsOf(before), fieldsOf(after)

	names := map[string]bool{}
	for name, value := range new {
		if string(old[name]) != string(value) {
			names[name] = true
		}
	}
	for name := range old {
		if _, kept := new[name]; !kept {
			names[name] = true
		}
	}

	return slices.Sorted(maps.Keys(names))
}

func fieldsOf(s *task.Spec) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if b, err := json.Marshal(s); err == nil {
		_ = json.Unmarshal(b, &fields) // it was written as an object
	}

	return fields
}
