package runs

import (
	"cmp"
	"net/http"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

// whyQuery are the parameters of a request to explain a step of a run.
type whyQuery struct {
	Step     string `query:"step" doc:"The step, or one of its items: NAME or NAME/ITEM."`
	Timezone string `query:"timezone" doc:"The time zone for local times. Default: the task's."`
}

// whyStep serves the explanation what a step of a run did, or why it did not.
func (h *Handlers) whyStep(c *httpapi.Call, q whyQuery) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if q.Step == "" {
		return httpapi.Answer{}, task.Invalid(task.CodeRequired, "step", "is required: NAME or NAME/ITEM")
	}
	if _, err := schedule.Location(q.Timezone); q.Timezone != "" && err != nil {
		return httpapi.Answer{}, err
	}

	run, err := h.Find(c.Context(), ref, id)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if run.Fan, err = h.flowOf(c.Context(), ref, run); err != nil {
		return httpapi.Answer{}, err
	}
	steps := stepsOf(run)

	// An unknown step is an error that names the known ones.
	chosen := steps
	if err := (stepsQuery{Step: q.Step, Items: 1}).selectSteps(&chosen); err != nil {
		return httpapi.Answer{}, err
	}

	if q.Timezone == "" {
		q.Timezone = task.Defaults().Timezone
		if st, err := h.Store.Task(c.Context(), ref); err == nil { // the task may be deleted
			q.Timezone = cmp.Or(st.Task.Timezone, q.Timezone)
		}
	}

	facts := why.StepFacts{Run: views.ReadableRun(c.Rights(), run), Steps: steps, Timezone: q.Timezone, Now: h.Now.Stamp().Time}
	if !run.State.Final() {
		facts.Freeze = h.findFreeze(c.Context(), ref.Namespace)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: why.ForStep(facts, q.Step)}, nil
}
