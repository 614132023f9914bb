package wording

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestTaskFields_OfAWorkflow(t *testing.T) {
	process := func(words ...string) *task.Process { return &task.Process{Command: words} }
	spec := task.Defaults()
	spec.Action = task.Action{Workflow: &task.Workflow{Steps: map[string]task.Step{
		"extract": {Process: &task.Process{Shell: "extract\necho done\n"}, Timeout: task.Duration(10 * time.Minute), Retry: &task.Retry{Attempts: 3}},
		"load":    {Needs: []string{"extract"}, Map: "${steps.extract.results.files}", MaxParallel: 8, Process: process("load", "a b"), Target: &task.StepTarget{Selector: "role = db"}},
		"shards":  {Map: "1000", Noop: &task.Noop{}},
		"ticket":  {Needs: []string{"load", "shards"}, When: task.WhenFailed, HTTP: &task.HTTP{Method: "POST", URL: "https://t.example"}},
		"clean":   {Needs: []string{"load"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute), Noop: &task.Noop{}},
	}}}

	got := map[string]string{}
	for _, f := range TaskFields(client.Task{Task: task.Task{Spec: spec}}) {
		got[f.Name] = f.Value
	}

	const steps = `extract: extract …; timeout 10m; 3 attempts
load: load 'a b'; after extract; for each item in result files of extract, 8 at once; on role = db
clean: nothing (noop); after load, whatever happens; timeout 1m
shards: nothing (noop); 1,000 times, 10 at once
ticket: POST https://t.example; after load, shards if one of them failed`
	for name, want := range map[string]string{"Steps": steps, "After a failure": "begin only steps with when: failed or always", "Timeout": "24h for the whole run"} {
		if got[name] != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got[name], want)
		}
	}

	spec.Timeout, spec.Action.Workflow.OnFailure = task.Duration(2*time.Hour), task.OnFailureContinue
	for _, f := range TaskFields(client.Task{Task: task.Task{Spec: spec}}) {
		got[f.Name] = f.Value
	}
	if got["Timeout"] != "2h for the whole run" || got["After a failure"] != "begin all steps whose needs allow it" {
		t.Errorf("%+v", got)
	}
}
