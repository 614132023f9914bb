package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/task"
)

// collector is a server to which a forged node record leads.
type collector struct {
	mu   sync.Mutex
	seen []*http.Request
}

func (c *collector) serve(t *testing.T, answer http.HandlerFunc) (url string) {
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.seen = append(c.seen, r.Clone(r.Context()))
		c.mu.Unlock()

		answer(rw, r)
	}))

	t.Cleanup(s.Close)

	return s.URL
}

func (c *collector) requests() []*http.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*http.Request{}, c.seen...)
}

// asks makes node-a send all kinds of requests to the node that runs the world's run, and returns the errors.
func (w *world) asks(run string) map[string]error {
	ctx := w.t.Context()
	_, board := w.Board.Get(ctx, client.BoardOptions{})
	_, get := w.Runs.Get(ctx, "default", "a", run)
	_, logs := w.Logs.Open(ctx, "default", "a", run, client.LogOptions{})
	_, follow := w.Logs.Follow(ctx, "default", "a", run, client.LogOptions{})
	_, drain := w.Nodes.Drain(ctx, "node-z")
	_, _ = w.Tasks.List(ctx, client.TaskListOptions{Sort: client.SortNext}) // does not fail if one node does not answer

	return map[string]error{"board": board, "run": get, "logs": logs, "follow": follow, "drain": drain}
}

// runningOnNodeZ creates the task a, with a run that node-z has started, and returns the id of the run.
func (w *world) runningOnNodeZ() string {
	w.create("a", "@daily")

	run := id(1, "aaaa")
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node, r.StartedAt = "node-z", task.At(w.clock.now()) })

	return run
}

// The attack: a node record that leads to somebody else's server collects the requests of callers of other
// nodes. No token may arrive there, and it must not be possible to use what arrives at any other node.
//
// Verifies: G37
func TestForward_APlantedNodeGetsNoToken(t *testing.T) {
	w := newWorld(t)
	run := w.runningOnNodeZ()
	var planted collector
	w.present("node-z", planted.serve(t, http.NotFound))
	w.stateTimeout = 100 * time.Millisecond
	w.Client = w.client(w.serve("node-a"))
	victim := w.serve("node-b")

	w.asks(run)
	seen := planted.requests()
	paths := map[string]bool{}
	for _, r := range seen {
		paths[r.URL.Path] = true
		if all := fmt.Sprint(r.Header, r.URL, r.Host, r.Trailer); len(r.Header.Values("Authorization")) > 0 || strings.Contains(all, w.secret) ||
			strings.Contains(all, strings.Split(w.secret, "_")[2]) {
			t.Errorf("%s arrives with %v", r.URL, r.Header)
		}

		stolen := r.Header.Get(statement.Header)
		if stolen == "" {
			t.Errorf("%s arrives without a statement", r.URL)
		}

		// The collector replays what it has received: the same request, and others.
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			for _, path := range []string{r.RequestURI, "/v1/tasks", "/v1/namespaces/default/tasks/a"} {
				req, err := http.NewRequestWithContext(t.Context(), method, victim+path, nil)
				must(t, err)
				req.Header.Set(statement.Header, stolen)
				res, err := http.DefaultTransport.RoundTrip(req)
				must(t, err)
				res.Body.Close()

				if res.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s %s with what was collected: %s", method, path, res.Status)
				}
			}
		}
	}

	if !paths["/v1/attempts"] || !paths["/v1/namespaces/default/tasks/a/runs/"+run+"/logs"] || !paths["/v1/tasks:ask"] || len(paths) != 3 {
		t.Errorf("the planted node was asked for %v", paths)
	}
}

// Verifies: G37
func TestForward_FromANodeWithTLSGoesNowhereWithout(t *testing.T) {
	w := newWorld(t)
	run := w.runningOnNodeZ()
	var plain collector
	w.present("node-z", plain.serve(t, http.NotFound))
	w.onlyTLS, w.stateTimeout = true, 100*time.Millisecond
	w.Client = w.client(w.serve("node-a"))

	errs := w.asks(run)

	if seen := plain.requests(); len(seen) > 0 {
		t.Errorf("%d requests arrive, such as %s", len(seen), seen[0].URL)
	}

	if e := wantError(t, errs["logs"], task.ErrUnavailable, client.CodeNodeAway); !strings.Contains(e.Message, "without TLS") {
		t.Errorf("logs: %v", e)
	}
}

// Verifies: G37
func TestForward_FollowsNoRedirectAndPassesNoneOn(t *testing.T) {
	w := newWorld(t)
	run := w.runningOnNodeZ()
	var planted, elsewhere collector
	to := elsewhere.serve(t, http.NotFound)
	w.present("node-z", planted.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, to+r.URL.Path, http.StatusTemporaryRedirect)
	}))

	w.stateTimeout = 100 * time.Millisecond
	w.Client = w.client(w.serve("node-a"))

	errs := w.asks(run)

	if len(planted.requests()) == 0 || len(elsewhere.requests()) > 0 {
		t.Errorf("%d requests arrive at first, %d elsewhere", len(planted.requests()), len(elsewhere.requests()))
	}

	for _, what := range []string{"logs", "follow"} {
		if e := wantError(t, errs[what], task.ErrUnavailable, client.CodeNodeAway); !strings.Contains(e.Message, "redirect") {
			t.Errorf("%s: %v", what, e)
		}
	}
}

func TestForward_ANodeDoesNotBelieveWhoItDoesNotKnow(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	run := id(1, "aaaa")
	w.ended("a", run, task.Succeeded, func(r *task.Run) { r.Node = "node-b" })
	w.keep("a", run, "1", "out")
	w.strangers = map[string]bool{"node-a": true}
	w.present("node-b", w.serve("node-b"))

	// The caller is not told that its token is wrong, because it is not.
	e := wantError(t, second(w.Logs.Open(t.Context(), "default", "a", run, client.LogOptions{})), task.ErrUnavailable, client.CodeNodeAway)
	if !strings.Contains(e.Message, "not known") {
		t.Errorf("from a stranger: %v", e)
	}

	delete(w.strangers, "node-a")
	r, err := w.Logs.Open(t.Context(), "default", "a", run, client.LogOptions{})
	if got := read(t, r, err); got != "out" {
		t.Errorf("from a node that is known: %q", got)
	}
}

// Verifies: G37
func TestForward_AStatementOpensOnlyWhatNodesAskFor(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	sign := func(method, path string) string {
		s := statement.Statement{From: "node-b", FromInstance: "i-node-b", To: "node-a", ToInstance: "i-node-a", Caller: statement.Caller{Who: "user:ann"}}
		return s.Sign(keyOf("node-b"), statement.Request{Method: method, Path: path}, w.clock.now())
	}

	for _, c := range []struct {
		name, method, path string
		header             map[string]string
		body               string
		want               int
	}{
		{name: "a question about a board", path: "/v1/tasks:ask?question=%7B%22board%22:%7B%22span%22:600000000000,%22limit%22:10%7D%7D", want: 200},
		{name: "the board", path: "/v1/board", want: 403},
		{name: "attempts", path: "/v1/attempts", want: 200},
		{name: "another route that reads", path: "/v1/tasks", want: 403},
		{name: "events", path: "/v1/events", want: 403},
		{name: "a trigger", method: "POST", path: "/v1/namespaces/default/tasks/a/trigger", want: 401},
		{name: "a deletion", method: "DELETE", path: "/v1/namespaces/default/tasks/a", want: 401},
		{name: "beside a token", path: "/v1/attempts", header: map[string]string{"Authorization": "Bearer " + w.secret}, want: 401},
		{name: "with a body", path: "/v1/attempts", body: "{}", want: 401},
		{name: "empty", path: "/v1/attempts", header: map[string]string{statement.Header: "."}, want: 401},
	} {
		if c.method == "" {
			c.method = "GET"
		}

		header := map[string]string{statement.Header: sign(c.method, c.path)}
		for k, v := range c.header {
			header[k] = v
		}

		if r := w.do(request{method: c.method, path: c.path, body: c.body, header: header, noToken: true}); r.status != c.want {
			t.Errorf("%s: %d, want %d: %s", c.name, r.status, c.want, r.body)
		}
	}

	once := map[string]string{statement.Header: sign("GET", "/v1/attempts")}

	for _, want := range []int{200, 401} {
		if r := w.do(request{method: "GET", path: "/v1/attempts", header: once, noToken: true}); r.status != want {
			t.Errorf("the same statement again: %d, want %d", r.status, want)
		}
	}

	late := map[string]string{statement.Header: sign("GET", "/v1/attempts")}
	w.clock.advance(31 * time.Second)

	if r := w.do(request{method: "GET", path: "/v1/attempts", header: late, noToken: true}); r.status != 401 || !strings.Contains(r.body, "differ by 31s") {
		t.Errorf("31 s later: %d %s", r.status, r.body)
	}
}

// The node with the output does not see the token. The node that forwards the request ends it when the token
// becomes invalid.
func TestForward_AFollowerIsCutOffWhenItsTokenIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beat = 20 * time.Millisecond
	w.create("a", "@daily")
	run := id(1, "aaaa")
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-z" })
	var far collector
	w.present("node-z", far.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(rw, "begun\n")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	}))

	w.Client = w.client(w.serve("node-a"))
	r, err := w.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
	must(t, err)
	defer r.Close()

	_, err = io.ReadFull(r, make([]byte, 6))
	must(t, err)

	_, err = w.etcd.Delete(t.Context(), w.store.Keys().Token(strings.Split(w.secret, "_")[1]))
	must(t, err)

	if _, err := io.ReadAll(r); err == nil {
		t.Error("the stream ends as if the attempt had")
	}
}
