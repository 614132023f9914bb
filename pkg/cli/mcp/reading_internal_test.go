package mcp

import (
	"slices"
	"testing"

	runcmd "github.com/carillonhq/carillon/pkg/cli/run"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// An answer that is too long loses the parts that succeeded first.
func TestRunAnswer_Shorten(t *testing.T) {
	a := &runAnswer{ShownRun: runcmd.ShownRun{Run: task.Run{FanOut: task.FanOut{Fan: &task.Fan{}}}, Steps: &client.RunSteps{Steps: []client.RunStep{{Parts: make([]client.StepPart, 3)}, {Parts: make([]client.StepPart, 1)}}}}}
	for _, state := range []task.State{task.Succeeded, task.Failed, task.Succeeded, task.Running} {
		a.Fan.Parts = append(a.Fan.Parts, task.Part{State: state})
	}

	var sizes [][3]int
	for a.shorten() {
		sizes = append(sizes, [3]int{len(a.Fan.Parts), len(a.Steps.Steps[0].Parts), len(a.Steps.Steps[1].Parts)})
	}
	if want := [][3]int{{2, 3, 1}, {1, 3, 1}, {0, 3, 1}, {0, 1, 1}, {0, 0, 0}}; !slices.Equal(sizes, want) || !a.More {
		t.Errorf("%v, more: %t, want %v", sizes, a.More, want)
	}
}

// Of each step, only the first items are read.
func TestRunAnswer_SaysThatAStepHasMoreItems(t *testing.T) {
	for items, want := range map[int]bool{0: false, 20: false, 21: true} {
		r := runcmd.ShownRun{Steps: &client.RunSteps{Steps: []client.RunStep{{Items: 1, Parts: make([]client.StepPart, 1)}, {Items: items, Parts: make([]client.StepPart, min(items, 20))}}}}
		if a := newRunAnswer(r); a.More != want {
			t.Errorf("of %d items: more: %t", items, a.More)
		}
	}
}
