package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// answerDeadOf serves the dead runs of a task.
func (h *Handlers) answerDeadOf(c *httpapi.Call, ref record.Ref, p httpapi.Paging, f runFilter, q runsQuery) (httpapi.Answer, error) {
	dead, err := h.Store.DeadRuns(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	// No dead runs: the task may not exist.
	if len(dead) == 0 {
		if _, err := h.Store.Revisions(c.Context(), ref); err != nil {
			return httpapi.Answer{}, err
		}
	}

	var runs []task.Run
	for _, d := range dead {
		if f.matchesRun(d.Run) {
			runs = append(runs, d.Run)
		}
	}

	slices.SortFunc(runs, compareNewest)

	return h.answerRuns(c, q, p, runs, false)
}

// answerDead serves the dead runs of a namespace, or of all namespaces ("").
func (h *Handlers) answerDead(c *httpapi.Call, ns string, p httpapi.Paging, f runFilter, q runsQuery) (httpapi.Answer, error) {
	var found []task.Run
	more := false
	const chunk = 16 // shards; bounds the memory
	for first := 0; first < h.Shards; first += chunk {
		var ids []int
		for id := first; id < min(first+chunk, h.Shards); id++ {
			ids = append(ids, id)
		}

		part, err := h.Store.ShardDead(c.Context(), ids, ns)
		if err != nil {
			return httpapi.Answer{}, err
		}

		found = append(found, slices.DeleteFunc(part, func(r task.Run) bool { return !f.matchesRun(r) })...)
		slices.SortFunc(found, compareNewest)

		// Only one page is kept at any time.
		if len(found) > p.Limit {
			found, more = found[:p.Limit], true
		}
	}

	return h.answerRuns(c, q, p, found, more)
}

// deadRun returns the dead run with an id or a unique prefix of an id. If the run exists but is not dead, the
// failure explains why.
func (h *Handlers) deadRun(ctx context.Context, ref record.Ref, id string) (record.Dead, error) {
	dead, err := h.Store.DeadRuns(ctx, ref)
	if err != nil {
		return record.Dead{}, err
	}

	var found []record.Dead
	for _, d := range dead {
		if d.ID == id {
			return d, nil
		}

		if strings.HasPrefix(d.ID, id) {
			found = append(found, d)
		}
	}

	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		// The run is not dead. It is read to explain why.
		run, err := h.Find(ctx, ref, id)
		if err != nil {
			return record.Dead{}, err
		}

		why := "it is no longer among the dead runs of its task"
		isFlow := run.Fan != nil && run.Fan.Flow != nil // those that were cancelled can be retried, too
		if run.State != task.Failed && run.State != task.TimedOut && run.State != task.Lost && !(isFlow && run.State == task.Cancelled) {
			why = fmt.Sprintf("it is %s, not dead", strings.ReplaceAll(string(run.State), "_", " "))
		}

		if parent, _, ok := task.ParentOf(run.ID); ok {
			return record.Dead{}, httpapi.Fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: it is a part; only whole runs can be dead", run.ID, ref).
				WithField("run").WithHint("carillon run retry " + parent + " repeats the failed parts of its run")
		}

		return record.Dead{}, httpapi.Fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: %s", run.ID, ref, why).
			WithField("run").WithHint("to list the dead runs: carillon run list --dead " + ref.Name)
	}

	ids := make([]string, len(found))
	for i, d := range found {
		ids[i] = d.ID
	}

	return record.Dead{}, ambiguousError(id, ids)
}

// retryQuery are the parameters of a retry.
type retryQuery struct {
	From string `query:"from" doc:"A step of a workflow: this step and all steps that follow it are repeated, even if they succeeded."`
}

// retryRun serves the retry of a dead run: it queues a new run and removes the dead one from the list, in one
// transaction.
func (h *Handlers) retryRun(c *httpapi.Call, q retryQuery) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	var out client.Triggered
	err = httpapi.RetryConflict(c.Context(), func() error {
		out = client.Triggered{}

		st, err := h.Store.Task(c.Context(), ref)
		if err != nil {
			return err
		}
		if err := c.Rights().RequireOnTask(c.Context(), h.Store, ref, access.Retry, access.Runs); err != nil {
			return err
		}

		// The run of an earlier copy of the request is looked for first: the dead run is gone by then.
		content := any(id)
		if q.From != "" {
			content = []any{id, q.From}
		}
		once, err := idempotencyOf(c, st, "retry", content)
		if err != nil {
			return err
		}
		if out, err = h.replay(c, st, once); err != nil || out.Replayed {
			return err
		}

		d, err := h.deadRun(c.Context(), ref, id)
		if err != nil {
			return err
		}
		// A task that was deleted and created again is a different task, and must not run what the earlier one
		// left.
		if st.Task.UID != d.UID {
			return fmt.Errorf("run %s of task %s, which has been deleted and created again: %w", d.ID, ref, task.ErrNotFound)
		}

		// The text of a message is of the time when it was written. If it failed, what is still open is sent anew anyway.
		if st.Task.Receiver != nil {
			return httpapi.Fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: messages of a receiver cannot be retried; what is still open is sent again", d.ID, ref).
				WithField("run").WithHint("to remove it from the list: carillon run dismiss " + d.ID)
		}

		// The task may have changed. If it accepts less by now, the new run would fail at once.
		if err := st.Task.Accept.Check(d.Input()); err != nil {
			return httpapi.Fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: the task has changed: %v", d.ID, ref, err).WithField("run")
		}

		run := requestedBy(c, h.manualRun(st), d.Input())
		run.RetryOf, run.Checkpoint = d.ID, d.Checkpoint
		run.Causes, run.Period, run.Alone = d.Causes, d.EffectivePeriod(), d.Alone
		run.Fan = d.Fan // of a run with parts, only the failed parts are repeated
		flow, err := h.retryFlow(c.Context(), ref, d, q.From)
		if err != nil {
			return err
		}
		if flow != nil {
			run.Fan = flow.fan
		}
		if d.IsBootRun() {
			run.TargetNode, run.BootID = d.TargetNode, d.BootID
		}
		_, paused := views.PauseInForce(&st.Entry, run.CreatedAt.Time)
		out = client.Triggered{Run: views.RunInBrief(run), Paused: paused}

		w := task.Waiting{Run: run, Env: d.Env}
		if flow != nil {
			err = h.Store.As(c.Rights()).ReviveFlow(c.Context(), st, d, w, once, flow.old, flow.data)
		} else {
			err = h.Store.As(c.Rights()).ReviveOnce(c.Context(), st, d, w, once)
		}

		return httpapi.About(run.ID, err)
	})

	if err == nil {
		out.Frozen = h.findFreeze(c.Context(), ref.Namespace)
		h.addDependents(c, &out)
	}

	return httpapi.Answer{Status: http.StatusAccepted, Body: out}, err
}

// flowRetry is what a retry of a run of a workflow begins with.
type flowRetry struct {
	fan  *task.Fan
	old  store.DeadData // of the dead run
	data task.RunData   // of the new one
}

// retryFlow returns what a retry of a dead run begins with, or nil if the run has no steps: its task is not a workflow, or the run
// has ended before it began. Then a retry has the steps of the task as it is when the new run begins.
func (h *Handlers) retryFlow(ctx context.Context, ref record.Ref, d record.Dead, from string) (*flowRetry, error) {
	if d.Fan == nil || d.Fan.Flow == nil {
		if from != "" {
			return nil, httpapi.Fail(http.StatusConflict, client.CodeNoSteps, "run %s of task %s has no steps", d.ID, ref).WithField("from")
		}
		return nil, nil
	}

	ends := make(map[int]task.State, len(d.Fan.Parts))
	for _, p := range d.Fan.Parts {
		ends[p.Index] = p.State
	}

	fan, ok := workflow.Retry(d.Fan, func(part int) (task.State, bool) { s, ended := ends[part]; return s, ended }, d.ID, from)
	if !ok {
		names := make([]string, len(d.Fan.Flow.Steps))
		for i, s := range d.Fan.Flow.Steps {
			names[i] = s.Name
		}
		return nil, task.NoneOf(task.CodeBadValue, "from", from, names...)
	}

	old, err := h.Store.DeadRunData(ctx, ref, d.ID)
	if errors.Is(err, task.ErrNotFound) {
		// Another request may have retried the run meanwhile.
		if dead, err := h.Store.DeadRuns(ctx, ref); err != nil || !slices.ContainsFunc(dead, func(other record.Dead) bool { return other.Mod == d.Mod }) {
			return nil, cmp.Or(err, fmt.Errorf("run %s of task %s: %w", d.ID, ref, task.ErrConflict))
		}
		return nil, httpapi.Fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: the record of its steps is gone, so they cannot be repeated", d.ID, ref).
			WithField("run").WithHint("carillon task trigger " + ref.Name + " starts a run with the steps of the task as it is now")
	}
	if err != nil {
		return nil, err
	}

	// The steps that are kept do not run again, so others get their results from here.
	data := task.RunData{Plan: old.Plan}
	for _, s := range fan.Flow.Steps {
		if results, has := old.Results[s.Name]; s.IsKept && has {
			if data.Results == nil {
				data.Results = map[string]map[string]string{}
			}
			data.Results[s.Name] = results
		}
	}

	return &flowRetry{fan, old, data}, nil
}

// dismissRun serves the dismissal of a dead run: it removes the run from the list of dead runs.
func (h *Handlers) dismissRun(c *httpapi.Call) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	var d record.Dead
	err = httpapi.RetryConflict(c.Context(), func() error {
		if d, err = h.deadRun(c.Context(), ref, id); err != nil {
			return err
		}
		if err := c.Rights().RequireOnTask(c.Context(), h.Store, ref, access.Retry, access.Runs); err != nil {
			return err
		}

		return httpapi.About(d.ID, h.Store.As(c.Rights()).Dismiss(c.Context(), ref, d, c.Actor(), h.Now()))
	})

	d.DismissedBy = c.Actor()

	return answerRun(c, d.Run, err)
}

// manualRun returns a new run of a task, scheduled for now, as a user requests it.
func (h *Handlers) manualRun(st store.Stored) task.Run {
	now := h.Now.Stamp()
	return task.Run{
		ID: task.ManualRunID(now.Time, st.Task.UID), Namespace: st.Ref.Namespace, Task: st.Ref.Name, Shard: st.Ref.Shard,
		UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual,
	}
}

// findFreeze returns the freeze that prevents a queued run from starting. It returns nil if there is none or if
// etcd does not answer, because the run is queued in any case.
func (h *Handlers) findFreeze(ctx context.Context, namespace string) *task.Freeze {
	r, err := h.Store.Freezes(ctx)
	if err != nil {
		return nil
	}
	return r.Of(namespace)
}
