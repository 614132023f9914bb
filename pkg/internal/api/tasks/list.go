package tasks

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// listQuery are the parameters of a list of tasks.
type listQuery struct {
	Query    readmodel.QueryLine `query:"q" doc:"A query: terms that must all hold, such as \"state:failed label:team=data next:<1h name:web-*,db\"."`
	Sort     readmodel.Order     `query:"sort" enum:"name,next,last,lateness,duration,failures" doc:"name, next, last (the latest end of a run first), lateness or duration (of the last run, the largest first) or failures (in a row, the most first). Default: name. Only in the order by name, pages contain each task exactly once; otherwise, a task that changes between two pages may appear twice or not at all."`
	Recent   int                 `query:"recent" minimum:"0" maximum:"100" default:"0" doc:"The number of recent runs to list for each task."`
	Brief    bool                `query:"brief" default:"false" doc:"Only the specifications, without the state of the tasks."`
	Complete bool                `query:"complete" default:"false" doc:"Fail with 503 and the code incomplete if tasks may be missing, instead of leaving them out. Use this before you change all tasks that match."`
	// MinRevision is needed only for what was written through another node.
	MinRevision writtenTask `query:"min_revision" doc:"What you have written through another node, as NAMESPACE/NAME@REVISION. The list contains it, or names the shard of the task as missing if its owner does not know the revision within half a second. What you have written through the same node within ten seconds is treated like this without the parameter."`
	httpapi.PageQuery
}

// writtenTask is a task and a revision at which it was written, as a query parameter. The zero value is none.
type writtenTask struct {
	namespace, name string
	revision        int64
}

// UnmarshalText parses NAMESPACE/NAME@REVISION.
func (w *writtenTask) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		return nil
	}

	full, revision, _ := strings.Cut(string(text), "@")
	namespace, name, _ := strings.Cut(full, "/")
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil || n <= 0 || task.CheckName("", namespace) != nil || task.CheckName("", name) != nil {
		return task.Invalid(task.CodeBadValue, "", "%s is not NAMESPACE/NAME@REVISION", task.Quote(string(text)))
	}

	*w = writtenTask{namespace, name, n}

	return nil
}

// listTasks serves the lists of the tasks of one namespace and of all namespaces.
func (h *Handlers) listTasks(c *httpapi.Call, q listQuery) (httpapi.Answer, error) {
	question, err := ask.QuestionOf(c, q.Query, q.Sort)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if w := q.MinRevision; w.revision > 0 {
		question.MinRevisions = ask.Revisions{h.Ref(w.namespace, w.name).Shard: w.revision}
	}

	p, err := c.Paging(q.PageQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	page, err := h.Asker.FindTasks(c, question, p, q.Complete)
	var list []client.Task
	if err == nil {
		list, err = h.rowsOf(c, page, q)
	}

	view := viewOf(c, q)
	if err != nil {
		return h.oldPage(c, p, page, view, err)
	}

	if page.Answer == nil {
		return httpapi.QueryPage(c, p, list, page.After, client.ListInfo{})
	}

	page.Answer.KeepRows(view, list, len(list))

	return httpapi.QueryPage(c, p, list, page.After, page.Answer.Info(h.Now.Stamp()))
}

// viewOf returns what the rows of a list depend on, apart from the question: what is shown of each task, and what the
// caller may read of it.
func viewOf(c *httpapi.Call, q listQuery) string {
	caller := httpapi.CallerOf(c.Context())
	return fmt.Sprintf("%d %t %s %s", q.Recent, q.Brief, caller.Who, caller.Token)
}

// oldPage answers with the rows that the same caller has last seen, if etcd is away. Otherwise, it returns err.
func (h *Handlers) oldPage(c *httpapi.Call, p httpapi.Paging, page ask.TaskPage, view string, err error) (httpapi.Answer, error) {
	if page.Answer == nil || !errors.Is(err, task.ErrUnavailable) {
		return httpapi.Answer{}, err
	}

	rows, answer, ok := page.Answer.OldRows(view)
	if !ok {
		return httpapi.Answer{}, err
	}

	// The next page follows these rows, and not those that could not be read.
	return httpapi.QueryPage(c, p, rows.([]client.Task), answer.NextPage(), answer.Info(h.Now.Stamp()))
}

// rowsOf returns the tasks of a page as the caller sees them. The state of a task is read only for the tasks of the page.
func (h *Handlers) rowsOf(c *httpapi.Call, page ask.TaskPage, q listQuery) ([]client.Task, error) {
	tasks := make([]task.Task, len(page.Tasks))
	for i, b := range page.Tasks {
		tasks[i] = b.Task()
	}

	if q.Brief {
		list := make([]client.Task, len(tasks))
		for i, t := range tasks {
			list[i].Task = views.FillLists(t)
		}
		return list, nil
	}

	return h.Views.ReadTasks(c.Context(), tasks, q.Recent, page.FailingTasks())
}
