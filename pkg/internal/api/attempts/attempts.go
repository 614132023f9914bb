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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// askTimeout limits how long a request for runs waits for their nodes. A request for a board has already
	// waited for the boards of other nodes, so it uses the shorter boardAskTimeout.
	askTimeout      = 900 * time.Millisecond
	boardAskTimeout = 400 * time.Millisecond
)

const (
	listAbout     = "Lists only the attempts on the node that you ask. To get the report of a run from any node, read the run, or list runs with progress=true."
	ProgressAbout = "The progress and results of an active run come from its node, which may take up to a second."
)

// attemptsQuery are the parameters of list-attempts.
type attemptsQuery struct {
	Run *string `query:"run" doc:"Only this run, as namespace/task/id, with its results and checkpoint."`
}

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

// listAttempts serves the reports of the attempts on this node.
func (h *Handlers) listAttempts(c *httpapi.Call, q attemptsQuery) (httpapi.Answer, error) {
	out := client.AttemptStatuses{Node: h.Node, Items: []task.AttemptStatus{}}
	if q.Run != nil {
		words := strings.Split(*q.Run, "/")
		if len(words) != 3 {
			return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "run", "%s is not namespace/task/id", task.Quote(*q.Run))
		}

		if h.Source != nil && c.Rights().CanRead(words[0]) {
			if t, ok := h.Source.AttemptStatus(words[0], words[1], words[2]); ok {
				out.Items = append(out.Items, t)
			}
		}
	} else if h.Source != nil {
		for _, t := range h.Source.AttemptStatuses() {
			if (t.Progress != nil || t.Paused) && c.Rights().CanRead(t.Namespace) {
				t.Results, t.Checkpoint = nil, "" // omitted from the list, because they can be large
				out.Items = append(out.Items, t)
			}
		}
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

	ctx, cancel := context.WithTimeout(c.Context(), askTimeout)
	defer cancel()

	h.askNodes(ctx, httpapi.CallerOf(c.Context()), nil, []string{r.Node}, r.Namespace+"/"+r.Task+"/"+r.ID, func(_ string, statuses []task.AttemptStatus, err error) {
		if err != nil {
			r.Progress = &task.Progress{Silent: err.Error()}
		}

		for _, t := range statuses {
			if t.Attempt == r.Attempt {
				t.CopyTo(r)
			}
		}
	})
}

// AddToRuns adds the progress of active runs to the runs. It sends one request to each node.
func (h *Handlers) AddToRuns(c *httpapi.Call, runs []task.Run) {
	of := map[string][]*task.Run{}
	for i := range runs {
		if r := &runs[i]; mayReport(r) {
			of[r.Node] = append(of[r.Node], r)
		}
	}

	ctx, cancel := context.WithTimeout(c.Context(), askTimeout)
	defer cancel()

	h.askNodes(ctx, httpapi.CallerOf(c.Context()), nil, keysOf(of), "", func(node string, statuses []task.AttemptStatus, err error) {
		all := byRun(statuses)

		for _, r := range of[node] {
			if r.Progress = all[runKey{r.Namespace, r.Task, r.ID}].Progress; err != nil {
				r.Progress = &task.Progress{Silent: err.Error()}
			}
		}
	})
}

// AddToBoard adds the progress of a board's runs to the board. It leaves out nodes that did not answer the
// request for the board.
func (h *Handlers) AddToBoard(c *httpapi.Call, b *task.Board, nodes []task.Node) {
	of := map[string][]*task.BoardRun{}
	for i := range b.Active {
		r := &b.Active[i]
		if !slices.ContainsFunc(b.Silent, func(s task.Silence) bool { return s.Node == r.Node }) {
			of[r.Node] = append(of[r.Node], r)
		}
	}

	ctx, cancel := context.WithTimeout(c.Context(), boardAskTimeout)
	defer cancel()

	h.askNodes(ctx, httpapi.CallerOf(c.Context()), nodes, keysOf(of), "", func(node string, statuses []task.AttemptStatus, _ error) {
		all := byRun(statuses)
		for _, r := range of[node] {
			t := all[runKey{r.Namespace, r.Task, r.Run}]
			r.Progress, r.Paused = t.Progress, t.Paused
		}
	})
}

// runKey identifies a run.
type runKey struct{ namespace, task, run string }

// byRun indexes reports by their run.
func byRun(statuses []task.AttemptStatus) map[runKey]task.AttemptStatus {
	m := make(map[runKey]task.AttemptStatus, len(statuses))
	for _, t := range statuses {
		m[runKey{t.Namespace, t.Task, t.Run}] = t
	}
	return m
}

// keysOf returns the keys of a map in any order.
func keysOf[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// askNodes requests the reports of the attempts on nodes, until ctx ends, and calls heard for each node. The calls
// of heard do not overlap. nodes are the nodes that are present; if nil, askNodes reads them. If run is not "", only
// that run is requested.
func (h *Handlers) askNodes(ctx context.Context, who httpapi.Caller, nodes []task.Node, names []string, run string, heard func(node string, statuses []task.AttemptStatus, err error)) {
	if len(names) == 0 {
		return
	}

	var err error
	if nodes == nil && (len(names) > 1 || names[0] != h.Node) {
		if nodes, err = h.Store.Nodes(ctx); err != nil {
			err = errors.New("etcd does not answer")
		}
	}

	var mu sync.Mutex
	g := callgroup.New()
	g.SetLimit(peers.AtOnce)

	for _, name := range names {
		g.Go(func() error {
			statuses, err := h.askNode(ctx, who, nodes, name, run, err)
			mu.Lock()
			defer mu.Unlock()

			heard(name, statuses, err)

			return nil
		})
	}

	_ = g.Wait() // the functions return no errors
}

// askNode requests the reports of one node on behalf of the caller. unlisted is the error with which the list
// of nodes could not be read.
func (h *Handlers) askNode(ctx context.Context, who httpapi.Caller, nodes []task.Node, name, run string, unlisted error) ([]task.AttemptStatus, error) {
	q := url.Values{}

	if run != "" {
		q.Set("run", run)
	}

	if name == h.Node {
		return h.ownAttempts(run), nil
	}

	i := slices.IndexFunc(nodes, func(n task.Node) bool { return n.Name == name })
	if i < 0 {
		if unlisted != nil {
			return nil, unlisted
		}
		return nil, fmt.Errorf("node %s is unavailable", name)
	}

	req, err := h.Peers.NewRequest(ctx, who, nodes[i], http.MethodGet, q, "v1", "attempts")
	if err != nil {
		return nil, err
	}

	res, err := h.Peers.RoundTrip(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("no answer in time")
		}
		return nil, fmt.Errorf("node %s: %w", name, err)
	}

	defer res.Body.Close()

	if err := peers.Refusal(res); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}

	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil // an older version of Carillon without this operation
	default:
		return nil, fmt.Errorf("node %s answered %s", name, res.Status)
	}

	var answer client.AttemptStatuses
	if err := json.NewDecoder(io.LimitReader(res.Body, peers.MaxAnswer)).Decode(&answer); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("no complete answer in time")
		}
		return nil, fmt.Errorf("node %s: %w", name, err)
	}

	// The address may meanwhile belong to another node, whose answer must not be shown for this one.
	if answer.Node != name {
		return nil, fmt.Errorf("another node, %s, answers at %s", task.Quote(answer.Node), req.URL.Host)
	}

	return answer.Items, nil
}

// ownAttempts returns the reports of this node's attempts, or of one run (namespace/task/id).
func (h *Handlers) ownAttempts(run string) []task.AttemptStatus {
	if h.Source == nil {
		return nil
	}

	if ns, rest, ok := strings.Cut(run, "/"); ok {
		name, id, _ := strings.Cut(rest, "/")
		if t, ok := h.Source.AttemptStatus(ns, name, id); ok {
			return []task.AttemptStatus{t}
		}
		return nil
	}

	return h.Source.AttemptStatuses()
}
