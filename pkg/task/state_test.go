package task

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The table of the diagram at State, written independently. Transitions that are not in it must not happen.
var diagram = map[State][]State{
	"":         {Queued, Dispatched, Running, Failed, Skipped, Missed},
	Queued:     {Dispatched, Running, Failed, Cancelled, Lost, Skipped, Missed},
	Dispatched: {Queued, Running, Paused, Succeeded, Failed, TimedOut, Cancelled, Lost, Missed},
	Running:    {Queued, Paused, Succeeded, Failed, TimedOut, Cancelled, Lost},
	Paused:     {Queued, Running, Succeeded, Failed, TimedOut, Cancelled, Lost},
}

func TestState_HasTheTransitionsOfItsDiagramAndNoOthers(t *testing.T) {
	all := append([]State{"", "unheard-of"}, States()...)
	for _, from := range all {
		for _, to := range all {
			if want := slices.Contains(diagram[from], to); from.CanBecome(to) != want {
				t.Errorf("%q may become %q: %v", from, to, !want)
			}
		}
	}
}

func TestState_IsFinalWhenNothingFollows(t *testing.T) {
	final := []State{Succeeded, Failed, TimedOut, Cancelled, Lost, Skipped, Missed}
	active := []State{Dispatched, Running, Paused}

	for _, s := range States() {
		if s.Final() != slices.Contains(final, s) || s.Active() != slices.Contains(active, s) || !s.Known() {
			t.Errorf("%s: final %v, active %v, known %v", s, s.Final(), s.Active(), s.Known())
		}
	}

	for _, s := range []State{"", "unheard-of", "Failed"} {
		if s.Final() || s.Active() || s.Known() {
			t.Errorf("%q is taken for a state", s)
		}
	}
}

func TestRetry_WantsAnotherAttemptOnlyOfWhatItNames(t *testing.T) {
	r := Retry{Attempts: 3, On: []State{Failed, Lost}}

	for _, s := range States() {
		for attempt := 1; attempt <= 4; attempt++ {
			if want := attempt < 3 && (s == Failed || s == Lost); r.Wants(attempt, s, nil) != want {
				t.Errorf("after attempt %d, %s: %v", attempt, s, !want)
			}
		}
	}

	a := Assigned{Run: Run{Attempt: 1}, Retry: r, CancelRequested: true}
	if a.Retries(Failed, nil) {
		t.Error("a cancelled run is retried")
	}

	if a.CancelRequested = false; !a.Retries(Failed, nil) {
		t.Error("a failed attempt is not retried")
	}
}

func TestRetry_WaitsLongerEachTimeUpToItsBound(t *testing.T) {
	r := Retry{Backoff: Duration(10 * time.Second), Factor: 2, MaxBackoff: Duration(time.Minute)}

	for n, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second, 4: time.Minute, 5: time.Minute, 1000: time.Minute, math.MaxInt: time.Minute} {
		if got := r.Wait(n, 0.7); got != want {
			t.Errorf("after attempt %d: %s, want %s", n, got, want)
		}
	}

	r.Jitter = 0.2

	for spread, want := range map[float64]time.Duration{0: 8 * time.Second, 0.5: 10 * time.Second, 0.75: 11 * time.Second} {
		if got := r.Wait(1, spread); got != want {
			t.Errorf("with spread %g: %s, want %s", spread, got, want)
		}
	}

	none := Retry{Factor: 100, MaxBackoff: Duration(7 * 24 * time.Hour), Jitter: 1}

	for _, n := range []int{1, 2, 200, math.MaxInt} {
		if got := none.Wait(n, 0.9); got != 0 {
			t.Errorf("without a backoff, after attempt %d: %s", n, got)
		}
	}
}

func TestRetry_WaitIsWithinItsBoundsWhateverTheNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Retry{
			Backoff:    Duration(rapid.Int64Range(0, int64(Duration(7*24*time.Hour))).Draw(t, "backoff")),
			MaxBackoff: Duration(rapid.Int64Range(0, int64(Duration(7*24*time.Hour))).Draw(t, "max")),
			Factor:     rapid.Float64Range(1, 100).Draw(t, "factor"),
			Jitter:     rapid.Float64Range(0, 1).Draw(t, "jitter"),
		}
		n := rapid.OneOf(rapid.IntRange(1, MaxAttempts), rapid.IntRange(1, math.MaxInt)).Draw(t, "attempt")
		got := r.Wait(n, rapid.Float64Range(0, 0.9999).Draw(t, "spread"))

		mid := min(r.MaxBackoff.Std(), r.Backoff.Std())
		if n > 1 && r.Backoff > 0 {
			mid = r.MaxBackoff.Std()
		}

		if high := time.Duration(float64(mid)*(1+r.Jitter)) + time.Millisecond; got < 0 || got > high {
			t.Fatalf("%+v waits %s after attempt %d, at most %s", r, got, n, high)
		}

		low := time.Duration(float64(min(r.Backoff.Std(), r.MaxBackoff.Std()))*(1-r.Jitter)) - time.Millisecond
		if got < low {
			t.Fatalf("%+v waits %s after attempt %d, at least %s", r, got, n, low)
		}
	})
}

func TestRunID_IsItsTickAndItsTask(t *testing.T) {
	tick := time.Date(2026, 11, 20, 23, 5, 0, 7_999_999, time.FixedZone("", 3600))
	if got, want := RunID(tick, "k3f9abcdefgh"), "20261120T220500.007Z-k3f9"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}

	if RunID(tick, "k3") != "20261120T220500.007Z-k3" {
		t.Error("a short uid")
	}

	manual := ManualRunID(tick, "k3f9abcdefgh")
	if len(manual) != len("20261120T220500.007Z-k3f9-abcd") || manual[:26] != "20261120T220500.007Z-k3f9-" || manual == ManualRunID(tick, "k3f9abcdefgh") {
		t.Errorf("a manual run's id is %s", manual)
	}

	if CheckName("name", NewUID()) != nil || len(NewUID()) != 16 {
		t.Error("a uid is no name")
	}
}

func TestRunID_TellsItsTimeAndSortsByIt(t *testing.T) {
	instant := func(t *rapid.T, label string) time.Time {
		low, high := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
		return time.UnixMilli(rapid.Int64Range(low.UnixMilli(), high.UnixMilli()).Draw(t, label))
	}

	rapid.Check(t, func(t *rapid.T) {
		a, b, uid := instant(t, "a"), instant(t, "b"), NewUID()
		for _, id := range []string{RunID(a, uid), ManualRunID(a, uid)} {
			if got, ok := TimeOfRunID(id); !ok || !got.Equal(a) {
				t.Fatalf("%s is of %s, want %s", id, got, a)
			}
		}

		if a.Before(b) != (RunID(a, uid) < RunID(b, uid)) {
			t.Fatalf("%s and %s do not sort by time", RunID(a, uid), RunID(b, uid))
		}
	})
}

func TestTimeOfRunID_RefusesWhatIsNone(t *testing.T) {
	for _, id := range []string{"", "x", "20261120T220500.000", "20261320T220500.000Z-k3f9", "2026-11-20T22:05:00Z-k3f9", "20261120T220500,000Z-k3f9", "20261120T2205000.00Z-k3f9"} {
		if at, ok := TimeOfRunID(id); ok {
			t.Errorf("%q is of %s", id, at)
		}
	}
}

func TestRun_CountsTheTicksItDecides(t *testing.T) {
	for _, c := range []struct {
		r    Run
		want int64
	}{{Run{Trigger: TriggerSchedule}, 1}, {Run{Trigger: TriggerCatchUp}, 1}, {Run{Trigger: TriggerManual}, 0}, {Run{Trigger: TriggerSchedule, TickRange: TickRange{Count: 17}}, 17}} {
		if got := c.r.Ticks(); got != c.want {
			t.Errorf("%+v decides %d ticks, want %d", c.r, got, c.want)
		}
	}
}

func TestNode_TakesRunsAndOwnsShardsOnlyWhenReady(t *testing.T) {
	for _, c := range []struct {
		n           Node
		takes, owns bool
	}{
		{Node{State: NodeReady, Roles: []string{RoleScheduler, RoleExecutor}}, true, true},
		{Node{State: NodeReady, Roles: []string{RoleExecutor}}, true, false},
		{Node{State: NodeReady, Roles: []string{RoleScheduler}}, false, true},
		{Node{State: NodeReady}, false, false},
		{Node{State: NodeDraining, Roles: []string{RoleScheduler, RoleExecutor}}, false, false},
		{Node{Roles: []string{RoleScheduler, RoleExecutor}}, false, false},
		{Node{State: NodeCordoned, Roles: []string{RoleScheduler, RoleExecutor}}, false, true},
		{Node{State: NodeReady, Ineligible: "clock", Roles: []string{RoleScheduler, RoleExecutor}}, true, false},
	} {
		if c.n.Takes() != c.takes || c.n.Owns() != c.owns {
			t.Errorf("%+v: takes %v, owns %v", c.n, c.n.Takes(), c.n.Owns())
		}
	}
}

func TestRunBelongs_ByTheBeginningOfTheUID(t *testing.T) {
	tick := time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)
	const uid, other = "k3f9abcdefgh", "k3faabcdefgh"
	for _, id := range []string{RunID(tick, uid), ManualRunID(tick, uid), "", "r", "by-hand", RunID(tick, "")[:20]} {
		if !RunBelongs(id, uid) {
			t.Errorf("%q belongs to no task", id)
		}
	}

	for _, id := range []string{RunID(tick, other), ManualRunID(tick, other), RunID(tick, "k3")} {
		if RunBelongs(id, uid) {
			t.Errorf("%q belongs to %s", id, uid)
		}
	}

	if !RunBelongs(RunID(tick, "k3"), "k3") {
		t.Error("a short uid has no runs")
	}
}
