package store

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ErrKeyReused means that the idempotency key of a request was used for a different request.
var ErrKeyReused = errors.New("the idempotency key was used for a different request")

// Idempotency identifies a request that must queue at most one run, however many copies of it arrive. The transaction that queues
// the run also creates a record of the request, and compares that the record does not exist. So etcd rejects the second copy,
// whichever node serves it. The zero value identifies no request and has no record.
type Idempotency struct {
	// Key is a digest of what identifies the request: the subject, the task with its uid, and the idempotency key.
	Key string
	// Request is a digest of what is requested.
	Request string
}

// RunOf returns the id of the run that an earlier copy of a request has queued, or "" if there was none. It returns
// ErrKeyReused if the earlier request was a different one.
func (s Runs) RunOf(ctx context.Context, once Idempotency) (string, error) {
	if once.Key == "" {
		return "", nil
	}

	e, err := s.getOne(ctx, s.keys.IdempotencyRecord(once.Key))
	if err != nil || e == nil {
		return "", err
	}

	r, err := record.Decode[record.Idempotency](e.Value)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the record of a request: %w", err)
	case r.Request != once.Request:
		return "", ErrKeyReused
	}

	return r.Run, nil
}

// remember adds to a transaction that queues a run what makes its request unique.
func (s Runs) remember(t *kv.Txn, once Idempotency, run string) {
	if once.Key == "" {
		return
	}

	key := s.keys.IdempotencyRecord(once.Key)
	t.If = append(t.If, isAbsent(key))
	t.Then = append(t.Then, clientv3.OpPut(key, record.Encode(record.Idempotency{Run: run, Request: once.Request})))
}

// SweepIdempotency deletes the records of requests that were served before a time, and those that cannot be read. most, after
// and next have the same meaning as for SweepTombstones.
func (s Runs) SweepIdempotency(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error) {
	return s.sweepOld(ctx, s.keys.IdempotencyRecords(), after, most, func(e *mvccpb.KeyValue) bool {
		r, err := record.Decode[record.Idempotency](e.Value)
		at, ok := task.TimeOfRunID(r.Run)

		return err != nil || !ok || at.Before(before.Time)
	})
}
