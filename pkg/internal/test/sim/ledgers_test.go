package sim

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/test/pasttick"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

// A mutant that does not compare the count of a span with the ticks of the schedule says that a tick succeeded which did
// not, and whose record was deleted without a fold. The mutant is forged: a span that counts all ticks.
func TestMutants_CountIgnoredIsCaught(t *testing.T) {
	created := simulationStart.Add(-time.Minute)
	spec := task.Defaults()
	spec.Namespace, spec.Name, spec.Schedule, spec.Action.Noop = simNamespace, "t00", task.Schedules{"* * * * * *"}, &task.Noop{}
	stored := &task.Task{Spec: spec, UID: "abcdabcdabcdabcd", Generation: 1, CreatedAt: task.At(created), UpdatedAt: task.At(created)}
	entry := task.NewEntry(*stored, task.At(created), task.At(created))

	failed := pasttick.Tick{At: task.At(simulationStart.Add(5 * time.Second)), State: task.Failed}
	ask := func(count int64) task.Answer {
		now := simulationStart.Add(time.Hour)
		return why.For(why.Facts{
			Namespace: simNamespace, Name: "t00", Task: stored, Entry: &entry, Now: now, Newer: 20,
			Watermark: &why.Watermark{Time: now, All: true}, Covered: true,
			Ledger: &ledger.Book{Since: simulationStart, Lines: []task.LedgerLine{
				{Kind: task.LedgerSucceeded, First: task.At(simulationStart), Last: task.At(simulationStart.Add(10 * time.Second)), Count: count},
			}},
		}, why.Question{At: why.Instant(failed.At.Time), Timezone: "UTC"})
	}

	if a := ask(10); failed.Contradiction(a) != "" || a.Verdict != task.VerdictForgotten {
		t.Errorf("ten of eleven ticks succeeded, and the answer is %s: %s", a.Verdict, a.Sentence)
	}

	if a := ask(11); failed.Contradiction(a) == "" {
		t.Errorf("not caught: %s: %s", a.Verdict, a.Sentence)
	}
}
