package check

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestCheck_Accept(t *testing.T) {
	all := task.Accept{Args: 1, Env: []string{"DAY"}, Target: true}
	for name, c := range map[string]struct {
		accept  task.Accept
		give    func(*task.Run)
		promise string
	}{
		"nothing is given":      {task.Accept{}, func(*task.Run) {}, ""},
		"all is accepted":       {all, func(r *task.Run) { r.Args, r.TargetNode = []string{"x"}, "a" }, ""},
		"arguments are not":     {task.Accept{Target: true}, func(r *task.Run) { r.Args = []string{"x"} }, "G29"},
		"the node is not":       {task.Accept{Args: 1}, func(r *task.Run) { r.TargetNode = "a" }, "G29"},
		"it is at another node": {all, func(r *task.Run) { r.TargetNode = "b" }, "G29"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 1, "a")
			one := s.create("one", 0, 3600, func(e *task.Entry) { e.Accept = c.accept })
			run := s.tickRun(one, s.now, task.TriggerManual, task.Queued)
			run.ID, run.Owner, run.Reason = task.ManualRunID(run.ScheduledTime.Time, one.entry.UID), "", task.ReasonManual
			c.give(&run)
			w := task.Waiting{Run: run}
			one.queue = append(one.queue, w)
			s.txn(s.waiting(one, w))
			s.pass(1)
			s.round(0)

			only(t, s.check(Options{}).Violations, c.promise)
		})
	}
}
