package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Measures one rendering of the page Tasks for its viewers, with 50 tasks: every row differs from the one before, or none does.
// The lists are given, so this is the cost of the page alone: the call of the API through HTTP and JSON in this process, the
// templates, and the comparison with what the viewers see.
func BenchmarkRefresh_Tasks(b *testing.B) {
	for _, c := range []struct {
		name    string
		changed bool
	}{{"all rows changed", true}, {"nothing changed", false}} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b)
			lists := []string{listOfTicks(b, w.Clock.Now()), listOfTicks(b, w.Clock.Now())}
			if c.changed {
				lists[1] = listOfTicks(b, w.Clock.Now().Add(time.Second))
			}
			api, n := w.api, 0
			w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/tasks") {
					api.ServeHTTP(rw, r)
					return
				}
				rw.Header().Set("Content-Type", "application/json")
				_, _ = rw.Write([]byte(lists[n%len(lists)]))
			})
			page, v := w.watching(b, "/ui/tasks")

			page.refresh() // hands out the whole state
			v.take()

			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				n++
				w.Clock.Advance(refreshEvery)
				page.refresh()
				if sent := v.take().message != nil; sent != c.changed {
					b.Fatalf("something was sent: %t", sent)
				}
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "us-cpu/op")
		})
	}
}

// cpuTime returns the CPU time that the process has used. Unlike the time that passes, it hardly depends on what else runs.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &used))

	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// watching returns the watch of a page with one viewer. It renders only when a test says so.
func (w *world) watching(tb testing.TB, at string) (*watch, *viewer) {
	tb.Helper()
	who, ok := w.ui.sessionWith(w.as("user:ann").secret)
	if !ok {
		tb.Fatal("no session")
	}

	screen, page := w.ui.screenAt(tb.Context(), at)
	v := &viewer{at: at, screen: screen, page: page, who: who, wake: make(chan struct{}, 1)}
	key := watchKey{at, w.ui.rightsOf(w.ui.Access.View(), who.caller)}

	return &watch{hub: w.ui.hub, key: key, screen: screen, viewers: map[*viewer]struct{}{v: {}}, stop: make(chan struct{})}, v
}

// listOfTicks is the API's list of 50 tasks that have just run, each with ten past runs.
func listOfTicks(tb testing.TB, now time.Time) string {
	tb.Helper()
	var list client.QueryList[client.Task]
	for i := range tasksPerPage {
		s := task.Defaults()
		s.Namespace, s.Name, s.Schedule, s.Action = "default", fmt.Sprintf("load-%02d", i), task.Schedules{"@every 1s"}, task.Action{Noop: &task.Noop{}}
		s.Labels = map[string]string{"team": "data", "env": "prod"}

		at := now.Add(-time.Duration(i) * 10 * time.Millisecond)
		late := int64(i)
		t := client.Task{Task: task.Task{Spec: s, UID: "8f7a", Generation: 1}, Next: task.At(at.Add(time.Second)), State: client.TaskOK}
		t.LastRun = &task.Run{
			ID: task.RunID(at, t.UID), Namespace: s.Namespace, Task: s.Name, UID: t.UID, State: task.Succeeded, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule, Attempt: 1,
			Node: "node-a", Token: 7, CreatedAt: task.At(at), DispatchedAt: task.At(at), StartedAt: task.At(at), EndedAt: task.At(at.Add(time.Millisecond)), LatenessMS: &late,
		}
		for n := range recentRuns {
			t.Recent = append(t.Recent, client.PastRun{ID: task.RunID(at.Add(time.Duration(-n)*time.Second), t.UID), State: task.Succeeded})
		}
		list.Items = append(list.Items, t)
	}
	b, err := json.Marshal(list)
	must(tb, err)

	return string(b)
}
