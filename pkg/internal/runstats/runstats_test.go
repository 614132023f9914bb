package runstats

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// ended returns a run that took this long and started this late.
func ended(state task.State, took, late time.Duration) task.Run {
	ms := late.Milliseconds()
	return task.Run{State: state, Attempt: 1, StartedAt: task.At(start), EndedAt: task.At(start.Add(took)), LatenessMS: &ms}
}

// sumOf adds records and returns the sum.
func sumOf(h task.History, runs ...task.Run) client.TaskStats {
	var s Stats
	for i := range runs {
		s.Add(&runs[i])
	}

	return s.Sum(h, false)
}

// asJSON encodes a value for a message.
func asJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

func TestStats_SumsUpRecords(t *testing.T) {
	t.Parallel()

	failed := func(code int) task.Run {
		r := ended(task.Failed, 2*time.Second, time.Millisecond)
		r.Reason, r.ExitCode = task.ReasonExit, &code
		return r
	}
	retried := ended(task.Succeeded, 3*time.Second, time.Second)
	retried.Attempt, retried.Unsent = 10, &task.Unsent{Count: 7} // attempts that were not sent do not count
	timedOut := ended(task.TimedOut, time.Minute, 0)
	timedOut.Reason = task.ReasonTimeout
	lost := ended(task.Lost, time.Hour, 0)
	lost.Reason = task.ReasonNodeLost
	cancelled := task.Run{State: task.Cancelled, Reason: task.ReasonCancelled} // from the queue
	overlap := task.Run{State: task.Skipped, Reason: task.ReasonOverlap, TickRange: task.TickRange{Count: 7}}
	missed := task.Run{State: task.Missed, Reason: task.ReasonNoOwner}
	running := task.Run{State: task.Running, StartedAt: task.At(start)}

	got := sumOf(task.History{Keep: 20, Record: task.RecordAll},
		ended(task.Succeeded, time.Second, 10*time.Millisecond), failed(1), failed(2), overlap, failed(2), retried, timedOut, lost, cancelled, missed, running)

	rate, one, two := 2.0/7, 1, 2
	want := client.TaskStats{
		History: task.History{Keep: 20, Record: task.RecordAll}, Runs: 8, SuccessRate: &rate,
		Outcomes:   map[task.State]int{task.Succeeded: 2, task.Failed: 3, task.TimedOut: 1, task.Lost: 1, task.Cancelled: 1},
		Duration:   &client.Quantiles{Count: 6, P50MS: 2000, P95MS: 60_000, P99MS: 60_000, MaxMS: 60_000},
		Lateness:   &client.Quantiles{Count: 7, P50MS: 1, P95MS: 1000, P99MS: 1000, MaxMS: 1000},
		Successful: &client.SuccessfulRuns{Count: 2, MeanMS: 2000, MaxMS: 3000, MaxLatenessMS: 1000},
		Retries:    2, RetriedRuns: 1, Skipped: map[string]int64{task.ReasonOverlap: 7}, Missed: map[string]int64{task.ReasonNoOwner: 1},
		Failures: []client.FailureCount{
			{State: task.Failed, Reason: task.ReasonExit, ExitCode: &two, Runs: 2},
			{State: task.Failed, Reason: task.ReasonExit, ExitCode: &one, Runs: 1},
			{State: task.Lost, Reason: task.ReasonNodeLost, Runs: 1},
			{State: task.TimedOut, Reason: task.ReasonTimeout, Runs: 1},
		},
		Recent: []task.State{
			task.Succeeded, task.Failed, task.Failed, task.Skipped, task.Failed, task.Succeeded, task.TimedOut, task.Lost, task.Cancelled, task.Missed,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %s\nwant %s", asJSON(got), asJSON(want))
	}
}

func TestStats_RateNeedsSuccessfulRuns(t *testing.T) {
	t.Parallel()

	cancelled, failed := ended(task.Cancelled, 1, 1), ended(task.Failed, 1, 1)
	for _, c := range []struct {
		record string
		runs   []task.Run
		want   string
	}{
		{task.RecordAll, nil, "none"},
		{task.RecordAll, []task.Run{cancelled}, "none"},
		{task.RecordAll, []task.Run{cancelled, failed}, "0"},
		{task.RecordFailures, []task.Run{failed}, "none"},
	} {
		got := "none"
		if rate := sumOf(task.History{Record: c.record}, c.runs...).SuccessRate; rate != nil {
			got = fmt.Sprint(*rate)
		}
		if got != c.want {
			t.Errorf("%s, %d runs: rate %s, want %s", c.record, len(c.runs), got, c.want)
		}
	}
}

func TestStats_QuantilesAgreeWithCounting(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 300).Draw(t, "values")
		got := quantilesOf(slices.Clone(values))

		// The smallest of the values that at least this percentage does not exceed.
		count := func(percent float64) int64 {
			least := int64(math.MaxInt64)
			for _, v := range values {
				n := 0
				for _, w := range values {
					if w <= v {
						n++
					}
				}
				if float64(n)*100 >= percent*float64(len(values)) {
					least = min(least, v)
				}
			}
			return least
		}

		want := client.Quantiles{Count: len(values), P50MS: count(50), P95MS: count(95), P99MS: count(99), MaxMS: slices.Max(values)}
		if *got != want {
			t.Fatalf("%+v, want %+v", *got, want)
		}
	})
}

func TestStats_KeepsTheNewest(t *testing.T) {
	t.Parallel()

	var s Stats
	for i := range maxMeasured + 10 {
		r := ended(task.Succeeded, time.Duration(i)*time.Millisecond, 0)
		if i >= maxMeasured {
			r.State = task.Failed
		}
		s.Add(&r)
	}

	if oldest := slices.Min(s.durations.list); oldest != 10 {
		t.Errorf("the shortest duration is %d ms, want 10, because the first ten runs are too old", oldest)
	}

	sum := s.Sum(task.History{}, false)
	if sum.Runs != maxMeasured+10 || sum.Duration.Count != maxMeasured || len(sum.Recent) != maxRecent || sum.Recent[0] != task.Succeeded || sum.Recent[maxRecent-10] != task.Failed {
		t.Errorf("%d runs, %d durations, recent %v", sum.Runs, sum.Duration.Count, sum.Recent)
	}
}
