package auditlog

import (
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The operations of records with which a sink reports changes of audit records in etcd. Only sinks receive them.
const (
	operationDeleted   = "audit-records-deleted"
	operationRewritten = "audit-records-rewritten"
)

// maxNamed is how many audit records such a report names.
const maxNamed = 100

// findTampering reports audit records that were rewritten, which Carillon never does, and those that were deleted without a
// gap that says so. A sweep deletes records and writes their gap in one transaction, so that both have the same revision. The
// events of a revision are never in two batches.
func (s *Sink) findTampering(events []*clientv3.Event) (reports []task.AuditRecord) {
	for begin := 0; begin < len(events); {
		rev := events[begin].Kv.ModRevision
		end := begin
		for end < len(events) && events[end].Kv.ModRevision == rev {
			end++
		}

		var deleted, rewritten []task.AuditObject
		announced := int64(0)
		for _, ev := range events[begin:end] {
			id, isRecord := strings.CutPrefix(string(ev.Kv.Key), s.keys.AuditRecords())
			switch {
			case !isRecord && ev.Type != clientv3.EventTypeDelete:
				announced += s.keys.DecodeAuditGap(ev.Kv).Gap.Removed
			case isRecord && ev.Type == clientv3.EventTypeDelete:
				deleted = append(deleted, task.AuditObject{Kind: "audit-record", Name: id, Change: "delete"})
			case isRecord && ev.IsModify():
				rewritten = append(rewritten, task.AuditObject{Kind: "audit-record", Name: id, Change: "put"})
			}
		}

		if int64(len(deleted)) > announced {
			reports = append(reports, tamperingReport(operationDeleted, rev, deleted))
		}
		if len(rewritten) > 0 {
			reports = append(reports, tamperingReport(operationRewritten, rev, rewritten))
		}

		begin = end
	}

	return reports
}

// tamperingReport returns a report with the time of the first record, because the sink does not know when etcd was changed.
func tamperingReport(operation string, rev int64, objects []task.AuditObject) task.AuditRecord {
	r := task.AuditRecord{ID: objects[0].Name + "-" + operation, Operation: operation, Objects: objects[:min(len(objects), maxNamed)], Revision: rev}
	if at, err := record.ParseAuditTime(objects[0].Name); err == nil {
		r.Time = task.At(at)
	}

	return r
}
