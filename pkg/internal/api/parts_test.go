package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// brief summarizes runs: the end of the id, the state and the node.
func brief(runs []task.Run) string {
	var s []string
	for _, r := range runs {
		_, name, _ := strings.Cut(r.ID, "Z-")
		s = append(s, strings.TrimSpace(fmt.Sprintf("%s:%s %s", name, r.State, r.Node)))
	}

	return strings.Join(s, ", ")
}

// Parts are listed like runs on request, wherever they are recorded.
func TestRuns_ListPartsIfAskedFor(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.create("b", "@daily")
	over, now := id(1, "aaaa"), id(2, "aaaa")
	w.ended("a", over, task.Failed, func(r *task.Run) {
		r.Node, r.Reason = "", task.ReasonParts
		r.Fan = &task.Fan{Count: 2, Need: 2, Ended: 2, Succeeded: 1, Parts: []task.Part{
			{Index: 0, State: task.Succeeded, Node: "n1", Attempt: 1}, {Index: 1, State: task.Failed, Node: "n2", Attempt: 1}}}
	})

	w.waiting("a", now, func(r *task.Run) {
		r.State, r.Reason, r.Fan = task.Running, "", &task.Fan{Count: 4, Need: 4, Left: []int{3}}
	})

	w.ended("a", task.PartID(now, 0), task.Succeeded, func(r *task.Run) { r.Node = "n1" })
	w.active("n2", "a", task.PartID(now, 1))
	w.waiting("a", task.PartID(now, 2), func(r *task.Run) { r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, Node: "n1"}} })
	w.ended("b", id(3, "bbbb"), task.Succeeded, func(r *task.Run) { r.Node = "n1" })

	for _, c := range []struct {
		filter client.RunListOptions
		want   string
	}{
		{client.RunListOptions{}, "aaaa:running, aaaa:failed"},
		{client.RunListOptions{Parts: true}, "aaaa-p0002:queued, aaaa-p0001:running n2, aaaa-p0000:succeeded n1, aaaa:running, aaaa-p0001:failed n2, aaaa-p0000:succeeded n1, aaaa:failed"},
		{client.RunListOptions{Parts: true, States: []task.State{task.Failed}}, "aaaa-p0001:failed n2, aaaa:failed"},
		{client.RunListOptions{Parts: true, Since: time.Date(2026, 11, 20, 20, 2, 0, 0, time.UTC)}, "aaaa-p0002:queued, aaaa-p0001:running n2, aaaa-p0000:succeeded n1, aaaa:running"},
		{client.RunListOptions{Parts: true, States: []task.State{task.Queued, task.Running}}, "aaaa-p0002:queued, aaaa-p0001:running n2, aaaa:running"},
		{client.RunListOptions{Node: "n2"}, "aaaa-p0001:running n2, aaaa-p0001:failed n2"},
		{client.RunListOptions{Node: "n2", States: []task.State{task.Running}}, "aaaa-p0001:running n2"},
		{client.RunListOptions{Node: "n1"}, "aaaa-p0002:queued, aaaa-p0000:succeeded n1, aaaa-p0000:succeeded n1"},
	} {
		one, err := w.Runs.ListByTask(ctx, "default", "a", c.filter)
		must(t, err)
		all, err := w.Runs.List(ctx, c.filter)
		must(t, err)

		all = slices.DeleteFunc(all, func(r task.Run) bool { return r.Task == "b" })
		if brief(one) != c.want || brief(all) != c.want {
			t.Errorf("%+v\n of the task: %s\n of all:      %s\n want:        %s", c.filter, brief(one), brief(all), c.want)
		}
	}

	// The result is the same in pages.
	var paged []task.Run
	for page := ""; len(paged) < 20; {
		var l client.List[task.Run]
		must(t, json.Unmarshal([]byte(w.do(request{method: "GET", path: "/v1/runs?parts=true&limit=2" + page}).body), &l))

		if paged = append(paged, l.Items...); l.Next == "" {
			break
		}

		page = "&page=" + l.Next
	}

	if all, err := w.Runs.List(ctx, client.RunListOptions{Parts: true}); err != nil || brief(paged) != brief(all) || len(all) != 8 {
		t.Errorf("pages have %s\nall are %s, %v", brief(paged), brief(all), err)
	}
}

// Lists omit the fields of a run whose size grows with the number of parts.
func TestRuns_ListsSayLittleOfParts(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.waiting("a", id(1, "aaaa"), func(r *task.Run) {
		r.State, r.Reason = task.Running, ""
		r.Fan = &task.Fan{Count: 3, Need: 2, Kept: 1, Nodes: []string{"n1", "n2", "n3"}, Left: []int{1, 2}, Only: []int{1, 2}, Checkpoints: map[int]string{2: "row 17"}}
	})

	runs, err := w.Runs.ListByTask(ctx, "default", "a", client.RunListOptions{})
	must(t, err)

	if b, err := json.Marshal(runs[0].Fan); err != nil || string(b) != `{"count":3,"need":2,"kept":1}` {
		t.Errorf("it says %s, %v", b, err)
	}

	run, err := w.Runs.Get(ctx, "default", "a", id(1, "aaaa"))
	must(t, err)

	if len(run.Fan.Parts) != 2 || run.Fan.Checkpoints[2] != "row 17" {
		t.Errorf("the run itself says %+v", run.Fan)
	}
}

// Operations that a part or a run with parts does not support are rejected, with a hint at those it supports.
func TestRuns_WithPartsRefuseWhatIsForOthers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	over, now := id(1, "aaaa"), id(2, "aaaa")
	w.ended("a", over, task.Failed, func(r *task.Run) {
		r.Fan = &task.Fan{Count: 1, Need: 1, Ended: 1, Parts: []task.Part{{State: task.Failed, Node: "n2", Attempt: 1}}}
	})

	w.waiting("a", now, func(r *task.Run) {
		r.State, r.Reason, r.Fan = task.Running, "", &task.Fan{Count: 2, Need: 2, Left: []int{1}}
	})

	w.active("n2", "a", task.PartID(now, 0))

	for name, c := range map[string]struct {
		ask  func() (task.Run, error)
		code string
		hint string
	}{
		"cancel of a part that nobody has": {func() (task.Run, error) {
			got, err := w.Runs.Cancel(ctx, "default", "a", task.PartID(now, 1))
			return got.Run, err
		}, client.CodeNotRunning,
			"run cancel " + now},
		"retry of a part": {func() (task.Run, error) {
			got, err := w.Runs.Retry(ctx, "default", "a", task.PartID(over, 0))
			return got.Run, err
		}, client.CodeConflict, "run retry " + over},
	} {
		_, err := c.ask()
		var problem *client.Error
		if !errors.As(err, &problem) || problem.Code != c.code || !strings.Contains(problem.Hint, c.hint) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if got, err := w.Runs.Cancel(ctx, "default", "a", task.PartID(now, 0)); err != nil || got.ID != task.PartID(now, 0) {
		t.Errorf("cancel of a part that a node has: %+v, %v", got, err)
	}
}
