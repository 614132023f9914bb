package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

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
func (w *dispatchObserver) watchDispatches(ctx context.Context, client *kv.Client, log *zap.Logger) error {
	key, end := kv.Prefix(w.keys.Runs())
	first := true
	return kv.Follow(ctx, client, kv.FollowConfig{Key: key, End: end, Logger: log, Name: "witness"}, func(b kv.Batch) error {
		if b.Reset && !first {
			return fmt.Errorf("the witness has missed a change at revision %d", b.Revision)
		}

		first = false

		for _, e := range b.Events {
			k, ok := w.keys.ParseRun(string(e.Kv.Key))
			if !ok || e.Type != clientv3.EventTypePut || e.Kv.CreateRevision != e.Kv.ModRevision {
				continue
			}

			a, err := record.DecodeAssigned(k, e.Kv.CreateRevision, e.Kv.Value)
			if err != nil {
				return err
			}

			w.noteDispatch(a.Run)
		}

		return nil
	})
}

// noteDispatch records the first dispatch of a tick. It ignores retries, and runs that a node handed back.
func (w *dispatchObserver) noteDispatch(r task.Run) {
	if r.Attempt > 1 || !r.DispatchedAt.Equal(r.CreatedAt.Time) {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	tick, decided := r.ScheduledTime.Time, r.CreatedAt.Time

	last := w.seen[r.Task]
	if last == nil {
		w.seen[r.Task] = &lastRun{tick, decided}
		return
	}

	w.seeing.fired++
	w.seeing.late = append(w.seeing.late, decided.Sub(tick))

	// A task that fires on time has a gap of zero beyond its period.
	if gap := decided.Sub(last.decided) - w.period; gap > w.seeing.gap {
		w.seeing.gap, w.seeing.gapTask = gap, r.Task
	}

	// Ticks must follow each other by exactly one period.
	switch ahead := tick.Sub(last.tick); {
	case ahead <= 0:
		w.seeing.twice++
	default:
		w.seeing.missing += int64(ahead/w.period) - 1
	}

	last.tick, last.decided = tick, decided
}

// beginSpan begins a new span.
func (w *dispatchObserver) beginSpan() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seeing = span{}
}

// allDispatched reports whether at least n tasks have had a run that was decided after a time.
func (w *dispatchObserver) allDispatched(n int, after time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	ran := 0
	for _, last := range w.seen {
		if last.decided.After(after) {
			ran++
		}
	}

	return ran >= n
}

// endSpan returns what was observed since beginSpan.
func (w *dispatchObserver) endSpan() span {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seeing
}
