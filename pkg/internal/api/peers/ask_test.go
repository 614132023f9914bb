package peers_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/task"
)

// network contains the APIs of nodes in memory, by name. A node that is not in it refuses connections.
type network map[string]http.HandlerFunc

// dial connects to a node.
func (n network) dial(_ context.Context, _, address string) (net.Conn, error) {
	name, _, _ := strings.Cut(address, ":")
	handler, ok := n[name]
	if !ok {
		return nil, errors.New("connection refused")
	}

	near, far := net.Pipe()
	go func() { _ = (&http.Server{Handler: handler}).Serve(&singleListener{conn: far}) }()

	return near, nil
}

// singleListener accepts one connection.
type singleListener struct{ conn net.Conn }

func (l *singleListener) Accept() (net.Conn, error) {
	if l.conn == nil {
		return nil, io.EOF
	}

	c := l.conn
	l.conn = nil

	return c, nil
}

func (l *singleListener) Close() error { return nil }

func (l *singleListener) Addr() net.Addr { return &net.UnixAddr{} }

// client returns the client of node n0.
func (n network) client(t *testing.T) *peers.Client {
	t.Helper()

	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}

	return peers.New(peers.Config{Node: "n0", Key: key, Now: time.Now, Dial: n.dial, Log: zap.NewNop()})
}

// answer is the answer of a node.
type answer struct {
	Node string `json:"node"`
}

// nodesNamed returns nodes with addresses.
func nodesNamed(names ...string) (list []task.Node) {
	for _, name := range names {
		list = append(list, task.Node{Name: name, Address: "http://" + name + ":7070"})
	}

	return list
}

// questionWithin returns a question that waits for so long.
func questionWithin(timeout time.Duration) peers.Question[answer] {
	return peers.Question[answer]{
		Caller: httpapi.Caller{Who: "user:ann"}, Path: "/v1/things:ask", Timeout: timeout,
		Values: func(n task.Node) url.Values { return url.Values{"for": {n.Name}} },
		Own:    func(context.Context) (answer, error) { return answer{"n0"}, nil },
		NodeOf: func(a answer) string { return a.Node },
	}
}

// respond returns a handler that answers with a status and a body.
func respond(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestAskAll_EachNodeHasAnAnswerOrAFailure(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		n := network{
			"good": func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/v1/things:ask" || r.FormValue("for") != "good" || r.Header.Get(statement.Header) == "" {
					t.Errorf("%s %s with %v", r.Method, r.URL, r.Header)
				}
				respond(200, `{"node": "good"}`)(w, r)
			},
			"refusing":   respond(403, `{"detail": "the statement is old"}`),
			"rejecting":  respond(401, `what?`),
			"redirect":   respond(307, ""),
			"broken":     respond(500, `{"node": "broken"}`),
			"unreadable": respond(200, `{"node": "unreadable"`),
			"large":      respond(200, `{"node": "large", "more": "`+strings.Repeat("x", 16<<20)+`"}`),
			"other":      respond(200, `{"node": "good"}`),
			"silent":     func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			"stalled": func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, `{"node": "stalled"`)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			},
		}

		nodes := nodesNamed("n0", "good", "refusing", "rejecting", "redirect", "broken", "unreadable", "large", "other", "silent", "stalled", "absent")
		nodes = append(nodes, task.Node{Name: "lost", Address: "ftp://lost"})
		began := time.Now()
		answers, failures := peers.AskAll(t.Context(), n.client(t), nodes, questionWithin(time.Second))

		if d := time.Since(began); d != time.Second {
			t.Errorf("it took %s", d)
		}
		if len(answers) != 2 || answers["n0"].Node != "n0" || answers["good"].Node != "good" {
			t.Errorf("answers: %v", answers)
		}

		want := map[string]string{
			"refusing":   "refusing:7070: it rejects this node: the statement is old",
			"rejecting":  "rejecting:7070: it answered 401 Unauthorized",
			"redirect":   "redirect:7070: it answers with a redirect (307 Temporary Redirect)",
			"broken":     "broken:7070: it answered 500 Internal Server Error",
			"unreadable": "unreadable:7070: it sent an unreadable answer: unexpected EOF",
			"large":      "large:7070: its answer is longer than 16777216 bytes",
			"other":      `other:7070: another node, "good", answers`,
			"silent":     "no answer from silent:7070 within 1s",
			"stalled":    "no answer from stalled:7070 within 1s",
			"absent":     "absent:7070: connection refused",
			"lost":       `it has published an invalid address: "ftp://lost"`,
		}
		for name, text := range want {
			if err := failures[name]; err == nil || err.Error() != text {
				t.Errorf("%s: %v, want %s", name, err, text)
			}
		}
		if len(failures) != len(want) {
			t.Errorf("%d failures, want %d: %v", len(failures), len(want), failures)
		}
	})
}

// A busy node says when it can be asked again. What another node says is limited.
func TestAskAll_BusyNodes(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		n, want := network{}, map[string]time.Duration{
			"250": 250 * time.Millisecond, "1": 50 * time.Millisecond, "": 50 * time.Millisecond, "-5": 50 * time.Millisecond,
			"999999999999999999999": time.Minute, "99999999": time.Minute,
		}
		var names []string
		for ms := range want {
			name := "n" + cmp.Or(ms, "one")
			names = append(names, name)
			n[name] = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(peers.RetryHeader, ms)
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}

		_, failures := peers.AskAll(t.Context(), n.client(t), nodesNamed(names...), questionWithin(time.Second))
		for ms, retry := range want {
			name := "n" + cmp.Or(ms, "one")
			var busy *readmodel.Busy
			if !errors.As(failures[name], &busy) || busy.Node != name || busy.RetryAfter != retry {
				t.Errorf("%q: %v, want %s", ms, failures[name], retry)
			}
		}
	})
}

// What this node answers itself is passed on as it is.
func TestAskAll_OwnFailure(t *testing.T) {
	t.Parallel()

	busy := &readmodel.Busy{Node: "n0", RetryAfter: time.Second}
	q := questionWithin(time.Second)
	q.Own = func(context.Context) (answer, error) { return answer{}, busy }

	if answers, failures := peers.AskAll(t.Context(), network{}.client(t), nodesNamed("n0"), q); len(answers) != 0 || failures["n0"] != error(busy) {
		t.Errorf("%v, %v", answers, failures)
	}
}

func TestAskAll_RefusesAQuestionThatIsTooLong(t *testing.T) {
	t.Parallel()

	q := questionWithin(time.Second)
	q.Values = func(task.Node) url.Values { return url.Values{"names": {strings.Repeat("x,", peers.MaxURI/2)}} }
	n := network{"n1": func(http.ResponseWriter, *http.Request) { t.Error("the question was sent") }}

	_, failures := peers.AskAll(t.Context(), n.client(t), nodesNamed("n1"), q)
	var problem *task.Error
	if !errors.As(failures["n1"], &problem) || problem.Code != task.CodeTooLong {
		t.Errorf("%v", failures["n1"])
	}
}

func TestAskAll_LimitsHowManyAreAskedAtOnce(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		n := network{}
		var names []string
		for i := range 3 * peers.AtOnce {
			name := fmt.Sprint("n", i+1)
			names = append(names, name)
			n[name] = func(w http.ResponseWriter, r *http.Request) {
				if k := now.Add(1); k > most.Load() {
					most.Store(k)
				}
				time.Sleep(10 * time.Millisecond)
				now.Add(-1)
				respond(200, `{"node": "`+name+`"}`)(w, r)
			}
		}

		if answers, failures := peers.AskAll(t.Context(), n.client(t), nodesNamed(names...), questionWithin(time.Second)); len(answers) != len(names) || most.Load() != peers.AtOnce {
			t.Errorf("%d answers, %v, %d at once", len(answers), failures, most.Load())
		}
	})
}

// A fault in one request must end this request, and not the process.
func TestAskAll_PanicsInItsCaller(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var answered atomic.Bool
		n := network{"n1": func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(100 * time.Millisecond)
			answered.Store(true)
			respond(200, `{"node": "n1"}`)(w, r)
		}}

		q := questionWithin(time.Second)
		q.Own = func(context.Context) (answer, error) { panic("impossible") }
		panicked := callgroup.Catch(func() { peers.AskAll(t.Context(), n.client(t), nodesNamed("n0", "n1"), q) })

		if panicked == nil || panicked.Value != "impossible" || !answered.Load() {
			t.Errorf("%v; the other node has answered: %t", panicked, answered.Load())
		}
	})
}
