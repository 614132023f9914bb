package runs

import (
	"context"
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

// triggerTask serves a manual trigger: it queues a run for the owner of the shard.
func (h *Handlers) triggerTask(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.TriggerRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	input := task.ManualInput{Args: ask.Args, Env: ask.Env, TargetNode: ask.Target}
	if err := checkInput(input); err != nil {
		return httpapi.Answer{}, err
	}

	if err := task.CheckYear("period", ask.Period); err != nil {
		return httpapi.Answer{}, err
	}
	if now := h.Now.Stamp(); ask.Period.After(now.Time) {
		return httpapi.Answer{}, task.Invalid(task.CodeBadTime, "period", "%s is later than now, %s: a run works for a time that has come", ask.Period.Format(time.RFC3339), now.Format(time.RFC3339))
	}

	return h.queueManual(c, ref, "trigger", ask, func(st store.Stored) (manualRun, error) {
		return manualRun{input: input, alone: ask.Alone, Causation: task.Causation{Period: ask.Period}}, st.Task.Accept.Check(input)
	})
}

// manualRun is what a request wants to be queued.
type manualRun struct {
	input task.ManualInput
	again string // the ended run whose inputs these are; "": none
	alone bool   // its end starts no dependent
	task.Causation
}

// queueManual queues a manual run of a task, and answers with it. decide returns what to queue, or why the task does not accept it;
// it is called again if the task has changed meanwhile. operation and content identify the request together with its
// Idempotency-Key.
func (h *Handlers) queueManual(c *httpapi.Call, ref record.Ref, operation string, content any, decide func(store.Stored) (manualRun, error)) (httpapi.Answer, error) {
	var out client.Triggered
	var spec task.Spec
	err := httpapi.RetryConflict(c.Context(), func() error {
		out = client.Triggered{}
		st, err := h.Store.Task(c.Context(), ref)
		if err != nil {
			return err
		}
		if st.EntryMod == 0 {
			return fmt.Errorf("%w: task %s has no entry in its shard; apply it again to repair it", task.ErrInvalid, ref)
		}

		spec = st.Task.Spec
		if err := authorizeTrigger(c.Rights(), st); err != nil {
			return err
		}
		once, err := idempotencyOf(c, st, operation, content)
		if err != nil {
			return err
		}
		if out, err = h.replay(c, st, once); err != nil || out.Replayed {
			return err
		}

		// Each version of a task has an entry of its own, so the write also finds out if the task changes now.
		if err := c.CheckIfMatch(ref, st.Task.Revision); err != nil {
			return err
		}
		wanted, err := decide(st)
		if err != nil {
			return err
		}
		if err := st.Task.CheckMessageEnv(wanted.input); err != nil {
			return err
		}

		if err := h.checkQueue(c.Context(), ref); err != nil {
			return err
		}

		run := requestedBy(c, h.manualRun(st), wanted.input)
		run.RerunOf, run.Alone, run.Causation = wanted.again, wanted.alone, wanted.Causation
		c.Rights().Describe(describeInput(run, wanted.input))
		_, paused := views.PauseInForce(&st.Entry, run.CreatedAt.Time)
		out = client.Triggered{Run: run, Paused: paused}
		_, err = h.Store.As(c.Rights()).EnqueueOnce(c.Context(), st, task.Waiting{Run: run, Env: wanted.input.Env}, once)

		return httpapi.About(run.ID, err)
	})

	// A freeze, a pause, or nodes that are away do not prevent queueing. They are only reported.
	if err == nil {
		out.Frozen = h.findFreeze(c.Context(), ref.Namespace)
		h.addWarnings(c, &out, spec)
		h.addDependents(c, &out)
	}

	return httpapi.Answer{Status: http.StatusAccepted, Body: out}, err
}

// addDependents adds the tasks that the end of the run may start. The run is queued in any case, so they are missing if etcd does not
// answer.
func (h *Handlers) addDependents(c *httpapi.Call, out *client.Triggered) {
	if out.Alone || out.State.Final() || !c.Rights().CanRead(out.Namespace) {
		return
	}

	if links, err := h.Store.Dependents(c.Context(), record.Ref{Namespace: out.Namespace, Name: out.Task, Shard: out.Shard}); err == nil {
		out.Dependents = views.Dependents(links)
	}
}

// addWarnings adds warnings if no present node would take the run now.
func (h *Handlers) addWarnings(c *httpapi.Call, out *client.Triggered, spec task.Spec) {
	if h.Nodes == nil || out.State != task.Queued {
		return
	}

	known := c.Rights().View()
	namespace, nodes := known.Namespace(out.Namespace), known.LimitNodes(h.Nodes())
	if out.TargetNode != "" {
		out.WarningDetails = views.TargetWarnings(namespace, spec, out.TargetNode, nodes)
	} else {
		out.WarningDetails = views.PlacementWarnings(namespace, spec, nodes)
	}

	if out.WarningDetails != nil {
		out.Warnings = task.WarningTexts(out.WarningDetails)
	}
}

// checkQueue rejects a trigger if too many manual runs of the task wait already. The owner of the shard keeps each of them in
// memory and examines it with its task. Concurrent requests may exceed the limit by their number.
func (h *Handlers) checkQueue(ctx context.Context, ref record.Ref) error {
	full, err := h.Store.ManualRunsWait(ctx, ref, task.MaxManualWaiting)
	if err != nil || !full {
		return err
	}

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeQueueFull, "%d manual runs of task %s are waiting, which is the maximum", task.MaxManualWaiting, ref).
		WithHint("try again when some of them have started, or cancel some")
}

// describeInput returns the names of the inputs of a manual run for the audit record of the trigger, never their values.
func describeInput(run task.Run, m task.ManualInput) task.AuditObject {
	o := task.AuditObject{Kind: "run", Namespace: run.Namespace, Name: run.Task, Run: run.ID}
	if len(m.Args) > 0 {
		o.Fields = append(o.Fields, "args")
	}
	for _, name := range task.EnvNamesOf(m.Env) {
		o.Fields = append(o.Fields, "env."+name)
	}
	if m.TargetNode != "" {
		o.Fields = append(o.Fields, "target")
	}
	if run.RerunOf == "" && !run.Period.IsZero() {
		o.Fields = append(o.Fields, "period")
	}
	if run.Alone {
		o.Fields = append(o.Fields, "alone")
	}

	return o
}

// authorizeTrigger refuses a trigger that the caller may not make. The task defines what a run may bring with it
// (task.Accept), so its author has decided it. The write compares the entry of the task, so its labels and what it accepts
// are still those that were judged.
func authorizeTrigger(rights *httpapi.Rights, st store.Stored) error {
	return rights.Require(access.Need{Verb: access.Trigger, Kind: access.Tasks, Namespace: st.Ref.Namespace, Labels: st.Task.Labels})
}

// checkInput checks what a request gives to a run. The size of its environment has the same limit as that of an action,
// because the run with both must fit into one commit.
func checkInput(m task.ManualInput) error {
	if err := m.Validate(); err != nil {
		return err
	}

	size := 0
	for k, v := range m.Env {
		size += len(k) + len(v)
	}

	if size > task.MaxAction {
		return task.Invalid(task.CodeTooLong, "env", "is %d bytes in total; at most %d are allowed", size, task.MaxAction)
	}

	return nil
}

// requestedBy returns a run with the user who requested it, and with what the user gave. Of variables, a run has only the
// names.
func requestedBy(c *httpapi.Call, run task.Run, m task.ManualInput) task.Run {
	run.CreatedBy, run.EnvNames, run.Args, run.TargetNode = c.Actor(), task.EnvNamesOf(m.Env), m.Args, m.TargetNode
	return run
}

// idempotencyOf identifies a request to queue a run of a task by its Idempotency-Key.
func idempotencyOf(c *httpapi.Call, st store.Stored, operation string, content any) (store.Idempotency, error) {
	return c.Idempotency(operation, content, st.Ref.Namespace, st.Ref.Name, st.Task.UID)
}

// replay returns the current state of the run that an earlier copy of a request queued. Replayed is false if there was none. If the
// record of the run is no longer kept, the answer contains what the id of the run shows.
func (h *Handlers) replay(c *httpapi.Call, st store.Stored, once store.Idempotency) (client.Triggered, error) {
	id, err := h.Store.RunOf(c.Context(), once)
	switch {
	case errors.Is(err, store.ErrKeyReused):
		return client.Triggered{}, c.KeyReused("task " + st.Ref.String())
	case err != nil || id == "":
		return client.Triggered{}, err
	}

	run, err := h.Find(c.Context(), st.Ref, id)
	if errors.Is(err, task.ErrNotFound) {
		run, err = h.manualRun(st), nil
		run.ID = id
		if at, ok := task.TimeOfRunID(id); ok {
			run.ScheduledTime, run.CreatedAt = task.At(at), task.At(at)
		}
	}
	_, paused := views.PauseInForce(&st.Entry, h.Now.Stamp().Time)

	return client.Triggered{Run: views.ReadableRun(c.Rights(), views.RunInBrief(run)), Paused: paused, Replayed: true}, err
}
