package wording

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestAlertsText(t *testing.T) {
	two, off := 2, 0
	for _, c := range []struct {
		alerts *task.Alerts
		want   string
	}{
		{nil, ""},
		{&task.Alerts{}, "a run fails; notifies nobody"},
		{&task.Alerts{Failures: &two, SuccessWithin: task.Duration(26 * time.Hour), SuccessBy: "0 6 * * *", Notify: []string{"slack", "ops/mail"}},
			"2 runs in a row fail, or no run succeeds within 26h, or the newest tick has not succeeded by 0 6 * * *; notifies slack, ops/mail"},
		{&task.Alerts{Failures: &off, Notify: []string{"slack"}}, "never; notifies slack"},
	} {
		if got := AlertsText(c.alerts); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestReceiverText(t *testing.T) {
	no := false
	for _, c := range []struct {
		receiver *task.Receiver
		want     string
	}{
		{nil, ""},
		{&task.Receiver{}, "alerts of its namespace, after 10s, and again after 24h"},
		{&task.Receiver{From: []string{"shop", "web"}, Repeat: new(task.Duration), Output: &no}, "alerts of its namespace and of shop, web, after 10s, without output"},
	} {
		if got := ReceiverText(c.receiver); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
