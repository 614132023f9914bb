package bench

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// observedKV is a KV whose transactions a tickObserver sees. It waits for an answer even if its caller gives up, as the
// batcher does on a busy machine, because a commit of which the observer learns nothing would stop the clock.
type observedKV struct {
	clientv3.KV
	observer *tickObserver
}

// Txn begins a transaction.
func (k observedKV) Txn(ctx context.Context) clientv3.Txn {
	return &observedTxn{Txn: k.KV.Txn(context.WithoutCancel(ctx)), observer: k.observer}
}

// observedTxn is a transaction of an observedKV.
type observedTxn struct {
	clientv3.Txn
	observer *tickObserver
	then     []clientv3.Op
}

func (t *observedTxn) If(cs ...clientv3.Cmp) clientv3.Txn { t.Txn = t.Txn.If(cs...); return t }
func (t *observedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.then = t.Txn.Then(ops...), ops
	return t
}
func (t *observedTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }

func (t *observedTxn) Commit() (*clientv3.TxnResponse, error) {
	sent := time.Now()
	res, err := t.Txn.Commit()
	if err == nil && res.Succeeded {
		t.observer.noteWrites(t.then, res.Responses, sent)
	}

	return res, err
}

// tickObserver learns from the transactions of a node, after etcd has acknowledged them, which ticks are dispatched and
// which runs have ended.
type tickObserver struct {
	keys    record.Keys
	clock   *pacedClock // of the node; nil: it shows the real time
	cursors []cursor    // by shard, with a pacedClock

	from, until atomic.Int64 // the ticks that are sampled, in ms

	dispatched atomic.Int64 // runs
	finished   atomic.Int64 // attempts whose end is recorded

	mu      sync.Mutex
	claimed []time.Duration // samples: from when the clock reached a tick to the acknowledgment of its commit
	started []time.Duration // samples, with the real time: from a tick to when the end of its action was sent
}

// newTickObserver returns an observer of a node in real time.
func newTickObserver(keys record.Keys) *tickObserver {
	o := &tickObserver{keys: keys}
	o.sampleTicks(math.MaxInt64, math.MaxInt64)

	return o
}

// newPacedObserver returns an observer of a node with a clock, and with the tasks of timetables.
func newPacedObserver(keys record.Keys, c *pacedClock, tables []timetable) *tickObserver {
	o := newTickObserver(keys)
	o.clock, o.cursors = c, make([]cursor, len(tables))
	for i := range tables {
		o.cursors[i].timetable = tables[i]
	}

	return o
}

// sampleTicks determines which ticks are sampled: those from a time on, in ms, and before another.
func (o *tickObserver) sampleTicks(from, until int64) {
	o.from.Store(from)
	o.until.Store(until)
}

// isSampled reports whether a tick is sampled.
func (o *tickObserver) isSampled(ms int64) bool { return ms >= o.from.Load() && ms < o.until.Load() }

// noteWrites notes the operations of a transaction that was applied, and of those that are nested in it.
func (o *tickObserver) noteWrites(ops []clientv3.Op, res []*etcdserverpb.ResponseOp, sent time.Time) {
	runs := []byte(o.keys.Runs())

	var puts []string // runs
	var ended int64
	var mark clientv3.Op

	for i, op := range ops {
		switch {
		case op.IsTxn():
			if nested := res[i].GetResponseTxn(); nested.GetSucceeded() {
				_, then, _ := op.Txn()
				o.noteWrites(then, nested.Responses, sent)
			}
		case op.IsPut() && bytes.HasPrefix(op.KeyBytes(), runs):
			puts = append(puts, string(op.KeyBytes()))
		case op.IsPut() && bytes.HasSuffix(op.KeyBytes(), []byte("/"+record.KindWatermark)):
			mark = op
		case op.IsDelete() && bytes.HasPrefix(op.KeyBytes(), runs):
			ended++
			o.sampleStart(op.KeyBytes(), sent)
		}
	}

	o.finished.Add(ended)

	// Only a commit of a shard writes its watermark. Other writes do not create runs.
	if !mark.IsPut() {
		return
	}

	o.dispatched.Add(int64(len(puts)))
	o.sampleClaims(puts, time.Now())
	o.moveCursor(mark)
}

// tickOf returns the tick of a run by its key, in ms, and whether it is sampled.
func (o *tickObserver) tickOf(key string) (ms int64, sampled bool) {
	at, ok := task.TimeOfRunID(key[strings.LastIndexByte(key, '/')+1:])
	return at.UnixMilli(), ok && o.isSampled(at.UnixMilli())
}

// sampleStart takes a sample of the start of an action, whose end is sent as soon as it has started if it does nothing.
func (o *tickObserver) sampleStart(key []byte, sent time.Time) {
	if o.clock != nil {
		return
	}

	if ms, sampled := o.tickOf(string(key)); sampled {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.started = append(o.started, sent.Sub(time.UnixMilli(ms)))
	}
}

// sampleClaims takes samples of the runs of a commit.
func (o *tickObserver) sampleClaims(keys []string, acknowledged time.Time) {
	if o.from.Load() == math.MaxInt64 {
		return
	}

	var ticks []int64
	for _, key := range keys {
		if ms, sampled := o.tickOf(key); sampled {
			ticks = append(ticks, ms)
		}
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	if o.clock == nil {
		for _, ms := range ticks {
			o.claimed = append(o.claimed, acknowledged.Sub(time.UnixMilli(ms)))
		}
		return
	}

	slices.Sort(ticks)
	o.clock.eachReached(ticks, func(at time.Time) { o.claimed = append(o.claimed, acknowledged.Sub(at)) })
}

// cursor is the position up to which a shard's ticks are decided. The commits of a shard follow each other.
type cursor struct {
	timetable
	n atomic.Int64 // the first undecided tick
}

// moveCursor moves the cursor of a shard to the first tick that a watermark does not decide.
func (o *tickObserver) moveCursor(mark clientv3.Op) {
	k, ok := o.keys.ParseShard(string(mark.KeyBytes()))
	if !ok || k.Ref.Shard >= len(o.cursors) {
		return
	}

	c := &o.cursors[k.Ref.Shard]
	w, err := record.DecodeWatermark(mark.ValueBytes())
	if err != nil || len(c.due) == 0 {
		return
	}

	for c.isDecided(int(c.n.Load()), w) {
		c.n.Add(1)
	}
}

// decided returns how many ticks of all shards are decided.
func (o *tickObserver) decided() (n int64) {
	for i := range o.cursors {
		n += o.cursors[i].n.Load()
	}

	return n
}

// firstUndecided returns the earliest undecided tick of all shards, in ms.
func (o *tickObserver) firstUndecided() int64 {
	first := int64(math.MaxInt64)
	for i := range o.cursors {
		if c := &o.cursors[i]; len(c.due) > 0 {
			first = min(first, c.nthTick(int(c.n.Load())))
		}
	}

	return first
}

// allFinished reports whether all runs that were dispatched have ended.
func (o *tickObserver) allFinished() bool { return o.finished.Load() >= o.dispatched.Load() }

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
