package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestTaskStats_SumUpTheHistory(t *testing.T) {
	w := newWorld(t)
	made := w.create("dump", "0 * * * *")
	r := ref("default", "dump")

	if s, err := w.Tasks.Stats(t.Context(), "default", "dump", time.Time{}); err != nil || s.Kept != 0 || s.Runs != 0 || s.Duration != nil || s.SuccessRate != nil || s.Recent == nil {
		t.Errorf("of no runs: %+v, %v", s, err)
	}

	first := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	late := int64(5)
	for i := range 10 {
		at := first.Add(time.Duration(i) * time.Hour)
		run := task.Run{
			UID: made.UID, ScheduledTime: task.At(at), State: task.Succeeded, Trigger: task.TriggerSchedule, Attempt: 1,
			StartedAt: task.At(at), EndedAt: task.At(at.Add(time.Duration(i+1) * time.Second)), LatenessMS: &late,
		}
		if i == 9 {
			run.State, run.Reason, run.Attempt = task.TimedOut, task.ReasonTimeout, 2
		}
		w.put(w.store.Keys().Ended(r, task.RunID(at, made.UID)), run)
	}
	w.put(w.store.Keys().Late(r, task.RunID(first, made.UID), 3), task.Run{State: task.Failed})
	w.put(w.store.Keys().Ended(r, task.RunID(first.Add(time.Minute), "former")), task.Run{UID: "former", State: task.Failed}) // of a deleted task

	all, err := w.Tasks.Stats(t.Context(), "default", "dump", time.Time{})
	if err != nil || all.Runs != 10 || *all.SuccessRate != 0.9 || all.Duration.P50MS != 5000 || all.Duration.MaxMS != 10_000 || all.Lateness.P99MS != 5 ||
		all.Retries != 1 || !all.KeptSince.Equal(first) || all.History.Keep != made.History.Keep || len(all.Recent) != 10 {
		t.Errorf("%+v, %v", all, err)
	}
	if fmt.Sprint(all.Failures) != fmt.Sprint([]client.FailureCount{{State: task.TimedOut, Reason: task.ReasonTimeout, Runs: 1}}) {
		t.Errorf("failures %+v", all.Failures)
	}

	some, err := w.Tasks.Stats(t.Context(), "default", "dump", first.Add(8*time.Hour))
	if err != nil || some.Runs != 2 || *some.SuccessRate != 0.5 || !some.KeptSince.Equal(first) || !some.Since.Equal(first.Add(8*time.Hour)) {
		t.Errorf("of two hours: %+v, %v", some, err)
	}

	if _, err := w.Tasks.Stats(t.Context(), "default", "nothing", time.Time{}); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("of a task that does not exist: %v", err)
	}
	if res := w.do(request{method: "GET", path: "/v1/namespaces/default/tasks/dump/stats?since=soon"}); res.status != 422 || !strings.Contains(res.body, `"since"`) {
		t.Errorf("since soon: %d %s", res.status, res.body)
	}
}

// After a trim, the runs that the history no longer has are counted from the ledger.
func TestTaskStats_CountTheLedger(t *testing.T) {
	w := newWorld(t)
	made := w.create("dump", "0 * * * *")
	first := w.putChunks("dump", made.UID)
	at := first.Add(200 * time.Hour)
	w.put(w.store.Keys().Ended(ref("default", "dump"), task.RunID(at, made.UID)), task.Run{
		UID: made.UID, ScheduledTime: task.At(at), State: task.Succeeded, StartedAt: task.At(at), EndedAt: task.At(at.Add(30 * time.Second)),
	})

	all, err := w.Tasks.Stats(t.Context(), "default", "dump", time.Time{})
	if err != nil || all.Kept != 1 || all.Runs != 35 || all.Outcomes[task.Failed] != 1 || *all.SuccessRate != 34.0/35 || all.Missed[task.ReasonNoOwner] != 40 || all.Duration.Count != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if want := (client.SuccessfulRuns{Count: 34, MeanMS: (48_000 + 9_000 + 30_000) / 34, MaxMS: 30_000, MaxLatenessMS: 12}); all.Successful == nil || *all.Successful != want {
		t.Errorf("successful runs %+v, want %+v", all.Successful, want)
	}
	if all.Ledger == nil || all.Ledger.Runs != 34 || !all.Ledger.Since.Equal(first) || all.Ledger.Approximate {
		t.Errorf("ledger %+v", all.Ledger)
	}

	some, err := w.Tasks.Stats(t.Context(), "default", "dump", first.Add(12*time.Hour))
	if err != nil || some.Runs != 12+10+1 || !some.Ledger.Approximate || !some.Ledger.Since.Equal(first.Add(12*time.Hour)) {
		t.Errorf("since the middle of a span: %+v, %+v, %v", some, some.Ledger, err)
	}
}

// How runs ended is more than what a reader of tasks may read.
func TestTaskStats_NeedTheRightToReadRuns(t *testing.T) {
	w := newWorld(t)
	w.create("dump", "0 * * * *")
	w.role("lister", task.Rule{Verbs: []string{"read"}, Objects: []string{"tasks"}})
	w.bindRole("user:lisa", "lister", "default")

	if res := w.as(w.token("user:lisa"), "GET", "/v1/namespaces/default/tasks/dump/stats", ""); res.status != 403 {
		t.Errorf("%d %s", res.status, res.body)
	}
}
