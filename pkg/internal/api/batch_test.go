package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// line returns a task as a line of a batch.
func line(name, schedule string) string {
	return fmt.Sprintf(`{"name": %q, "schedule": %q, "action": {"noop": {}}}`, name, schedule)
}

// batch sends lines and reads all results.
func (w *world) batch(query string, lines ...string) []client.BatchResult {
	w.t.Helper()
	r := w.do(request{method: "POST", path: "/v1/tasks:batch" + query, body: strings.Join(lines, "\n") + "\n",
		header: map[string]string{"Content-Type": "application/x-ndjson"}})
	if r.status != 200 || r.header.Get("Content-Type") != "application/x-ndjson" {
		w.t.Fatalf("got %d, %v: %s", r.status, r.header, r.body)
	}

	var results []client.BatchResult
	for text := range strings.Lines(r.body) {
		var b client.BatchResult
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()

		if err := d.Decode(&b); err != nil {
			w.t.Fatalf("%v: %s", err, text)
		}

		results = append(results, b)
	}

	return results
}

// said summarizes the results: "line name result code".
func said(results []client.BatchResult) []string {
	var s []string
	for _, r := range results {
		code := ""
		if r.Error != nil {
			code = " " + r.Error.Code
		}
		s = append(s, fmt.Sprintf("%d %s/%s %s%s", r.Line, r.Namespace, r.Name, r.Result, code))
	}

	return s
}

func wantSaid(t *testing.T, results []client.BatchResult, want ...string) {
	t.Helper()
	if got := said(results); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBatch_ABadLineFailsAlone(t *testing.T) {
	w := newWorld(t)
	w.create("same", "@daily")
	same := w.spec("same")
	results := w.batch("", line("a", "@daily"), "", "{nonsense}", same, "  ", `{"name": "b", "schedule": "@nope", "action": {"noop": {}}}`,
		`{"name": "far", "namespace": "other", "schedule": "@every 1h", "action": {"noop": {}}}`, strings.Replace(same, "@daily", "@hourly", 1)+"\r", line("c", "@manual"))
	wantSaid(t, results, "1 default/a created", "3 / failed bad_json", "4 default/same unchanged", "6 default/b failed bad_schedule",
		"7 other/far created", "8 default/same configured", "9 default/c created")

	for _, i := range []int{0, 4, 5, 6} {
		got, err := w.Tasks.Get(t.Context(), results[i].Namespace, results[i].Name)
		if err != nil || got.Revision != results[i].Revision || got.Next != results[i].Next || got.UpdatedBy.String() != w.actor() {
			t.Errorf("%+v, but it reads %+v, %v", results[i], got, err)
		}
	}

	if e := results[3].Error; e.Status != 422 || e.Field != "schedule" || e.Detail == "" {
		t.Errorf("got %+v", e)
	}

	if got, _ := w.Tasks.Get(t.Context(), "default", "same"); got.Generation != 2 || got.Schedule[0] != "@hourly" {
		t.Errorf("got generation %d, %v", got.Generation, got.Schedule)
	}
}

// spec returns the spec of a task as a line.
func (w *world) spec(name string) string {
	w.t.Helper()
	got, err := w.Tasks.Get(w.t.Context(), "default", name)
	must(w.t, err)

	return string(mustJSON(w.t, got.Spec))
}

// A task that a batch changes keeps the same fields as with a single apply.
func TestBatch_ChangesAsApplyDoes(t *testing.T) {
	w := newWorld(t)

	for _, name := range []string{"one", "many"} {
		w.create(name, "@every 1h")
	}

	for _, edit := range []func(*task.Spec){
		func(s *task.Spec) { s.Timeout = task.Duration(time.Minute) },
		func(s *task.Spec) { s.Schedule = task.Schedules{"@every 2h"} },
		func(s *task.Spec) { s.Paused = true },
		func(s *task.Spec) { s.Paused = false },
	} {
		w.clock.advance(10 * time.Minute)
		s := task.Spec{}
		must(t, json.Unmarshal([]byte(w.spec("one")), &s))
		edit(&s)
		_, err := w.Tasks.Apply(t.Context(), s, client.ApplyOptions{})
		must(t, err)
		s.Name = "many"
		wantSaid(t, w.batch("", string(mustJSON(t, s))), "1 default/many configured")
		one, many := w.entry(ref("default", "one")), w.entry(ref("default", "many"))
		many.UID = one.UID
		if a, b := string(mustJSON(t, one)), string(mustJSON(t, many)); a != b {
			t.Errorf("entries differ\n%s\n%s", a, b)
		}
	}

	// An entry that is missing or unreadable is repaired, and only that one.
	must(t, second(w.etcd.Delete(t.Context(), w.store.Keys().Entry(ref("default", "one")))))
	w.put(w.store.Keys().Entry(ref("default", "many")), "rubbish")
	w.create("whole", "@daily")
	wantSaid(t, w.batch("", w.spec("one"), w.spec("many"), w.spec("whole")),
		"1 default/one configured", "2 default/many configured", "3 default/whole unchanged")

	if w.entry(ref("default", "one")).UID == "" || w.entry(ref("default", "many")).UID == "" {
		t.Error("the entries were not mended")
	}
}

func TestBatch_CreateOnlyAndFull(t *testing.T) {
	w := newWorld(t)
	w.create("there", "@daily")
	results := w.batch("?create_only=true&full=true", line("new", "@daily"), line("there", "@hourly"))
	wantSaid(t, results, "1 default/new created", "2 default/there failed exists")

	if results[0].Task == nil || results[0].Task.UID == "" || results[0].Task.Result != client.Created || results[1].Task != nil || results[1].Error.Status != 409 {
		t.Errorf("got %+v", results)
	}

	if got, _ := w.Tasks.Get(t.Context(), "default", "there"); got.Schedule[0] != "@daily" {
		t.Error("it was changed")
	}

	for _, c := range []struct {
		q      request
		status int
		code   string
	}{
		{request{path: "?create_only=yes"}, 422, task.CodeBadValue},
		{request{path: "?dry=true"}, 422, task.CodeUnknown},
		{request{header: map[string]string{"Content-Type": "application/json"}}, 415, client.CodeContentType},
		{request{header: map[string]string{"If-Match": `"1"`}}, 422, task.CodeBadValue},
		{request{noToken: true}, 401, client.CodeUnauthorized},
	} {
		c.q.method, c.q.path, c.q.body = "POST", "/v1/tasks:batch"+c.q.path, line("x", "@daily")
		h := map[string]string{"Content-Type": "application/x-ndjson"}
		maps.Copy(h, c.q.header)

		c.q.header = h
		if r := w.do(c.q); r.status != c.status || r.Code != c.code {
			t.Errorf("%+v: got %d %s", c.q, r.status, r.Code)
		}
	}

	if _, err := w.Tasks.Get(t.Context(), "default", "x"); err == nil {
		t.Error("a refused request wrote")
	}

	wantSaid(t, w.batch(""))
}

func TestBatch_RefusesALongLine(t *testing.T) {
	w := newWorld(t)
	long := withSpec("description", `"`+strings.Repeat("x", 5<<20)+`"`)
	most := line("b", "@daily")
	most += strings.Repeat(" ", 1<<20-len(most))
	wantSaid(t, w.batch("", line("a", "@daily"), long, most, most+" x", line("c", "@daily"), long),
		"1 default/a created", "2 / failed too_large", "3 default/b created", "4 / failed too_large", "5 default/c created", "6 / failed too_large")
}

// Lines with the same name take effect in their order, however far apart they are.
func TestBatch_TheLaterLineWins(t *testing.T) {
	w := newWorld(t)
	var lines []string
	for i := range 300 {
		lines = append(lines, line("twice", fmt.Sprintf("@every %dm", i+1)), line(fmt.Sprintf("other-%d", i%70), "@daily"))
	}

	for i, r := range w.batch("", lines...) {
		want := client.Configured

		switch {
		case i%2 == 0 && i > 0: // every line changes it
		case i < 140:
			want = client.Created
		default:
			want = client.Unchanged
		}

		if r.Line != i+1 || r.Result != want {
			t.Fatalf("line %d: %+v, want %s", i+1, r, want)
		}
	}

	got, err := w.Tasks.Get(t.Context(), "default", "twice")
	if err != nil || got.Schedule[0] != "@every 300m" || got.Generation != 300 {
		t.Errorf("got %v, generation %d, %v", got.Schedule, got.Generation, err)
	}
}

// Of several concurrent batches, each applies all its lines, and the generations of the tasks count every
// change.
func TestBatch_SameNamesAtOnce(t *testing.T) {
	w := newWorldOn(t, kvtest.Start(t)) // each change takes some time, so the batches overlap
	const callers, tasks = 4, 40        // one after the other, where they conflict
	changes := make([]map[string]int, callers)
	var wg sync.WaitGroup

	for n := range callers {
		changes[n] = map[string]int{}
		wg.Go(func() {
			specs := func(yield func(task.Spec) bool) {
				for i := range tasks {
					s := spec(fmt.Sprintf("t%03d", (i+9*n)%tasks), "@daily")
					s.Description = fmt.Sprint("by ", n)
					if !yield(s) {
						return
					}
				}
			}

			for r, err := range w.Tasks.ApplyAll(t.Context(), specs, client.BatchOptions{}) {
				if err == nil {
					err = r.Err()
				}

				if err != nil {
					t.Error(err)
					return
				}

				if r.Result != client.Unchanged {
					changes[n][r.Name]++
				}
			}
		})
	}

	wg.Wait()

	for i := range tasks {
		name := fmt.Sprintf("t%03d", i)
		got, err := w.Tasks.Get(t.Context(), "default", name)
		must(t, err)

		made := 0
		for n := range callers {
			made += changes[n][name]
		}

		if got.Generation != int64(made) || w.entry(ref("default", name)).Generation != got.Generation {
			t.Errorf("%s: %d changes were reported, and the task has generation %d", name, made, got.Generation)
		}
	}
}

func TestBatch_TellsOfEtcdForEachLine(t *testing.T) {
	for code, answer := range map[string]error{client.CodeUnknown: errLost, client.CodeNoSpace: fmt.Errorf("commit: %w", noSpace)} {
		w := newWorld(t)
		w.writes.set(nil, func(kv.Result, error) (kv.Result, error) { return kv.Result{}, answer })
		results := w.batch("", line("a", "@daily"), "{", line("b", "@daily"))
		wantSaid(t, results, "1 default/a failed "+code, "2 / failed bad_json", "3 default/b failed "+code)

		if results[0].Error.ID != "default/a" || results[2].Error.ID != "default/b" || w.writes.committed() != 1 {
			t.Errorf("%+v after %d commits", results, w.writes.committed())
		}
	}

	w := newWorld(t)
	w.writes.set(nil, func(kv.Result, error) (kv.Result, error) { return kv.Result{}, fmt.Errorf("commit: %w", noSpace) })

	var lines []string
	for i := range 200 {
		lines = append(lines, line(fmt.Sprint("t", i), "@daily"))
	}

	if results := w.batch("", lines...); len(results) != len(lines) || w.log.Len() != 1 {
		t.Errorf("%d lines failed, and the log has %d messages", len(results), w.log.Len())
	}

	w = newWorld(t)
	w.badTime = context.DeadlineExceeded
	wantSaid(t, w.batch("", line("a", "@daily")), "1 default/a failed "+client.CodeClock)
}

// open starts a batch whose lines the test sends one by one.
func (w *world) open() (send func(string), results *bufio.Reader, end func()) {
	w.t.Helper()
	in, out := io.Pipe()
	ctx, cancel := context.WithCancel(w.t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", w.url+"/v1/tasks:batch", in)
	must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+w.secret)
	req.Header.Set("Content-Type", "application/x-ndjson")
	answer, answers := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			_ = answers.CloseWithError(err)
			return
		}

		defer res.Body.Close()

		_, err = io.Copy(answers, res.Body)
		_ = answers.CloseWithError(err)
	})

	w.t.Cleanup(func() { cancel(); _ = out.Close(); _ = answer.Close(); wg.Wait() })

	return func(s string) { must(w.t, second(io.WriteString(out, s))) }, bufio.NewReader(answer), cancel
}

// A line is answered when it arrives, not at the end of the request. If the connection breaks, the lines that
// were answered have taken effect.
func TestBatch_AnswersAsLinesArrive(t *testing.T) {
	w := newWorld(t)
	send, results, end := w.open()

	for _, name := range []string{"a", "b", "c"} {
		send(line(name, "@daily") + "\n" + line("half-of-"+name, "@daily")[:20])
		text, err := results.ReadBytes('\n')
		if err != nil || !bytes.Contains(text, []byte(`"created"`)) {
			t.Fatalf("%s, %v", text, err)
		}

		send(line("half-of-"+name, "@daily")[20:] + "\n")
		_, err = results.ReadBytes('\n')
		must(t, err)
	}

	end()
	_, _ = io.Copy(io.Discard, results)
	tasks, err := w.Tasks.List(t.Context(), client.TaskListOptions{})
	must(t, err)

	if len(tasks) != 6 {
		t.Errorf("%d tasks are left of what was answered", len(tasks))
	}
}

// A batch lasts as long as its caller sends lines. It must not continue with a token that has expired or was
// deleted since it began.
func TestBatch_EndsWithItsToken(t *testing.T) {
	w := newWorld(t)
	w.secret = w.token("user:ann", until(w.clock.now().Add(time.Minute)))
	body, send := io.Pipe()
	defer send.Close()

	req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/v1/tasks:batch", body)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+w.secret)
	req.Header.Set("Content-Type", "application/x-ndjson")
	line := func(name string) {
		fmt.Fprintf(send, `{"name": %q, "schedule": "@manual", "action": {"process": {"command": ["true"]}}}`+"\n", name)
	}

	go line("before")
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	defer res.Body.Close()

	answers := bufio.NewScanner(res.Body)
	var got client.BatchResult
	answers.Scan()
	must(t, json.Unmarshal(answers.Bytes(), &got))

	if got.Result != client.Created {
		t.Fatalf("with a valid token: %s", answers.Bytes())
	}

	w.clock.advance(2 * time.Minute)
	line("after")
	answers.Scan()
	got = client.BatchResult{}
	must(t, json.Unmarshal(answers.Bytes(), &got))

	if got.Result != client.Failed || got.Error == nil || got.Error.Status != http.StatusUnauthorized {
		t.Errorf("with an expired token: %s", answers.Bytes())
	}

	if answers.Scan() {
		t.Errorf("the batch continues: %s", answers.Bytes())
	}

	if _, err := w.store.Task(t.Context(), ref("default", "after")); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("the task of the expired token: %v", err)
	}

	if n := w.log.FilterMessage("refused a login").Len(); n != 1 {
		t.Errorf("%d refused logins are logged", n)
	}
}
