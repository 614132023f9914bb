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

// Txn is a conditional write. If every comparison in If holds, etcd applies Then, otherwise Else. It
// evaluates the comparisons and applies the operations at one revision.
type Txn struct {
	If         []clientv3.Cmp
	Then, Else []clientv3.Op
	// ResolvedByCaller promises that the caller handles an unknown outcome itself: it determines whether the
	// transaction was applied, and issues it again if not. The Batcher then gives up early on an answer that
	// may never arrive, for example after etcd has lost its leader (see deadline).
	ResolvedByCaller bool
}

// Result is the answer of etcd. If Succeeded is false, a comparison did not hold, and Responses are those of
// Else.
type Result struct {
	Succeeded bool
	// Revision is the revision of the store after the transaction. If the transaction wrote anything, it is
	// the revision of these writes.
	Revision  int64
	Responses []*etcdserverpb.ResponseOp
}

// Committer sends conditional writes. All transactions of the domain pass through one (see Direct and
// Batcher).
type Committer interface {
	// Commit sends t once. If it returns an error, Unknown reports whether t may have been applied
	// nevertheless.
	Commit(ctx context.Context, t Txn) (Result, error)
}

// Direct returns a Committer that sends each transaction as a separate request.
func Direct(c clientv3.KV) Committer { return direct{c} }

// direct implements Direct.
type direct struct{ kv clientv3.KV }

// Commit implements Committer.
func (d direct) Commit(ctx context.Context, t Txn) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("commit: %w", notSent{err})
	}

	commit := func() (*clientv3.TxnResponse, error) {
		return d.kv.Txn(ctx).If(t.If...).Then(t.Then...).Else(t.Else...).Commit()
	}

	resp, err := commit()
	// etcd rejects a stale token before it proposes the request, so nothing was written. The client has a new token by
	// now, so a second attempt is safe and succeeds.
	if staleToken(err) {
		resp, err = commit()
	}

	if err != nil {
		return Result{}, fmt.Errorf("commit: %w", err)
	}

	return Result{Succeeded: resp.Succeeded, Revision: resp.Header.GetRevision(), Responses: resp.Responses}, nil
}

// staleToken reports whether etcd rejected the token of the call, so that the request was not processed.
func staleToken(err error) bool {
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// notSent marks the error of a write that never left this process. Its outcome is certain: it was not
// applied.
type notSent struct{ error }

func (n notSent) Unwrap() error { return n.error }

// Unknown reports whether a write that returned err may have been applied. It is false for nil, and for the
// errors that prove that nothing was written:
//
//   - etcd rejects the request before it applies it: the request is invalid, too large or not permitted, a
//     limit is exceeded, or the lease that it names does not exist.
//   - The request was never sent.
//
// Every other error leaves the outcome open: deadlines, cancellations, lost connections and lost leaders. So
// does a lack of space, because etcd returns that error also to the write that exceeds the quota, which it
// has already applied.
//
// A caller that treats an unknown outcome as a failure breaks G3; one that treats it as a success breaks G13.
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

	// gRPC does not send a message above its limit. It uses the same code, with a slightly different text,
	// for an answer that is too large to receive. In that case the write has been applied, so the text must
	// be compared.
	if s, ok := grpcStatus(err); ok && s.Code() == codes.ResourceExhausted &&
		strings.HasPrefix(s.Message(), "trying to send message larger than max") {
		return false
	}

	return true
}

// NoSpace reports whether etcd has exceeded its quota. The write that returned err may have been applied
// nevertheless (see Unknown).
func NoSpace(err error) bool { return err != nil && etcdError(err) == rpctypes.ErrNoSpace }

// etcdError returns the error of etcd that err wraps, whether it has etcd's type or is a gRPC status. It
// returns nil if there is none.
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

// grpcStatus returns the gRPC status that err wraps, if there is one.
func grpcStatus(err error) (*status.Status, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus(), true
	}
	return nil, false
}

// grpcCode returns the gRPC code of an error, whatever wraps it, or codes.Unknown if it has none.
func grpcCode(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	if s, ok := grpcStatus(err); ok {
		return s.Code()
	}

	return codes.Unknown
}
