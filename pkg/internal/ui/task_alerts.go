package ui

import (
	"context"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskAlerts is what the page of a task shows about alerts: its own, and, of a receiver, whose alerts it gets.
type taskAlerts struct {
	Expects   string // what is expected of the task, and whom its alerts notify; "" if nothing is
	Open      []alertRow
	Closed    []alertRow // in the last two hours
	Receivers []receiverState
	Silenced  string // by whom, until when and why; "" if they are not
	Hold      bool   // the viewer may silence the task

	Receives string // what a receiver gets; "" if the task is none
	Query    string // that finds the tasks that name it
	Named    []client.Task
	Count    string // how many tasks name it
}

// namedShown is the maximum number of tasks that the page of a receiver lists.
const namedShown = 8

// loadTaskAlerts reads the alerts of a task. It returns nil for a task without expectations that is no receiver.
func loadTaskAlerts(ctx context.Context, r *Request, t client.Task) (*taskAlerts, error) {
	if t.Alerts == nil && t.Receiver == nil {
		return nil, nil
	}

	p := &taskAlerts{Expects: wording.AlertsText(t.Alerts), Receives: wording.ReceiverText(t.Receiver)}
	if t.Receiver != nil {
		if err := p.addNamed(ctx, r, t); err != nil {
			return nil, err
		}
	}
	if t.Alerts == nil {
		return p, nil
	}

	all, err := r.API.Alerts.ListByTask(ctx, t.Namespace, t.Name)
	if isForbidden(err) {
		return p, nil // who reads tasks may not be allowed to read runs
	}
	if err != nil {
		return nil, err
	}

	rights := rightsCache{r: r}
	overview.SortAlerts(all.Items)
	for _, a := range all.Items {
		row := alertRowOf(r, &rights, a, t.Timezone)
		if a.IsOpen() {
			p.Open = append(p.Open, row)
		} else {
			p.Closed = append(p.Closed, row)
		}
	}

	at := r.clockText(t.Timezone)
	for i := range all.Receivers {
		p.Receivers = append(p.Receivers, receiverStateOf(&all.Receivers[i], false, at))
	}
	if all.Silence != nil {
		p.Silenced = wording.AlertSilenceText(all.Silence, at)
	}
	p.Hold = all.Silence == nil && rights.may("pause", "tasks", t.Namespace)

	return p, nil
}

// addNamed adds the tasks that name a receiver, as far as the viewer may read them.
func (p *taskAlerts) addNamed(ctx context.Context, r *Request, t client.Task) error {
	p.Query = "notify:" + t.Namespace + "/" + t.Name
	named, err := r.API.Tasks.Page(ctx, client.TaskListOptions{Query: p.Query, Limit: namedShown}, "")
	if err != nil {
		return err
	}

	p.Named = slices.Clip(named.Items)
	p.Count = countText(len(p.Named), "task")
	switch {
	case named.Count != nil:
		p.Count = countText(int(*named.Count), "task")
	case named.Next != "":
		p.Count = "more than " + p.Count
	}

	return nil
}

// testReceiver sends a test message to a receiver, and shows its run.
func testReceiver(ctx context.Context, r *Request) (Done, error) {
	t, err := r.API.Alerts.Test(ctx, r.Value("ns"), r.Value("name"))
	if err != nil {
		return Done{}, err
	}

	done := Done{Message: "sent a test message to " + r.Value("ns") + "/" + r.Value("name")}
	if t.Frozen != nil {
		done.Message += "; it starts when the freeze ends"
	}
	done.To, err = link("/ui/runs/{}/{}", nil, []any{t.Namespace, t.ID})

	return done, err
}

// IsMessage reports whether a run is a message about alerts, rather than a test or another manual run.
func (*View) IsMessage(run task.Run) bool { return run.IsMessage() }
