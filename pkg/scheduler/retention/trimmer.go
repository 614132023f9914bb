// Package retention deletes what need not be kept: history records and dead runs beyond the number that a
// task keeps (Trimmer), and tasks whose schedule has ended and whose ttl has expired (Deleter).
//
// It works in parallel with the workers of shards, so that no tick waits for it. The workers decide what to
// delete, and request it. A request that does not fit into a queue, or fails, is not remembered: the worker
// makes it again. Each delete compares the fences of the shard, so that only its owner deletes.
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

// HistoryTrimmer reads and trims histories. History returns the records of a task without their values;
// states also requests whether each run succeeded.
type HistoryTrimmer interface {
	History(ctx context.Context, ref record.Ref, states bool) ([]store.Past, error)
	TrimHistory(ctx context.Context, f store.Fences, ref record.Ref, gone []store.Past) error
	TrimDead(ctx context.Context, f store.Fences, ref record.Ref) error
}

// Trimmer cuts histories to their length. It works in parallel with the workers, so that no tick waits for
// it. A task is trimmed after a quarter of the number that it keeps has been added, so that its keys are
// not listed too often. A request that does not fit into the queue is made again when the task's next run
// ends.
type Trimmer struct {
	store HistoryTrimmer
	line  chan Trim // requests; 4,096 may wait
	log   *zap.Logger
}

// trimmersAtOnce is how many histories are trimmed in parallel, so that their deletes can share requests to
// etcd.
const trimmersAtOnce = 16

// NewTrimmer returns a Trimmer. It does nothing until Run is called.
func NewTrimmer(s HistoryTrimmer, log *zap.Logger) *Trimmer {
	return &Trimmer{store: s, line: make(chan Trim, 4096), log: log}
}

// Ask requests a trim. It returns false if the queue is full.
func (t *Trimmer) Ask(job Trim) bool {
	select {
	case t.line <- job:
		return true
	default:
		return false
	}
}

// Pending returns the queue from which Run takes trims. Tests use it in place of Run.
func (t *Trimmer) Pending() <-chan Trim { return t.line }

// Run carries out trims until ctx ends.
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
