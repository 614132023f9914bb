package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// node is a server whose calls a test counts.
type node struct {
	url string

	mu   sync.Mutex
	keys []string // the idempotency key of each call
}

// newNode serves h and counts its calls. nil answers each call with an empty object.
func newNode(t *testing.T, h http.HandlerFunc) *node {
	t.Helper()
	if h == nil {
		h = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}")
		}
	}

	n := &node{}
	n.url = serve(t, func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		n.keys = append(n.keys, r.Header.Get(client.IdempotencyKeyHeader))
		n.mu.Unlock()

		h(w, r)
	})

	return n
}

// takeKeys returns the keys of the calls since the last call of takeKeys.
func (n *node) takeKeys() []string {
	n.mu.Lock()
	defer n.mu.Unlock()

	keys := n.keys
	n.keys = nil

	return keys
}

// deadURL is the address of a server that no longer listens.
func deadURL(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()

	return s.URL
}

// cutOff ends the connection without an answer, as a node does that is killed.
func cutOff(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// problem answers with a problem.
func problem(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"code": "`+code+`", "detail": "what"}`)
	}
}

func trigger(c *client.Client, ctx context.Context) error {
	_, err := c.Tasks.Trigger(ctx, "default", "a", nil)
	return err
}

// Whether a call goes to the second of two servers depends on what became of it at the first one: nothing may be done twice.
func TestServers_ACallGoesToTheNextOneOnlyIfNothingIsDoneTwice(t *testing.T) {
	silent := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client leaves
		<-r.Context().Done()
	}

	for _, c := range []struct {
		name  string
		first http.HandlerFunc // nil: nobody listens
		call  func(*client.Client, context.Context) error
		again bool // the second server gets the call
		want  error
	}{
		{"a read, nobody listens", nil, read, true, nil},
		{"a read, the answer is lost", cutOff, read, true, nil},
		{"a read, no answer", silent, read, true, nil},
		{"a read, the node is not ready", problem(503, client.CodeNotReady), read, true, nil},
		{"a read, etcd does not answer", problem(503, client.CodeUnavailable), read, true, nil},
		{"a read, refused", problem(404, client.CodeNotFound), read, false, task.ErrNotFound},
		{"a read, too often", problem(429, client.CodeRateLimited), read, false, task.ErrUnavailable},
		{"a change, nobody listens", nil, write, true, nil},
		{"a change, the answer is lost", cutOff, write, false, task.ErrUnknown},
		{"a change, the node is not ready", problem(503, client.CodeNotReady), write, true, nil},
		{"a change, etcd does not answer", problem(503, client.CodeUnavailable), write, false, task.ErrUnavailable},
		{"a change, the outcome is unknown", problem(504, client.CodeUnknown), write, false, task.ErrUnknown},
		{"a trigger, the answer is lost", cutOff, trigger, true, nil},
		{"a trigger, no answer", silent, trigger, true, nil},
		{"a trigger, the outcome is unknown", problem(504, client.CodeUnknown), trigger, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, second := &node{url: deadURL(t)}, newNode(t, nil)
			if c.first != nil {
				first = newNode(t, c.first)
			}

			cl := dialFor(t, first.url+", "+second.url, time.Second)
			if err := c.call(cl, t.Context()); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("got %v, want %v", err, c.want)
			}

			sent, again := first.takeKeys(), second.takeKeys()
			if (len(again) == 1) != c.again || len(again) > 1 || len(sent) > 1 {
				t.Errorf("the first server got %d calls, and the second one %d", len(sent), len(again))
			}
			if len(sent) == 1 && len(again) == 1 && sent[0] != again[0] {
				t.Errorf("the keys are %q and %q", sent[0], again[0])
			}
		})
	}
}

// The server that answered last gets the next call, so a dead one costs one call, and not each of them.
func TestServers_TheNextCallGoesToTheOneThatAnswered(t *testing.T) {
	first, second := newNode(t, cutOff), newNode(t, nil)
	c := dialFor(t, first.url+","+second.url, time.Minute)
	if c.Server() != first.url || !slices.Equal(c.Servers(), []string{first.url, second.url}) {
		t.Errorf("the servers are %v, the first one is %s", c.Servers(), c.Server())
	}

	// The change fails, but its server is not asked again.
	if err := write(c, t.Context()); !errors.Is(err, task.ErrUnknown) {
		t.Fatal(err)
	}
	for range 3 {
		if err := write(c, t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	if a, b := len(first.takeKeys()), len(second.takeKeys()); a != 1 || b != 3 || c.Server() != second.url {
		t.Errorf("%d and %d calls; the next one goes to %s", a, b, c.Server())
	}
}

func TestServers_AllOfThemAreNamedIfNoneAnswers(t *testing.T) {
	a, b := deadURL(t), deadURL(t)
	c := dialFor(t, a+","+b, time.Minute)

	err := read(c, t.Context())
	if !errors.Is(err, task.ErrUnavailable) || !strings.Contains(err.Error(), a) || !strings.Contains(err.Error(), b) {
		t.Errorf("got %v", err)
	}
}

// The body of a batch is read from an iterator, which cannot be read twice.
func TestServers_ABatchIsSentOnce(t *testing.T) {
	first, second := newNode(t, cutOff), newNode(t, nil)
	c := dialFor(t, first.url+","+second.url, time.Minute)

	for _, err := range c.Tasks.ApplyAll(t.Context(), slices.Values([]task.Spec{{Name: "a"}}), client.BatchOptions{}) {
		if !errors.Is(err, task.ErrUnknown) {
			t.Errorf("got %v", err)
		}
	}
	if n := len(second.takeKeys()); n != 0 {
		t.Errorf("it was sent again %d times", n)
	}
}

// Every server of the list gets the token, so the rules for the token apply to each.
func TestServers_EachMustBeAnAddressThatMayHaveTheToken(t *testing.T) {
	for _, list := range []string{"https://a,", ",https://a", "https://a,,https://b", "https://a ftp://b", "https://a,ftp://b"} {
		if _, err := client.New(client.Config{Server: list}); !errors.Is(err, task.ErrInvalid) {
			t.Errorf("%q: %v", list, err)
		}
	}

	_, err := client.New(client.Config{Server: "https://a,http://192.0.2.1:7070", Token: theToken})
	var e *task.Error
	if !errors.As(err, &e) || e.Code != client.CodeClearText {
		t.Errorf("in clear text: %v", err)
	}
}
