package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// newest orders runs with the newest first, and any two of them one way only.
func newest(a, b task.Run) int {
	return cmp.Or(store.ByTime(a, b), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Task, b.Task))
}

// runFilter is what a list of runs asks for.
type runFilter struct {
	states []task.State
	node   string
	since  task.Time // zero: any
	until  task.Time
	parts  bool      // the parts of runs, too
	tasks  taskSet   // only runs of these tasks; nil: of all
	after  *task.Run // only those behind it; nil for the first page
	last   *task.Run // none behind it; nil: as far as there are any
}

func (c *call) runFilter(p paging) (f runFilter, err error) {
	if text := c.query.Get("state"); text != "" {
		for name := range strings.SplitSeq(text, ",") {
			s := task.State(strings.TrimSpace(name))
			if !s.Known() {
				return f, task.NoneOf(task.CodeBadValue, "state", name, task.StateNames()...)
			}
			f.states = append(f.states, s)
		}
	}
	if f.parts, err = c.bool("parts"); err != nil {
		return f, err
	}
	if f.node = c.query.Get("node"); f.node != "" {
		f.parts = true // a run that has some is on no node, they are
		err = task.CheckName("node", f.node)
	}
	if err == nil {
		f.since, err = c.time("since", task.Time{})
	}
	if err == nil {
		f.until, err = c.time("until", task.Time{})
	}
	if err == nil && p.after != "" {
		f.after, err = parseRunCursor(p.after)
	}
	return f, err
}

// taskSet holds tasks as "namespace/name".
type taskSet map[string]bool

// selectedTasks returns the tasks of a namespace, or of all namespaces (""), whose
// labels match the request's selector. It returns nil if the request has no selector.
func (c *call) selectedTasks(ns string) (taskSet, error) {
	selector, err := task.ParseSelector(c.query.Get("selector"))
	if err != nil {
		return nil, task.Under("selector", err)
	}
	if selector == nil {
		return nil, nil
	}

	selected := taskSet{}
	for p := (paging{limit: maxScan}); ; {
		found, after, err := c.s.byName(c.ctx(), taskFilter{namespace: ns, selector: selector}, p)
		if err != nil {
			return nil, err
		}
		for _, b := range found {
			selected[b.Namespace+"/"+b.Name] = true
		}

		if after == "" {
			return selected, nil
		}
		p.after = after
	}
}

func runCursor(r task.Run) string {
	return cursor(strconv.FormatInt(r.ScheduledTime.UnixMilli(), 10), r.ID, r.Namespace, r.Task)
}

func parseRunCursor(s string) (*task.Run, error) {
	parts := strings.Split(s, " ")
	if len(parts) == 4 {
		if ms, err := strconv.ParseInt(parts[0], 10, 64); err == nil {
			return &task.Run{ScheduledTime: task.At(time.UnixMilli(ms)), ID: parts[1], Namespace: parts[2], Task: parts[3]}, nil
		}
	}
	return nil, task.Invalid(client.CodeBadPage, "page", "is not a page of this list")
}

func (f runFilter) matches(r task.Run) bool {
	return (f.parts || !task.IsPart(r.ID)) && (f.tasks == nil || f.tasks[r.Namespace+"/"+r.Task]) && (f.states == nil || slices.Contains(f.states, r.State)) &&
		(f.since.IsZero() || !r.ScheduledTime.Before(f.since.Time)) && (f.until.IsZero() || r.ScheduledTime.Before(f.until.Time)) &&
		(f.node == "" || ranOn(r, f.node)) &&
		(f.after == nil || newest(*f.after, r) < 0) && (f.last == nil || newest(r, *f.last) <= 0)
}

// activeOnly reports whether only attempts in inboxes can match.
func (f runFilter) activeOnly() bool {
	return f.states != nil && !slices.ContainsFunc(f.states, func(s task.State) bool { return !s.Active() })
}

// ranOn reports whether a run's latest attempt was on a node.
func ranOn(r task.Run, node string) bool {
	if r.Node == "" && len(r.Attempts) > 0 {
		return r.Attempts[len(r.Attempts)-1].Node == node
	}
	return r.Node == node
}

// answerRuns answers with the page of runs that begins list, which is sorted.
// more: there are others behind the list.
func answerRuns(c *call, p paging, list []task.Run, more bool) (answer, error) {
	if len(list) > p.limit {
		list, more = list[:p.limit], true
	}
	if progress, err := c.bool("progress"); err != nil {
		return answer{}, err
	} else if progress {
		c.s.tellRuns(c, list)
	}
	for i := range list {
		list[i] = inBrief(list[i])
	}
	after := ""
	if more && len(list) > 0 {
		after = runCursor(list[len(list)-1])
	}
	return page(c, p, list, after)
}

// listTaskRuns serves the runs of a task.
func (s *server) listTaskRuns(c *call) (answer, error) {
	ref, err := c.ref()
	if err != nil {
		return answer{}, err
	}
	return s.answerRunsOf(c, ref)
}

func (s *server) answerRunsOf(c *call, ref store.Ref) (answer, error) {
	p, err := c.paging()
	if err != nil {
		return answer{}, err
	}
	f, err := c.runFilter(p)
	if err != nil {
		return answer{}, err
	}
	if dead, err := c.bool("dead"); dead || err != nil {
		if err != nil {
			return answer{}, err
		}
		return s.answerDeadOf(c, ref, p, f)
	}
	runs, err := s.Store.Runs(c.ctx(), ref)
	if err != nil {
		return answer{}, err
	}
	if len(runs) == 0 {
		if _, err := s.Store.Revisions(c.ctx(), ref); err != nil {
			return answer{}, err // a task that is not there is not one without runs
		}
	}
	if f.parts {
		ended, err := s.Store.EndedParts(c.ctx(), []int{ref.Shard}, ref.Namespace+"/"+ref.Name)
		if err != nil {
			return answer{}, err
		}
		runs = override(ended, f.spread(runs))
	}
	runs = slices.DeleteFunc(runs, func(r task.Run) bool { return !f.matches(r) })
	slices.SortFunc(runs, newest)
	return answerRuns(c, p, runs, false)
}

// listRuns serves the runs of many tasks.
func (s *server) listRuns(c *call) (answer, error) {
	ns := ""
	if c.route.path != "/v1/runs" {
		var err error
		if ns, err = c.namespace(); err != nil {
			return answer{}, err
		}
		if name := c.query.Get("task"); name != "" {
			if err := task.CheckName("task", name); err != nil {
				return answer{}, err
			}
			if c.query.Get("selector") != "" {
				return answer{}, task.Invalid(task.CodeBadValue, "selector", "cannot be used together with task")
			}
			return s.answerRunsOf(c, s.Ref(ns, name))
		}
	}
	p, err := c.paging()
	if err != nil {
		return answer{}, err
	}
	f, err := c.runFilter(p)
	if err != nil {
		return answer{}, err
	}
	if f.tasks, err = c.selectedTasks(ns); err != nil {
		return answer{}, err
	}
	if dead, err := c.bool("dead"); dead || err != nil {
		if err != nil {
			return answer{}, err
		}
		return s.answerDead(c, ns, p, f)
	}
	runs, more, err := s.findRuns(c.ctx(), ns, f, p.limit)
	if err != nil {
		return answer{}, err
	}
	return answerRuns(c, p, runs, more)
}

// override is old and newer without those of old that newer has as well.
func override(old, newer []task.Run) []task.Run {
	type key struct{ ns, name, id string }
	has := make(map[key]bool, len(newer))
	for _, r := range newer {
		has[key{r.Namespace, r.Task, r.ID}] = true
	}
	old = slices.DeleteFunc(old, func(r task.Run) bool { return has[key{r.Namespace, r.Task, r.ID}] })
	return append(old, newer...)
}

func (s *server) activeRuns(ctx context.Context, ns string) ([]task.Run, error) {
	held, err := s.Store.Active(ctx)
	if err != nil {
		return nil, err
	}
	var runs []task.Run
	for _, h := range held {
		if ns == "" || h.Namespace == ns {
			runs = append(runs, h.Run)
		}
	}
	return runs, nil
}

// runID is the id in the path, or the beginning of one.
func (c *call) runID() (string, error) {
	id := c.r.PathValue("id")
	ok := !strings.ContainsFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '.' && r != '-'
	})
	if id == "" || len(id) > task.MaxName || !ok {
		return "", task.Invalid(task.CodeBadValue, "run", "%s is not a run's id, nor the beginning of one", task.Quote(id))
	}
	return id, nil
}

// runOf finds a run of a task by its id, or by the beginning of one.
func (s *server) runOf(ctx context.Context, ref store.Ref, id string) (task.Run, error) {
	if task.IsPart(id) {
		return s.runOfPart(ctx, ref, id)
	}
	runs, err := s.Store.Runs(ctx, ref)
	if err != nil {
		return task.Run{}, err
	}
	var found []task.Run
	for _, r := range withoutParts(runs, id) {
		if r.ID == id {
			return s.inFull(ctx, ref, r)
		}
		if strings.HasPrefix(r.ID, id) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return task.Run{}, fmt.Errorf("run %s of task %s: %w", id, ref, task.ErrNotFound)
	case 1:
		return s.inFull(ctx, ref, found[0])
	}
	ids := make([]string, len(found))
	for i, r := range found {
		ids[i] = r.ID
	}
	return task.Run{}, ambiguous(id, ids)
}

func ambiguous(id string, ids []string) error {
	const most = 5
	list := strings.Join(ids[:min(len(ids), most)], ", ")
	if len(ids) > most {
		list += ", …"
	}
	return fail(http.StatusConflict, client.CodeAmbiguous, "%s is the beginning of %d runs: %s", id, len(ids), list).
		withField("run").withHint("write more of the id")
}

// getTaskRun serves a run of a task.
func (s *server) getTaskRun(c *call) (answer, error) {
	ref, id, err := c.refAndRun()
	if err != nil {
		return answer{}, err
	}
	run, err := s.runOf(c.ctx(), ref, id)
	s.tellRun(c, &run)
	return answer{status: http.StatusOK, body: run}, err
}

func (c *call) refAndRun() (store.Ref, string, error) {
	ref, err := c.ref()
	if err != nil {
		return ref, "", err
	}
	id, err := c.runID()
	return ref, id, err
}

// findRun serves a run of any task of a namespace.
func (s *server) findRun(c *call) (answer, error) {
	ns, err := c.namespace()
	if err != nil {
		return answer{}, err
	}
	id, err := c.runID()
	if err != nil {
		return answer{}, err
	}
	const most = 100
	find, part := id, ""
	if parent, _, is := task.ParentOf(id); is {
		find, part = parent, id // of a part that has ended there may be no record but its run's
	}
	refs, ids, err := s.Store.FindRuns(c.ctx(), s.Cluster.Shards, ns, find, most)
	if err != nil {
		return answer{}, err
	}
	var exact []int
	for i := range ids {
		if ids[i] == find {
			exact = append(exact, i)
		}
	}
	switch {
	case len(exact) == 1:
		refs, ids = refs[exact[0]:exact[0]+1], ids[exact[0]:exact[0]+1]
	case len(ids) == 0:
		return answer{}, fmt.Errorf("run %s in namespace %s: %w", id, ns, task.ErrNotFound)
	case len(ids) > 1:
		for i := range ids {
			ids[i] = refs[i].Name + "/" + ids[i]
		}
		return answer{}, ambiguous(id, ids)
	}
	if part != "" {
		ids[0] = part
	}
	run, err := s.runOf(c.ctx(), refs[0], ids[0])
	s.tellRun(c, &run)
	return answer{status: http.StatusOK, body: run}, err
}

// cancelRun serves cancel. The run may move from the queue into an inbox, or
// end, while we look: then look again.
func (s *server) cancelRun(c *call) (answer, error) {
	ref, id, err := c.refAndRun()
	if err != nil {
		return answer{}, err
	}
	found, err := s.runOf(c.ctx(), ref, id)
	if err != nil {
		return answer{}, err
	}
	var run task.Run
	err = retryConflict(c.ctx(), func() error {
		run, err = s.cancelOnce(c, ref, found.ID)
		return about(found.ID, err)
	})
	return answer{status: http.StatusOK, body: run}, err
}

// cancelOnce is task.ErrConflict if the run has moved.
func (s *server) cancelOnce(c *call, ref store.Ref, id string) (task.Run, error) {
	run, err := s.Store.CancelQueued(c.ctx(), ref, id, c.actor(), s.Now())
	if !errors.Is(err, task.ErrNotFound) {
		return run, err
	}
	held, err := s.Store.ActiveOf(c.ctx(), ref)
	if err != nil {
		return task.Run{}, err
	}
	for _, h := range held {
		if h.ID == id {
			return s.Store.CancelActive(c.ctx(), h, c.actor())
		}
	}
	run, err = s.runOf(c.ctx(), ref, id)
	if err != nil {
		return task.Run{}, err
	}
	if parent, _, is := task.ParentOf(id); is && run.State == task.Queued {
		return task.Run{}, fail(http.StatusConflict, client.CodeNotRunning, "part %s of task %s has not been given to a node yet: it ends with its run alone", id, ref).
			withField("run").withHint("carillon run cancel " + parent + " ends the run, with all of its parts")
	}
	if !run.State.Final() {
		return task.Run{}, fmt.Errorf("run %s of task %s: %w", id, ref, task.ErrConflict)
	}
	return task.Run{}, fail(http.StatusConflict, client.CodeAlreadyEnded, "run %s of task %s has ended: %s", id, ref, run.State).withField("run")
}
