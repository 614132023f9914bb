package events

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alertEvents returns the events of a change below alerts/. What was sent to receivers has none: a message is a run.
func (t *Translator) alertEvents(c *Change) []task.Event {
	if _, _, ok := t.keys.ParseSilence(c.Key); ok {
		return t.silenceEvents(c)
	}
	if ns, name, ok := t.keys.ParseAlertRule(c.Key); ok {
		return t.ruleEvents(c, ns, name)
	}
	if _, _, ok := t.keys.ParseAlert(c.Key); !ok {
		return nil
	}

	before, wasReadable := t.alertOf(c.Before)
	after, isReadable := t.alertOf(c.After)
	wasOpen, isOpen := c.Before != nil && wasReadable && before.IsOpen(), c.After != nil && isReadable && after.IsOpen()

	switch {
	case c.After != nil && !isReadable:
		return nil // the audit reports it
	case isOpen && !wasOpen:
		action := task.ActionOpened
		if c.Before != nil && wasReadable {
			action = task.ActionReopened
		}

		return []task.Event{t.openedEvent(c.Key, action, &after)}
	case isOpen && after.Acknowledged != nil && !after.Acknowledged.Equal(before.Acknowledged):
		e := t.alertEvent(c.Key, task.ActionAcknowledged, &after)
		e.Time, e.Actor = after.Acknowledged.At, after.Acknowledged.By

		return []task.Event{e}
	case wasOpen && c.After == nil: // deleted with another tool than Carillon
		return []task.Event{t.alertEvent(c.Key, task.ActionClosed, &before)}
	case wasOpen && !isOpen:
		e := t.alertEvent(c.Key, task.ActionClosed, &after)
		e.Time, e.Reason, e.Run = after.Closed.At, string(after.Closed.Why), after.Closed.Run
		if after.Closed.By != nil {
			e.Actor = after.Closed.By
		}

		return []task.Event{e}
	}

	return nil
}

// alertOf decodes the record of an alert. It returns false if there is none that can be read.
func (t *Translator) alertOf(e *mvccpb.KeyValue) (task.Alert, bool) {
	if e == nil {
		return task.Alert{}, false
	}
	a, _, ok, err := record.DecodeAlert(t.keys, e)

	return a, ok && err == nil
}

// alertEvent returns an event of an alert. Its actor is the node that watches it.
func (t *Translator) alertEvent(key, action string, a *task.Alert) task.Event {
	e := task.Event{Kind: task.EventAlert, Action: action, Alert: string(a.Kind), Namespace: a.Namespace, Task: a.Task, UID: a.UID, Run: a.Run}
	_, shard, _ := t.keys.ParseAlert(key)
	if shard < 0 {
		e.Actor, e.Reason = task.NodeActor(t.electedCandidate().node), a.Code
	} else {
		e.Actor, e.Shard = t.ownerActor(shard), &shard
	}

	return e
}

// openedEvent returns the event of an alert that was opened, or opened again.
func (t *Translator) openedEvent(key, action string, a *task.Alert) task.Event {
	e := t.alertEvent(key, action, a)
	e.Time = a.OpenedAt

	var details words
	switch a.Kind {
	case task.AlertMore:
		for _, kind := range slices.Sorted(maps.Keys(a.More)) {
			details = append(details, fmt.Sprintf("%d %s", a.More[kind], kind))
		}
		details = append(details, "for "+a.Receiver)
	case task.AlertCluster:
		details = append(details, a.Text)
	case task.AlertFailures:
		details = append(details, fmt.Sprintf("%d in a row", a.Failures))
	}

	if !a.Deadline.IsZero() {
		details = append(details, "deadline "+a.Deadline.Format(time.RFC3339))
	}
	if len(a.Notify) > 0 {
		details = append(details, "notifies "+strings.Join(a.Notify, ", "))
	}
	e.Detail = details.joinWords()

	return e
}

// ruleEvents returns the event of a rule. Who has deleted it is only in the audit record.
func (t *Translator) ruleEvents(c *Change, namespace, name string) []task.Event {
	e := task.Event{Kind: task.EventAlert, Action: task.ActionDeleted, Alert: "rule", Namespace: namespace, Detail: name}
	if c.After == nil {
		return []task.Event{e}
	}

	r, ok := record.DecodeAlertRule(t.keys, c.After)
	if !ok {
		return nil // the audit reports it
	}

	e.Action, e.Time, e.Actor = task.ActionSet, r.UpdatedAt, r.UpdatedBy

	return []task.Event{e}
}

// silenceEvents returns the events of a silence: somebody has created it, or ended it before its time. The leader deletes silences that have
// ended.
func (t *Translator) silenceEvents(c *Change) []task.Event {
	if c.After == nil {
		return nil
	}

	after, ok := record.DecodeSilence(t.keys, c.After)
	if !ok {
		return nil
	}

	e := task.Event{Kind: task.EventAlert, Action: task.ActionSilenced, Alert: "silence", Namespace: after.Namespace, Time: after.Since, Actor: after.By, Reason: after.Reason}
	what := after.What()

	switch {
	case c.Before == nil:
		e.Detail = what + " until " + after.Until.Format(time.RFC3339)
	case after.EndedBy != nil:
		e.Action, e.Time, e.Actor, e.Reason, e.Detail = task.ActionUnsilenced, after.Until, after.EndedBy, "", what
	default:
		return nil
	}

	return []task.Event{e}
}
