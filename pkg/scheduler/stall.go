package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// errStalled is the cause with which Restart ends what a worker does. The worker then opens its shard
// again.
var errStalled = errors.New("the worker made no progress although a tick is due")

// progress is when something last made progress: a shard was opened, a page of it was loaded, or a commit
// succeeded. at is the time since the engine was created in nanoseconds, on the monotonic clock.
type progress struct{ at atomic.Int64 }

// idleTime returns the time since the last progress.
func (e *Engine) idleTime(p *progress) time.Duration {
	return time.Since(e.made) - time.Duration(p.at.Load())
}

// noteProgress records progress of the worker and of the engine.
func (w *worker) noteProgress() {
	now := int64(time.Since(w.e.made))
	w.progress.at.Store(now)
	w.e.progress.at.Store(now)
}

// Stalled returns the shards that have had an undecided tick for longer than age and whose worker has made
// no progress for as long. The caller should restart them. all is not nil if, in addition, no worker of the
// engine has made progress for as long. Stalled does not know whether etcd accepts commits at all; the
// caller must check that.
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

// Restart makes the worker of a shard drop what it is doing and open the shard again. It returns at once.
// It does nothing if the node does not own the shard.
func (e *Engine) Restart(shard int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.workers[shard]; w != nil {
		if stop := w.stop.Load(); stop != nil {
			(*stop)(errStalled)
		}
	}
}

// Beats returns a counter that grows once a second while the engine is running and its lock is free.
func (e *Engine) Beats() int64 { return e.beats.Load() }

// runHeartbeat increments Beats. It takes the engine's lock each time, so a lock that is never released
// stops the counter.
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
