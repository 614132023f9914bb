package events

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Translate returns the events of one revision in a fixed order: cluster, nodes, shards,
// secrets, tasks, runs, and within each of these in the order of the changes. Several changes
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
		r.cluster = append(r.cluster, task.Event{Kind: task.EventCluster, Action: task.ActionLeader, Node: leads.node, Previous: led.node, Actor: leads.node})
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
	for _, part := range [][]task.Event{r.cluster, r.nodes, r.shards, r.secrets, tasks, runs} {
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
	secrets                []task.Event
	tasks                  map[string]*taskChange // by namespace/name
	taskOrder              []string               // the keys of tasks in the order of the changes
	runs                   map[string]*runChange  // by namespace/name/id
	runOrder               []string               // the keys of runs in the order of the changes
}

// addChange adds a change to the group of its subject.
func (r *parts) addChange(c *Change) {
	keys := r.t.keys
	switch dir, _, _ := strings.Cut(strings.TrimPrefix(c.Key, keys.Root()), "/"); dir {
	case "shards":
		if k, ok := keys.ParseShard(c.Key); ok {
			r.inShard(k, c)
		}
	case "runs":
		if k, ok := keys.ParseRun(c.Key); ok {
			r.runChangeOf(k.Ref, k.Run).inInbox(k.Node, c)
		}
	case "tasks":
		if ns, name, ok := keys.ParseSpec(c.Key); ok {
			r.taskChangeOf(record.Ref{Namespace: ns, Name: name}).spec = c
		}
	case "deleted":
		if ns, name, ok := keys.ParseTombstone(c.Key); ok {
			r.taskChangeOf(record.Ref{Namespace: ns, Name: name}).tomb = c
		}
	case "nodes":
		if e, ok := r.t.nodeEvent(strings.TrimPrefix(c.Key, keys.Nodes()), *c); ok {
			r.nodes = append(r.nodes, e)
		}
		r.t.noteState(c.Key, c.After)
	case "owners":
		if shard, ok := keys.ParseOwner(c.Key); ok {
			r.shards = append(r.shards, r.t.ownerEvent(shard, *c))
		}
		r.t.noteState(c.Key, c.After)
	case "leader":
		r.t.noteState(c.Key, c.After)
	case "cluster":
		if e, ok := r.t.clusterEvent(*c); ok {
			r.cluster = append(r.cluster, e)
		}
	case "freezes":
		r.cluster = append(r.cluster, freezeEvents(*c)...)
	case "secrets":
		if e, ok := r.t.secretEvent(*c); ok {
			r.secrets = append(r.secrets, e)
		}
	}
}

// inShard adds a change of a record in a shard.
func (r *parts) inShard(k record.ShardKey, c *Change) {
	switch k.Kind {
	case record.KindEntry:
		r.taskChangeOf(k.Ref).entry = c
	case record.KindQueued:
		r.runChangeOf(k.Ref, k.Run).queue = c
	case record.KindDead:
		r.runChangeOf(k.Ref, k.Run).dead = c
	case record.KindPart:
		r.runChangeOf(k.Ref, k.Run).history = c
	case record.KindEnded:
		if run := r.runChangeOf(k.Ref, k.Run); k.Late {
			run.late = append(run.late, c)
		} else {
			run.history = c
		}
	}
}

// taskChangeOf returns the group of a task.
func (r *parts) taskChangeOf(ref record.Ref) *taskChange {
	name := ref.String()
	c := r.tasks[name]
	if c == nil {
		c = &taskChange{ref: ref}
		r.tasks[name], r.taskOrder = c, append(r.taskOrder, name)
	}

	return c
}

// runChangeOf returns the group of a run.
func (r *parts) runChangeOf(ref record.Ref, id string) *runChange {
	key := ref.String() + "/" + id
	c := r.runs[key]
	if c == nil {
		c = &runChange{ref: ref, id: id}
		r.runs[key], r.runOrder = c, append(r.runOrder, key)
	}

	return c
}
