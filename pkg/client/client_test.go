package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestMain(m *testing.M) {
	if address := os.Getenv("CARILLON_TEST_LISTEN"); address != "" {
		runAsServer(address)
		return
	}
	leaktest.Main(m)
}

// against returns a client of a server that answers with h.
func against(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	return dial(t, serve(t, h))
}

// serve returns the address at which h answers.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)

	return s.URL
}

func dial(t *testing.T, server string) *client.Client {
	t.Helper()
	return dialFor(t, server, time.Minute)
}

// dialFor returns a client with this timeout.
func dialFor(t *testing.T, server string, timeout time.Duration) *client.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)

	c, err := client.New(client.Config{Server: server, Token: "carillon_a_b", Timeout: timeout, HTTP: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}

	return c
}

func read(c *client.Client, ctx context.Context) error {
	_, err := c.Tasks.Get(ctx, "default", "a")
	return err
}

func write(c *client.Client, ctx context.Context) error {
	_, err := c.Tasks.Pause(ctx, "default", "a", 0)
	return err
}

func TestNew_RefusesWhatIsNoServer(t *testing.T) {
	for _, server := range []string{"ftp://a", "http://", "http://a?x=1", "http://user:pw@a", "http://a b", "http://a#x", "://", "unix://", "unix://a", "unix:///a/../b"} {
		if _, err := client.New(client.Config{Server: server}); !errors.Is(err, task.ErrInvalid) {
			t.Errorf("%s: %v", server, err)
		} else if strings.Contains(err.Error(), "pw") {
			t.Errorf("the error contains the password: %v", err)
		}
	}

	for server, want := range map[string]string{
		"": client.DefaultServer, "a:7070": "https://a:7070", "127.0.0.1:7070": "http://127.0.0.1:7070", "localhost:7070": "http://localhost:7070", "[::1]:7070": "http://[::1]:7070",
		"127.0.0.1.example.org:1": "https://127.0.0.1.example.org:1", "localhost.example.org": "https://localhost.example.org", "unix:///run/x.sock": "unix:///run/x.sock",
		"https://a/": "https://a", "http://a:1/cell": "http://a:1/cell",
	} {
		c, err := client.New(client.Config{Server: server})
		if err != nil || c.Server() != want {
			t.Errorf("%q: %v, want %s", server, err, want)
		}
	}

	if _, err := client.New(client.Config{Token: "a\nb"}); !errors.Is(err, task.ErrInvalid) {
		t.Errorf("a token of two lines: %v", err)
	}
}

func TestNobodyListens_IsUnavailable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	c := dial(t, "http://"+l.Addr().String())
	_ = l.Close()

	for what, call := range map[string]func(*client.Client, context.Context) error{"read": read, "write": write} {
		err := call(c, t.Context())
		var e *client.Error
		if !errors.As(err, &e) || !errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrUnknown) ||
			!strings.Contains(e.Message, c.Server()) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// deadline is a context whose deadline passes at an event.
type deadline struct {
	context.Context
	passed chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.passed }

func (d deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A write whose answer is lost may have been executed, so it is sent only once.
func TestAnswerLost(t *testing.T) {
	var calls atomic.Int32
	cut := against(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	})

	if err := write(cut, t.Context()); !errors.Is(err, task.ErrUnknown) || errors.Is(err, task.ErrUnavailable) {
		t.Errorf("write: %v", err)
	}

	if n := calls.Load(); n != 1 {
		t.Errorf("written %d times", n)
	}

	if err := read(cut, t.Context()); !errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrUnknown) {
		t.Errorf("read: %v", err)
	}

	arrived := make(chan struct{})
	arrives := sync.OnceFunc(func() { close(arrived) })
	slow := against(t, func(_ http.ResponseWriter, r *http.Request) {
		arrives()
		<-r.Context().Done()
	})

	if err := write(slow, deadline{t.Context(), arrived}); !errors.Is(err, task.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("slow write: %v", err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	if err := read(slow, ctx); !errors.Is(err, task.ErrUnavailable) || !strings.Contains(err.Error(), "in time") {
		t.Errorf("slow read: %v", err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	cancel()

	if err := read(slow, ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

func TestNotCarillon(t *testing.T) {
	for what, h := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello</html>") },
		"other JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `["x"]`)
		},
		"another 404": http.NotFound,
		"a problem of somebody else's": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"title": "no"}`)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/login" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/login", http.StatusFound)
		},
	} {
		c := against(t, h)

		for _, call := range []func(*client.Client, context.Context) error{read, write} {
			err := call(c, t.Context())
			var e *client.Error
			if !errors.As(err, &e) || e.Code != client.CodeNotCarillon || !strings.Contains(e.Message, "is not a Carillon server") {
				t.Errorf("%s: %v", what, err)
			}
		}

		if _, err := c.Logs.Open(t.Context(), "default", "a", "x", client.LogOptions{}); err == nil && what != "a page" {
			t.Errorf("%s: logs were read", what)
		}
	}
}

func TestProxyOnTheWay(t *testing.T) {
	for _, status := range []int{502, 503, 504} {
		c := against(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "upstream", status) })
		if err := read(c, t.Context()); !errors.Is(err, task.ErrUnavailable) {
			t.Errorf("%d: read: %v", status, err)
		}

		if err := write(c, t.Context()); !errors.Is(err, task.ErrUnknown) {
			t.Errorf("%d: write: %v", status, err)
		}
	}
}

func TestProblems_AreErrors(t *testing.T) {
	all := []error{task.ErrNotFound, task.ErrExists, task.ErrConflict, task.ErrStale, task.ErrInvalid, task.ErrUnavailable, task.ErrUnknown}

	for _, c := range []struct {
		status int
		code   string
		is     error
	}{
		{400, task.CodeBadJSON, task.ErrInvalid},
		{401, client.CodeUnauthorized, nil},
		{403, client.CodeForbidden, nil},
		{404, client.CodeNotFound, task.ErrNotFound},
		{409, client.CodeExists, task.ErrExists},
		{409, client.CodeConflict, task.ErrConflict},
		{409, client.CodeAlreadyEnded, task.ErrConflict},
		{412, client.CodeStale, task.ErrStale},
		{413, client.CodeTooLarge, task.ErrInvalid},
		{415, client.CodeContentType, task.ErrInvalid},
		{422, task.CodeBadSchedule, task.ErrInvalid},
		{500, client.CodeInternal, nil},
		{503, client.CodeUnavailable, task.ErrUnavailable},
		{504, client.CodeUnknown, task.ErrUnknown},
		{507, client.CodeNoSpace, task.ErrUnavailable},
	} {
		server := against(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, `{"status": 1, "code": "`+c.code+`", "detail": "what", "field": "f", "hint": "h", "id": "i"}`)
		})

		err := write(server, t.Context())
		var e *client.Error
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || e.Field != "f" || e.Hint != "h" || e.ID != "i" || err.Error() != "f: what" {
			t.Errorf("%d %s: %+v", c.status, c.code, err)
		}

		for _, target := range all {
			if errors.Is(err, target) != (target == c.is) {
				t.Errorf("%d %s: is %v: %v", c.status, c.code, target, errors.Is(err, target))
			}
		}
	}
}

func TestNamesAreCheckedBeforeAnythingIsSent(t *testing.T) {
	c := against(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("sent: %s", r.URL) })
	ctx := t.Context()

	for _, name := range []string{"", "..", "a/b", "A", "a?x=1", "a%2f"} {
		_, err := c.Tasks.Get(ctx, "default", name)
		_, err2 := c.Tasks.Get(ctx, name, "a")
		_, err3 := c.Nodes.Get(ctx, name)
		_, err4 := c.Tasks.Create(ctx, name, task.Spec{})
		for _, err := range []error{err, err2, err3, err4} {
			if !errors.Is(err, task.ErrInvalid) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}

	for _, id := range []string{"", "..", "a/b"} {
		if _, err := c.Runs.Get(ctx, "default", "a", id); !errors.Is(err, task.ErrInvalid) {
			t.Errorf("run %q: %v", id, err)
		}
	}

	if _, err := c.Runs.Find(ctx, "", "x"); !errors.Is(err, task.ErrInvalid) {
		t.Errorf("a run in no namespace: %v", err)
	}
}

func TestAll_StopsReadingWhenTheCallerDoes(t *testing.T) {
	var pages atomic.Int32
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		pages.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"items": [{"name": "a"}, {"name": "b"}], "next": "more"}`)
	})

	n := 0
	for _, err := range c.Tasks.All(t.Context(), client.TaskListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}

		if n++; n == 3 {
			break
		}
	}

	if pages.Load() != 2 {
		t.Errorf("%d pages were read for 3 items", pages.Load())
	}

	tasks, err := c.Tasks.List(t.Context(), client.TaskListOptions{Limit: 5})
	if err != nil || len(tasks) != 5 {
		t.Errorf("a limit of 5: %d tasks, %v", len(tasks), err)
	}
}

// A task has the same defaults, whether it is created once or with an idempotency key.
func TestCreateOnce_SendsTheDefaultsOfCreate(t *testing.T) {
	var bodies []string
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(b))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "{}")
	})

	spec := task.Spec{Name: "a", Schedule: task.Schedules{"@daily"}}
	if _, err := c.Tasks.Create(t.Context(), "default", spec); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Tasks.CreateOnce(t.Context(), "default", spec, "k"); err != nil {
		t.Fatal(err)
	}

	if len(bodies) != 2 || bodies[0] != bodies[1] || !strings.Contains(bodies[1], `"timezone":"UTC"`) {
		t.Errorf("got %q", bodies)
	}
}
