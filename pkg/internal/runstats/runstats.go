// Package runstats sums up how the runs of a task ended: how many succeeded, how long they took, how late they started,
// and why they failed.
//
// The quantiles are exact, and of the history only: a ledger records how long successful runs took on average and at most. A
// history has at most some 10,000 records (history.keep), so it is cheaper to keep all measurements and to sort them than to
// use a sketch, which would only estimate the quantiles. If there are more than 100,000 nevertheless, the newest ones count.
//
// The package is pure: no I/O and no clock.
package runstats

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	maxMeasured = 100_000 // the maximum number of measurements
	maxRecent   = 60      // the maximum number of states
	maxFailures = 20      // the maximum number of reasons
)

// Stats collects the records of a history. The zero value is empty.
type Stats struct {
	runs             int
	outcomes         map[task.State]int
	durations        newest[int64] // in milliseconds, as latenesses
	latenesses       newest[int64]
	retries, retried int
	skipped, missed  map[string]int64
	failures         map[failure]int
	recent           newest[task.State]
	successful       successes
	ledger           client.LedgerStats
}

// failure is what failed runs have in common that are counted together.
type failure struct {
	state          task.State
	reason, signal string
	exited         bool // exitCode is known
	exitCode       int
	httpStatus     int // 0: not known
}

// Add adds a record. The records of ticks must be added in the order of time.
func (s *Stats) Add(r *task.Run) {
	if !r.State.Final() {
		return
	}

	s.recent.add(r.State, maxRecent)

	switch r.State {
	case task.Skipped:
		addTo(&s.skipped, r.Reason, max(r.Count, 1))
		return
	case task.Missed:
		addTo(&s.missed, r.Reason, max(r.Count, 1))
		return
	}

	s.runs++
	addTo(&s.outcomes, r.State, 1)
	if n := r.CountedAttempt(); n > 1 { // attempts that were not sent do not count as retries
		s.retried++
		s.retries += n - 1
	}

	// When a lost run has ended is not known.
	if r.State != task.Lost && !r.StartedAt.IsZero() && !r.EndedAt.IsZero() {
		took := max(r.EndedAt.Sub(r.StartedAt.Time).Milliseconds(), 0)
		s.durations.add(took, maxMeasured)
		if r.State == task.Succeeded {
			s.successful.add(1, took, took, latenessOf(r))
		}
	}
	if r.LatenessMS != nil {
		s.latenesses.add(*r.LatenessMS, maxMeasured)
	}

	switch r.State {
	case task.Failed, task.TimedOut, task.Lost:
		addTo(&s.failures, failureOfRun(r), 1)
	}
}

// failureOfRun returns what a failed run has in common with others. As in a ledger, the exit code, the signal and the status
// count only if they are the reason.
func failureOfRun(r *task.Run) failure {
	f := failure{state: r.State, reason: r.Reason}

	switch {
	case r.Reason == task.ReasonExit && r.ExitCode != nil:
		f.exited, f.exitCode = true, *r.ExitCode
	case r.Reason == task.ReasonSignal:
		f.signal = r.Signal
	case r.Reason == task.ReasonAnswer:
		f.httpStatus = r.HTTPStatus
	}

	return f
}

// latenessOf returns how late a run started, or 0 if that is not known.
func latenessOf(r *task.Run) int64 {
	if r.LatenessMS == nil {
		return 0
	}

	return *r.LatenessMS
}

// addTo adds n to an entry of a map.
func addTo[K comparable, N int | int64](m *map[K]N, key K, n N) {
	if *m == nil {
		*m = map[K]N{}
	}
	(*m)[key] += n
}

// Sum returns what was collected, for a task with these settings of its history. If history.record: failures has removed
// successful runs, their share is known only if complete says that the ledger has all of them. s must not be used
// afterwards.
func (s *Stats) Sum(h task.History, complete bool) client.TaskStats {
	sum := client.TaskStats{
		History: h, Runs: s.runs, Outcomes: map[task.State]int{}, Duration: quantilesOf(s.durations.list), Lateness: quantilesOf(s.latenesses.list),
		Retries: s.retries, RetriedRuns: s.retried, Skipped: map[string]int64{}, Missed: map[string]int64{},
		Failures: s.countFailures(), Recent: s.recent.inOrder(), Successful: s.successful.summary(),
	}
	if !s.ledger.Since.IsZero() {
		sum.Ledger = &s.ledger
	}

	maps.Copy(sum.Outcomes, s.outcomes)
	maps.Copy(sum.Skipped, s.skipped)
	maps.Copy(sum.Missed, s.missed)

	if judged := s.runs - s.outcomes[task.Cancelled]; judged > 0 && (complete || h.Record != task.RecordFailures) {
		rate := float64(s.outcomes[task.Succeeded]) / float64(judged)
		sum.SuccessRate = &rate
	}

	return sum
}

// countFailures returns the most frequent reasons why runs did not succeed.
func (s *Stats) countFailures() []client.FailureCount {
	list := make([]client.FailureCount, 0, len(s.failures))
	for f, n := range s.failures {
		count := client.FailureCount{State: f.state, Reason: f.reason, Signal: f.signal, HTTPStatus: f.httpStatus, Runs: n}
		if f.exited {
			count.ExitCode = &f.exitCode
		}
		list = append(list, count)
	}

	slices.SortFunc(list, func(a, b client.FailureCount) int {
		return cmp.Or(cmp.Compare(b.Runs, a.Runs), strings.Compare(string(a.State), string(b.State)), strings.Compare(a.Reason, b.Reason),
			strings.Compare(a.Signal, b.Signal), cmp.Compare(exitCode(a), exitCode(b)), cmp.Compare(a.HTTPStatus, b.HTTPStatus))
	})

	return list[:min(len(list), maxFailures)]
}

// exitCode returns the exit code of failures, or -1.
func exitCode(f client.FailureCount) int {
	if f.ExitCode == nil {
		return -1
	}
	return *f.ExitCode
}

// quantilesOf returns the quantiles of values, which it sorts; nil if there are none.
func quantilesOf(values []int64) *client.Quantiles {
	n := len(values)
	if n == 0 {
		return nil
	}

	slices.Sort(values)

	// The smallest value that at least this percentage of the values does not exceed.
	rank := func(percent int) int64 { return values[(n*percent+99)/100-1] }

	return &client.Quantiles{Count: n, P50MS: rank(50), P95MS: rank(95), P99MS: rank(99), MaxMS: values[n-1]}
}

// newest keeps the last values that were added.
type newest[T any] struct {
	list []T
	at   int // where the next value goes when the list is full; the oldest value is there
}

// add adds a value, and keeps at most limit of them.
func (n *newest[T]) add(v T, limit int) {
	if len(n.list) < limit {
		n.list = append(n.list, v)
		return
	}

	n.list[n.at] = v
	n.at = (n.at + 1) % limit
}

// inOrder returns the values, the newest last.
func (n *newest[T]) inOrder() []T {
	return append(append(make([]T, 0, len(n.list)), n.list[n.at:]...), n.list[:n.at]...)
}
