package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The workload of workflows: most tasks have steps, with maps, failures, cleanup, results, and steps that hang. Users cancel, force, pause,
// retry and edit them. Nodes die when they write the record or the data of a run.

// haveSteps gives most tasks a workflow.
func haveSteps(s *task.Spec, r *rand.Rand) {
	if s.Shadow || s.Schedule.AtBoot() || s.Receiver != nil || r.IntN(4) == 0 {
		return
	}

	s.Target, s.Accept, s.Timeout = task.Defaults().Target, task.Accept{}, 0
	s.Action = task.Action{Workflow: drawWorkflow(r)}
	s.Retry.MaxBackoff = max(s.Retry.Backoff, s.Retry.MaxBackoff)

	// Runs take several steps, so most tasks have few of them.
	if r.IntN(3) > 0 && s.Schedule.HasTicks() {
		s.Schedule = task.Schedules{pickRandom(r, []string{"*/5 * * * * *", "@every 7s", "@every 11s"})}
	}
	if r.IntN(3) == 0 || hangs(s.Action.Workflow) {
		s.Timeout = task.Duration(durationBetween(r, 2*time.Second, 20*time.Second))
	}
}

// hanging is the duration of a step that ends only if something ends it.
const hanging = "1h"

// hangs reports whether a step of a workflow hangs.
func hangs(w *task.Workflow) bool {
	for _, s := range w.Steps {
		if s.Process != nil && s.Process.Command[1] == hanging {
			return true
		}
	}

	return false
}

// drawWorkflow draws the steps of a workflow. Their names are in the order in which they may need each other.
func drawWorkflow(r *rand.Rand) *task.Workflow {
	w := &task.Workflow{OnFailure: pickRandom(r, []string{"", "", task.OnFailureContinue}), Steps: map[string]task.Step{}}

	for i := range 2 + r.IntN(5) {
		s := task.Step{}
		for n := range i {
			if r.IntN(3) == 0 || n == i-1 && len(s.Needs) == 0 && r.IntN(3) > 0 {
				s.Needs = append(s.Needs, stepName(n))
			}
		}

		drawAction(&s, r)
		drawReferences(w, &s, r)

		if r.IntN(3) == 0 {
			s.Retry = new(task.Defaults().Retry)
			s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 2, task.Duration(500*time.Millisecond), []task.State{task.Failed, task.Lost}
		}
		if len(s.Needs) > 0 {
			s.When = pickRandom(r, []task.When{"", "", "", task.WhenFailed, task.WhenAlways, task.WhenAlways})
		}
		if s.When == task.WhenAlways {
			s.Timeout = task.Duration(durationBetween(r, 2*time.Second, 10*time.Second))
		}

		w.Steps[stepName(i)] = s
	}

	return w
}

// stepName returns the name of a step.
func stepName(i int) string { return fmt.Sprintf("s%d", i) }

// drawAction draws the action of a step. Requests report results, processes may fail or hang.
func drawAction(s *task.Step, r *rand.Rand) {
	switch r.IntN(5) {
	case 0:
		s.Noop = &task.Noop{}
	case 1, 2:
		s.HTTP = &task.HTTP{Method: "POST", URL: fmt.Sprintf("http://svc%d.test/%s/%d", r.IntN(3), pickRandom(r, []string{"10ms", "300ms", "1s"}), pickRandom(r, []int{200, 200, 200, 200, 500}))}
	default:
		takes := pickRandom(r, []string{"10ms", "300ms", "1s", "3s"})
		if r.IntN(12) == 0 {
			takes = hanging
		}
		s.Process = &task.Process{Command: []string{"sim", takes, pickRandom(r, []string{"0", "0", "0", "1", Flaky})}}
	}
}

// drawReferences gives a step a map, and values of steps before it.
func drawReferences(w *task.Workflow, s *task.Step, r *rand.Rand) {
	var reporting []string // steps before it that report results
	for name := range beforeAll(w, s.Needs) {
		if p := w.Steps[name]; p.HTTP != nil && p.Map == "" {
			reporting = append(reporting, name)
		}
	}
	slices.Sort(reporting)

	result := func(key string) string { return fmt.Sprintf("${steps.%s.results.%s}", pickRandom(r, reporting), key) }

	switch n := r.IntN(6); {
	case n == 0:
		s.Map = task.MapSource(fmt.Sprint(1 + r.IntN(6)))
	case n <= 2 && len(reporting) > 0:
		s.Map = task.MapSource(result(pickRandom(r, []string{"n", "list", "list", "too_many"})))
	}
	if s.Map != "" {
		s.MaxParallel = 1 + r.IntN(3)
	}

	if s.Process == nil {
		return
	}
	s.Process.Env = map[string]string{"STEP": "${step.name}"}
	if s.Map != "" {
		s.Process.Env["ITEM"] = "${item} (${item.index})"
	}
	if len(reporting) > 0 {
		s.Process.Env["ROWS"] = result(pickRandom(r, []string{"rows", "rows", "rows", "none"}))
	}
}

// beforeAll returns the steps that some steps need, directly or not, with these steps.
func beforeAll(w *task.Workflow, names []string) map[string]bool {
	all := map[string]bool{}
	for next := slices.Clone(names); len(next) > 0; next = next[1:] {
		if !all[next[0]] {
			all[next[0]] = true
			next = append(next, w.Steps[next[0]].Needs...)
		}
	}

	return all
}

// reportedBy returns what the answer to the request of a step reports, in addition to what all requests do.
func reportedBy(a task.Assigned, token int64) map[string]string {
	if a.Step == "" {
		return nil
	}

	items := make([]string, token%4)
	for i := range items {
		items[i] = fmt.Sprintf(`"item %d"`, i)
	}

	n := token % 5
	if token%64 == 0 {
		n = 600 // two such maps exceed the limit of parts
	}

	return map[string]string{"n": fmt.Sprint(n), "too_many": fmt.Sprint(task.MaxMapItems + token), "list": "[" + strings.Join(items, ",") + "]"}
}

// changeRun makes a call about a run of a workflow.
func (u *user) changeRun(ctx context.Context, what string) error {
	// A retry from a step may name one that the run does not have.
	if what == "retry from" {
		of, id := u.someDead()
		if id == "" {
			return nil
		}
		return u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(of, "runs/"+id+"/retry?from="+stepName(u.rng.IntN(4))), nil, nil)
	}

	var runs []record.ShardKey
	paused := map[string]bool{}
	err := u.eachFlow(func(k record.ShardKey, r task.Run) {
		runs, paused[k.Run] = append(runs, k), r.PausedBy != nil
	})
	if err != nil || len(runs) == 0 { // etcd may have no leader
		return nil
	}

	run, path := pickRandom(u.rng, runs), ""
	switch what {
	case "cancel workflow":
		path = "cancel"
	case "force workflow":
		path = "cancel?force=true"
	case "turn workflow":
		path = "pause"
		if paused[run.Run] {
			path = "resume"
		}
	}

	err = u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(run.Ref.Name, "runs/"+run.Run+"/"+path), nil, nil)
	if err == nil {
		u.countReached(what)
	}

	return err
}

// resumeFlows resumes all workflows that are paused.
func (w *world) resumeFlows() {
	if !slices.ContainsFunc(w.workloads, func(l workload) bool { return l.name == "workflows" }) && w.opts.Shape == nil {
		return
	}

	err := w.eachFlow(func(k record.ShardKey, r task.Run) {
		if r.PausedBy != nil {
			err := w.requestByPath(w.life, w.nodes[w.names[0]], http.MethodPost, taskPath(k.Ref.Name, "runs/"+k.Run+"/resume"), nil, nil)
			w.logLine("> resume %s: %v", k.Run, err)
		}
	})
	if err != nil {
		w.abort(fmt.Errorf("look for workflows: %w", err))
	}
}

// eachFlow calls f for each run of a workflow that is under way.
func (w *world) eachFlow(f func(k record.ShardKey, r task.Run)) error {
	all, err := w.etcd.Get(w.life, w.admin.Keys().Shards(), clientv3.WithPrefix())
	if err != nil {
		return err
	}

	for _, e := range all.Kvs {
		k, ok := w.admin.Keys().ParseShard(string(e.Key))
		if !ok || k.Kind != record.KindQueued {
			continue
		}
		if q, err := record.DecodeWaiting(k, e.Value); err == nil && q.UnderWay() && q.Fan.Flow != nil {
			f(k, q.Run)
		}
	}

	return nil
}

// hasOldData reports whether there is data of a run of a workflow that neither waits nor is active or dead.
func (w *world) hasOldData() bool {
	keys := w.admin.Keys()
	all, err := w.etcd.Get(w.life, keys.Root(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		w.abort(fmt.Errorf("look for data of runs: %w", err))
	}

	there := map[string]bool{}
	for _, e := range all.Kvs {
		if k, ok := keys.ParseShard(string(e.Key)); ok && (k.Kind == record.KindQueued || k.Kind == record.KindDead) {
			there[keys.RunData(k.Ref, k.Run)] = true
		}
	}

	return slices.ContainsFunc(all.Kvs, func(e *mvccpb.KeyValue) bool {
		return strings.HasPrefix(string(e.Key), keys.AllRunData()) && !there[string(e.Key)]
	})
}

// isFlowWrite reports whether a request writes the record of a workflow that is under way, or the data of one.
func isFlowWrite(keys record.Keys, op clientv3.Op, ofData bool) bool {
	if op.IsTxn() {
		_, then, _ := op.Txn()
		return slices.ContainsFunc(then, func(o clientv3.Op) bool { return isFlowWrite(keys, o, ofData) })
	}

	if key := string(op.KeyBytes()); ofData {
		return strings.HasPrefix(key, keys.AllRunData()) && (op.IsPut() || op.IsDelete())
	} else if k, ok := keys.ParseShard(key); ok && k.Kind == record.KindQueued && op.IsPut() {
		return strings.Contains(string(op.ValueBytes()), `"flow":{`)
	}

	return false
}

// killInFlow kills a node when it begins or ends a run of a workflow, or when it changes the record of one. It starts it again when the fault ends.
func killInFlow(w *world) func(*world) {
	n := w.someNode()
	if n == nil {
		return nil
	}

	ofData := w.rng.IntN(2) == 0

	return n.killInTrap(map[bool]string{true: "data of a run", false: "step"}[ofData], func(op clientv3.Op) bool { return isFlowWrite(w.admin.Keys(), op, ofData) })
}

// countFlow adds what a record of a workflow shows. mu is held.
func (w *world) countFlow(k record.ShardKey, text string, deleted, created bool) {
	if deleted || !created && k.Kind != record.KindQueued || !strings.Contains(text, `"flow":{`) && !strings.Contains(text, `"step":"`) {
		return
	}

	switch k.Kind {
	case record.KindEnded:
		r, err := record.DecodeEnded(k, []byte(text))
		if err != nil || r.Fan == nil || r.Fan.Flow == nil {
			return
		}
		w.counts["workflow "+string(r.State)]++
		if r.Fan.Flow.Retries != "" {
			w.counts["workflow tried again "+string(r.State)]++
		}
		for _, s := range r.Fan.Flow.Steps {
			w.counts["step without a value"] += b2i(s.Reason == task.ReasonValues)
			w.counts["step kept"] += b2i(s.IsKept)
			w.counts["items kept"] += b2i(s.Items != nil)
			w.counts["map of several items"] += b2i(s.IsMap && s.Count > 1)
			w.counts["repair"] += b2i(s.When == task.WhenFailed && s.IsOpened())
			w.counts["cleanup after a cancel"] += b2i(s.When == task.WhenAlways && s.IsOpened() && r.State == task.Cancelled)
			w.counts["cleanup after the timeout"] += b2i(s.When == task.WhenAlways && s.IsOpened() && r.State == task.TimedOut)
			w.counts["step skipped"] += b2i(!s.IsOpened() && !s.IsKept && s.Reason == "")
		}
		w.counts["workflow ended by force"] += b2i(r.Fan.Flow.Forced)
	case record.KindQueued:
		w.counts["step tried again"] += b2i(strings.Contains(text, `"step":"`) && strings.Contains(text, `"reason":"retry"`))
		w.counts["workflow paused"] += b2i(strings.Contains(text, `"flow":{`) && strings.Contains(text, `"paused_by":`))
	case record.KindPart:
		w.counts["step lost"] += b2i(strings.Contains(text, `"step":"`) && strings.Contains(text, `"state":"lost"`))
	}
}

// b2i returns 1 for true.
func b2i(is bool) int {
	if is {
		return 1
	}
	return 0
}
