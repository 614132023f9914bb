package runs

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const rerunAbout = "Queues a new run of the task as it is now, with the arguments, the node and the variables of the ended run, which stays as it is. It also has the causes and the period of that run, and starts no dependent if that one was to start none. A run with parts gets all of its parts. " +
	"The values of variables are kept only for dead-letter runs, and using them needs the right to retry runs. If the body contains variables, it must contain all of them: kept values are not used then. If some are missing, the answer is 409 with the code missing_env. " +
	"If the task does not accept an input any more, the answer is 409 with the code not_allowed and the name of the input."

// rerunRun serves a rerun: it queues a new run with the inputs of a run that has ended. It is a trigger of the task, with its rights,
// limits and checks.
func (h *Handlers) rerunRun(c *httpapi.Call) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.RerunRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}
	if err := checkInput(task.ManualInput{Env: ask.Env}); err != nil {
		return httpapi.Answer{}, err
	}

	return h.queueManual(c, ref, "rerun", []any{id, ask}, func(st store.Stored) (manualRun, error) { return h.inputsOf(c, st, id, ask) })
}

// inputsOf returns the inputs of an ended run. Its variables are those of the request, or those that are kept, but never some of
// each: with the address of a server from one user and the password from another one, the task would send the password there.
func (h *Handlers) inputsOf(c *httpapi.Call, st store.Stored, id string, ask client.RerunRequest) (manualRun, error) {
	ref := st.Ref

	// The answer shows inputs of a run, and a refusal which runs exist.
	if err := c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Runs, Namespace: ref.Namespace}); err != nil {
		return manualRun{}, err
	}

	run, kept, err := h.findEnded(c, ref, id)
	if err != nil {
		return manualRun{}, err
	}
	if err := mayRerun(st, run); err != nil {
		return manualRun{}, err
	}

	env := ask.Env
	if len(env) == 0 && len(kept) > 0 {
		// Who retries the run uses its values, too. The write compares the entry of the task, and with it the labels.
		if err := c.Rights().Require(access.Need{Verb: access.Retry, Kind: access.Runs, Namespace: ref.Namespace, Labels: st.Task.Labels}); err != nil {
			return manualRun{}, err
		}
		env = kept
	}

	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(run.EnvNames, task.EnvNamesOf(kept)))))
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, has := env[name]; return has })
	if len(missing) > 0 {
		why := "had variables whose values are not kept"
		if len(ask.Env) > 0 {
			why = "had more variables, and the request must give all of them"
		}

		return manualRun{}, httpapi.Fail(http.StatusConflict, client.CodeMissingEnv, "run %s of task %s %s: %s", run.ID, ref, why, strings.Join(missing, ", ")).
			WithField("env").WithHint(fmt.Sprintf("carillon run rerun %s --env %s=…", run.ID, strings.Join(names, "=… --env ")))
	}

	input := task.ManualInput{Args: run.Args, Env: env, TargetNode: run.TargetNode}
	// The task may have changed. If it accepts less by now, the new run would fail at once.
	if err := st.Task.Accept.Check(input); err != nil {
		f := httpapi.AsFailure(err)
		return manualRun{}, httpapi.Fail(http.StatusConflict, f.Code, "run %s of task %s cannot run again as it did: %s", run.ID, ref, f.Detail).WithField(f.Field).
			WithHint("carillon task trigger " + ref.Name + " starts a run without these inputs")
	}

	return manualRun{input: input, again: run.ID, alone: run.Alone, Causation: task.Causation{Causes: run.Causes, Period: run.EffectivePeriod()}}, nil
}

// mayRerun returns why a run cannot be started again.
func mayRerun(st store.Stored, run task.Run) error {
	refuse := func(why, hint string) error {
		return httpapi.Fail(http.StatusConflict, client.CodeConflict, "run %s of task %s: %s", run.ID, st.Ref, why).WithField("run").WithHint(hint)
	}

	switch parent, _, isPart := task.ParentOf(run.ID); {
	// A task that was deleted and created again is a different task, and must not run what the earlier one left.
	case run.UID != st.Task.UID:
		return fmt.Errorf("run %s of task %s, which has been deleted and created again: %w", run.ID, st.Ref, task.ErrNotFound)
	case isPart:
		return refuse("it is a part; only whole runs can be started again", "carillon run rerun "+parent)
	case !run.State.Final():
		return refuse(fmt.Sprintf("it is %s, and has not ended", run.State), "to start another run: carillon task trigger "+st.Ref.Name)
	case run.State == task.Skipped || run.State == task.Missed:
		return refuse(fmt.Sprintf("it is a tick that was %s, so there is no run to start again", run.State), "to start a run: carillon task trigger "+st.Ref.Name)
	// The text of a message is of the time when it was written.
	case st.Task.Receiver != nil:
		return refuse("messages of a receiver cannot be sent again; what is still open is sent anew", "")
	}

	return nil
}

// findEnded returns a run, and the values of its variables if they are kept: if it is dead. The history may no longer have a dead run.
func (h *Handlers) findEnded(c *httpapi.Call, ref record.Ref, id string) (run task.Run, env map[string]string, err error) {
	run, err = h.Find(c.Context(), ref, id)
	if err != nil && !errors.Is(err, task.ErrNotFound) {
		return run, nil, err
	}

	dead, unread := h.Store.DeadRuns(c.Context(), ref)
	if unread != nil {
		return run, nil, unread
	}

	env = map[string]string{}
	for _, d := range dead {
		if d.ID == run.ID || err != nil && d.ID == id {
			maps.Copy(env, d.Env)
			return d.Run, env, nil
		}
	}

	return run, env, err
}
