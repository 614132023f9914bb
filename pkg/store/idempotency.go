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

// Idempotency identifies a request that must queue at most one run, or create at most one task, however many copies of it
// arrive. The transaction that does so also creates a record of the request, and compares that the record does not exist. So etcd
// rejects the second copy, whichever node serves it. The zero value identifies no request and has no record.
type Idempotency struct {
	// Key is a digest of what identifies the request: the subject, the task with its uid or the namespace, and the
	// idempotency key.
	Key string
	// Request is a digest of what is requested.
	Request string
}

// RunOf returns the id of the run that an earlier copy of a request has queued, or "" if there was none. It returns
// ErrKeyReused if the earlier request was a different one.
func (s Runs) RunOf(ctx context.Context, once Idempotency) (string, error) {
	r, err := s.readRequest(ctx, once)
	return r.Run, err
}

// TaskOf returns the uid of the task that an earlier copy of a request has created, or "" if there was none. It returns
// ErrKeyReused if the earlier request was a different one.
func (s Tasks) TaskOf(ctx context.Context, once Idempotency) (string, error) {
	r, err := s.readRequest(ctx, once)
	return r.UID, err
}

// readRequest returns the record of an earlier copy of a request, or the zero value if there was none.
func (s *conn) readRequest(ctx context.Context, once Idempotency) (record.Idempotency, error) {
	if once.Key == "" {
		return record.Idempotency{}, nil
	}

	e, err := s.getOne(ctx, s.keys.IdempotencyRecord(once.Key))
	if err != nil || e == nil {
		return record.Idempotency{}, err
	}

	r, err := record.Decode[record.Idempotency](e.Value)
	switch {
	case err != nil:
		return record.Idempotency{}, fmt.Errorf("read the record of a request: %w", err)
	case r.Request != once.Request:
		return record.Idempotency{}, ErrKeyReused
	}

	return r, nil
}

// remember adds what makes a request unique to the transaction that does what it requests. did says what that is.
func (s *conn) remember(t *kv.Txn, once Idempotency, did record.Idempotency) {
	if once.Key == "" {
		return
	}

	key := s.keys.IdempotencyRecord(once.Key)
	did.Request = once.Request
	t.If = append(t.If, isAbsent(key))
	t.Then = append(t.Then, clientv3.OpPut(key, record.Encode(did)))
}

// SweepIdempotency deletes the records of requests that were served before a time, and those that cannot be read. most, after
// and next have the same meaning as for SweepTombstones.
func (s Runs) SweepIdempotency(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error) {
	return s.sweepOld(ctx, s.keys.IdempotencyRecords(), after, most, func(e *mvccpb.KeyValue) bool {
		r, err := record.Decode[record.Idempotency](e.Value)
		at, ok := r.ServedAt()

		return err != nil || !ok || at.Before(before.Time)
	})
}
