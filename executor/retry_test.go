package executor

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

var retryStart = time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)

// requestOf returns an HTTP attempt with a retry policy.
func requestOf(attempts int, change func(*task.Assigned)) task.Assigned {
	a := task.Assigned{
		Run:    task.Run{ID: "r1", Attempt: 1, Trigger: task.TriggerSchedule},
		Action: task.Action{HTTP: &task.HTTP{URL: "http://api.corp"}}, Retry: task.Defaults().Retry,
	}
	a.Retry.Attempts = attempts
	if change != nil {
		change(&a)
	}

	return a
}

// unsentEnd returns the end of an attempt that was not sent.
func unsentEnd(a task.Assigned, at time.Time) task.Run {
	end := a.Run
	end.State, end.Reason, end.Message, end.EndedAt, end.Token = task.Failed, task.ReasonUnsent, "connection refused", task.At(at), 7

	return end
}

// Verifies: G54
func TestNext_AttemptsThatWereNotSentAreFree(t *testing.T) {
	earlier := func(count int, ago time.Duration) func(*task.Assigned) {
		return func(a *task.Assigned) {
			a.Attempt = count + 1
			a.Unsent = &task.Unsent{Count: count, First: task.At(retryStart.Add(-ago)), Last: task.At(retryStart.Add(-time.Second)), Message: "timeout"}
		}
	}
	unsentFor := func(d time.Duration) func(*task.Assigned) {
		return func(a *task.Assigned) { a.Action.HTTP.UnsentFor = new(task.Duration(d)) }
	}

	for name, c := range map[string]struct {
		attempts   int
		change     []func(*task.Assigned)
		end        func(*task.Run)
		retryAfter time.Duration
		free       bool
		retried    bool // by the retry policy
		min, max   time.Duration
	}{
		"the first":              {attempts: 1, free: true, max: time.Second},
		"the second":             {attempts: 1, change: []func(*task.Assigned){earlier(1, time.Second)}, free: true, max: 2 * time.Second},
		"the sixth":              {attempts: 1, change: []func(*task.Assigned){earlier(5, time.Minute)}, free: true, max: 30 * time.Second},
		"the thousandth":         {attempts: 1, change: []func(*task.Assigned){earlier(999, time.Minute)}, free: true, max: 30 * time.Second},
		"after ten minutes":      {attempts: 1, change: []func(*task.Assigned){earlier(5, 10*time.Minute)}, free: true, max: 30 * time.Second},
		"after more":             {attempts: 1, change: []func(*task.Assigned){earlier(5, 10*time.Minute+time.Millisecond)}},
		"after more, with retry": {attempts: 2, change: []func(*task.Assigned){earlier(5, time.Hour)}, retried: true, min: 5 * time.Second, max: 15 * time.Second},
		"within an hour":         {attempts: 1, change: []func(*task.Assigned){earlier(5, time.Hour), unsentFor(time.Hour)}, free: true, max: 30 * time.Second},
		"none is free":           {attempts: 1, change: []func(*task.Assigned){unsentFor(0)}},
		"none is free, with retry": {attempts: 2, change: []func(*task.Assigned){unsentFor(0)}, retried: true, min: 5 * time.Second,
			max: 15 * time.Second},
		"cancelled": {attempts: 5, change: []func(*task.Assigned){func(a *task.Assigned) { a.CancelRequested = true }}},
		"the retry policy does not mention failed": {attempts: 1, change: []func(*task.Assigned){func(a *task.Assigned) { a.Retry.On = []task.State{task.Lost} }},
			free: true, max: time.Second},
		"a process": {attempts: 1, change: []func(*task.Assigned){func(a *task.Assigned) { a.Action = task.Action{Process: &task.Process{}} }}},
		"sent":      {attempts: 1, end: func(r *task.Run) { r.Reason = task.ReasonUnanswered }},
		"lost":      {attempts: 1, end: func(r *task.Run) { r.State = task.Lost }},
		"the target asks for a minute": {attempts: 1, retryAfter: time.Minute, free: true,
			min: time.Minute, max: time.Minute},
		"the target asks for an hour": {attempts: 1, retryAfter: time.Hour, free: true, min: 5 * time.Minute, max: 5 * time.Minute},
		"the target asks for less than the backoff": {attempts: 1, change: []func(*task.Assigned){earlier(9, time.Minute)},
			retryAfter: time.Millisecond, free: true, max: 30 * time.Second},
		"sent before, then not": {attempts: 2, change: []func(*task.Assigned){func(a *task.Assigned) {
			a.Attempt, a.Attempts = 2, []task.Attempt{{Attempt: 1, State: task.Failed}}
		}}, free: true, max: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			a := requestOf(c.attempts, func(a *task.Assigned) {
				for _, f := range c.change {
					f(a)
				}
			})
			end := unsentEnd(a, retryStart)
			if c.end != nil {
				c.end(&end)
			}

			for _, spread := range []float64{0, 0.5, 0.999} {
				w := nextAttempt(a, end, c.retryAfter, retryStart, spread)
				if (w != nil) != (c.free || c.retried) {
					t.Fatalf("got %+v", w)
				}
				if w == nil {
					continue
				}

				if wait := w.NotBefore.Sub(retryStart); wait < c.min || wait > c.max {
					t.Errorf("spread %v: it waits %s, want %s to %s", spread, wait, c.min, c.max)
				}
				if w.Attempt != a.Attempt+1 || w.State != task.Queued {
					t.Errorf("got %+v", w)
				}

				if !c.free {
					checkCounted(t, a, w)
					continue
				}
				checkFree(t, a, w)
			}
		})
	}
}

// checkCounted checks an attempt that follows one that counts.
func checkCounted(t *testing.T, a task.Assigned, w *task.Waiting) {
	t.Helper()
	if w.Reason != task.ReasonRetry || w.NotBeforeBy != "" || len(w.Attempts) != len(a.Attempts)+1 || w.Unsent != a.Unsent {
		t.Errorf("got %+v", w)
	}
}

// checkFree checks an attempt that follows one that was not sent.
func checkFree(t *testing.T, a task.Assigned, w *task.Waiting) {
	t.Helper()
	if w.Reason != task.ReasonTarget || w.NotBeforeBy != task.NotBeforeByTarget || len(w.Attempts) != len(a.Attempts) {
		t.Errorf("got %+v", w)
	}

	want := task.Unsent{Count: 1, First: task.At(retryStart), Last: task.At(retryStart), Message: "connection refused"}
	if a.Unsent != nil {
		want.Count, want.First = a.Unsent.Count+1, a.Unsent.First
	}
	if w.Unsent == nil || *w.Unsent != want {
		t.Errorf("got %+v, want %+v", w.Unsent, want)
	}
	if w.CountedAttempt() != a.CountedAttempt() {
		t.Errorf("attempt %d counts as %d, and the one before as %d", w.Attempt, w.CountedAttempt(), a.CountedAttempt())
	}
}

// Verifies: G54
func TestNext_BackoffCountsAttemptsThatCount(t *testing.T) {
	a := requestOf(5, func(a *task.Assigned) {
		a.Attempt, a.Unsent, a.Retry.Jitter = 9, &task.Unsent{Count: 7, First: task.At(retryStart)}, 0
	})
	end := unsentEnd(a, retryStart)
	end.Reason = task.ReasonAnswer

	w := Next(a, end, retryStart, 0.5)
	if w == nil || w.NotBefore.Sub(retryStart) != 20*time.Second || w.Unsent.Count != 7 {
		t.Errorf("the second attempt that counts is followed by %+v, want one after 20s", w)
	}
}

// Verifies: G54
func TestNext_KeepsWhatPreventedTheAttempt(t *testing.T) {
	a := requestOf(1, nil)
	end := unsentEnd(a, retryStart)

	for _, prefix := range []string{process.NotSentPrefix, targetDownPrefix, targetDownPrefix + process.NotSentPrefix} {
		end.Message = prefix + "connection refused"
		if w := Next(a, end, retryStart, 0); w.Unsent.Message != "connection refused" {
			t.Errorf("%q is kept as %q", end.Message, w.Unsent.Message)
		}
	}
}

// A run ends after at most retry.attempts attempts that count, and attempts are free only until unsent_for after
// the end of the first of them.
//
// Verifies: G54
func TestNext_NeverGivesMoreThanThePolicyAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := time.Duration(rapid.IntRange(0, 3).Draw(t, "minutes")) * time.Minute
		a := requestOf(rapid.IntRange(1, 4).Draw(t, "attempts"), func(a *task.Assigned) { a.Action.HTTP.UnsentFor = new(task.Duration(limit)) })
		now, counted, free := retryStart, 0, 0
		var first time.Time

		for i := 0; ; i++ {
			now = now.Add(time.Duration(rapid.IntRange(0, 60_000).Draw(t, "took")) * time.Millisecond)
			end := unsentEnd(a, now)
			unsent := rapid.IntRange(0, 3).Draw(t, "unsent") > 0
			if !unsent {
				end.Reason = task.ReasonAnswer
			}

			asked := time.Duration(rapid.SampledFrom([]int{0, 0, 1, 100, 1000}).Draw(t, "retry after")) * time.Second
			w := nextAttempt(a, end, asked, now, rapid.Float64Range(0, 0.999).Draw(t, "spread"))

			isFree := w != nil && w.NotBeforeBy == task.NotBeforeByTarget
			if isFree {
				if free++; free == 1 {
					first = now
				}
				if !unsent || now.Sub(first) > limit || !w.Unsent.First.Equal(first) || w.Unsent.Count != free {
					t.Fatalf("free %s after the first (sent: %v): %+v", now.Sub(first), !unsent, w.Unsent)
				}
			} else if counted++; counted > a.Retry.Attempts {
				t.Fatalf("%d attempts count", counted)
			}

			if w == nil {
				if counted != a.Retry.Attempts {
					t.Fatalf("the run ended after %d of %d attempts", counted, a.Retry.Attempts)
				}
				return
			}

			if w.Attempt != i+2 || len(w.Attempts) != counted || w.CountedAttempt() != counted+1 {
				t.Fatalf("attempt %d lists %d and counts as %d; %d have counted", w.Attempt, len(w.Attempts), w.CountedAttempt(), counted)
			}
			if wait := w.NotBefore.Sub(now); isFree && wait > max(task.MaxUnsentBackoff, a.Retry.MaxBackoff.Std()) {
				t.Fatalf("it waits %s", wait)
			}

			a.Run = w.Run
			now = w.NotBefore.Time
		}
	})
}

// Verifies: G54
func TestNext_FullJitterSpreadsTheAttempts(t *testing.T) {
	a := requestOf(1, func(a *task.Assigned) { a.Attempt, a.Unsent = 7, &task.Unsent{Count: 6, First: task.At(retryStart)} })

	for spread, want := range map[float64]time.Duration{0: 0, 0.1: 3 * time.Second, 0.5: 15 * time.Second, 0.9: 27 * time.Second} {
		if got := Next(a, unsentEnd(a, retryStart), retryStart, spread).NotBefore.Sub(retryStart); got != want {
			t.Errorf("%s: got %s, want %s", fmt.Sprint(spread), got, want)
		}
	}
}

// A start deadline is about the first attempt that starts. A target that asks to wait has received a request.
//
// Verifies: G54
func TestNext_KeepsTheStartDeadlineUntilSomethingWasSent(t *testing.T) {
	deadline := task.At(retryStart.Add(time.Minute))
	a := requestOf(1, func(a *task.Assigned) { a.StartBefore = deadline })

	w := Next(a, unsentEnd(a, retryStart), retryStart, 0)
	if !w.StartBefore.Equal(deadline.Time) {
		t.Errorf("the deadline is %s", w.StartBefore)
	}

	a.Run = w.Run
	end := unsentEnd(a, retryStart.Add(time.Second))
	end.StartedAt = task.At(retryStart)
	if w = Next(a, end, retryStart.Add(time.Second), 0); !w.StartBefore.IsZero() || w.Unsent.Count != 2 {
		t.Errorf("the deadline is %s after %d attempts", w.StartBefore, w.Unsent.Count)
	}
}
