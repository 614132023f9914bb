package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// specs returns n tasks.
func specs(n int) iter.Seq[task.Spec] {
	return func(yield func(task.Spec) bool) {
		for i := range n {
			if !yield(task.Spec{Name: fmt.Sprint("t", i)}) {
				return
			}
		}
	}
}

// answering reads lines and answers the first few.
func answering(few int, then func(w http.ResponseWriter, r *http.Request, lines *bufio.Reader)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines := bufio.NewReader(r.Body)

		for i := range few {
			if _, err := lines.ReadString('\n'); err != nil {
				break
			}
			fmt.Fprintf(w, "{\"line\": %d, \"name\": \"t%d\", \"result\": \"created\"}\n", i+1, i)
			_ = http.NewResponseController(w).Flush()
		}

		then(w, r, lines)
	}
}

func drain(_ http.ResponseWriter, _ *http.Request, lines *bufio.Reader) {
	_, _ = io.Copy(io.Discard, lines)
}

// collectItems reads all results, and the error that ended them.
func collectItems(ctx context.Context, c *client.Client, tasks iter.Seq[task.Spec]) (n int, err error) {
	for _, err := range c.Tasks.ApplyAll(ctx, tasks, client.BatchOptions{}) {
		if err != nil {
			return n, err
		}
		n++
	}

	return n, nil
}

func TestApplyAll_ReadsWhileItSends(t *testing.T) {
	const tasks = 50_000 // more than all buffers on the way can hold
	c := against(t, answering(tasks, drain))
	if n, err := collectItems(t.Context(), c, specs(tasks)); n != tasks || err != nil {
		t.Errorf("%d results, %v", n, err)
	}

	if n, err := collectItems(t.Context(), c, specs(0)); n != 0 || err != nil {
		t.Errorf("of nothing %d results, %v", n, err)
	}
}

func TestApplyAll_TellsWhatItDoesNotKnow(t *testing.T) {
	cut := func(_ http.ResponseWriter, _ *http.Request, lines *bufio.Reader) {
		drain(nil, nil, lines) // otherwise a failed write may be reported before the answers that have arrived
		panic(http.ErrAbortHandler)
	}

	short := func(w http.ResponseWriter, _ *http.Request, lines *bufio.Reader) {
		drain(nil, nil, lines)
		_, _ = io.WriteString(w, `{"line": 3, "na`)
	}

	for what, then := range map[string]func(http.ResponseWriter, *http.Request, *bufio.Reader){"cut": cut, "too few": drain, "short": short} {
		n, err := collectItems(t.Context(), against(t, answering(2, then)), specs(5))
		if n != 2 || !errors.Is(err, task.ErrUnknown) || errors.Is(err, task.ErrUnavailable) {
			t.Errorf("%s: %d results, then %v", what, n, err)
		}
	}

	// An error for a line that was never sent concerns the request body.
	over := func(w http.ResponseWriter, _ *http.Request, lines *bufio.Reader) {
		drain(nil, nil, lines)
		_, _ = io.WriteString(w, `{"line": 3, "result": "failed", "error": {"status": 400, "code": "bad_json", "detail": "early"}}`+"\n")
	}

	n, err := collectItems(t.Context(), against(t, answering(2, over)), specs(2))
	var e *client.Error
	if n != 2 || !errors.As(err, &e) || e.Status != 400 {
		t.Errorf("%d results, then %v", n, err)
	}
}

func TestApplyAll_FailsAsAWhole(t *testing.T) {
	refused := against(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		const problem = `{"status": 401, "code": "unauthorized", "detail": "who?"}`
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Content-Length", strconv.Itoa(len(problem)))
		w.WriteHeader(401)
		_, _ = io.WriteString(w, problem)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the connection is reset after half a second, whether or not the answer was read
	})

	_, err := collectItems(t.Context(), refused, specs(100_000))
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 401 {
		t.Errorf("refused: %v", err)
	}

	page := against(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	if _, err = collectItems(t.Context(), page, specs(1)); !errors.As(err, &e) || e.Code != client.CodeNotCarillon {
		t.Errorf("a page: %v", err)
	}

	away := dial(t, "http://127.0.0.1:1")
	if _, err = collectItems(t.Context(), away, specs(1)); !errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrUnknown) {
		t.Errorf("without a server: %v", err)
	}
}

func TestApplyAll_EndsWhenNothingIsAnsweredAnyMore(t *testing.T) {
	server := serve(t, answering(2, func(_ http.ResponseWriter, r *http.Request, lines *bufio.Reader) {
		drain(nil, nil, lines)
		<-r.Context().Done()
	}))

	// On a busy machine, the first answers may be late; then the test is repeated with more patience.
	for limit := 2 * time.Second; ; limit *= 4 {
		n, err := collectItems(t.Context(), dialFor(t, server, limit), specs(5))
		if !errors.Is(err, task.ErrUnknown) || errors.Is(err, task.ErrUnavailable) || n > 2 || n < 2 && limit > time.Minute {
			t.Fatalf("within %s %d results, then %v", limit, n, err)
		}

		if n == 2 {
			return
		}
	}
}

// The source may be slower than the timeout of a call. If the caller stops reading results, sending stops.
func TestApplyAll_WaitsForItsSourceAndStopsIt(t *testing.T) {
	c := against(t, answering(1000, drain))
	var names []string
	stopped := make(chan struct{})
	source := func(yield func(task.Spec) bool) {
		defer close(stopped)
		for i := 0; yield(task.Spec{Name: fmt.Sprint("t", i)}); i++ {
		}
	}

	for r, err := range c.Tasks.ApplyAll(t.Context(), source, client.BatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}

		if names = append(names, r.Name); len(names) == 3 {
			break
		}
	}

	<-stopped

	if !slices.Equal(names, []string{"t0", "t1", "t2"}) {
		t.Errorf("got %v", names)
	}
}
