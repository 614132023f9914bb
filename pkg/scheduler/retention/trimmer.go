// Package retention deletes what need not be kept: records of history and dead runs beyond the length
// that a task keeps (Trimmer), and tasks whose schedule has ended and whose ttl is over (Deleter).
//
// It works beside the workers of shards, so that no tick waits for it. The shards decide what is to go,
// and ask. What does not fit into its lines, or fails, is not remembered: the shard asks again. Each
// deletion compares the fences of the shard, so that only its owner deletes.
package retention

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// HistoryTrimmer cuts the history of a task to its length.
type HistoryTrimmer interface {
	History(ctx context.Context, ref record.Ref, states bool) ([]store.Past, error)
	TrimHistory(ctx context.Context, f store.Fences, ref record.Ref, gone []store.Past) error
	TrimDead(ctx context.Context, f store.Fences, ref record.Ref) error
}

// Trimmer keeps histories at their length, beside the workers, so that no tick
// waits for it. A task is trimmed when a quarter of what it keeps has been
// added, so that the cost of reading its keys is shared out. What does not fit
// into the line is asked for again at the task's next end.
type Trimmer struct {
	store HistoryTrimmer
	line  chan Trim
	log   *zap.Logger
}

// trimmersAtOnce is how many histories are trimmed at once: their deletes then share
// requests.
const trimmersAtOnce = 16

// NewTrimmer returns a Trimmer, which Run has to serve.
func NewTrimmer(s HistoryTrimmer, log *zap.Logger) *Trimmer {
	return &Trimmer{store: s, line: make(chan Trim, 4096), log: log}
}

// Ask puts a task into the line; false if the line is full.
func (t *Trimmer) Ask(job Trim) bool {
	select {
	case t.line <- job:
		return true
	default:
		return false
	}
}

// Pending is the line of the histories that are to be trimmed, as Run takes them.
func (t *Trimmer) Pending() <-chan Trim { return t.line }

// Run trims until ctx ends.
func (t *Trimmer) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)

	for range trimmersAtOnce {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case job := <-t.line:
					if err := t.Trim(ctx, job); err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrFenced) {
						t.log.Debug("could not trim a history; the next run that ends triggers another try", zap.String("task", job.Ref.String()), zap.Error(err))
					}
				}
			}
		})
	}

	return g.Wait()
}

// Trim cuts one history, or one list of dead runs, to its length.
func (t *Trimmer) Trim(ctx context.Context, job Trim) error {
	if job.Dead {
		return t.store.TrimDead(ctx, job.Fences, job.Ref)
	}

	past, err := t.store.History(ctx, job.Ref, job.History.Record == task.RecordFailures)
	if err != nil {
		return err
	}

	past = slices.DeleteFunc(past, func(p store.Past) bool { return !task.RunBelongs(p.Run(), job.UID) })
	gone := surplusRecords(past, job.History)
	if job.Before != 0 {
		gone = slices.DeleteFunc(gone, func(p store.Past) bool { return p.Mod >= job.Before })
	}

	if len(gone) == 0 {
		return nil
	}

	return t.store.TrimHistory(ctx, job.Fences, job.Ref, gone)
}
