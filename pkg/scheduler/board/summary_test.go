package board

import (
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// A list has no room for all runs that wait, so those on which somebody may have to act come first.
func TestFirstWait_PutsFirstWhatNeedsAttention(t *testing.T) {
	t.Parallel()
	unsent := &task.Unsent{Count: 1}
	runs := []Waiting{
		{Run: "1", Reason: task.ReasonOverlap}, {Run: "2", Reason: task.ReasonTarget}, {Run: "3", Reason: task.ReasonTarget, Unsent: unsent},
		{Run: "4", Reason: task.ReasonRetry, Unsent: unsent}, {Run: "5", Reason: task.ReasonNoNode},
	}
	slices.SortFunc(runs, FirstWait)

	var order string
	for _, r := range runs {
		order += r.Run
	}

	if order != "53124" {
		t.Errorf("the order is %s", order)
	}
}
