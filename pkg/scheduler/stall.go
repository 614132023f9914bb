package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// errStalled ends what a worker does, and has it open its shard again.
var errStalled = errors.New("the worker made no progress although a tick is due")

// progress is when something went on last: a shard was opened, a part of it was
// loaded, a commit was made; counted from the engine's making, on the monotonic clock.
type progress struct{ at atomic.Int64 }

func (e *Engine) idleTime(p *progress) time.Duration {
	return time.Since(e.made) - time.Duration(p.at.Load())
}

// noteProgress notes that the worker goes on, and so the engine.
func (w *worker) noteProgress() {
	now := int64(time.Since(w.e.made))
	w.progress.at.Store(now)
	w.e.progress.at.Store(now)
}

// Stalled returns the shards that have a tick older than age which nobody has
// decided, and whose worker has not committed anything for as long. The error
// says that so it is with all that the engine does. Whether etcd takes commits
// at all, the caller has to know.
func (e *Engine) Stalled(now time.Time, age time.Duration) (shards []int, all error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for id, w := range e.workers {
		since := w.undecided.Load()
		if since == 0 || now.Sub(time.UnixMilli(since)) <= age || e.idleTime(&w.progress) <= age {
			continue
		}

		if w.serving.Load() { // others wait for their turn to load, or for the scan
			shards = append(shards, id)
		}

		if quiet := e.idleTime(&e.progress); quiet > age {
			all = fmt.Errorf("shard %d has an undecided tick of %s, and no shard was committed to for %s", id,
				task.At(time.UnixMilli(since)).Format(time.RFC3339), quiet.Round(time.Second))
		}
	}

	return shards, all
}

// Restart has the worker of a shard drop what it does, and open the shard again.
func (e *Engine) Restart(shard int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.workers[shard]; w != nil {
		if stop := w.stop.Load(); stop != nil {
			(*stop)(errStalled)
		}
	}
}

// Beats grows once a second while the engine lives.
func (e *Engine) Beats() int64 { return e.beats.Load() }

// runHeartbeat says that the engine lives: that what its shards share is not held for ever.
func (e *Engine) runHeartbeat(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		e.mu.Lock()
		e.beats.Add(1)
		e.mu.Unlock()

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
