//go:build linux

package cli_test

import (
	"context"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carillonhq/carillon/pkg/task"
)

// active puts a run into the inbox of node-a, which does not handle it: active TASK TICK STATE [by=WHO, who
// paused it]. Its id is in RUN.
func active(ts *testscript.TestScript, _ bool, args []string) {
	w, r := worldOf(ts), ref("default", args[0])
	tick, err := time.Parse(time.RFC3339, args[1])
	ts.Check(err)
	t, err := w.store.Task(context.Background(), r)
	ts.Check(err)
	at, id := task.At(tick), task.RunID(tick, t.Task.UID)
	run := task.Assigned{Instance: "i", Generation: 1, Action: t.Task.Action, KillGrace: t.Task.KillGrace, Run: task.Run{UID: t.Task.UID, ScheduledTime: at,
		State: task.State(args[2]), Trigger: task.TriggerSchedule, Owner: "node-a", Attempt: 1, CreatedAt: at, DispatchedAt: at, StartedAt: at}}
	if len(args) > 3 {
		_, by, _ := strings.Cut(args[3], "by=")
		run.PauseRequested, run.PausedBy = true, task.NewActor(by)
		run.PausedAt = task.At(tick.Add(time.Minute))
	}

	w.put(ts, w.store.Keys().Run("node-a", r, id), run)
	ts.Setenv("RUN", id)
}

// full makes etcd full, or gives it space again: full on|off.
func full(ts *testscript.TestScript, _ bool, args []string) {
	worldOf(ts).memory.SetFull(args[0] == "on")
}

// parts creates an active run with parts: parts TASK TICK STATE[=WHO, who paused it]..., with one STATE for
// each part; queued means that the part is not assigned. Its id is in RUN. As with active, no node handles the
// parts.
func parts(ts *testscript.TestScript, _ bool, args []string) {
	w, r := worldOf(ts), ref("default", args[0])
	tick, err := time.Parse(time.RFC3339, args[1])
	ts.Check(err)
	t, err := w.store.Task(context.Background(), r)
	ts.Check(err)
	at, id := task.At(tick), task.RunID(tick, t.Task.UID)
	parent := task.Run{UID: t.Task.UID, ScheduledTime: at, State: task.Running, Trigger: task.TriggerSchedule, Owner: "node-a", Attempt: 1, CreatedAt: at}
	parent.Fan = &task.Fan{Count: len(args) - 2, Need: len(args) - 2}
	for i, word := range args[2:] {
		state, by, _ := strings.Cut(word, "=")
		run := task.Run{UID: t.Task.UID, ScheduledTime: at, State: task.State(state), Trigger: task.TriggerPart, Owner: "node-a", Attempt: 1,
			CreatedAt: at, StartedAt: at, FanOut: task.FanOut{PartCount: len(args) - 2}}
		switch part := task.PartID(id, i); {
		case run.State == task.Queued:
			parent.Fan.Left = append(parent.Fan.Left, i)
		case run.State.Final():
			run.EndedAt = at
			w.put(ts, w.store.Keys().Ended(r, part), run)
		default:
			a := task.Assigned{Instance: "i", Generation: 1, Action: t.Task.Action, KillGrace: t.Task.KillGrace, Run: run}
			if by != "" {
				a.PauseRequested, a.PausedBy, a.PausedAt = true, task.NewActor(by), at
			}
			w.put(ts, w.store.Keys().Run("node-a", r, part), a)
		}
	}

	w.put(ts, w.store.Keys().Queued(r, id), task.Waiting{Run: parent})
	ts.Setenv("RUN", id)
}
