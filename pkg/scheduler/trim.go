package scheduler

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// trimmer keeps histories at their length, beside the workers, so that no tick
// waits for it. A task is trimmed when a quarter of what it keeps has been
// added, so that the cost of reading its keys is shared out. What does not fit
// into the line is asked for again at the task's next end.
type trimmer struct {
	store Store
	line  chan trim
	log   *zap.Logger
}

type trim struct {
	fences store.Fences
	ref    store.Ref
	keep   int
}

func newTrimmer(s Store, log *zap.Logger) *trimmer {
	return &trimmer{store: s, line: make(chan trim, 4096), log: log}
}

// trimAfter is how many records are added before a task that keeps so many is trimmed.
func trimAfter(keep int) int { return max(keep/4, 1) }

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
}

func (t *trimmer) trim(ctx context.Context, job trim) error {
	ids, err := t.store.HistoryIDs(ctx, job.ref)
	if err != nil || len(ids) <= job.keep {
		return err
	}
	return t.store.TrimHistory(ctx, job.fences, job.ref, ids[len(ids)-job.keep])
}
