package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// answerDeadOf serves the dead runs of a task.
func (h *runHandlers) answerDeadOf(c *call, ref store.Ref, p paging, f runFilter, q runsQuery) (answer, error) {
	dead, err := h.Store.DeadRuns(c.ctx(), ref)
	if err != nil {
		return answer{}, err
	}
	if len(dead) == 0 {
		if _, err := h.Store.Revisions(c.ctx(), ref); err != nil {
			return answer{}, err
		}
	}
	var runs []task.Run
	for _, d := range dead {
		if f.matches(d.Run) {
			runs = append(runs, d.Run)
		}
	}
	slices.SortFunc(runs, newest)
	return h.answerRuns(c, q, p, runs, false)
}

// answerDead serves the dead runs of a namespace, or of all ("").
func (h *runHandlers) answerDead(c *call, ns string, p paging, f runFilter, q runsQuery) (answer, error) {
	var found []task.Run
	more := false
	const chunk = 16 // shards; bounds what is held at once
	for first := 0; first < h.Shards; first += chunk {
		var ids []int
		for id := first; id < min(first+chunk, h.Shards); id++ {
			ids = append(ids, id)
		}
		part, err := h.Store.ShardDead(c.ctx(), ids, ns)
		if err != nil {
			return answer{}, err
		}
		found = append(found, slices.DeleteFunc(part, func(r task.Run) bool { return !f.matches(r) })...)
		slices.SortFunc(found, newest)
		if len(found) > p.limit {
			found, more = found[:p.limit], true
		}
	}
	return h.answerRuns(c, q, p, found, more)
}

// deadRun finds a dead run by its id, or by the beginning of one.
func (h *runHandlers) deadRun(ctx context.Context, ref store.Ref, id string) (store.Dead, error) {
	dead, err := h.Store.DeadRuns(ctx, ref)
	if err != nil {
		return store.Dead{}, err
	}
	var found []store.Dead
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
		run, err := h.runOf(ctx, ref, id)
		if err != nil {
			return store.Dead{}, err
		}
		why := "it is not among the dead runs of its task any more"
		if run.State != task.Failed && run.State != task.TimedOut && run.State != task.Lost {
			why = fmt.Sprintf("it is %s, not dead", strings.ReplaceAll(string(run.State), "_", " "))
		}
		if parent, _, is := task.ParentOf(run.ID); is {
			return store.Dead{}, fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: it is a part, and dead are runs as a whole", run.ID, ref).
				withField("run").withHint("carillon run retry " + parent + " repeats the parts of its run that failed")
		}
		return store.Dead{}, fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: %s", run.ID, ref, why).
			withField("run").withHint("the dead runs: carillon run list --dead " + ref.Name)
	}
	ids := make([]string, len(found))
	for i, d := range found {
		ids[i] = d.ID
	}
	return store.Dead{}, ambiguous(id, ids)
}

// retryRun serves retry: it queues a run in place of a dead one.
func (h *runHandlers) retryRun(c *call) (answer, error) {
	ref, id, err := c.refAndRun()
	if err != nil {
		return answer{}, err
	}
	var out client.Triggered
	err = retryConflict(c.ctx(), func() error {
		d, err := h.deadRun(c.ctx(), ref, id)
		if err != nil {
			return err
		}
		st, err := h.Store.Task(c.ctx(), ref)
		if err != nil {
			return err
		}
		if st.Task.UID != d.UID {
			return fmt.Errorf("run %s of task %s, which is another now: %w", d.ID, ref, task.ErrNotFound)
		}
		run := c.requested(h.manualRun(st), d.Env)
		run.RetryOf, run.Checkpoint = d.ID, d.Checkpoint
		run.Fan = d.Fan // of a run with parts, those that have failed
		err = h.Store.Revive(c.ctx(), st, d, task.Waiting{Run: run, Env: d.Env})
		out = client.Triggered{Run: inBrief(run), Paused: st.Task.Paused}
		return about(run.ID, err)
	})
	if err == nil {
		out.Frozen = h.frozen(c.ctx(), ref.Namespace)
	}
	return answer{status: http.StatusAccepted, body: out}, err
}

// dismissRun serves dismiss: it takes a run off the list of dead ones.
func (h *runHandlers) dismissRun(c *call) (answer, error) {
	ref, id, err := c.refAndRun()
	if err != nil {
		return answer{}, err
	}
	var d store.Dead
	err = retryConflict(c.ctx(), func() error {
		if d, err = h.deadRun(c.ctx(), ref, id); err != nil {
			return err
		}
		return about(d.ID, h.Store.Dismiss(c.ctx(), ref, d, c.actor()))
	})
	d.DismissedBy = c.actor()
	return answer{status: http.StatusOK, body: d.Run}, err
}

// manualRun is a run of a task that a person asks for now.
func (h *runHandlers) manualRun(st store.Stored) task.Run {
	now := h.Now.Stamp()
	return task.Run{
		ID: task.ManualRunID(now.Time, st.Task.UID), Namespace: st.Ref.Namespace, Task: st.Ref.Name, Shard: st.Ref.Shard,
		UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual,
	}
}

// frozen is the freeze that keeps what was just queued from running; nil if none
// does, or nobody knows: the run is queued all the same.
func (h *runHandlers) frozen(ctx context.Context, namespace string) *task.Freeze {
	r, err := h.Store.Freezes(ctx)
	if err != nil {
		return nil
	}
	return r.Of(namespace)
}
