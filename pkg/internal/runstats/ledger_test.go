package runstats

import (
	"reflect"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// lines returns one line of each kind: 100 successful runs at each minute, then ticks that did not succeed in the hour after,
// and runs that somebody requested.
func lines() []task.LedgerLine {
	at := func(minutes int) task.Time { return task.At(start.Add(time.Duration(minutes) * time.Minute)) }

	return []task.LedgerLine{
		{Kind: task.LedgerRequestedMore, First: at(0), Last: at(160), Count: 5, Causes: map[string]int64{"succeeded": 4, "timed_out": 1}},
		{Kind: task.LedgerUnreadable, First: at(0), Last: at(160), Count: 2},
		{Kind: task.LedgerRequested, First: at(150), Last: at(150), Count: 1, State: task.Succeeded},
		{Kind: task.LedgerHour, First: at(120), Last: at(180), Count: 30, Named: []task.Time{at(125), at(150)}, HiddenFirst: at(151), HiddenLast: at(170), Causes: map[string]int64{"failed: exit 1": 20, "failed: HTTP 503": 9, "missed: no_owner": 1}},
		{Kind: task.LedgerException, First: at(101), Last: at(110), Count: 10, State: task.Skipped, Reason: task.ReasonOverlap},
		{Kind: task.LedgerException, First: at(100), Last: at(100), Count: 1, State: task.Failed, Reason: "signal KILL", Attempt: 3},
		{Kind: task.LedgerSucceeded, First: at(0), Last: at(99), Count: 100, MeanMS: 2000, MaxMS: 9000, MaxLatenessMS: 70},
	}
}

// sumWithLedger adds the lines and one run of the history that has failed.
func sumWithLedger(h task.History, since time.Time, complete bool) client.TaskStats {
	var s Stats
	code := 1
	failed := ended(task.Failed, 50*time.Second, time.Millisecond)
	failed.Reason, failed.ExitCode = task.ReasonExit, &code
	s.Add(&failed)

	for _, l := range lines() {
		s.AddLine(&l, since)
	}

	return s.Sum(h, complete)
}

func TestStats_CountTheLedger(t *testing.T) {
	t.Parallel()

	got := sumWithLedger(task.History{}, time.Time{}, false)

	// 100 successes, 30 exceptions in the hour (one missed, one killed, six requested), and one in the history.
	rate, one := 105.0/137, 1
	if got.Runs != 137 || *got.SuccessRate != rate || got.Retries != 0 || got.Duration.Count != 1 || len(got.Recent) != 1 {
		t.Errorf("%s", asJSON(got))
	}
	if want := map[task.State]int{task.Succeeded: 105, task.Failed: 31, task.TimedOut: 1}; !reflect.DeepEqual(got.Outcomes, want) {
		t.Errorf("outcomes %v, want %v", got.Outcomes, want)
	}
	if want := (client.SuccessfulRuns{Count: 100, MeanMS: 2000, MaxMS: 9000, MaxLatenessMS: 70}); *got.Successful != want {
		t.Errorf("successful runs %+v, want %+v", *got.Successful, want)
	}
	if got.Skipped[task.ReasonOverlap] != 10 || got.Missed[task.ReasonNoOwner] != 1 {
		t.Errorf("skipped %v, missed %v", got.Skipped, got.Missed)
	}
	want := []client.FailureCount{
		{State: task.Failed, Reason: task.ReasonExit, ExitCode: &one, Runs: 21},
		{State: task.Failed, Reason: task.ReasonAnswer, HTTPStatus: 503, Runs: 9},
		{State: task.Failed, Reason: task.ReasonSignal, Signal: "KILL", Runs: 1},
		{State: task.TimedOut, Runs: 1},
	}
	if !reflect.DeepEqual(got.Failures, want) {
		t.Errorf("failures %s, want %s", asJSON(got.Failures), asJSON(want))
	}
	if got.Ledger == nil || *got.Ledger != (client.LedgerStats{Since: task.At(start), Runs: 136, Unreadable: 2}) {
		t.Errorf("ledger %s", asJSON(got.Ledger))
	}
}

func TestStats_EstimateTheLedgerSinceATime(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		minutes                    int
		succeeded, failed, skipped int
		approximate                bool
	}{
		{0, 105, 31, 10, false},
		{1, 104, 31, 10, true},         // all minutes but the first, and of the 160 minutes of the requested runs almost all
		{50, 50 + 3 + 1, 31, 10, true}, // half of the successful runs
		{102, 2 + 1, 30, 9, true},
		{126, 2 + 1, 29, 0, true}, // without the tick of the hour that is named first
		{150, 1 + 1, 29, 0, true}, // the same of the hour, the run of the history, a requested run, and the last of the others
		{160, 1, 16, 0, true},
		{181, 0, 1, 0, false}, // only the history
	} {
		since := start.Add(time.Duration(c.minutes) * time.Minute)
		got := sumWithLedger(task.History{}, since, false)
		if got.Outcomes[task.Succeeded] != c.succeeded || got.Outcomes[task.Failed] != c.failed || got.Skipped[task.ReasonOverlap] != int64(c.skipped) {
			t.Errorf("since %d minutes: %v, skipped %v; want %d, %d, %d", c.minutes, got.Outcomes, got.Skipped, c.succeeded, c.failed, c.skipped)
		}
		if got.Ledger == nil && c.approximate || got.Ledger != nil && (got.Ledger.Approximate != c.approximate || !got.Ledger.Since.Equal(since)) {
			t.Errorf("since %d minutes: ledger %s", c.minutes, asJSON(got.Ledger))
		}
	}
}

// record: failures removes successful runs, but a ledger counts them.
func TestStats_RateWithFailuresOnlyNeedsTheLedger(t *testing.T) {
	t.Parallel()

	h := task.History{Record: task.RecordFailures}
	if got := sumWithLedger(h, time.Time{}, false); got.SuccessRate != nil {
		t.Errorf("rate %v without a complete ledger", *got.SuccessRate)
	}
	if got := sumWithLedger(h, time.Time{}, true); got.SuccessRate == nil || *got.SuccessRate != 105.0/137 {
		t.Errorf("rate %v with a complete ledger", got.SuccessRate)
	}
}
