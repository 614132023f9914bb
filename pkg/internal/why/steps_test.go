package why_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

// flowRun is the run of the tests of steps.
const flowRun = "20260310T020000.000Z-uuuu"

// flowFacts are the facts of a run with some steps, at noon.
func flowFacts(steps ...client.RunStep) why.StepFacts {
	return why.StepFacts{
		Run:   task.Run{ID: flowRun, Namespace: "default", Task: "orders", State: task.Failed, Reason: task.ReasonSteps},
		Steps: client.RunSteps{Run: flowRun, OnFailure: task.OnFailureStop, Steps: steps}, Timezone: "UTC", Now: at("12:00:00"),
	}
}

// part returns a part that began at two o'clock.
func part(name string, state task.State, edit func(*client.StepPart)) client.StepPart {
	p := client.StepPart{Name: name, Part: task.Part{State: state}}
	if state != task.Queued {
		p.Node, p.Attempt, p.StartedAt = "n1", 1, task.At(at("02:00:00"))
	}
	if state.Final() {
		p.EndedAt = task.At(at("02:00:00").Add(4 * time.Second))
	}
	if state == task.Failed {
		p.Reason, p.ExitCode = task.ReasonExit, code(3)
	}
	if edit != nil {
		edit(&p)
	}

	return p
}

// ran returns a step without a map, whose part is in a state.
func ran(name string, state task.State, step string, needs ...string) client.RunStep {
	return client.RunStep{Name: name, State: step, Needs: needs, When: "succeeded", Items: 1, OpenedAt: task.At(at("02:00:00")), Parts: []client.StepPart{part(name, state, nil)}}
}

// idle returns a step that has not begun.
func idle(name, state, reason, cause string, needs ...string) client.RunStep {
	return client.RunStep{Name: name, State: state, Reason: reason, Cause: cause, Needs: needs, When: "succeeded"}
}

// mapped returns a step with a map.
func mapped(name, state string, ended, succeeded int, parts ...client.StepPart) client.RunStep {
	return client.RunStep{Name: name, State: state, When: "succeeded", Map: true, MaxParallel: 2, Items: len(parts), Ended: ended, Succeeded: succeeded, OpenedAt: task.At(at("02:00:00")), Parts: parts}
}

// loaded is a step with three items, of which the second has failed.
func loaded() client.RunStep {
	return mapped("load", "failed", 3, 2, part("load/1", task.Failed, nil), part("load/0", task.Succeeded, nil), part("load/2", task.Succeeded, nil))
}

func TestForStep(t *testing.T) {
	extract := ran("extract", task.Succeeded, "succeeded")
	always := func(s client.RunStep) client.RunStep { s.When = "always"; return s }
	after := func(s client.RunStep) client.RunStep { s.When = "failed"; return s }
	cut := func(reason string, edit func(*why.StepFacts)) func(*why.StepFacts) {
		return func(f *why.StepFacts) {
			f.Steps.Cancel = reason
			if edit != nil {
				edit(f)
			}
		}
	}

	for name, c := range map[string]struct {
		steps   []client.RunStep
		edit    func(*why.StepFacts)
		step    string
		verdict task.Verdict
		want    string
	}{
		"succeeded": {[]client.RunStep{extract}, nil, "extract", task.VerdictSucceeded, "Step extract ran on n1 and succeeded after 4s."},
		"failed":    {[]client.RunStep{ran("check", task.Failed, "failed")}, nil, "check", task.VerdictFailed, "Step check ran on n1 and failed with exit code 3."},
		"timed out": {[]client.RunStep{{Name: "check", State: "failed", Items: 1, Parts: []client.StepPart{part("check", task.TimedOut, func(p *client.StepPart) { p.Attempt = 2 })}}}, nil, "check", task.VerdictTimedOut,
			"Step check ran on n1 and was stopped at its timeout, on attempt 2."},
		"lost": {[]client.RunStep{{Name: "check", State: "failed", Items: 1, Parts: []client.StepPart{part("check", task.Lost, func(p *client.StepPart) { p.Reason = task.ReasonNodeLost })}}}, nil, "check", task.VerdictLost,
			"Step check ran on n1 and was lost: its node was lost while it ran."},
		"a map failed": {[]client.RunStep{loaded()}, nil, "load", task.VerdictFailed, "Step load failed: 1 of its 3 items did not succeed (load/1 failed with exit code 3)."},
		"an item":      {[]client.RunStep{loaded()}, nil, "load/1", task.VerdictFailed, "Item 1 of step load ran on n1 and failed with exit code 3."},
		"no such item": {[]client.RunStep{loaded()}, nil, "load/7", task.VerdictForgotten, "Step load has no item 7; its items are 0 to 2."},
		"no such step": {[]client.RunStep{extract}, nil, "load", task.VerdictForgotten, `The run has no step "load".`},

		"no value": {[]client.RunStep{extract, {Name: "load", State: "failed", Reason: task.ReasonValues, Message: `step extract has reported no result "files"`, Needs: []string{"extract"}}}, nil, "load", task.VerdictFailed,
			`Step load could not begin: step extract has reported no result "files".`},
		"needs": {[]client.RunStep{loaded(), idle("check", "skipped", task.ReasonNeeds, "load", "load"), idle("report", "skipped", task.ReasonNeeds, "check", "check")}, nil, "report", task.VerdictSkipped,
			"Step report did not begin, because it needs the success of step check, which did not begin, because it needs the success of step load, which failed: 1 of its 3 items did not succeed (load/1 failed with exit code 3)."},
		"when failed": {[]client.RunStep{extract, after(idle("ticket", "skipped", task.ReasonNeeds, "extract", "extract"))}, nil, "ticket", task.VerdictSkipped,
			"Step ticket did not begin, because it runs only after a failure, and step extract ran on n1 and succeeded after 4s."},
		"stopped": {[]client.RunStep{ran("check", task.Failed, "failed"), idle("other", "skipped", task.ReasonStopped, "check")}, nil, "other", task.VerdictSkipped,
			"Step other did not begin, because on_failure is stop and step check ran on n1 and failed with exit code 3."},
		"stopped map": {[]client.RunStep{ran("check", task.Failed, "failed"), func() client.RunStep {
			s := mapped("other", "cancelled", 1, 1, part("other/0", task.Succeeded, nil), part("other/1", task.Queued, nil))
			s.Reason, s.Cause = task.ReasonStopped, "check"
			return s
		}()}, nil, "other", task.VerdictCancelled, "Step other was stopped: on_failure is stop, and step check ran on n1 and failed with exit code 3; 1 of its 2 items have succeeded."},

		"cancelled before it began": {[]client.RunStep{idle("load", "skipped", task.ReasonCancelled, "")}, cut(task.ReasonCancelled, func(f *why.StepFacts) { f.Run.CancelledBy = task.NewActor("bob") }), "load", task.VerdictSkipped,
			"Step load did not begin, because the run was cancelled by bob."},
		"cancelled": {[]client.RunStep{func() client.RunStep {
			s := ran("load", task.Cancelled, "cancelled")
			s.Reason = task.ReasonCancelled
			return s
		}()}, cut(task.ReasonCancelled, nil), "load", task.VerdictCancelled, "Step load ran on n1 and was cancelled: a user cancelled the run."},
		"timeout":           {[]client.RunStep{idle("load", "skipped", task.ReasonTimeout, "")}, cut(task.ReasonTimeout, nil), "load", task.VerdictSkipped, "Step load did not begin, because the run exceeded its timeout."},
		"replaced":          {[]client.RunStep{idle("load", "skipped", task.ReasonReplaced, "")}, cut(task.ReasonReplaced, nil), "load", task.VerdictSkipped, "Step load did not begin, because a newer tick or ended run replaced the run."},
		"nothing to clean":  {[]client.RunStep{always(idle("clean", "skipped", task.ReasonTimeout, ""))}, cut(task.ReasonTimeout, nil), "clean", task.VerdictSkipped, "Step clean did not begin, because the run exceeded its timeout, and no step before it had begun."},
		"forced":            {[]client.RunStep{always(idle("clean", "skipped", task.ReasonCancelled, ""))}, cut(task.ReasonCancelled, func(f *why.StepFacts) { f.Steps.Forced = true }), "clean", task.VerdictSkipped, "Step clean did not begin, because a user cancelled the run with --force, which also ends the cleanup."},
		"waits":             {[]client.RunStep{ran("extract", task.Running, "running"), idle("load", "waiting", "", "extract", "extract"), idle("check", "waiting", "", "load", "load")}, nil, "check", task.VerdictWaiting, "Step check waits for step load, which waits for step extract, which has been running on n1 since Tue 10 Mar 2026 02:00 UTC."},
		"waits for its run": {[]client.RunStep{idle("extract", "waiting", "", "")}, nil, "extract", task.VerdictWaiting, "Step extract waits: its run has not begun yet."},
		"paused": {[]client.RunStep{idle("load", "ready", "", "")}, func(f *why.StepFacts) {
			f.Steps.PausedAt, f.Steps.PausedBy = task.At(at("03:00:00")), task.NewActor("ann")
		}, "load", task.VerdictWaiting, "Step load has not begun yet: the run has been paused since Tue 10 Mar 2026 03:00 UTC by ann."},
		"frozen": {[]client.RunStep{idle("load", "ready", "", "")}, func(f *why.StepFacts) {
			f.Freeze = &task.Freeze{Since: task.At(at("03:00:00")), By: task.NewActor("ann"), Reason: "maintenance"}
		}, "load", task.VerdictWaiting, `Step load has not begun yet: the cluster has been frozen since Tue 10 Mar 2026 03:00 UTC by ann: "maintenance".`},
		"an item waits":     {[]client.RunStep{mapped("load", "running", 0, 0, part("load/0", task.Running, nil), part("load/1", task.Running, nil), part("load/2", task.Queued, nil))}, nil, "load/2", task.VerdictRunning, "Item 2 of step load waits: 2 items of the step run at once, the most that max_parallel allows."},
		"a map runs":        {[]client.RunStep{mapped("load", "running", 1, 0, part("load/0", task.Failed, nil), part("load/1", task.Running, nil))}, nil, "load", task.VerdictRunning, "Step load has been running since Tue 10 Mar 2026 02:00 UTC; 1 of its 2 items have ended, 1 of them without success."},
		"no items":          {[]client.RunStep{mapped("load", "succeeded", 0, 0)}, nil, "load", task.VerdictSucceeded, "Step load succeeded without running anything: its map has no items."},
		"kept":              {[]client.RunStep{{Name: "extract", State: "succeeded", Kept: 1}}, func(f *why.StepFacts) { f.Steps.Retries = "20260309T020000.000Z-uuuu" }, "extract", task.VerdictSucceeded, "Step extract was not repeated: it had succeeded in run 20260309T020000.000Z-uuuu, which this run retries."},
		"some items kept":   {[]client.RunStep{{Name: "load", State: "succeeded", Map: true, Kept: 2, Items: 1, Ended: 1, Succeeded: 1, Parts: []client.StepPart{part("load/1", task.Succeeded, nil)}}}, func(f *why.StepFacts) { f.Steps.Retries = "R" }, "load", task.VerdictSucceeded, "Step load succeeded: 1 item succeeded, and 2 items had succeeded in run R, which this run retries."},
		"item of a skipped": {[]client.RunStep{extract, idle("load", "skipped", task.ReasonStopped, "extract")}, nil, "load/3", task.VerdictSkipped, "Item 3 of step load did not begin: the step did not begin, because on_failure is stop and step extract ran on n1 and succeeded after 4s."},
		"not started":       {[]client.RunStep{{Name: "check", State: "failed", Items: 1, Parts: []client.StepPart{{Name: "check", Part: task.Part{State: task.Failed, Reason: task.ReasonNamespace, Message: "namespace a no longer allows the user root"}}}}}, nil, "check", task.VerdictFailed, "Step check did not start: it failed: namespace a no longer allows the user root."},
	} {
		f := flowFacts(c.steps...)
		if c.edit != nil {
			c.edit(&f)
		}

		a := why.ForStep(f, c.step)
		if a.Sentence != c.want || a.Verdict != c.verdict {
			t.Errorf("%s: %s\n  got  %s\n  want %s", name, a.Verdict, a.Sentence, c.want)
		}
	}
}

// The evidence names the needs of a step and the items that failed, and where to read on.
func TestForStep_Evidence(t *testing.T) {
	load := loaded()
	load.Needs = []string{"extract"}
	a := why.ForStep(flowFacts(ran("extract", task.Succeeded, "succeeded"), load), "load")

	var lines []string
	for _, l := range a.Lines {
		lines = append(lines, l.What+": "+l.Says)
	}
	const want = "Run: " + flowRun + ", failed\nNeeds: extract: succeeded\nItem: load/1 failed with exit code 3 on n1\nBegan: Tue 10 Mar 2026 02:00 UTC\nOutput: carillon run logs " + flowRun + " --step load/1"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got:\n%s", got)
	}
}

// The answer about a run that failed names its step.
func TestFor_NamesTheStepThatFailed(t *testing.T) {
	a := nightly().run("02:30:00", task.Failed, func(r *task.Run) {
		r.Reason, r.Message, r.Node = task.ReasonSteps, "step load/1: exited with code 3", ""
		r.Fan = &task.Fan{Flow: &task.Flow{Steps: []task.FlowStep{{Name: "load"}}}}
	}).ask(t, "02:30")

	if a.Sentence != "The tick of Tue 10 Mar 2026 02:30 UTC ran and failed: step load/1: exited with code 3." {
		t.Error(a.Sentence)
	}
	for _, l := range a.Lines {
		if strings.HasSuffix(l.Says, "--step load/1") {
			return
		}
	}
	t.Errorf("no line names the step: %+v", a.Lines)
}

// A run of a workflow has no attempts of its own, and a cancelled one is dead, too.
func TestFor_SaysWhyAWorkflowIsDead(t *testing.T) {
	for state, want := range map[task.State]string{
		task.Failed:    "it did not succeed; carillon run retry ",
		task.TimedOut:  "it did not succeed; carillon run retry ",
		task.Cancelled: "it was cancelled; carillon run retry ",
	} {
		w := nightly().run("02:30:00", state, func(r *task.Run) {
			r.Node, r.Fan = "", &task.Fan{Flow: &task.Flow{Steps: []task.FlowStep{{Name: "load"}}}}
		})
		w.Dead = []string{w.Runs[0].ID}

		says := ""
		for _, l := range w.ask(t, "02:30").Lines {
			if l.What == "Dead" {
				says = l.Says
			}
		}
		if !strings.HasPrefix(says, want) || !strings.HasSuffix(says, " repeats the steps that did not succeed") {
			t.Errorf("%s: %q", state, says)
		}
	}
}

func TestFor_CountsTheStepsThatHaveBegun(t *testing.T) {
	a := nightly().run("11:30:00", task.Running, func(r *task.Run) {
		r.Node, r.Fan = "", &task.Fan{Flow: &task.Flow{Steps: []task.FlowStep{{Name: "a", OpenedAt: task.At(at("11:30:00"))}, {Name: "b"}}}}
	}).ask(t, "11:30")
	if !strings.Contains(a.Sentence, "has been running since Tue 10 Mar 2026 11:30:00.012 UTC; 1 of its 2 steps has begun.") {
		t.Error(a.Sentence)
	}
}

func TestFor_SaysThatAWorkflowIsPaused(t *testing.T) {
	a := nightly().run("11:30:00", task.Running, func(r *task.Run) {
		r.Node, r.Fan = "", &task.Fan{Flow: &task.Flow{Steps: []task.FlowStep{{Name: "a", OpenedAt: task.At(at("11:30:00"))}, {Name: "b"}}}}
		r.PausedAt, r.PausedBy, r.RetryOf = task.At(at("11:31:00")), task.NewActor("ann"), "20260310T110000.000Z-abcd"
	}).ask(t, "11:30")
	if !strings.Contains(a.Sentence, "1 of its 2 steps has begun; it has been paused since Tue 10 Mar 2026 11:31 UTC by ann.") {
		t.Error(a.Sentence)
	}
	for _, l := range a.Lines {
		if l.What == "Retry of" && l.Says != "20260310T110000.000Z-abcd" { // which may have been cancelled
			t.Error(l.Says)
		}
	}
}
