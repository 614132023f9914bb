package record

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// auditTime has a fixed width, so that audit records sort by time.
const auditTime = "20060102T150405.000Z"

// AuditTime is the beginning of the ids of audit records of one instant.
func AuditTime(at time.Time) string { return at.UTC().Format(auditTime) }

// ParseAuditTime returns the instant of an audit record's id, or of what AuditTime returned.
func ParseAuditTime(id string) (time.Time, error) {
	at, err := time.Parse(auditTime, id[:min(len(id), len(auditTime))])
	if err != nil {
		return at, task.Invalid(task.CodeBadValue, "page", "%s does not begin with the time of an audit record", task.Quote(id))
	}

	return at, nil
}

// NewAuditID returns a new id of an audit record of one instant.
func NewAuditID(at time.Time) string { return AuditTime(at) + "-" + task.NewUID()[:8] }

// DecodeAudit returns the audit record of a key. A record that cannot be decoded has only its id and its revision, and
// the operation "unreadable".
func (k Keys) DecodeAudit(e *mvccpb.KeyValue) task.AuditRecord {
	r, err := decodeAuditRecord(e.Value)
	if err != nil {
		r = task.AuditRecord{Operation: "unreadable"}
	}

	r.ID = strings.TrimPrefix(string(e.Key), k.AuditRecords())
	if r.Revision == 0 {
		r.Revision = e.ModRevision
	}

	return r
}

// decodeAuditRecord decodes the value of an audit record.
func decodeAuditRecord(value []byte) (v task.AuditRecord, err error) {
	err = eachField(value, func(r *reader, name []byte) {
		if !r.readAuditRecord(name, &v) {
			r.skipValue()
		}
	})

	return v, err
}

// DecodeAuditGap returns the gap that a key describes, as the audit record that callers and sinks receive. A record that cannot be
// decoded is a gap of unknown extent.
func (k Keys) DecodeAuditGap(e *mvccpb.KeyValue) task.AuditRecord {
	g, err := Decode[task.AuditGap](e.Value)
	if err != nil {
		g = task.AuditGap{Why: "unreadable"}
	}

	return task.AuditRecord{
		ID: AuditTime(g.To.Time) + "-gap-" + auditHash(e.Key)[:8], Time: g.To, Subject: g.Subject, Operation: task.OperationAuditGap, Revision: e.ModRevision, Gap: &g,
	}
}

// AuditObjects collects the objects that a transaction changes, each once, for its audit record.
type AuditObjects struct {
	list  []task.AuditObject
	index map[auditIdentity]int // where an object is in list; nil while list is short
}

// maxUnindexedObjects is how many objects AuditObjects searches one by one. Nearly all transactions change one object, for
// which a map would cost more than the rest.
const maxUnindexedObjects = 8

// auditIdentity identifies an object within an audit record.
type auditIdentity struct{ kind, namespace, name, run string }

func identityOf(o *task.AuditObject) auditIdentity {
	return auditIdentity{o.Kind, o.Namespace, o.Name, o.Run}
}

// Add adds the object of a key that is put or deleted. Keys that belong to an object beside its main one (the entry of a
// task, its history when it is deleted) add nothing. A bulk write adds hundreds of keys, so nothing is decoded here.
func (a *AuditObjects) Add(keys Keys, key string, value []byte, deleted bool) {
	o, ok := auditObject(keys, key)
	if !ok {
		return
	}

	o.Change = "put"
	if deleted {
		o.Change = "delete"
	} else if o.Kind != "run" && o.Kind != "secret" {
		o.Hash = auditHash(value)
	}

	if i, known := a.find(&o); known {
		if !deleted { // a run that leaves one list and enters another has changed
			a.list[i] = o
		}

		return
	}

	a.list = append(a.list, o)
	a.indexNewest()
}

// find returns where an object is in the list.
func (a *AuditObjects) find(o *task.AuditObject) (i int, known bool) {
	id := identityOf(o)
	if a.index != nil {
		i, known = a.index[id]
		return i, known
	}

	for i := range a.list {
		if identityOf(&a.list[i]) == id {
			return i, true
		}
	}

	return 0, false
}

// indexNewest adds the last object of the list to the index, or all objects once there are many.
func (a *AuditObjects) indexNewest() {
	newest := len(a.list) - 1

	switch {
	case a.index != nil:
		a.index[identityOf(&a.list[newest])] = newest
	case len(a.list) > maxUnindexedObjects:
		a.index = map[auditIdentity]int{}
		for i := range a.list {
			a.index[identityOf(&a.list[i])] = i
		}
	}
}

// List returns the objects in the order in which they were added.
func (a *AuditObjects) List() []task.AuditObject { return a.list }

// Complete adds details from the handler to an object. It does nothing if the transaction does not change the object.
// Of an object that the transaction deletes, only the former values count.
func (a *AuditObjects) Complete(known task.AuditObject) {
	i, ok := a.find(&known)
	if !ok {
		return
	}

	o := &a.list[i]
	if known.Changes != nil {
		o.Changes = known.Changes
	}
	if known.Namespaces != nil {
		o.Namespaces = known.Namespaces
	}
	if o.Change != "put" {
		return
	}

	if known.Fields != nil {
		o.Fields = known.Fields
	}
	if known.UID != "" {
		o.UID, o.Generation = known.UID, known.Generation
	}
}

// auditHash returns the hash of a record in an audit record: 128 bits, so that nobody can make two records with the
// same one.
func auditHash(value []byte) string {
	var text [32]byte
	sum := sha256.Sum256(value)
	hex.Encode(text[:], sum[:len(text)/2])

	return string(text[:])
}

// auditObject returns which object a key is the main record of.
func auditObject(keys Keys, key string) (task.AuditObject, bool) {
	rest, below := strings.CutPrefix(key, keys.root)
	if !below {
		return task.AuditObject{}, false
	}

	switch dir, name, _ := strings.Cut(rest, "/"); dir {
	case "tasks":
		ns, name, ok := keys.ParseSpec(key)
		return task.AuditObject{Kind: "task", Namespace: ns, Name: name}, ok
	case "secrets":
		ns, name, ok := keys.ParseSecret(key)
		return task.AuditObject{Kind: "secret", Namespace: ns, Name: name}, ok
	case "shards":
		k, ok := keys.ParseShard(key)
		return task.AuditObject{Kind: "run", Namespace: k.Ref.Namespace, Name: k.Ref.Name, Run: k.Run}, ok && k.Run != ""
	case "runs":
		k, ok := keys.ParseRun(key)
		return task.AuditObject{Kind: "run", Namespace: k.Ref.Namespace, Name: k.Ref.Name, Run: k.Run}, ok
	case "requests":
		return task.AuditObject{Kind: "node", Name: name}, name != ""
	case "access":
		return accessObject(keys, key)
	case "freezes":
		return task.AuditObject{Kind: "freeze"}, key == keys.Freezes()
	case "alerts":
		return alertObject(keys, key)
	case "cluster":
		return task.AuditObject{Kind: "cluster"}, key == keys.Cluster()
	}

	return task.AuditObject{}, false
}

// alertObject is auditObject for the keys of alerts and of silences.
func alertObject(keys Keys, key string) (task.AuditObject, bool) {
	if ns, id, ok := keys.ParseSilence(key); ok {
		return task.AuditObject{Kind: "silence", Namespace: ns, Name: id}, true
	}

	if ns, name, ok := keys.ParseAlertRule(key); ok {
		return task.AuditObject{Kind: "alert-rule", Namespace: ns, Name: name}, true
	}

	a, _, ok := keys.ParseAlert(key)

	return task.AuditObject{Kind: "alert", Namespace: a.Namespace, Name: a.Name()}, ok
}

// IsAccessKind reports whether objects of a kind are access records: they say who may do what.
func IsAccessKind(kind string) bool {
	switch kind {
	case "subject", "role", "binding", "namespace", "node-limit", "token":
		return true
	}

	return false
}

// accessObject is auditObject for the keys of access records.
func accessObject(keys Keys, key string) (task.AuditObject, bool) {
	if subject, ok := keys.ParseDisabledSubject(key); ok {
		return task.AuditObject{Kind: "subject", Name: subject}, true
	}

	for _, k := range []struct{ kind, prefix string }{
		{"role", keys.Roles()}, {"binding", keys.Bindings()}, {"namespace", keys.Namespaces()}, {"node-limit", keys.NodeLimits()}, {"token", keys.Tokens()},
	} {
		if name, below := strings.CutPrefix(key, k.prefix); below && name != "" {
			return task.AuditObject{Kind: k.kind, Name: name}, true
		}
	}

	return task.AuditObject{}, false
}
