package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// flowKinds are the kinds of tasks whose workflow has processes, with what an item of its map does.
var flowKinds = map[string]string{
	"flow-loads": "sleep 0.2",
	"flow-fails": `[ $((CARILLON_FENCING_TOKEN % 3)) -gt 0 ] || exit 1`,
	"flow-hangs": "sleep 60",
}

// noopSteps returns steps that cost little: a diamond with a map, and cleanup.
func noopSteps() *task.Workflow {
	step := func(when task.When, needs ...string) task.Step {
		return task.Step{When: when, Needs: needs, Noop: &task.Noop{}}
	}

	all := map[string]task.Step{
		"begin": step(""), "left": step("", "begin"), "right": step("", "begin"), "join": step("", "left", "right"),
		"alarm": step(task.WhenFailed, "join"), "clean": step(task.WhenAlways, "join"),
	}
	right, clean := all["right"], all["clean"]
	right.Map, right.MaxParallel, clean.Timeout = "4", 2, seconds(10)
	all["right"], all["clean"] = right, clean

	return &task.Workflow{Steps: all}
}

// loadSteps returns steps of which the first reports the items of a map, which do something, and the last cleans up.
func (w *world) loadSteps(item string) *task.Workflow {
	shell := func(body string) *task.Process {
		return &task.Process{Shell: probed(body), Env: map[string]string{"PROBES": w.probes, markName: w.mark, "STEP": "${step.name}"}}
	}

	load := shell(item)
	load.Env["ITEM"] = "${item} of ${steps.extract.results.from}"

	return &task.Workflow{Steps: map[string]task.Step{
		"extract": {Process: shell(`printf 'files=["a","b","c"]\nfrom=there\n' >>"$CARILLON_STATUS_FILE"`)},
		"load":    {Needs: []string{"extract"}, Map: "${steps.extract.results.files}", MaxParallel: 2, Process: load},
		"check":   {Needs: []string{"load"}, Noop: &task.Noop{}},
		"repair":  {Needs: []string{"load"}, When: task.WhenFailed, Noop: &task.Noop{}},
		"clean":   {Needs: []string{"check"}, When: task.WhenAlways, Timeout: seconds(20), Process: shell("sleep 0.1")},
	}}
}

// guide cancels, forces, pauses, resumes and retries runs of the workflows of the load. At the end it resumes all of them.
func (c *callers) guide(ctx context.Context, nodes []*node) {
	r := rand.New(rand.NewPCG(c.w.seed, 4000))
	for rest(ctx, r, 500*time.Millisecond) {
		api, what := one(r, nodes).client, one(r, []string{"cancel flow", "cancel flow", "force flow", "turn flow", "turn flow", "retry flow", "retry flow", "retry flow from"})
		c.uses(what, c.guideRun(ctx, r, api, what))
	}

	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	c.insist(after, "resume workflows", func() error { return resumeFlows(after, one(r, nodes).client) })
}

// errNoRun means that there is no run that a call could be about.
var errNoRun = errors.New("no such run")

// guideRun makes a call about a run of a workflow.
func (c *callers) guideRun(ctx context.Context, r *rand.Rand, api *client.Client, what string) error {
	states := []task.State{task.Running}
	if strings.HasPrefix(what, "retry") {
		states = []task.State{task.Failed, task.TimedOut, task.Cancelled}
	}

	runs, err := api.Runs.List(ctx, client.RunListOptions{Namespace: loadSpace, States: states, Limit: 500})
	if err != nil {
		return err
	}
	runs = slices.DeleteFunc(runs, func(r task.Run) bool { return !strings.HasPrefix(r.Task, "flow") })
	if len(runs) == 0 {
		return errNoRun
	}

	run := one(r, runs)
	switch what {
	case "cancel flow":
		_, err = api.Runs.Cancel(ctx, loadSpace, run.Task, run.ID)
	case "force flow":
		_, err = api.Runs.CancelWith(ctx, loadSpace, run.Task, run.ID, client.CancelOptions{Force: true})
	case "turn flow":
		if run.PausedBy == nil {
			_, err = api.Runs.Pause(ctx, loadSpace, run.Task, run.ID)
		} else {
			_, err = api.Runs.Resume(ctx, loadSpace, run.Task, run.ID)
		}
	case "retry flow":
		_, err = api.Runs.Retry(ctx, loadSpace, run.Task, run.ID)
	case "retry flow from":
		_, err = api.Runs.RetryFrom(ctx, loadSpace, run.Task, run.ID, client.RetryOptions{From: one(r, []string{"begin", "right", "extract", "load", "check"})})
	}

	return err
}

// resumeFlows resumes all runs of workflows, and their parts.
func resumeFlows(ctx context.Context, api *client.Client) error {
	runs, err := api.Runs.List(ctx, client.RunListOptions{State: task.Running})
	if err != nil {
		return err
	}

	for _, run := range runs {
		if run.Namespace != loadSpace || !strings.HasPrefix(run.Task, "flow") {
			continue
		}

		_, err := api.Runs.Resume(ctx, loadSpace, run.Task, run.ID)
		if errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrUnknown) {
			return err
		}
		// Any other error means that it is not paused, or has ended.
	}

	return nil
}

// noOldData returns nil if there are no data of a run of a workflow that neither waits nor is active or dead.
func (w *world) noOldData(ctx context.Context) error {
	all, err := w.client.Get(ctx, w.keys.Root(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}

	var needed []string
	for _, e := range all.Kvs {
		if k, ok := w.keys.ParseShard(string(e.Key)); ok && (k.Kind == record.KindQueued || k.Kind == record.KindDead) {
			needed = append(needed, w.keys.RunData(k.Ref, k.Run))
		}
	}

	for _, e := range all.Kvs {
		if key := string(e.Key); strings.HasPrefix(key, w.keys.AllRunData()) && !slices.Contains(needed, key) {
			return fmt.Errorf("the data of a run that has ended are left: %s", key)
		}
	}

	return nil
}
