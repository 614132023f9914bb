package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// receiversSpace is the namespace of the receivers of alerts.
const receiversSpace = "receivers"

// The receivers. Each sends requests to the target.
const (
	answers = "answers"
	flaky   = "flaky"   // half of the messages fail, with all their attempts
	hangs   = "hangs"   // never answers
	moody   = "moody"   // callers pause, resume, delete and create it
	renewed = "renewed" // faults create it again when they need a message that is outstanding
)

// paths are what the target does with a message to a receiver.
var paths = map[string]string{answers: "quick/50", flaky: "flaky/50", hangs: "quick/60000", moody: "quick/500", renewed: "quick/3000"}

// evaluationTime is how long the cluster has after the last change until all alerts are those of the records (G58): a minute, and a visit
// of the evaluator.
const evaluationTime = 75 * time.Second

// watchTime is how long the load goes on after the last fault, so that alerts about successes are judged without faults (G58): deadlines of a
// minute need that minute, one more, and the tolerance of the checker. Tasks of a shard that has just been opened need no alert for 15
// minutes, so a success_within that is not met is judged only if its shard has kept its owner.
const watchTime = 2*time.Minute + 30*time.Second

// expect lets a task alert: when runs fail, and when none succeeds in time. Half of the tasks with few ticks have deadlines.
func expect(i int, s *task.Spec) {
	s.Alerts = &task.Alerts{
		Failures: new(min(1+i%2, s.History.Keep)),
		Notify:   []string{receiversSpace + "/" + answers, receiversSpace + "/" + renewed, receiversSpace + "/" + []string{flaky, hangs, moody}[i%3]},
	}

	isRare := len(s.Schedule) == 1 && slices.Contains([]string{"* * * * *", "@every 10s", "@every 20s"}, s.Schedule[0])
	if isRare && i%2 == 0 {
		s.Alerts.SuccessBy = "* * * * *"
	} else {
		s.Alerts.SuccessWithin = task.Duration(time.Minute)
	}
}

// receiver returns the task that gets messages under a name.
func (w *world) receiver(name string) task.Spec {
	action := task.Action{HTTP: &task.HTTP{
		URL: "http://" + w.target.address + "/" + paths[name], Idempotent: new(true), Headers: map[string]string{headerAttempt: "${run.attempt}"},
		JSON: json.RawMessage(`{"text": "${env.ALERT_TEXT}", "action": "${env.ALERT_ACTION}"}`),
	}}
	s := task.ReceiverDefaults(action)
	s.Namespace, s.Name, s.Action = receiversSpace, name, action
	s.Accept.Env = []string{"ALERT_TEXT", "ALERT_ACTION"}
	s.Receiver.From = []string{loadSpace, usersSpace}
	s.Timeout, s.Retry.Backoff, s.Retry.MaxBackoff = seconds(10), seconds(.5), seconds(1)

	return s
}

// openReceivers creates the receivers.
func (w *world) openReceivers() error {
	var all []task.Spec
	for name := range paths {
		all = append(all, w.receiver(name))
	}

	return w.create(all...)
}

// mind makes the calls of people who look after alerts: they acknowledge and silence them, dismiss and retry failed runs, change what is
// expected, test receivers, and pause or delete one of them.
func (c *callers) mind(ctx context.Context, nodes []*node) {
	r := rand.New(rand.NewPCG(c.w.seed, 6000))

	for rest(ctx, r, time.Second) {
		api := one(r, nodes).client
		what := one(r, []string{"acknowledge", "acknowledge", "dismiss", "dismiss", "retry", "silence", "unsilence", "test receiver", "expect", "receiver"})
		var err error

		switch what {
		case "acknowledge", "dismiss", "retry":
			err = c.tend(ctx, r, api, what)
		case "silence":
			_, err = api.Alerts.Silence(ctx, one(r, []string{loadSpace, usersSpace}), client.SilenceRequest{
				Glob: one(r, []string{"f*", "http-*", "u*"}), For: seconds(float64(5 + r.IntN(60))), Reason: "chaos",
			}, false)
		case "unsilence":
			var all []task.AlertSilence
			if all, err = api.Alerts.Silences(ctx, ""); err == nil && len(all) > 0 {
				s := one(r, all)
				_, err = api.Alerts.EndSilence(ctx, s.Namespace, s.ID)
			}
		case "test receiver":
			_, err = api.Alerts.Test(ctx, receiversSpace, one(r, []string{answers, flaky, moody}))
		case "expect":
			_, err = api.Tasks.Patch(ctx, usersSpace, fmt.Sprintf("u%d", r.IntN(usersTasks)), []byte(one(r, []string{
				`{"alerts": null}`, `{"alerts": {"notify": ["receivers/answers", "receivers/moody"]}}`,
				`{"alerts": {"failures": 0, "success_within": "1m", "notify": ["receivers/hangs"]}}`,
			})), 0)
		case "receiver":
			what, err = c.changeReceiver(ctx, r, api)
		}

		c.uses("alerts: "+what, err)
	}
}

// tend acknowledges an open alert, or dismisses or retries its failed run.
func (c *callers) tend(ctx context.Context, r *rand.Rand, api *client.Client, what string) error {
	all, err := api.Alerts.List(ctx, client.AlertListOptions{})
	all = slices.DeleteFunc(all, func(a task.AlertStatus) bool { return a.Task == "" || a.Run == "" && what != "acknowledge" })
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return task.ErrNotFound
	}

	a := one(r, all)
	switch what {
	case "acknowledge":
		_, err = api.Alerts.Acknowledge(ctx, a.Namespace, a.Task, a.Kind)
	case "dismiss":
		_, err = api.Runs.Dismiss(ctx, a.Namespace, a.Task, a.Run)
	case "retry":
		_, err = api.Runs.Retry(ctx, a.Namespace, a.Task, a.Run)
	}

	return err
}

// changeReceiver pauses, resumes, deletes or creates a receiver.
func (c *callers) changeReceiver(ctx context.Context, r *rand.Rand, api *client.Client) (what string, err error) {
	what = one(r, []string{"pause receiver", "resume receiver", "resume receiver", "delete receiver", "create receiver", "create receiver"})

	switch what {
	case "pause receiver":
		_, err = api.Tasks.Pause(ctx, receiversSpace, moody, 0)
	case "resume receiver":
		_, err = api.Tasks.Resume(ctx, receiversSpace, moody, 0)
	case "delete receiver":
		err = api.Tasks.Delete(ctx, receiversSpace, moody, 0)
	case "create receiver":
		_, err = api.Tasks.Create(ctx, receiversSpace, c.w.receiver(moody))
	}

	return what, err
}

var alertFaults = []*fault{
	{name: "kill-leader-mid-message", group: "alerts", what: "kill -9 of the leader while a message about alerts is outstanding", hold: lasting(2, 6),
		inject: func(w *world, in *injection) (func() error, error) {
			if err := w.beginMessage(); err != nil {
				return nil, err
			}
			return killLeader(w, in)
		}},
	{name: "kill-all-mid-message", group: "alerts", what: "kill -9 of all daemons while a message about alerts is outstanding", hold: lasting(2, 4), alone: true,
		inject: func(w *world, in *injection) (func() error, error) {
			if err := w.beginMessage(); err != nil {
				return nil, err
			}
			return killAll(w, in)
		}},
	{name: "freeze-receivers", group: "alerts", what: "a freeze of the namespace of the receivers of alerts, while a message is outstanding", hold: lasting(4, 12), inject: freezeReceivers},
}

// beginMessage waits until a message is outstanding. A receiver that is new gets all that is open, and some tasks fail all the time and
// are never silenced.
func (w *world) beginMessage() error {
	up := w.up()
	if len(up) == 0 {
		return errors.New("no daemon is left")
	}

	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()

	api := up[0].client
	if err := api.Tasks.Delete(ctx, receiversSpace, renewed, 0); err != nil && !errors.Is(err, task.ErrNotFound) {
		return err
	}

	made, err := api.Tasks.Create(ctx, receiversSpace, w.receiver(renewed))
	if err != nil {
		return err
	}

	return w.eventually(30*time.Second, func() error { return w.isOutstanding(made.UID) })
}

// isOutstanding returns nil if a message to the receiver with a uid has not ended.
func (w *world) isOutstanding(uid string) error {
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	defer cancel()

	res, err := w.client.Get(ctx, w.keys.SentTo(record.Ref{Namespace: receiversSpace, Name: renewed}))
	if err != nil {
		return err
	}

	for _, e := range res.Kvs {
		var sent task.AlertsSent
		if err := json.Unmarshal(e.Value, &sent); err != nil {
			return err
		}
		if sent.UID == uid && sent.Sending != nil {
			return nil
		}
	}

	return errors.New("no message begins")
}

func freezeReceivers(w *world, _ *injection) (func() error, error) {
	if err := w.beginMessage(); err != nil {
		return nil, err
	}

	insist := func(call func(ctx context.Context, api *client.Client) error) error {
		return w.eventually(w.promised(convergence), func() error {
			up := w.up()
			if len(up) == 0 {
				return errors.New("no daemon is left")
			}

			ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
			defer cancel()

			return call(ctx, up[0].client)
		})
	}

	heal := func() error {
		return insist(func(ctx context.Context, api *client.Client) error {
			_, err := api.Freezes.End(ctx, receiversSpace)
			if errors.Is(err, task.ErrNotFound) {
				return nil // an earlier call has ended it, and its answer was lost
			}
			return err
		})
	}

	return heal, insist(func(ctx context.Context, api *client.Client) error {
		_, err := api.Freezes.Begin(ctx, receiversSpace, "chaos")
		return err
	})
}
