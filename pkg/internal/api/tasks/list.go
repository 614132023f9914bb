package tasks

import (
	"cmp"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/selection"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// listQuery are the parameters of a list of tasks.
type listQuery struct {
	selection.NameQuery
	Failing bool      `query:"failing" default:"false" doc:"Only tasks with a run that has used up its attempts and no success since then."`
	Paused  bool      `query:"paused" default:"false" doc:"Only tasks that are paused."`
	Sort    listOrder `query:"sort" enum:"name,next,last,lateness" doc:"name, next, last (the latest first) or lateness (of the last run, the latest first). Default: name."`
	Recent  int       `query:"recent" minimum:"0" maximum:"100" default:"0" doc:"The number of recent runs to list for each task."`
	Brief   bool      `query:"brief" default:"false" doc:"Only the specifications, without the state of the tasks."`
	httpapi.PageQuery
}

// listOrder is the order of a list of tasks; "" means by name.
type listOrder string

// UnmarshalText parses an order.
func (o *listOrder) UnmarshalText(text []byte) error {
	switch *o = listOrder(text); *o {
	case "", client.SortName, client.SortNext, client.SortLast, client.SortLateness:
		return nil
	}
	return task.Invalid(task.CodeBadValue, "", "%s is not one of name, next, last, lateness", task.Quote(string(text)))
}

// listTasks serves the lists of the tasks of one namespace and of all namespaces.
func (h *Handlers) listTasks(c *httpapi.Call, q listQuery) (httpapi.Answer, error) {
	f, err := selection.FilterOf(c, q.NameQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	f.Failing, f.Paused = q.Failing, q.Paused
	p, err := c.Paging(q.PageQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	// By name, a page reads only a key range. Any other order examines all matching tasks.
	order := cmp.Or(string(q.Sort), client.SortName)
	if order == client.SortLast || order == client.SortLateness {
		if err := requireRuns(c, &f); err != nil {
			return httpapi.Answer{}, err
		}
	}

	var found []record.Brief
	var after string
	if order == client.SortName {
		found, after, err = h.Finder.ByName(c.Context(), f, p)
	} else {
		found, after, err = h.Finder.Sorted(c.Context(), f, order, p)
	}

	if err != nil {
		return httpapi.Answer{}, err
	}

	tasks, refs := make([]task.Task, len(found)), make([]record.Ref, len(found))
	for i, b := range found {
		tasks[i], refs[i] = b.Task(), h.Ref(b.Namespace, b.Name)
	}

	if q.Brief {
		list := make([]client.Task, len(tasks))
		for i, t := range tasks {
			list[i].Task = views.FillLists(t)
		}
		return httpapi.Page(c, p, list, after)
	}

	// The state of a task is read only for the tasks on this page.
	entries, err := h.Store.Entries(c.Context(), refs)
	if err != nil {
		return httpapi.Answer{}, err
	}

	list, err := h.Views.TasksWithRuns(c.Context(), tasks, entries, q.Recent)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Page(c, p, list, after)
}

// requireRuns limits a list of tasks to namespaces whose runs the caller may read: its order tells of them.
func requireRuns(c *httpapi.Call, f *selection.Filter) error {
	if f.Namespace != "" {
		return c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Runs, Namespace: f.Namespace})
	}

	switch readable := c.Rights().Readable(access.Runs); {
	case readable == nil:
	case f.Within == nil:
		f.Within = readable
	default:
		f.Within = slices.DeleteFunc(f.Within, func(ns string) bool { return !slices.Contains(readable, ns) })
	}

	return nil
}
