package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/logs"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeCluster serves the requests of logs -f and counts them. Its tasks have no runs except those that a test
// announces in events. Each run has written its own id and succeeded.
type fakeCluster struct {
	*httptest.Server
	events chan task.Event

	mu    sync.Mutex
	calls map[string]int
	ids   map[string]int // calls for a run, by its id
}

func newFakeCluster(t *testing.T) *fakeCluster {
	f := &fakeCluster{events: make(chan task.Event), calls: map[string]int{}, ids: map[string]int{}}
	mux := http.NewServeMux()
	count := func(pattern string, serve http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			f.calls[pattern]++
			f.mu.Unlock()

			serve(w, r)
		})
	}

	asJSON := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}

	count("/v1/namespaces/default/runs", func(w http.ResponseWriter, r *http.Request) {
		parent := task.Run{Namespace: "default", Task: "t000", ID: fanID, State: task.Running, FanOut: task.FanOut{Fan: &task.Fan{Count: 3}}}
		part := func(i int, s task.State) task.Run {
			return task.Run{Namespace: "default", Task: "t000", ID: task.PartID(fanID, i), State: s, Attempt: 1, Node: "n1"}
		}

		list := []task.Run{parent}
		if r.URL.Query().Get("parts") == "true" {
			list = append(list, part(0, task.Running))
		}

		if strings.Contains(r.URL.Query().Get("state"), string(task.Paused)) {
			list = append(list, part(2, task.Paused))
		}

		asJSON(w, map[string]any{"items": list})
	})

	const runs = "/v1/namespaces/default/tasks/{name}/runs"
	count(runs, func(w http.ResponseWriter, _ *http.Request) { asJSON(w, map[string]any{"items": []task.Run{}}) })
	count(runs+"/{id}", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.ids[r.PathValue("id")]++
		f.mu.Unlock()

		run := task.Run{Namespace: "default", Task: r.PathValue("name"), ID: r.PathValue("id"), State: task.Succeeded, Attempt: 1, Node: "n1"}
		if run.ID == fanID {
			run.Fan = &task.Fan{Count: 3}
		}

		asJSON(w, run)
	})

	count(runs+"/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "of "+r.PathValue("id")+"\n")
	})

	count("/v1/namespaces/default/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\n\n")
		_ = http.NewResponseController(w).Flush()

		for {
			select {
			case e := <-f.events:
				b, _ := json.Marshal(e)
				fmt.Fprintf(w, "id: %s\ndata: %s\n\n", e.ID, b)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})

	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)

	return f
}

// A hundred tasks are followed with one stream of events. No runs are listed per task, and each run costs two
// calls however many events there are. The runs of a task are printed one after the other.
func TestLogs_FollowAHundredTasksByOneStream(t *testing.T) {
	f := newFakeCluster(t)
	args := []string{"logs", "-f", "--server", f.URL}
	for i := range 100 {
		args = append(args, fmt.Sprintf("t%03d", i))
	}

	ctx, cancel := context.WithCancel(t.Context())
	var out lockedBuffer
	done := make(chan int)
	go func() {
		done <- Main(ctx, args, IO{Out: &out, Err: io.Discard, Env: func(string) string { return "" }})
	}()

	revision := 1
	tell := func(name, run, action string, state task.State) {
		revision++
		f.events <- task.Event{ID: fmt.Sprint(revision), Revision: int64(revision), Kind: task.EventRun, Action: action,
			Namespace: "default", Task: name, Run: run, State: string(state), Attempt: 1, Node: "n1"}
	}

	want := []string{}
	for i := range 60 {
		name, run := fmt.Sprintf("t%03d", i%3), fmt.Sprintf("run-%02d", i)
		tell(name, run, task.ActionQueued, task.Queued)
		tell(name, run, task.ActionDispatched, task.Dispatched)
		tell(name, run, task.ActionStarted, task.Running)
		tell(name, run, task.ActionEnded, task.Succeeded)
		want = append(want, fmt.Sprintf("%s | of %s", name, run))
	}

	tell("another", "run-x", task.ActionStarted, task.Running)
	var lines []string
	for end := time.Now().Add(2 * time.Minute); len(lines) < len(want) && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		lines = strings.Split(strings.TrimSpace(out.String()), "\n")
	}

	cancel()

	if code := <-done; code != failure.ExitInterrupted {
		t.Errorf("ended with %d", code)
	}

	for _, name := range []string{"t000", "t001", "t002"} {
		of := func(list []string) []string {
			return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !strings.HasPrefix(s, name) })
		}

		if got, want := of(lines), of(want); !slices.Equal(got, want) {
			t.Errorf("%s: shown %q, want %q", name, got, want)
		}
	}

	if len(lines) != len(want) {
		t.Errorf("%d lines, want %d", len(lines), len(want))
	}

	const runs = "/v1/namespaces/default/tasks/{name}/runs"
	f.mu.Lock() // a cancelled call may still arrive
	defer f.mu.Unlock()

	for pattern, want := range map[string]int{runs: 100, runs + "/{id}": 60, runs + "/{id}/logs": 60, "/v1/namespaces/default/events": 1} {
		if got := f.calls[pattern]; got > want {
			t.Errorf("%s was called %d times, want %d", pattern, got, want)
		}
	}
}

const fanID = "20261120T200100.000Z-aaaa"

// For very many tasks, one call returns the active runs, including parts. No run with parts is looked up
// separately, which would delay the parts of the last ones.
func TestLogs_OfVeryManyTasksShowPartsByOneCall(t *testing.T) {
	f := newFakeCluster(t)
	args := []string{"logs", "-f", "--server", f.URL}
	for i := range logs.MostListed + 1 {
		args = append(args, fmt.Sprintf("t%03d", i))
	}

	ctx, cancel := context.WithCancel(t.Context())
	var out lockedBuffer
	done := make(chan int)
	go func() {
		done <- Main(ctx, args, IO{Out: &out, Err: io.Discard, Env: func(string) string { return "" }})
	}()

	lines := func() []string { return slices.Sorted(strings.SplitSeq(strings.TrimSpace(out.String()), "\n")) }
	for end := time.Now().Add(2 * time.Minute); len(lines()) < 2 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}

	cancel()
	<-done

	want := []string{"t000[0] | of " + task.PartID(fanID, 0), "t000[2] | of " + task.PartID(fanID, 2)}
	if got := lines(); !slices.Equal(got, want) {
		t.Errorf("shown %q, want %q", got, want)
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	if f.ids[fanID] > 0 || f.calls["/v1/namespaces/default/runs"] != 1 {
		t.Errorf("the run was looked up %d times, and runs were listed %d times", f.ids[fanID], f.calls["/v1/namespaces/default/runs"])
	}
}

// lockedBuffer collects what a command prints.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
