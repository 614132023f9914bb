package check

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// accessJudge judges the writes of the API by their audit records: no write of a caller commits after the caller's
// rights were reduced (G27), and each write has exactly one audit record in its own transaction (G28).
//
// It compiles the access records as of the revision before a write, and asks whether the subject and the token that the
// audit record names could make that change by them. A group commit has several audit records at one revision; their
// transactions conflict neither with one another nor with a change of access, so that is the state which each compared.
//
// It cannot see who really made a request. It relies on the subject that the record names.
type accessJudge struct {
	judge

	records map[string]accessRecord  // by key, as of the revision before
	table   *access.Table            // compiled from records; nil: it must be compiled again
	pending map[int64]*pendingRecord // by revision: changes whose audit record may follow as a late one
	written map[string][]byte        // the audit records that exist, by key
}

// accessRecord is a record below access/.
type accessRecord struct {
	value  []byte
	mod    int64
	create int64
}

// checkRevision judges the audit records of a revision, and the changes that must have one.
func (j *accessJudge) checkRevision(d *delta, events []Event) {
	defer j.applyRecords(events)

	j.checkRemovals(events)

	changes := j.changesOf(d, events)
	listed := map[object]int{}

	for _, ev := range events {
		id, ok := strings.CutPrefix(ev.Key, j.keys.AuditRecords())
		if !ok {
			continue
		}

		if ev.Deleted {
			delete(j.written, ev.Key)
			continue
		}

		a, err := record.Decode[task.AuditRecord](ev.Value)
		if err != nil {
			j.addViolation("form", ev.Key, "unreadable record: %v", err)
			continue
		}

		// A record of its own (an intent, an outcome, a late record) may be written twice.
		was, again := j.written[ev.Key]
		j.written[ev.Key] = ev.Value
		if again {
			if !bytes.Equal(was, ev.Value) {
				j.addViolation("G28", ev.Key, "the audit record is changed after it was written")
			}
			continue
		}

		a.ID = id
		switch {
		case a.Late:
			j.checkLate(&a, ev.Key)
		case a.Outcome == task.AuditIntended:
			j.checkRights(j.currentTable(), &a, ev.Key, j.needsOf(d, &a, nil))
		case a.Outcome == task.AuditRead:
			j.checkRights(j.currentTable(), &a, ev.Key, j.needsOfRead(&a))
		case a.Outcome == "":
			for _, o := range a.Objects {
				listed[objectOf(o)]++
			}

			j.checkListed(&a, ev.Key, changes)

			if a.Operation == sweepTokens {
				j.checkSweep(&a, ev.Key, changes)
				continue
			}
			j.checkRights(j.currentTable(), &a, ev.Key, j.needsOf(d, &a, changes))
			j.checkSessions(j.currentTable(), &a, ev.Key, changes)
		}
	}

	j.checkAudited(d, changes, listed)
}

// currentTable returns the table of the access records as of the revision before.
func (j *accessJudge) currentTable() *access.Table {
	if j.table == nil {
		j.table = j.compileTable()
	}

	return j.table
}

// compileTable decodes the access records. A record that cannot be read allows nothing, as in the product.
func (j *accessJudge) compileTable() *access.Table {
	r := access.Records{Created: map[string]int64{}}
	for key, rec := range j.records {
		switch {
		case key == j.keys.Fence():
			r.Fence = rec.mod
		case strings.HasPrefix(key, j.keys.Roles()):
			appendDecoded(&r.Roles, rec.value)
		case strings.HasPrefix(key, j.keys.Bindings()):
			appendDecoded(&r.Bindings, rec.value)
		case strings.HasPrefix(key, j.keys.Namespaces()):
			appendDecoded(&r.Namespaces, rec.value)
		case strings.HasPrefix(key, j.keys.Tokens()):
			if t, err := record.Decode[record.Token](rec.value); err == nil {
				t.Token.ID = strings.TrimPrefix(key, j.keys.Tokens())
				r.Created[t.Token.ID] = rec.create
				r.Tokens = append(r.Tokens, t.Token)
			}
		default:
			if subject, ok := j.keys.ParseDisabledSubject(key); ok {
				r.Disabled = append(r.Disabled, subject)
			}
		}
	}

	table, _ := access.Compile(r)

	return table
}

func appendDecoded[T any](list *[]T, value []byte) {
	if v, err := record.Decode[T](value); err == nil {
		*list = append(*list, v)
	}
}

// applyRecords applies the changes below access/. Every one of them except the creation and the deletion of a token puts
// the fence at the same revision (G27): a writer who was authorised before would not notice the change otherwise. The creation and the deletion of a token put the key of token changes, or delete it in a full etcd. Otherwise a node
// would treat an old copy as current.
func (j *accessJudge) applyRecords(events []Event) {
	fenced, unfenced := false, ""
	announced, unannounced := false, ""

	for _, ev := range events {
		rest, ok := strings.CutPrefix(ev.Key, j.keys.Access())
		if !ok {
			continue
		}

		_, existed := j.records[ev.Key]
		switch token := strings.HasPrefix(rest, "tokens/"); {
		case ev.Key == j.keys.Fence():
			fenced = true
		case ev.Key == j.keys.TokenChanges():
			announced = true
		case token:
			unannounced = ev.Key
			if existed && !ev.Deleted {
				unfenced = ev.Key
			}
		default:
			unfenced = ev.Key
		}

		j.table = nil
		if ev.Deleted {
			delete(j.records, ev.Key)
		} else {
			j.records[ev.Key] = accessRecord{value: ev.Value, mod: ev.ModRevision, create: ev.CreateRevision}
		}
	}

	if unfenced != "" && !fenced && j.cluster.revision > j.cluster.began {
		j.addViolation("G27", unfenced, "an access record changes, and the fence does not")
	}

	// After the key was deleted in a full etcd, nodes compare all records until it exists again.
	_, isPresent := j.records[j.keys.TokenChanges()]
	if unannounced != "" && !announced && isPresent && j.cluster.revision > j.cluster.began {
		j.addViolation("G27", unannounced, "a token is created or deleted, and the key of token changes does not change")
	}
}

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
	both    bool          // the API and nodes make such a change, and the API writes a record of it
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

		// Persons dismiss dead runs, and owners delete those that are too many.
		return objectChange{object: run, audited: k.Kind == record.KindQueued, both: k.Kind == record.KindDead}, ok && k.Run != "" // see madeByNode
	case "alerts":
		if ns, id, ok := strings.Cut(strings.TrimPrefix(rest, "silences/"), "/"); ok && strings.HasPrefix(rest, "silences/") {
			return objectChange{object: object{kind: "silence", namespace: ns, name: id}, audited: true}, true
		}

		if ns, name, ok := strings.Cut(strings.TrimPrefix(rest, "rules/"), "/"); ok && strings.HasPrefix(rest, "rules/") {
			return objectChange{object: object{kind: "alert-rule", namespace: ns, name: name}, audited: true}, true
		}

		a, _, ok := j.keys.ParseAlert(key)

		return objectChange{object: object{kind: "alert", namespace: a.Namespace, name: a.Name()}}, ok
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
	case "secret", "silence": // the leader deletes what is left of a deleted secret, and silences that have ended
		return ev.Deleted
	case "run": // owners queue ticks, and runs that were queued before; the leader queues messages to receivers and runs for boots
		k, _ := j.keys.ParseShard(ev.Key)
		if d.isMessage(k.Ref, k.Run) {
			return true
		}

		w, err := record.DecodeWaiting(k, ev.Value)

		return ev.Deleted || err != nil || w.IsBootRun() && w.RetryOf == "" || w.Trigger != task.TriggerManual || w.Attempt > 1 || j.cluster.taskOf(k.Ref).runs[k.Run] != nil || task.IsPart(k.Run)
	}

	return false
}

// pendingRecord is a revision with deletions that no audit record lists. A full etcd accepts deletions only, so that
// their record is written later. Those that owners also make may stay without one.
type pendingRecord struct {
	table   *access.Table
	changes []objectChange
}

// checkListed checks that the revision writes what an audit record says.
func (j *accessJudge) checkListed(a *task.AuditRecord, key string, changes []objectChange) {
	for _, o := range a.Objects {
		written := slices.ContainsFunc(changes, func(c objectChange) bool { return c.object == objectOf(o) })
		if !written && o.Change == "put" {
			j.addViolation("G28", key, "the audit record of %s by %s lists %s, which the revision does not write", a.Operation, a.Subject, objectOf(o))
		}
	}
}

// checkAudited checks that exactly one audit record lists each change that only the API makes.
func (j *accessJudge) checkAudited(d *delta, changes []objectChange, listed map[object]int) {
	if !j.opts.Audited {
		return
	}

	for _, c := range changes {
		switch n := listed[c.object]; {
		case !c.audited && !(c.both && c.deleted) || n == 1:
		case n > 1:
			if c.audited {
				j.addViolation("G28", c.key, "%d audit records list %s", n, c.object)
			}
		case c.deleted:
			p := j.pending[j.cluster.revision]
			if p == nil {
				p = &pendingRecord{table: j.currentTable()}
				j.pending[j.cluster.revision] = p
			}
			if c.kind == "task" {
				c.needs = j.needsOfTask(d, record.Ref{Namespace: c.namespace, Name: c.name}, time.Time{})
			}
			p.changes = append(p.changes, c)
		default:
			j.addViolation("G28", c.key, "%s is written without an audit record", c.object)
		}
	}
}

// checkLate judges the record of a deletion that a full etcd accepted without it, by the access records of that time.
func (j *accessJudge) checkLate(a *task.AuditRecord, key string) {
	isListed := func(c objectChange) bool {
		return slices.ContainsFunc(a.Objects, func(o task.AuditObject) bool { return objectOf(o) == c.object })
	}

	p := j.pending[a.Revision]
	if p == nil || !slices.ContainsFunc(p.changes, isListed) {
		if j.opts.Audited && a.Revision > j.cluster.began {
			j.addViolation("G28", key, "the late audit record of %s names revision %d, whose changes have all their records", a.Operation, a.Revision)
		}
		return
	}

	j.checkRights(p.table, a, key, j.needsOf(nil, a, p.changes))

	if p.changes = slices.DeleteFunc(p.changes, isListed); len(p.changes) == 0 {
		delete(j.pending, a.Revision)
	}
}

// finish reports the deletions whose audit record has not come. A node that saw etcd full may still have it.
func (j *accessJudge) finish() {
	if j.opts.Full {
		return
	}

	for revision, p := range j.pending {
		for _, c := range p.changes {
			if !c.audited {
				continue // an owner may have deleted it
			}
			j.addViolation("G28", c.key, "%s is deleted without an audit record", c.object)
			j.violations[len(j.violations)-1].Revision = revision
		}
	}
}
