package store

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// revision is the events of one revision, in their order: the cluster, nodes,
// shards, tasks, runs, and among these as they were written. Several changes that
// are one to a user are one event: a run that goes from the queue into an inbox,
// say. What users do not see is none: a watermark, a copy that is kept.
func (t *translator) revision(rev int64, changes []change) []task.Event {
	r := parts{t: t, tasks: map[string]*taskChange{}, runs: map[string]*runChange{}}
	led := t.leader()
	for i := range changes {
		r.sort(&changes[i])
	}
	if leads := t.leader(); leads.create != led.create {
		r.cluster = append(r.cluster, task.Event{Kind: task.EventCluster, Action: task.ActionLeader, Node: leads.node, Previous: led.node, Actor: leads.node})
	}
	gone := map[string]*task.Event{}
	var tasks, runs []task.Event
	for _, name := range r.taskOrder {
		if e, ok := r.tasks[name].event(); ok {
			tasks = append(tasks, e)
			if r.tasks[name].deleted() {
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
	}
	return all
}

// parts are the changes of a revision, by what they are about.
type parts struct {
	t                      *translator
	cluster, nodes, shards []task.Event
	secrets                []task.Event
	tasks                  map[string]*taskChange // by namespace/name
	taskOrder              []string
	runs                   map[string]*runChange // by namespace/name/id
	runOrder               []string
}

// sort puts a change where it belongs.
func (r *parts) sort(c *change) {
	keys := r.t.keys
	switch dir, _, _ := strings.Cut(strings.TrimPrefix(c.key, keys.Root()), "/"); dir {
	case "shards":
		if k, ok := keys.ParseShard(c.key); ok {
			r.inShard(k, c)
		}
	case "runs":
		if k, ok := keys.ParseRun(c.key); ok {
			r.run(k.Ref, k.Run).inInbox(k.Node, c)
		}
	case "tasks":
		if ns, name, ok := keys.ParseSpec(c.key); ok {
			r.task(Ref{Namespace: ns, Name: name}).spec = c
		}
	case "deleted":
		if parts, ok := partsBelow(keys.Tombstones(), c.key); ok && len(parts) == 2 {
			r.task(Ref{Namespace: parts[0], Name: parts[1]}).tomb = c
		}
	case "nodes":
		if e, ok := r.t.node(strings.TrimPrefix(c.key, keys.Nodes()), *c); ok {
			r.nodes = append(r.nodes, e)
		}
		r.t.note(c.key, c.after)
	case "owners":
		if shard, ok := keys.ParseOwner(c.key); ok {
			r.shards = append(r.shards, r.t.owner(shard, *c))
		}
		r.t.note(c.key, c.after)
	case "leader":
		r.t.note(c.key, c.after)
	case "cluster":
		if e, ok := r.t.cluster(*c); ok {
			r.cluster = append(r.cluster, e)
		}
	case "freezes":
		r.cluster = append(r.cluster, freezes(*c)...)
	case "secrets":
		if e, ok := r.t.secret(*c); ok {
			r.secrets = append(r.secrets, e)
		}
	}
}

func (r *parts) inShard(k ShardKey, c *change) {
	switch k.Kind {
	case KindEntry:
		r.task(k.Ref).entry = c
	case KindQueued:
		r.run(k.Ref, k.Run).queue = c
	case KindDead:
		r.run(k.Ref, k.Run).dead = c
	case KindPart:
		r.run(k.Ref, k.Run).history = c
	case KindEnded:
		if run := r.run(k.Ref, k.Run); k.Late {
			run.late = append(run.late, c)
		} else {
			run.history = c
		}
	}
}

func (r *parts) task(ref Ref) *taskChange {
	name := ref.String()
	c := r.tasks[name]
	if c == nil {
		c = &taskChange{ref: ref}
		r.tasks[name], r.taskOrder = c, append(r.taskOrder, name)
	}
	return c
}

func (r *parts) run(ref Ref, id string) *runChange {
	key := ref.String() + "/" + id
	c := r.runs[key]
	if c == nil {
		c = &runChange{ref: ref, id: id}
		r.runs[key], r.runOrder = c, append(r.runOrder, key)
	}
	return c
}
