package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// credentialJudge judges secrets, and the records that say who may do what.
type credentialJudge struct{ judge }

// checkAccess judges an access record: the fence, the key of token changes, a role, a binding, a namespace, a limit of nodes, a token, or a disabled
// subject. It stores those that decide which nodes can run tasks.
func (j *credentialJudge) checkAccess(_ context.Context, e *mvccpb.KeyValue) error {
	j.checkNoLease(e)
	key := string(e.Key)
	namespace, limit := &task.Namespace{}, &task.NodeLimit{}

	if subject, ok := j.keys.ParseDisabledSubject(key); ok {
		j.cluster.changes.addAccess(e, "the disabled subject "+subject)
		return nil
	}

	for _, kind := range []struct {
		prefix, what string
		value        any
	}{
		{j.keys.Fence(), "the fence of access records", &record.Fence{}},
		{j.keys.TokenChanges(), "the key of token changes", &struct{}{}},
		{j.keys.Roles(), "a role", &task.Role{}},
		{j.keys.Bindings(), "a binding", &task.Binding{}},
		{j.keys.Namespaces(), "a namespace", namespace},
		{j.keys.NodeLimits(), "a limit of nodes", limit},
		{j.keys.Tokens(), "a token", &record.Token{}},
	} {
		name, below := strings.CutPrefix(key, kind.prefix)
		isDirectory := strings.HasSuffix(kind.prefix, "/")
		if !below || (name == "") == isDirectory || strings.Contains(name, "/") {
			continue
		}

		if err := json.Unmarshal(e.Value, kind.value); err != nil {
			j.suspectUnreadable(e, kind.what, err)
		}

		if isDirectory {
			j.cluster.changes.addAccess(e, kind.what+" "+name)
		}

		switch kind.value {
		case namespace:
			j.cluster.namespaces[name] = namespace
		case limit:
			limit.Name = name
			j.cluster.limits = append(j.cluster.limits, *limit)
		}

		return nil
	}

	j.suspectUnknownKey(e)

	return nil
}

// checkSecret checks everything about a secret that can be read without a key.
func (j *credentialJudge) checkSecret(_ context.Context, e *mvccpb.KeyValue) error {
	namespace, name, ok := j.keys.ParseSecret(string(e.Key))
	if !ok {
		j.suspectUnknownKey(e)
		return nil
	}

	j.checkNoLease(e)

	j.cluster.changes.addSecret(e, fmt.Sprintf("secret %s/%s", namespace, name))

	if _, err := j.keys.DecodeSecret(e); err != nil {
		j.addSuspect(kindSecret.newFinding(fmt.Sprintf("secret %s/%s cannot be read", namespace, name), string(e.Key)), seenRecord(e))
	}

	return nil
}

// changeSet contains the revisions of the last writes of records that only the API writes. It uses 8 bytes for each revision at
// which specs were written; a bulk write of many tasks has one revision.
type changeSet struct {
	bootstrap int64       // the revision at which the cluster was created, with its first access records
	records   []apiRecord // access records and secrets
	specs     []int64     // mod revisions of specs
}

// apiRecord is a record that only the API writes.
type apiRecord struct {
	seen     *mvccpb.KeyValue // without its value
	what     string
	isAccess bool
}

func (s *changeSet) addAccess(e *mvccpb.KeyValue, what string) {
	if e.ModRevision != s.bootstrap {
		s.records = append(s.records, apiRecord{withoutValue(e), what, true})
	}
}

func (s *changeSet) addSecret(e *mvccpb.KeyValue, what string) {
	s.records = append(s.records, apiRecord{withoutValue(e), what, false})
}

func (s *changeSet) addSpec(e *mvccpb.KeyValue) {
	if n := len(s.specs); n == 0 || s.specs[n-1] != e.ModRevision {
		s.specs = append(s.specs, e.ModRevision)
	}
}

func withoutValue(e *mvccpb.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: e.Key, ModRevision: e.ModRevision}
}

// revisionSet is a set of revisions. For each, it records whether an audit record exists.
type revisionSet struct {
	revisions []int64 // in order
	audited   []bool
}

func newRevisionSet(s *changeSet) *revisionSet {
	revisions := slices.Clone(s.specs)
	for _, r := range s.records {
		revisions = append(revisions, r.seen.ModRevision)
	}

	slices.Sort(revisions)
	revisions = slices.Compact(revisions)

	return &revisionSet{revisions, make([]bool, len(revisions))}
}

// markAudited notes that a revision has an audit record.
func (s *revisionSet) markAudited(revision int64) {
	if i, ok := slices.BinarySearch(s.revisions, revision); ok {
		s.audited[i] = true
	}
}

func (s *revisionSet) isAudited(revision int64) bool {
	i, ok := slices.BinarySearch(s.revisions, revision)
	return ok && s.audited[i]
}

// auditLogJudge judges the audit records, and the records that only the API writes: the transaction that writes one of them
// also writes an audit record, so both have the same mod revision. An owner of a shard and the leader delete such records by
// themselves, but never write one.
//
// An audit record may have been removed because of its age, or to save space. In that case, a gap contains the revisions of the
// removed records. The audit records are read after all other records, and the gaps after the audit records. So nothing is
// missed if etcd is compacted in between and these reads see later revisions.
type auditLogJudge struct{ judge }

func (j *auditLogJudge) checkAuditLog(ctx context.Context) error {
	changes := &j.cluster.changes
	revisions := newRevisionSet(changes)

	err := j.reader.eachKey(ctx, j.keys.AuditRecords(), func(_ context.Context, e *mvccpb.KeyValue) error {
		revisions.markAudited(e.CreateRevision)

		if e.Version != 1 || e.ModRevision != e.CreateRevision {
			j.addSuspect(kindRewritten.newFinding(fmt.Sprintf("the audit record %s was written at revision %d, and again at revision %d",
				strings.TrimPrefix(string(e.Key), j.keys.AuditRecords()), e.CreateRevision, e.ModRevision), string(e.Key)), seenRecord(e))
		}

		return nil
	})
	if err != nil {
		return err
	}

	gaps, err := j.readGaps(ctx)
	if err != nil {
		return err
	}
	isMissing := func(revision int64, isAccess bool) bool {
		return !revisions.isAudited(revision) && !slices.ContainsFunc(gaps, func(g task.AuditGap) bool { return g.Covers(revision, isAccess) })
	}

	for _, r := range changes.records {
		if isMissing(r.seen.ModRevision, r.isAccess) {
			j.suspectUnaudited(r.seen, r.what)
		}
	}

	return j.checkSpecs(ctx, func(revision int64) bool { return isMissing(revision, false) })
}

// readGaps returns which audit records were removed.
func (j *auditLogJudge) readGaps(ctx context.Context) (gaps []task.AuditGap, err error) {
	err = j.reader.eachRecord(ctx, j.keys.AuditGaps(), func(_ context.Context, e *mvccpb.KeyValue) error {
		j.checkNoLease(e)

		g := *j.keys.DecodeAuditGap(e).Gap
		if g.Why != task.GapAge && g.Why != task.GapSize {
			j.suspectUnreadable(e, "a gap of the audit records", task.ErrInvalid)
		} else if j.keys.AuditGap(&g) != string(e.Key) {
			j.suspectUnknownKey(e)
		}
		gaps = append(gaps, g)

		return nil
	})

	return gaps, err
}

// checkSpecs suspects the specs whose last change has no audit record. It reads their keys again to get their names, and only
// if there are any.
func (j *auditLogJudge) checkSpecs(ctx context.Context, isMissing func(revision int64) bool) error {
	if !slices.ContainsFunc(j.cluster.changes.specs, isMissing) {
		return nil
	}

	// A spec that was written since the first read is judged at that time only.
	seen := slices.Clone(j.cluster.changes.specs)
	slices.Sort(seen)

	return j.reader.eachKey(ctx, j.keys.Specs(), func(_ context.Context, e *mvccpb.KeyValue) error {
		if _, ok := slices.BinarySearch(seen, e.ModRevision); ok && isMissing(e.ModRevision) {
			j.suspectUnaudited(e, "the task "+strings.TrimPrefix(string(e.Key), j.keys.Specs()))
		}
		return nil
	})
}

func (j *auditLogJudge) suspectUnaudited(e *mvccpb.KeyValue, what string) {
	j.addSuspect(kindUnaudited.newFinding(fmt.Sprintf("%s was written at revision %d, which has no audit record", what, e.ModRevision), string(e.Key)), seenRecord(e))
}
