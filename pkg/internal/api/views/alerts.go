package views

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Alerts returns alerts as users see them, with their silences, and with what each receiver knows.
func (vi *Viewer) Alerts(ctx context.Context, list []task.Alert) ([]task.AlertStatus, error) {
	var names, namespaces []string
	for i := range list {
		names = append(names, receiversOf(&list[i])...)
		if ns := list[i].Namespace; ns != "" {
			namespaces = append(namespaces, ns)
		}
	}

	read, err := vi.readAlertRecords(ctx, names, namespaces)
	if err != nil {
		return nil, err
	}

	now, rights := vi.Now(), httpapi.RightsOf(ctx)
	views := make([]task.AlertStatus, len(list))
	for i := range list {
		a := &list[i]
		key := alert.KeyOf(vi.Cluster, a)
		views[i] = task.AlertStatus{Alert: *a, Name: a.Name(), Severity: a.Severity(), Receivers: []task.AlertReceiver{}}
		views[i].ID, views[i].Base, views[i].Former = 0, 0, nil // revisions say nothing to users
		if a.IsOpen() {
			views[i].Silence = read.silences.Find(a, now)
		}

		for _, name := range receiversOf(a) {
			r := read.receivers[name].Status(a, key, now)
			views[i].Receivers = append(views[i].Receivers, visibleReceiver(rights, r))
		}
	}

	return views, nil
}

// TaskAlerts returns the alerts of a task, and whether messages about it reach anybody. It returns task.ErrNotFound if there is neither such
// a task nor an alert of it.
func (vi *Viewer) TaskAlerts(ctx context.Context, ref record.Ref) (all task.TaskAlerts, err error) {
	list, err := vi.Store.AlertsOf(ctx, ref)
	if err != nil {
		return all, err
	}
	entries, err := vi.Store.Entries(ctx, []record.Ref{ref})
	if err != nil {
		return all, err
	}

	e := entries[0]
	if e == nil && len(list) == 0 {
		return all, fmt.Errorf("task %s: %w", ref, task.ErrNotFound)
	}
	if all.Items, err = vi.Alerts(ctx, list); err != nil {
		return all, err
	}

	all.Receivers = []task.AlertReceiver{}
	if e == nil {
		return all, nil
	}

	expected := e.Alerts
	if expected == nil {
		if all.Rule, err = vi.ruleOf(ctx, ref.Namespace, e); err != nil || all.Rule == nil {
			return all, err
		}
		expected = &all.Rule.Alerts
	}

	names := expected.Receivers(ref.Namespace)
	read, err := vi.readAlertRecords(ctx, names, []string{ref.Namespace})
	if err != nil {
		return all, err
	}

	now, rights := vi.Now(), httpapi.RightsOf(ctx)
	for _, name := range names {
		r := task.AlertReceiver{Receiver: name, Blocked: read.receivers[name].Block(ref.Namespace, now)}
		all.Receivers = append(all.Receivers, visibleReceiver(rights, r))
	}
	all.Silence = read.silences.Find(&task.Alert{Namespace: ref.Namespace, Task: ref.Name, Labels: e.Labels}, now)

	return all, nil
}

// ruleOf returns the rule of a task without alerts of its own, or nil.
func (vi *Viewer) ruleOf(ctx context.Context, ns string, e *task.Entry) (*task.AlertRule, error) {
	rules, err := vi.Store.AlertRules(ctx, []string{ns})
	if err != nil {
		return nil, err
	}
	if rule := alert.CompileRules(rules, 0, nil).RuleOfEntry(ns, e); rule != nil && e.Receiver == nil {
		return &rule.AlertRule, nil
	}

	return nil, nil
}

// AcceptingReceivers returns which of some receivers take the alerts of a namespace.
func (vi *Viewer) AcceptingReceivers(ctx context.Context, ns string, names []string) (accepting []string, err error) {
	refs := make([]record.Ref, len(names))
	for i, name := range names {
		namespace, inner, _ := strings.Cut(name, "/")
		refs[i] = vi.Ref(namespace, inner)
	}

	entries, err := vi.Store.Entries(ctx, refs)
	for i, e := range entries {
		if e != nil && e.Receiver.Accepts(refs[i].Namespace, ns) {
			accepting = append(accepting, names[i])
		}
	}

	return accepting, err
}

// receiversOf returns the receivers of an alert.
func receiversOf(a *task.Alert) []string {
	if a.Kind == task.AlertMore && !slices.Contains(a.Notify, a.Receiver) {
		return append(slices.Clone(a.Notify), a.Receiver)
	}
	return a.Notify
}

// visibleReceiver returns what a caller may see of a receiver. Who may not read its namespace does not learn whether a task exists there: a
// receiver that does not exist looks like one that does not accept the alert. They do not learn either who paused it and why, or
// the runs of its messages.
func visibleReceiver(rights *httpapi.Rights, r task.AlertReceiver) task.AlertReceiver {
	namespace, _, _ := strings.Cut(r.Receiver, "/")
	if !rights.CanReadRuns(namespace) {
		r.Run = ""
	}
	if r.Blocked == nil || rights.CanRead(namespace) {
		return r
	}

	why := r.Blocked.Why
	if why == task.BlockMissing {
		why = task.BlockForbidden
	}
	r.Blocked = &task.AlertBlock{Why: why}

	return r
}

// alertRecords is what is read for the views of alerts.
type alertRecords struct {
	receivers map[string]*alert.ReceiverFacts // by NAMESPACE/NAME
	silences  alert.Silences
}

// readAlertRecords reads what is known of receivers, and the silences of namespaces. Both lists may contain an item several times.
func (vi *Viewer) readAlertRecords(ctx context.Context, names, namespaces []string) (alertRecords, error) {
	slices.Sort(names)
	names = slices.Compact(names)
	slices.Sort(namespaces)
	namespaces = slices.Compact(namespaces)

	refs := make([]record.Ref, len(names))
	for i, name := range names {
		namespace, task, _ := strings.Cut(name, "/")
		refs[i] = vi.Ref(namespace, task)
	}

	var (
		entries  []*task.Entry
		sent     []*task.AlertsSent
		silences []task.AlertSilence
		freezes  store.FreezeRecord
	)
	g, ctx := callgroup.WithContext(ctx)
	g.Go(func() (err error) { entries, err = vi.Store.Entries(ctx, refs); return err })
	g.Go(func() (err error) { sent, err = vi.Store.SentTo(ctx, refs); return err })
	g.Go(func() (err error) { silences, err = vi.Store.Silences(ctx, namespaces); return err })
	g.Go(func() (err error) { freezes, err = vi.Store.Freezes(ctx); return err })
	if err := g.Wait(); err != nil {
		return alertRecords{}, err
	}

	for i := range silences {
		silences[i].NamespaceRev = 0 // checked, and of no use to users
	}

	r := alertRecords{receivers: map[string]*alert.ReceiverFacts{}, silences: alert.CompileSilences(silences, nil)}
	for i, name := range names {
		r.receivers[name] = &alert.ReceiverFacts{Name: name, Entry: entries[i], Sent: sent[i], Freeze: freezes.Of(refs[i].Namespace)}
	}

	return r, nil
}

// Silences returns the silences of some namespaces that are in force, the first to end first.
func (vi *Viewer) Silences(ctx context.Context, namespaces []string) ([]task.AlertSilence, error) {
	list, err := vi.Store.Silences(ctx, namespaces)
	if err != nil {
		return nil, err
	}

	now := vi.Now()
	list = slices.DeleteFunc(list, func(s task.AlertSilence) bool { return !s.Until.After(now) })
	slices.SortStableFunc(list, func(a, b task.AlertSilence) int { return a.Until.Compare(b.Until.Time) })

	return list, nil
}
