package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
