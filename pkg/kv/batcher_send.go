package kv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// sender is the state of one of the loops that send requests. Its buffers are reused for each request.
type sender struct {
	*Batcher
	pack    []*ticket     // the transactions of the current request
	ops     []clientv3.Op // the nested transactions of the current request
	results []Result      // the answers, in the order of the pack
}

// runSender sends one request after another until the Batcher ends.
func (b *Batcher) runSender(ctx context.Context) {
	s := &sender{Batcher: b}
	b.mu.Lock()
	b.sending++ // sendNext subtracts it again
	b.mu.Unlock()

	for s.sendNext() {
		s.deliverPack(ctx, s.pack)
		clear(s.pack)
	}
}

// sendNext ends the previous request, waits until another one should start, and fills s.pack with its transactions.
// It returns false when the Batcher has ended.
func (s *sender) sendNext() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.sending--
	for !s.shouldSend() && !s.over {
		s.idle++
		// Transactions that entered while no sender was idle have not started the timer of Patience.
		s.wakeSender()
		s.work.Wait()
		s.idle--
	}

	if s.over {
		return false
	}

	// Another sender may have to start a request with the transactions that this one leaves behind.
	s.sending++
	s.impatient = false
	s.pack = s.fillPack(s.pack[:0])
	s.wakeSender()

	return true
}

// opsPerRequestInFlight is the number of operations that must be ready, for each request in flight, before another request
// starts.
const opsPerRequestInFlight = 16

// shouldSend reports whether a request should start now. If no request is in flight, any ready transaction is
// sufficient, so nothing waits while etcd is idle. Each request in flight increases the number of operations that
// must be ready. A request costs etcd as much as dozens of operations in it, and the transactions that wait join the
// next request.
//
// The wait ends after BatcherConfig.Patience, so that a request that hangs does not delay other transactions.
func (b *Batcher) shouldSend() bool {
	r := &b.turns.ready
	return r.first != nil && (b.impatient || r.weight >= opsPerRequestInFlight*b.sending)
}

// wakeSender wakes an idle sender if a request should start now. If transactions are ready but do not justify a
// request, it starts the timer of Patience. It does nothing if no sender is idle: a busy sender calls it before it
// waits again. The caller holds b.mu.
func (b *Batcher) wakeSender() {
	switch {
	case b.idle == 0 || b.turns.ready.first == nil:
	case b.shouldSend():
		b.work.Signal()
	case !b.waiting:
		b.waiting = true
		time.AfterFunc(b.cfg.Patience, func() {
			b.mu.Lock()
			defer b.mu.Unlock()

			b.waiting = false
			if b.turns.ready.first != nil {
				b.impatient = true
				b.work.Signal()
			}
		})
	}
}

// fillPack moves ready transactions into the pack, the oldest first, as far as the limits of etcd allow. A
// transaction that does not fit stays ready for the next request, and the search continues with those behind it,
// until it has skipped 32. The first one is always packed. If it exceeds a limit on its own, etcd refuses it with an
// error for its caller.
//
// The ready transactions do not conflict with each other, so any of them may share a request (see lockTable).
func (b *Batcher) fillPack(pack []*ticket) []*ticket {
	const maxLeft = 32
	// etcd counts the transactions of the request plus the deepest one of them (see footprint.depth).
	first := b.turns.ready.first
	depth, bytes, left := 0, txnBytes, 0
	for t := first; t != nil && len(pack) < b.cfg.MaxSiblings && left < maxLeft; {
		next := t.next
		// Transactions that put share no request with others (see Batcher). etcd counts the nested transactions of a
		// request, plus the largest number of operations in any of them, against its limit.
		fits := t.puts == first.puts && len(pack)+1+max(depth, t.depth) <= b.cfg.MaxOps && bytes+t.bytes <= b.cfg.MaxBytes
		if t == first || fits {
			depth, bytes = max(depth, t.depth), bytes+t.bytes
			b.turns.ready.removeTicket(t)
			// From here on, the caller can no longer withdraw the transaction.
			t.state = sent
			<-b.room // the transaction does not wait in the queue any more
			pack = append(pack, t)
		} else {
			left++
		}

		t = next
	}

	return pack
}

// deliverPack sends a pack of transactions in the state sent, and makes sure that each of them is answered. The end
// of ctx does not cancel a request. It only ends the waits between requests.
func (s *sender) deliverPack(ctx context.Context, pack []*ticket) {
	wait := backoff{first: 5 * time.Millisecond, most: 500 * time.Millisecond}

	for len(pack) > 0 {
		results, err := s.sendRequest(context.WithoutCancel(ctx), pack)
		switch {
		case err == nil:
			s.settlePack(pack, results, nil)
			return
		case etcdError(err) == rpctypes.ErrTooManyRequests:
			// etcd has applied nothing. While the sender waits, the callers may withdraw their transactions.
			s.metrics.busy.Inc()
			s.failPack(pack)
			wait.sleep(ctx)
			pack = s.requeuePack(pack)
		case len(pack) > 1 && contentRefused(err):
			s.metrics.halved.Inc()
			s.log.Warn("etcd refused a batch; splitting it",
				zap.Int("transactions", len(pack)), zap.Error(err))
			// Each half is delivered completely before the next, and may be halved again. The transactions of both
			// halves keep their locks until they are answered.
			s.failPack(pack)
			half := len(pack) / 2
			s.deliverPack(ctx, s.requeuePack(pack[:half]))
			pack = s.requeuePack(pack[half:])
		default:
			s.settlePack(pack, nil, err)
			return
		}
	}
}

// sendRequest sends a pack as one request and returns a result for each transaction. If it returns an error, that is
// the error of every transaction in the pack.
func (s *sender) sendRequest(ctx context.Context, pack []*ticket) ([]Result, error) {
	s.metrics.requests.Inc()
	s.metrics.siblings.Observe(float64(len(pack)))
	s.results = s.results[:0]

	// If all callers resolve an unknown outcome themselves, the request gets a short deadline (see deadline).
	if allResolvedByCaller(pack) {
		begun := time.Now()
		impatient, cancel := context.WithTimeout(ctx, s.deadline.nextTimeout())
		ctx = impatient
		defer func() {
			cancel()
			s.deadline.observeAnswer(time.Since(begun), errors.Is(impatient.Err(), context.DeadlineExceeded))
		}()
	}

	// A single transaction needs no nesting, which keeps the request small.
	if len(pack) == 1 {
		r, err := direct{s.kv}.Commit(ctx, pack[0].txn)
		s.results = append(s.results, r)
		return s.results, err
	}

	s.ops = s.ops[:0]
	for _, t := range pack {
		s.ops = append(s.ops, clientv3.OpTxn(t.txn.If, t.txn.Then, t.txn.Else))
	}

	r, err := direct{s.kv}.Commit(ctx, Txn{Then: s.ops})
	clear(s.ops)
	if err != nil {
		return nil, err
	}
	// The answers are in the order of the operations. These two checks only fail if etcd violates its protocol.
	if len(r.Responses) != len(pack) {
		return nil, fmt.Errorf("commit: %d answers for %d transactions", len(r.Responses), len(pack))
	}

	for _, resp := range r.Responses {
		nested := resp.GetResponseTxn()
		if nested == nil {
			return nil, errors.New("commit: an answer that is not a transaction's")
		}

		// Nested answers have no revision. The revision of the request applies to all of them.
		s.results = append(s.results, Result{Succeeded: nested.Succeeded, Revision: r.Revision, Responses: nested.Responses})
	}

	return s.results, nil
}

// contentRefused reports whether etcd refused a request because of its content before it applied any of it. Errors
// about load, the log-in or the capabilities of etcd concern the request as a whole, so halving it would not help.
func contentRefused(err error) bool {
	switch etcdError(err) {
	case rpctypes.ErrTooManyRequests, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed,
		rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrNotCapable:
		return false
	}

	return !Unknown(err)
}

// failPack marks the transactions of a refused request. etcd has certainly not applied them, so from now on their
// callers may withdraw them.
func (b *Batcher) failPack(pack []*ticket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range pack {
		if t.state == sent {
			t.state = refused
		}
	}
}

// requeuePack prepares a refused pack for being sent again, and returns the transactions whose callers still wait. It
// drops those that were withdrawn or abandoned. If the Batcher has ended, it fails all others with a definite error.
func (b *Batcher) requeuePack(pack []*ticket) []*ticket {
	b.mu.Lock()
	defer b.mu.Unlock()

	still := pack[:0]
	for _, t := range pack {
		switch {
		case t.state == abandoned: // its caller gave up while it was in flight, and waits for no answer
			b.turns.releaseAll(t)
		case t.state == refused && b.over:
			t.state, t.err = settled, notSentError(errBatcherEnded)
			b.turns.releaseAll(t)
			t.answered <- struct{}{}
		case t.state == refused:
			t.state = sent
			still = append(still, t)
		}
	}

	b.wakeSender()

	return still
}

// settlePack stores the result, or err, of each transaction of a pack, allows conflicting transactions to proceed,
// and wakes the callers.
func (b *Batcher) settlePack(pack []*ticket, results []Result, err error) {
	b.mu.Lock()
	for i, t := range pack {
		if t.err = err; err == nil {
			t.result = results[i]
		}

		// An abandoned transaction stays in that state, because its caller has returned.
		if t.state == sent {
			t.state = settled
		}

		b.turns.releaseAll(t)
	}

	b.wakeSender()
	b.mu.Unlock()

	// The channels have room for one value, so this never blocks, even if a caller has gone.
	for _, t := range pack {
		t.answered <- struct{}{}
	}
}
