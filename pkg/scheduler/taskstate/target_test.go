package taskstate

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestTask_TargetDown(t *testing.T) {
	t.Parallel()
	const uid = "abcdefghijklmnop"
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	own, former := task.RunID(now, uid), task.RunID(now, "zzzzzzzzzzzzzzzz")
	unsent := &task.Unsent{Count: 1}
	waits := func(id, reason string, u *task.Unsent) *Activity {
		return &Activity{Queue: []*Waiting{{Waiting: task.Waiting{Run: task.Run{ID: id, State: task.Queued, Reason: reason, Attempt: 2, Unsent: u}}}}}
	}
	probes := func(id string, left time.Duration) *Activity {
		return &Activity{Active: []*Attempt{{Run: id, ProbeUntil: now.Add(left).UnixMilli()}}}
	}

	for _, c := range []struct {
		name     string
		activity *Activity
		process  bool
		down     bool
		until    time.Duration // after now; 0: no time
	}{
		{name: "idle"},
		{name: "a run waits for its target", activity: waits(own, task.ReasonTarget, unsent), down: true},
		{name: "a part waits for its target", activity: waits(task.PartID(own, 3), task.ReasonTarget, unsent), down: true},
		{name: "a run of a deleted task waits for its target", activity: waits(former, task.ReasonTarget, unsent)},
		{name: "the task does not send requests any more", activity: waits(own, task.ReasonTarget, unsent), process: true},
		{name: "a tick waits because of another run", activity: waits(own, task.ReasonTarget, nil)},
		{name: "a retry that counts waits", activity: waits(own, task.ReasonRetry, unsent)},
		{name: "an attempt tries the target again", activity: probes(own, 30*time.Second), down: true, until: 30 * time.Second},
		{name: "an attempt has tried the target for long", activity: probes(own, 0)},
		{name: "an attempt of another kind", activity: &Activity{Active: []*Attempt{{Run: own}}}},
		{name: "the clock was set back", activity: probes(own, time.Hour)},
	} {
		job := &Task{Text: "default/a" + uid, NameLen: 9, UIDLen: uint8(len(uid)), Present: true, Policy: &definition.Policy{}, Activity: c.activity}
		job.SetHTTP(!c.process)

		down, until := job.TargetDown(now.UnixMilli())
		if down != c.down || c.until == 0 && until != 0 || c.until != 0 && until != now.Add(c.until).UnixMilli() {
			t.Errorf("%s: %t until %d", c.name, down, until-now.UnixMilli())
		}
	}
}
