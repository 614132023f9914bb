package api

import (
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// triggerTask serves trigger: it queues a run for the owner of the shard.
func (h *runHandlers) triggerTask(c *call) (answer, error) {
	ref, err := c.ref()
	if err != nil {
		return answer{}, err
	}
	var ask client.TriggerRequest
	if err := c.decode(&ask); err != nil {
		return answer{}, err
	}
	if err := checkTriggerEnv(ask.Env); err != nil {
		return answer{}, err
	}
	var out client.Triggered
	err = retryConflict(c.ctx(), func() error {
		st, err := h.Store.Task(c.ctx(), ref)
		if err != nil {
			return err
		}
		if st.EntryMod == 0 {
			return fmt.Errorf("%w: task %s has no entry in its shard; apply it again to mend it", task.ErrInvalid, ref)
		}
		run := c.requested(h.manualRun(st), ask.Env)
		_, paused := inForce(&st.Entry, run.CreatedAt.Time)
		out = client.Triggered{Run: run, Paused: paused}
		_, err = h.Store.Enqueue(c.ctx(), st, task.Waiting{Run: run, Env: ask.Env})
		return about(run.ID, err)
	})
	if err == nil {
		out.Frozen = h.frozen(c.ctx(), ref.Namespace)
	}
	return answer{status: http.StatusAccepted, body: out}, err
}

// checkTriggerEnv checks a run's further environment. Its size has the bound of
// an action's: with it, the run must fit into one commit.
func checkTriggerEnv(env map[string]string) error {
	if err := task.CheckEnv("env", env); err != nil {
		return err
	}
	size := 0
	for k, v := range env {
		size += len(k) + len(v)
	}
	if size > task.MaxAction {
		return task.Invalid(task.CodeTooLong, "env", "is %d bytes in all; at most %d are allowed", size, task.MaxAction)
	}
	return nil
}

// requested returns a run as somebody asks for it, with the environment that they give.
func (c *call) requested(run task.Run, env map[string]string) task.Run {
	run.CreatedBy, run.EnvNames = c.actor(), task.EnvNamesOf(env)
	return run
}
