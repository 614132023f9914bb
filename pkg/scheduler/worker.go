package scheduler

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// worker serves one shard under one pair of fences. Its goroutine alone touches
// its state; others poke it.
type worker struct {
	e *Engine
	ports
	shard  int
	fences store.Fences
	log    *zap.Logger
	pokes  chan struct{}

	// For readiness: since when there is something undecided, in Unix
	// milliseconds; 0 if nothing is. While the shard is loaded, since when.
	undecided atomic.Int64
	opened    atomic.Bool
	progress  progress
	stop      atomic.Pointer[context.CancelCauseFunc] // ends the present serving

	preloaded *following    // what to go on with at the first opening; nil: nothing
	tellMarks chan struct{} // closed when what is followed need not tell of the watermark any more
	owner     bool          // it has opened the shard: what it knows counts
	marked    bool          // mark is known, so that the next ticks can be
	begun     bool          // the shard's first page is applied

	mark    store.Watermark
	known   int64 // the watermark's mod revision
	applied int64 // all events up to here are applied

	lastPlan plan // the one under way, or the last: the next one reuses its slices

	batches   <-chan store.ShardBatch // what the watch tells
	revised   int64                   // the mod revision of the shard's key revised; 0: it is not there
	revisedAt int64                   // the revision at which that was so
	overtaken int                     // commits in a row that were lost to edits the watch had not told of

	tasks     map[string]*taskState
	due       dueHeap
	onTime    int64                   // no task is behind at this instant, in Unix milliseconds; 0: nobody has looked
	uncovered map[*taskState]struct{} // created after mark.Seen, with ticks up to mark.Time
	looks     []*taskState            // what waits for them, or their attempts, want a look
	lives     lives                   // of which something waits or runs
	unread    pasts                   // their histories are to be read
	rests     map[*taskState]int64    // until when they want no look; Unix milliseconds
	restUntil int64                   // the first of them; 0: none
	purges    map[string]int64        // records of history that are to go: key and mod revision
	gone      map[string]int64        // records that our commits deleted, until the watch has told so: of the queue by namespace/name/run, others by key

	endedSince map[string]int64     // runs that ended since the shard was opened; nil once the scan is in
	looked     time.Time            // when all that waits was looked at last
	parts      store.EntryParts     // of the entry read last
	spans      map[*taskState]*span // of tasks whose last ticks were skipped
	line       line                 // late ticks that wait for their turn
	opening    opening              // how it found the shard at first
	stubborn   map[string]bool      // tasks for which the shard was opened again
	wakes      time.Time            // when a waiting run or a lost attempt wants a look; zero if none

	census   census                  // how many tasks of which kind
	failing  map[*taskState]*failure // whose last run to end failed
	told     map[string]int64        // of tasks whose runs have ended while former failures are read: the last end's revision
	glimpses chan *glimpse           // what of it is wanted for the board

	reviews   chan review  // what to compare with
	doubts    doubts       // what was found otherwise, of records
	runDoubts doubts       // and of active attempts
	openings  atomic.Int64 // how often the shard was opened and scanned
}

func newWorker(e *Engine, shard int, f store.Fences) *worker {
	w := &worker{
		e: e, shard: shard, fences: f, pokes: make(chan struct{}, 1), reviews: make(chan review, 4), glimpses: make(chan *glimpse, 1), stubborn: map[string]bool{},
		log: e.cfg.Logger.With(zap.Int("shard", shard)),
	}
	w.ports = ports{
		node: e.cfg.Node, placement: e.cfg.Fleet, tokens: shardTokens{e.pace, w}, nextAttempt: e.cfg.NextAttempt,
		clearedAfter: e.cfg.ClearedAfter,
		random:       rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
	w.progress.at.Store(int64(time.Since(e.made)))
	w.undecided.Store(e.cfg.Now().UnixMilli())
	return w
}

// poke makes the worker look at all that waits.
func (w *worker) poke() {
	select {
	case w.pokes <- struct{}{}:
	default:
	}
}

// run serves the shard, opening it again whenever changes may have been missed.
func (w *worker) run(ctx context.Context) error {
	for {
		err := w.serveUntilStopped(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errStalled):
			w.log.Warn("opening the shard again", zap.Error(err))
		case errors.Is(err, errReload), errors.Is(err, store.ErrMoved):
			w.log.Debug("opening the shard again", zap.Error(err))
		case errors.Is(err, task.ErrUnavailable), errors.Is(err, task.ErrUnknown):
			if !sleep(ctx, 200*time.Millisecond) {
				return ctx.Err()
			}
		default:
			return err
		}
	}
}

// serveUntilStopped is serve, which ends with errStalled if somebody finds that it
// stands still.
func (w *worker) serveUntilStopped(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.stop.Store(&stop)
	err := w.serve(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

func (w *worker) reset() {
	w.releaseAll()
	w.opened.Store(false)
	// What was undecided stays so; a tick that was to come is no excuse.
	if now, since := w.e.cfg.Now().UnixMilli(), w.undecided.Load(); since == 0 || since > now {
		w.undecided.Store(now)
	}
	w.tasks, w.due, w.onTime = map[string]*taskState{}, nil, 0
	w.uncovered, w.looks = map[*taskState]struct{}{}, nil
	w.lives, w.census, w.failing, w.told = lives{}, census{}, map[*taskState]*failure{}, map[string]int64{}
	w.unread, w.rests, w.restUntil = pasts{}, map[*taskState]int64{}, 0
	w.purges, w.gone = map[string]int64{}, map[string]int64{}
	w.endedSince = map[string]int64{}
	w.spans, w.line = map[*taskState]*span{}, line{}
	w.wakes = time.Time{}
	w.revised, w.revisedAt, w.overtaken = 0, 0, 0
	w.owner, w.marked, w.begun = true, true, false
}

// releaseAll takes what the worker counted back from what the workers share.
func (w *worker) releaseAll() {
	for _, t := range w.tasks {
		for _, a := range t.active() {
			w.placement.Release(a.node)
		}
		w.countWaiting(-len(t.queue()))
		w.setBad(t, false)
	}
	w.tokens.Leave()
	// All that holds many tasks: the board may know the worker when its shard is
	// long another's.
	w.tasks, w.due, w.lives, w.uncovered = nil, nil, lives{}, nil
}

// countWaiting counts waiting runs of a shard that is ours.
func (w *worker) countWaiting(by int) {
	if w.owner {
		w.e.metrics.waiting.Add(float64(by))
	}
}

// serve opens the shard, loads it and serves it until something ends that.
func (w *worker) serve(ctx context.Context) error {
	if p := w.preloaded; p != nil {
		w.preloaded = nil
		return w.serveLoaded(ctx, p)
	}
	w.reset()
	mark, rev, err := w.e.cfg.Store.Open(ctx, w.shard, w.fences)
	if err != nil {
		return err
	}
	w.e.metrics.opens.Inc()
	w.went()
	w.mark, w.known = mark, rev
	w.opens(mark)

	// One scan serves all shards that are opened together; asked for now, it has
	// begun after the opening.
	scan := w.e.scans.ask(ctx)
	leave, err := w.e.loads.begin(ctx)
	if err != nil {
		return err
	}
	f := follow(ctx, func(ctx context.Context, apply func(store.ShardBatch) error) {
		_ = w.e.cfg.Store.FollowShard(ctx, w.shard, rev, apply) // ends with ctx
	})
	defer f.end()
	err = w.load(ctx, f.batches)
	leave()
	if err != nil {
		return err
	}
	if w.applied > rev {
		// rev was compacted away, and the shard loaded as it was later: the ends in
		// between are not told, so the scan must have begun after them.
		scan = w.e.scans.ask(ctx)
	}
	return w.loop(ctx, f.batches, scan)
}

// load takes the pages of the shard.
func (w *worker) load(ctx context.Context, batches <-chan store.ShardBatch) error {
	for more := true; more; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-batches:
			if err := w.hear(b); err != nil {
				return err
			}
			w.went()
			more = b.More
		}
	}
	return nil
}

// hear applies a batch. A second load ends it: what it leaves out (history) may
// have told of an end.
func (w *worker) hear(b store.ShardBatch) error {
	if b.First && w.begun {
		return errReload
	}
	w.begun = true
	w.apply(b)
	return nil
}

// following is a shard that is being followed.
type following struct {
	batches <-chan store.ShardBatch
	cancel  context.CancelFunc
	ended   chan struct{}
}

// follow begins to follow; what happens comes by batches until end is called, or
// ctx ends.
func follow(ctx context.Context, how func(ctx context.Context, apply func(store.ShardBatch) error)) *following {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan store.ShardBatch, 16)
	f := &following{batches: batches, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		how(ctx, func(b store.ShardBatch) error {
			select {
			case batches <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return f
}

func (f *following) end() {
	f.cancel()
	<-f.ended
}

func (w *worker) loop(ctx context.Context, batches <-chan store.ShardBatch, scan <-chan map[int][]store.ActiveKey) error {
	w.batches = batches
	timer := time.NewTimer(glance)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-batches:
			if err := w.hear(b); err != nil {
				return err
			}
			if err := w.drain(batches); err != nil {
				return err
			}
		case keys := <-scan:
			scan = nil
			if err := w.found(ctx, keys[w.shard]); err != nil {
				return err
			}
			w.opened.Store(true)
			w.e.recalls.ask(w)
		case r := <-w.reviews:
			if scan == nil {
				if err := w.review(ctx, r); err != nil {
					return err
				}
			}
		case g := <-w.glimpses:
			w.show(g)
			continue
		case <-w.pokes:
			w.lookAtAll()
		case <-timer.C:
		}
		if scan != nil {
			continue // decide nothing before the active runs are known
		}
		if err := w.round(ctx); err != nil {
			return err
		}
		timer.Reset(w.sleepFor())
	}
}

// found takes the answer to the scan. It may be newer than what the watch has
// told: of an attempt that the scan did not find any more, the retry waits in
// the queue already, and the run is active. So the queue is read after it. What
// waits for a task that the watch has yet to tell of is left to the watch: it
// would be taken for a record that nobody looks after, and purged.
func (w *worker) found(ctx context.Context, keys []store.ActiveKey) error {
	if err := w.readQueue(ctx); err != nil {
		return err
	}
	w.scanned(keys)
	return nil
}

// readQueue takes what waits now, and the parts that have ended, of tasks that are
// known.
func (w *worker) readQueue(ctx context.Context) error {
	queue, err := w.e.cfg.Store.Queue(ctx, w.shard)
	if err != nil {
		return err
	}
	for i := range queue {
		if t := w.tasks[queue[i].Task]; t == nil || t.orphan(queue[i].Run) {
			continue
		}
		if queue[i].Kind == store.KindPart {
			w.applyPart(&queue[i])
		} else {
			w.applyQueued(&queue[i])
		}
	}
	return nil
}

// drain applies what else has come, so that a round sees all of it.
func (w *worker) drain(batches <-chan store.ShardBatch) error {
	for {
		select {
		case b := <-batches:
			if err := w.hear(b); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// glance is how long a worker sleeps at most without a look at the clock: a
// timer counts neither the time that a laptop was suspended nor steps of the clock.
const glance = 5 * time.Second

// sleepFor is how long nothing is due, and publishes since when something is.
func (w *worker) sleepFor() time.Duration {
	now := w.e.cfg.Now()
	sleep := glance
	w.undecided.Store(0)
	if len(w.due) > 0 {
		due := w.due[0].dueAt()
		w.undecided.Store(due)
		sleep = min(sleep, instant(due).Sub(now))
	}
	if !w.wakes.IsZero() {
		sleep = min(sleep, w.wakes.Sub(now))
	}
	if w.restUntil != 0 {
		sleep = min(sleep, instant(w.restUntil).Sub(now))
	}
	if len(w.line.tasks) > 0 {
		sleep = min(sleep, w.line.turn.Sub(now))
	}
	return max(sleep, 0)
}

func (w *worker) lookAtAll() {
	for _, t := range w.lives.tasks {
		w.look(t)
	}
}

// wakeAt makes the worker look again at t, at the latest.
func (w *worker) wakeAt(t time.Time) {
	if w.wakes.IsZero() || t.Before(w.wakes) {
		w.wakes = t
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
