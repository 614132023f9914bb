package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// object identifies what an audit record lists.
type object struct{ kind, namespace, name, run string }

// String names the object in messages.
func (o object) String() string {
	name := o.name
	if o.namespace != "" {
		name = o.namespace + "/" + name
	}

	return strings.TrimRight(fmt.Sprintf("%s %s %s", o.kind, name, o.run), " ")
}

func objectOf(o task.AuditObject) object { return object{o.Kind, o.Namespace, o.Name, o.Run} }

// objectChange is what a revision does to an object.
type objectChange struct {
	object
	key     string
	deleted bool
	audited bool          // only the API makes such a change
	before  []byte        // the former value of an access record
	after   []byte        // the new value
	needs   []access.Need // what it needed to delete a task; only of pending changes
}

// changesOf returns what a revision does to each object that audit records list.
func (j *accessJudge) changesOf(d *delta, events []Event) []objectChange {
	// The transaction that creates the cluster's record also creates its first access records.
	bootstrap := slices.ContainsFunc(events, func(ev Event) bool {
		return ev.Key == j.keys.Cluster() && !ev.Deleted && ev.CreateRevision == ev.Revision
	})

	var changes []objectChange
	for _, ev := range events {
		c, ok := j.objectAt(ev.Key)
		if !ok {
			continue
		}

		c.key, c.deleted = ev.Key, ev.Deleted
		c.before, c.after = j.records[ev.Key].value, ev.Value
		c.audited = c.audited && !bootstrap && !j.madeByNode(d, ev, c)
		changes = append(changes, c)
	}

	return changes
}

// objectAt returns the object that a key is a record of. It does not use the function by which package store lists them.
func (j *accessJudge) objectAt(key string) (objectChange, bool) {
	dir, rest, _ := strings.Cut(strings.TrimPrefix(key, j.keys.Root()), "/")

	switch dir {
	case "tasks", "secrets":
		ns, name, ok := strings.Cut(rest, "/")
		return objectChange{object: object{kind: strings.TrimSuffix(dir, "s"), namespace: ns, name: name}, audited: true}, ok
	case "freezes":
		return objectChange{object: object{kind: "freeze"}, audited: true}, true
	case "cluster":
		return objectChange{object: object{kind: "cluster"}}, true
	case "requests":
		return objectChange{object: object{kind: "node", name: rest}}, true
	case "runs":
		k, ok := j.keys.ParseRun(key)
		return objectChange{object: object{kind: "run", namespace: k.Ref.Namespace, name: k.Ref.Name, run: k.Run}}, ok
	case "shards":
		k, ok := j.keys.ParseShard(key)
		run := object{kind: "run", namespace: k.Ref.Namespace, name: k.Ref.Name, run: k.Run}

		return objectChange{object: run, audited: k.Kind == record.KindQueued}, ok && k.Run != "" // see madeByNode
	case "access":
		if subject, ok := j.keys.ParseDisabledSubject(key); ok {
			return objectChange{object: object{kind: "subject", name: subject}, audited: true}, true
		}

		kind, name, ok := strings.Cut(rest, "/")
		if kind == "nodes" {
			kind = "node-limit"
		}

		return objectChange{object: object{kind: strings.TrimSuffix(kind, "s"), name: name}, audited: true}, ok
	}

	return objectChange{}, false
}

// madeByNode reports whether nodes also make such a change by themselves, without an audit record.
func (j *accessJudge) madeByNode(d *delta, ev Event, c objectChange) bool {
	switch c.kind {
	case "task": // the owner deletes a task after its ttl, and says so in its tombstone
		t := d.tombstones[record.Ref{Namespace: c.namespace, Name: c.name}]
		return ev.Deleted && t != nil && t.Why != ""
	case "secret": // the leader deletes what is left of a deleted secret
		return ev.Deleted
	case "run": // owners queue ticks, and runs that were queued before
		k, _ := j.keys.ParseShard(ev.Key)
		w, err := record.DecodeWaiting(k, ev.Value)

		return ev.Deleted || err != nil || w.Trigger != task.TriggerManual || w.Attempt > 1 || j.cluster.taskOf(k.Ref).runs[k.Run] != nil || task.IsPart(k.Run)
	}

	return false
}
