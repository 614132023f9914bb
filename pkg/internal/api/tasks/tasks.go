// Package tasks contains the API handlers for tasks. They create, change, pause, delete, list and explain
// tasks, one at a time or many in a batch, and compute the ticks of a task or of a schedule.
//
// A change is computed from the task in etcd, and the write compares the revision that was read (G7, G14). If
// the task has changed in between, the change is computed again, unless the request has If-Match. A dry run
// follows the same path and writes nothing. A write of unknown outcome is never repeated.
package tasks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// readSpec decodes and validates the body as the spec of a task under the path's namespace and name. If name is
// "", the body contains the name.
func (h *Handlers) readSpec(c *httpapi.Call, namespace, name string) (task.Spec, error) {
	spec, err := task.DecodeSpec(c.Body)
	if err != nil {
		return spec, err
	}

	// An absent namespace is that of the path, but the spec has the default then. Only if the two differ is it necessary to
	// decode the body again, to tell an absent one from a wrong one.
	if name != "" || spec.Namespace != namespace {
		if spec.Namespace, spec.Name, err = bodyIdentity(c, namespace, name); err != nil {
			return spec, err
		}
	}

	return spec, h.checkSpec(&spec)
}

// bodyIdentity returns the namespace and name of the body's task. They must not differ from those of the path,
// because a task cannot be renamed.
func bodyIdentity(c *httpapi.Call, namespace, name string) (string, string, error) {
	var said struct{ Name, Namespace *string }
	if err := json.Unmarshal(c.Body, &said); err != nil {
		return "", "", task.Invalid(task.CodeBadJSON, "", "%s", err)
	}
	if said.Namespace != nil && *said.Namespace != namespace {
		return "", "", task.Invalid(task.CodeBadValue, "namespace", "%s does not match the namespace in the path, %s; omit it", task.Quote(*said.Namespace), namespace)
	}

	switch {
	case name == "" && said.Name == nil:
		return namespace, "", nil
	case name == "":
		return namespace, *said.Name, nil
	case said.Name != nil && *said.Name != name:
		return "", "", task.Invalid(task.CodeBadValue, "name", "%s does not match the name in the path, %s; a task cannot be renamed", task.Quote(*said.Name), name)
	}

	return namespace, name, nil
}

// checkSpec validates a spec completely, and replaces schedules of the forms "@in DURATION" and "@at LOCAL TIME" by the absolute
// time at which they tick. Its error has all invalid fields, as far as they can be found one by one: see task.Problems.
func (h *Handlers) checkSpec(spec *task.Spec) error {
	given := *spec
	err := h.checkFirst(spec)
	if err == nil {
		return nil
	}

	if all := errors.Join(err, manifest.CheckAll(&given)); len(task.Problems(all)) > 1 {
		return all
	}

	return err
}

// checkFirst is checkSpec with the first problem only, which takes less time.
func (h *Handlers) checkFirst(spec *task.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	checked := spec.Schedule
	if err := schedule.Check(spec.Timing()); err != nil {
		return err
	}

	var err error
	if spec.Schedule, err = schedule.Resolve(spec.Schedule, spec.Timezone, h.Now()); err != nil {
		return err
	}

	// The schedule is checked again after H and @in have been replaced, because the values that replace them must be valid
	// too.
	timing, err := spreadTiming(spec)
	if err != nil {
		return err
	}
	if !slices.Equal(timing.Schedule, checked) {
		if err := schedule.Check(timing); err != nil {
			return err
		}
	}

	return alert.CheckSpec(spec, timing, h.Now())
}

// spreadTiming returns the timing of a spec. H in a schedule is replaced by a value that is derived from the task's
// name, so it is the same on every node.
func spreadTiming(spec *task.Spec) (task.Timing, error) {
	timing := spec.Timing()
	var err error
	timing.Schedule, err = schedule.Spread(spec.Schedule, spec.Namespace, spec.Name)
	return timing, err
}

// trustClock returns an error if this node must not write its clock's time into an entry.
func (h *Handlers) trustClock() error {
	if err := h.ClockFault(); err != nil {
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeClock, "this node's clock is not trusted: %s", err).
			WithHint("use another node, or correct this node's clock")
	}
	return nil
}

// createTask serves POST …/tasks.
func (h *Handlers) createTask(request *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	c := newTaskWrite(request, q)
	ns, err := c.Namespace()
	if err != nil {
		return httpapi.Answer{}, err
	}

	spec, err := h.readSpec(request, ns, "")
	if err != nil {
		return httpapi.Answer{}, err
	}

	st, replayed, err := h.createOnce(c, ns, spec)
	if err != nil {
		return httpapi.Answer{}, err
	}

	a, err := h.answerTask(c, http.StatusCreated, st, client.Created)
	// Others may have changed the task since the caller has created it. Who may not read it gets only what identifies it.
	if replayed && !c.Rights().Allows(access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: ns}) {
		known := task.Task{Spec: task.Spec{Namespace: spec.Namespace, Name: spec.Name}, UID: st.Task.UID}
		a, err = httpapi.Answer{Status: http.StatusCreated, Body: client.Task{Task: views.FillLists(known), Result: client.Created}, Header: http.Header{}}, nil
	}
	if v, ok := a.Body.(client.Task); ok && replayed {
		v.Replayed = true
		a.Body = v
	}
	if err == nil {
		if c.dry {
			a.Status = http.StatusOK
			return a, nil
		}
		a.Header["Location"] = []string{"/v1/namespaces/" + spec.Namespace + "/tasks/" + spec.Name}
	}

	return a, err
}

// createOnce writes a new task, unless an earlier copy of the request, with the same Idempotency-Key, has created it. Then it
// returns the task as it is now, and replayed.
func (h *Handlers) createOnce(c *taskWrite, ns string, spec task.Spec) (st store.Stored, replayed bool, err error) {
	if c.IdempotencyKey == "" || c.dry {
		err = httpapi.RetryConflict(c.Context(), func() error {
			st, err = h.writeNewTask(c, spec)
			return err
		})

		return st, false, err
	}

	// The body as it was sent: a checked spec has times instead of "@in 5m", which differ each time.
	var body any
	if err := json.Unmarshal(c.Body, &body); err != nil {
		return st, false, task.Invalid(task.CodeBadJSON, "", "%s", err)
	}
	if c.once, err = c.Idempotency("create", body, ns); err != nil {
		return st, false, err
	}

	ref := h.Ref(spec.Namespace, spec.Name)
	err = httpapi.RetryConflict(c.Context(), func() error {
		// A caller who may not create the task learns nothing of the requests of others.
		if err := h.authorizeChange(c.Rights(), nil, &spec); err != nil {
			return err
		}

		uid, err := h.Store.TaskOf(c.Context(), c.once)
		switch {
		case errors.Is(err, store.ErrKeyReused):
			return c.KeyReused("namespace " + ns)
		case err != nil:
			return err
		case uid == "":
			st, err = h.writeNewTask(c, spec)
			return err
		}

		st, err = h.Store.Task(c.Context(), ref)
		if errors.Is(err, task.ErrNotFound) || err == nil && st.Task.UID != uid {
			return httpapi.Fail(http.StatusConflict, client.CodeDeleted, "an earlier request with the key %s has created task %s, which was deleted since then", task.Quote(c.IdempotencyKey), ref).
				WithField(client.IdempotencyKeyHeader).WithHint("to create the task again, use a new key")
		}
		replayed = true

		return err
	})

	return st, replayed, err
}

// writeNewTask writes a new task. It does not retry: if the task exists, it returns task.ErrExists, and task.ErrConflict if the links
// of the namespace have changed meanwhile.
func (h *Handlers) writeNewTask(c *taskWrite, spec task.Spec) (store.Stored, error) {
	if err := h.authorizeChange(c.Rights(), nil, &spec); err != nil {
		return store.Stored{}, err
	}

	st, err := h.newTask(c.Call, spec)
	if err != nil {
		return st, err
	}
	if c.deleted != nil {
		st.Task.Change = task.ChangeUndeleted
	}
	if err := h.checkLinks(c.Context(), &st, nil); err != nil {
		return st, err
	}

	describeTask(c.Rights(), st)

	if c.dry {
		if _, err := h.Store.Revisions(c.Context(), st.Ref); !errors.Is(err, task.ErrNotFound) {
			if err == nil {
				err = fmt.Errorf("create task %s: %w", st.Ref, task.ErrExists)
			}
			return st, err
		}

		st = asNewTask(st)
		c.change = h.wouldChange(nil, st, client.Created, c.ticks)

		return st, nil
	}

	var freezes store.FreezeRecord
	if writer := h.Store.As(c.Rights()); c.deleted != nil {
		freezes, err = writer.UndeleteTask(c.Context(), *c.deleted, st)
	} else {
		freezes, err = writer.CreateTaskOnce(c.Context(), st, c.once)
	}
	if err != nil {
		return st, httpapi.About(st.Ref.String(), err)
	}

	st.Task.Revision, st.EntryMod = freezes.Revision, freezes.Revision
	c.freezes = &freezes.Freezes

	return st, nil
}

// newTask returns a new task with its entry, ready to be written. The entry's From is now: a new task has no
// ticks in the past.
func (h *Handlers) newTask(c *httpapi.Call, spec task.Spec) (store.Stored, error) {
	if err := h.trustClock(); err != nil {
		return store.Stored{}, err
	}

	now := h.Now.Stamp()
	spec = views.Settled(spec, now.Time)
	t := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1, CreatedAt: now, UpdatedAt: now, UpdatedBy: c.Actor(), Change: task.ChangeCreated}
	st := store.Stored{Ref: h.Ref(spec.Namespace, spec.Name), Task: t}
	var err error
	if st.Entry, err = entryOf(t, now, now); err == nil {
		h.setLinks(nil, &st)
		st.Entry.NamespaceRev = allowedBy(c.Rights(), &spec)
		pauseChange{now: now, who: c.Actor()}.pauseAfter(store.Stored{}, spec, &st.Entry)
	}

	return st, err
}

// entryOf returns the entry of a task without its own state (pauses and counts).
func entryOf(t task.Task, from, anchor task.Time) (task.Entry, error) {
	timing, err := spreadTiming(&t.Spec)
	e := task.NewEntry(t, from, anchor)
	e.Schedule = timing.Schedule
	return e, err
}

// getTask serves GET of a task.
func (h *Handlers) getTask(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	st, err := h.Store.Task(c.Context(), ref)
	if entryBroken(st, err) {
		st.EntryMod, err = 0, nil // the entry cannot be read: the spec can be shown
	}

	if err != nil {
		return httpapi.Answer{}, err
	}

	a, err := h.answerTask(&taskWrite{Call: c}, http.StatusOK, st, "")
	v, ok := a.Body.(client.Task)
	if err != nil || !ok {
		return a, err
	}

	links, err := h.Store.Dependents(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}
	v.Dependents = views.Dependents(links)

	if len(st.Task.After) > 0 {
		waiting, err := h.Store.WaitingTriggers(c.Context(), []record.Ref{ref})
		if err != nil {
			return httpapi.Answer{}, err
		}
		v.WaitingTriggers = views.WaitingTriggers(waiting[0])
	}

	a.Body = v

	return a, nil
}

// deleteTask serves DELETE. It compares revisions and decodes only the uid and the generation, so it can
// also delete a task whose records are unreadable (G19).
func (h *Handlers) deleteTask(request *httpapi.Call, q deleteQuery) (httpapi.Answer, error) {
	c := newTaskWrite(request, q.dryRunQuery)
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if c.dry {
		return h.wouldDelete(c, ref, q.Force)
	}

	err = httpapi.RetryConflict(c.Context(), func() error {
		st, err := h.Store.Revisions(c.Context(), ref)
		if err != nil {
			return err
		}
		if err := h.checkDelete(request, st, q.Force); err != nil {
			return err
		}
		st.Force = q.Force

		gone := record.Tombstone{UID: st.Task.UID, Generation: st.Task.Generation, DeletedAt: h.Now.Stamp(), DeletedBy: c.Actor()}
		if !q.Purge {
			gone.Spec = h.recoverable(st)
		}
		_, err = h.Store.As(c.Rights()).DeleteTaskLeavingTombstone(c.Context(), st, gone)
		if errors.Is(err, store.ErrDependents) {
			return fmt.Errorf("%w: %w", task.ErrConflict, err) // one was added since: the next attempt names it
		}

		return httpapi.About(ref.String(), err)
	})

	return httpapi.Answer{Status: http.StatusNoContent}, err
}

// checkDelete returns why a task must not be deleted. A deletion and its dry run have the same checks.
func (h *Handlers) checkDelete(c *httpapi.Call, st store.Stored, force bool) error {
	if err := c.CheckIfMatch(st.Ref, st.Task.Revision); err != nil {
		return err
	}
	if err := h.authorizeChange(c.Rights(), &st.Task.Spec, nil); err != nil {
		return err
	}
	if force {
		return nil
	}

	return h.refuseDependents(c, st.Ref)
}

// taskKeys serves the etcd keys of a task, with a command that reads those that exist.
func (h *Handlers) taskKeys(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if _, err := h.Store.Revisions(c.Context(), ref); err != nil {
		return httpapi.Answer{}, err
	}

	keys, err := h.Store.KeysOf(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	// The path of the socket is about a host, and not about the task.
	get := "etcdctl get "
	if h.Etcd != "" && c.Rights().Allows(access.Need{Verb: access.Read, Kind: access.Cluster}) {
		get = "etcdctl --endpoints " + h.Etcd + " get "
	}

	out := client.Keys{Items: make([]client.Key, len(keys))}
	var commands []string
	for i, key := range keys {
		out.Items[i] = client.Key(key)

		switch {
		case !key.Present:
		// A key with a trailing slash is a prefix.
		case strings.HasSuffix(key.Key, "/"):
			commands = append(commands, get+"--prefix "+key.Key)
		default:
			commands = append(commands, get+key.Key)
		}
	}

	out.Command = strings.Join(commands, " && ")

	return httpapi.Answer{Status: http.StatusOK, Body: out}, nil
}

// sameSpec reports whether two specs have the same JSON form. It ignores whether an empty list is nil.
func sameSpec(a, b task.Spec) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
