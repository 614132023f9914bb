package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// tickObserver is the store that scheduler and executor get. It observes which writes were acknowledged, and changes
// nothing.
type tickObserver struct {
	*store.Store
	clock   *fakeClock
	cursors []cursor // by shard
	// measuring enables samples.
	measuring atomic.Bool
	claimed   atomic.Bool // there is a sample of a claim

	opened   atomic.Int64 // shards that were opened, once each
	reopened atomic.Int64 // how often a shard was opened again
	decided  atomic.Int64 // ticks
	finished atomic.Int64 // attempts whose end is recorded
	failures atomic.Int64 // ends that could not be recorded, or were late

	mu      sync.Mutex
	started []time.Duration // from a tick to the start of its action
}

var (
	_ scheduler.Store = (*tickObserver)(nil)
	_ executor.Inbox  = (*tickObserver)(nil)
)

// cursor is the position up to which a shard's ticks are decided. Only the shard's worker moves it.
type cursor struct {
	timetable
	n     int             // the first undecided tick
	next  atomic.Int64    // its time in ms; 0: the shard has no tasks
	open  atomic.Bool     // it has been opened
	late  []time.Duration // samples: from when the clock reached a tick to the acknowledgment of its commit
	ticks []int64         // reused buffer
}

// newTickObserver returns an observer of a store.
func newTickObserver(s *store.Store, c *fakeClock, tables []timetable) *tickObserver {
	t := &tickObserver{Store: s, clock: c, cursors: make([]cursor, len(tables))}
	for i := range tables {
		t.cursors[i].timetable = tables[i]
		if len(tables[i].due) > 0 {
			t.cursors[i].next.Store(tables[i].nthTick(0))
		}
	}

	return t
}

// Open counts the shards that are opened.
func (t *tickObserver) Open(ctx context.Context, shard int, f store.Fences) (record.Watermark, int64, error) {
	w, rev, err := t.Store.Open(ctx, shard, f)
	switch {
	case err != nil:
	case t.cursors[shard].open.Swap(true):
		t.reopened.Add(1)
	default:
		t.opened.Add(1)
	}

	return w, rev, err
}

// Commit records the ticks that a commit has decided, after etcd has acknowledged it.
func (t *tickObserver) Commit(ctx context.Context, c *store.Commit) (int64, error) {
	rev, err := t.Store.Commit(ctx, c)
	if err == nil {
		t.cursors[c.Shard].advanceTo(t, c.Watermark, time.Now())
	}
	return rev, err
}

// advanceTo moves the cursor to the first tick that a watermark does not decide, and samples the lateness of the
// ticks before it.
func (c *cursor) advanceTo(t *tickObserver, w record.Watermark, now time.Time) {
	c.ticks = c.ticks[:0]
	for len(c.due) > 0 && c.isDecided(c.n, w) {
		c.ticks = append(c.ticks, c.nthTick(c.n))
		c.n++
	}

	if len(c.ticks) == 0 {
		return
	}

	c.next.Store(c.nthTick(c.n))
	t.decided.Add(int64(len(c.ticks)))

	if t.measuring.Load() {
		t.clock.eachReached(c.ticks, func(at time.Time) { c.late = append(c.late, now.Sub(at)) })
		if len(c.late) > 0 {
			t.claimed.Store(true)
		}
	}
}

// firstUndecided returns the earliest undecided tick of all shards, in ms.
func (t *tickObserver) firstUndecided() int64 {
	var first int64
	for i := range t.cursors {
		if next := t.cursors[i].next.Load(); next != 0 && (first == 0 || next < first) {
			first = next
		}
	}

	return first
}

// Finish records when an action has started, and that its end is recorded. For an action that does nothing, Finish
// is called as soon as it has started.
func (t *tickObserver) Finish(ctx context.Context, h record.Held, end task.Run, next *task.Waiting) error {
	if t.measuring.Load() && h.Action.Noop != nil {
		late := t.clock.Now().Sub(h.ScheduledTime.Time)
		t.mu.Lock()
		t.started = append(t.started, late)
		t.mu.Unlock()
	}

	err := t.Store.Finish(ctx, h, end, next)
	if err == nil {
		t.finished.Add(1)
	} else {
		t.failures.Add(1)
	}

	return err
}

// isSampled reports whether more ticks were decided than first, and a sample exists of a claim, which is taken a
// moment later, and with starts also of a start.
func (t *tickObserver) isSampled(first int64, starts bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.decided.Load() > first && t.claimed.Load() && (!starts || len(t.started) > 0)
}

// claimSamples returns the samples of all shards. The workers must have stopped.
func (t *tickObserver) claimSamples() []time.Duration {
	var all []time.Duration
	for i := range t.cursors {
		all = append(all, t.cursors[i].late...)
	}
	return all
}

// startSamples returns the samples of the executor, which must have stopped.
func (t *tickObserver) startSamples() []time.Duration { return t.started }

// dispatchObserver observes in etcd every run that is dispatched: when it was decided, and which ticks have no run.
type dispatchObserver struct {
	keys   record.Keys
	period time.Duration // of the tasks that it observes

	mu     sync.Mutex
	seen   map[string]*lastRun // by task
	seeing span                // what was observed since beginSpan
}

// lastRun is the latest run of a task.
type lastRun struct {
	tick, decided time.Time // its scheduled time, and when it was decided
}

// span is what was observed in a period.
type span struct {
	fired   int64           // runs that were dispatched
	missing int64           // ticks without a run
	twice   int64           // ticks with more than one run
	gap     time.Duration   // the longest time between two runs of a task, minus its period
	gapTask string          // the task with that gap
	late    []time.Duration // from each tick to its decision
}

// newDispatchObserver returns an observer that has not observed anything.
func newDispatchObserver(keys record.Keys, period time.Duration) *dispatchObserver {
	return &dispatchObserver{keys: keys, period: period, seen: map[string]*lastRun{}}
}

// watchDispatches watches until ctx ends. It fails if it has missed events.
func (d *dispatchObserver) watchDispatches(ctx context.Context, client *kv.Client, log *zap.Logger) error {
	key, end := kv.Prefix(d.keys.Runs())
	first := true
	return kv.Follow(ctx, client, kv.FollowConfig{Key: key, End: end, Logger: log, Name: "witness"}, func(b kv.Batch) error {
		if b.Reset && !first {
			return fmt.Errorf("the witness has missed a change at revision %d", b.Revision)
		}

		first = false

		for _, e := range b.Events {
			k, ok := d.keys.ParseRun(string(e.Kv.Key))
			if !ok || e.Type != clientv3.EventTypePut || e.Kv.CreateRevision != e.Kv.ModRevision {
				continue
			}

			a, err := record.DecodeAssigned(k, e.Kv.CreateRevision, e.Kv.Value)
			if err != nil {
				return err
			}

			d.noteDispatch(a.Run)
		}

		return nil
	})
}

// noteDispatch records the first dispatch of a tick. It ignores retries, and runs that a node handed back.
func (d *dispatchObserver) noteDispatch(r task.Run) {
	if r.Attempt > 1 || !r.DispatchedAt.Equal(r.CreatedAt.Time) {
		return
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	tick, decided := r.ScheduledTime.Time, r.CreatedAt.Time

	last := d.seen[r.Task]
	if last == nil {
		d.seen[r.Task] = &lastRun{tick, decided}
		return
	}

	d.seeing.fired++
	d.seeing.late = append(d.seeing.late, decided.Sub(tick))

	// A task that fires on time has a gap of zero beyond its period.
	if gap := decided.Sub(last.decided) - d.period; gap > d.seeing.gap {
		d.seeing.gap, d.seeing.gapTask = gap, r.Task
	}

	// Ticks must follow each other by exactly one period.
	switch ahead := tick.Sub(last.tick); {
	case ahead <= 0:
		d.seeing.twice++
	default:
		d.seeing.missing += int64(ahead/d.period) - 1
	}

	last.tick, last.decided = tick, decided
}

// beginSpan begins a new span.
func (d *dispatchObserver) beginSpan() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seeing = span{}
}

// allDispatched reports whether at least n tasks have had a run that was decided after a time.
func (d *dispatchObserver) allDispatched(n int, after time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()

	ran := 0
	for _, last := range d.seen {
		if last.decided.After(after) {
			ran++
		}
	}

	return ran >= n
}

// endSpan returns what was observed since beginSpan.
func (d *dispatchObserver) endSpan() span {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seeing
}
