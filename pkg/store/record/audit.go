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
