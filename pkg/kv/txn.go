package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Txn is a conditional write: if every comparison holds then Then, else Else, at one revision.
type Txn struct {
	If         []clientv3.Cmp
	Then, Else []clientv3.Op
	// ResolvedByCaller says that the caller finds out by itself what became of it, should
	// its outcome be unknown, and issues it again. Nobody then needs to wait long
	// for an answer that may never come, as when etcd loses its leader.
	ResolvedByCaller bool
}

// Result is what etcd answered. Succeeded is false if a comparison did not hold; Responses are then those of Else.
type Result struct {
	Succeeded bool
	// Revision is the store's after the transaction: its own if it wrote anything.
	Revision  int64
	Responses []*etcdserverpb.ResponseOp
}

// Committer is the one door through which conditional writes pass.
type Committer interface {
	// Commit sends t once. An error is definite or it is not: ask Unknown.
	Commit(ctx context.Context, t Txn) (Result, error)
}

// Direct returns a Committer that sends each transaction as a request of its own.
func Direct(c clientv3.KV) Committer { return direct{c} }

type direct struct{ kv clientv3.KV }

func (d direct) Commit(ctx context.Context, t Txn) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("commit: %w", notSent{err})
	}

	commit := func() (*clientv3.TxnResponse, error) {
		return d.kv.Txn(ctx).If(t.If...).Then(t.Then...).Else(t.Else...).Commit()
	}

	resp, err := commit()
	if staleToken(err) { // refused before it was proposed, and the client has a new token now
		resp, err = commit()
	}

	if err != nil {
		return Result{}, fmt.Errorf("commit: %w", err)
	}

	return Result{Succeeded: resp.Succeeded, Revision: resp.Header.GetRevision(), Responses: resp.Responses}, nil
}

func staleToken(err error) bool {
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// notSent marks the error of a write that never left this process.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// Unknown says whether err leaves open if the write took place. It is false for nil, and for errors that prove that
// nothing was written: requests that etcd refuses before it applies them (invalid, too large, over a limit, not
// permitted, without the lease they name), and those that were never sent. Everything else is unknown: deadlines,
// cancellations, lost connections and leaders, and also a lack of space: etcd answers so even to the write that
// crosses the quota, which it has applied by then.
func Unknown(err error) bool {
	if err == nil {
		return false
	}

	var unsent notSent
	if errors.As(err, &unsent) {
		return false
	}

	switch etcdError(err) {
	case rpctypes.ErrEmptyKey, rpctypes.ErrKeyNotFound, rpctypes.ErrValueProvided, rpctypes.ErrLeaseProvided,
		rpctypes.ErrTooManyOps, rpctypes.ErrDuplicateKey, rpctypes.ErrInvalidSortOption,
		rpctypes.ErrCompacted, rpctypes.ErrFutureRev,
		rpctypes.ErrLeaseNotFound, rpctypes.ErrLeaseExist, rpctypes.ErrLeaseTTLTooLarge,
		rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyRequests,
		rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrPermissionNotGranted,
		rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision,
		rpctypes.ErrNotCapable:
		return false
	}

	// gRPC refuses to send what is over the limit. The same code, with slightly other words, comes for an answer that is too
	// large to receive: then the write was applied.
	if s, ok := grpcStatus(err); ok && s.Code() == codes.ResourceExhausted &&
		strings.HasPrefix(s.Message(), "trying to send message larger than max") {
		return false
	}

	return true
}

// NoSpace says that etcd is over its quota. What was asked may have been written all the same (see Unknown).
func NoSpace(err error) bool { return err != nil && etcdError(err) == rpctypes.ErrNoSpace }

// etcdError finds etcd's own error in a chain, typed or as a gRPC status; nil if there is none.
func etcdError(err error) error {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e
	}
	if s, ok := grpcStatus(err); ok && errors.As(rpctypes.Error(s.Err()), &e) {
		return e
	}

	return nil
}

func grpcStatus(err error) (*status.Status, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus(), true
	}
	return nil, false
}

// code is the gRPC code of an error, however it is wrapped.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	if s, ok := grpcStatus(err); ok {
		return s.Code()
	}

	return codes.Unknown
}
