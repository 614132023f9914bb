// Package pasttick compares what Carillon answers about past ticks with what the history of etcd has shown. An answer may say
// that a record is gone, but nothing else than what happened (G31).
//
// The package is only for tests.
package pasttick

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Tick is a tick with an outcome that the history has shown.
type Tick struct {
	At    task.Time
	State task.State
}

// List returns the ticks of all records that the histories of the present tasks have ever had, by task and in order. Of a
// record of several ticks it returns the first and the last one.
func List(keys record.Keys, events []check.Event) map[record.Ref][]Tick {
	uids := map[record.Ref]string{}

	// Records may be rewritten, as those of ticks that did not run are.
	type ended struct {
		ref record.Ref
		run task.Run
	}
	latest := map[string]ended{}

	for _, e := range events {
		k, ok := keys.ParseShard(e.Key)
		switch {
		case !ok:
		case k.Kind == record.KindEntry && e.Deleted:
			delete(uids, k.Ref)
		case k.Kind == record.KindEntry:
			if t, err := record.DecodeEntry(e.Value); err == nil {
				uids[k.Ref] = t.UID
			}
		case k.Kind == record.KindEnded && !k.Late && !e.Deleted:
			if r, err := record.DecodeEnded(k, e.Value); err == nil {
				latest[e.Key] = ended{k.Ref, r}
			}
		}
	}

	ticks := map[record.Ref][]Tick{}
	for _, e := range latest {
		r := e.run
		if r.UID != uids[e.ref] || r.Trigger != task.TriggerSchedule && r.Trigger != task.TriggerCatchUp {
			continue
		}

		ticks[e.ref] = append(ticks[e.ref], Tick{r.ScheduledTime, r.State})
		if r.Count > 1 {
			ticks[e.ref] = append(ticks[e.ref], Tick{r.Last, r.State})
		}
	}

	for _, all := range ticks {
		slices.SortFunc(all, func(a, b Tick) int { return a.At.Compare(b.At.Time) })
	}

	return ticks
}

// Question returns the question to the API about the tick.
func (t Tick) Question() client.WhyQuestion {
	return client.WhyQuestion{At: t.At.UTC().Format("2006-01-02T15:04:05.000Z"), Timezone: "UTC"}
}

// Contradiction returns what is wrong with an answer about the tick; "" if nothing is.
func (t Tick) Contradiction(a task.Answer) string {
	switch {
	case string(a.Verdict) == string(t.State), t.followsSlowWrite(a):
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

// slowWrite is how long after its time stamp a write of the API is applied at most: a request may take 15 s, and etcd may
// receive it later still. A tick that is due so soon after the time that a pause or a version names may have been decided
// before that was written. why goes by that time for ticks that the ledger does not name.
const slowWrite = 20 * time.Second

// followsSlowWrite reports whether the answer says that the tick did not exist, and the tick may have been decided before the
// pause or the version was written.
func (t Tick) followsSlowWrite(a task.Answer) bool {
	if a.Run != nil || a.Verdict == task.VerdictSucceeded {
		return false
	}

	follows := func(since task.Time) bool { return !t.At.Before(since.Time) && t.At.Sub(since.Time) < slowWrite }

	return a.Pause != nil && follows(a.Pause.Since) || a.Version != nil && follows(a.Version.Since)
}
