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

// sender holds the buffers that one sending loop reuses.
type sender struct {
	*Batcher
	pack    []*ticket
	ops     []clientv3.Op
	results []Result
}

// runSender sends one request after the other until the batcher's end.
func (b *Batcher) runSender(ctx context.Context) {
	s := &sender{Batcher: b}
	b.mu.Lock()
	b.sending++ // next takes it off
	b.mu.Unlock()

	for s.sendNext() {
		s.deliverPack(ctx, s.pack)
		clear(s.pack)
	}
}

// sendNext waits for something to send and packs it.
func (s *sender) sendNext() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.sending--
	for !s.shouldSend() && !s.over {
		s.idle++
		s.wakeSender() // what entered while no sender was idle has started no timer
		s.work.Wait()
		s.idle--
	}

	if s.over {
		return false
	}

	s.sending++
	s.impatient = false
	s.pack = s.fillPack(s.pack[:0])
	s.wakeSender()

	return true
}

// companionWeight is how much must be ready, for each request under way, before
// another one is begun.
const companionWeight = 16

// shouldSend reports whether a request should start now. If no request is under way, any
// ready transaction is enough, so nothing waits while etcd is idle. Each request under way
// raises the weight that must be ready, because a request costs etcd as much as dozens of
// operations in it, and the transactions that wait join the next request.
//
// The wait ends after BatcherConfig.Patience, so that a request that hangs does not delay
// other transactions.
func (b *Batcher) shouldSend() bool {
	r := &b.turns.ready
	return r.first != nil && (b.impatient || r.weight >= companionWeight*b.sending)
}

// wakeSender sets a sender to work if there is work, now or when patience ends.
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

// fillPack packs as many as etcd's limits allow, the oldest first. Those that do not fit are left for the next request; a
// few of them do not end the search.
func (b *Batcher) fillPack(pack []*ticket) []*ticket {
	const mostLeft = 32
	first := b.turns.ready.first
	depth, bytes, left := 0, txnBytes, 0
	for t := first; t != nil && len(pack) < b.cfg.MaxSiblings && left < mostLeft; {
		next := t.next
		fits := t.puts == first.puts && len(pack)+1+max(depth, t.depth) <= b.cfg.MaxOps && bytes+t.bytes <= b.cfg.MaxBytes
		if t == first || fits {
			depth, bytes = max(depth, t.depth), bytes+t.bytes
			b.turns.ready.removeTicket(t)
			t.state = sent
			<-b.room
			pack = append(pack, t)
		} else {
			left++
		}

		t = next
	}

	return pack
}

// deliverPack sends a pack whose tickets are marked as sent, and sees to it that each is answered. The end of ctx cuts no
// request short, only the waiting between them.
func (s *sender) deliverPack(ctx context.Context, pack []*ticket) {
	wait := backoff{first: 5 * time.Millisecond, most: 500 * time.Millisecond}

	for len(pack) > 0 {
		results, err := s.sendRequest(context.WithoutCancel(ctx), pack)
		switch {
		case err == nil:
			s.settlePack(pack, results, nil)
			return
		case etcdError(err) == rpctypes.ErrTooManyRequests:
			s.metrics.busy.Inc()
			s.failPack(pack)
			wait.sleep(ctx)
			pack = s.requeuePack(pack)
		case len(pack) > 1 && contentRefused(err):
			s.metrics.halved.Inc()
			s.log.Warn("etcd refused a batch; splitting it",
				zap.Int("transactions", len(pack)), zap.Error(err))
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

// sendRequest sends one request.
func (s *sender) sendRequest(ctx context.Context, pack []*ticket) ([]Result, error) {
	s.metrics.requests.Inc()
	s.metrics.siblings.Observe(float64(len(pack)))
	s.results = s.results[:0]

	if allResolvedByCaller(pack) {
		begun := time.Now()
		impatient, cancel := context.WithTimeout(ctx, s.deadline.timeout())
		ctx = impatient
		defer func() {
			cancel()
			s.deadline.observeAnswer(time.Since(begun), errors.Is(impatient.Err(), context.DeadlineExceeded))
		}()
	}

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
	if len(r.Responses) != len(pack) {
		return nil, fmt.Errorf("commit: %d answers for %d transactions", len(r.Responses), len(pack))
	}

	for _, resp := range r.Responses {
		nested := resp.GetResponseTxn()
		if nested == nil {
			return nil, errors.New("commit: an answer that is not a transaction's")
		}

		// Only the outer header has a revision.
		s.results = append(s.results, Result{Succeeded: nested.Succeeded, Revision: r.Revision, Responses: nested.Responses})
	}

	return s.results, nil
}

// contentRefused says that etcd refused a request because of what is in it, before it applied any of it.
func contentRefused(err error) bool {
	switch etcdError(err) {
	case rpctypes.ErrTooManyRequests, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed,
		rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrNotCapable:
		return false
	}

	return !Unknown(err)
}

// failPack marks sent tickets as refused. It is certain that etcd did not apply them, so their callers may withdraw them.
func (b *Batcher) failPack(pack []*ticket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range pack {
		if t.state == sent {
			t.state = refused
		}
	}
}

// requeuePack marks as sent those that were refused and whose callers still wait. The others are done with; all are, if it is
// over.
func (b *Batcher) requeuePack(pack []*ticket) []*ticket {
	b.mu.Lock()
	defer b.mu.Unlock()

	still := pack[:0]
	for _, t := range pack {
		switch {
		case t.state == abandoned:
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

// settlePack stores each ticket's result or err, lets conflicting transactions proceed, and wakes the callers.
func (b *Batcher) settlePack(pack []*ticket, results []Result, err error) {
	b.mu.Lock()
	for i, t := range pack {
		if t.err = err; err == nil {
			t.result = results[i]
		}

		if t.state == sent {
			t.state = settled
		}

		b.turns.releaseAll(t)
	}

	b.wakeSender()
	b.mu.Unlock()

	for _, t := range pack {
		t.answered <- struct{}{}
	}
}
