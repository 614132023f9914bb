package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// auditWindow is how far back a list of the newest audit records looks at first.
	auditWindow = 10 * time.Minute
	// maxAuditWindow is the maximum number of records that one call of NewestAudit returns, unless more of them have
	// the same time.
	maxAuditWindow = 1000
)

// NewestAudit lists audit records, the newest first: some of those whose ids are below below and that are not older than
// since (zero: all). next is "" after the last; otherwise it is what to pass as below. A page that is not the last may be
// empty only if ctx ends.
//
// etcd reads a range from its beginning, and sorts all of it to return the end. So NewestAudit reads spans of time,
// whose length it adapts to how many records they contain.
func (s Access) NewestAudit(ctx context.Context, since time.Time, below string) (list []task.AuditRecord, next string, err error) {
	prefix := s.keys.AuditRecords()
	low := prefix
	if !since.IsZero() {
		low += record.AuditTime(since)
	}

	oldest, err := s.readKey(ctx, low, clientv3.WithRange(prefix+below), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return nil, "", fmt.Errorf("list audit records: %w", err)
	}
	if len(oldest.Kvs) == 0 {
		return nil, "", nil
	}

	first := string(oldest.Kvs[0].Key)
	until, err := record.ParseAuditTime(below)
	if err != nil {
		return nil, "", err
	}

	for span := auditWindow; ; {
		from := prefix + record.AuditTime(until.Add(-span))
		if from <= first {
			from = first
		}

		count, err := s.readKey(ctx, from, clientv3.WithRange(prefix+below), clientv3.WithCountOnly())
		if err != nil {
			return nil, "", fmt.Errorf("count audit records: %w", err)
		}

		// until moves back over what is empty, so each step makes the span shorter or until earlier, and the loop ends.
		switch {
		case count.Count > maxAuditWindow && span > time.Millisecond:
			span = max(span/4, time.Millisecond)
			continue
		case count.Count == 0:
			until, span = until.Add(-span), span*4
			continue
		}

		res, err := s.readKey(ctx, from, clientv3.WithRange(prefix+below))
		if err != nil {
			return nil, "", fmt.Errorf("list audit records: %w", err)
		}

		for _, e := range slices.Backward(res.Kvs) {
			list = append(list, s.keys.DecodeAudit(e))
		}

		if from > first {
			next = list[len(list)-1].ID
		}

		return list, next, nil
	}
}

// auditOverhead is about how many bytes etcd needs for a key beside the key and its value.
const auditOverhead = 64

// MaxAuditRanges is the maximum number of ranges that RemoveAudit removes in one transaction. Each takes a comparison and an
// operation.
const MaxAuditRanges = 100

// AuditEntry contains the data of an audit record that a sweep needs.
type AuditEntry struct {
	ID       string
	Revision int64 // at which it was written
	// The following fields are set only if the values were read.
	Subject string
	Access  bool  // the record of an access change
	Bytes   int64 // approximate size in etcd
}

// AuditPage contains consecutive audit records, the oldest first.
type AuditPage struct {
	Entries  []AuditEntry
	Next     string // what to pass as after; "" after the last record
	Revision int64  // of etcd when they were read
}

// AuditRange is a range of audit records to remove. At Revision, it contained no other records.
type AuditRange struct {
	First, Last string // ids
	Revision    int64
}

// AuditGap is a record of removed audit records, and the mod revision of its key; 0: there is none yet.
type AuditGap struct {
	task.AuditGap
	Mod int64
}

// AuditSize estimates how many bytes the audit records take in etcd: their number, times the average size of the
// oldest ones. It returns the number, too.
func (s Access) AuditSize(ctx context.Context) (size, records int64, err error) {
	const page = 500

	prefix := s.keys.AuditRecords()
	res, err := s.readKey(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(page))
	if err != nil {
		return 0, 0, fmt.Errorf("measure the audit records: %w", err)
	}
	if len(res.Kvs) == 0 {
		return 0, 0, nil
	}

	for _, e := range res.Kvs {
		size += auditBytes(e)
	}

	return size * res.Count / int64(len(res.Kvs)), res.Count, nil
}

func auditBytes(e *mvccpb.KeyValue) int64 { return int64(len(e.Key) + len(e.Value) + auditOverhead) }

// AuditBefore reads the ids of at most limit audit records from before an instant. Their ids sort by time, so these are the
// first ones.
func (s Access) AuditBefore(ctx context.Context, before time.Time, limit int) (AuditPage, error) {
	prefix := s.keys.AuditRecords()
	return s.readAuditPage(ctx, prefix, prefix+record.AuditTime(before), limit, clientv3.WithKeysOnly())
}

// AuditEntries reads at most limit audit records whose ids follow after; "": the first ones.
func (s Access) AuditEntries(ctx context.Context, after string, limit int) (AuditPage, error) {
	prefix := s.keys.AuditRecords()
	from := prefix
	if after != "" {
		from += after + "\x00"
	}

	return s.readAuditPage(ctx, from, clientv3.GetPrefixRangeEnd(prefix), limit)
}

func (s Access) readAuditPage(ctx context.Context, from, end string, limit int, opts ...clientv3.OpOption) (page AuditPage, err error) {
	res, err := s.readKey(ctx, from, append(opts, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)))...)
	if err != nil {
		return page, fmt.Errorf("read audit records: %w", err)
	}

	page.Revision = res.Header.Revision
	for _, e := range res.Kvs {
		page.Entries = append(page.Entries, s.auditEntry(e))
	}
	if n := len(page.Entries); res.More && n > 0 {
		page.Next = page.Entries[n-1].ID
	}

	return page, nil
}

func (s Access) auditEntry(e *mvccpb.KeyValue) AuditEntry {
	r := s.keys.DecodeAudit(e) // a record that cannot be read has no subject
	isAccess := slices.ContainsFunc(r.Objects, func(o task.AuditObject) bool { return record.IsAccessKind(o.Kind) })

	return AuditEntry{ID: r.ID, Revision: e.ModRevision, Subject: r.Subject, Access: isAccess, Bytes: auditBytes(e)}
}

// AuditGaps reads which audit records were removed. There are few of these records.
func (s Access) AuditGaps(ctx context.Context) ([]AuditGap, error) {
	kvs, _, err := s.getAll(ctx, s.keys.AuditGaps())
	if err != nil {
		return nil, fmt.Errorf("read the gaps of the audit records: %w", err)
	}

	gaps := make([]AuditGap, len(kvs))
	for i, e := range kvs {
		gaps[i] = AuditGap{*s.keys.DecodeAuditGap(e).Gap, e.ModRevision}
	}

	return gaps, nil
}

// ListAuditGaps is AuditGaps for readers of audit records: it returns each gap as a record.
func (s Access) ListAuditGaps(ctx context.Context) ([]task.AuditRecord, error) {
	kvs, _, err := s.getAll(ctx, s.keys.AuditGaps())
	if err != nil {
		return nil, fmt.Errorf("read the gaps of the audit records: %w", err)
	}

	list := make([]task.AuditRecord, len(kvs))
	for i, e := range kvs {
		list[i] = s.keys.DecodeAuditGap(e)
	}

	return list, nil
}

// RemoveAudit removes audit records and writes gap, which describes them, in the same transaction. It also deletes the records of
// other gaps, which were merged into gap. It returns the new mod revision of gap.
//
// If a record was written into one of the ranges since they were read, or if one of the gaps was written, it changes nothing and
// returns task.ErrConflict. It fails in a full etcd, which accepts only deletions, so nothing is removed without a gap.
func (s Access) RemoveAudit(ctx context.Context, gap AuditGap, ranges []AuditRange, contained ...AuditGap) (int64, error) {
	key := s.keys.AuditGap(&gap.AuditGap)
	t := kv.Txn{If: []clientv3.Cmp{isUnchanged(key, gap.Mod)}, Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(gap.AuditGap))}}

	for _, r := range ranges {
		first, end := s.keys.AuditRecord(r.First), s.keys.AuditRecord(r.Last)+"\x00"
		t.If = append(t.If, clientv3.Compare(clientv3.ModRevision(first), "<", r.Revision+1).WithRange(end))
		t.Then = append(t.Then, clientv3.OpDelete(first, clientv3.WithRange(end)))
	}

	for _, g := range contained {
		other := s.keys.AuditGap(&g.AuditGap)
		t.If = append(t.If, isUnchanged(other, g.Mod))
		t.Then = append(t.Then, clientv3.OpDelete(other))
	}

	res, err := s.writeAlone(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	if err != nil {
		return 0, fmt.Errorf("remove audit records: %w", err)
	}

	return res.Revision, nil
}
