package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// dial opens a connection to the API of a world.
func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })

	return c
}

// serveAnew serves the API with a different configuration of the HTTP server.
func (w *world) serveAnew(configure func(*http.Server)) {
	w.t.Helper()
	w.configure = configure
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)
}

// A caller who is refused must not hold a connection by sending its body slowly. The
// server's own deadline is long here, so it is not what ends the connection.
//
// Verifies: G41
func TestServe_DoesNotWaitForTheBodyOfARefusedRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAnew(func(s *http.Server) { s.ReadTimeout = time.Hour })

	cases := []struct {
		what, head string
		status     int
	}{
		{"no token", "PUT /v1/namespaces/default/tasks/a", 401},
		{"a token that is unknown", "PUT /v1/namespaces/default/tasks/a HTTP/1.1\r\nAuthorization: Bearer carillon_" + strings.Repeat("a", 16) + "_" + strings.Repeat("b", 32), 401},
		{"no route", "POST /nothing", 404},
		{"a method that the route does not have", "POST /healthz", 405},
		{"a batch with the wrong type", "POST /v1/tasks:batch HTTP/1.1\r\nContent-Type: text/plain\r\nAuthorization: Bearer " + w.secret, 415},
		{"a wrong parameter", "POST /v1/tasks:batch?x=1 HTTP/1.1\r\nAuthorization: Bearer " + w.secret, 422},
	}

	// All are sent before any answer is read, because each refusal waits a while for its body.
	conns := make([]net.Conn, len(cases))
	for i, c := range cases {
		if !strings.Contains(c.head, "HTTP/1.1") {
			c.head += " HTTP/1.1"
		}

		conns[i] = w.dial()
		_, err := fmt.Fprintf(conns[i], "%s\r\nHost: x\r\nContent-Length: 200000\r\n\r\n{", c.head)
		must(t, err)
	}

	for i, c := range cases {
		conn := conns[i]
		must(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))

		answers := bufio.NewReader(conn)

		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Errorf("%s: no answer: %v", c.what, err)
			continue
		}

		if res.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", c.what, res.StatusCode, c.status)
		}

		if _, err := io.Copy(io.Discard, res.Body); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the answer does not end: %v", c.what, err)
		}

		if _, err := answers.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is still open: %v", c.what, err)
		}
	}
}

// A client that sends requests and reads no answer must not hold a connection and the
// buffers of its answers.
//
// Verifies: G41
func TestServe_EndsAConnectionWhoseClientNeverReads(t *testing.T) {
	t.Parallel()

	for _, path := range []string{"/openapi.json", "/metrics", "/healthz"} {
		t.Run(path[1:], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			closed := make(chan struct{}, 1)
			w.serveAnew(func(s *http.Server) {
				s.WriteTimeout = 200 * time.Millisecond
				s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
					_ = c.(*net.TCPConn).SetWriteBuffer(4096) // it is soon full
					return ctx
				}

				s.ConnState = func(_ net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						closed <- struct{}{}
					}
				}
			})

			conn := w.dial()
			must(t, conn.(*net.TCPConn).SetReadBuffer(4096))
			written := make(chan struct{})
			go func() {
				defer close(written)
				requests := []byte(strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+w.secret+"\r\n\r\n", 100))

				for { // until the server has closed it
					if _, err := conn.Write(requests); err != nil {
						return
					}
				}
			}()

			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Error("the connection is still open")
			}

			conn.Close()
			<-written
		})
	}
}

// The server's deadlines apply to whole requests. Streams last longer.
//
// Verifies: G41
func TestServe_StreamsOutliveTheDeadlinesOfTheServer(t *testing.T) {
	t.Parallel()
	const deadline = 100 * time.Millisecond
	w := newWorld(t)
	w.beat = 3 * deadline
	w.serveAnew(func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = deadline, deadline })

	req, err := http.NewRequestWithContext(t.Context(), "GET", w.url+"/v1/events", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+w.secret)
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	defer res.Body.Close()

	lines := bufio.NewScanner(res.Body)

	for beats := 0; beats < 3; { // the last one comes long after the deadlines
		if !lines.Scan() {
			t.Fatalf("the stream ended after %d signs of life: %v", beats, lines.Err())
		}

		if lines.Text() == "" {
			beats++
		}
	}

	body, send := io.Pipe()
	req, err = http.NewRequestWithContext(t.Context(), "POST", w.url+"/v1/tasks:batch", body)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+w.secret)
	req.Header.Set("Content-Type", "application/x-ndjson")
	go func() {
		for i := range 3 {
			fmt.Fprintf(send, `{"name": "t%d", "schedule": "@manual", "action": {"process": {"command": ["true"]}}}`+"\n", i)
			time.Sleep(2 * deadline) // the pause is what is tested: nothing arrives during it
		}
		send.Close()
	}()

	res, err = http.DefaultClient.Do(req)
	must(t, err)
	defer res.Body.Close()

	answer, err := io.ReadAll(res.Body)
	if n := strings.Count(string(answer), `"created"`); n != 3 || err != nil {
		t.Errorf("the batch created %d tasks, not 3: %v\n%s", n, err, answer)
	}
}

// Verifies: G41
func TestServe_TellsWhichConnectionsHaveAToken(t *testing.T) {
	w := newWorld(t)
	calls := 0
	w.authentic = func(context.Context, string) { calls++ }
	w.url = w.serve("node-a")

	w.do(request{method: "GET", path: "/healthz", noToken: true})
	w.do(request{method: "GET", path: "/v1/version", noToken: true})
	w.do(request{method: "GET", path: "/v1/version", header: map[string]string{"Authorization": "Bearer carillon_x"}})

	if calls != 0 {
		t.Errorf("%d requests without a token count as authenticated", calls)
	}

	w.do(request{method: "GET", path: "/v1/version"})

	if calls != 1 {
		t.Errorf("%d requests count as authenticated, not one", calls)
	}
}

// A request without a body leaves nothing to read, so its connection is reused.
func TestServe_KeepsTheConnectionOfARequestWithABadQuery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()

	var reused []bool
	trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { reused = append(reused, c.Reused) },
	})

	for range 2 {
		req, err := http.NewRequestWithContext(trace, "GET", w.url+"/v1/tasks?limit=x", nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+w.secret)
		res, err := client.Do(req)
		must(t, err)

		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusUnprocessableEntity {
			t.Fatalf("%s, %v", res.Status, err)
		}

		res.Body.Close()
	}

	if want := []bool{false, true}; !slices.Equal(reused, want) {
		t.Errorf("connections were used again: %v, want %v", reused, want)
	}
}
