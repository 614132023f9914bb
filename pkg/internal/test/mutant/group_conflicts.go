package mutant

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
)

// conflictsTogether sends the transactions of all nodes that arrive within gatherFor as one request, whatever they
// compare and write. etcd evaluates all their comparisons before it applies any of their writes. Transactions are
// kept apart only where etcd itself refuses the request: two puts of one key, and a put of a key that another one
// deletes.
func conflictsTogether(keysOf) injector {
	g := &gatherer{}
	return func(_ string, c *clientv3.Client) { c.KV = etcdhook.KV(c.KV, g.sendTogether) }
}

// gatherFor is long enough that transactions of several nodes meet.
const gatherFor = 100 * time.Millisecond

// gatherer holds the request that is being collected; all clients of a cluster share it.
type gatherer struct {
	mu      sync.Mutex
	waiting *request // nil: the next transaction starts a request
}

// request is a set of transactions that are sent together.
type request struct {
	parts   []clientv3.Op       // the transactions, in the order of their arrival
	written map[string]bool     // keys that one of them puts
	deleted map[string]bool     // keys that one of them deletes
	done    chan struct{}       // closed when resp and err are set
	resp    clientv3.OpResponse // of all transactions together
	err     error
}

// sendTogether adds a transaction to the request that is being collected. The first one of a request waits for gatherFor
// and then sends all of them. The others wait for the result.
func (g *gatherer) sendTogether(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
	if !op.IsTxn() {
		return next(ctx, op)
	}

	// Join the request that is being collected, or start another.
	g.mu.Lock()
	r, first := g.waiting, false
	if r == nil || !r.addTransaction(op) {
		r, first = &request{written: map[string]bool{}, deleted: map[string]bool{}, done: make(chan struct{})}, true
		r.addTransaction(op)
		g.waiting = r
	}

	mine := len(r.parts)
	r.parts = append(r.parts, op)
	g.mu.Unlock()

	// The first transaction of the request sends all of them.
	if !first {
		select {
		case <-r.done:
		case <-ctx.Done():
			return clientv3.OpResponse{}, ctx.Err()
		}

		return r.partAnswer(mine)
	}

	select {
	case <-time.After(gatherFor):
	case <-ctx.Done():
	}

	// Let no further transaction join. Another request may already have replaced this one.
	g.mu.Lock()
	if g.waiting == r {
		g.waiting = nil
	}
	g.mu.Unlock()

	// A single transaction is sent as it is, not nested.
	if len(r.parts) == 1 {
		r.resp, r.err = next(ctx, op)
		close(r.done)
		return r.resp, r.err
	}

	r.resp, r.err = next(ctx, clientv3.OpTxn(nil, r.parts, nil))
	close(r.done)

	return r.partAnswer(mine)
}

// partAnswer returns the result of the i-th transaction.
func (r *request) partAnswer(i int) (clientv3.OpResponse, error) {
	if r.err != nil || len(r.parts) == 1 {
		return r.resp, r.err
	}

	whole := r.resp.Txn()
	part := whole.Responses[i].GetResponseTxn()
	return (&clientv3.TxnResponse{Header: whole.Header, Succeeded: part.Succeeded, Responses: part.Responses}).OpResponse(), nil
}

// addTransaction reports whether a transaction can join the request, and if so notes what it writes.
func (r *request) addTransaction(op clientv3.Op) bool {
	var puts, deletes []string
	ok, ops := true, 0
	editedTxns(op, func(t txn) txn {
		for _, branch := range [][]clientv3.Op{t.Then, t.Else} {
			for _, op := range branch {
				ops++
				key := string(op.KeyBytes())

				switch {
				case op.IsPut():
					puts = append(puts, key)
					ok = ok && !r.written[key] && !r.deleted[key]
				case op.IsDelete():
					deletes = append(deletes, key)
					ok = ok && !r.written[key] && len(op.RangeBytes()) == 0
				}
			}
		}

		return t
	})

	// Keep requests small. etcd's limits on operations are the concern of the Batcher and not tested here.
	if ok = ok && ops < 120 && len(r.parts) < 8; !ok {
		return false
	}

	for _, k := range puts {
		r.written[k] = true
	}

	for _, k := range deletes {
		r.deleted[k] = true
	}

	return true
}
