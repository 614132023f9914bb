package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestMain_DoesWhatItsDaemonCommandsSay: daemon commands are part of the tree, and their errors end the program
// like any others.
func TestMain_DoesWhatItsDaemonCommandsSay(t *testing.T) {
	var out, errs bytes.Buffer
	agent := &cobra.Command{Use: "agent", Short: "Run a node", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return exitCode(3) }}
	code := func(args ...string) int {
		out.Reset()
		errs.Reset()
		return Main(t.Context(), args, IO{In: strings.NewReader(""), Out: &out, Err: &errs}, agent)
	}

	if got := code("agent"); got != 3 || errs.String() != "error: a daemon's\n" {
		t.Errorf("%d, %q", got, errs.String())
	}

	if got := code("agent", "x"); got != failure.ExitUsage {
		t.Errorf("a word too much: %d, %q", got, errs.String())
	}

	if got := code("--help"); got != 0 || !strings.Contains(out.String(), "agent       Run a node") {
		t.Errorf("%d, %q", got, out.String())
	}
}

// TestMain_EndsWhenItIsInterrupted in the middle of a call, with exit code 130.
func TestMain_EndsWhenItIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))

	defer s.Close()

	var out, errs bytes.Buffer
	code := Main(ctx, []string{"task", "list", "--server", s.URL}, IO{Out: &out, Err: &errs, Env: func(string) string { return "" }})
	if code != failure.ExitInterrupted || out.Len() > 0 {
		t.Errorf("%d, %q, %q", code, out.String(), errs.String())
	}
}

// TestCompletion_NeverHangs: a server that accepts connections but does not answer delays completion by no more
// than the limit.
func TestCompletion_NeverHangs(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))

	defer s.Close()
	defer close(release)

	var out, errs bytes.Buffer
	start := time.Now()
	Main(t.Context(), []string{"__complete", "task", "get", "--server", s.URL, ""}, IO{Out: &out, Err: &errs, Env: func(string) string { return "" }})

	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}

	if got := out.String(); got != ":4\n" {
		t.Errorf("offers %q", got)
	}
}

// TestCompletion_FindsTasksBeyondTheFirst: of very many tasks, only those that begin with the typed text are
// requested.
func TestCompletion_FindsTasksBeyondTheFirst(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := client.List[client.Task]{Next: "more"}
		for i := range complete.MaxOffers {
			page.Items = append(page.Items, client.Task{Task: task.Task{Spec: task.Spec{Namespace: "default", Name: fmt.Sprintf("a%04d", i)}}})
		}

		if name, ok := strings.CutPrefix(r.URL.Query().Get("q"), "name:"); ok {
			page = client.List[client.Task]{Items: page.Items[:1]}
			page.Items[0].Name = strings.TrimSuffix(name, "*") + "-found"
		}

		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(page)
	}))

	defer s.Close()

	token := func(name string) string { return map[string]string{"CARILLON_TOKEN": "carillon_x"}[name] }

	for typed, want := range map[string]string{"a0999": "a0999-found\n:4\n", "zz": "zz-found\n:4\n", "z*": ":4\n"} {
		var out, errs bytes.Buffer
		Main(t.Context(), []string{"__complete", "task", "get", "--server", s.URL, typed}, IO{Out: &out, Err: &errs, Env: token, CompleteTimeout: time.Minute})
		if got := out.String(); got != want {
			t.Errorf("%q: offers %q, want %q", typed, got, want)
		}
	}
}

// TestMain_AnInterruptEndsAReadOfStandardInput: one Ctrl-C is enough.
func TestMain_AnInterruptEndsAReadOfStandardInput(t *testing.T) {
	in, typing := io.Pipe()
	defer typing.Close()

	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	done := make(chan int)
	go func() {
		done <- Main(ctx, []string{"apply", "-f", "-"}, IO{In: in, Out: &out, Err: &errs, Env: func(string) string { return "" }})
	}()

	if _, err := typing.Write([]byte("name: ")); err != nil { // the command is reading
		t.Fatal(err)
	}

	cancel()

	select {
	case code := <-done:
		if code != failure.ExitInterrupted || out.Len() > 0 {
			t.Errorf("%d, %q, %q", code, out.String(), errs.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("still there")
	}
}

// TestApply_SaysHowToGoOnWhenTheConnectionBreaks: tasks without an answer are not counted.
func TestApply_SaysHowToGoOnWhenTheConnectionBreaks(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, `{"line": 1, "namespace": "default", "name": "a", "result": "created"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))

	defer s.Close()

	var lines strings.Builder

	for _, name := range []string{"a", "b", "c"} {
		lines.WriteString(`{"name": "` + name + `", "schedule": "@daily", "action": {"noop": {}}}` + "\n")
	}

	for format, want := range map[string]string{output.FormatTable: "created a", output.FormatJSON: `"name": "a"`} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), []string{"apply", "-f", "-", "--server", s.URL, "-o", format},
			IO{In: strings.NewReader(lines.String()), Out: &out, Err: &errs, Env: func(string) string { return "" }})

		if code != failure.ExitUnavailable || !strings.Contains(out.String(), want) || strings.Contains(out.String(), " tasks: ") {
			t.Errorf("%s: %d, %q", format, code, out.String())
		}

		if said := strings.Contains(errs.String(), "applied 1 task; to continue, run the same command again"); said != (format == output.FormatTable) {
			t.Errorf("%s: %q", format, errs.String())
		}
	}
}

type exitCode int

func (e exitCode) Error() string { return "a daemon's" }
func (e exitCode) ExitCode() int { return int(e) }
