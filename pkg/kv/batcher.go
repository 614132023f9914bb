package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// BatcherConfig holds the settings of a Batcher. Its limits must not exceed those of etcd. The zero values suit an
// etcd with default limits.
type BatcherConfig struct {
	// InFlight is the maximum number of requests in flight. The default is 4.
	InFlight int
	// MaxSiblings is the maximum number of transactions in a request. The default is 96.
	MaxSiblings int
	// MaxOps is the value of the option --max-txn-ops of etcd. The default is 128.
	MaxOps int
	// MaxBytes is the maximum size of a request with several transactions. The default is slightly less than the 1.5
	// MiB that etcd accepts.
	MaxBytes int
	// Queue is the maximum number of transactions that wait to be sent. The default is 8192. Commit blocks while it
	// is full.
	Queue int
	// Patience is how long a transaction waits at most for others to join its request, while fewer than InFlight
	// requests are in flight. The default is 50 ms. A request usually takes a few milliseconds, so one that takes
	// longer is delayed by a failure, and the others should not wait for it.
	Patience   time.Duration
	Registerer prometheus.Registerer // may be nil
	Logger     *zap.Logger           // may be nil
}

const (
	defaultInFlight    = 4
	defaultMaxSiblings = 96
	defaultMaxOps      = 128
	defaultMaxBytes    = 3<<19 - 16<<10 // 16 KiB remain for the parts that etcd adds to a request
	defaultQueue       = 8192
	defaultTimeout     = 50 * time.Millisecond
)

// Batcher is a Committer that combines independent transactions into one request, which costs one Raft entry and one
// fsync. The transactions are nested in the request. Each keeps its own comparisons, and succeeds or fails alone.
//
//	Commit ──▶ waits for earlier transactions that conflict with it ──▶ ready ──▶ sent ──▶ answered
//
// A Batcher guarantees:
//
//   - Two transactions conflict if one of them writes what the other writes, reads or compares. Conflicting
//     transactions never share a request and are never in flight at the same time. The later one is sent when the
//     earlier one has been answered, even if the answer is an error. This is necessary because all comparisons of a
//     request see the state before the request: two claims of the same tick would both succeed (G3).
//   - A transaction is sent at once if no request is in flight, and without nesting if it is alone. Further requests
//     start, up to InFlight, when enough transactions are ready (see shouldSend). The others join the next request,
//     which starts when one in flight is answered, or after Patience.
//   - If etcd refuses a request because of its content, the Batcher halves it until only the transaction that causes
//     the refusal fails (G19). If etcd refuses a request because it is overloaded, the Batcher sends it again later.
//     It sends nothing else again: if the outcome of a request is unknown, each caller gets an error for which
//     Unknown is true.
//   - A full etcd refuses only transactions that put something, with an error that leaves the outcome open. Therefore
//     transactions without puts, such as trims, never share a request with others, and succeed while etcd is full
//     (G18).
//   - The context of a caller limits only the wait of that caller. If its transaction has not been sent, it never
//     will be, and the error is definite. If it has been sent, the outcome is unknown.
//
// A Batcher does not guarantee an order between transactions that do not conflict. A put with a lease should use
// Direct: an expired lease makes etcd refuse the whole request, so the other transactions in it are delayed by the
// halving. The Batcher cannot separate such puts, because clientv3 does not expose the lease of an operation.
//
// Result.Revision is the revision after the whole request, even if a comparison of the transaction failed. A Batcher
// has no keys of its own.
type Batcher struct {
	kv       clientv3.KV
	cfg      BatcherConfig
	log      *zap.Logger
	metrics  batcherMetrics
	deadline deadline
	room     chan struct{} // holds one value for each transaction that waits to be sent
	ended    chan struct{} // closed when Run's context has ended
	// tickets holds tickets for reuse. Each Batcher has its own pool, because the channel of a ticket may only be used in
	// the synctest bubble that created it.
	tickets sync.Pool

	mu      sync.Mutex
	work    sync.Cond // signaled when a sender should send, and broadcast at the end
	turns   lockTable // the transactions that have entered and not been answered
	idle    int       // senders that wait for work
	sending int       // requests in flight
	// waiting means that a timer runs for transactions that are ready but do not justify a request yet. impatient
	// means that the timer has fired.
	waiting, impatient bool
	started            bool // Run has been called
	over               bool // Run's context has ended
}

var _ Committer = (*Batcher)(nil)

var (
	errBatcherEnded = errors.New("the batcher has ended")
	errBatcherTwice = errors.New("kv: a batcher runs once")
)

// NewBatcher returns a Batcher, which sends nothing until Run is called. c determines the deadline of the requests,
// so it should belong to a Client.
func NewBatcher(c clientv3.KV, cfg BatcherConfig) *Batcher {
	cfg.InFlight = orDefault(cfg.InFlight, defaultInFlight)
	cfg.MaxSiblings = orDefault(cfg.MaxSiblings, defaultMaxSiblings)
	cfg.MaxOps = orDefault(cfg.MaxOps, defaultMaxOps)
	cfg.MaxBytes = orDefault(cfg.MaxBytes, defaultMaxBytes)
	cfg.Queue = orDefault(cfg.Queue, defaultQueue)
	cfg.Patience = orDefault(cfg.Patience, defaultTimeout)
	b := &Batcher{
		kv: c, cfg: cfg, log: orNop(cfg.Logger).Named("batcher"),
		room: make(chan struct{}, cfg.Queue), ended: make(chan struct{}),
		tickets: sync.Pool{New: newTicket}, turns: lockTable{locks: map[uint64]*lock{}},
	}
	b.work.L = &b.mu
	b.metrics = newBatcherMetrics(b, cfg.Registerer)

	return b
}

// Run sends the committed transactions until ctx ends. Then the transactions that wait to be sent, and all later
// ones, fail with a definite error. Run returns nil when the requests in flight have been answered. It must be called
// only once.
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

	// From here on, no transaction enters and the senders take no more.
	<-ctx.Done()
	b.mu.Lock()
	b.over = true
	b.work.Broadcast()
	b.mu.Unlock()

	close(b.ended)
	senders.Wait()

	return nil
}

// Commit implements Committer. It blocks until the transaction has been answered, while the queue is full, and until
// Run is called. It returns earlier if ctx ends.
func (b *Batcher) Commit(ctx context.Context, txn Txn) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, notSentError(err)
	}

	// The keys and the size are determined here, by the goroutine of the caller and without the lock.
	t := b.tickets.Get().(*ticket)
	t.txn = txn
	if err := t.measureTxn(txn); err != nil {
		return Result{}, notSentError(err)
	}

	// Wait for a place in the queue. The sender that takes the transaction out of the queue frees the place.
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

	// The Batcher has ended. If t has not been sent, it is withdrawn, and the error is definite.
	b.mu.Lock()
	b.withdrawTicket(t)
	gone := t.state == withdrawn
	b.mu.Unlock()

	if gone {
		return Result{}, notSentError(errBatcherEnded)
	}

	// The transaction is in flight, and the sender will answer it before Run returns.
	select {
	case <-t.answered:
		return b.awaitResult(t)
	case <-ctx.Done():
		return b.giveUp(t, ctx.Err())
	}
}

// notSentError returns the definite error of a transaction that was not sent.
func notSentError(err error) error { return fmt.Errorf("commit: %w", notSent{err}) }

// enqueueTicket enters t into the lock table and wakes a sender if t is ready. It returns false if the Batcher has ended.
// Then t has not entered.
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

// giveUp ends the wait of a caller whose context has ended. It withdraws t if t has not been sent. If t is in flight,
// it leaves t to the sender and returns an error for which Unknown is true. If the answer has arrived meanwhile, it
// returns the answer.
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
		// The sender stores the answer before it sends this value.
		<-t.answered
		return b.awaitResult(t)
	}

	return Result{}, fmt.Errorf("commit: the wait for the answer ended early: %w", err)
}

// withdrawTicket removes t if it is certain that etcd has not applied and will not apply it: t has not been sent, or etcd
// has refused it and its sender waits to send it again. Otherwise it does nothing. The caller holds b.mu.
func (b *Batcher) withdrawTicket(t *ticket) {
	switch t.state {
	case ticketQueued:
		if t.before == 0 {
			b.turns.ready.removeTicket(t)
		}
		<-b.room
	case refused:
		// The sender waits to send t again, and drops it in requeuePack.
	default:
		return
	}

	t.state = withdrawn
	b.turns.releaseAll(t)
	b.wakeSender()
}

// ticket is a transaction in a Batcher. The fields below the line are protected by Batcher.mu. The others belong to
// the goroutine of the caller until the ticket has entered, and to the sender afterwards. The caller may read the
// answer after it has received a value from answered.
type ticket struct {
	footprint
	txn      Txn
	result   Result
	err      error
	answered chan struct{} // has room for one value; receives one when result or err has been set
	// ---
	state      ticketState
	seq        uint64    // the order of entry
	before     int       // how many locks and ranges of earlier transactions it waits for
	after      []*ticket // the tickets that wait for a range of this one
	prev, next *ticket   // neighbors in the list of ready tickets
}

// ticketState is the state of a ticket; see the diagram below.
type ticketState int

// queued ──▶ sent ──▶ settled
//
//	 │        │  ▲ └──▶ abandoned: its caller gave up while it was in flight
//	 │        ▼  │
//	 │      refused: etcd was overloaded, or refused the request because of any transaction in it
//	 ▼        ▼
//	withdrawn: its caller gave up, and etcd has not applied it
const (
	ticketQueued ticketState = iota
	sent
	refused
	settled
	withdrawn
	abandoned
)

// newTicket returns an empty ticket for the pool.
func newTicket() any { return &ticket{answered: make(chan struct{}, 1)} }

// awaitResult returns the answer of a settled ticket, and puts the ticket into the pool, because nothing refers to it
// any more. A ticket that was withdrawn or abandoned is not reused: a sender, or the list of an earlier ticket, may
// still refer to it.
func (b *Batcher) awaitResult(t *ticket) (Result, error) {
	result, err := t.result, t.err
	t.footprint.reset()
	*t = ticket{footprint: t.footprint, answered: t.answered, after: t.after}
	b.tickets.Put(t)

	return result, err
}

// readyList is a linked list of the ready tickets in the order of entry.
type readyList struct {
	first, last *ticket
	weight      int // the sum of the depths of the tickets
}

// insertTicket adds t at its place in the order of entry. A new ticket goes to the end. A ticket that had to wait usually
// belongs near the beginning, so the search starts there.
func (r *readyList) insertTicket(t *ticket) {
	r.weight += t.depth
	next := (*ticket)(nil)
	if r.last != nil && r.last.seq > t.seq {
		for next = r.first; next.seq < t.seq; {
			next = next.next
		}
	}

	t.next = next
	if next == nil {
		t.prev, r.last = r.last, t
	} else {
		t.prev, next.prev = next.prev, t
	}

	if t.prev == nil {
		r.first = t
	} else {
		t.prev.next = t
	}
}

// removeTicket removes t, which must be in the list.
func (r *readyList) removeTicket(t *ticket) {
	r.weight -= t.depth
	if t.prev == nil {
		r.first = t.next
	} else {
		t.prev.next = t.next
	}

	if t.next == nil {
		r.last = t.prev
	} else {
		t.next.prev = t.prev
	}

	t.prev, t.next = nil, nil
}

// deadline is how long the Batcher waits for the answer to a request if all its callers resolve an unknown outcome
// themselves. etcd never answers a request that was proposed to a leader which has just lost its leadership. Waiting
// for the 5 s of the client would stop all shards for that time. On the other hand, a slow etcd must not receive the
// same requests again and again. So the deadline follows the time that answers take.
type deadline struct{ d atomic.Int64 }

// The limits of a deadline.
const (
	minDeadline = 1500 * time.Millisecond
	maxDeadline = 5 * time.Second
)

// nextTimeout returns the deadline of the next request.
func (d *deadline) nextTimeout() time.Duration { return max(time.Duration(d.d.Load()), minDeadline) }

// observeAnswer records how long a request took. The next deadline is three times that, or twice the present deadline if
// the request was not answered, within the limits.
func (d *deadline) observeAnswer(took time.Duration, unanswered bool) {
	next := 3 * took
	if unanswered {
		next = 2 * d.nextTimeout()
	}
	d.d.Store(int64(min(next, maxDeadline)))
}

// allResolvedByCaller reports whether every caller in the pack resolves an unknown outcome itself.
func allResolvedByCaller(pack []*ticket) bool {
	return !slices.ContainsFunc(pack, func(t *ticket) bool { return !t.txn.ResolvedByCaller })
}

// batcherMetrics are the metrics of a Batcher. Their help texts are in newBatcherMetrics.
type batcherMetrics struct {
	requests prometheus.Counter
	siblings prometheus.Histogram
	halved   prometheus.Counter
	busy     prometheus.Counter
	deferred prometheus.Counter
}

// newBatcherMetrics returns the metrics of b, and registers them with r if that is not nil.
func newBatcherMetrics(b *Batcher, r prometheus.Registerer) batcherMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}

	m := batcherMetrics{
		requests: counter("carillon_batch_requests_total", "Group commit requests that were sent to etcd."),
		siblings: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "carillon_batch_transactions", Help: "Transactions in one group commit request.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 48, 64, 96, 128}}),
		halved:   counter("carillon_batch_halved_total", "Requests that etcd rejected because of their content and that were sent again in halves."),
		busy:     counter("carillon_batch_too_many_requests_total", "Requests that etcd rejected because it was too busy and that were sent again."),
		deferred: counter("carillon_batch_deferred_total", "Transactions that had to wait for an earlier one on the same keys."),
	}

	if r != nil {
		r.MustRegister(m.requests, m.siblings, m.halved, m.busy, m.deferred, prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "carillon_batch_queue", Help: "Transactions that are waiting to be sent."},
			func() float64 { return float64(len(b.room)) }))
	}

	return m
}
