package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// usersSpace is the namespace of the users' tasks. They freeze only this one.
const usersSpace = "users"

// usersTasks is how many tasks they have.
const usersTasks = 8

// use makes the other calls that users make: it edits schedules, zones, jitter and policies, rolls back, creates
// tasks again, pauses, resumes and cancels runs, freezes its namespace, and drains or cordons a node and resumes it
// soon.
func (c *callers) use(ctx context.Context, nodes []*node) {
	r := rand.New(rand.NewPCG(c.w.seed, 3000))
	c.useUntil(ctx, r, nodes)

	// End every drain, cordon and freeze, because the cluster must converge afterwards and the users' runs must
	// end.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()

	for _, n := range nodes {
		c.insist(after, "resume "+n.name, func() error { _, err := n.client.Nodes.Resume(after, n.name); return err })
	}

	c.insist(after, "unfreeze", func() error {
		_, err := one(r, nodes).client.Freezes.End(after, usersSpace)
		if errors.Is(err, task.ErrNotFound) {
			return nil // not frozen
		}
		return err
	})

	c.insist(after, "resume runs", func() error { return resumeUsersRuns(after, one(r, nodes).client) })
}

// resumeUsersRuns resumes everything that is paused, including parts, whose pauses their run does not show.
func resumeUsersRuns(ctx context.Context, api *client.Client) error {
	for i := range usersTasks {
		name := fmt.Sprintf("u%d", i)

		runs, err := api.Runs.ListByTask(ctx, usersSpace, name, client.RunListOptions{States: []task.State{task.Queued, task.Dispatched, task.Running, task.Paused}})
		if errors.Is(err, task.ErrNotFound) {
			continue // it was not created
		}
		if err != nil {
			return err
		}

		for _, run := range runs {
			_, err := api.Runs.Resume(ctx, usersSpace, name, run.ID)
			if errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrUnknown) {
				return err
			}
			// Any other error means that it is not paused, or has ended.
		}
	}

	return nil
}

// insist repeats a call until it succeeds.
func (c *callers) insist(ctx context.Context, what string, call func() error) {
	err := call()
	for err != nil && ctx.Err() == nil {
		time.Sleep(200 * time.Millisecond)
		err = call()
	}

	if err != nil {
		c.note("%s, at the end: %v", what, err)
	}
}

func one[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

func (c *callers) useUntil(ctx context.Context, r *rand.Rand, nodes []*node) {
	for rest(ctx, r, 600*time.Millisecond) {
		api, name := one(r, nodes).client, fmt.Sprintf("u%d", r.IntN(usersTasks))
		patch := func(fields string) error {
			_, err := api.Tasks.Patch(ctx, usersSpace, name, []byte(fields), 0)
			return err
		}

		edit := func() error {
			return patch(one(r, []string{
				`{"schedule": "* * * * * *"}`, `{"schedule": "*/3 * * * * *"}`, `{"schedule": "@every 2s after completion", "jitter": "0s"}`,
				`{"jitter": "0s"}`, `{"jitter": "800ms"}`, `{"jitter": "4s"}`, `{"timezone": "Europe/Berlin"}`, `{"timezone": "UTC"}`,
			}))
		}

		what := one(r, []string{"apply", "apply", "edit", "edit twice", "policy", "policy", "rollback", "re-create", "sources", "sources", "turn", "turn", "cancel", "freeze", "blink", "blink"})
		var err error

		switch what {
		case "apply":
			_, err = api.Tasks.Apply(ctx, c.w.usersTask(name, r), client.ApplyOptions{})
		case "edit":
			err = edit()
		case "edit twice":
			if err = edit(); err == nil {
				err = edit()
			}
		case "policy":
			err = patch(one(r, []string{
				`{"overlap": "skip", "queue": null, "max_active": 0}`, `{"overlap": "allow", "queue": null, "max_active": 0}`,
				`{"overlap": "allow", "queue": null, "max_active": 2}`, `{"overlap": "queue", "queue": {"limit": 2}, "max_active": 0}`,
				`{"overlap": "replace", "queue": null, "max_active": 0}`,
			}))
		case "rollback":
			_, err = api.Tasks.Rollback(ctx, usersSpace, name, client.RollbackRequest{}, 0)
		case "re-create":
			if err = api.Tasks.DeleteWith(ctx, usersSpace, name, client.DeleteOptions{Force: true}); err == nil {
				_, err = api.Tasks.Apply(ctx, c.w.usersTask(name, r), client.ApplyOptions{})
			}
		case "sources": // the API refuses cycles
			err = patch(one(r, []string{
				`{"after": null, "join": null}`, `{"after": "u0", "join": null}`, `{"after": {"task": "u1", "when": "ended"}, "join": null}`,
				`{"after": ["u2", {"task": "u3", "when": "failed"}], "join": "any"}`,
			}))
		case "turn", "cancel":
			err = c.useRun(ctx, r, api, what, name)
		case "freeze":
			if _, err = api.Freezes.Begin(ctx, usersSpace, "chaos"); err == nil {
				rest(ctx, r, 3*time.Second)
				_, err = api.Freezes.End(ctx, usersSpace)
			}
		case "blink": // at most one node at a time
			node := one(r, nodes)
			call := one(r, []func(context.Context, string) (task.Node, error){api.Nodes.Drain, api.Nodes.Drain, api.Nodes.Cordon})
			_, err = call(ctx, node.name)
			rest(ctx, r, 4*time.Second)

			for ctx.Err() == nil { // a node that stays drained would leave its shards to fewer and fewer nodes
				if _, resumed := one(r, nodes).client.Nodes.Resume(ctx, node.name); resumed == nil {
					break
				}
				rest(ctx, r, 400*time.Millisecond)
			}
		}

		c.uses(what, err)
	}
}

// uses counts the users' calls that succeed. Other answers are not judged, because faults can interfere with the
// calls.
func (c *callers) uses(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.used[what]++
	}
}

// useRun pauses, resumes or cancels a run.
func (c *callers) useRun(ctx context.Context, r *rand.Rand, api *client.Client, what, name string) error {
	runs, err := api.Runs.ListByTask(ctx, usersSpace, name, client.RunListOptions{States: []task.State{task.Queued, task.Dispatched, task.Running, task.Paused}})
	if err != nil || len(runs) == 0 {
		return err
	}

	run := one(r, runs)
	switch {
	case what == "cancel":
		_, err = api.Runs.Cancel(ctx, usersSpace, name, run.ID)
	case run.PausedBy == nil:
		_, err = api.Runs.Pause(ctx, usersSpace, name, run.ID)
	default:
		_, err = api.Runs.Resume(ctx, usersSpace, name, run.ID)
	}

	return err
}

// usersTask draws a task with few records, sometimes with a ttl, sometimes with parts.
func (w *world) usersTask(name string, r *rand.Rand) task.Spec {
	s := task.Defaults()
	s.Namespace, s.Name, s.Schedule = usersSpace, name, task.Schedules{"*/2 * * * * *"}
	s.History.Keep, s.KillGrace, s.Timeout = 1+r.IntN(3), seconds(1), seconds(20)
	s.Action.Process = &task.Process{Shell: probed(one(r, []string{"sleep 0.1", "sleep 1", "sleep 3", "exit 1"})),
		Env: map[string]string{"PROBES": w.probes, markName: w.mark}}
	if r.IntN(3) == 0 {
		s.Retry = again(2, task.Failed, task.Lost)
	}

	switch r.IntN(5) {
	case 2:
		s.Action = task.Action{Workflow: w.loadSteps(one(r, []string{"sleep 0.1", "sleep 1", "exit 1"}))}
	case 0:
		s.Target = task.Target{Count: 1, Parts: 3, Strategy: task.StrategyAuto, Succeed: "any"}
	case 1:
		s.Target = task.Target{Count: task.All, Strategy: task.StrategyAuto}
	}

	if r.IntN(3) == 0 {
		expect(r.IntN(4), &s)
	}

	if r.IntN(3) == 0 {
		s.TTL, s.End = seconds(4), task.At(time.Now().Add(20*time.Second))
	}

	return s
}
