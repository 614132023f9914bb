package alert_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/task"
)

// group is an example with a run for each alert, and the leader that sends to it, in a time that the test moves. Its runs send what
// the example's file says to a fake of the service.
type group struct {
	*testing.T
	rng     *rand.Rand
	spec    task.Spec
	now     time.Time
	rev     int64
	alerts  map[string]*task.Alert
	sent    task.AlertsSent
	ended   []bool
	fail    float64 // how many of the runs fail, half of them after the service has got the request
	failed  int
	service func(body any) // takes a request
}

func newGroup(t *testing.T, name string) *group {
	return &group{
		T: t, rng: rand.New(rand.NewPCG(1, 2)), spec: loadReceiver(t, name), now: time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC), alerts: map[string]*task.Alert{},
	}
}

// change opens or closes the alert of a task. The record of one that has been closed for two hours is deleted.
func (g *group) change(name string) {
	a := g.alerts[name]
	g.rev++
	switch {
	case a == nil:
		g.alerts[name] = &task.Alert{ID: g.rev, Namespace: "shop", Task: name, UID: "u", Kind: task.AlertFailures, Since: task.At(g.now), OpenedAt: task.At(g.now)}
	case a.IsOpen():
		a.Closed = &task.AlertClose{At: task.At(g.now), Why: task.AlertSucceeded}
	default:
		a.OpenedAt, a.Since, a.Closed, a.Acknowledged = task.At(g.now), task.At(g.now), nil, nil
	}

	for name, a := range g.alerts {
		if !a.IsOpen() && g.now.Sub(a.Closed.At.Time) >= 2*time.Hour {
			delete(g.alerts, name)
		}
	}
}

// pass is one pass of the leader, after which the runs of a new message end at once.
func (g *group) pass() {
	r := g.spec.Receiver
	in := alert.Input{
		Limits: alert.LimitsOf(r.Group), Now: g.now, Revision: g.rev, Sent: g.sent, Ended: g.ended,
		Receiver: alert.Receiver{UID: "r", For: r.OpenFor(), Repeat: r.RepeatAfter(), Group: r.Group, RepeatAll: strings.Contains(fmt.Sprint(g.spec.Accept.Env), alert.VarEnds)},
	}
	byKey := map[uint64]*task.Alert{}
	for _, a := range g.alerts {
		key := alert.KeyOf("c1", a)
		byKey[key] = a
		in.Alerts = append(in.Alerts, alert.Addressed{Key: key, Alert: a})
	}

	d := alert.Diff(&in)
	if g.ended = nil; !d.Write {
		return
	}
	g.rev++
	g.sent, g.sent.Mod = d.Sent, g.rev
	if !d.Message {
		return
	}

	m := alert.Message{Now: g.now, Cluster: "c1", Receiver: "ops/x", Repeat: alert.RepeatOf(r.RepeatAfter(), len(d.Sent.Delivered))}
	items := func(keys []uint64) (list []alert.Item) {
		for _, key := range keys {
			if a := byKey[key]; a != nil {
				list = append(list, alert.Item{Alert: *a})
			} else {
				m.Unnamed++
			}
		}
		return list
	}
	m.Opened, m.Closed, m.Repeated = items(d.Opened), items(d.Closed), items(d.Repeated)

	for _, one := range m.Split(g.sent.Sending, g.sent.Uncertain) {
		env := one.Env(g.spec.Accept.Env)
		ok := g.rng.Float64() >= g.fail
		if ok || g.rng.IntN(2) == 0 {
			g.service(g.render(env))
		}
		if !ok {
			g.failed++
		}
		g.ended = append(g.ended, ok)
		g.sent.Sending.Runs = append(g.sent.Sending.Runs, fmt.Sprint(len(g.ended)))
	}
}

// render returns the body of the request of a run.
func (g *group) render(env map[string]string) any {
	var body any
	if err := json.Unmarshal(g.spec.Action.HTTP.JSON, &body); err != nil {
		g.Fatal(err)
	}

	return g.expand(body, env)
}

// expand expands the templates in a JSON value.
func (g *group) expand(v any, env map[string]string) any {
	switch v := v.(type) {
	case string:
		t, err := task.ParseTemplate(v)
		if err == nil {
			v, err = t.Expand(func(ref string) (string, error) { return env[strings.TrimPrefix(ref, task.EnvRefPrefix)], nil })
		}
		if err != nil {
			g.Fatal(err)
		}
		return v
	case []any:
		for i := range v {
			v[i] = g.expand(v[i], env)
		}
	case map[string]any:
		for key := range v {
			v[key] = g.expand(v[key], env)
		}
	}

	return v
}

// The incidents of PagerDuty are the open alerts, whatever has failed on the way.
//
// Verifies: G60
func TestExamples_PagerDutyHasTheIncidentsThatAreOpen(t *testing.T) {
	g := newGroup(t, "pagerduty")
	incidents := map[string]bool{}
	g.service = func(body any) {
		key, _ := at(body, "dedup_key").(string)
		switch action := at(body, "event_action"); {
		case len(key) != 16:
			t.Fatalf("the key is %q", key)
		case action == "trigger":
			incidents[key] = true
		case action == "resolve":
			delete(incidents, key)
		default:
			t.Fatalf("the action is %q", action)
		}
	}

	for step := 0; g.failed < 1000; step++ {
		g.now = g.now.Add(15 * time.Second)
		if g.rng.IntN(8) == 0 {
			g.change(fmt.Sprint("t", g.rng.IntN(60)))
		}
		// Once a day, the service is away for so long that records of closed alerts are deleted before it can be told.
		if g.fail = .4; step%(24*240) > 20*240 {
			g.fail = 1
		}
		g.pass()
	}

	g.fail = 0
	for range 3 * 240 {
		g.now = g.now.Add(15 * time.Second)
		g.pass()
	}

	open := 0
	for name, a := range g.alerts {
		if !a.IsOpen() {
			continue
		}
		if open++; !incidents[alert.FormatKey(alert.KeyOf("c1", a))] {
			t.Errorf("%s is open, but there is no incident", name)
		}
	}
	if len(incidents) != open || open == 0 {
		t.Errorf("there are %d incidents; %d alerts are open", len(incidents), open)
	}
}

// Alertmanager takes an alert for resolved at the time that it was told. What is open stays open, also if somebody has acknowledged it.
func TestExamples_AlertmanagerKeepsWhatIsOpen(t *testing.T) {
	g := newGroup(t, "alertmanager")
	ends := map[string]time.Time{} // by the key of the alert
	g.service = func(body any) {
		labels := at(body, 0, "labels")
		starts, err := time.Parse(time.RFC3339, fmt.Sprint(at(body, 0, "startsAt")))
		end, err2 := time.Parse(time.RFC3339, fmt.Sprint(at(body, 0, "endsAt")))
		if at(labels, "alertname") == "" || err != nil || err2 != nil || end.Before(starts) {
			t.Fatalf("%v, %v: Alertmanager refuses %v", err, err2, body)
		}
		ends[fmt.Sprint(at(labels, "key"))] = end
	}
	g.fail = .2

	for i := range 40 {
		g.change(fmt.Sprint("stays", i))
	}
	for i := range 20 {
		g.alerts[fmt.Sprint("stays", i)].Acknowledged = &task.AlertMark{By: task.NewActor("ann")}
	}
	for minute := range 48 * 60 {
		g.now = g.now.Add(time.Minute)
		if minute%7 == 0 && minute < 47*60 {
			g.change(fmt.Sprint("t", g.rng.IntN(20)))
		}
		g.pass()

		for name, a := range g.alerts {
			isActive := ends[alert.FormatKey(alert.KeyOf("c1", a))].After(g.now)
			if a.IsOpen() && g.now.Sub(a.OpenedAt.Time) > 30*time.Minute && !isActive {
				t.Fatalf("after %d minutes: %s is open, but resolved in Alertmanager", minute, name)
			}
			if !a.IsOpen() && g.now.Sub(a.Closed.At.Time) > 100*time.Minute && isActive {
				t.Fatalf("after %d minutes: %s is closed, but active in Alertmanager", minute, name)
			}
		}
	}
}
