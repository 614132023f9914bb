//go:build linux

package cli_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carillonhq/carillon/pkg/task"
)

// reportStatus creates an active run of a task on a node, and passes status lines to node-a: report NODE TASK
// [percent=N] [text=TEXT] [checkpoint=TEXT] [bad=N] [NAME=VALUE...]. The id of the run is in $RUN.
func reportStatus(ts *testscript.TestScript, _ bool, args []string) {
	w, r := worldOf(ts), ref("default", args[1])
	st, err := w.store.Task(context.Background(), r)
	ts.Check(err)
	now := time.Now()
	id := task.RunID(now, st.Task.UID)

	said := task.AttemptStatus{Namespace: "default", Task: args[1], Run: id, Attempt: 1, StatusReport: task.StatusReport{Results: map[string]string{}}}
	for _, arg := range args[2:] {
		k, v, _ := strings.Cut(arg, "=")
		n, _ := strconv.ParseFloat(v, 64)

		if (k == "percent" || k == "text") && said.Progress == nil {
			said.Progress = &task.Progress{At: task.At(now)}
		}

		v = strings.ReplaceAll(v, `\e`, "\x1b")

		switch k {
		case "percent":
			said.Progress.Percent = &n
		case "text":
			said.Progress.Text = v
		case "checkpoint":
			said.Checkpoint = v
		case "bad":
			said.BadLines = int(n)
		default:
			said.Results[k] = v
		}
	}

	w.put(ts, w.store.Keys().Run(args[0], r, id), task.Assigned{Instance: "i1", Generation: 1, Action: task.Action{Noop: &task.Noop{}}, Run: task.Run{
		UID: st.Task.UID, ScheduledTime: task.At(now), CreatedAt: task.At(now), StartedAt: task.At(now), State: task.Running, Trigger: task.TriggerSchedule, Attempt: 1,
	}})
	w.reports.mu.Lock()
	w.reports.said = append(w.reports.said, said)
	w.reports.mu.Unlock()

	ts.Setenv("RUN", id)
}

type statusReports struct {
	mu   sync.Mutex
	said []task.AttemptStatus
}

func (s *statusReports) AttemptStatuses() []task.AttemptStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]task.AttemptStatus{}, s.said...)
}

// CancelAttempt ends any attempt, as its node does while etcd is full.
func (*statusReports) CancelAttempt(context.Context, task.LateCancel) (task.LateCancelled, error) {
	return task.LateCancelled{State: task.Running}, nil
}

func (s *statusReports) AttemptStatus(ns, name, run string) (task.AttemptStatus, bool) {
	for _, said := range s.AttemptStatuses() {
		if said.Namespace == ns && said.Task == name && said.Run == run {
			return said, true
		}
	}

	return task.AttemptStatus{}, false
}
