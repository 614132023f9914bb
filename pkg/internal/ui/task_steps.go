package ui

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskSteps is the tab with the steps of a workflow, without states.
type taskSteps struct {
	Graph     *flowGraph
	Rows      []stepDefinition
	OnFailure string
	Chosen    *stepDefinition // the step whose definition the page shows
	YAML      string          // of that step
}

// stepDefinition is a step as a task defines it.
type stepDefinition struct {
	task.Step
	Name  string
	After string // when it begins
	Items string // of its map; "" if it has none
	Runs  string // what it does, on one line
}

// FlowGraph returns the graph of the steps; nil if another tab is shown.
func (p taskPage) FlowGraph() *flowGraph {
	if p.Steps == nil {
		return nil
	}
	return p.Steps.Graph
}

// tabsFor returns the tabs of a task.
func tabsFor(t task.Spec) []taskTab {
	if t.Action.Workflow != nil {
		return taskTabs
	}
	return slices.DeleteFunc(slices.Clone(taskTabs), func(tab taskTab) bool { return tab.Name == tabSteps })
}

// loadTaskSteps returns the steps of a workflow; nil for other tasks.
func loadTaskSteps(r *Request, w *task.Workflow) (*taskSteps, error) {
	if w == nil {
		return nil, nil
	}

	order, _ := w.StepNames()
	s := &taskSteps{OnFailure: cmp.Or(w.OnFailure, task.OnFailureStop)}
	cards, needs := make([]flowCard, len(order)), make([][]int, len(order))
	chosen := r.Query.Get(stepParam)

	for i, name := range order {
		step := w.Steps[name]
		d := stepDefinition{Step: step, Name: name, After: afterText(step.Needs, step.When), Runs: wording.StepAction(step)}
		if step.Map != "" {
			d.Items = wording.MapText(step.Map)
		}
		s.Rows = append(s.Rows, d)
		cards[i] = newFlowCard(name)
		cards[i].Kind, cards[i].Note, cards[i].Progress, cards[i].Chosen = kindText(step.Action().Kind(), step.When), d.After, d.Items, name == chosen
		for _, need := range step.Needs {
			needs[i] = append(needs[i], slices.Index(order, need))
		}

		if name == chosen {
			var err error
			if s.YAML, err = stepYAML(step); err != nil {
				return nil, err
			}
			s.Chosen = &d
		}
	}
	s.Graph = newFlowGraph(cards, needs, func(int, int) string { return lineToCome })

	return s, nil
}

// stepYAML returns the definition of a step as it is in the YAML of its task.
func stepYAML(s task.Step) (string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	text, err := manifest.WriteYAML(b)

	return string(text), err
}
