package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxItemRows is how many items of a step are listed below it: those that failed or were cancelled.
	maxItemRows = 10
	// maxStepIndent is the greatest depth to which steps are indented. A workflow can have a chain of 100 steps.
	maxStepIndent = 6
)

// StepsTable returns the table of the steps of a run: each below one that it needs, with the items that did not succeed below the
// step. Times are in a zone.
func StepsTable(f *factory.Factory, steps client.RunSteps, zone string) *output.Table {
	at := func(t task.Time) string {
		if t.IsZero() {
			return ""
		}
		return f.RecentTime(t, zone)
	}

	several := slices.ContainsFunc(steps.Steps, func(s client.RunStep) bool { return len(s.Needs) > 1 })
	messages := slices.ContainsFunc(steps.Steps, func(s client.RunStep) bool {
		return s.Message != "" || slices.ContainsFunc(s.Parts, func(p client.StepPart) bool { return p.Message != "" && p.State != task.Succeeded })
	})

	g := &output.Table{Headers: []string{"STEP"}, Key: "STEP"}
	if several {
		g.Headers = append(g.Headers, "AFTER")
	}
	g.Headers = append(g.Headers, "RESULT", "NODE", "STARTED", "TOOK")
	if messages {
		g.Headers = append(g.Headers, messageColumn)
	}

	add := func(name, after, state, node, started, took, message string) {
		row := []string{name}
		if several {
			row = append(row, after)
		}
		row = append(row, state, cmp.Or(output.OneLine(node), f.NoValue()), cmp.Or(started, f.NoValue()), took)
		if messages {
			row = append(row, output.Truncate(output.OneLine(message), 80))
		}
		g.AddRow(row...)
	}

	for _, n := range stepTree(steps.Steps) {
		s := n.runStep
		indent := ""
		if n.depth > 0 {
			indent = strings.Repeat("  ", n.depth-1) + f.Plain("└ ")
		}

		node, message := "", s.Message
		if p, one := s.onlyPart(); one {
			node = p.Node
			if p.State != task.Succeeded {
				message = cmp.Or(message, p.Message)
			}
		}
		after := ""
		if len(s.Needs) > 1 { // the place in the tree says only one of them
			after = "after " + strings.Join(s.Needs, ", ")
		}
		add(indent+s.Name, after, s.stateText(f), node, at(s.OpenedAt), s.tookText(f), message)

		rows := s.itemRows(f.Format == output.FormatWide)
		for _, p := range rows {
			run := wording.StepPartRun(p)
			add(strings.Repeat("  ", n.depth)+"  "+p.Name, "", RunResult(f, run), p.Node, at(p.StartedAt), TookText(f, run), p.Message)
		}
		if more := s.failed() - len(rows); more > 0 && len(rows) == maxItemRows {
			add(strings.Repeat("  ", n.depth)+f.Plain("  … ")+fmt.Sprintf("%d more", more), "", "", "", "", "", "")
		}
	}

	return g
}

// shownStep is a step in a table, and how far it is indented.
type shownStep struct {
	runStep
	depth int
}

// runStep adds what tables show of a step.
type runStep struct{ client.RunStep }

// stepTree returns the steps such that each is below the last of those that it needs.
func stepTree(steps []client.RunStep) []shownStep {
	below := map[string][]client.RunStep{}
	for _, s := range steps {
		parent := ""
		for _, other := range steps { // the last in the order of the steps
			if slices.Contains(s.Needs, other.Name) {
				parent = other.Name
			}
		}
		below[parent] = append(below[parent], s)
	}

	var list []shownStep
	var add func(parent string, depth int)
	add = func(parent string, depth int) {
		for _, s := range below[parent] {
			list = append(list, shownStep{runStep{s}, min(depth, maxStepIndent)})
			add(s.Name, depth+1)
		}
	}
	add("", 0)

	return list
}

// onlyPart returns the part of a step without a map.
func (s runStep) onlyPart() (client.StepPart, bool) {
	if s.Map || len(s.Parts) != 1 {
		return client.StepPart{}, false
	}
	return s.Parts[0], true
}

// failed returns how many items have ended without success.
func (s runStep) failed() int { return s.Ended - s.Succeeded }

// itemRows returns the items that are listed: those that ended without success or, if all are to be shown, all that the step has.
func (s runStep) itemRows(all bool) (rows []client.StepPart) {
	if !s.Map {
		return nil
	}

	for _, p := range s.Parts {
		if all || len(rows) < maxItemRows && p.State.Final() && p.State != task.Succeeded {
			rows = append(rows, p)
		}
	}

	return rows
}

// tookText formats how long a step took, from the beginning of its first part to the end of its last one.
func (s runStep) tookText(f *factory.Factory) string {
	if p, one := s.onlyPart(); one {
		return TookText(f, wording.StepPartRun(p))
	}
	if s.OpenedAt.IsZero() || s.Items == 0 {
		return f.NoValue()
	}

	return TookText(f, task.Run{StartedAt: s.OpenedAt, EndedAt: s.EndedAt})
}

// stateText describes the state of a step with its symbol.
func (s runStep) stateText(f *factory.Factory) string {
	look := map[workflow.State]task.State{workflow.Waiting: task.Queued, workflow.Ready: task.Queued}[workflow.State(s.State)]
	if p, one := s.onlyPart(); one && (p.State.Final() && p.State != task.Succeeded || p.State == task.Paused) {
		look = p.State
	}

	return f.StateText(cmp.Or(look, task.State(s.State)), f.Plain(wording.StepResult(s.RunStep, f.Now())))
}

// StepsSummary counts the steps of a run by their states: 5: 2 succeeded, 1 failed, 2 skipped.
func StepsSummary(steps client.RunSteps) string {
	count := map[workflow.State]int{}
	kept := 0
	for _, s := range steps.Steps {
		count[workflow.State(s.State)]++
		if s.Kept > 0 && s.Items == 0 && workflow.State(s.State) == workflow.Succeeded {
			kept++
		}
	}

	var words []string
	for _, state := range []workflow.State{workflow.Succeeded, workflow.Failed, workflow.Cancelled, workflow.Skipped, workflow.Running, workflow.Ready, workflow.Waiting} {
		if n := count[state]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, state))
		}
	}

	text := fmt.Sprintf("%d: %s", len(steps.Steps), strings.Join(words, ", "))
	if kept > 0 {
		text += fmt.Sprintf("; %d kept from the earlier run", kept)
	}

	return text
}
