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

// AddLine adds what a line of a ledger says about the ticks from since on; a zero since means all. If the line begins before
// since, their number is estimated: as if the ticks of the line had equal distances.
func (s *Stats) AddLine(l *task.LedgerLine, since time.Time) {
	n, exact := countSince(l, since)
	if n == 0 {
		return
	}

	first := firstTick(l)
	if first.Before(since) {
		first = task.At(since)
	}
	s.ledger.Approximate = s.ledger.Approximate || !exact

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

// firstTick returns the first tick of a line. The line of an hour begins with the hour, but its first ticks are named.
func firstTick(l *task.LedgerLine) task.Time {
	if l.Kind == task.LedgerHour && len(l.Named) > 0 {
		return l.Named[0]
	}

	return l.First
}

// countSince returns how many ticks of a line are not before since. exact is false if that is an estimate.
func countSince(l *task.LedgerLine, since time.Time) (n int64, exact bool) {
	if l.Kind != task.LedgerHour {
		return countPart(l.Count, l.First.Time, l.Last.Time, since)
	}

	n, exact = countPart(l.Count-int64(len(l.Named)), l.HiddenFirst.Time, l.HiddenLast.Time, since)
	for _, tick := range l.Named {
		if !tick.Before(since) {
			n++
		}
	}

	// Which of the states each tick had is not known.
	return n, exact && (n == 0 || n == l.Count)
}

// countPart returns how many of count ticks from first to last, both inclusive, are not before since.
func countPart(count int64, first, last, since time.Time) (n int64, exact bool) {
	switch {
	case count == 0 || last.Before(since):
		return 0, true
	case !first.Before(since):
		return count, true
	}

	return 1 + int64(math.Round(float64(count-1)*float64(last.Sub(since))/float64(last.Sub(first)))), false
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

// failureOf returns a failure with the reason as a ledger records it, so that it is counted together with those in the
// history.
func failureOf(state task.State, reason string) failure {
	f := failure{state: state}

	var code *int
	if f.reason, code, f.signal, f.httpStatus = task.ParseLedgerReason(reason); code != nil {
		f.exited, f.exitCode = true, *code
	}

	return f
}
