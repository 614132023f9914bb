// Package attempts serves what running attempts report in their status files (progress, results and
// checkpoints), and adds it to the runs and boards that the API returns.
//
// No record contains these reports; only the node of an attempt has them in memory. Package attempts requests
// them from that node and waits for at most a second. If the node does not answer, the run contains the reason
// instead.
//
// While etcd is full, no record can ask a node to end an attempt. Then CancelLate asks the node directly.
package attempts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// askTimeout limits how long a request for runs waits for their nodes. A request for a board has already
	// waited for the boards of other nodes, so it uses the shorter boardAskTimeout.
	askTimeout      = 900 * time.Millisecond
	boardAskTimeout = 400 * time.Millisecond
)

const attemptsPath = "/v1/attempts"

const (
	listAbout     = "Lists only the attempts on the node that you ask. To get the report of a run from any node, read the run, or list runs with progress=true."
	ProgressAbout = "The progress and results of an active run come from its node, which may take up to a second."
)

// Source provides what the attempts on this node have reported, and ends them if etcd cannot store their cancels.
type Source interface {
	// AttemptStatus returns the report of a run's attempt, and false if the run has no attempt on this node.
	AttemptStatus(namespace, task, run string) (task.AttemptStatus, bool)
	// AttemptStatuses returns the attempts that have reported something or are paused.
	AttemptStatuses() []task.AttemptStatus
	// CancelAttempt ends an attempt while etcd is full. A final state in the answer means that it has ended before.
	// task.ErrConflict means that nothing was done, because the attempt is not here or etcd accepts writes.
	CancelAttempt(ctx context.Context, c task.LateCancel) (task.LateCancelled, error)
}

// Handlers serve the reports of running attempts. They are safe for concurrent use.
type Handlers struct {
	Store  *store.Store
	Peers  *peers.Client
	Node   string // the name of this node
	Source Source // nil: no attempt runs on this node
	Log    *zap.Logger
}

// Routes returns the operations on running attempts.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "list-attempts", Forwarded: true, Method: get, Path: attemptsPath, Tag: "runs", Summary: "List the status reports of the attempts on this node",
			Description: listAbout, Status: 200, Answer: reflect.TypeFor[client.AttemptStatuses](), Handler: httpapi.Query(h.listAttempts)},
		{ID: "cancel-attempt", Forwarded: true, Method: http.MethodPost, Path: "/v1/attempts/cancel", Tag: "runs", Summary: "End an attempt on this node while etcd is full, for another node",
			Description: cancelAbout, Status: 200, Answer: reflect.TypeFor[client.AttemptCancel](), Errors: []int{409, 504, 507}, Handler: httpapi.Query(h.cancelAttempt)},
	}
}

// attemptsQuery are the parameters of list-attempts.
type attemptsQuery struct {
	Run *string `query:"run" doc:"Only this run, as namespace/task/id, with its results and checkpoint."`
}

// listAttempts serves the reports of the attempts on this node.
func (h *Handlers) listAttempts(c *httpapi.Call, q attemptsQuery) (httpapi.Answer, error) {
	run := ""
	if q.Run != nil {
		if run = *q.Run; strings.Count(run, "/") != 2 {
			return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "run", "%s is not namespace/task/id", task.Quote(run))
		}
	}

	out := client.AttemptStatuses{Node: h.Node, Items: []task.AttemptStatus{}}
	for _, t := range h.ownAttempts(run) {
		if !c.Rights().CanRead(t.Namespace) {
			continue
		}

		if run == "" {
			if t.Progress == nil && !t.Paused {
				continue
			}
			t.Results, t.Checkpoint = nil, "" // omitted from the list, because they can be large
		}

		out.Items = append(out.Items, t)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: out}, nil
}

// mayReport reports whether a run may have a report that no record contains.
func mayReport(r *task.Run) bool { return r.State.Active() && r.Node != "" && !r.StartedAt.IsZero() }

// AddToRun adds the report of a run's attempt to the run. If the node does not answer, it adds the reason.
func (h *Handlers) AddToRun(c *httpapi.Call, r *task.Run) {
	if !mayReport(r) {
		return
	}

	run := runKey{r.Namespace, r.Task, r.ID}
	reports, failures := h.askNodes(c.Context(), nil, []string{r.Node}, run.String(), askTimeout)
	if err := failures[r.Node]; err != nil {
		r.Progress = &task.Progress{Silent: err.Error()}
	}
	if t, ok := reports[r.Node][run]; ok && t.Attempt == r.Attempt {
		t.CopyTo(r)
	}
}

// AddToRuns adds the progress of active runs to the runs. It sends one request to each node.
func (h *Handlers) AddToRuns(c *httpapi.Call, runs []task.Run) {
	names := map[string]bool{}
	for i := range runs {
		if r := &runs[i]; mayReport(r) {
			names[r.Node] = true
		}
	}

	reports, failures := h.askNodes(c.Context(), nil, slices.Sorted(maps.Keys(names)), "", askTimeout)
	for i := range runs {
		r := &runs[i]
		if !mayReport(r) {
			continue
		}

		if r.Progress = reports[r.Node][runKey{r.Namespace, r.Task, r.ID}].Progress; failures[r.Node] != nil {
			r.Progress = &task.Progress{Silent: failures[r.Node].Error()}
		}
	}
}

// AddToBoard adds the progress of a board's runs to the board. It leaves out nodes that did not answer the
// request for the board.
func (h *Handlers) AddToBoard(ctx context.Context, b *task.Board, nodes []task.Node) {
	names := map[string]bool{}
	for _, r := range b.Active {
		names[r.Node] = true
	}
	for _, s := range b.Silent {
		delete(names, s.Node)
	}

	reports, _ := h.askNodes(ctx, nodes, slices.Sorted(maps.Keys(names)), "", boardAskTimeout)
	for i := range b.Active {
		r := &b.Active[i]
		t := reports[r.Node][runKey{r.Namespace, r.Task, r.Run}]
		r.Progress, r.Paused = t.Progress, t.Paused
	}
}

// runKey identifies a run.
type runKey struct{ namespace, task, run string }

// String returns namespace/task/id.
func (k runKey) String() string { return k.namespace + "/" + k.task + "/" + k.run }

// askNodes requests the reports of the attempts on nodes, and returns them by node and run. nodes are the nodes that are
// present; if nil, askNodes reads them. If run is not "", only that run is requested. Each of the names is in one of the
// results. The failures can be shown alone: they name their node.
func (h *Handlers) askNodes(ctx context.Context, nodes []task.Node, names []string, run string, timeout time.Duration) (reports map[string]map[runKey]task.AttemptStatus, failures map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	var unlisted error
	if nodes == nil && slices.ContainsFunc(names, func(name string) bool { return name != h.Node }) {
		if nodes, unlisted = h.Store.Nodes(ctx); unlisted != nil {
			unlisted = errors.New("etcd does not answer")
		}
	}

	absent := map[string]error{}
	asked := slices.DeleteFunc(slices.Clone(nodes), func(n task.Node) bool { return n.Name == h.Node || !slices.Contains(names, n.Name) })
	for _, name := range names {
		switch {
		case name == h.Node:
			asked = append(asked, task.Node{Name: name})
		case unlisted != nil:
			absent[name] = unlisted
		case !slices.ContainsFunc(asked, func(n task.Node) bool { return n.Name == name }):
			absent[name] = fmt.Errorf("node %s is unavailable", name)
		}
	}

	answers, failures := peers.AskAll(ctx, h.Peers, asked, peers.Question[client.AttemptStatuses]{
		Caller: httpapi.CallerOf(ctx), Path: attemptsPath, Timeout: timeout,
		Own: func(context.Context) (client.AttemptStatuses, error) {
			return client.AttemptStatuses{Items: h.ownAttempts(run)}, nil
		},
		Values: func(task.Node) url.Values {
			if run == "" {
				return nil
			}
			return url.Values{"run": {run}}
		},
		NodeOf: func(a client.AttemptStatuses) string { return a.Node },
	})
	for name, err := range failures {
		failures[name] = peers.NodeError(name, err)
	}
	maps.Copy(failures, absent)

	reports = map[string]map[runKey]task.AttemptStatus{}
	for node, a := range answers {
		reports[node] = map[runKey]task.AttemptStatus{}
		for _, t := range a.Items {
			reports[node][runKey{t.Namespace, t.Task, t.Run}] = t
		}
	}

	return reports, failures
}

// ownAttempts returns the reports of this node's attempts, or of one run (namespace/task/id).
func (h *Handlers) ownAttempts(run string) []task.AttemptStatus {
	if h.Source == nil {
		return nil
	}
	if run == "" {
		return h.Source.AttemptStatuses()
	}

	words := strings.Split(run, "/")
	if t, ok := h.Source.AttemptStatus(words[0], words[1], words[2]); ok {
		return []task.AttemptStatus{t}
	}

	return nil
}
