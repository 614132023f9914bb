package runs

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// stepsQuery are the parameters of a request for the steps of a run.
type stepsQuery struct {
	Step   string `query:"step" doc:"Only this step, or only this part: NAME or NAME/ITEM."`
	Items  int    `query:"items" minimum:"1" maximum:"1000" default:"20" doc:"The maximum number of parts of each step."`
	Offset int    `query:"offset" minimum:"0" maximum:"1000" default:"0" doc:"How many parts of each step to skip."`
}

// listSteps serves the steps of a run.
func (h *Handlers) listSteps(c *httpapi.Call, q stepsQuery) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	run, err := h.Find(c.Context(), ref, id)
	if err != nil {
		return httpapi.Answer{}, err
	}

	flow, err := h.flowOf(c.Context(), ref, run)
	if err != nil {
		return httpapi.Answer{}, err
	}

	run.Fan = flow
	steps := stepsOf(run)
	if err := q.selectSteps(&steps); err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusOK, Body: steps}, nil
}

// flowOf returns the steps of a run. A run that waits may have none yet: then they are those of the task as it is now.
func (h *Handlers) flowOf(ctx context.Context, ref record.Ref, run task.Run) (*task.Fan, error) {
	if run.Fan != nil && run.Fan.Flow != nil {
		return run.Fan, nil
	}

	none := httpapi.Fail(http.StatusConflict, client.CodeNoSteps, "run %s of task %s has no steps: it is not one of a workflow", run.ID, ref).WithField("run")
	if parent, _, isPart := task.ParentOf(run.ID); isPart {
		return nil, none.WithHint("a part has no steps of its own; those of its run: carillon run get " + parent)
	}
	if run.Fan != nil || run.State != task.Queued {
		return nil, none
	}

	st, err := h.Store.Task(ctx, ref)
	if err != nil {
		return nil, err
	}
	if st.Task.UID != run.UID || st.Task.Action.Workflow == nil {
		return nil, none
	}

	return &task.Fan{Flow: task.NewFlow(task.NewPlan(st.Task))}, nil
}

// stepsOf returns the steps of a run with the states of all parts, as Find returns it.
func stepsOf(run task.Run) client.RunSteps {
	fan := *run.Fan
	flow := fan.Flow

	parts := make(map[int]task.Part, len(fan.Parts))
	for _, p := range fan.Parts {
		parts[p.Index] = p
	}

	// If the run has ended, a part without a record never began.
	if run.State.Final() {
		fan.Left = nil
		for i := range fan.Count {
			if _, known := parts[i]; !known {
				fan.Left = append(fan.Left, i)
			}
		}
	}

	states := workflow.States(&fan, func(part int) (task.State, bool) {
		p, known := parts[part]
		return p.State, known && p.State.Final()
	})

	out := client.RunSteps{
		Run: run.ID, State: run.State, OnFailure: cmp.Or(flow.OnFailure, task.OnFailureStop), Cancel: states.Cancel, Forced: flow.Forced, Retries: flow.Retries,
		PausedAt: run.PausedAt, PausedBy: run.PausedBy, Steps: make([]client.RunStep, len(flow.Steps)),
	}

	for i := range flow.Steps {
		out.Steps[i] = stepOf(run, flow, i, states.Steps[i], parts)
	}

	return out
}

// stepOf returns a step with all of its parts.
func stepOf(run task.Run, flow *task.Flow, i int, state workflow.Step, parts map[int]task.Part) client.RunStep {
	s := &flow.Steps[i]

	out := client.RunStep{
		Name: s.Name, Kind: s.Kind, When: string(cmp.Or(s.When, task.WhenSucceeded)), State: string(state.State), Reason: state.Reason, Message: s.Message,
		Map: s.IsMap, MaxParallel: s.MaxParallel, Items: s.Count, Ended: state.Ended, Succeeded: state.Succeeded, Kept: s.Kept, OpenedAt: s.OpenedAt,
	}
	if s.IsKept {
		out.Kept = max(out.Kept, 1)
	}
	for _, need := range s.Needs {
		out.Needs = append(out.Needs, flow.Steps[need].Name)
	}
	if state.Cause >= 0 {
		out.Cause = flow.Steps[state.Cause].Name
	}

	// No step begins before its run does.
	if out.State == string(workflow.Ready) && run.State == task.Queued {
		out.State = string(workflow.Waiting)
	}

	for part := s.First; s.IsOpened() && part < s.First+s.Count; part++ {
		p := client.StepPart{Name: s.Name, Run: task.PartID(run.ID, part), Part: task.Part{Index: part, State: task.Queued}}
		if known, ok := parts[part]; ok {
			p.Part = known
		}
		if s.IsMap {
			item := s.ItemOf(part)
			p.Item, p.Name = &item, s.Name+"/"+strconv.Itoa(item)
		}

		out.Parts = append(out.Parts, p)
		if state.State.IsFinal() && out.EndedAt.Before(p.EndedAt.Time) {
			out.EndedAt = p.EndedAt
		}
	}

	// The parts are in the order of their items.
	slices.SortStableFunc(out.Parts, func(a, b client.StepPart) int { return cmp.Compare(partRank(a.State), partRank(b.State)) })

	return out
}

// partRank returns the place of a part in a list of parts: those that failed come first, then those that are active.
func partRank(s task.State) int {
	switch {
	case s.Active():
		return 1
	case s == task.Cancelled:
		return 2
	case s == task.Succeeded:
		return 3
	case s == task.Queued:
		return 4
	}

	return 0
}

// selectSteps leaves the steps and the parts that the request selects.
func (q stepsQuery) selectSteps(all *client.RunSteps) error {
	name, item, isItem := strings.Cut(q.Step, "/")

	if q.Step != "" {
		names := make([]string, len(all.Steps))
		for i, s := range all.Steps {
			names[i] = s.Name
		}

		i := slices.Index(names, name)
		if i < 0 {
			return task.NoneOf(task.CodeBadValue, "step", name, names...)
		}
		all.Steps = all.Steps[i : i+1]
	}

	if isItem {
		n, err := strconv.Atoi(item)
		if err != nil || n < 0 || strconv.Itoa(n) != item || !all.Steps[0].Map {
			return task.Invalid(task.CodeBadValue, "step", "%s is not NAME or NAME/ITEM of a step with map", task.Quote(q.Step))
		}

		all.Steps[0].Parts = slices.DeleteFunc(all.Steps[0].Parts, func(p client.StepPart) bool { return *p.Item != n })
	}

	for i := range all.Steps {
		parts := all.Steps[i].Parts
		parts = parts[min(q.Offset, len(parts)):]
		all.Steps[i].Parts = parts[:min(q.Items, len(parts))]
	}

	return nil
}
