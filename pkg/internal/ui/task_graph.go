package ui

import (
	"context"
	"fmt"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// graphLevels is how many links the graph shows before and after a task.
const graphLevels = 2

// taskGraph is the tab with the tasks from which links lead to a task, and to which links lead from it. The columns are in the
// order in which the tasks run.
type taskGraph struct {
	Columns []graphColumn
	Links   int
}

// graphColumn contains the tasks with the same distance from the task of the page.
type graphColumn struct {
	Title string
	Tasks []graphCard
}

// graphCard is a task in the graph.
type graphCard struct {
	client.GraphTask
	After   []string // the conditions under which its sources in the graph start it
	Current bool     // it is the task of the page
	Waits   string   // how many ended runs of its sources wait; "" if none does
	Results []string // the results that it gets
}

// Last returns the last run as far as the graph knows it, or nil.
func (c graphCard) Last() *task.Run {
	if c.LastRun == nil {
		return nil
	}
	return &task.Run{ID: c.LastRun.ID, State: c.LastRun.State, Reason: c.LastRun.Reason}
}

// loadTaskGraph reads the graph around a task.
func loadTaskGraph(ctx context.Context, r *Request, ns, name string) (*taskGraph, error) {
	answer, err := r.API.Tasks.Graph(ctx, ns, client.GraphOptions{Task: name, Levels: graphLevels})
	if err != nil {
		return nil, err
	}

	return graphFor(answer, name), nil
}

// graphFor returns the columns of a graph around a task. A task that is both before and after it, which only damaged records can
// cause, is shown once, before it.
func graphFor(answer client.Graph, name string) *taskGraph {
	links := depgraph.OfAnswer(answer)
	links.AddTask(name)
	before, behind := links.Upstream(name, graphLevels), links.Downstream(name, graphLevels)

	titles := map[int]string{-2: "Two before", -1: "Runs after", 0: "This task", 1: "Then", 2: "And then"}
	columns := map[int][]graphCard{}
	for _, t := range answer.Tasks {
		level, isBefore := before[t.Name]
		level = -level
		if !isBefore {
			var isBehind bool
			if level, isBehind = behind[t.Name]; !isBehind {
				continue
			}
		}

		columns[level] = append(columns[level], cardOf(t, answer.Links, t.Name == name))
	}

	g := &taskGraph{Links: len(answer.Links)}
	for level := -graphLevels; level <= graphLevels; level++ {
		if len(columns[level]) > 0 {
			g.Columns = append(g.Columns, graphColumn{titles[level], columns[level]})
		}
	}

	return g
}

// cardOf returns a task of the graph with what leads to it.
func cardOf(t client.GraphTask, links []client.GraphLink, current bool) graphCard {
	c := graphCard{GraphTask: t, Current: current}
	for _, l := range links {
		if l.Dependent != t.Name {
			continue
		}

		s := task.Source{Task: l.Source, When: l.When}
		c.After = append(c.After, s.Describe())
		for _, result := range l.Results {
			c.Results = append(c.Results, fmt.Sprintf("%s of %s", result, l.Source))
		}
	}

	waiting := 0
	for _, w := range t.WaitingTriggers {
		waiting += w.Count
	}
	if waiting > 0 {
		c.Waits = wording.Plural(int64(waiting), "ended run")
	}

	return c
}
