package kvmem

import (
	"bytes"
	"cmp"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Txn applies a transaction in the same steps as etcd. First all comparisons, including those of nested transactions,
// are evaluated against the state before the request. Then the chosen branches are checked. Then they are executed,
// and each operation sees the writes of those before it.
func (re remote) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	if err := checkRequest(r); err != nil {
		return nil, err
	}
	if proto.Size(r) > maxRequest {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	if err := re.lockStore(ctx); err != nil {
		return nil, err
	}

	defer re.mu.Unlock()

	chosen := re.chooseBranch(r)
	if err := re.checkBranch(chosen); err != nil {
		return nil, err
	}
	if re.full && hasPuts(r) {
		return nil, rpctypes.ErrGRPCNoSpace
	}

	c := re.beginChange()
	resp := c.executeBranch(chosen)
	c.commitChange()
	resp.Header = re.newHeader()

	return resp, nil
}

// branch is the result of the comparisons of a transaction: the operations to execute.
type branch struct {
	succeeded bool
	ops       []*pb.RequestOp
	nested    []branch // of the transactions among ops, in order
}

// chooseBranch evaluates the comparisons of a transaction and of the nested ones that it executes.
func (s *Store) chooseBranch(r *pb.TxnRequest) branch {
	b := branch{succeeded: true, ops: r.Success}
	for _, c := range r.Compare {
		if !s.comparisonHolds(c) {
			b = branch{ops: r.Failure}
			break
		}
	}

	for _, op := range b.ops {
		if t := op.GetRequestTxn(); t != nil {
			b.nested = append(b.nested, s.chooseBranch(t))
		}
	}

	return b
}

// comparisonHolds reports whether a comparison holds for every key of its range. For an absent key, or an empty
// range, all revisions, the version and the lease are 0, and a comparison of the value never holds.
func (s *Store) comparisonHolds(c *pb.Compare) bool {
	found, all := false, true
	s.visitRange(spanOf(c.Key, c.RangeEnd), s.revision, func(_ string, v *version) {
		found, all = true, all && compareVersion(c, v)
	})

	if !found {
		return c.Target != pb.Compare_VALUE && compareVersion(c, &version{})
	}

	return all
}

// compareVersion reports whether a comparison holds for one version of a key.
func compareVersion(c *pb.Compare, v *version) bool {
	result := 0

	switch c.Target {
	case pb.Compare_VALUE:
		result = bytes.Compare(v.value, c.GetValue())
	case pb.Compare_CREATE:
		result = cmp.Compare(v.create, c.GetCreateRevision())
	case pb.Compare_MOD:
		result = cmp.Compare(v.mod, c.GetModRevision())
	case pb.Compare_VERSION:
		result = cmp.Compare(v.number, c.GetVersion())
	case pb.Compare_LEASE:
		result = cmp.Compare(v.lease, c.GetLease())
	}

	switch c.Result {
	case pb.Compare_EQUAL:
		return result == 0
	case pb.Compare_NOT_EQUAL:
		return result != 0
	case pb.Compare_GREATER:
		return result > 0
	case pb.Compare_LESS:
		return result < 0
	}

	return true
}

// checkBranch checks the operations against the store, in their order. An error refuses the whole request before
// anything is written.
func (s *Store) checkBranch(b branch) error {
	nested := b.nested
	for _, op := range b.ops {
		if op.GetRequestTxn() != nil {
			if err := s.checkBranch(nested[0]); err != nil {
				return err
			}
			nested = nested[1:]
		}

		if r := op.GetRequestRange(); r != nil {
			if err := s.checkReadable(r); err != nil {
				return err
			}
		}

		if p := op.GetRequestPut(); p != nil {
			if p.Lease != 0 && s.leases[p.Lease] == nil {
				return rpctypes.ErrGRPCLeaseNotFound
			}
			if it := s.items[string(p.Key)]; (p.IgnoreValue || p.IgnoreLease) && (it == nil || it.versionAt(s.revision) == nil) {
				return rpctypes.ErrGRPCKeyNotFound
			}
		}
	}

	return nil
}

// executeBranch executes the operations. As in etcd, the header of a nested transaction has no revision.
func (c *change) executeBranch(b branch) *pb.TxnResponse {
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: b.succeeded}
	nested := b.nested
	for _, op := range b.ops {
		var r *pb.ResponseOp

		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			r = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: c.readRange(op.RequestRange, c.readRevision())}}
		case *pb.RequestOp_RequestPut:
			r = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: c.putRequest(op.RequestPut)}}
		case *pb.RequestOp_RequestDeleteRange:
			r = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: c.deleteRequest(op.RequestDeleteRange)}}
		case *pb.RequestOp_RequestTxn:
			r = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: c.executeBranch(nested[0])}}
			nested = nested[1:]
		}

		resp.Responses = append(resp.Responses, r)
	}

	return resp
}

// putRequest executes a put.
func (c *change) putRequest(r *pb.PutRequest) *pb.PutResponse {
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: c.revision}}
	key, value, lease := string(r.Key), r.Value, r.Lease
	if it := c.items[key]; it != nil {
		if old := it.versionAt(c.revision); old != nil {
			if r.PrevKv {
				resp.PrevKv = old.keyValue(key)
			}

			if r.IgnoreValue {
				value = old.value
			}

			if r.IgnoreLease {
				lease = old.lease
			}
		}
	}

	c.putKey(key, value, lease)

	return resp
}

// deleteRequest executes a deletion.
func (c *change) deleteRequest(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	resp := &pb.DeleteRangeResponse{}
	within := spanOf(r.Key, r.RangeEnd)

	if r.PrevKv {
		c.visitRange(within, c.revision, func(key string, v *version) { resp.PrevKvs = append(resp.PrevKvs, v.keyValue(key)) })
	}

	resp.Deleted = c.deleteRange(within)
	resp.Header = &pb.ResponseHeader{Revision: c.readRevision()}

	return resp
}

// change is a request that writes. If it writes anything, all its writes get the next revision. The mutex of the
// store is held from its creation until commitChange.
type change struct {
	*Store
	revision int64           // the revision of the writes
	events   []*mvccpb.Event // the writes so far
}

// beginChange starts a change.
func (s *Store) beginChange() *change { return &change{Store: s, revision: s.revision + 1} }

// readRevision returns the revision at which the request itself reads. It is that of the change as soon as the
// request has written anything, so that a read sees the writes before it.
func (c *change) readRevision() int64 {
	if len(c.events) > 0 {
		return c.revision
	}
	return c.Store.revision
}

// putKey writes a key and attaches it to a lease, or to none if lease is 0.
func (c *change) putKey(key string, value []byte, lease int64) {
	v := version{mod: c.revision, create: c.revision, number: 1, value: value, lease: lease}
	if it := c.items[key]; it != nil {
		if old := it.versionAt(c.revision); old != nil {
			v.create, v.number = old.create, old.number+1
		}
	}

	c.addVersion(key, v)
	c.events = append(c.events, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: v.keyValue(key)})
}

// deleteRange deletes the keys of a range and returns their number.
func (c *change) deleteRange(r span) (n int64) {
	var keys []string
	c.visitRange(r, c.revision, func(key string, _ *version) { keys = append(keys, key) })

	for _, key := range keys {
		c.addVersion(key, version{mod: c.revision, deleted: true})
		c.events = append(c.events, &mvccpb.Event{
			Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: c.revision},
		})
	}

	return int64(len(keys))
}

// commitChange makes the writes visible and sends their events to the watches. Without writes, it does nothing.
func (c *change) commitChange() {
	if len(c.events) == 0 {
		return
	}

	c.Store.revision = c.revision
	c.log = append(c.log, c.events)
	for w := range c.watches {
		if c.revision >= w.from {
			w.notifyEvents(c.revision, filterEvents(c.events, w.wantsEvent))
		}
	}
}
