package scheduler

import (
	"testing"

	mutants "github.com/carillonhq/carillon/pkg/internal/test/mutant" // the overlay declares a function mutant
	"github.com/carillonhq/carillon/pkg/task"
)

// A trigger that was changed by somebody else starts its run late if it is not applied.
func TestMutants_OfTheSchedulerAreCaught(t *testing.T) {
	for _, name := range mutants.Names(mutants.Scheduler) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if is, _ := mutants.InProcess(t, name); is && startsAfterChange(t) {
				t.Error("not caught")
			}
		})
	}
}

// Each mutant of what an owner does after a restore must fail the test that stands for its promise.
func TestMutants_OfGapsAreCaught(t *testing.T) {
	catches := map[string]string{
		"until-by-tick":      "TestGap_CountsWhenATickIsDue",
		"queue-runs-again":   "TestGap_RunsThatWait",
		"parts-run-again":    "TestGap_RunsWithParts",
		"triggers-run-again": "TestGap_Triggers",
		"move-loses-queue":   "TestGap_AMoveLosesNothing",
		"ttl-takes-gap":      "TestGap_TasksOutliveTheirTTL",
	}

	for _, name := range mutants.Names(mutants.Gaps) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mutants.FailsTest(t, name, catches[name])
		})
	}
}

func TestTake_StartsTheRunOfAChangedTrigger(t *testing.T) {
	t.Parallel()
	if !startsAfterChange(t) {
		t.Error("the trigger has changed, and no run starts")
	}
}

// startsAfterChange reports whether a trigger that has changed starts its run in the next round, while the watch of the owner is silent.
func startsAfterChange(t *testing.T) bool {
	w, h := newSource(t)
	id := w.putEnd("a", 1, task.Succeeded)
	h.see()
	h.send()
	h.see()

	key := w.store.Keys().Trigger(ref("b"), "a", id)
	res, err := w.client.Get(w.ctx, key)
	w.ok(err)
	w.put(key, string(res.Kvs[0].Value))
	h.blind(1)

	return len(w.runs("b")) > 0
}
