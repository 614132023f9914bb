package ui

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// deletedScreen lists the tasks of a namespace that were deleted, as "carillon task deleted" does, and brings them back.
func deletedScreen() Screen {
	return Screen{
		Name: "deleted", Pattern: "/ui/tasks/deleted", Nav: "tasks",
		Title: func(*View) string { return "Deleted tasks" },
		Load:  loadDeleted,
		Command: func(v *View) []string {
			ns := v.Query.Get("ns")
			if p, isLoaded := v.Data.(deletedPage); isLoaded {
				ns = p.Namespace
			}

			return []string{"carillon", "task", "deleted", "-n", ns}
		},
		Actions: []Action{{Pattern: "/ui/tasks/deleted/undelete", Run: undeleteTasks}},
	}
}

// maxUndelete is the maximum number of tasks that one form brings back.
const maxUndelete = 1000

// deletedPage is what the screen shows.
type deletedPage struct {
	Namespace string
	Spaces    []string
	Tasks     []deletedRow
	Report    *undeleteReport
}

// CanReturn reports whether any of the tasks can come back.
func (p deletedPage) CanReturn() bool {
	return slices.ContainsFunc(p.Tasks, func(t deletedRow) bool { return t.CanReturn })
}

// deletedRow is a deleted task.
type deletedRow struct {
	client.DeletedTask
	By        string
	Schedule  string
	CanReturn bool
}

// undeleteReport is what came back if not everything did.
type undeleteReport struct {
	Done   int
	Failed []bulkFailure
}

// deletedNamespace returns the namespace of the page: the one that was chosen, or the first one that the viewer may read.
func deletedNamespace(chosen string, spaces []string) string {
	switch std := task.Defaults().Namespace; {
	case chosen != "":
		return chosen
	case len(spaces) == 0 || slices.Contains(spaces, std):
		return std
	}

	return spaces[0]
}

func loadDeleted(ctx context.Context, r *Request) (any, error) {
	p := deletedPage{Spaces: r.Namespaces()}
	p.Namespace = deletedNamespace(r.Query.Get("ns"), p.Spaces)
	p.Report, _ = r.Result.(*undeleteReport)

	list, err := r.API.Tasks.ListDeleted(ctx, p.Namespace)
	if err != nil {
		return nil, err
	}
	may, err := r.May("create", "tasks", p.Namespace)
	if err != nil {
		return nil, err
	}

	// The latest deletion comes first: it is the one that somebody wants to undo.
	slices.SortStableFunc(list, func(a, b client.DeletedTask) int { return b.DeletedAt.Compare(a.DeletedAt.Time) })
	for _, d := range list {
		row := deletedRow{DeletedTask: d, By: d.DeletedBy.Name(), CanReturn: may && d.Spec != nil}
		if row.By == "" {
			row.By = d.Why
		}
		if d.Spec != nil {
			row.Schedule = wording.ScheduleText(*d.Spec)
		}
		p.Tasks = append(p.Tasks, row)
	}

	return p, nil
}

// undeleteTasks brings the selected tasks back.
func undeleteTasks(ctx context.Context, r *Request) (Done, error) {
	ns, names := r.Form.Get("ns"), r.Form["task"]
	switch {
	case len(names) == 0:
		return Done{}, task.Invalid(task.CodeRequired, "task", "no task is selected")
	case len(names) > maxUndelete:
		return Done{}, task.Invalid(task.CodeTooMany, "task", "%d tasks are selected; at most %d come back at once", len(names), maxUndelete)
	}

	failures := make([]error, len(names))
	places := make(chan int)
	ctx, cancel := context.WithTimeout(ctx, bulkTimeout)
	defer cancel()
	all, ctx := callgroup.WithContext(ctx)
	for range min(bulkParallel, len(names)) {
		all.Go(func() error {
			for i := range places {
				_, failures[i] = r.API.Tasks.Undelete(ctx, ns, names[i])
			}
			return nil
		})
	}
	for i := range names {
		places <- i
	}
	close(places)
	_ = all.Wait()

	report := &undeleteReport{}
	for i, err := range failures {
		if err != nil {
			report.Failed = append(report.Failed, bulkFailure{names[i], problemOf(err).Message})
		} else {
			report.Done++
		}
	}

	switch {
	case report.Done == 0 && len(names) == 1:
		return Done{}, failures[0]
	case len(report.Failed) > 0:
		slices.SortFunc(report.Failed, func(a, b bulkFailure) int { return strings.Compare(a.Task, b.Task) })
		return Done{Result: report}, nil
	case len(names) == 1:
		to, err := link("/ui/tasks/{}/{}", nil, []any{ns, names[0]})
		return Done{To: to, Message: "undeleted " + names[0]}, err
	}
	to, err := link("/ui/tasks", nil, []any{"ns", ns})

	return Done{To: to, Message: fmt.Sprintf("undeleted %s", countText(report.Done, "task"))}, err
}
