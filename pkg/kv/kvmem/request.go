package kvmem

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

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
