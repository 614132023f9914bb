package runs

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// cancelQuery are the parameters of a cancellation.
type cancelQuery struct {
	Force bool `query:"force" default:"false" doc:"Of a workflow: also ends the steps with when: always, which clean up. Without effect on other runs."`
}

// cancelRun serves the cancellation of a run. The run may move from the queue into an inbox, or end, during the
// request; then it is looked up again.
func (h *Handlers) cancelRun(c *httpapi.Call, q cancelQuery) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	found, err := h.Find(c.Context(), ref, id)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var out client.Cancelled
	err = httpapi.RetryConflict(c.Context(), func() error {
		out, err = h.cancelOnce(c, ref, found.ID, q.Force)
		return httpapi.About(found.ID, err)
	})
	out.Run = views.ReadableRun(c.Rights(), out.Run)

	return httpapi.Answer{Status: http.StatusOK, Body: out}, err
}

// cancelOnce is one attempt of cancelRun. It returns task.ErrConflict if the run has moved.
func (h *Handlers) cancelOnce(c *httpapi.Call, ref record.Ref, id string, force bool) (client.Cancelled, error) {
	none := client.Cancelled{}
	if err := c.Rights().RequireOnTask(c.Context(), h.Store, ref, access.Cancel, access.Runs); err != nil {
		return none, err
	}

	cancel := h.Store.As(c.Rights()).CancelQueued
	if force {
		cancel = h.Store.As(c.Rights()).ForceCancelQueued
	}

	run, err := cancel(c.Context(), ref, id, c.Actor(), h.Now())
	if store.NoSpace(err) {
		return none, h.cancelQueuedLate(c, ref, id, force, err)
	}
	if !errors.Is(err, task.ErrNotFound) {
		return client.Cancelled{Run: run}, err
	}

	// The run is not in the queue, so it is in an inbox, has ended, or is moving.
	held, err := h.Store.ActiveOf(c.Context(), ref)
	if err != nil {
		return none, err
	}

	for _, attempt := range held {
		if attempt.ID == id {
			run, err := h.Store.As(c.Rights()).CancelActive(c.Context(), attempt, c.Actor())
			if store.NoSpace(err) {
				return h.cancelLate(c, attempt)
			}

			return client.Cancelled{Run: run}, err
		}
	}

	run, err = h.Find(c.Context(), ref, id)
	if err != nil {
		return none, err
	}

	if parent, _, ok := task.ParentOf(id); ok && run.State == task.Queued {
		return none, httpapi.Fail(http.StatusConflict, client.CodeNotRunning, "part %s of task %s has not been assigned to a node yet, so it can end only with its run", id, ref).
			WithField("run").WithHint("carillon run cancel " + parent + " ends the run, with all of its parts")
	}

	if !run.State.Final() {
		return none, fmt.Errorf("run %s of task %s: %w", id, ref, task.ErrConflict)
	}

	return none, httpapi.Fail(http.StatusConflict, client.CodeAlreadyEnded, "run %s of task %s has ended: %s", id, ref, run.State).WithField("run")
}

// cancelLate cancels an attempt while etcd is full. A cancel is a change of the attempt's record, which etcd refuses, so
// the node of the attempt is asked directly. No comparison guards that, so the caller's rights are proved before it: by
// what etcd has now, and not only by this node's copy of the access records.
func (h *Handlers) cancelLate(c *httpapi.Call, attempt record.Held) (client.Cancelled, error) {
	if err := h.Store.As(c.Rights()).ProveCancel(c.Context(), attempt); err != nil {
		return client.Cancelled{}, err
	}

	got, err := h.Attempts.CancelLate(c.Context(), httpapi.CallerOf(c.Context()), attempt.Node, task.LateCancel{
		Namespace: attempt.Namespace, Task: attempt.Task, Run: attempt.ID, Token: attempt.Create, By: c.Actor(),
	})

	// The audit record cannot be in a transaction with what has happened. It follows when etcd has space.
	objects := []task.AuditObject{{Kind: "run", Namespace: attempt.Namespace, Name: attempt.Task, Run: attempt.ID, Change: "put"}}
	var f *httpapi.Failure
	switch {
	case errors.As(err, &f) && f.Code == client.CodeUnknown:
		c.Rights().RecordLate(objects, task.AuditIntended)
		return client.Cancelled{}, err
	case err != nil:
		return client.Cancelled{}, err
	case got.State.Final():
		return client.Cancelled{}, httpapi.Fail(http.StatusConflict, client.CodeAlreadyEnded,
			"run %s of task %s has no process any more: its attempt on node %s has ended (%s), and its record follows when etcd has space", attempt.ID, attempt.Ref(), attempt.Node, got.State).
			WithField("run").WithHint("if the task retries its runs, cancel the run again when etcd has space")
	case !got.Repeated:
		c.Rights().RecordLate(objects, task.AuditDone)
	}

	run := attempt.Run
	run.CancelledBy = c.Actor()

	return client.Cancelled{Run: run, Unrecorded: true}, nil
}

// cancelQueuedLate returns why a run in the queue cannot be cancelled while etcd is full. If the run has parts, it ends
// those that nodes have: of a workflow only with force those that clean up. refused is the error of the write that etcd has refused.
func (h *Handlers) cancelQueuedLate(c *httpapi.Call, ref record.Ref, id string, force bool, refused error) error {
	run, err := h.Find(c.Context(), ref, id)
	if err != nil {
		return err
	}

	if run.Fan == nil || run.State != task.Running {
		return httpapi.Fail(http.StatusInsufficientStorage, client.CodeNoSpace,
			"run %s of task %s waits, and etcd is full: it cannot store the end of the run. The run cannot start either until etcd has space", id, ref).
			WithHint("make space as carillon cluster status describes; then cancel the run again").Because(refused)
	}

	held, err := h.Store.ActiveOf(c.Context(), ref)
	if err != nil {
		return err
	}

	// A cancel of the run would leave these parts.
	fan := *run.Fan
	if fan.Cancel = cmp.Or(fan.Cancel, task.ReasonCancelled); force && fan.Flow != nil {
		flow := *fan.Flow
		flow.Forced, fan.Flow = true, &flow
	}
	cut := slices.DeleteFunc(partsIn(held, id), func(part record.Held) bool {
		_, i, _ := task.ParentOf(part.ID)
		return fan.CutsPart(i) == ""
	})

	ended, parts, err := h.cancelPartsLate(c, cut)
	detail := fmt.Sprintf("etcd is full, so it cannot store that run %s of task %s is cancelled. Its nodes end %d of its %d active parts; parts that have not started cannot start until etcd has space",
		id, ref, ended, parts)
	if err != nil {
		detail += "; " + httpapi.AsFailure(err).Detail
	}

	return httpapi.Fail(http.StatusInsufficientStorage, client.CodeNoSpace, "%s", detail).
		WithHint("make space as carillon cluster status describes; then cancel the run again").Because(refused)
}

// cancelPartsLate ends the active parts of a run on their nodes. It returns how many of the active
// parts it ended, how many there are, and the first error.
func (h *Handlers) cancelPartsLate(c *httpapi.Call, parts []record.Held) (ended, of int, err error) {
	of = len(parts)
	var mu sync.Mutex
	g := callgroup.New()
	g.SetLimit(partsAtOnce)

	for _, attempt := range parts {
		g.Go(func() error {
			_, failed := h.cancelLate(c, attempt)
			mu.Lock()
			defer mu.Unlock()

			switch {
			case failed == nil:
				ended++
			case httpapi.AsFailure(failed).Code == client.CodeAlreadyEnded:
				of--
			case err == nil:
				err = failed
			}

			return nil
		})
	}

	_ = g.Wait() // the functions return no errors

	return ended, of, err
}
