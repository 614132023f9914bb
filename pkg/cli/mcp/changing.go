package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carillonhq/carillon/pkg/cli/output"
	runcmd "github.com/carillonhq/carillon/pkg/cli/run"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

type (
	triggerInput struct {
		Task string            `json:"task" jsonschema:"NAME or NAMESPACE/NAME"`
		Args []string          `json:"args,omitempty" jsonschema:"further arguments of this run, if the task accepts them"`
		Env  map[string]string `json:"env,omitempty" jsonschema:"further variables of this run, if the task accepts them"`
		Key  string            `json:"idempotency_key,omitempty" jsonschema:"all calls with the same key start only one run"`
	}
	pauseInput struct {
		Task   string `json:"task" jsonschema:"NAME or NAMESPACE/NAME"`
		Until  string `json:"until,omitempty" jsonschema:"when the ticks resume: 2h, 18:00 or 2026-12-24T18:00:00Z; default: when somebody resumes the task"`
		Reason string `json:"reason,omitempty" jsonschema:"text for other users"`
	}
	retryInput struct {
		Run  string `json:"run" jsonschema:"a dead-letter run: TASK for its latest run, TASK@-1, or the id of a run"`
		From string `json:"from,omitempty" jsonschema:"a step of a workflow: repeat it and all that follow it"`
	}
)

// addChangingTools adds the tools that change something.
func (s *server) addChangingTools(m *sdk.Server) {
	tool := func(name, description string, idempotent bool) *sdk.Tool {
		return &sdk.Tool{Name: name, Description: description, Annotations: &sdk.ToolAnnotations{IdempotentHint: idempotent, OpenWorldHint: new(false)}}
	}

	addTool(s, m, tool("task_trigger", "Run a task now, also if it is paused. Returns the run.", false), s.triggerTask)
	addTool(s, m, tool("task_pause", "Pause the schedule of a task. Ticks in the pause never run. Active runs continue.", true), s.pauseTask)
	addTool(s, m, tool("task_resume", "Resume the schedule of a paused task.", true), s.resumeTask)
	addTool(s, m, tool("run_retry", "Start a new run that repeats a dead-letter run. Returns the new run.", false), s.retryRun)
}

func (s *server) triggerTask(ctx context.Context, c *client.Client, in triggerInput) (any, error) {
	if err := (task.ManualInput{Args: in.Args, Env: in.Env}).Validate(); err != nil {
		return nil, err
	}

	return s.callTask(ctx, c, in.Task, func(r selection.Ref) (any, error) {
		t, err := c.Tasks.TriggerWith(ctx, r.Namespace, r.Name, client.TriggerRequest{Args: in.Args, Env: in.Env, IdempotencyKey: in.Key}, 0)
		t.Run = withoutOutput(t.Run)

		return t, err
	})
}

// pausedTask is the answer of task_pause and task_resume.
type pausedTask struct {
	Namespace   string    `json:"namespace"`
	Name        string    `json:"name"`
	Paused      bool      `json:"paused"`
	PausedUntil task.Time `json:"paused_until,omitzero"`
	Next        task.Time `json:"next,omitzero"`
	Result      string    `json:"result,omitempty"`
}

func (s *server) pauseTask(ctx context.Context, c *client.Client, in pauseInput) (any, error) {
	until, err := s.ParseEnd("until", in.Until, s.Zone(output.ReaderZone))
	if err != nil {
		return nil, err
	}

	return s.callTask(ctx, c, in.Task, func(r selection.Ref) (any, error) {
		return newPausedTask(c.Tasks.PauseWith(ctx, r.Namespace, r.Name, client.PauseRequest{Until: until, Reason: in.Reason}, 0))
	})
}

func (s *server) resumeTask(ctx context.Context, c *client.Client, in taskInput) (any, error) {
	return s.callTask(ctx, c, in.Task, func(r selection.Ref) (any, error) {
		return newPausedTask(c.Tasks.Resume(ctx, r.Namespace, r.Name, 0))
	})
}

// newPausedTask returns what a change of the pause has made of a task, and its error.
func newPausedTask(t client.Task, err error) (any, error) {
	return pausedTask{Namespace: t.Namespace, Name: t.Name, Paused: t.Paused, PausedUntil: t.PausedUntil, Next: t.Next, Result: t.Result}, err
}

func (s *server) retryRun(ctx context.Context, c *client.Client, in retryInput) (any, error) {
	run, err := runcmd.FindDead(ctx, s.Factory, c, in.Run)
	if err != nil {
		return nil, err
	}

	t, err := c.Runs.RetryFrom(ctx, run.Namespace, run.Task, run.ID, client.RetryOptions{From: in.From})
	t.Run = withoutOutput(t.Run)

	return t, err
}
