// Package events translates revisions of etcd into events: what happened to the cluster, its
// nodes, shards, tasks and runs, in terms of a user.
//
// It is pure: it reads neither etcd nor a clock. The events of a revision follow from the
// changes of that revision, and from who led, owned and was present before it. So every reader
// gets the same events with the same ids, wherever it begins. Package store follows etcd and
// passes each revision to a Translator.
//
// An event exists only as long as etcd has the revision: a change that has been compacted is
// never translated.
package events

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Change is the change of one key by one revision. A nil value means that the key was, or is,
// absent.
type Change struct {
	Key           string
	Before, After *mvccpb.KeyValue
}

// Translator derives events from the changes of a revision. They depend only on these changes
// and on who leads, owns and is present, which it keeps up to date from a few keys. So the
// events are the same wherever a reader begins.
type Translator struct {
	keys    record.Keys
	leaders map[string]candidate // the keys of the election
	owners  map[int]string       // the owner of each shard
	present map[string]bool      // the nodes that are present
	clocks  map[string]task.Time // the clocks that they have announced last
}

// candidate is a node that takes part in the election of the leader.
type candidate struct {
	node   string
	create int64 // create revision of its key: its term if it is elected
}

// New returns a Translator that begins with the given keys: those from leader/ to owners/ at a
// revision.
func New(keys record.Keys, all []*mvccpb.KeyValue) *Translator {
	t := &Translator{keys: keys, leaders: map[string]candidate{}, owners: map[int]string{}, present: map[string]bool{}, clocks: map[string]task.Time{}}
	for _, e := range all {
		t.noteState(string(e.Key), e)
	}
	return t
}

// noteState updates the state of the cluster with a key. now is its present value, or nil.
func (t *Translator) noteState(key string, now *mvccpb.KeyValue) {
	if strings.HasPrefix(key, t.keys.Leader()) {
		delete(t.leaders, key)
		if now != nil {
			t.leaders[key] = candidate{string(now.Value), now.CreateRevision}
		}
		return
	}

	if name, ok := strings.CutPrefix(key, t.keys.Nodes()); ok {
		if now == nil {
			delete(t.present, name)
			delete(t.clocks, name)
			return
		}
		t.present[name], t.clocks[name] = true, nodeOf(now).Clock
		return
	}

	if shard, ok := t.keys.ParseOwner(key); ok {
		t.owners[shard] = ownerOf(now).Node
	}
}

// electedCandidate returns the candidate that has won the election: the one whose key is the
// oldest. It returns the zero value if there is none.
func (t *Translator) electedCandidate() candidate {
	var first candidate
	for _, c := range t.leaders {
		if first.create == 0 || c.create < first.create {
			first = c
		}
	}

	return first
}

// leaderOfTerm returns the node of a term, if its key still exists, otherwise an empty string.
func (t *Translator) leaderOfTerm(create int64) string {
	for _, c := range t.leaders {
		if c.create == create {
			return c.node
		}
	}

	return ""
}

// latestClock returns the latest clock of the nodes that are present, or zero. Nodes announce theirs every few seconds, so
// it is little earlier than the next revision. Like everything else in the Translator, it is the same wherever a reader begins.
func (t *Translator) latestClock() (latest task.Time) {
	for _, c := range t.clocks {
		if c.After(latest.Time) {
			latest = c
		}
	}

	return latest
}

// unreadableRecord is the detail of an event whose record cannot be decoded.
const unreadableRecord = "the record cannot be read"

// Translate returns the events of one revision in a fixed order: cluster, nodes, shards,
// secrets, tasks, runs, alerts, and within each of these in the order of the changes. Several changes
// that are one step for a user become one event, such as the move of a run from the queue into
// an inbox. Changes that users do not see have no event, such as that of a watermark or of a
// version that is kept.
//
// Translate must be called for every revision in order, because it also updates the state of
// the Translator.
func (t *Translator) Translate(rev int64, changes []Change) []task.Event {
	r := parts{t: t, tasks: map[string]*taskChange{}, runs: map[string]*runChange{}}
	led, clock := t.electedCandidate(), t.latestClock()

	for i := range changes {
		r.addChange(&changes[i])
	}

	if leads := t.electedCandidate(); leads.create != led.create {
		r.cluster = append(r.cluster, task.Event{Kind: task.EventCluster, Action: task.ActionLeader, Node: leads.node, Previous: led.node, Actor: task.NodeActor(leads.node)})
	}

	// The deletion of a task also deletes its runs. Their events need the event of the task.
	gone := map[string]*task.Event{}
	var tasks, runs []task.Event
	for _, name := range r.taskOrder {
		if e, ok := r.tasks[name].taskEvent(); ok {
			tasks = append(tasks, e)
			if r.tasks[name].isDeleted() {
				gone[name] = &e
			}
		}
	}

	for _, key := range r.runOrder {
		c := r.runs[key]
		runs = append(runs, t.runEvents(c, gone[c.ref.String()])...)
	}

	var all []task.Event
	for _, part := range [][]task.Event{r.cluster, r.nodes, r.shards, r.secrets, tasks, runs, r.alerts} {
		all = append(all, part...)
	}

	for i := range all {
		all[i].Revision = rev
		all[i].ID = task.Place{Revision: rev, Index: i + 1}.String()

		// Some changes are made by etcd, such as the end of a session, and some records have no time for a change.
		if all[i].Time.IsZero() && !clock.IsZero() {
			all[i].Time, all[i].Approximate = clock, true
		}
	}

	return all
}

// parts contains the changes of a revision, grouped by their subject.
type parts struct {
	t                      *Translator
	cluster, nodes, shards []task.Event
	secrets, alerts        []task.Event
	tasks                  map[string]*taskChange // by namespace/name
	taskOrder              []string               // the keys of tasks in the order of the changes
	runs                   map[string]*runChange  // by namespace/name/id
	runOrder               []string               // the keys of runs in the order of the changes
}

// addChange adds a change to the group of its subject.
func (p *parts) addChange(c *Change) {
	keys := p.t.keys
	switch dir, _, _ := strings.Cut(strings.TrimPrefix(c.Key, keys.Root()), "/"); dir {
	case "shards":
		if k, ok := keys.ParseShard(c.Key); ok {
			p.inShard(k, c)
		}
	case "runs":
		if k, ok := keys.ParseRun(c.Key); ok {
			p.runChangeOf(k.Ref, k.Run).inInbox(k.Node, c)
		}
	case "tasks":
		if ns, name, ok := keys.ParseSpec(c.Key); ok {
			p.taskChangeOf(record.Ref{Namespace: ns, Name: name}).spec = c
		}
	case "deleted":
		if ns, name, ok := keys.ParseTombstone(c.Key); ok {
			p.taskChangeOf(record.Ref{Namespace: ns, Name: name}).tomb = c
		}
	case "nodes":
		if e, ok := p.t.nodeEvent(strings.TrimPrefix(c.Key, keys.Nodes()), *c); ok {
			p.nodes = append(p.nodes, e)
		}
		p.t.noteState(c.Key, c.After)
	case "owners":
		if shard, ok := keys.ParseOwner(c.Key); ok {
			p.shards = append(p.shards, p.t.ownerEvent(shard, *c))
		}
		p.t.noteState(c.Key, c.After)
	case "leader":
		p.t.noteState(c.Key, c.After)
	case "cluster":
		if e, ok := p.t.clusterEvent(*c); ok {
			p.cluster = append(p.cluster, e)
		}
	case "freezes":
		p.cluster = append(p.cluster, freezeEvents(*c)...)
	case "secrets":
		if e, ok := p.t.secretEvent(*c); ok {
			p.secrets = append(p.secrets, e)
		}
	case "alerts":
		p.alerts = append(p.alerts, p.t.alertEvents(c)...)
	}
}

// inShard adds a change of a record in a shard.
func (p *parts) inShard(k record.ShardKey, c *Change) {
	switch k.Kind {
	case record.KindEntry:
		p.taskChangeOf(k.Ref).entry = c
	case record.KindSent:
		p.taskChangeOf(k.Ref).cursor = c
	case record.KindQueued:
		p.runChangeOf(k.Ref, k.Run).queue = c
	case record.KindDead:
		p.runChangeOf(k.Ref, k.Run).dead = c
	case record.KindPart:
		p.runChangeOf(k.Ref, k.Run).history = c
	case record.KindEnded:
		if run := p.runChangeOf(k.Ref, k.Run); k.Late {
			run.late = append(run.late, c)
		} else {
			run.history = c
		}
	}
}

// taskChangeOf returns the group of a task.
func (p *parts) taskChangeOf(ref record.Ref) *taskChange {
	name := ref.String()
	c := p.tasks[name]
	if c == nil {
		c = &taskChange{ref: ref}
		p.tasks[name], p.taskOrder = c, append(p.taskOrder, name)
	}

	return c
}

// runChangeOf returns the group of a run.
func (p *parts) runChangeOf(ref record.Ref, id string) *runChange {
	key := ref.String() + "/" + id
	c := p.runs[key]
	if c == nil {
		c = &runChange{ref: ref, id: id}
		p.runs[key], p.runOrder = c, append(p.runOrder, key)
	}

	return c
}
