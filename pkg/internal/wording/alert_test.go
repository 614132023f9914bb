package wording_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestAlertTexts(t *testing.T) {
	t.Parallel()
	one := task.At(time.Date(2026, 11, 24, 1, 0, 0, 0, time.UTC))
	at := func(t task.Time) string { return t.Format("15:04") }

	receiver := func(s task.AlertReceiverState, b *task.AlertBlock) string {
		return wording.AlertReceiverText(&task.AlertReceiver{State: s, Blocked: b}, false, at)
	}
	problem := func(a task.Alert) string { return wording.AlertProblem(&a, at) }

	for got, want := range map[string]string{
		problem(task.Alert{Kind: task.AlertFailures, Failures: 2}):                                              "2 or more failures in a row",
		problem(task.Alert{Kind: task.AlertFailures, Failures: 1}):                                              "the last run failed",
		problem(task.Alert{Kind: task.AlertSuccessWithin}):                                                      "no success in time",
		problem(task.Alert{Kind: task.AlertSuccessBy, Deadline: one}):                                           "no success by the deadline, 01:00",
		problem(task.Alert{Kind: task.AlertMaxLateness, Since: one, Deadline: one}):                             "a tick has not started in time",
		problem(task.Alert{Kind: task.AlertMaxDuration, Since: one}):                                            "a run takes too long",
		problem(task.Alert{Kind: task.AlertMaxPause, Since: one}):                                               "the task is paused for too long",
		problem(task.Alert{Kind: task.AlertMore, More: map[task.AlertKind]int{"success_by": 2, "failures": 9}}): "more alerts: 9 failures, 2 success_by",
		problem(task.Alert{Kind: task.AlertCluster, Text: "a\x1bb"}):                                            "a\ufffdb",

		wording.AlertClosedText(&task.AlertClose{Why: task.AlertDeleted, By: &task.Actor{Subject: "user:ann", Token: "x"}}): "task deleted by user:ann",
		wording.AlertClosedText(&task.AlertClose{Why: task.AlertSucceeded}):                                                 "succeeded",
		wording.AlertClosedText(&task.AlertClose{Why: "new_reason"}):                                                        "new reason",

		wording.AlertReceiverText(&task.AlertReceiver{State: task.ReceiverNotified, Run: "r1", At: one}, false, at): "notified 01:00 by run r1",
		wording.AlertReceiverText(&task.AlertReceiver{State: task.ReceiverSending, Run: "r1", At: one}, false, at):  "message under way 01:00 by run r1",
		wording.AlertReceiverText(&task.AlertReceiver{State: task.ReceiverFailed, Run: "r1", At: one}, false, at):   "message failed 01:00 by run r1, will be sent again",
		wording.AlertReceiverText(&task.AlertReceiver{State: task.ReceiverWaiting}, true, at):                       "not told yet that it is closed",
		wording.AlertReceiverText(&task.AlertReceiver{State: task.ReceiverSettled}, true, at):                       "knows of no open alert",
		receiver(task.ReceiverWaiting, nil):                                      "not notified yet",
		receiver(task.ReceiverWaiting, &task.AlertBlock{Why: task.BlockMissing}): "not notified yet (does not exist, or is not a receiver)",
		receiver("", &task.AlertBlock{Why: task.BlockForbidden}):                 "does not exist, or does not accept alerts of this namespace",
		receiver(task.ReceiverNotified, &task.AlertBlock{Why: task.BlockPaused, By: &task.Actor{Subject: "user:ann", Token: "x"}, Since: one, Until: one, Reason: "a move"}): "notified (paused by user:ann since 01:00 until 01:00: a move)",
		receiver("", &task.AlertBlock{Why: task.BlockPaused, By: task.NewActor(task.PausedByFailures), Since: one}):                                                          "paused after too many failures since 01:00",
		receiver("", &task.AlertBlock{Why: task.BlockFrozen, By: task.NewActor("user:bob"), Since: one, Reason: "INC-42"}):                                                   "frozen by user:bob since 01:00: INC-42",

		wording.AlertSilenceText(&task.AlertSilence{By: &task.Actor{Subject: "user:ann", Token: "x"}, Until: one, Reason: "a move"}, at): "silenced by user:ann until 01:00: a move",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
