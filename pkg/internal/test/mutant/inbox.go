package mutant

import (
	"context"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
)

// presentLostAfter changes what an owner reads when it reads an attempt together with its node: the cluster's
// current lost_after replaces the one in the attempt's record. The attempt's node still uses the record.
func presentLostAfter(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			// Make the read, and then replace lost_after in each attempt of its result.
			r, err := next(ctx, op)
			if err != nil || !readsAttempts(k, op) {
				return r, err
			}

			record, err := next(ctx, clientv3.OpGet(k.Cluster()))
			if err != nil {
				return clientv3.OpResponse{}, err
			}

			// A missing setting is removed from the attempts, too: both then mean the default.
			var now any
			for _, e := range record.Get().Kvs {
				editObject(e.Value, func(m map[string]any) { now = m["lost_after"] })
			}

			for _, part := range r.Txn().Responses {
				for _, e := range part.GetResponseRange().GetKvs() {
					if !strings.HasPrefix(string(e.Key), k.Runs()) {
						continue
					}

					e.Value = editObject(e.Value, func(m map[string]any) {
						if delete(m, "lost_after"); now != nil {
							m["lost_after"] = now
						}
					})
				}
			}

			return r, nil
		})
	}
}

// readsAttempts reports whether op reads attempts and their nodes, and nothing else.
func readsAttempts(k keysOf, op clientv3.Op) bool {
	if !op.IsTxn() {
		return false
	}

	cmps, then, _ := op.Txn()
	return len(cmps) == 0 && len(then) > 1 && strings.HasPrefix(string(then[0].KeyBytes()), k.Runs()) &&
		!slices.ContainsFunc(then, func(op clientv3.Op) bool { return !op.IsGet() })
}

// adoptionForged changes the answer to an adoption whose comparison of the attempt's record has failed: the node is
// answered as if it had succeeded. After a hand-back of unknown outcome, the adoption would otherwise prove that
// the attempt was not handed back.
func adoptionForged(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			r, err := next(ctx, op)
			if err == nil && op.IsTxn() {
				forgeAdoptions(k, op, (*pb.TxnResponse)(r.Txn()), r.Txn().Header)
			}
			return r, err
		})
	}
}

// forgeAdoptions forges the answers of all adoptions in op, which may be nested in a request of several
// transactions.
func forgeAdoptions(k keysOf, op clientv3.Op, answer *pb.TxnResponse, header *pb.ResponseHeader) {
	_, then, _ := op.Txn()

	if isAdoption(k, op) && !answer.Succeeded && sessionHolds(answer) {
		answer.Succeeded, answer.Responses = true, successResponses(then, header)
		return
	}

	if !answer.Succeeded {
		return
	}

	for i, part := range then {
		if part.IsTxn() {
			forgeAdoptions(k, part, answer.Responses[i].GetResponseTxn(), header)
		}
	}
}

// sessionHolds reports whether the answer to a refused adoption shows that the node's session is alive. Then the
// comparison of the attempt's record has failed.
func sessionHolds(answer *pb.TxnResponse) bool {
	return len(answer.Responses) == 1 && len(answer.Responses[0].GetResponseRange().GetKvs()) == 1
}

// isAdoption reports whether op rewrites the record of an attempt under the node's session.
func isAdoption(k keysOf, op clientv3.Op) bool {
	cmps, then, _ := op.Txn()
	compares := func(prefix string) bool {
		return slices.ContainsFunc(cmps, func(c clientv3.Cmp) bool { return strings.HasPrefix(string(c.KeyBytes()), prefix) })
	}
	return len(then) == 1 && then[0].IsPut() && strings.HasPrefix(string(then[0].KeyBytes()), k.Runs()) && compares(k.Runs()) && compares(k.Nodes())
}
