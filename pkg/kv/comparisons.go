package kv

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Fence is a condition on one key that must still hold when a write commits. Exactly one of the two revisions
// is set. A mod fence ends with any change of the key. A create fence survives changes of the value, and ends
// when the key is deleted, even if the key is created again afterwards.
//
// The owner key of a shard is a mod fence, so that rewriting it fences the former owner (G1). The key of a
// node is a create fence: the node updates its record itself, and the key disappears with the lease of its
// session (G2).
type Fence struct {
	Key            string
	ModRevision    int64
	CreateRevision int64
}

// ModFence returns a fence that holds while the key has not changed since revision rev.
func ModFence(key string, rev int64) Fence { return Fence{Key: key, ModRevision: rev} }

// CreateFence returns a fence that holds while the key that was created at revision rev exists.
func CreateFence(key string, rev int64) Fence { return Fence{Key: key, CreateRevision: rev} }

// Compare returns the comparison to add to the transaction that the fence guards. If the fence is the zero value, or
// has both revisions, the comparison never holds. Otherwise a fence that was never set would authorize a write,
// because a comparison with revision 0 holds for an absent key.
func (f Fence) Compare() clientv3.Cmp {
	switch {
	case f.ModRevision > 0 && f.CreateRevision == 0:
		return ModIs(f.Key, f.ModRevision)
	case f.CreateRevision > 0 && f.ModRevision == 0:
		return CreateIs(f.Key, f.CreateRevision)
	}

	// No revision is negative, so this never holds.
	return clientv3.Compare(clientv3.CreateRevision(f.Key), "<", 0)
}

// Holds reports whether the fence held when kv was read. A nil kv means that the key was absent. Holds
// returns false if kv has another key than the fence. The result is a hint, because the key may have changed
// since: only Compare in the write itself is reliable.
func (f Fence) Holds(kv *mvccpb.KeyValue) bool {
	if kv == nil || string(kv.Key) != f.Key {
		return false
	}

	switch {
	case f.ModRevision > 0 && f.CreateRevision == 0:
		return kv.ModRevision == f.ModRevision
	case f.CreateRevision > 0 && f.ModRevision == 0:
		return kv.CreateRevision == f.CreateRevision
	}

	return false
}

// ModIs returns a comparison that holds if the mod revision of the key is rev. A rev of 0 means that the key
// is absent. A commit has about a hundred comparisons, and clientv3.Compare copies each of them by
// reflection, which ModIs avoids.
func ModIs(key string, rev int64) clientv3.Cmp {
	var c clientv3.Cmp
	p := c.GetCompare()
	p.Key, p.Target, p.TargetUnion = []byte(key), pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: rev}

	return c
}

// CreateIs returns a comparison that holds if the create revision of the key is rev; see ModIs.
func CreateIs(key string, rev int64) clientv3.Cmp {
	var c clientv3.Cmp
	p := c.GetCompare()
	p.Key, p.Target, p.TargetUnion = []byte(key), pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: rev}

	return c
}

// clientv3 copies each comparison of a transaction by reflection. That costs more than creating the comparison, and a
// commit has about a hundred of them. Therefore a transaction passes through clientv3 without its comparisons, which
// travel in the context. The interceptor below clientv3 adds them again before the transaction is sent.

// comparisons are the comparisons of a transaction (own), and of each transaction in its Then (nested, by the index
// of the operation). Transactions that are nested more deeply, or in Else, keep theirs.
type comparisons struct {
	own    []clientv3.Cmp
	nested [][]clientv3.Cmp
}

// deduplicateOps moves the comparisons of a transaction, and of the transactions among its operations, into c. It
// returns the operations without comparisons. It does not modify then.
func (c *comparisons) deduplicateOps(cmps []clientv3.Cmp, then []clientv3.Op) []clientv3.Op {
	c.own = cmps
	for i := range then {
		if !then[i].IsTxn() {
			continue
		}

		// Copy the slice before the first change, because it belongs to the caller.
		if c.nested == nil {
			c.nested, then = make([][]clientv3.Cmp, len(then)), append([]clientv3.Op(nil), then...)
		}

		own, yes, no := then[i].Txn()
		c.nested[i], then[i] = own, clientv3.OpTxn(nil, yes, no)
	}

	return then
}

// addTo adds the comparisons to the request that clientv3 has built.
func (c *comparisons) addTo(to *pb.TxnRequest) {
	to.Compare = compareMessages(c.own)
	for i, cmps := range c.nested {
		if cmps != nil {
			to.Success[i].GetRequestTxn().Compare = compareMessages(cmps)
		}
	}
}

// compareMessages returns the protobuf messages of the comparisons without copying them.
func compareMessages(cmps []clientv3.Cmp) []*pb.Compare {
	list := make([]*pb.Compare, len(cmps))
	for i := range cmps {
		list[i] = cmps[i].GetCompare()
	}
	return list
}

// comparisonsKey is the key under which a context carries the comparisons of a transaction.
type comparisonsKey struct{}

// restoring is the gRPC client that clientv3 uses. It adds the comparisons to each transaction that passes it.
type restoring struct{ pb.KVClient }

func (r restoring) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	if c, ok := ctx.Value(comparisonsKey{}).(*comparisons); ok {
		c.addTo(in)
	}
	return r.KVClient.Txn(ctx, in, opts...)
}

// restoringKV is a clientv3.KV that uses restoring. Only boundTxn relies on its type.
type restoringKV struct{ clientv3.KV }

// NewKV returns a KV that sends its requests through below, and adds the comparisons of each transaction again. A
// client that has one when it is passed to Wrap does not copy its comparisons.
func NewKV(below pb.KVClient, c *clientv3.Client) clientv3.KV {
	return restoringKV{clientv3.NewKVFromKVClient(restoring{below}, c)}
}
