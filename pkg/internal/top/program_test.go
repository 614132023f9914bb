package top

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// server answers like an agent with one task, and can be unavailable. It is the transport of its own client, so
// no network is involved.
type server struct {
	url string

	mu     sync.Mutex
	away   bool
	asked  int
	output string
	state  task.State
	did    []string
}

func (s *server) client(t *testing.T) *client.Client {
	t.Helper()

	c, err := client.New(client.Config{Server: s.url, HTTP: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}

	return c
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/board", s.serveBoard)
	mux.HandleFunc("GET /v1/namespaces/{namespace}/tasks/{task}/runs/{run}", s.serveRun)
	mux.HandleFunc("GET /v1/namespaces/{namespace}/tasks/{task}/runs/{run}/logs", s.serveLogs)
	mux.HandleFunc("POST /v1/namespaces/{namespace}/tasks/{task}/trigger", s.serveTrigger)

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, r)

	return answer.Result(), nil
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// boards returns how often the board was requested.
func (s *server) boards() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *server) serveBoard(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.asked++; s.away {
		writeJSON(w, http.StatusServiceUnavailable, "application/problem+json",
			client.Problem{Status: http.StatusServiceUnavailable, Code: client.CodeUnavailable, Detail: s.url + " is away"})
		return
	}

	b := busy()
	b.Node = s.url
	b.Nodes[1].Address = "http://b"
	b.Nodes = b.Nodes[:2]
	b.Nodes[0].Address = "http://a"
	writeJSON(w, http.StatusOK, "application/json", b)
}

func (s *server) serveRun(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	run := task.Run{Namespace: r.PathValue("namespace"), Task: r.PathValue("task"), ID: r.PathValue("run"), State: s.state, Attempt: 1, Node: "n1"}
	writeJSON(w, http.StatusOK, "application/json", run)
}

// serveLogs answers with the output, without the part that the reader already has.
func (s *server) serveLogs(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(s.output))
}

func (s *server) serveTrigger(w http.ResponseWriter, r *http.Request) {
	s.set(func() { s.did = append(s.did, "trigger "+r.PathValue("namespace")+"/"+r.PathValue("task")) })
	writeJSON(w, http.StatusOK, "application/json", client.Triggered{})
}

// paper is a terminal for tests.
type paper struct {
	keys chan Message
	mu   sync.Mutex
	last string
}

func (p *paper) Draw(pic Picture) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = pic.Text()
}

func (p *paper) Messages() <-chan Message { return p.keys }

// reads waits until nothing happens any more, and looks for words on the screen.
func (p *paper) reads(t *testing.T, words string, there bool) {
	t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()

	if strings.Contains(p.last, words) != there {
		t.Errorf("%q is there: %t, want %t\n%s", words, !there, there, p.last)
	}
}

func TestProgram_IsAScreenThatIsKeptUpToDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &server{url: "http://a", state: task.Running, output: "one\n"}, &server{url: "http://b"}
		tty := &paper{keys: make(chan Message)}
		p := Program{Client: a.client(t), Model: New(Config{Namespace: "default"}), Now: time.Now, Dial: func(url string) (*client.Client, error) {
			if url != "http://b" {
				return nil, errors.New("unknown")
			}
			return b.client(t), nil
		}}

		end := make(chan error)
		go func() { end <- p.Run(t.Context(), tty) }()
		tty.reads(t, "100,012 tasks", true)
		before := a.boards()
		time.Sleep(10 * time.Second)
		synctest.Wait()

		if n := a.boards() - before; n < 9 || n > 11 {
			t.Errorf("in 10 s the board was asked for %d times", n)
		}

		// Logs grow while they are shown.
		for _, k := range []string{"3", "l"} {
			tty.keys <- Key(k)
		}

		tty.reads(t, " one\n", true)
		a.set(func() { a.output += "two\n" })
		time.Sleep(time.Second)
		tty.reads(t, " two\n", true)
		a.set(func() { a.output, a.state = a.output+"the end\n", task.Succeeded })
		time.Sleep(time.Second)
		tty.reads(t, " the end\n", true)
		tty.reads(t, "succeeded", true)

		// A change happens after a confirmation.
		for _, k := range []string{"esc", "t", "y"} {
			tty.keys <- Key(k)
		}

		tty.reads(t, "triggered import-0", true)
		a.mu.Lock()
		if len(a.did) != 1 || a.did[0] != "trigger default/import-0" {
			t.Errorf("it did %q", a.did)
		}
		a.mu.Unlock()

		// If the server becomes unavailable, another one is asked, and the screen stays.
		a.set(func() { a.away = true })
		b.set(func() { b.away = true })
		time.Sleep(10 * time.Second)
		tty.reads(t, "is away", true)
		tty.reads(t, "100,012 tasks", true)
		b.set(func() { b.away = false })
		time.Sleep(10 * time.Second)
		tty.reads(t, "is away", false)
		n := a.boards()
		time.Sleep(5 * time.Second)
		synctest.Wait()

		if a.boards() != n {
			t.Error("it turns back to the server that is away")
		}

		tty.keys <- Key("q")

		if err := <-end; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestProgram_EndsWithItsContextAndItsTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tty := &paper{keys: make(chan Message)}
		run := func() error {
			p := Program{Client: (&server{url: "http://a"}).client(t), Model: New(Config{}), Now: time.Now}
			return p.Run(ctx, tty)
		}

		time.AfterFunc(3*time.Second, cancel)

		if err := run(); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}

		ctx = t.Context()
		time.AfterFunc(3*time.Second, func() { close(tty.keys) })

		if err := run(); err == nil {
			t.Error("without a terminal it ended well")
		}
	})
}
