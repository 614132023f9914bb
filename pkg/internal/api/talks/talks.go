// Package talks has the API's handler of what attempts say of themselves (progress, results), and
// adds it to runs and boards that are shown.
//
// Only the node of an attempt hears it, and it is on no record: that node is asked, for a second
// at most. If it does not answer, the run says so.
package talks

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

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// talkWithin is how long the nodes of runs are waited for that are looked at, and
	// boardTalkWithin those of a board, which has waited for others already.
	talkWithin      = 900 * time.Millisecond
	boardTalkWithin = 400 * time.Millisecond
)

const (
	talksAbout = "Only what the node that is asked hears itself: a run, and lists with progress=true, have it from whatever node."
	TellsAbout = "Of a run that is active, progress and results are asked of its node, for a second at most."
)

// talksQuery are the parameters of what attempts say.
type talksQuery struct {
	Run *string `query:"run" doc:"Only of this run, as namespace/task/id, and with results and checkpoint."`
}

// Source are what the attempts that run on a node say of themselves.
type Source interface {
	// Talk is what a run's attempt says; false if none runs here.
	Talk(namespace, task, run string) (task.Talk, bool)
	// Talks are those that have said anything, or are paused.
	Talks() []task.Talk
}

// listTalks serves what this node hears.
func (h *Handlers) listTalks(c *httpapi.Call, q talksQuery) (httpapi.Answer, error) {
	out := client.Talks{Node: h.Node, Items: []task.Talk{}}
	if q.Run != nil {
		words := strings.Split(*q.Run, "/")
		if len(words) != 3 {
			return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "run", "%s is not namespace/task/id", task.Quote(*q.Run))
		}

		if h.Source != nil {
			if t, ok := h.Source.Talk(words[0], words[1], words[2]); ok {
				out.Items = append(out.Items, t)
			}
		}
	} else if h.Source != nil {
		for _, t := range h.Source.Talks() {
			if t.Progress != nil || t.Paused {
				t.Results, t.Checkpoint = nil, "" // of many, they would be much
				out.Items = append(out.Items, t)
			}
		}
	}

	return httpapi.Answer{Status: http.StatusOK, Body: out}, nil
}

// speaks reports whether a run may have something to say that is on no record.
func speaks(r *task.Run) bool { return r.State.Active() && r.Node != "" && !r.StartedAt.IsZero() }

// AddToRun puts into a run what its attempt says; if its node does not answer, that.
func (h *Handlers) AddToRun(c *httpapi.Call, r *task.Run) {
	if !speaks(r) {
		return
	}

	ctx, cancel := context.WithTimeout(c.Context(), talkWithin)
	defer cancel()

	h.ask(ctx, httpapi.CallerOf(c.Context()), nil, []string{r.Node}, r.Namespace+"/"+r.Task+"/"+r.ID, func(_ string, said []task.Talk, err error) {
		if err != nil {
			r.Progress = &task.Progress{Silent: err.Error()}
		}

		for _, t := range said {
			if t.Attempt == r.Attempt {
				t.Tell(r)
			}
		}
	})
}

// AddToRuns puts into runs how far they are.
func (h *Handlers) AddToRuns(c *httpapi.Call, runs []task.Run) {
	of := map[string][]*task.Run{}
	for i := range runs {
		if r := &runs[i]; speaks(r) {
			of[r.Node] = append(of[r.Node], r)
		}
	}

	ctx, cancel := context.WithTimeout(c.Context(), talkWithin)
	defer cancel()

	h.ask(ctx, httpapi.CallerOf(c.Context()), nil, keysOf(of), "", func(node string, said []task.Talk, err error) {
		all := byRun(said)

		for _, r := range of[node] {
			if r.Progress = all[runKey{r.Namespace, r.Task, r.ID}].Progress; err != nil {
				r.Progress = &task.Progress{Silent: err.Error()}
			}
		}
	})
}

// AddToBoard puts into a board's runs how far they are. Nodes that did not answer
// before are not asked again.
func (h *Handlers) AddToBoard(c *httpapi.Call, b *task.Board, nodes []task.Node) {
	of := map[string][]*task.BoardRun{}
	for i := range b.Active {
		r := &b.Active[i]
		if !slices.ContainsFunc(b.Silent, func(s task.Silence) bool { return s.Node == r.Node }) {
			of[r.Node] = append(of[r.Node], r)
		}
	}

	ctx, cancel := context.WithTimeout(c.Context(), boardTalkWithin)
	defer cancel()

	h.ask(ctx, httpapi.CallerOf(c.Context()), nodes, keysOf(of), "", func(node string, said []task.Talk, _ error) {
		all := byRun(said)
		for _, r := range of[node] {
			t := all[runKey{r.Namespace, r.Task, r.Run}]
			r.Progress, r.Paused = t.Progress, t.Paused
		}
	})
}

type runKey struct{ namespace, task, run string }

func byRun(said []task.Talk) map[runKey]task.Talk {
	m := make(map[runKey]task.Talk, len(said))
	for _, t := range said {
		m[runKey{t.Namespace, t.Task, t.Run}] = t
	}
	return m
}

func keysOf[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// ask asks nodes what their attempts say, until ctx ends; heard is called for one
// after another. nodes: those that are present; nil: they are looked up.
func (h *Handlers) ask(ctx context.Context, who httpapi.Caller, nodes []task.Node, names []string, run string, heard func(node string, said []task.Talk, err error)) {
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
	var g errgroup.Group
	g.SetLimit(peers.AtOnce)

	for _, name := range names {
		g.Go(func() error {
			said, err := h.talksOf(ctx, who, nodes, name, run, err)
			mu.Lock()
			defer mu.Unlock()

			heard(name, said, err)

			return nil
		})
	}

	_ = g.Wait() // which never fails
}

// talksOf asks one node, in the name of who asks this one.
func (h *Handlers) talksOf(ctx context.Context, who httpapi.Caller, nodes []task.Node, name, run string, unlisted error) ([]task.Talk, error) {
	q := url.Values{}

	if run != "" {
		q.Set("run", run)
	}

	if name == h.Node {
		return h.ownTalks(run), nil
	}

	i := slices.IndexFunc(nodes, func(n task.Node) bool { return n.Name == name })
	if i < 0 {
		if unlisted != nil {
			return nil, unlisted
		}
		return nil, fmt.Errorf("node %s is away", name)
	}

	req, err := h.Peers.NewRequest(ctx, who, nodes[i], http.MethodGet, q, "v1", "talks")
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
		return nil, nil // an older version
	default:
		return nil, fmt.Errorf("node %s answered %s", name, res.Status)
	}

	var said client.Talks
	if err := json.NewDecoder(io.LimitReader(res.Body, peers.MaxAnswer)).Decode(&said); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("no whole answer in time")
		}
		return nil, fmt.Errorf("node %s: %w", name, err)
	}

	if said.Node != name {
		return nil, fmt.Errorf("another node, %s, answers at %s", task.Quote(said.Node), req.URL.Host)
	}

	return said.Items, nil
}

func (h *Handlers) ownTalks(run string) []task.Talk {
	if h.Source == nil {
		return nil
	}

	if ns, rest, ok := strings.Cut(run, "/"); ok {
		name, id, _ := strings.Cut(rest, "/")
		if t, ok := h.Source.Talk(ns, name, id); ok {
			return []task.Talk{t}
		}
		return nil
	}

	return h.Source.Talks()
}
