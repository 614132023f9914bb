package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

const namespace = "sim"

// user calls the API as people and programs do, of any node, until ctx ends.
type user struct {
	*world
	rng *rand.Rand
}

func (u *user) run(ctx context.Context) {
	for range u.opts.Tasks {
		u.call(ctx, "apply")
	}
	for sleep(ctx, between(u.rng, 100*time.Millisecond, 2*time.Second)) {
		u.call(ctx, pick(u.rng, u.opts.Calls))
	}
}

func (u *user) call(ctx context.Context, what string) {
	c := u.anyNode()
	if c == nil {
		return
	}
	name, mark := u.name(), u.acks.mark()
	err := u.act(ctx, c, what, name, mark)
	var problem *client.Error
	if err != nil && !errors.Is(err, task.ErrUnknown) && errors.As(err, &problem) && problem.Status != 0 && problem.Code != client.CodeNoSpace {
		u.acks.refuse(mark, what+" of "+name+": "+problem.Code)
	}
	switch {
	case err == nil:
		u.log("> user: %s %s", what, name)
	case ctx.Err() != nil:
	case errors.As(err, &problem):
		u.log("> user: %s %s: %s", what, name, problem.Code)
		u.count("API answers " + problem.Code)
	default:
		u.log("> user: %s %s: %v", what, name, err)
	}
}

func (u *user) anyNode() *client.Client {
	u.mu.Lock()
	n := u.nodes[pick(u.rng, u.names)]
	u.mu.Unlock()
	return u.client(n)
}

func (u *user) name() string { return fmt.Sprintf("t%02d", u.rng.IntN(u.opts.Tasks)) }

// act makes one call, and notes what was acknowledged.
func (u *user) act(ctx context.Context, c *client.Client, what, name, mark string) (err error) {
	var t client.Task
	switch what {
	case "apply":
		s := u.spec(name)
		if u.opts.Shape != nil {
			u.opts.Shape(&s)
		}
		s.Description = mark
		t, err = c.Apply(ctx, s, client.ApplyOptions{})
	case "pause":
		t, err = c.Pause(ctx, namespace, name, 0)
	case "resume":
		t, err = c.Resume(ctx, namespace, name, 0)
	case "patch":
		patch, _ := json.Marshal(map[string]any{"schedule": drawSchedule(u.rng), "description": mark})
		t, err = c.Patch(ctx, namespace, name, patch, 0)
	case "delete":
		err = c.Delete(ctx, namespace, name, 0)
	case "trigger":
		_, err = c.Trigger(ctx, namespace, name, nil)
	case "cancel":
		var runs []task.Run
		if runs, err = c.Runs(ctx, namespace, name, client.RunFilter{}); err == nil {
			for _, r := range runs {
				if r.State.Active() || r.State == task.Queued {
					_, err = c.Cancel(ctx, namespace, name, r.ID)
					break
				}
			}
		}
	}
	if err == nil && t.Revision > 0 {
		ref := store.Ref{Namespace: namespace, Name: name, Shard: shard.Of(namespace, name, u.opts.Shards)}
		u.acks.add(what+" of "+name, u.admin.Keys().Spec(ref), t.Revision)
	}
	return err
}

func drawSchedule(r *rand.Rand) string {
	return pick(r, []string{"* * * * * *", "*/2 * * * * *", "*/3 * * * * *", "*/5 * * * * *", "@every 700ms", "@every 1500ms", "@every 4s", "@every 11s", "* * * * *", "@manual"})
}

// overlapOf is a task's overlap policy, for good: of an attempt nothing tells under which policy it was started.
func overlapOf(name string) string {
	return []string{task.OverlapSkip, task.OverlapAllow}[int(name[len(name)-1])%2]
}

// spec draws a task.
func (u *user) spec(name string) task.Spec {
	r := u.rng
	s := task.Defaults()
	s.Name, s.Namespace = name, namespace
	s.Schedule = task.Schedules{drawSchedule(r)}
	if r.IntN(5) == 0 {
		s.Schedule = append(s.Schedule, drawSchedule(r))
		if s.Schedule[0] == s.Schedule[1] || s.Schedule[0] == "@manual" || s.Schedule[1] == "@manual" {
			s.Schedule = s.Schedule[:1]
		}
	}
	s.Overlap = overlapOf(name)
	s.Missed.Policy = pick(r, []string{task.MissedLatest, task.MissedSkip, task.MissedAll})
	s.Missed.Grace = task.Duration(between(r, 0, 3*time.Second))
	s.Missed.Limit = 1 + r.IntN(6)
	s.History.Keep = 5 + r.IntN(100)
	s.KillGrace = task.Duration(between(r, 0, 3*time.Second))
	if r.IntN(3) == 0 {
		s.Retry.Attempts = 2 + r.IntN(3)
		s.Retry.Backoff = task.Duration(between(r, 100*time.Millisecond, 3*time.Second))
		s.Retry.On = pick(r, [][]task.State{{task.Failed}, {task.Lost}, {task.Failed, task.Lost}, {task.Failed, task.TimedOut, task.Lost}})
	}
	if r.IntN(3) == 0 {
		s.Action.Noop = &task.Noop{}
		return s
	}
	if r.IntN(4) == 0 {
		s.Timeout = task.Duration(between(r, time.Second, 10*time.Second))
	}
	length := pick(r, []time.Duration{10 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 8 * time.Second, 45 * time.Second})
	code := "0"
	if r.IntN(4) == 0 {
		code = "1"
	}
	s.Action.Process = &task.Process{Command: []string{"sim", between(r, length/2, length).String(), code}}
	return s
}
