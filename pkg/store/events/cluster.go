package events

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ownerOf decodes an owner record.
func ownerOf(e *mvccpb.KeyValue) (o record.Owner) {
	if e != nil {
		o, _ = record.Decode[record.Owner](e.Value) // an unreadable record has no owner
	}
	return o
}

// ownerActor returns the owner of a shard as the actor of its decisions, or nil if it has none.
func (t *Translator) ownerActor(shard int) *task.Actor { return task.NodeActor(t.owners[shard]) }

// ownerEvent returns the event for the change of an owner key.
func (t *Translator) ownerEvent(shard int, c Change) task.Event {
	before, after := ownerOf(c.Before), ownerOf(c.After)
	e := task.Event{Kind: task.EventShard, Action: task.ActionAssigned, Shard: &shard, Time: after.Since, Node: after.Node,
		Previous: before.Node, Actor: task.NodeActor(t.leaderOfTerm(after.Term))}
	if after.Node == "" {
		e.Action = task.ActionUnassigned
	}

	return e
}

// nodeEvent returns the event for the change of a node's key. It returns false if only the
// clock, the load or other measured values of the node have changed.
func (t *Translator) nodeEvent(name string, c Change) (task.Event, bool) {
	e := task.Event{Kind: task.EventNode, Node: name, Actor: task.NodeActor(name)}
	before, after := nodeOf(c.Before), nodeOf(c.After)

	switch {
	case c.After == nil:
		e.Action, e.Previous, e.Actor = task.ActionLeft, before.State, nil
		e.Detail = instanceWords(before)
		return e, true
	case c.Before == nil:
		e.Action, e.State, e.Time = task.ActionJoined, after.State, after.JoinedAt
		if e.Time.IsZero() {
			e.Time = after.Clock
		}

		e.Detail = instanceWords(after)
		return e, true
	}

	e.Action, e.State, e.Time, e.Detail = task.ActionChanged, after.State, after.Clock, nodeChanges(before, after)
	if before.State != after.State {
		e.Previous = before.State
		if after.StateBy != nil {
			e.Actor = after.StateBy
		}
	}

	return e, e.Detail != ""
}

// nodeOf decodes the record of a node. An unreadable record is the zero value.
func nodeOf(e *mvccpb.KeyValue) (n task.Node) {
	if e != nil {
		n, _ = record.Decode[task.Node](e.Value)
	}
	return n
}

// instanceWords describes the instance of a node.
func instanceWords(n task.Node) string {
	if n.Instance == "" {
		return ""
	}
	return "instance " + n.Instance
}

// nodeChanges describes the changes of a node's record, except for its clock, its load and its
// measured values. It returns an empty string if there are none.
func nodeChanges(a, b task.Node) string {
	var said words
	said.addChange("state", a.State, b.State)
	said.addChange("ineligible", a.Ineligible, b.Ineligible)
	said.addChange("blocked", strings.Join(a.Blocked, ", "), strings.Join(b.Blocked, ", "))
	said.addChange("instance", a.Instance, b.Instance)
	said.addChange("public key", a.PublicKey, b.PublicKey)
	said.addChange("address", a.Address, b.Address)
	said.addChange("version", a.Version, b.Version)
	said.addChange("labels", record.Encode(a.Labels), record.Encode(b.Labels))
	said.addChange("roles", strings.Join(a.Roles, ", "), strings.Join(b.Roles, ", "))
	said.addChange("slots", fmt.Sprint(a.Slots), fmt.Sprint(b.Slots))
	said.addChange("weight", fmt.Sprint(a.Weight), fmt.Sprint(b.Weight))
	said.addChange("format", fmt.Sprint(a.Understands()), fmt.Sprint(b.Understands()))

	return said.String()
}

// words collects descriptions of changes.
type words []string

// addChange adds a change if the two values differ.
func (w *words) addChange(what, before, after string) {
	if before != after {
		*w = append(*w, fmt.Sprintf("%s: %s → %s", what, orNone(before), orNone(after)))
	}
}

func (w *words) String() string { return strings.Join(*w, "; ") }

func orNone(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// clusterEvent returns the event for the change of the cluster's record. It returns false if
// nothing that a user sees has changed.
func (t *Translator) clusterEvent(c Change) (task.Event, bool) {
	e := task.Event{Kind: task.EventCluster, Action: task.ActionChanged}
	if c.After == nil {
		e.Action = task.ActionDeleted
		return e, true
	}

	after, err := record.Decode[task.Cluster](c.After.Value)
	if err != nil {
		e.Detail = unreadableRecord
		return e, true
	}

	if c.Before == nil {
		e.Action, e.Time, e.Detail = task.ActionMade, after.CreatedAt, fmt.Sprintf("%d shards", after.Shards)
		return e, true
	}

	before, _ := record.Decode[task.Cluster](c.Before.Value)
	var details words
	details.addChange("epoch", fmt.Sprint(before.Epoch), fmt.Sprint(after.Epoch))
	details.addChange("format", fmt.Sprint(before.InForce()), fmt.Sprint(after.InForce()))
	details.addChange("format wanted", fmt.Sprint(before.FormatWanted), fmt.Sprint(after.FormatWanted))
	details.addChange("catch-up rate", fmt.Sprint(before.CatchUp()), fmt.Sprint(after.CatchUp()))
	details.addChange("lost_after", before.EffectiveLostAfter().String(), after.EffectiveLostAfter().String())
	details.addChange("ledger", before.LedgerSetting().String(), after.LedgerSetting().String())
	details.addChange("ledger limit", optionalDuration(before.LedgerLimit), optionalDuration(after.LedgerLimit))
	details.addChange("public_url", before.PublicURL, after.PublicURL)
	details.addChange("alert receivers", strings.Join(before.AlertReceivers, " "), strings.Join(after.AlertReceivers, " "))
	details.addChange("id", before.ID, after.ID)

	if !after.ChangedBy.Equal(before.ChangedBy) || !after.ChangedAt.Equal(before.ChangedAt.Time) {
		e.Actor, e.Time = after.ChangedBy, after.ChangedAt
		if after.Change != "" {
			details = append(details, after.Change)
		}
	}

	e.Detail = details.String()

	return e, e.Detail != ""
}

// optionalDuration formats a duration; "" if there is none.
func optionalDuration(d *task.Duration) string {
	if d == nil {
		return ""
	}

	return d.String()
}

// freezeEvents returns the events for the change of the record of freezes: one for each freeze
// that was added or ended.
func freezeEvents(c Change) (list []task.Event) {
	read := func(e *mvccpb.KeyValue) (f task.Freezes) {
		if e != nil {
			f, _ = record.Decode[task.Freezes](e.Value)
		}
		return f
	}

	before, after := read(c.Before), read(c.After)
	for _, z := range after.Holding {
		if findFreeze(before.Holding, z) == nil {
			list = append(list, task.Event{Kind: task.EventCluster, Action: task.ActionFrozen, Namespace: z.Namespace, Time: z.Since, Actor: z.By, Reason: z.Reason})
		}
	}

	for _, z := range before.Holding {
		if findFreeze(after.Holding, z) != nil {
			continue
		}

		e := task.Event{Kind: task.EventCluster, Action: task.ActionUnfrozen, Namespace: z.Namespace}
		if past := findFreeze(after.Past, z); past != nil {
			e.Time, e.Actor = past.Ended, past.EndedBy
		}

		list = append(list, e)
	}

	return list
}

// findFreeze returns the freeze in the list that is the same as z: same scope, same beginning.
func findFreeze(list []task.Freeze, z task.Freeze) *task.Freeze {
	for i := range list {
		if list[i].Namespace == z.Namespace && list[i].Since.Equal(z.Since.Time) {
			return &list[i]
		}
	}

	return nil
}

// secretEvent returns the event of a secret: what was done, and by whom. It never contains a
// value. It returns false if the change has no event.
func (t *Translator) secretEvent(c Change) (task.Event, bool) {
	ns, name, ok := t.keys.ParseSecret(c.Key)
	if !ok {
		return task.Event{}, false
	}

	e := task.Event{Kind: task.EventSecret, Namespace: ns, Secret: name}
	if c.After == nil {
		if c.Before != nil {
			if was, err := t.keys.DecodeSecret(c.Before); err == nil && was.Deleted() {
				return e, false // the deletion had its event when the record was marked as deleted
			}
		}

		// The record was deleted with another tool than Carillon.
		e.Action = task.ActionDeleted
		return e, true
	}

	r, err := t.keys.DecodeSecret(c.After)
	if err != nil {
		e.Action, e.Detail = task.ActionSet, unreadableRecord
		return e, true
	}

	e.Action, e.Time, e.Actor, e.Generation = r.Change, r.UpdatedAt, r.UpdatedBy, r.Generation
	if !r.Deleted() {
		e.Detail = strings.Join(r.Keys, ", ") + " under key " + r.KeyID
	}

	return e, true
}
