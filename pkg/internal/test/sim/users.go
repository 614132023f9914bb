package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// simNamespace contains all tasks of a simulation, except in a script that freezes frozenNamespace.
const (
	simNamespace    = "sim"
	frozenNamespace = "frosty"
)

// user calls the API of random nodes, as people and programs do.
type user struct {
	*world
	account *account
	rng     *rand.Rand // its own generator, because users run concurrently
}

// makeCalls applies each task and then makes random calls, until ctx ends.
func (u *user) makeCalls(ctx context.Context) {
	if u.expectsSuccess() {
		u.makeCall(ctx, "apply receiver")
	}

	for range u.opts.Tasks {
		u.makeCall(ctx, "apply")
	}

	for clock.Sleep(ctx, durationBetween(u.rng, 100*time.Millisecond, 2*time.Second)) {
		u.makeCall(ctx, pickRandom(u.rng, u.opts.Calls))
	}
}

// makeCall makes one call on a random task, and records the answer.
func (u *user) makeCall(ctx context.Context, kind string) {
	c := u.anyNode()
	if c == nil {
		return
	}

	name, mark := u.drawName(), u.acks.newMark()
	err := u.callAndRecord(ctx, c, kind, name, mark)
	u.noteRefusal(mark, kind+" of "+name, err)

	var problem *client.Error
	switch {
	case err == nil:
		u.logLine("> user: %s %s", kind, name)
	case ctx.Err() != nil:
	case errors.As(err, &problem):
		u.logLine("> user: %s %s: %s", kind, name, problem.Code)
		u.countReached("API answers " + problem.Code)
	default:
		u.logLine("> user: %s %s: %v", kind, name, err)
	}
}

// noteRefusal records a call that the API has refused, so that nothing of it may be written. An answer of unknown
// outcome, and one for lack of space, are not refusals.
func (u *user) noteRefusal(mark, call string, err error) {
	var problem *client.Error
	if err != nil && !errors.Is(err, task.ErrUnknown) && errors.As(err, &problem) && problem.Status != 0 && problem.Code != client.CodeNoSpace {
		u.acks.addRefusal(mark, call+": "+problem.Code)
	}
}

func (u *user) anyNode() *client.Client { return u.clientOf(u.anyHost()) }

func (u *user) anyHost() *node {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nodes[pickRandom(u.rng, u.names)]
}

func (u *user) drawName() string { return fmt.Sprintf("t%02d", u.rng.IntN(u.opts.Tasks)) }

// callAndRecord makes one call, and records what was acknowledged.
func (u *user) callAndRecord(ctx context.Context, c *client.Client, what, name, mark string) (err error) {
	var t client.Task

	switch what {
	case "apply":
		s := u.drawTask(name)
		s.Description = mark
		if t, err = c.Tasks.Apply(ctx, s, client.ApplyOptions{}); len(s.After) > 0 && hasCode(err, task.CodeBadValue) { // its sources do not exist yet
			s.After, s.Join = nil, ""
			tickOften(&s, u.rng)
			t, err = c.Tasks.Apply(ctx, s, client.ApplyOptions{})
		}
	case "pause":
		t, err = c.Tasks.Pause(ctx, simNamespace, name, 0)
	case "resume":
		t, err = c.Tasks.Resume(ctx, simNamespace, name, 0)
	case "patch":
		t, err = u.patchTask(ctx, c, name, mark, map[string]any{"schedule": drawSchedule(u.rng)})
	case "pause until":
		t, err = u.patchTask(ctx, c, name, mark, map[string]any{"paused": true, "pause_reason": mark,
			"paused_until": task.At(time.Now().Add(durationBetween(u.rng, time.Second, 20*time.Second)))})
	case "edit":
		t, err = u.patchTask(ctx, c, name, mark, u.drawEdit())
	case "edit twice": // the second edit may follow before an owner has seen the first
		if t, err = u.patchTask(ctx, c, name, mark, u.drawEdit()); err == nil {
			u.acks.addWrite("edit of "+name, u.admin.Keys().Spec(u.taskRef(name)), t.Revision)
			clock.Sleep(ctx, durationBetween(u.rng, 0, time.Second))

			second := u.acks.newMark()
			if t, err = u.patchTask(ctx, c, name, second, u.drawEdit()); err != nil {
				u.noteRefusal(second, what+" of "+name, err)
				err = nil // the first edit was not refused
			}
		}
	case "edit history":
		t, err = u.editHistory(ctx, c, name, mark)
	case "set ledger":
		err = u.setLedger(ctx, c)
	case "spoil ledger":
		err = u.spoilLedger(ctx, name)
	case "change policy":
		t, err = u.patchTask(ctx, c, name, mark, u.drawPolicy())
	case "re-create": // under the same name, while a run of the former task may be active
		if err = c.Tasks.Delete(ctx, simNamespace, name, 0); err == nil || isNotFound(err) {
			s := u.drawTask(name)
			s.Description = mark
			t, err = c.Tasks.Apply(ctx, s, client.ApplyOptions{})
		}
	case "re-create by force": // although other tasks run after it
		if err = c.Tasks.DeleteWith(ctx, simNamespace, name, client.DeleteOptions{Force: true}); err == nil || isNotFound(err) {
			s := u.drawTask(name)
			s.Description = mark
			t, err = c.Tasks.Apply(ctx, s, client.ApplyOptions{})
		}
	case "delete by force":
		err = c.Tasks.DeleteWith(ctx, simNamespace, name, client.DeleteOptions{Force: true})
	case "edit sources":
		t, err = u.editSources(ctx, c, name, mark)
	case "damage links":
		err = u.damageLinks(ctx)
	case "trigger alone":
		_, err = c.Tasks.TriggerWith(ctx, simNamespace, name, client.TriggerRequest{Alone: true}, 0)
	case "drain node", "cordon node", "resume node", "blink node":
		err = u.actOnNode(ctx, c, what)
	case "set lost_after":
		if err = setLostAfter(ctx, c, durationBetween(u.rng, task.MinLostAfter.Std(), 40*time.Second)); err == nil {
			u.countReached("set lost_after")
		}
	case "freeze":
		err = u.requestByPath(ctx, u.anyHost(), http.MethodPut, freezePath(pickRandom(u.rng, []string{"", simNamespace})), map[string]string{"reason": mark}, nil)
	case "unfreeze":
		err = u.requestByPath(ctx, u.anyHost(), http.MethodDelete, freezePath(pickRandom(u.rng, []string{"", simNamespace})), nil, nil)
	case "limit namespace", "restrict nodes", "open namespace", "limit nodes", "open nodes":
		err = u.changeNamespace(ctx, c, what)
	case "retry":
		if of, id := u.someDead(); id != "" {
			err = u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(of, "runs/"+id+"/retry"), nil, nil)
		}
	case "dismiss":
		if of, id := u.someDead(); id != "" {
			err = u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(of, "runs/"+id+"/dismiss"), nil, nil)
		}
	case "dismiss all":
		err = u.dismissAll(ctx)
	case "edit alerts":
		t, err = u.editAlerts(ctx, c, name, mark)
	case "set alert rule":
		err = u.setAlertRule(ctx, c, mark)
	case "delete alert rule":
		err = c.Alerts.DeleteRule(ctx, simNamespace, pickRandom(u.rng, ruleNames))
	case "apply receiver":
		name = receiverName
		t, err = u.applyReceiver(ctx, c, mark)
	case "delete receiver":
		err = c.Tasks.Delete(ctx, simNamespace, receiverName, 0)
	case "rollback":
		err = u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(name, "rollback"), map[string]any{}, &t)
	case "delete":
		err = c.Tasks.Delete(ctx, simNamespace, name, 0)
	case "undelete":
		if t, err = c.Tasks.Undelete(ctx, simNamespace, name); err == nil {
			u.countReached("task undeleted")
		}
	case "trigger":
		_, err = c.Tasks.Trigger(ctx, simNamespace, name, nil)
	case "trigger with input":
		err = u.triggerWithInput(ctx, c, name)
	case "change accept": // the API refuses what does not suit the action
		t, err = u.patchTask(ctx, c, name, mark, map[string]any{"accept": map[string]any{"args": u.rng.IntN(3), "env": []string{"DAY"}[:u.rng.IntN(2)], "target": u.rng.IntN(2) == 0}})
	case "turn": // pauses a run, or resumes a paused one
		var runs []task.Run
		if runs, err = c.Runs.ListByTask(ctx, simNamespace, name, client.RunListOptions{States: []task.State{task.Dispatched, task.Running, task.Paused}}); err == nil && len(runs) > 0 {
			if r := pickRandom(u.rng, runs); r.PausedBy == nil {
				_, err = c.Runs.Pause(ctx, simNamespace, name, r.ID)
			} else {
				_, err = c.Runs.Resume(ctx, simNamespace, name, r.ID)
			}
		}
	case "cancel workflow", "force workflow", "turn workflow", "retry from":
		err = u.changeRun(ctx, what)
	case "edit steps":
		t, err = u.patchTask(ctx, c, name, mark, map[string]any{"action": map[string]any{"workflow": drawWorkflow(u.rng)}, "timeout": "20s"}) // one may hang
	case "cancel", "cancel active":
		var runs []task.Run
		if runs, err = c.Runs.ListByTask(ctx, simNamespace, name, client.RunListOptions{}); err == nil {
			for _, r := range runs {
				if r.State.Active() || r.State == task.Queued && what == "cancel" {
					err = u.cancelRun(ctx, c, r)
					break
				}
			}
		}
	}

	if err == nil && t.Revision > 0 {
		u.acks.addWrite(what+" of "+name, u.admin.Keys().Spec(u.taskRef(name)), t.Revision)
	}

	return err
}

// cancelRun cancels a run, also while etcd is full.
func (u *user) cancelRun(ctx context.Context, c *client.Client, r task.Run) error {
	got, err := c.Runs.Cancel(ctx, simNamespace, r.Task, r.ID)
	if err == nil && got.Unrecorded {
		u.acks.addLateCancel(u.taskRef(r.Task), got.Run)
		u.countReached("run cancelled in a full etcd")
	}

	return err
}

// drawSchedule draws a schedule with many ticks in a minute, or none.
func drawSchedule(r *rand.Rand) string {
	return pickRandom(r, []string{"* * * * * *", "*/2 * * * * *", "*/3 * * * * *", "*/5 * * * * *", "@every 700ms", "@every 1500ms", "@every 4s", "@every 11s", "* * * * *", "@manual"})
}

// drawTask draws a task, and lets the workloads and the options change it.
func (u *user) drawTask(name string) task.Spec {
	s := u.drawSpec(name)

	for _, l := range u.workloads {
		if l.shape != nil {
			l.shape(&s, u.rng)
		}
	}

	if u.opts.Shape != nil {
		u.opts.Shape(&s)
	}

	return s
}

// overlapOf returns the overlap policy that a task of that name has at first.
func overlapOf(name string) string {
	return []string{task.OverlapSkip, task.OverlapAllow, task.OverlapQueue, task.OverlapReplace}[int(name[len(name)-1])%4]
}

// drawSpec draws a task.
func (u *user) drawSpec(name string) task.Spec {
	r := u.rng
	s := task.Defaults()
	s.Name, s.Namespace = name, simNamespace
	s.Schedule = task.Schedules{drawSchedule(r)}
	if r.IntN(5) == 0 {
		s.Schedule = append(s.Schedule, drawSchedule(r))
		if s.Schedule[0] == s.Schedule[1] || s.Schedule[0] == "@manual" || s.Schedule[1] == "@manual" {
			s.Schedule = s.Schedule[:1]
		}
	}

	if s.Overlap = overlapOf(name); u.opts.Plain && s.Overlap != task.OverlapAllow {
		s.Overlap = task.OverlapSkip
	}

	s.Missed.Policy = pickRandom(r, []string{task.MissedLatest, task.MissedSkip, task.MissedAll})
	s.Missed.Grace = task.Duration(durationBetween(r, time.Second, 3*time.Second))
	s.Missed.Limit = 1 + r.IntN(6)
	s.History.Keep = 5 + r.IntN(100)
	s.KillGrace = task.Duration(durationBetween(r, 0, 3*time.Second))
	if r.IntN(3) == 0 {
		s.Retry.Attempts = 2 + r.IntN(3)
		s.Retry.Backoff = task.Duration(durationBetween(r, 100*time.Millisecond, 3*time.Second))
		s.Retry.On = pickRandom(r, [][]task.State{{task.Failed}, {task.Lost}, {task.Failed, task.Lost}, {task.Failed, task.TimedOut, task.Lost}})
	}

	if !u.opts.Plain {
		u.drawPolicies(&s)
	}

	if r.IntN(3) == 0 {
		s.Action.Noop = &task.Noop{}
		return s
	}

	if r.IntN(4) == 0 {
		s.Timeout = task.Duration(durationBetween(r, time.Second, 10*time.Second))
	}

	length := pickRandom(r, []time.Duration{10 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 8 * time.Second, 45 * time.Second})
	code := "0"
	if r.IntN(4) == 0 {
		code = "1"
	}

	s.Action.Process = &task.Process{Command: []string{"sim", durationBetween(r, length/2, length).String(), code}}

	return s
}

// addParts gives some tasks parts. It derives its choices from numbers that are drawn already: additional draws
// would change the simulations of all seeds.
func addParts(s *task.Spec) {
	n := s.History.Keep
	if !slices.Contains([]string{"t02", "t03", "t05", "t08"}, s.Name) || n%2 == 0 || s.Shadow {
		return
	}

	switch n / 2 % 3 {
	case 0:
		s.Target.Parts = 1 + n%4
	case 1:
		s.Target.Count = task.All
	default:
		s.Target.Count = 2
		s.Target.Strategy = []string{task.StrategyAuto, task.StrategyHash, task.StrategyRandom, task.StrategyRoundRobin}[n/6%4]
	}

	s.Target.Succeed = []task.Succeed{"", "any", "50%"}[n%3]
	if n%5 == 0 {
		s.Target.Stagger = task.Duration(time.Second)
	}
}

// drawPolicies draws policies of time, overlap and failures.
func (u *user) drawPolicies(s *task.Spec) {
	r := u.rng
	one := func(in int) bool { return r.IntN(in) == 0 }
	soon := func(least, most time.Duration) task.Time {
		return task.At(time.Now().Add(durationBetween(r, least, most)))
	}

	if one(6) {
		s.Schedule = task.Schedules{pickRandom(r, []string{"@every 1s after completion", "@every 4s after completion"})}
	}

	if one(4) {
		s.Jitter = task.Duration(durationBetween(r, 200*time.Millisecond, 5*time.Second))
	}

	if one(6) {
		s.Start = soon(0, 10*time.Second)
	}

	if one(6) {
		s.End = soon(15*time.Second, time.Minute)
	}

	s.Shadow = s.Overlap == task.OverlapSkip && s.History.Keep%3 == 0 // few tasks, because the runs of the others are what the simulation tests
	if one(5) {
		s.MaxRuns = 1 + r.Int64N(20)
	}

	if one(5) {
		s.TTL = task.Duration(durationBetween(r, time.Second, 10*time.Second))
	}

	if one(4) {
		s.Deadline = task.Duration(durationBetween(r, time.Second, 5*time.Second))
	}

	if one(4) {
		s.PauseAfter = 1 + r.IntN(3)
	}

	if len(s.Retry.On) > 0 && s.Retry.Attempts > 1 && slices.Contains(s.Retry.On, task.Failed) && one(3) {
		s.Retry.ExitCodes = []int{1 + r.IntN(2)}
	}

	addParts(s)

	switch s.Overlap {
	case task.OverlapQueue:
		s.Queue = task.QueuePolicy{Limit: 1 + r.IntN(4), Drop: pickRandom(r, []string{task.DropNewest, task.DropOldest})}
	case task.OverlapAllow:
		s.MaxActive = r.IntN(4)
	}
}
