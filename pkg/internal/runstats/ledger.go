package runstats

import (
	"math"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// successes sums up how long successful runs took.
type successes struct {
	count, sumMS, maxMS, maxLatenessMS int64
}

// add adds runs that took sumMS together.
func (s *successes) add(count, sumMS, maxMS, maxLatenessMS int64) {
	s.count += count
	s.sumMS += sumMS
	s.maxMS, s.maxLatenessMS = max(s.maxMS, maxMS), max(s.maxLatenessMS, maxLatenessMS)
}

// summary returns the sum; nil if there are no runs.
func (s *successes) summary() *client.SuccessfulRuns {
	if s.count == 0 {
		return nil
	}

	return &client.SuccessfulRuns{Count: s.count, MeanMS: s.sumMS / s.count, MaxMS: s.maxMS, MaxLatenessMS: s.maxLatenessMS}
}

// AddLine adds what a line of a ledger tells of the ticks from since on; a zero since means all. If the line begins before
// since, their number is estimated: as if the ticks of the line had equal distances.
func (s *Stats) AddLine(l *task.LedgerLine, since time.Time) {
	n := l.Count
	first := l.First
	if first.Before(since) {
		if l.Last.Before(since) {
			return
		}

		n, first = countSince(l, since), task.At(since)
		s.ledger.Approximate = true
	}

	if s.ledger.Since.IsZero() || first.Before(s.ledger.Since.Time) {
		s.ledger.Since = first
	}

	switch l.Kind {
	case task.LedgerSucceeded:
		s.addEnded(task.Succeeded, "", n)
		s.successful.add(n, n*l.MeanMS, l.MaxMS, l.MaxLatenessMS)
	case task.LedgerException, task.LedgerRequested:
		s.addEnded(l.State, l.Reason, n)
	case task.LedgerHour, task.LedgerRequestedMore:
		for cause, count := range l.Causes {
			state, reason, _ := strings.Cut(cause, ": ")
			s.addEnded(task.State(state), reason, share(count, n, l.Count))
		}
	case task.LedgerUnreadable:
		s.ledger.Unreadable += n
	}
}

// countSince estimates how many ticks of a line are not before since. The last tick is one of them.
func countSince(l *task.LedgerLine, since time.Time) int64 {
	whole, after := l.Last.Sub(l.First.Time), l.Last.Sub(since)
	if whole <= 0 {
		return l.Count
	}

	return 1 + int64(math.Round(float64(l.Count-1)*float64(after)/float64(whole)))
}

// share returns the part of count that n is of all, rounded.
func share(count, n, all int64) int64 {
	if n >= all {
		return count
	}

	return int64(math.Round(float64(count) * float64(n) / float64(all)))
}

// addEnded counts n ticks or runs of the ledger that ended in a state.
func (s *Stats) addEnded(state task.State, reason string, n int64) {
	if n == 0 {
		return
	}

	switch state {
	case task.Skipped:
		addTo(&s.skipped, reason, n)
		return
	case task.Missed:
		addTo(&s.missed, reason, n)
		return
	}

	s.runs += int(n)
	s.ledger.Runs += int(n)
	addTo(&s.outcomes, state, int(n))

	switch state {
	case task.Failed, task.TimedOut, task.Lost:
		addTo(&s.failures, failureOf(state, reason), int(n))
	}
}

// failureOf returns a failure with the reason as a ledger tells it, so that it is counted together with those in the
// history.
func failureOf(state task.State, reason string) failure {
	f := failure{state: state}

	var code *int
	if f.reason, code, f.signal, f.httpStatus = task.ParseLedgerReason(reason); code != nil {
		f.exited, f.exitCode = true, *code
	}

	return f
}
