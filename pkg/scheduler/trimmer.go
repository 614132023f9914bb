package scheduler

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// trimmer keeps histories at their length, beside the workers, so that no tick
// waits for it. A task is trimmed when a quarter of what it keeps has been
// added, so that the cost of reading its keys is shared out. What does not fit
// into the line is asked for again at the task's next end.
type trimmer struct {
	store historyTrimmer
	line  chan trim
	log   *zap.Logger
}

// trimmers is how many histories are trimmed at once: their deletes then share
// requests.
const trimmers = 16

func newTrimmer(s historyTrimmer, log *zap.Logger) *trimmer {
	return &trimmer{store: s, line: make(chan trim, 4096), log: log}
}

// ask puts a task into the line; false if the line is full.
func (t *trimmer) ask(job trim) bool {
	select {
	case t.line <- job:
		return true
	default:
		return false
	}
}

func (t *trimmer) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range trimmers {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case job := <-t.line:
					if err := t.trim(ctx, job); err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrFenced) {
						t.log.Debug("could not trim a history, its next end asks again", zap.String("task", job.ref.String()), zap.Error(err))
					}
				}
			}
		})
	}
	return g.Wait()
}

func (t *trimmer) trim(ctx context.Context, job trim) error {
	if job.dead {
		return t.store.TrimDead(ctx, job.fences, job.ref)
	}
	past, err := t.store.History(ctx, job.ref, job.history.Record == task.RecordFailures)
	if err != nil {
		return err
	}
	past = slices.DeleteFunc(past, func(p store.Past) bool { return !task.RunBelongs(p.Run(), job.uid) })
	gone := surplus(past, job.history)
	if job.before != 0 {
		gone = slices.DeleteFunc(gone, func(p store.Past) bool { return p.Mod >= job.before })
	}
	if len(gone) == 0 {
		return nil
	}
	return t.store.TrimHistory(ctx, job.fences, job.ref, gone)
}
