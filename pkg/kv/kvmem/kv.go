package kvmem

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// remote implements the gRPC interface for keys. clientv3 converts its calls to requests for it.
type remote struct{ clientView }

var _ pb.KVClient = remote{}

// Range reads keys at the present or at an earlier revision.
func (re remote) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	if err := re.lockStore(ctx); err != nil {
		return nil, err
	}

	defer re.mu.Unlock()

	if err := re.checkReadable(r); err != nil {
		return nil, err
	}

	resp := re.readRange(r, re.revision)
	resp.Header = re.newHeader()

	return resp, nil
}

func (re remote) RangeStream(context.Context, *pb.RangeRequest, ...grpc.CallOption) (pb.KV_RangeStreamClient, error) {
	return nil, status.Error(codes.Unimplemented, "kvmem streams no ranges")
}

// Put is a transaction with one operation.
func (re remote) Put(ctx context.Context, r *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	resp, err := re.Txn(ctx, singleOpTxn(&pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}))
	if err != nil {
		return nil, err
	}

	one := resp.Responses[0].GetResponsePut()
	one.Header = resp.Header

	return one, nil
}

// DeleteRange is a transaction with one operation.
func (re remote) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	resp, err := re.Txn(ctx, singleOpTxn(&pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}))
	if err != nil {
		return nil, err
	}

	one := resp.Responses[0].GetResponseDeleteRange()
	one.Header = resp.Header

	return one, nil
}

// singleOpTxn returns a transaction without comparisons and with one operation.
func singleOpTxn(op *pb.RequestOp) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{op}}
}

// Compact makes revisions before the given one unreadable.
func (re remote) Compact(ctx context.Context, r *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	if err := re.lockStore(ctx); err != nil {
		return nil, err
	}

	defer re.mu.Unlock()

	switch {
	case r.Revision <= re.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	case r.Revision > re.revision:
		return nil, rpctypes.ErrGRPCFutureRev
	}

	re.compactBefore(r.Revision)

	return &pb.CompactionResponse{Header: re.newHeader()}, nil
}

// checkReadable returns an error if the revision of a request is in the future or has been compacted.
func (s *Store) checkReadable(r *pb.RangeRequest) error {
	switch {
	case r.Revision > s.revision:
		return rpctypes.ErrGRPCFutureRev
	case r.Revision > 0 && r.Revision < s.compacted:
		return rpctypes.ErrGRPCCompacted
	}

	return nil
}

// readRange answers a range request. It reads at the revision now unless the request names another one.
func (s *Store) readRange(r *pb.RangeRequest, now int64) *pb.RangeResponse {
	at := cmp.Or(max(r.Revision, 0), now)
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: now}}
	// Without sorting, one key more than the limit is enough to know that there are more.
	sorted := r.SortOrder != pb.RangeRequest_NONE || r.SortTarget != pb.RangeRequest_KEY
	s.visitRange(spanOf(r.Key, r.RangeEnd), at, func(key string, v *version) {
		resp.Count++
		if !r.CountOnly && v.matchesBounds(r) && (sorted || r.Limit == 0 || int64(len(resp.Kvs)) <= r.Limit) {
			resp.Kvs = append(resp.Kvs, v.keyValue(key))
		}
	})

	sortKeyValues(resp.Kvs, r)

	if r.Limit > 0 && int64(len(resp.Kvs)) > r.Limit {
		resp.Kvs, resp.More = resp.Kvs[:r.Limit], true
	}

	if r.KeysOnly {
		for _, kv := range resp.Kvs {
			kv.Value = nil
			if r.SortTarget != pb.RangeRequest_VALUE {
				kv.Lease = 0 // etcd answers from its index, which does not contain leases
			}
		}
	}

	return resp
}

// matchesBounds reports whether a version is within the revisions to which a request is limited.
func (v *version) matchesBounds(r *pb.RangeRequest) bool {
	return v.mod >= r.MinModRevision && (r.MaxModRevision == 0 || v.mod <= r.MaxModRevision) &&
		v.create >= r.MinCreateRevision && (r.MaxCreateRevision == 0 || v.create <= r.MaxCreateRevision)
}

// sortKeyValues sorts as the request requires. Where etcd does not define the order of equal elements, they keep the
// order of their keys.
func sortKeyValues(kvs []*mvccpb.KeyValue, r *pb.RangeRequest) {
	by := map[pb.RangeRequest_SortTarget]func(a, b *mvccpb.KeyValue) int{
		pb.RangeRequest_KEY:     func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) },
		pb.RangeRequest_VERSION: func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) },
		pb.RangeRequest_CREATE:  func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) },
		pb.RangeRequest_MOD:     func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) },
		pb.RangeRequest_VALUE:   func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) },
	}[r.SortTarget]

	switch {
	case r.SortOrder == pb.RangeRequest_DESCEND:
		slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int { return by(b, a) })
	case r.SortTarget != pb.RangeRequest_KEY:
		slices.SortStableFunc(kvs, by)
	}
}

// The limits of an etcd with default settings.
const (
	maxOps     = 128
	maxRequest = 3 << 19 // bytes: 1.5 MiB
)

// checkRequest refuses what etcd refuses without reading the store.
func checkRequest(r *pb.TxnRequest) error {
	if err := checkTxn(r, maxOps); err != nil {
		return err
	}

	for _, side := range [][]*pb.RequestOp{r.Success, r.Failure} {
		if _, err := collectWrites(side); err != nil {
			return err
		}
	}

	return nil
}

// checkTxn checks one transaction. It counts operations as etcd does: most is the limit, and what one level uses is
// not available to the transactions nested in it.
func checkTxn(r *pb.TxnRequest, most int) error {
	n := max(len(r.Compare), len(r.Success), len(r.Failure))
	if n > most {
		return rpctypes.ErrGRPCTooManyOps
	}

	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}

	for _, side := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range side {
			if err := checkOp(op, most-n); err != nil {
				return err
			}
		}
	}

	return nil
}

// checkOp checks one operation. most is the limit for a nested transaction.
func checkOp(op *pb.RequestOp, most int) error {
	switch op := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(op.RequestRange)
	case *pb.RequestOp_RequestPut:
		switch r := op.RequestPut; {
		case len(r.Key) == 0:
			return rpctypes.ErrGRPCEmptyKey
		case r.IgnoreValue && len(r.Value) > 0:
			return rpctypes.ErrGRPCValueProvided
		case r.IgnoreLease && r.Lease != 0:
			return rpctypes.ErrGRPCLeaseProvided
		}

		return nil
	case *pb.RequestOp_RequestDeleteRange:
		if len(op.RequestDeleteRange.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
		return nil
	case *pb.RequestOp_RequestTxn:
		return checkTxn(op.RequestTxn, most)
	}

	return rpctypes.ErrGRPCKeyNotFound
}

// checkRange checks a range request.
func checkRange(r *pb.RangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}

	_, order := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]
	_, target := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]
	if !order || !target {
		return rpctypes.ErrGRPCInvalidSortOption
	}

	return nil
}

// writes contains the keys that one branch of a transaction puts, and the ranges that it deletes.
type writes struct {
	puts    map[string]bool
	deletes []span
}

// collectWrites returns the writes of a branch. It refuses a branch that puts a key twice, or that puts a key which
// it deletes. Then and Else of one nested transaction may write the same keys, because only one of them is executed.
func collectWrites(ops []*pb.RequestOp) (writes, error) {
	w := writes{puts: map[string]bool{}}
	for _, op := range ops {
		if d := op.GetRequestDeleteRange(); d != nil {
			w.deletes = append(w.deletes, spanOf(d.Key, d.RangeEnd))
		}
	}

	for _, op := range ops {
		t := op.GetRequestTxn()
		if t == nil {
			continue
		}

		then, err := collectWrites(t.Success)
		if err != nil {
			return w, err
		}

		otherwise, err := collectWrites(t.Failure)
		if err != nil {
			return w, err
		}
		if !w.addPuts(then.puts, nil) || !w.addPuts(otherwise.puts, then.puts) {
			return w, rpctypes.ErrGRPCDuplicateKey
		}

		w.deletes = append(append(w.deletes, then.deletes...), otherwise.deletes...)
	}

	for _, op := range ops {
		if p := op.GetRequestPut(); p != nil && !w.addPuts(map[string]bool{string(p.Key): true}, nil) {
			return w, rpctypes.ErrGRPCDuplicateKey
		}
	}

	return w, nil
}

// addPuts adds puts. It returns false if one of them collides with a write that has been added before, except with
// the keys in but, which belong to the other branch of the same transaction.
func (w *writes) addPuts(puts, but map[string]bool) bool {
	for key := range puts {
		if w.puts[key] && !but[key] {
			return false
		}

		for _, d := range w.deletes {
			if d.contains(key) {
				return false
			}
		}
	}

	for key := range puts {
		w.puts[key] = true
	}

	return true
}

// hasPuts reports whether a request may put anything, so that an etcd without space refuses it.
func hasPuts(r *pb.TxnRequest) bool {
	for _, side := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range side {
			if op.GetRequestPut() != nil || op.GetRequestTxn() != nil && hasPuts(op.GetRequestTxn()) {
				return true
			}
		}
	}

	return false
}
