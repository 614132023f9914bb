package tasks

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxGraphTasks is how many tasks a graph has at most, because the state of each is read.
const maxGraphTasks = 2000

var graphAbout = fmt.Sprintf("Without task, the answer has all tasks of the namespace that run after others, or after which others run. With task, it has that one, the tasks from which links lead to it, "+
	"and those to which links lead from it. The links are read at one revision, and the states of the tasks right after it. A graph has at most %d tasks; otherwise the answer is 422 with the code too_many.", maxGraphTasks)

// graphQuery are the parameters of a graph.
type graphQuery struct {
	Task   string `query:"task" doc:"The name of a task: only the part of the graph around it."`
	Levels int    `query:"levels" minimum:"0" maximum:"100" default:"0" doc:"With task: up to how many links away the tasks are; 0: no limit."`
}

// Check rejects a name that no task can have, and levels without a task.
func (q *graphQuery) Check(given url.Values) error {
	if q.Task != "" {
		return task.CheckName("task", q.Task)
	}
	if given.Has("levels") {
		return task.Invalid(task.CodeBadValue, "levels", "requires task")
	}

	return nil
}

// readGraph serves the graph of a namespace, or the part of it around a task. Who may read a task of a namespace may read all.
func (h *Handlers) readGraph(c *httpapi.Call, q graphQuery) (httpapi.Answer, error) {
	ns, err := c.Namespace()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if err := c.Rights().RequireNamespaceNow(c.Context(), ns); err != nil {
		return httpapi.Answer{}, err
	}

	links, graph, err := h.linksOf(c, ns, q)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if len(graph.Tasks()) > maxGraphTasks { // as far as they were read
		return httpapi.Answer{}, httpapi.Fail(http.StatusUnprocessableEntity, task.CodeTooMany, "the graph has more than %d tasks, which is the limit", maxGraphTasks).
			WithField("task").WithHint("ask for the part around one task, with task and levels")
	}

	out := client.Graph{Namespace: ns, Links: []client.GraphLink{}, Revision: links.Revision}
	for _, l := range graph.Links() {
		out.Links = append(out.Links, client.GraphLink{Source: l.Source, Dependent: l.Dependent, When: cmp.Or(l.When, task.WhenSucceeded), Results: l.Results})
	}
	if out.Tasks, err = h.graphTasks(c, ns, graph.Tasks()); err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusOK, Body: out}, nil
}

// linksOf reads the links that a query asks for, and returns them also as a graph with their tasks.
func (h *Handlers) linksOf(c *httpapi.Call, ns string, q graphQuery) (store.Links, *depgraph.Graph, error) {
	if q.Task == "" {
		links, err := h.Store.AllLinks(c.Context(), ns, h.Shards, maxGraphTasks)
		return links, graphOf(links.List), err
	}

	of := store.LinkQuery{Namespace: ns, Up: []string{q.Task}, Down: []string{q.Task}, Levels: q.Levels, MaxTasks: maxGraphTasks}
	links, err := h.Store.LinksAround(c.Context(), of, h.Ref)
	if err == nil && links.Absent[q.Task] {
		err = fmt.Errorf("task %s/%s: %w", ns, q.Task, task.ErrNotFound)
	}

	graph := graphOf(links.List)
	graph.AddTask(q.Task)

	return links, graph.Around(q.Task, q.Levels), err
}

// graphTasks returns the tasks of a graph with their states. Those that do not exist have only a name.
func (h *Handlers) graphTasks(c *httpapi.Call, ns string, names []string) ([]client.GraphTask, error) {
	refs := make([]record.Ref, len(names))
	for i, name := range names {
		refs[i] = h.Ref(ns, name)
	}

	briefs, err := h.Store.BriefsOf(c.Context(), refs)
	if err != nil {
		return nil, err
	}
	tasks := make([]task.Task, len(briefs))
	for i, b := range briefs {
		tasks[i] = b.Task()
	}

	shown, err := h.Views.ReadTasks(c.Context(), tasks, 0, nil)
	if err != nil {
		return nil, err
	}
	state := make(map[string]*client.Task, len(shown))
	for i := range shown {
		state[shown[i].Name] = &shown[i]
	}

	waiting, err := h.Store.WaitingTriggers(c.Context(), refs)
	if err != nil {
		return nil, err
	}

	list := make([]client.GraphTask, len(names))
	for i, name := range names {
		list[i] = client.GraphTask{Name: name, WaitingTriggers: views.WaitingTriggers(waiting[i])}

		v := state[name]
		if v == nil {
			list[i].Missing = true
			continue
		}

		list[i].State, list[i].Paused, list[i].Active = v.State, v.Paused, v.Active
		if r := v.LastRun; r != nil {
			list[i].LastRun = &client.PastRun{ID: r.ID, State: r.State, Reason: r.Reason, Count: r.Count}
		}
	}

	return list, nil
}
