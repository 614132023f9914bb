package runs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// pauseRun serves the pause of a run. It requests the pause from the run's node, through the inbox record.
func (h *Handlers) pauseRun(c *httpapi.Call) (httpapi.Answer, error) {
	return h.setRunPaused(c, pausedState, func(ctx context.Context, attempt record.Held, who *task.Actor) (task.Run, error) {
		if attempt.CancelRequested {
			return task.Run{}, aboutToEnd(attempt.Ref(), attempt.ID)
		}
		return h.Store.As(c.Rights()).PauseActive(ctx, attempt, who)
	})
}

// What a request asks of a run, as messages name it.
const (
	pausedState  = "paused"
	resumedState = "resumed"
)

// aboutToEnd is the failure for a pause of a run that is being cancelled.
func aboutToEnd(ref record.Ref, id string) error {
	return httpapi.Fail(http.StatusConflict, client.CodeAlreadyEnded, "run %s of task %s is about to end: it was cancelled", id, ref).WithField("run")
}

// resumeRun serves the end of a pause.
func (h *Handlers) resumeRun(c *httpapi.Call) (httpapi.Answer, error) {
	return h.setRunPaused(c, resumedState, h.Store.As(c.Rights()).ResumeActive)
}

// setRunPaused requests a pause or its end. The run may move from the queue into an inbox, or end, during the
// request; then it is looked up again.
func (h *Handlers) setRunPaused(c *httpapi.Call, wanted string, ask func(context.Context, record.Held, *task.Actor) (task.Run, error)) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	found, err := h.Find(c.Context(), ref, id)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if f := found.Fan; wanted == pausedState && f != nil && f.Cancel != "" && !found.State.Final() {
		return httpapi.Answer{}, aboutToEnd(ref, found.ID)
	}

	var run task.Run
	err = httpapi.RetryConflict(c.Context(), func() error {
		run, err = h.trySetRunPaused(c, ref, found.ID, wanted, ask)
		return httpapi.About(found.ID, err)
	})

	return answerRun(c, run, err)
}

// trySetRunPaused is one attempt of setRunPaused. It returns task.ErrConflict if the run has moved.
func (h *Handlers) trySetRunPaused(c *httpapi.Call, ref record.Ref, id, wanted string, ask func(context.Context, record.Held, *task.Actor) (task.Run, error)) (task.Run, error) {
	if err := c.Rights().RequireOnTask(c.Context(), h.Store, ref, access.Pause, access.Runs); err != nil {
		return task.Run{}, err
	}

	// A run of a workflow is paused itself, so that none of its steps begins. A part is active only if it began before.
	isFlow := false
	if !task.IsPart(id) {
		err := h.Store.As(c.Rights()).SetFlowPaused(c.Context(), ref, id, wanted == pausedState, c.Actor(), h.Now())
		if isFlow = err == nil; !isFlow && !errors.Is(err, task.ErrNotFound) {
			return task.Run{}, err
		}
	}

	held, err := h.Store.ActiveOf(c.Context(), ref)
	if err != nil {
		return task.Run{}, err
	}
	if parts := partsIn(held, id); len(parts) > 0 {
		return h.setPartsPaused(c, ref, id, parts, wanted, ask)
	}
	if isFlow {
		return h.Find(c.Context(), ref, id)
	}

	for _, attempt := range held {
		if attempt.ID == id {
			return ask(c.Context(), attempt, c.Actor())
		}
	}

	run, err := h.Find(c.Context(), ref, id)
	switch {
	case err != nil:
		return run, err
	case run.State == task.Queued:
		f := httpapi.Fail(http.StatusConflict, client.CodeNotRunning, "run %s of task %s is queued; only a run that is on a node can be %s", id, ref, wanted).WithField("run")
		if wanted == resumedState {
			return run, f
		}
		return run, f.WithHint("carillon task pause " + ref.Name + " stops its ticks; carillon run cancel " + id + " ends this run")
	case run.Fan != nil && !run.State.Final():
		return run, httpapi.Fail(http.StatusConflict, client.CodeNotRunning, "run %s of task %s has %d parts, but none is on a node now; only parts on a node can be %s", id, ref, run.Fan.Count, wanted).
			WithField("run")
	// The run is neither in an inbox nor queued nor ended, so its record is moving.
	case !run.State.Final():
		return run, fmt.Errorf("run %s of task %s: %w", id, ref, task.ErrConflict)
	}

	return run, httpapi.Fail(http.StatusConflict, client.CodeAlreadyEnded, "run %s of task %s has ended: %s", id, ref, run.State).WithField("run")
}

// partsIn returns the attempts in inboxes that belong to the parts of a run.
func partsIn(held []record.Held, parent string) []record.Held {
	return slices.DeleteFunc(slices.Clone(held), func(h record.Held) bool {
		of, _, ok := task.ParentOf(h.ID)
		return !ok || of != parent
	})
}

// setPartsPaused sends a request to all nodes that have parts of a run, with a separate write for each part. A
// request that is already in force needs no write, so setPartsPaused can be repeated. The answer is the run with the
// current state of all its parts. setPartsPaused returns task.ErrConflict if some parts have moved in between. If
// some requests failed, the error contains how many succeeded.
func (h *Handlers) setPartsPaused(c *httpapi.Call, ref record.Ref, id string, parts []record.Held, wanted string, ask func(context.Context, record.Held, *task.Actor) (task.Run, error)) (task.Run, error) {
	if wanted == pausedState {
		stay := slices.DeleteFunc(slices.Clone(parts), func(attempt record.Held) bool { return attempt.CancelRequested })
		if len(stay) > 0 {
			parts = stay // the answer shows that the parts which are being cancelled are not paused
		}
	}

	var mu sync.Mutex
	var moved, failed error
	asked := 0
	g := callgroup.New()
	g.SetLimit(partsAtOnce)

	for _, attempt := range parts {
		g.Go(func() error {
			_, err := ask(c.Context(), attempt, c.Actor())
			mu.Lock()
			defer mu.Unlock()

			switch {
			case err == nil:
				asked++
			case errors.Is(err, task.ErrConflict):
				moved = err
			case failed == nil:
				failed = err
			}

			return nil
		})
	}

	_ = g.Wait() // the functions return no errors

	switch {
	case failed != nil:
		f := *httpapi.AsFailure(httpapi.About(id, failed))
		f.Detail = fmt.Sprintf("%s (%d of %d parts were asked)", f.Detail, asked, len(parts))
		return task.Run{}, &f
	case moved != nil:
		return task.Run{}, fmt.Errorf("%d of %d parts were asked: %w", asked, len(parts), moved)
	}

	return h.Find(c.Context(), ref, id)
}

// partsAtOnce is the maximum number of parts that are written at the same time.
const partsAtOnce = 32
