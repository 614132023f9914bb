package wording

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestLedgerText(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		line  task.LedgerLine
		want  string
		state task.State
	}{
		{task.LedgerLine{Kind: task.LedgerSucceeded, Count: 1}, "succeeded", task.Succeeded},
		{task.LedgerLine{Kind: task.LedgerSucceeded, Count: 86_312}, "86,312 succeeded", task.Succeeded},
		{task.LedgerLine{Kind: task.LedgerException, Count: 1, State: task.Failed, Reason: "exit 69", Attempt: 3}, "exit 69, attempt 3", task.Failed},
		{task.LedgerLine{Kind: task.LedgerException, Count: 1, State: task.Failed, Reason: "signal KILL"}, "signal KILL", task.Failed},
		{task.LedgerLine{Kind: task.LedgerException, Count: 1, State: task.Failed, Reason: "HTTP 503"}, "HTTP 503", task.Failed},
		{task.LedgerLine{Kind: task.LedgerException, Count: 1, State: task.Failed, Reason: "exit \x1b[31m"}, "failed", task.Failed},
		{task.LedgerLine{Kind: task.LedgerException, Count: 1, State: task.Lost, Reason: task.ReasonNodeLost, Late: true}, "lost, with a late result", task.Lost},
		{task.LedgerLine{Kind: task.LedgerException, Count: 40, State: task.Missed, Reason: task.ReasonNoOwner}, "missed (no owner) ×40", task.Missed},
		{task.LedgerLine{Kind: task.LedgerRequested, Count: 1, State: task.Succeeded}, "succeeded", task.Succeeded},
		{task.LedgerLine{Kind: task.LedgerHour, Count: 1312, Causes: map[string]int64{"timed_out": 12, "failed: exit 1": 1300}}, "1,312 did not succeed: exit 1 ×1,300, timed out ×12", task.Failed},
		{task.LedgerLine{Kind: task.LedgerRequestedMore, Count: 2, Causes: map[string]int64{"succeeded": 2}}, "2 more manual runs: succeeded ×2", task.Succeeded},
		{task.LedgerLine{Kind: task.LedgerRequestedMore, Count: 2, Causes: map[string]int64{"succeeded": 1, "failed: exit 1": 1}}, "2 more manual runs: exit 1 ×1, succeeded ×1", task.Failed},
		{task.LedgerLine{Kind: task.LedgerUnreadable, Count: 1}, "1 record could not be read", ""},
	} {
		if got := LedgerText(c.line); got != c.want {
			t.Errorf("%+v: %q, want %q", c.line, got, c.want)
		}
		if got := LedgerState(c.line); got != c.state {
			t.Errorf("%+v: marked as %q, want %q", c.line, got, c.state)
		}
	}
}

func TestHistoryText(t *testing.T) {
	t.Parallel()

	week, none := task.Duration(7*24*time.Hour), task.Duration(0)
	for _, c := range []struct {
		h    task.History
		want string
	}{
		{task.History{Keep: 20}, "the last 20 runs"},
		{task.History{Keep: 20, Record: task.RecordFailures, Ledger: &none}, "the last 20 runs that did not succeed; no ledger"},
		{task.History{Keep: 5, KeepFor: task.Duration(36 * time.Hour), Ledger: &week}, "the last 5 runs, and those of the last 1d 12h; the ledger remembers ticks for 7d"},
	} {
		if got := HistoryText(c.h); got != c.want {
			t.Errorf("%+v: %q, want %q", c.h, got, c.want)
		}
	}
}
