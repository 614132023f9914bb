package mutant

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
)

// errorIsDone answers a transaction of unknown outcome with success, at the newest revision that the client has
// seen. A call that its caller cancels still fails.
func errorIsDone(keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		var mu sync.Mutex
		var newest pb.ResponseHeader
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			r, err := next(ctx, op)

			if !op.IsTxn() {
				return r, err
			}

			mu.Lock()
			defer mu.Unlock()

			// Remember the newest revision, as a plausible one for forged answers.
			if err == nil {
				newest.Revision = max(newest.Revision, r.Txn().Header.GetRevision())
				return r, nil
			}

			// Errors that prove that nothing was written are passed on.
			if !kv.Unknown(err) || ctx.Err() != nil && context.Cause(ctx) == context.Canceled {
				return r, err
			}

			_, then, _ := op.Txn()
			header := &pb.ResponseHeader{Revision: newest.Revision}

			return (&clientv3.TxnResponse{Header: header, Succeeded: true, Responses: successResponses(then, header)}).OpResponse(), nil
		})
	}
}

// errorIsNothing answers a write of unknown outcome with an error that proves that nothing was written.
func errorIsNothing(keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			r, err := next(ctx, op)
			if kv.Unknown(err) && etcdhook.Writes(op) {
				err = rpctypes.ErrNotCapable // of the errors that prove it, one that causes no retry
			}
			return r, err
		})
	}
}

// staleScan answers scans of all active runs with the result of an earlier scan, for up to half a minute.
func staleScan(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		var mu sync.Mutex
		var kept *clientv3.GetResponse
		var at time.Time
		c.KV = editReads(c.KV, func(op clientv3.Op, resp *clientv3.GetResponse) {
			if string(op.KeyBytes()) != k.Runs() || !op.IsKeysOnly() {
				return
			}

			mu.Lock()
			defer mu.Unlock()

			if kept == nil || time.Since(at) > 30*time.Second {
				kept, at = resp, time.Now()
				return
			}

			resp.Kvs, resp.More, resp.Count = kept.Kvs, kept.More, kept.Count
		})
	}
}

// clearedUnseen answers that every instance has been cleared.
func clearedUnseen(k keysOf) injector {
	prefix := strings.TrimSuffix(k.Cleared("x"), "x")
	return func(_ string, c *clientv3.Client) {
		c.KV = editReads(c.KV, func(op clientv3.Op, resp *clientv3.GetResponse) {
			if key := op.KeyBytes(); strings.HasPrefix(string(key), prefix) && len(resp.Kvs) == 0 {
				rev := resp.Header.GetRevision()
				resp.Kvs = []*mvccpb.KeyValue{{Key: key, Value: []byte(`{}`), CreateRevision: rev, ModRevision: rev}}
				resp.Count = 1
			}
		})
	}
}

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

// openByRead opens shards without a write. The opening commit writes only the watermark, and compares the
// owner key and a node key. It becomes a read with the same comparisons. The worker takes the revision of the read
// for that of the watermark, so later comparisons with it are translated back to the watermark's real revision.
func openByRead(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		o := &opener{keys: k, known: map[opening]int64{}}
		c.KV = etcdhook.KV(c.KV, o.callNext)
	}
}

// opening is a shard's watermark at the revision at which a worker believes to have written it.
type opening struct {
	mark     string // the key of the watermark
	revision int64  // of the answer to the read that replaced the opening commit
}

// opener translates the revisions of watermarks for one client.
type opener struct {
	keys keysOf

	mu    sync.Mutex
	known map[opening]int64 // the real mod revision of each watermark
}

// callNext replaces opening commits by reads, and translates the watermark comparisons of all others.
func (o *opener) callNext(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
	read := map[string]int64{}
	r, err := next(ctx, editedTxns(op, func(t txn) txn {
		known := int64(0)
		cmps := make([]clientv3.Cmp, len(t.If))
		for i, c := range t.If {
			if cmps[i] = c; isWatermark(o.keys, string(c.KeyBytes())) {
				known = o.trueRevision(string(c.KeyBytes()), c.GetCompare().GetModRevision())
				cmps[i] = kv.ModIs(string(c.KeyBytes()), known)
			}
		}

		t.If = cmps

		// An opening commit has four comparisons and one put.
		if len(t.Then) == 1 && len(t.If) == 4 && isCommit(o.keys, t) {
			mark := string(t.Then[0].KeyBytes())
			t.Then, read[mark] = []clientv3.Op{clientv3.OpGet(mark)}, known
		}

		return t
	}))

	// The worker takes the revision of the answer for the watermark's. Remember which one it really is.
	if err == nil && op.IsTxn() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for mark, known := range read {
			o.known[opening{mark, r.Txn().Header.GetRevision()}] = known
		}
	}

	return r, err
}

// trueRevision returns the real mod revision of a watermark for the one that a worker compares.
func (o *opener) trueRevision(mark string, revision int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()

	if known, is := o.known[opening{mark, revision}]; is {
		return known
	}

	return revision
}

// forgedRenewals answers every renewal of a lease with success. A node that is cut off never learns that its lease
// has expired, and never kills the attempts that others replace.
func forgedRenewals(keysOf) injector {
	return func(_ string, c *clientv3.Client) { c.Lease = forged{c.Lease} }
}

// forged is a Lease whose renewals never fail.
type forged struct{ clientv3.Lease }

// KeepAliveOnce renews the lease, and reports a success even if that fails.
func (f forged) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := f.Lease.KeepAliveOnce(ctx, id)
	if err != nil {
		return &clientv3.LeaseKeepAliveResponse{ID: id, TTL: 10}, nil
	}
	return resp, nil
}
