package notifier

import (
	"context"
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// historyOfSubject is how many records of the history of a task are read to find its last success.
const historyOfSubject = 20

// newMessage returns the message that Diff has decided to send, with what is known now about the tasks that it names.
func (p *pass) newMessage(ctx context.Context, r *store.Receiver, in *alert.Input, d *alert.Decision) (*alert.Message, error) {
	policy := r.Entry.Receiver
	m := &alert.Message{
		Now: p.now, Cluster: p.cluster.ID, PublicURL: p.cluster.PublicURL, Receiver: r.Ref.String(),
		Repeat: policy.RepeatAfter(), Output: policy.AllowsOutput(), Plain: d.Sent.Sending.Plain,
		Open: map[string]int{},
	}
	if policy.Group == task.GroupTask {
		m.Repeat = alert.RepeatOf(m.Repeat, len(d.Sent.Delivered))
	}
	p.countFor(m, in.Alerts)

	addressed := make(map[uint64]*task.Alert, len(in.Alerts))
	for i := range in.Alerts {
		addressed[in.Alerts[i].Key] = in.Alerts[i].Alert
	}
	itemsOf := func(keys []uint64) (items []alert.Item) {
		for _, key := range keys {
			a := addressed[key]
			if a == nil {
				a = p.notAddressed(key)
			}
			if a == nil {
				m.Unnamed++
				continue
			}
			items = append(items, alert.Item{Alert: *a})
		}

		return items
	}
	m.Opened, m.Closed, m.Repeated = itemsOf(d.Opened), itemsOf(d.Closed), itemsOf(d.Repeated)

	for _, item := range m.Named() {
		item.Alert.Notify = p.notified(&item.Alert)
	}

	// A plain message says nothing about tasks but their names.
	if m.Plain {
		return m, nil
	}

	return m, p.readItems(ctx, m.Named())
}

// notified returns the receivers of an alert that get messages about it now. A message names them.
func (p *pass) notified(a *task.Alert) []string {
	return slices.DeleteFunc(slices.Clone(a.Notify), func(name string) bool {
		i := slices.IndexFunc(p.receivers, func(r store.Receiver) bool { return r.Ref.String() == name })
		if i < 0 {
			return true
		}

		facts := p.factsOf(&p.receivers[i])

		return facts.Block(a.Namespace, p.now) != nil
	})
}

// countFor counts the alerts that are open for the receiver of a message.
func (p *pass) countFor(m *alert.Message, alerts []alert.Addressed) {
	people := map[string]bool{}
	for i := range alerts {
		a := alerts[i].Alert
		if !a.IsOpen() {
			continue
		}
		if !alerts[i].Silenced {
			m.Open[a.Namespace] += alert.CountOf(a)
			continue
		}

		m.Silenced += alert.CountOf(a)
		if s := p.silences.Find(a, p.now); s != nil {
			person := s.By.String()
			people[person] = true
			m.SilencedBy = person
			if s.Until.After(m.SilencedUntil) {
				m.SilencedUntil = s.Until.Time
			}
		}
	}

	if len(people) != 1 {
		m.SilencedBy = ""
	}
}

// notAddressed returns an alert that the receiver was told of, but that does not name it any more. For the receiver, it has
// closed. It returns nil if the alert has no record.
func (p *pass) notAddressed(key uint64) *task.Alert {
	if p.byKey == nil {
		p.byKey = make(map[uint64]*knownAlert, len(p.known.alerts))
		for _, a := range p.known.alerts {
			p.byKey[a.key] = a
			for _, f := range a.former {
				p.byKey[f.key] = f
			}
		}
	}

	known := p.byKey[key]
	if known == nil {
		return nil
	}

	a := known.Alert
	if a.IsOpen() {
		a.Closed = &task.AlertClose{At: task.At(p.now), Why: task.AlertNotWatched}
	}

	return &a
}

// keysOf returns the keys of the alerts that a message names.
func (p *pass) keysOf(items []*alert.Item) task.AlertKeys {
	keys := make(task.AlertKeys, len(items))
	for i, item := range items {
		keys[i] = alert.KeyOf(p.known.cluster, &item.Alert)
	}
	slices.Sort(keys)

	return keys
}

// readItems reads what a message says about the tasks of its alerts.
func (p *pass) readItems(ctx context.Context, items []*alert.Item) error {
	var subjects []store.AlertSubject
	var of []*alert.Item
	for _, item := range items {
		a := &item.Alert
		if a.Task == "" {
			continue
		}

		run := a.Run
		if a.Closed != nil && a.Closed.Run != "" {
			run = a.Closed.Run
		}
		subjects = append(subjects, store.AlertSubject{Ref: p.cfg.Task(a.Namespace, a.Task), Run: run, Keep: historyOfSubject})
		of = append(of, item)
	}

	if err := p.cfg.Store.ReadSubjects(ctx, subjects); err != nil {
		return err
	}

	for i := range subjects {
		p.fillItem(of[i], &subjects[i])
	}

	return nil
}

// fillItem adds to an alert what was read about its task.
func (p *pass) fillItem(item *alert.Item, s *store.AlertSubject) {
	item.AuditReads = p.cfg.AuditsReads(s.Ref.Namespace)

	// Another task may have the name by now. It has nothing to do with the alert.
	if s.Task == nil || s.Task.UID != item.Alert.UID {
		return
	}

	item.Task, item.Run = s.Task, s.Found
	if rule := p.known.ruleOf(&item.Alert); rule != nil && s.Task.Alerts == nil {
		watched := *s.Task
		watched.Alerts = &rule.Alerts
		item.Task = &watched
	}

	for i := range s.History {
		if run := &s.History[i]; run.State == task.Succeeded && run.EndedAt.After(item.LastSuccess.Time) {
			item.LastSuccess = run.EndedAt
		}
	}
	if s.Entry != nil {
		item.Next, item.NextWords = alert.NextTick(s.Entry, p.now)
	}
}
