package store

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// change is what one revision did to one key: nil is a key that is not there.
type change struct {
	key           string
	before, after *mvccpb.KeyValue
}

// translator makes events of the changes of a revision. They follow from these
// changes alone, and from who leads, owns and is present, which few keys tell: so
// whoever begins anywhere is told the same.
type translator struct {
	keys    Keys
	leaders map[string]candidate
	owners  map[int]string
	present map[string]bool // nodes
}

type candidate struct {
	node   string
	create int64
}

// newTranslator begins with the keys from leader/ to owners/ as they are at a
// revision.
func newTranslator(keys Keys, all []*mvccpb.KeyValue) *translator {
	t := &translator{keys: keys, leaders: map[string]candidate{}, owners: map[int]string{}, present: map[string]bool{}}
	for _, e := range all {
		t.note(string(e.Key), e)
	}
	return t
}

// note keeps what is known of the cluster current.
func (t *translator) note(key string, now *mvccpb.KeyValue) {
	if strings.HasPrefix(key, t.keys.Leader()) {
		delete(t.leaders, key)
		if now != nil {
			t.leaders[key] = candidate{string(now.Value), now.CreateRevision}
		}
		return
	}
	if name, ok := strings.CutPrefix(key, t.keys.Nodes()); ok {
		t.present[name] = now != nil
		if now == nil {
			delete(t.present, name)
		}
		return
	}
	if shard, ok := t.keys.ParseOwner(key); ok {
		t.owners[shard] = ownerOf(now).Node
	}
}

// leader is the candidate that etcd's election has chosen: the oldest.
func (t *translator) leader() candidate {
	var first candidate
	for _, c := range t.leaders {
		if first.create == 0 || c.create < first.create {
			first = c
		}
	}
	return first
}

// term is the node that led in a term, if it still stands.
func (t *translator) term(create int64) string {
	for _, c := range t.leaders {
		if c.create == create {
			return c.node
		}
	}
	return ""
}

// unreadableRecord is the detail of an event whose record tells nothing.
const unreadableRecord = "the record cannot be read"

func ownerOf(e *mvccpb.KeyValue) (o Owner) {
	if e != nil {
		o, _ = decode[Owner](e.Value) // one that cannot be read has no owner
	}
	return o
}

// owner is the event of an owner key.
func (t *translator) owner(shard int, c change) task.Event {
	before, after := ownerOf(c.before), ownerOf(c.after)
	e := task.Event{Kind: task.EventShard, Action: task.ActionAssigned, Shard: &shard, Time: after.Since, Node: after.Node,
		Previous: before.Node, Actor: t.term(after.Term)}
	if after.Node == "" {
		e.Action = task.ActionUnassigned
	}
	return e
}

// node is the event of a node's key; false if only its clock or its load is new.
func (t *translator) node(name string, c change) (task.Event, bool) {
	e := task.Event{Kind: task.EventNode, Node: name, Actor: name}
	before, after := nodeOf(c.before), nodeOf(c.after)
	switch {
	case c.after == nil:
		e.Action, e.Previous, e.Actor = task.ActionLeft, before.State, ""
		e.Detail = instanceWords(before)
		return e, true
	case c.before == nil:
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
		if after.StateBy != "" {
			e.Actor = after.StateBy
		}
	}
	return e, e.Detail != ""
}

func nodeOf(e *mvccpb.KeyValue) (n task.Node) {
	if e != nil {
		n, _ = decode[task.Node](e.Value)
	}
	return n
}

func instanceWords(n task.Node) string {
	if n.Instance == "" {
		return ""
	}
	return "instance " + n.Instance
}

// nodeChanges says in words what is new about a node, its clock, its load and its
// facts aside; "" if nothing is.
func nodeChanges(a, b task.Node) string {
	var said words
	said.change("state", a.State, b.State)
	said.change("unfit", a.Unfit, b.Unfit)
	said.change("pressed", strings.Join(a.Pressed, ", "), strings.Join(b.Pressed, ", "))
	said.change("instance", a.Instance, b.Instance)
	said.change("public key", a.PublicKey, b.PublicKey)
	said.change("address", a.Address, b.Address)
	said.change("version", a.Version, b.Version)
	said.change("labels", encode(a.Labels), encode(b.Labels))
	said.change("roles", strings.Join(a.Roles, ", "), strings.Join(b.Roles, ", "))
	said.change("slots", fmt.Sprint(a.Slots), fmt.Sprint(b.Slots))
	said.change("weight", fmt.Sprint(a.Weight), fmt.Sprint(b.Weight))
	said.change("format", fmt.Sprint(a.Understands()), fmt.Sprint(b.Understands()))
	return said.String()
}

// words collects what has changed.
type words []string

func (w *words) change(what, before, after string) {
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

// cluster is the event of the cluster's record; false if nothing is new in it.
func (t *translator) cluster(c change) (task.Event, bool) {
	e := task.Event{Kind: task.EventCluster, Action: task.ActionChanged}
	if c.after == nil {
		e.Action = task.ActionDeleted
		return e, true
	}
	after, err := decode[task.Cluster](c.after.Value)
	if err != nil {
		e.Detail = unreadableRecord
		return e, true
	}
	if c.before == nil {
		e.Action, e.Time, e.Detail = task.ActionMade, after.CreatedAt, fmt.Sprintf("%d shards", after.Shards)
		return e, true
	}
	before, _ := decode[task.Cluster](c.before.Value)
	var said words
	said.change("epoch", fmt.Sprint(before.Epoch), fmt.Sprint(after.Epoch))
	said.change("format", fmt.Sprint(before.InForce()), fmt.Sprint(after.InForce()))
	said.change("format wanted", fmt.Sprint(before.FormatWanted), fmt.Sprint(after.FormatWanted))
	said.change("catch-up rate", fmt.Sprint(before.CatchUp()), fmt.Sprint(after.CatchUp()))
	said.change("lost_after", before.EffectiveLostAfter().String(), after.EffectiveLostAfter().String())
	said.change("id", before.ID, after.ID)
	if after.ChangedBy != before.ChangedBy || !after.ChangedAt.Equal(before.ChangedAt.Time) {
		e.Actor, e.Time = after.ChangedBy, after.ChangedAt
		if after.Change != "" {
			said = append(said, after.Change)
		}
	}
	e.Detail = said.String()
	return e, e.Detail != ""
}

// freezes are the events of the record of freezes.
func freezes(c change) (list []task.Event) {
	read := func(e *mvccpb.KeyValue) (f task.Freezes) {
		if e != nil {
			f, _ = decode[task.Freezes](e.Value)
		}
		return f
	}
	before, after := read(c.before), read(c.after)
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

func findFreeze(list []task.Freeze, z task.Freeze) *task.Freeze {
	for i := range list {
		if list[i].Namespace == z.Namespace && list[i].Since.Equal(z.Since.Time) {
			return &list[i]
		}
	}
	return nil
}
