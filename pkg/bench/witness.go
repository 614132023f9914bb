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

// witness sees every run that is dispatched, by what etcd tells: when each of the
// tasks that tick all the time was decided to run, and which of its ticks were not.
type witness struct {
	keys   record.Keys
	period time.Duration // of the tasks that it looks at

	mu     sync.Mutex
	seen   map[string]*lastRun // by task
	seeing span
}

// lastRun is a task's latest run.
type lastRun struct {
	tick, decided time.Time
}

// span is what was seen from one moment to another.
type span struct {
	fired   int64
	missing int64 // ticks that gave rise to no run
	twice   int64 // ticks that gave rise to more than one
	gap     time.Duration
	gapTask string // which had to wait that long, beyond its period, between two runs
	late    []time.Duration
}

func newWitness(keys record.Keys, period time.Duration) *witness {
	return &witness{keys: keys, period: period, seen: map[string]*lastRun{}}
}

// watchDispatches watches until ctx ends.
func (w *witness) watchDispatches(ctx context.Context, client *kv.Client, log *zap.Logger) error {
	key, end := kv.Prefix(w.keys.Runs())
	first := true
	return kv.Follow(ctx, client, kv.FollowConfig{Key: key, End: end, Logger: log, Name: "witness"}, func(b kv.Batch) error {
		if b.Reset && !first {
			return fmt.Errorf("the witness has missed something at revision %d", b.Revision)
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

// noteDispatch takes note of a dispatch: of a tick that had its turn, not of another
// attempt, or of one that a node gave back.
func (w *witness) noteDispatch(r task.Run) {
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
	if gap := decided.Sub(last.decided) - w.period; gap > w.seeing.gap {
		w.seeing.gap, w.seeing.gapTask = gap, r.Task
	}

	switch ahead := tick.Sub(last.tick); {
	case ahead <= 0:
		w.seeing.twice++
	default:
		w.seeing.missing += int64(ahead/w.period) - 1
	}

	last.tick, last.decided = tick, decided
}

// beginSpan begins another span.
func (w *witness) beginSpan() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seeing = span{}
}

// allDispatched reports whether each of n tasks has run after some moment.
func (w *witness) allDispatched(n int, after time.Time) bool {
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

// endSpan is what was seen since begin.
func (w *witness) endSpan() span {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seeing
}
