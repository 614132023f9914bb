package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// BatcherConfig says how a Batcher sends. Its limits must not exceed those of etcd; zero values are for an etcd with
// default limits.
type BatcherConfig struct {
	// InFlight is how many requests are under way at most; default 4.
	InFlight int
	// MaxSiblings is how many transactions share a request at most; default 96.
	MaxSiblings int
	// MaxOps is etcd's --max-txn-ops; default 128.
	MaxOps int
	// MaxBytes is the size of a request that transactions share, at most; default just below etcd's 1.5 MiB.
	MaxBytes int
	// Queue is how many transactions wait to be sent at most; default 8192. Beyond that, Commit blocks.
	Queue int
	// Patience is how long a transaction waits for others, at most, while fewer than InFlight requests are under way;
	// default 50 ms. A request takes some milliseconds: one that takes longer is in trouble.
	Patience   time.Duration
	Registerer prometheus.Registerer // may be nil
	Logger     *zap.Logger           // may be nil
}

const (
	defaultInFlight    = 4
	defaultMaxSiblings = 96
	defaultMaxOps      = 128
	defaultMaxBytes    = 3<<19 - 16<<10 // the rest is for etcd's header
	defaultQueue       = 8192
	defaultPatience    = 50 * time.Millisecond
)

// Batcher is a Committer that sends independent transactions together: one request, one Raft entry, one fsync. Each is
// nested in it with comparisons of its own, and fails or succeeds alone.
//
//	Commit ──▶ waits for those before it that it conflicts with ──▶ ready ──▶ sent ──▶ answered
//
// What is guaranteed:
//
//   - Two transactions of which one writes what the other writes, reads or compares never share a request, nor are they
//     under way at the same time: the later one is sent when the earlier one is answered, if only with an error.
//     (Comparisons of one request all see the state before it.)
//   - Nothing waits for company while etcd has nothing to do: a transaction is sent at once if no request is under way,
//     and as it is if it is alone. Another request is begun, up to InFlight, when enough has come together to be worth
//     one; what has not goes with the next, when one is answered, or after Patience.
//   - A request that etcd refuses because of what is in it is halved until only the culprit fails. One refused because
//     etcd is behind is sent again after a while. Nothing else is ever sent again: if the outcome of a request is
//     unknown then each caller in it gets an error of which Unknown says so. A lack of space is such an error, and
//     therefore those that put nothing, and so are answered by a full etcd, never share a request with those that do.
//   - Each caller's context ends its own wait only: with a definite error if its transaction was not sent, which then
//     never is, with an unknown one if it was.
//
// What is not: transactions that do not conflict have no order. A put with a lease belongs to Direct: a lease that has
// ended makes etcd refuse the whole request, and clientv3 does not show leases; here it costs its neighbours a detour.
//
// A failed comparison's Result.Revision, too, is the one after the whole request. A Batcher touches no keys of its own.
type Batcher struct {
	kv       clientv3.KV
	cfg      BatcherConfig
	log      *zap.Logger
	metrics  batcherMetrics
	deadline deadline
	room     chan struct{} // one token for each that waits to be sent
	ended    chan struct{}
	tickets  sync.Pool // not shared with others: a channel belongs to its synctest bubble

	mu      sync.Mutex
	work    sync.Cond // there is something ready, or it is over
	turns   lockTable
	idle    int // senders that wait for work
	sending int // requests under way
	// Of those that are ready but not worth a request yet: a timer runs, and it has ended.
	waiting, impatient bool
	started            bool
	over               bool
}

var _ Committer = (*Batcher)(nil)

var (
	errBatcherEnded = errors.New("the batcher has ended")
	errBatcherTwice = errors.New("kv: a batcher runs once")
)

// NewBatcher returns a Batcher, which sends once it runs. c gives the requests their deadline: take a Client's.
func NewBatcher(c clientv3.KV, cfg BatcherConfig) *Batcher {
	cfg.InFlight = orDefault(cfg.InFlight, defaultInFlight)
	cfg.MaxSiblings = orDefault(cfg.MaxSiblings, defaultMaxSiblings)
	cfg.MaxOps = orDefault(cfg.MaxOps, defaultMaxOps)
	cfg.MaxBytes = orDefault(cfg.MaxBytes, defaultMaxBytes)
	cfg.Queue = orDefault(cfg.Queue, defaultQueue)
	cfg.Patience = orDefault(cfg.Patience, defaultPatience)
	b := &Batcher{
		kv: c, cfg: cfg, log: orNop(cfg.Logger).Named("batcher"),
		room: make(chan struct{}, cfg.Queue), ended: make(chan struct{}),
		tickets: sync.Pool{New: newTicket}, turns: lockTable{locks: map[uint64]*lock{}},
	}
	b.work.L = &b.mu
	b.metrics = newBatcherMetrics(b, cfg.Registerer)

	return b
}

// Run sends what is committed until ctx ends. Then those that wait get a definite error, as all do that come later, and
// it returns nil once the requests under way are answered.
func (b *Batcher) Run(ctx context.Context) error {
	b.mu.Lock()
	again := b.started
	b.started = true
	b.mu.Unlock()

	if again {
		return errBatcherTwice
	}

	var senders sync.WaitGroup

	for range b.cfg.InFlight {
		senders.Go(func() { b.runSender(ctx) })
	}

	<-ctx.Done()
	b.mu.Lock()
	b.over = true
	b.work.Broadcast()
	b.mu.Unlock()

	close(b.ended)
	senders.Wait()

	return nil
}

// Commit implements Committer. It blocks while the queue is full, and until Run is called.
func (b *Batcher) Commit(ctx context.Context, txn Txn) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, notSentError(err)
	}

	t := b.tickets.Get().(*ticket)
	t.txn = txn
	if err := t.measureTxn(txn); err != nil {
		return Result{}, notSentError(err)
	}

	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return Result{}, notSentError(ctx.Err())
	case <-b.ended:
		return Result{}, notSentError(errBatcherEnded)
	}

	if !b.enqueueTicket(t) {
		<-b.room
		return Result{}, notSentError(errBatcherEnded)
	}

	select {
	case <-t.answered:
		return b.awaitResult(t)
	case <-ctx.Done():
		return b.giveUp(t, ctx.Err())
	case <-b.ended:
	}

	b.mu.Lock()
	b.withdrawTicket(t)
	gone := t.state == withdrawn
	b.mu.Unlock()

	if gone {
		return Result{}, notSentError(errBatcherEnded)
	}

	select { // it is under way, and will be answered
	case <-t.answered:
		return b.awaitResult(t)
	case <-ctx.Done():
		return b.giveUp(t, ctx.Err())
	}
}

func notSentError(err error) error { return fmt.Errorf("commit: %w", notSent{err}) }

func (b *Batcher) enqueueTicket(t *ticket) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.over {
		return false
	}

	b.turns.acquireAll(t)

	if t.before > 0 {
		b.metrics.deferred.Inc()
	}

	b.wakeSender()

	return true
}

// giveUp is the end of a caller's patience: it takes t back if it was not sent, and else leaves it alone.
func (b *Batcher) giveUp(t *ticket, err error) (Result, error) {
	b.mu.Lock()
	b.withdrawTicket(t)

	if t.state == sent {
		t.state = abandoned
	}

	state := t.state
	b.mu.Unlock()

	switch state {
	case withdrawn:
		return Result{}, notSentError(err)
	case settled:
		<-t.answered
		return b.awaitResult(t)
	}

	return Result{}, fmt.Errorf("commit: the answer was not awaited: %w", err)
}

// withdrawTicket takes t back if it was not sent, or is known to have come to nothing.
func (b *Batcher) withdrawTicket(t *ticket) {
	switch t.state {
	case ticketQueued:
		if t.before == 0 {
			b.turns.ready.removeTicket(t)
		}
		<-b.room
	case refused: // its sender waits to send it again
	default:
		return
	}

	t.state = withdrawn
	b.turns.releaseAll(t)
	b.wakeSender()
}
