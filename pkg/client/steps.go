package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/carillonhq/carillon/pkg/task"
)

// RunSteps is the state of the steps of a run whose task is a workflow.
type RunSteps struct {
	Run       string     `json:"run" doc:"The id of the run."`
	State     task.State `json:"state" doc:"The state of the run."`
	OnFailure string     `json:"on_failure" doc:"What happens after a step has failed." enum:"stop,continue"`
	// Cancel is set while the run ends early, and after it has.
	Cancel   string      `json:"cancel,omitempty" doc:"Why the run ends early, or has ended so: one of the reasons in docs/why.md."`
	Forced   bool        `json:"forced,omitempty" doc:"The run was cancelled with force, so steps with when: always end, too."`
	Retries  string      `json:"retries,omitempty" doc:"The run that this one retries. Steps and items that succeeded there are kept."`
	PausedAt task.Time   `json:"paused_at,omitzero" doc:"Since when the run is paused: no step and no item begins."`
	PausedBy *task.Actor `json:"paused_by,omitempty" doc:"Who paused it."`
	Steps    []RunStep   `json:"steps" doc:"The steps; each follows those that it needs."`
}

// RunStep is the state of a step of a run.
type RunStep struct {
	Name  string   `json:"name" doc:"The name of the step."`
	Kind  string   `json:"kind" doc:"The kind of its action." enum:"process,http,noop"`
	Needs []string `json:"needs,omitempty" doc:"The steps that it needs."`
	When  string   `json:"when" doc:"What these steps must have done." enum:"succeeded,failed,always"`
	State string   `json:"state" doc:"Its state. waiting: a step that it needs has not ended. ready: it may begin. The last four are final; skipped: it does not begin; cancelled: it was ended, or not all of its items began." enum:"waiting,ready,running,succeeded,failed,skipped,cancelled"`
	// Reason is set for a step that is skipped or cancelled, and for one that failed before any part of it began.
	Reason  string `json:"reason,omitempty" doc:"Why it is skipped or cancelled, or failed before it began: one of the reasons in docs/why.md."`
	Message string `json:"message,omitempty" doc:"Why it failed before it began, as text."`
	Cause   string `json:"cause,omitempty" doc:"The step for which it waits, or because of which it is skipped or was stopped."`

	Map         bool `json:"map,omitempty" doc:"It has a map: its parts are items."`
	MaxParallel int  `json:"max_parallel,omitempty" doc:"How many of its items run at the same time."`
	Items       int  `json:"items" doc:"How many parts it has in this run: one, or one for each item. 0: it has not begun, or has no items."`
	Ended       int  `json:"ended" doc:"How many of these have ended."`
	Succeeded   int  `json:"succeeded" doc:"How many of these succeeded."`
	Kept        int  `json:"kept,omitempty" doc:"How many items, or 1 for a step without map, succeeded in the run that this one retries, and are not repeated."`

	OpenedAt task.Time `json:"opened_at,omitzero" doc:"When it began. Absent: it has not."`
	EndedAt  task.Time `json:"ended_at,omitzero" doc:"When its last part ended. Absent: it has not ended, or no part of it began."`

	Parts []StepPart `json:"parts,omitempty" doc:"Its parts, as far as items and offset select them: those that failed, then those that are active, then the others; each group in the order of the items."`
}

// StepPart is a part of a step: the whole step, or one of its items. It is addressed as NAME or NAME/ITEM.
type StepPart struct {
	Name string `json:"name" doc:"The name of the step, or NAME/ITEM."`
	Run  string `json:"run" doc:"The id of the part, by which its run and its output are read."`
	Item *int   `json:"item,omitempty" doc:"The index of its item, from 0. Absent: the step has no map."`
	task.Part
}

// StepsOptions select the parts of steps.
type StepsOptions struct {
	Step   string // only this step, or only this part: NAME or NAME/ITEM
	Items  int    // the maximum number of parts of each step; 0 means 20, at most 1000
	Offset int    // how many parts of each step to skip
}

// Steps returns the steps of a run of a workflow: one that waits, is active or has ended. The error has CodeNoSteps if the task of
// the run is not a workflow.
func (s *RunsService) Steps(ctx context.Context, namespace, name, id string, o StepsOptions) (RunSteps, error) {
	var out RunSteps

	if err := checkRunID(id); err != nil {
		return out, err
	}

	q := url.Values{}
	setIfNotEmpty(q, "step", o.Step)
	if o.Items > 0 {
		q.Set("items", strconv.Itoa(o.Items))
	}
	if o.Offset > 0 {
		q.Set("offset", strconv.Itoa(o.Offset))
	}

	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: q}, &out, "runs", id, "steps")

	return out, err
}

// StepPart returns the part of a run of a workflow that step names: NAME or NAME/ITEM. Get, Cancel, Pause and Logs.Open accept
// its Run. The error has CodeNoSteps if the run has no such step, or if the part has not begun to exist.
func (s *RunsService) StepPart(ctx context.Context, namespace, name, id, step string) (StepPart, error) {
	steps, err := s.Steps(ctx, namespace, name, id, StepsOptions{Step: step, Items: 2})
	if err != nil {
		return StepPart{}, err
	}
	if len(steps.Steps) != 1 {
		return StepPart{}, &Error{Status: http.StatusNotFound, Code: CodeNotFound, Field: "step", Message: "the run has no step " + task.Quote(step)}
	}

	found := steps.Steps[0]
	switch {
	case len(found.Parts) == 1:
		return found.Parts[0], nil
	case len(found.Parts) > 1:
		return StepPart{}, &Error{Status: http.StatusUnprocessableEntity, Code: task.CodeBadValue, Field: "step",
			Message: fmt.Sprintf("step %s has %d items; name one of them, such as %s", found.Name, found.Items, found.Parts[0].Name)}
	case found.Items > 0:
		return StepPart{}, &Error{Status: http.StatusConflict, Code: CodeNoSteps, Field: "step", Message: fmt.Sprintf("the run has no %s; step %s has %d items", step, found.Name, found.Items)}
	}

	return StepPart{}, &Error{Status: http.StatusConflict, Code: CodeNoSteps, Field: "step", Message: fmt.Sprintf("step %s has no parts: it is %s", found.Name, found.State)}
}
