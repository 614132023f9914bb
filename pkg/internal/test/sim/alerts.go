package sim

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// receiverName is the task that gets messages about alerts, while it exists.
const receiverName = "pager"

// Flaky, as the exit code of a process, makes every second attempt fail, about.
const Flaky = "flaky"

// evaluationTime is how long the cluster has after the last change until all alerts are those of the records (G58).
const evaluationTime = 75 * time.Second

// watchTime is how long tasks go on after the last fault, so that alerts about successes are judged without faults (G58): one about a minute
// needs that minute, one more, and the tolerance of the checker. A success_within that is not met is judged only if its shard was not opened
// in the last 15 minutes; the scenarios without faults judge it.
const watchTime = 2*time.Minute + 30*time.Second

// maxPause is how long tasks may be paused that expect anything of their pauses.
const maxPause = time.Minute

// expectSuccess lets every second task expect something of its runs, and leaves every fourth one to rules. Most of these tasks run all
// the time, and fail now and then or always.
func expectSuccess(s *task.Spec, r *rand.Rand) {
	switch r.IntN(4) {
	case 0:
		return
	case 1:
		s.Labels = map[string]string{"team": pickRandom(r, ruleTeams)}
	default:
		s.Alerts = drawAlerts(r)
	}

	s.History.Keep = max(s.History.Keep, 3)
	if r.IntN(3) == 0 {
		return
	}

	s.Schedule = task.Schedules{pickRandom(r, []string{"*/2 * * * * *", "*/5 * * * * *", "@every 11s", "@manual"})}
	s.Jitter, s.Start, s.End, s.MaxRuns, s.TTL, s.PauseAfter, s.Shadow, s.Timeout = 0, task.Time{}, task.Time{}, 0, 0, 0, false, 0
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "300ms", pickRandom(r, []string{Flaky, Flaky, "1"})}}}
	s.Retry = task.Defaults().Retry
}

// drawAlerts draws what is expected of a task, and who is notified: nobody, the receiver, or also one that does not exist.
func drawAlerts(r *rand.Rand) *task.Alerts {
	a := &task.Alerts{Failures: new(1 + r.IntN(3)), Notify: pickRandom(r, [][]string{nil, {receiverName}, {receiverName}, {receiverName, "nobody"}})}
	switch r.IntN(6) {
	case 0:
		a.SuccessWithin = task.Duration(time.Minute)
	case 1:
		a.SuccessBy = "*/15 * * * * *"
	case 2:
		a.MaxPause = task.Duration(maxPause)
	case 3:
		a.MaxDuration = task.Duration(time.Minute)
	case 4:
		a.MaxLateness = task.Duration(time.Minute)
	}

	return a
}

// editAlerts changes what is expected of a task. In one of four cases, that is nothing.
func (u *user) editAlerts(ctx context.Context, c *client.Client, name, mark string) (client.Task, error) {
	fields := map[string]any{"alerts": nil}
	if u.rng.IntN(4) > 0 {
		fields["alerts"] = drawAlerts(u.rng)
	}

	return u.patchTask(ctx, c, name, mark, fields)
}

// ruleNames are the names of rules, and ruleTeams the values of the label that they select by.
var (
	ruleNames = []string{"first", "second"}
	ruleTeams = []string{"data", "web"}
)

// setAlertRule creates or changes a rule. It is about some of the tasks without alerts of their own, or about all of them.
func (u *user) setAlertRule(ctx context.Context, c *client.Client, mark string) error {
	request := client.AlertRuleRequest{Description: mark, Selector: pickRandom(u.rng, []string{"", "team=data", "team in (data, web)"}), Alerts: *drawAlerts(u.rng)}
	_, err := c.Alerts.SetRule(ctx, simNamespace, pickRandom(u.rng, ruleNames), request, false)
	if err == nil {
		u.countReached("set alert rule")
	}

	return err
}

// applyReceiver creates the receiver. Many of its runs fail.
func (u *user) applyReceiver(ctx context.Context, c *client.Client, mark string) (client.Task, error) {
	action := task.Action{Process: &task.Process{Command: []string{"sim", "300ms", Flaky}}}
	s := task.ReceiverDefaults(action)
	s.Name, s.Namespace, s.Description, s.Action = receiverName, simNamespace, mark, action
	s.Receiver, s.Accept = &task.Receiver{Group: pickRandom(u.rng, []string{"", task.GroupTask})}, task.Accept{Env: []string{"ALERT_TEXT"}}

	return c.Tasks.Apply(ctx, s, client.ApplyOptions{})
}

// dismissAll dismisses all dead runs of a task.
func (u *user) dismissAll(ctx context.Context) error {
	name, id := u.someDead()
	if id == "" {
		return nil
	}

	dead := u.admin.Keys().Dead(u.taskRef(name))
	res, err := u.etcd.Get(u.life, dead, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}

	for _, e := range res.Kvs {
		run := strings.TrimPrefix(string(e.Key), dead)
		if err := u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(name, "runs/"+run+"/dismiss"), nil, nil); err != nil {
			return err
		}
	}

	return nil
}

// watchAlerts lets the tasks go on for a time without faults and without calls of users.
func (w *world) watchAlerts() {
	from := time.Now()
	w.sleep(watchTime)
	w.calm = append(w.calm, check.Period{From: from, To: time.Now()})
}

// deleteReceiver deletes the receiver, so that no further messages begin.
func (w *world) deleteReceiver() {
	deleted := w.waitUntil(time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(w.life, 10*time.Second)
		defer cancel()

		err := w.clientOf(w.nodes[w.names[0]]).Tasks.Delete(ctx, simNamespace, receiverName, 0)

		return err == nil || isNotFound(err)
	})

	if !deleted {
		w.logLine("> the receiver cannot be deleted")
	}
}

// expectsSuccess reports whether the simulation has tasks with alerts.
func (w *world) expectsSuccess() bool {
	for _, l := range w.workloads {
		if l.name == "alerts" {
			return true
		}
	}

	return false
}
