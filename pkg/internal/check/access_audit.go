package check

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// pendingRecord is a revision with deletions that no audit record lists. A full etcd accepts deletions only, so that
// their record is written later.
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
		case !c.audited || n == 1:
		case n > 1:
			j.addViolation("G28", c.key, "%d audit records list %s", n, c.object)
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
	p := j.pending[a.Revision]
	if p == nil {
		if j.opts.Audited && a.Revision > j.cluster.began {
			j.addViolation("G28", key, "the late audit record of %s names revision %d, whose changes have all their records", a.Operation, a.Revision)
		}
		return
	}

	j.checkRights(p.table, a, key, j.needsOf(nil, a, p.changes))

	p.changes = slices.DeleteFunc(p.changes, func(c objectChange) bool {
		return slices.ContainsFunc(a.Objects, func(o task.AuditObject) bool { return objectOf(o) == c.object })
	})
	if len(p.changes) == 0 {
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
			j.addViolation("G28", c.key, "%s is deleted without an audit record", c.object)
			j.violations[len(j.violations)-1].Revision = revision
		}
	}
}
