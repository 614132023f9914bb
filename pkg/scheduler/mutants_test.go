package scheduler

import (
	"testing"

	mutants "github.com/carillonhq/carillon/pkg/internal/test/mutant" // the overlay declares a function mutant
	"github.com/carillonhq/carillon/pkg/task"
)

// Each mutant of the scheduler must fail the test that stands for its promise.
func TestMutants_OfTheSchedulerAreCaught(t *testing.T) {
	catches := map[string]string{
		"conflict-unapplied":        "TestTake_StartsTheRunOfAChangedTrigger",
		"pause-unjudged":            "TestAlerts_OfFurtherPauses",
		"frozen-pause-counts-twice": "TestFlow_FreezeInAPauseCountsOnce",
		"until-by-tick":             "TestGap_CountsWhenATickIsDue",
		"queue-runs-again":          "TestGap_RunsThatWait",
		"parts-run-again":           "TestGap_RunsWithParts",
		"triggers-run-again":        "TestGap_Triggers",
		"move-loses-queue":          "TestGap_AMoveLosesNothing",
		"ttl-takes-gap":             "TestGap_TasksOutliveTheirTTL",
	}

	for _, name := range mutants.Names(mutants.Scheduler) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mutants.FailsTest(t, name, catches[name])
		})
	}
}

// A trigger that has changed starts its run in the next round, while the watch of the owner is silent.
func TestTake_StartsTheRunOfAChangedTrigger(t *testing.T) {
	t.Parallel()
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

	if len(w.runs("b")) == 0 {
		t.Error("the trigger has changed, and no run starts")
	}
}
