package mutant

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/store/record"
)

type keysOf = record.Keys

// injector puts a mutant into the client of a node.
type injector = func(node string, c *clientv3.Client)

// txn is a transaction, or one of several that share a request as nested transactions.
type txn struct {
	If         []clientv3.Cmp // the comparisons
	Then, Else []clientv3.Op
}

// editedTxns returns op with every transaction in it edited, including op itself.
func editedTxns(op clientv3.Op, edit func(txn) txn) clientv3.Op {
	return etcdhook.Each(op, func(cmps []clientv3.Cmp, then, els []clientv3.Op) clientv3.Op {
		t := edit(txn{cmps, then, els})
		return clientv3.OpTxn(t.If, t.Then, t.Else)
	})
}

// putsKey reports whether t itself, without its nested transactions, puts a key that wanted accepts.
func (t txn) putsKey(wanted func(key string) bool) bool {
	for _, op := range t.Then {
		if op.IsPut() && wanted(string(op.KeyBytes())) {
			return true
		}
	}

	return false
}

// editTransactions returns a mutant that edits each transaction before it is sent.
func editTransactions(edit func(k keysOf, t txn) txn) func(k keysOf) injector {
	return func(k keysOf) injector {
		return func(_ string, c *clientv3.Client) {
			c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
				return next(ctx, editedTxns(op, func(t txn) txn { return edit(k, t) }))
			})
		}
	}
}

// editReads returns a KV that edits the answers to reads outside of transactions.
func editReads(kv clientv3.KV, edit func(op clientv3.Op, resp *clientv3.GetResponse)) clientv3.KV {
	return etcdhook.KV(kv, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		r, err := next(ctx, op)
		if err == nil && op.IsGet() {
			edit(op, r.Get())
		}
		return r, err
	})
}

// successResponses returns the answer that etcd would give if all ops had succeeded at the revision in the header. Nested
// transactions get an empty header, as in etcd.
func successResponses(ops []clientv3.Op, header *pb.ResponseHeader) []*pb.ResponseOp {
	out := make([]*pb.ResponseOp, len(ops))
	for i, op := range ops {
		switch {
		case op.IsTxn():
			_, then, _ := op.Txn()
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{
				Header: &pb.ResponseHeader{}, Succeeded: true, Responses: successResponses(then, &pb.ResponseHeader{})}}}
		case op.IsPut():
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: header}}}
		case op.IsDelete():
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Header: header, Deleted: 1}}}
		default:
			out[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Header: header}}}
		}
	}

	return out
}

// withoutComparisons returns a mutant that removes the comparisons that dropped selects.
func withoutComparisons(dropped func(k keysOf, t txn, key string) bool) func(k keysOf) injector {
	return editTransactions(func(k keysOf, t txn) txn {
		var kept []clientv3.Cmp
		for _, c := range t.If {
			if !dropped(k, t, string(c.KeyBytes())) {
				kept = append(kept, c)
			}
		}

		t.If = kept
		return t
	})
}

// ownerFence selects a commit's comparison of the owner key.
func ownerFence(k keysOf, t txn, key string) bool {
	return strings.HasPrefix(key, k.Owners()) && isCommit(k, t)
}

// sessionFence selects a commit's comparisons of nodes' keys: of its own node, and of the nodes that get attempts.
func sessionFence(k keysOf, t txn, key string) bool {
	return strings.HasPrefix(key, k.Nodes()) && isCommit(k, t)
}

// watermarkKnown selects every comparison of a watermark.
func watermarkKnown(k keysOf, _ txn, key string) bool { return isWatermark(k, key) }

// watermarkOfEdit selects the comparison of an edit's stamp with the watermark.
func watermarkOfEdit(k keysOf, t txn, key string) bool { return isWatermark(k, key) && !isCommit(k, t) }

// entryKnown selects a commit's comparisons of entries.
func entryKnown(k keysOf, t txn, key string) bool {
	return inShard(k, key, "/tasks/") && isCommit(k, t)
}

// queueKnown selects every comparison of a waiting run.
func queueKnown(k keysOf, t txn, key string) bool {
	return inShard(k, key, "/queue/")
}

// parentKnown selects the comparison of a parent's record when a commit gives out one of its parts again. Such a
// commit compares the record but neither writes nor deletes it.
func parentKnown(k keysOf, t txn, key string) bool {
	return inShard(k, key, "/queue/") && isCommit(k, t) &&
		!slices.ContainsFunc(t.Then, func(op clientv3.Op) bool { return string(op.KeyBytes()) == key })
}

// freezesKnown selects a commit's comparison of the freeze record.
func freezesKnown(k keysOf, t txn, key string) bool { return key == k.Freezes() && isCommit(k, t) }

// revisedKnown selects a commit's comparison of its shard's revised key.
func revisedKnown(k keysOf, t txn, key string) bool { return isRevised(k, key) && isCommit(k, t) }

// isRevised reports whether a key is a shard's revised key.
func isRevised(k keysOf, key string) bool {
	return strings.HasPrefix(key, k.Shards()) && strings.HasSuffix(key, "/revised") && strings.Count(key[len(k.Shards()):], "/") == 1
}

// withoutRevision removes the put of the revised key from edits.
func withoutRevision(k keysOf, t txn) txn {
	t.Then = slices.DeleteFunc(slices.Clone(t.Then), func(op clientv3.Op) bool { return op.IsPut() && isRevised(k, string(op.KeyBytes())) })
	return t
}

// runKnown selects every comparison of an attempt's record.
func runKnown(k keysOf, _ txn, key string) bool { return strings.HasPrefix(key, k.Runs()) }

// noTerm removes the comparison of the leader's term, and delays the leader's writes by a second, even if it no
// longer leads then. Without the delay the mutant would rarely do harm: a leader that knows that its term has ended
// writes nothing, so that the comparison matters only for writes in flight.
func noTerm(k keysOf) injector {
	without := withoutComparisons(func(k keysOf, _ txn, key string) bool { return strings.HasPrefix(key, k.Leader()) })(k)
	return func(node string, c *clientv3.Client) {
		without(node, c)
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			leads := false
			editedTxns(op, func(t txn) txn {
				leads = leads || slices.ContainsFunc(t.If, func(c clientv3.Cmp) bool { return strings.HasPrefix(string(c.KeyBytes()), k.Leader()) })
				return t
			})

			if !leads {
				return next(ctx, op)
			}

			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()

			return next(ctx, op)
		})
	}
}

// isCommit reports whether t is an owner's commit. Only commits write a watermark.
func isCommit(k keysOf, t txn) bool {
	return t.putsKey(func(key string) bool { return isWatermark(k, key) })
}

// isWatermark reports whether a key is a shard's watermark.
func isWatermark(k keysOf, key string) bool {
	return strings.HasPrefix(key, k.Shards()) && strings.HasSuffix(key, "/watermark") && strings.Count(key[len(k.Shards()):], "/") == 1
}

// inShard reports whether a key is in the given part of a shard, such as "/queue/".
func inShard(k keysOf, key, part string) bool {
	return strings.HasPrefix(key, k.Shards()) && strings.Contains(key[len(k.Shards()):], part)
}
