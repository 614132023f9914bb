package pasttick

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// timeFormat is the form of times in questions. They are in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// Question returns the question to the API about the tick.
func (t Tick) Question() client.WhyQuestion {
	return client.WhyQuestion{At: t.At.UTC().Format(timeFormat), Timezone: "UTC"}
}

// RangeQuestion returns the question to the API about all ticks of a task between two times.
func RangeQuestion(from, to time.Time) client.WhyQuestion {
	return client.WhyQuestion{From: from.UTC().Format(timeFormat), To: to.UTC().Format(timeFormat), Timezone: "UTC"}
}

// Contradiction returns what is wrong with an answer about the tick, or "" if it is correct.
func (t Tick) Contradiction(a task.Answer) string {
	switch {
	case string(a.Verdict) == string(t.State), t.wasDecidedBeforeChange(a):
		return ""
	// The task was deleted after the events, with its history and its ledger.
	case a.Verdict == task.VerdictNoTask && a.Deleted != nil && !a.Deleted.At.Before(t.At.Time):
		return ""
	case a.Verdict != task.VerdictForgotten && a.Verdict != task.VerdictUnreadable:
		return fmt.Sprintf("its outcome was %s", t.State)
	case len(a.Unknown) == 0:
		return "the answer does not say what is not on record"
	case t.State == task.Succeeded && strings.Contains(a.Sentence, "did not succeed;"):
		return "it succeeded"
	}

	return ""
}

// wasDecidedBeforeChange reports whether the answer denies the tick because of a pause or a version whose write did not compare the
// watermark and came after the decision of the tick.
func (t Tick) wasDecidedBeforeChange(a task.Answer) bool {
	if a.Run != nil || a.Verdict == task.VerdictSucceeded || t.changes == nil {
		return false
	}

	precedes := func(since task.Time, rev int64) bool {
		return !t.At.Before(since.Time) && t.decided != 0 && t.decided < rev
	}

	return a.Pause != nil && precedes(a.Pause.Since, t.changes.pauses[a.Pause.Since]) ||
		a.Version != nil && precedes(a.Version.Since, t.changes.versions[a.Version.Generation])
}

// RangeContradictions returns what is wrong with an answer about a range that contains all ticks of a task. The answer must not count
// more ticks of a state than the history contains. Unless it says that something is unknown, it must not count fewer either.
func (p Past) RangeContradictions(ref record.Ref, a task.Answer) (wrong []string) {
	complete := a.Counts[task.VerdictForgotten]+a.Counts[task.VerdictUnreadable] == 0 && len(a.Unknown) == 0
	for _, s := range task.States() {
		if !s.Final() {
			continue
		}

		has, said := p.Counts[ref][s], a.Counts[task.Verdict(s)]
		if said > has || complete && said < has {
			wrong = append(wrong, fmt.Sprintf("%d %s ticks, and the history has shown %d", said, s, has))
		}
	}

	return wrong
}

// LedgerContradiction checks the time from which a ledger claims to be complete. It reports later ticks that are neither in the ledger
// nor in the history, or returns "" if there are none.
func (p Past) LedgerContradiction(ref record.Ref, l client.TaskLedger) string {
	if l.CompleteSince.IsZero() || l.More > 0 {
		return ""
	}

	tells := func(at task.Time) bool {
		return slices.ContainsFunc(l.Lines, func(line task.LedgerLine) bool {
			return !at.Before(line.First.Time) && !at.After(line.Last.Time)
		})
	}

	var gone []Tick
	for _, t := range p.Ticks[ref] {
		if !t.At.Before(l.CompleteSince.Time) && !t.kept && !tells(t.At) {
			gone = append(gone, t)
		}
	}

	if len(gone) == 0 {
		return ""
	}

	return fmt.Sprintf("complete since %s, and %d later ticks are neither in the ledger nor in the history; the first is that of %s", l.CompleteSince, len(gone), gone[0].At)
}
