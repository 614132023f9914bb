package api

import (
	"cmp"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// listQuery are the parameters of a list of tasks.
type listQuery struct {
	nameQuery
	Failing bool      `query:"failing" default:"false" doc:"Only tasks of which a run has used up its attempts, and none has succeeded since."`
	Paused  bool      `query:"paused" default:"false" doc:"Only tasks that are paused."`
	Sort    listOrder `query:"sort" enum:"name,next,last,lateness" doc:"name, next, last (the latest first) or lateness (of the last run, the latest first). Default: name."`
	Recent  int       `query:"recent" minimum:"0" maximum:"100" default:"0" doc:"How many of the last runs each task is listed with."`
	Brief   bool      `query:"brief" default:"false" doc:"Only what the users wrote: nothing of how the tasks fare."`
	PageQuery
}

// listOrder is in which order tasks are asked for; "" is by name.
type listOrder string

// UnmarshalText reads an order.
func (o *listOrder) UnmarshalText(text []byte) error {
	switch *o = listOrder(text); *o {
	case "", client.SortName, client.SortNext, client.SortLast, client.SortLateness:
		return nil
	}
	return task.Invalid(task.CodeBadValue, "", "%s is not an order; they are name, next, last and lateness", task.Quote(string(text)))
}

// listTasks serves GET of the tasks of a namespace, or of all.
func (h *taskHandlers) listTasks(c *call, q listQuery) (answer, error) {
	f, err := c.taskFilter(q.nameQuery)
	if err != nil {
		return answer{}, err
	}
	f.failing, f.paused = q.Failing, q.Paused
	p, err := c.paging(q.PageQuery)
	if err != nil {
		return answer{}, err
	}
	order := cmp.Or(string(q.Sort), client.SortName)
	var found []store.Brief
	var after string
	if order == client.SortName {
		found, after, err = h.Finder.byName(c.ctx(), f, p)
	} else {
		found, after, err = h.Finder.sorted(c.ctx(), f, order, p)
	}
	if err != nil {
		return answer{}, err
	}
	tasks, refs := make([]task.Task, len(found)), make([]store.Ref, len(found))
	for i, b := range found {
		tasks[i], refs[i] = b.Task(), h.Ref(b.Namespace, b.Name)
	}
	if q.Brief {
		views := make([]client.Task, len(tasks))
		for i, t := range tasks {
			views[i].Task = tidy(t)
		}
		return page(c, p, views, after)
	}
	entries, err := h.Store.Entries(c.ctx(), refs)
	if err != nil {
		return answer{}, err
	}
	views, err := h.Views.viewsWith(c.ctx(), tasks, entries, q.Recent)
	if err != nil {
		return answer{}, err
	}
	return page(c, p, views, after)
}
