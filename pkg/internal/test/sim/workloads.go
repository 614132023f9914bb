package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// workload is a kind of user behavior that a simulation has or does not have. A seed draws each workload
// independently, so that most combinations occur, and many simulations have only one.
type workload struct {
	name  string
	calls []string // added to the calls of users
	// prepare, if set, changes the options before the simulation begins.
	prepare func(o *Options, r *rand.Rand)
	// shape, if set, changes each task before users apply it.
	shape func(s *task.Spec, r *rand.Rand)
	fault fault // added to the faults, if it has a name
}

// allWorkloads lists all workloads. Options.Workloads selects them by name.
var allWorkloads = []workload{
	{name: "drain nodes", calls: []string{"drain node", "cordon node", "resume node", "resume node", "blink node"}},
	{name: "blink nodes", calls: []string{"blink node", "trigger", "trigger"}, fault: fault{"blink", 12, blinkOne},
		prepare: func(o *Options, r *rand.Rand) { // with one slot, attempts wait in the inboxes and are handed back
			o.Slots, o.Nodes, o.Tasks = cmp.Or(o.Slots, 1), cmp.Or(o.Nodes, 3), cmp.Or(o.Tasks, 12)
			o.Rough = o.Rough || r.IntN(2) == 0 // so that answers to hand-backs get lost
		},
		shape: func(s *task.Spec, r *rand.Rand) {
			if r.IntN(4) > 0 {
				s.Schedule, s.Start, s.End, s.MaxRuns, s.PauseAfter, s.Shadow = task.Schedules{"* * * * * *"}, task.Time{}, task.Time{}, 0, 0, false
				s.Timeout, s.Action = 0, task.Action{Process: &task.Process{Command: []string{"sim", pickRandom(r, []string{"300ms", "1s", "2s"}), "0"}}}
			}
		}},
	{name: "pause runs", calls: []string{"turn", "turn", "turn", "cancel", "retry"}},
	{name: "edit schedules", calls: []string{"edit", "edit", "edit twice", "rollback", "rollback"}},
	{name: "change policies", calls: []string{"change policy", "change policy", "change policy", "rollback"},
		shape: func(s *task.Spec, r *rand.Rand) { setOverlap(s, pickRandom(r, overlapPolicies), r) }},
	{name: "small history", shape: shortLived},
	{name: "fan out", calls: []string{"cancel", "retry"}, shape: fanOut},
	{name: "freeze", calls: []string{"freeze", "unfreeze", "unfreeze", "unfreeze"}},
	{name: "re-create", calls: []string{"re-create", "re-create", "re-create"},
		shape: func(s *task.Spec, r *rand.Rand) { // runs that outlast their task
			if s.Action.Process != nil && r.IntN(2) == 0 {
				s.Action.Process.Command[1], s.KillGrace = "8s", task.Duration(durationBetween(r, time.Second, 5*time.Second))
			}
		}},
	{name: "change lost_after", calls: []string{"set lost_after"}, fault: fault{"cut and change lost_after", 6, cutAndChange}},
	{name: "far clocks", prepare: func(o *Options, _ *rand.Rand) { o.farClocks = true }},
	{name: "revoke", fault: fault{"revoke rights", 12, revokeOneAccount}},
	{name: "limit namespace", calls: []string{"limit namespace", "restrict nodes", "open namespace", "limit nodes", "open nodes"}, shape: nameUsers},
	{name: "requests", calls: []string{"cancel", "trigger"}, shape: sendRequests, fault: fault{"break a target", 20, breakTarget}},
	{name: "manual input", calls: []string{"trigger with input", "trigger with input", "trigger with input", "change accept", "rollback"},
		shape: acceptInput},
	{name: "ledgers", calls: []string{"edit history", "edit history", "edit history", "spoil ledger", "set ledger", "trigger", "re-create"}, shape: keepLedger,
		fault: fault{"kill in a fold", 15, killInFold}},
	{name: "boots", calls: []string{"re-create", "pause", "resume"}, shape: runAtBoot, fault: fault{"reboot", 20, func(w *world) func(*world) { return w.killOne(true) }}},
	{name: "alerts", calls: []string{"apply receiver", "delete receiver", "edit alerts", "edit alerts", "set alert rule", "set alert rule", "delete alert rule", "retry", "retry", "dismiss", "dismiss all", "dismiss all"}, shape: expectSuccess},
	{name: "dependents", calls: []string{"apply", "edit sources", "edit sources", "trigger", "trigger alone", "delete by force", "re-create by force", "damage links"},
		shape: runAfterOthers, fault: fault{"kill in a send", 15, killInSend}},
	{name: "workflows", calls: []string{"cancel workflow", "cancel workflow", "force workflow", "turn workflow", "turn workflow", "retry", "retry", "retry from", "edit steps"},
		shape: haveSteps, fault: fault{"kill in a step", 15, killInFlow}},
}

// drawWorkloads selects the workloads of a simulation. It has its own random numbers, so that a new workload does
// not change the other choices of a seed.
func (o *Options) drawWorkloads(seed uint64) (drawn []workload) {
	r := rand.New(rand.NewPCG(seed, 3))

	for _, l := range allWorkloads {
		yes := r.IntN(3) == 0
		if o.Workloads != nil {
			yes = slices.Contains(o.Workloads, l.name)
		}

		if yes {
			drawn = append(drawn, l)
		}
	}

	return drawn
}

// runAtBoot lets two of three tasks run when nodes boot.
func runAtBoot(s *task.Spec, r *rand.Rand) {
	if r.IntN(3) == 0 {
		return
	}

	s.Schedule, s.Jitter, s.Start, s.End, s.MaxRuns, s.TTL = task.Schedules{task.BootSchedule}, 0, task.Time{}, task.Time{}, 0, 0
	s.Target.Parts, s.Target.Count, s.Target.Stagger, s.Target.Succeed = 0, 1, 0, ""
	if s.Alerts != nil {
		s.Alerts.MaxLateness = 0
	}
	if r.IntN(2) == 0 {
		setOverlap(s, task.OverlapAllow, r)
	}
}

// acceptInput makes a task accept all that its action allows. Users change that later.
func acceptInput(s *task.Spec, _ *rand.Rand) {
	s.Accept = task.Accept{Target: !s.Target.FansOut()}
	if s.Action.Process != nil {
		s.Accept.Args = 2
	}
	if s.Action.Noop == nil {
		s.Accept.Env = []string{"DAY"}
	}
}

// triggerWithInput triggers a task with one of the things that a task can accept.
func (u *user) triggerWithInput(ctx context.Context, c *client.Client, name string) error {
	give := pickRandom(u.rng, []client.TriggerRequest{
		{Args: []string{"a"}}, {Args: []string{"a", "b"}}, {Env: map[string]string{"DAY": "monday"}}, {Target: u.anyHost().name},
	})

	_, err := c.Tasks.TriggerWith(ctx, simNamespace, name, give, 0)
	if err == nil {
		u.countReached("run with manual input")
	}

	return err
}

// overlapPolicies lists all overlap policies.
var overlapPolicies = []string{task.OverlapSkip, task.OverlapAllow, task.OverlapQueue, task.OverlapReplace}

// setOverlap sets an overlap policy, with the fields that belong to it.
func setOverlap(s *task.Spec, overlap string, r *rand.Rand) {
	s.Overlap, s.Queue, s.MaxActive = overlap, task.QueuePolicy{}, 0

	switch overlap {
	case task.OverlapQueue:
		s.Queue = task.QueuePolicy{Limit: 1 + r.IntN(4), Drop: pickRandom(r, []string{task.DropNewest, task.DropOldest})}
	case task.OverlapAllow:
		s.MaxActive = r.IntN(4)
	}
}

// shortLived gives a task a history of few records, and sometimes a schedule that ends and a ttl.
func shortLived(s *task.Spec, r *rand.Rand) {
	s.History.Keep = 1 + r.IntN(3)
	if r.IntN(3) == 0 {
		s.Schedule, s.Jitter = task.Schedules{pickRandom(r, []string{"@every 1s after completion", "@every 4s after completion"})}, 0
	}

	if r.IntN(2) == 0 {
		s.TTL = task.Duration(durationBetween(r, time.Second, 10*time.Second))
		if s.MaxRuns, s.End = 0, task.At(time.Now().Add(durationBetween(r, 3*time.Second, 20*time.Second))); r.IntN(2) == 0 {
			s.MaxRuns, s.End = 1+r.Int64N(5), task.Time{}
		}
	}

	if r.IntN(2) == 0 { // retries: the newest end then often belongs to the oldest tick
		s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 2, task.Duration(time.Second), []task.State{task.Failed, task.Lost}
		s.Retry.ExitCodes = nil
	}
}

// fanOut gives every second task parts.
func fanOut(s *task.Spec, r *rand.Rand) {
	if s.Shadow || r.IntN(2) == 0 {
		return
	}

	s.Target = task.Target{Strategy: pickRandom(r, []string{task.StrategyAuto, task.StrategyHash, task.StrategyRandom, task.StrategyRoundRobin})}

	switch r.IntN(3) {
	case 0:
		s.Target.Count, s.Target.Parts = 1, 1+r.IntN(4)
	case 1:
		s.Target.Count, s.Target.Strategy = task.All, task.StrategyAuto
	default:
		s.Target.Count = 2
	}

	s.Target.Succeed = pickRandom(r, []task.Succeed{"", "any", "50%"})
	if r.IntN(4) == 0 {
		s.Target.Stagger = task.Duration(time.Second)
	}
}

// actOnNode drains, cordons or resumes a node through the API of any node.
func (u *user) actOnNode(ctx context.Context, c *client.Client, action string) (err error) {
	name := u.anyHost().name

	switch action {
	case "drain node":
		_, err = c.Nodes.Drain(ctx, name)
	case "cordon node":
		_, err = c.Nodes.Cordon(ctx, name)
	case "resume node":
		_, err = c.Nodes.Resume(ctx, name)
	case "blink node": // the resume arrives while the node still hands back what it has not started
		_, err = c.Nodes.Drain(ctx, name)
		clock.Sleep(ctx, durationBetween(u.rng, 200*time.Millisecond, 4*time.Second))
		if _, resumed := c.Nodes.Resume(ctx, name); resumed != nil {
			err = resumed
		}
	}

	u.logLine("> user: %s %s: %v", action, name, err)

	if err == nil {
		u.countReached(action)
	}

	return err
}

// blinkOne drains a node and resumes it soon, in half of the cases while its watches stall. The node then learns
// late what happened to the attempts that it hands back.
func blinkOne(w *world) func(*world) {
	n := w.someNode()
	if n == nil {
		return nil
	}

	l, gap := n.proc.link, durationBetween(w.rng, 200*time.Millisecond, 4*time.Second)

	if w.rng.IntN(2) == 0 {
		w.logLine("> the watches of %s stall", n.name)
		l.setStalled(true)
	}

	w.background.Go(func() {
		for _, verb := range []string{"drain", "resume"} {
			err := w.requestByPath(w.life, n, http.MethodPost, "/v1/nodes/"+n.name+"/"+verb, nil, nil)
			w.logLine("> %s %s: %v", verb, n.name, err)
			if err == nil {
				w.countReached("blink node")
			}

			clock.Sleep(w.life, gap)
		}
	})

	return func(*world) { l.setStalled(false) }
}

// setLostAfter changes the cluster's lost_after.
func setLostAfter(ctx context.Context, c *client.Client, d time.Duration) error {
	_, err := c.Cluster.UpdateSettings(ctx, client.ClusterSettings{LostAfter: new(task.Duration(d))})
	return err
}

// cutAndChange changes lost_after, cuts a node off, and changes lost_after again while the node cannot receive it.
func cutAndChange(w *world) func(*world) {
	n := w.someNode()
	if n == nil {
		return nil
	}

	// The other nodes answer the API while this one is cut off.
	var others []*node
	for _, name := range w.names {
		if o := w.nodes[name]; o != n && o.proc != nil {
			others = append(others, o)
		}
	}

	set := func(d time.Duration) {
		changed := w.waitUntil(5*time.Second, func() bool {
			return slices.ContainsFunc(others, func(o *node) bool {
				c := w.clientOf(o)
				return c != nil && setLostAfter(w.life, c, d) == nil
			})
		})

		w.logLine("> lost_after is set to %s: %t", d, changed)
	}

	// Increase lost_after before the cut and decrease it during the cut, or the other way around in one of three
	// cases. The node only receives the first value.
	draw := func(least, most time.Duration) time.Duration { return durationBetween(w.rng, least, most) }
	first, second := draw(25*time.Second, 40*time.Second), draw(task.MinLostAfter.Std(), 15*time.Second)
	if w.rng.IntN(3) == 0 {
		first, second = second, first
	}

	before, meanwhile, rest := draw(2*time.Second, 10*time.Second), draw(0, 5*time.Second), draw(15*time.Second, 40*time.Second)
	l := n.proc.link
	w.background.Go(func() {
		set(first)
		clock.Sleep(w.life, before)

		if now, _ := l.modeAndChange(); now != modeOpen {
			return // another fault has the link, and ends it
		}

		w.logLine("> %s is cut off", n.name)
		l.setMode(cut)
		w.net.setSilent(n.address, true)
		clock.Sleep(w.life, meanwhile)
		set(second)
		clock.Sleep(w.life, rest)
		w.logLine("> %s is not cut off any more", n.name)
		l.setMode(modeOpen)
		w.net.setSilent(n.address, false)
	})

	return nil
}

// drawEdit draws a change of a task's timing.
func (u *user) drawEdit() map[string]any {
	r := u.rng
	switch r.IntN(4) {
	case 0:
		return map[string]any{"jitter": pickRandom(r, []string{"0s", "500ms", "3s", "20s"})}
	case 1:
		return map[string]any{"timezone": pickRandom(r, []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"})}
	case 2:
		return map[string]any{"schedule": drawSchedule(r), "jitter": pickRandom(r, []string{"0s", "2s", "5s"})}
	default:
		return map[string]any{"schedule": drawSchedule(r)}
	}
}

// drawPolicy draws a change of a task's overlap policy.
func (u *user) drawPolicy() map[string]any {
	var s task.Spec
	setOverlap(&s, pickRandom(u.rng, overlapPolicies), u.rng)

	patch := map[string]any{"overlap": s.Overlap, "queue": nil, "max_active": s.MaxActive}
	if s.Overlap == task.OverlapQueue {
		patch["queue"] = s.Queue
	}

	return patch
}

// patchTask changes fields of a task. mark identifies the change.
func (u *user) patchTask(ctx context.Context, c *client.Client, name, mark string, fields map[string]any) (client.Task, error) {
	fields["description"] = mark
	body, err := json.Marshal(fields)
	if err != nil {
		return client.Task{}, err
	}

	return c.Tasks.Patch(ctx, simNamespace, name, body, 0)
}

// resumeNodes ends all drains and cordons.
func (w *world) resumeNodes() {
	for _, name := range w.names {
		n := w.nodes[name]
		if n.proc == nil || isClosed(n.proc.gone) {
			continue // its daemon has ended by itself, as it does when its port is taken
		}

		var err error
		done := w.waitUntil(5*time.Minute, func() bool {
			err = w.requestByPath(w.life, n, http.MethodPost, "/v1/nodes/"+name+"/resume", nil, nil)
			return err == nil || isClosed(n.proc.gone)
		})

		if !done {
			w.abort(fmt.Errorf("%s cannot be resumed: %w\n%s", name, err, strings.Join(w.story, "\n")))
		}
	}
}
