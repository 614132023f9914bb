package pasttick

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// timeFormat is the form of times in questions. They are in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// Question returns the question to the API about the tick.
func (t Tick) Question() client.WhyQuestion {
	return client.WhyQuestion{At: t.At.UTC().Format(timeFormat), Timezone: "UTC"}
}

// Contradiction returns what is wrong with an answer about the tick; "" if nothing is.
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

// wasDecidedBeforeChange reports whether the answer denies the tick because of a pause or a version that was written after the
// tick had been decided, without a comparison.
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
