package record

import (
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
	r, err := Decode[task.AuditRecord](e.Value)
	if err != nil {
		r = task.AuditRecord{Operation: "unreadable"}
	}

	r.ID = strings.TrimPrefix(string(e.Key), k.AuditRecords())
	if r.Revision == 0 {
		r.Revision = e.ModRevision
	}

	return r
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

// EncodeAudit encodes an audit record. Each write of the API has one, so it is encoded without reflection.
func EncodeAudit(v *task.AuditRecord) string {
	return string(encodeWith(func(r *writer) {
		r.writeString("id", v.ID)
		r.writeTime("time", v.Time)
		r.writeString("node", v.Node)
		r.writeString("subject", v.Subject)
		r.writeStringIfSet("token", v.Token)
		r.writeStringIfSet("certificate", v.Certificate)
		r.writeStringIfSet("address", v.Address)
		r.writeString("operation", v.Operation)

		if len(v.Objects) > 0 {
			r.writeName("objects")
			r.writeAuditObjects(v.Objects)
		}

		r.writeStringIfSet("reason", v.Reason)
		r.writeStringIfSet("outcome", v.Outcome)
		r.writeTrueIfSet("late", v.Late)
		r.writeInt64IfSet("revision", v.Revision)

		if v.Gap != nil {
			r.writeAny("gap", v.Gap)
		}
	}))
}

// writeAuditObjects writes the list of the objects of an audit record.
func (r *writer) writeAuditObjects(list []task.AuditObject) {
	r.w.ArrStart()

	for i := range list {
		if i > 0 {
			r.w.Comma()
		}

		o := &list[i]
		r.w.ObjStart()
		r.more = false
		r.writeString("kind", o.Kind)
		r.writeStringIfSet("namespace", o.Namespace)
		r.writeStringIfSet("name", o.Name)
		r.writeStringIfSet("run", o.Run)
		r.writeString("change", o.Change)
		r.writeStringIfSet("uid", o.UID)
		r.writeInt64IfSet("generation", o.Generation)
		r.writeStringIfSet("hash", o.Hash)

		if len(o.Fields) > 0 {
			r.writeAny("fields", o.Fields)
		}
		if len(o.Changes) > 0 {
			r.writeAny("changes", o.Changes)
		}
		if len(o.Namespaces) > 0 {
			r.writeAny("namespaces", o.Namespaces)
		}

		r.w.ObjEnd()
	}

	r.w.ArrEnd()
	r.more = true // the list is a field of the object around it
}
