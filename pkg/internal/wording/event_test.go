package wording_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestEventText(t *testing.T) {
	t.Parallel()

	run := func(action, node, actor string, edits ...func(*task.Event)) task.Event {
		e := task.Event{Kind: task.EventRun, Action: action, Run: "r1", Node: node, Actor: task.NewActor(actor)}
		if strings.HasPrefix(actor, "n") {
			e.Actor = task.NodeActor(actor)
		}
		for _, edit := range edits {
			edit(&e)
		}
		return e
	}
	state := func(s task.State) func(*task.Event) { return func(e *task.Event) { e.State = string(s) } }
	reason := func(r string) func(*task.Event) { return func(e *task.Event) { e.Reason = r } }

	for _, c := range []struct {
		event task.Event
		want  string
	}{
		{run(task.ActionDispatched, "n1", "n1"), "r1 dispatched to n1"},
		{run(task.ActionDispatched, "n1", "n2"), "r1 dispatched to n1, decided by n2"},
		{run(task.ActionStarted, "n1", "n1"), "r1 started on n1"},
		{run(task.ActionEnded, "n1", "n1", state(task.Failed), reason(task.ReasonExit)), "r1 failed on n1 (exit code)"},
		{run(task.ActionEnded, "n1", "n2", state(task.Lost)), "r1 lost, decided by n2"},
		{run(task.ActionEnded, "n1", "user:ann", state(task.Cancelled)), "r1 cancelled by user:ann"},
		{run(task.ActionQueued, "", "n2", reason(task.ReasonOverlap)), "r1 queued (overlap), decided by n2"},
		{run(task.ActionQueued, "", "user:ann", reason(task.ReasonManual)), "r1 queued (manual) by user:ann"},
		{run(task.ActionQueued, "", task.CreatedByCarillon, reason(task.ReasonManual)), "r1 queued (manual), decided by carillon"},
		{run(task.ActionWaiting, "", "n2", reason(task.ReasonNoNode)), "r1 waiting (no matching node), decided by n2"},
		{task.Event{Kind: task.EventShard, Action: task.ActionAssigned, Node: "n1", Actor: task.NodeActor("n2")}, "assigned to n1, by the leader n2"},
		{task.Event{Kind: task.EventShard, Action: task.ActionAssigned, Node: "n1", Previous: "n3"}, "assigned to n1, after n3"},
		{task.Event{Kind: task.EventShard, Action: task.ActionUnassigned, Previous: "n3", Actor: task.NodeActor("n2")}, "taken from n3, by the leader n2"},
		{task.Event{Kind: task.EventAlert, Action: task.ActionOpened, Alert: "failures", Actor: task.NodeActor("n1"), Detail: "2 in a row"}, "failures alert opened: 2 in a row"},
		{task.Event{Kind: task.EventAlert, Action: task.ActionAcknowledged, Alert: "success_by", Actor: task.NewActor("user:ann")}, "success by alert acknowledged by user:ann"},
		{task.Event{Kind: task.EventAlert, Action: task.ActionClosed, Alert: "failures", Actor: task.NodeActor("n1"), Reason: "not_watched"}, "failures alert closed (not watched)"},
		{task.Event{Kind: task.EventAlert, Action: task.ActionClosed, Alert: "failures", Actor: task.NewActor("user:ann"), Reason: "dismissed"}, "failures alert closed (dismissed) by user:ann"},
		{task.Event{Kind: task.EventAlert, Action: task.ActionOpened, Alert: "cluster", Actor: task.NodeActor("n1"), Reason: "not_evaluated", Detail: "3 tasks"}, "cluster alert not_evaluated opened: 3 tasks"},
		{task.Event{Kind: task.EventAlert, Action: task.ActionSilenced, Alert: "silence", Actor: task.NewActor("user:ann"), Reason: "a move", Detail: "web-* until 16:00"}, "alerts silenced by user:ann: a move: web-* until 16:00"},
		{task.Event{Kind: task.EventNode, Action: task.ActionLeft, Node: "n1", Detail: "instance x"}, "left: instance x"},
	} {
		if got := wording.EventText(c.event); got != c.want {
			t.Errorf("%+v: %q, want %q", c.event, got, c.want)
		}
	}
}
