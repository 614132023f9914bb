package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// present writes the record of a present node.
func (w *world) present(name, address string) {
	w.t.Helper()
	w.put(w.store.Keys().Node(name), task.Node{Name: name, Instance: "i-" + name, State: task.NodeReady, Format: store.NewestFormat, Address: address,
		Roles: []string{task.RoleScheduler, task.RoleExecutor}, Slots: 4})
}

func (w *world) keep(name, run string, attempt string, text string) {
	w.spool["default/"+name+"/"+run+"/"+attempt] = text
}

func read(t *testing.T, r io.ReadCloser, err error) string {
	t.Helper()
	must(t, err)
	defer r.Close()

	b, err := io.ReadAll(r)
	must(t, err)

	return string(b)
}

func TestLogs_FromWhateverNode(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	run := id(1, "aaaa")
	w.ended("a", run, task.Failed, func(r *task.Run) {
		r.Attempt = 2
		r.Attempts = []task.Attempt{{Attempt: 1, Node: "node-a", State: task.Failed}}
	})

	long := strings.Repeat("x", 100_000)
	w.keep("a", run, "1", "first\n")
	w.keep("a", run, "2", "one\ntwo\n"+long+"\nthree\n")
	w.present("node-a", w.url)

	other := w.client(w.serve("node-b"))
	for where, c := range map[string]*client.Client{"its node": w.Client, "another node": other} {
		logs := func(o client.LogOptions) string {
			t.Helper()
			r, err := c.Logs.Open(ctx, "default", "a", run, o)
			return read(t, r, err)
		}

		if got, err := c.Logs.Open(ctx, "default", "a", run, client.LogOptions{Attempt: 1}); read(t, got, err) != "first\n" {
			t.Errorf("%s: the first attempt is wrong", where)
		}

		if got := logs(client.LogOptions{}); got != "one\ntwo\n"+long+"\nthree\n" {
			t.Errorf("%s: the latest attempt is %d bytes", where, len(got))
		}

		for tail, want := range map[int]string{1: "three\n", 2: long + "\nthree\n", 3: "two\n" + long + "\nthree\n", 99: "one\ntwo\n" + long + "\nthree\n"} {
			if got := logs(client.LogOptions{Tail: tail}); got != want {
				t.Errorf("%s: the last %d lines are %d bytes, want %d", where, tail, len(got), len(want))
			}
		}

		if got := logs(client.LogOptions{From: int64(len(long)) + 9}); got != "three\n" {
			t.Errorf("%s: from the middle: %.20q", where, got)
		}

		if got := logs(client.LogOptions{From: 1 << 20}); got != "" {
			t.Errorf("%s: from beyond the end: %.20q", where, got)
		}

		wantError(t, second(c.Logs.Open(ctx, "default", "a", run, client.LogOptions{Attempt: 3})), task.ErrNotFound, client.CodeNoLogs)
	}

	delete(w.spool, "default/a/"+run+"/1")

	for _, c := range []*client.Client{w.Client, other} {
		wantError(t, second(c.Logs.Open(ctx, "default", "a", run, client.LogOptions{Attempt: 1})), task.ErrNotFound, client.CodeNoLogs)
	}

	r := w.do(request{method: "GET", path: "/v1/namespaces/default/tasks/a/runs/" + run + "/logs", header: map[string]string{"Range": "bytes=0-2"}})
	if r.status != http.StatusPartialContent || r.body != "one" || r.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("range: %d %q %q", r.status, r.body, r.header.Get("Content-Type"))
	}

	r = w.do(request{method: "GET", path: "/v1/namespaces/default/tasks/a/runs/" + run + "/logs", header: map[string]string{"Range": "bytes=999999999-"}})
	if r.status != http.StatusRequestedRangeNotSatisfiable || r.Field != "Range" {
		t.Errorf("range beyond the end: %d %s", r.status, r.body)
	}
}

func TestLogs_NodeAwayLoopsAndNeverStarted(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	gone, loop, never := id(1, "aaaa"), id(2, "aaaa"), id(3, "aaaa")
	on := func(node string) func(*task.Run) { return func(r *task.Run) { r.Node = node } }
	w.ended("a", gone, task.Succeeded, on("node-gone"))
	w.ended("a", loop, task.Succeeded, on("node-c"))
	w.waiting("a", never, nil)

	e := wantError(t, second(w.Logs.Open(ctx, "default", "a", gone, client.LogOptions{})), task.ErrUnavailable, client.CodeNodeAway)
	if !strings.Contains(e.Message, "node-gone") {
		t.Errorf("away: %v", e)
	}

	w.present("node-gone", "http://127.0.0.1:1") // its record is present, but it does not answer
	wantError(t, second(w.Logs.Open(ctx, "default", "a", gone, client.LogOptions{})), task.ErrUnavailable, client.CodeNodeAway)
	w.present("node-gone", "file:///etc/passwd")
	wantError(t, second(w.Logs.Open(ctx, "default", "a", gone, client.LogOptions{})), task.ErrUnavailable, client.CodeNodeAway)

	w.present("node-c", w.serve("node-b")) // another node answers at that address

	e = wantError(t, second(w.Logs.Open(ctx, "default", "a", loop, client.LogOptions{})), task.ErrUnavailable, client.CodeNodeAway)
	if !strings.Contains(e.Message, `it is for "node-c"`) {
		t.Errorf("loop: %+v", e)
	}

	wantError(t, second(w.Logs.Open(ctx, "default", "a", never, client.LogOptions{})), task.ErrNotFound, client.CodeNoLogs)
	wantError(t, second(w.Logs.Open(ctx, "default", "a", id(9, "aaaa"), client.LogOptions{})), task.ErrNotFound, client.CodeNotFound)
}

// Whether an ended part has printed anything is only known from the record of its run.
func TestLogs_OfAPartThatAreGone(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	run := id(1, "aaaa")
	part := func(i int, bytes int64) task.Part {
		return task.Run{ID: task.PartID(run, i), State: task.Succeeded, Node: "node-a", Attempt: 1, OutputSummary: task.OutputSummary{OutputBytes: bytes}}.AsPart()
	}

	w.ended("a", run, task.Succeeded, func(r *task.Run) {
		r.Node, r.Fan = "", &task.Fan{Count: 2, Need: 2, Parts: []task.Part{part(0, 0), part(1, 5)}}
	})

	if r, err := w.Logs.Open(ctx, "default", "a", task.PartID(run, 0), client.LogOptions{}); read(t, r, err) != "" {
		t.Error("what has printed nothing has output")
	}

	wantError(t, second(w.Logs.Open(ctx, "default", "a", task.PartID(run, 1), client.LogOptions{})), task.ErrNotFound, client.CodeNoLogs)
}

// What the other node sends is forwarded at once, and forwarding ends when the caller disconnects.
func TestLogs_AreStreamed(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	run := id(1, "aaaa")
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-z" })
	ended, seen := make(chan struct{}), make(chan http.Header, 1)
	slow := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Clone()
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(rw, "begun\n")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
		close(ended)
	}))

	t.Cleanup(slow.Close)
	w.present("node-z", slow.URL)
	r, err := w.Logs.Open(ctx, "default", "a", run, client.LogOptions{})
	must(t, err)

	b := make([]byte, 6)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "begun\n" {
		t.Errorf("read %q, %v", b, err)
	}

	must(t, r.Close())

	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the other node's answer continues after the caller has disconnected")
	}

	h := <-seen
	if len(h.Values("Authorization")) > 0 || h.Get(statement.Header) == "" || strings.Contains(fmt.Sprint(h), w.secret) {
		t.Errorf("forwarded with %v", h)
	}
}
