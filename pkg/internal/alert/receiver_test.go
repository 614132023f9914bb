package alert

import (
	"reflect"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// What people see of a receiver follows from what was sent to it, and from what keeps messages away from it.
func TestReceiverFacts_Status(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	at := task.At(now.Add(-time.Minute))
	const key = 7

	open := task.Alert{Namespace: "shop", Task: "sync", Kind: task.AlertFailures, ID: 40}
	before, reopened := task.At(now.Add(-time.Hour)), open
	reopened.OpenedAt = at
	closed := open
	closed.Closed = &task.AlertClose{At: at, Why: task.AlertSucceeded}

	message := func(opened, closed task.AlertKeys, failed bool) task.AlertMessage {
		return task.AlertMessage{Runs: []string{"r1"}, Opened: opened, Closed: closed, At: at, Failed: failed}
	}
	entry := func(edit func(*task.Entry)) *task.Entry {
		e := &task.Entry{UID: "u", Receiver: &task.Receiver{From: []string{"shop"}}}
		if edit != nil {
			edit(e)
		}
		return e
	}
	pause := func(until task.Time) *task.Entry {
		return entry(func(e *task.Entry) {
			e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{{Since: at, By: task.NewActor("ann"), Until: until, Reason: "a move"}}}
		})
	}

	newest := message(task.AlertKeys{9}, nil, false)
	sending, told, failed := message(task.AlertKeys{key}, nil, false), message(task.AlertKeys{3, key}, nil, false), message(task.AlertKeys{key}, nil, true)
	toldClosed := message(nil, task.AlertKeys{key}, false)
	knows := func(past ...task.AlertMessage) *task.AlertsSent {
		return &task.AlertsSent{UID: "u", Delivered: task.AlertKeys{3, key, 9}, Past: past}
	}

	for name, c := range map[string]struct {
		alert task.Alert
		facts ReceiverFacts
		want  task.AlertReceiver
	}{
		"nothing was sent":               {open, ReceiverFacts{Entry: entry(nil)}, task.AlertReceiver{State: task.ReceiverWaiting}},
		"it is under way":                {open, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Sending: &sending}}, task.AlertReceiver{State: task.ReceiverSending, Run: "r1", At: at}},
		"another is under way":           {open, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Sending: &newest}}, task.AlertReceiver{State: task.ReceiverWaiting}},
		"notified before others":         {open, ReceiverFacts{Entry: entry(nil), Sent: knows(newest, told)}, task.AlertReceiver{State: task.ReceiverNotified, Run: "r1", At: at}},
		"notified long ago":              {open, ReceiverFacts{Entry: entry(nil), Sent: knows(newest)}, task.AlertReceiver{State: task.ReceiverNotified}},
		"below the horizon":              {open, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Horizon: 40}}, task.AlertReceiver{State: task.ReceiverNotified}},
		"above the horizon":              {open, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Horizon: 39}}, task.AlertReceiver{State: task.ReceiverWaiting}},
		"opened again since the horizon": {reopened, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Horizon: 40, HorizonAt: before}}, task.AlertReceiver{State: task.ReceiverWaiting}},
		"silenced at the horizon": {open, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Horizon: 40, Uncertain: task.AlertKeys{key}, Past: []task.AlertMessage{newest}}},
			task.AlertReceiver{State: task.ReceiverWaiting}},
		"it failed after it was notified": {open, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Delivered: task.AlertKeys{key}, Uncertain: task.AlertKeys{key}, Past: []task.AlertMessage{failed, told}}},
			task.AlertReceiver{State: task.ReceiverFailed, Run: "r1", At: at}},
		"another task had the name": {open, ReceiverFacts{Entry: entry(func(e *task.Entry) { e.UID = "v" }), Sent: knows(told)}, task.AlertReceiver{State: task.ReceiverWaiting}},

		"closed, and still taken for open": {closed, ReceiverFacts{Entry: entry(nil), Sent: knows(told)}, task.AlertReceiver{State: task.ReceiverWaiting}},
		"closed, and known":                {closed, ReceiverFacts{Entry: entry(nil), Sent: &task.AlertsSent{UID: "u", Past: []task.AlertMessage{toldClosed, told}}}, task.AlertReceiver{State: task.ReceiverSettled, Run: "r1", At: at}},
		"closed, and never sent":           {closed, ReceiverFacts{Entry: entry(nil)}, task.AlertReceiver{State: task.ReceiverSettled}},

		"no such task":   {open, ReceiverFacts{}, task.AlertReceiver{State: task.ReceiverWaiting, Blocked: &task.AlertBlock{Why: task.BlockMissing}}},
		"not a receiver": {open, ReceiverFacts{Entry: &task.Entry{UID: "u"}}, task.AlertReceiver{State: task.ReceiverWaiting, Blocked: &task.AlertBlock{Why: task.BlockMissing}}},
		"not of this namespace": {open, ReceiverFacts{Entry: entry(func(e *task.Entry) { e.Receiver.From = nil })},
			task.AlertReceiver{State: task.ReceiverWaiting, Blocked: &task.AlertBlock{Why: task.BlockForbidden}}},
		"of the cluster": {task.Alert{Kind: task.AlertCluster, Code: "x"}, ReceiverFacts{Entry: entry(func(e *task.Entry) { e.Receiver.From = nil })}, task.AlertReceiver{State: task.ReceiverWaiting}},
		"paused": {open, ReceiverFacts{Entry: pause(task.Time{}), Sent: knows(told)}, task.AlertReceiver{State: task.ReceiverNotified, Run: "r1", At: at,
			Blocked: &task.AlertBlock{Why: task.BlockPaused, By: task.NewActor("ann"), Since: at, Reason: "a move"}}},
		"a pause that has ended": {open, ReceiverFacts{Entry: pause(at)}, task.AlertReceiver{State: task.ReceiverWaiting}},
		"frozen": {open, ReceiverFacts{Entry: entry(nil), Freeze: &task.Freeze{Since: at, By: task.NewActor("bob"), Reason: "a move"}}, task.AlertReceiver{State: task.ReceiverWaiting,
			Blocked: &task.AlertBlock{Why: task.BlockFrozen, By: task.NewActor("bob"), Since: at, Reason: "a move"}}},
	} {
		c.facts.Name, c.want.Receiver = "ops/slack", "ops/slack"
		got := c.facts.Status(&c.alert, key, now)

		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, blocked %+v; want %+v, blocked %+v", name, got, got.Blocked, c.want, c.want.Blocked)
		}
	}

	own := ReceiverFacts{Name: "shop/slack", Entry: entry(func(e *task.Entry) { e.Receiver.From = nil })}
	if b := own.Block("shop", now); b != nil {
		t.Errorf("a receiver refuses alerts of its own namespace: %+v", b)
	}
}
