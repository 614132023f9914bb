package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/task"
)

// A retry that is due wakes its own task, and not all tasks of the shard that wait.
func TestAgenda_ExaminesOnlyTasksThatAreDue(t *testing.T) {
	t.Parallel()

	const tasks = 100
	w := newWorld(t, "n1")
	h := w.work("n1")

	for i := range tasks {
		w.create(fmt.Sprintf("a%02d", i), cronned("1 0 12 * * *"), retries(2, time.Duration(10+i)*time.Second, task.Failed))
	}

	h.decide(1)

	for i := range tasks {
		w.finish(fmt.Sprintf("a%02d", i), task.Failed)
	}

	h.decide(2)

	examined := 0
	for s := 3.0; s <= 125; s += 0.5 {
		w.at(s)
		h.see()
		h.state.agenda.moveDueTasks(sec(s).UnixMilli())
		examined += len(h.state.agenda.toExamine)
		h.blind(s)
	}

	for i := range tasks {
		w.want(fmt.Sprintf("a%02d", i), "+1 dispatched #2")
	}

	t.Logf("%d examinations for %d retries", examined, tasks)

	// Each task is examined when its retry is due, and once because of the echo of its dispatch.
	if examined > 3*tasks {
		t.Errorf("%d examinations for %d retries", examined, tasks)
	}
}

func TestLaterTasks_KeepsTheEarliestTime(t *testing.T) {
	t.Parallel()

	var a agenda
	x, y, z := &state.Task{}, &state.Task{}, &state.Task{}
	a.examineAgainAt(x, time.UnixMilli(30))
	a.examineAgainAt(y, time.UnixMilli(20))
	a.examineAgainAt(x, time.UnixMilli(10))
	a.examineAgainAt(y, time.UnixMilli(40))
	a.examineAgainAt(z, time.UnixMilli(15).Add(time.Nanosecond)) // is not due at 15
	a.later.remove(&state.Task{})

	if at, ok := a.later.next(); at != 10 || !ok {
		t.Errorf("the next examination is at %d", at)
	}

	a.moveDueTasks(15)
	if len(a.toExamine) != 1 || a.toExamine[0] != x {
		t.Errorf("%d tasks are due", len(a.toExamine))
	}

	a.later.remove(z)
	a.moveDueTasks(20)
	if _, ok := a.later.next(); ok || len(a.toExamine) != 2 {
		t.Errorf("%d tasks are due", len(a.toExamine))
	}
}

func TestAgenda_NoticesThatTheClockWasSetBack(t *testing.T) {
	t.Parallel()

	var a agenda
	for _, c := range []struct {
		at   float64
		want bool
	}{{1, false}, {6, false}, {6, false}, {5.9, true}, {6, false}, {3600, false}, {1, true}} {
		if got := a.clockWasSetBack(sec(c.at)); got != c.want {
			t.Errorf("at +%g: %t", c.at, got)
		}
	}
}
